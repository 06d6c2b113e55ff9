//! `GET /metrics`.

use std::sync::Arc;

use ::node::stats::metrics::{CONTENT_TYPE, render};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::connections;
use super::shared::Shared;

/// Figures of many buckets, in which much changed, take tens of milliseconds: they are made where stats of all vBuckets are,
/// not on the thread that answers everything else over HTTP.
pub(super) async fn metrics(State(shared): State<Shared>, request: Request) -> Response {
    let (node, peer) = (Arc::clone(&shared.node), connections::peer(&request));
    drop(request);
    let made = shared.node.lanes().overviews.begin(shared.node.env(), peer, move || {
        let mut text = String::new();
        render(&node, &mut text);
        text
    });
    let text = match made {
        Some(made) => made.await,
        None => None,
    };
    match text {
        Some(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        None => too_many_wait(),
    }
}

/// The answer to a request for which there is no place beside those that wait.
pub(super) fn too_many_wait() -> Response {
    let what = "Too many requests for figures wait: try again.\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], what).into_response()
}
