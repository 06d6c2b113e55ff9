//! Clients of a frozen node wait, whatever they ask; requests are counted.

use std::sync::atomic::Ordering::Relaxed;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::shared::Shared;

/// Lets a request wait while the node is frozen, or until it stops.
pub(super) async fn wait(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    shared.node.workers().accepting().http_requests.fetch_add(1, Relaxed);
    let mut hearing = shared.node.announcer().hearing();
    tokio::select! {
        () = hearing.thawed() => {}
        () = shared.stopped() => {}
    }
    next.run(request).await
}
