//! Answers that handlers of several files give.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// An answer that is JSON already.
pub(super) fn json_bytes(json: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// The answer for a bucket that the node has and cannot serve.
pub(super) fn bucket_down(why: &str) -> Response {
    let body = serde_json::json!({ "errors": { "_": why } });
    (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
}

/// The answer for a bucket that there is not, in the words that clients compare.
pub(super) fn no_such_bucket() -> Response {
    (StatusCode::NOT_FOUND, "Requested resource not found.\r\n").into_response()
}
