//! New keys for encrypted files, while the node serves.

use std::sync::Arc;

use ::node::at_rest::rekey;
use ::node::management::BucketError;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::failures::failed;
use super::manage::{answer, on_a_thread};
use super::shared::Shared;

/// Where new keys are asked for.
pub(super) const PATH: &str = "/node/controller/rotateEncryptionKeys";

/// `POST` of [`PATH`]: new files are encrypted with new keys from now on; how many folders have one.
pub(super) async fn rotate(State(shared): State<Shared>) -> Response {
    let node = Arc::clone(&shared.node);
    let rotating = on_a_thread(&shared, move |_| Ok::<_, BucketError>(rekey::rotate(&node)));
    match rotating.await {
        Ok(Ok(0)) => {
            let what =
                "this node encrypts no files: start it with encryption-key-file or encryption-key-command";
            (StatusCode::BAD_REQUEST, Json(json!({ "errors": { "_": what } }))).into_response()
        }
        Ok(Ok(folders)) => Json(json!({ "folders": folders })).into_response(),
        Ok(Err(error)) => {
            let told = Json(json!({ "errors": { "_": error.to_string() } }));
            let response = (StatusCode::INTERNAL_SERVER_ERROR, told).into_response();
            failed(response, "not all folders have new keys for their files", &error)
        }
        Err(error) => answer(&error),
    }
}
