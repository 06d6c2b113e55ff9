//! `POST /v1/promise`: another node asks this one not to take over from it for a time (record 62).

use ::node::cluster::promises::{Denied, Request};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::shared::Shared;

/// Who asks shows in the request itself that it is a node of the cluster: this node may have read no state yet.
pub(super) async fn promise(State(shared): State<Shared>, Json(request): Json<Request>) -> Response {
    let Some(cluster) = shared.node.cluster() else {
        return refused(StatusCode::NOT_FOUND, "this node belongs to no cluster");
    };
    match cluster.promise(&request) {
        Ok(answer) => Json(answer).into_response(),
        Err(denied @ Denied::Stranger) => refused(StatusCode::FORBIDDEN, &denied.to_string()),
        Err(denied) => refused(StatusCode::CONFLICT, &denied.to_string()),
    }
}

fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "errors": { "_": why } }))).into_response()
}
