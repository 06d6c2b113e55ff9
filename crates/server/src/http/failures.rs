//! Requests that fail on the node's side: their handlers say so in the answer, and it is logged here, seldom.

use std::fmt::Display;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::shared::Shared;

/// What failed, and why; goes with a response to [`tell`].
#[derive(Clone)]
struct Untold {
    what: &'static str,
    why: String,
}

/// A response to a request that failed: the log is to say what, and why.
pub(super) fn failed(mut response: Response, what: &'static str, why: &dyn Display) -> Response {
    response.extensions_mut().insert(Untold { what, why: why.to_string() });
    response
}

/// Logs failures, but not each of many.
pub(super) async fn tell(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if let Some(Untold { what, why }) = response.extensions().get()
        && let Some(left_out) = shared.node.events().http_failures.admit(shared.node.env().clock.monotonic())
    {
        tracing::error!(event = "http_request_failed", why, left_out, "{what}");
    }
    response
}
