//! Another secret for the nodes of a cluster, while they serve.

use std::sync::Arc;

use ::node::cluster::ClusterError;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::failures::failed;
use super::manage::{answer, on_a_thread};
use super::shared::Shared;

/// Where it is asked for; the name is that of the original.
pub(super) const PATH: &str = "/controller/rotateInternalCredentials";

/// `POST` of [`PATH`]: the nodes of the cluster log in at each other with a new secret from now on.
pub(super) async fn rotate(State(shared): State<Shared>) -> Response {
    let node = Arc::clone(&shared.node);
    let rotating = on_a_thread(&shared, move |_| {
        let Some(cluster) = node.cluster() else { return Ok(None) };
        Ok::<_, ::node::management::BucketError>(Some(cluster.secrets().rotate()))
    });
    let told = |status, what: &str| (status, Json(json!({ "errors": { "_": what } }))).into_response();
    match rotating.await {
        Ok(None) => {
            told(StatusCode::BAD_REQUEST, "this node belongs to no cluster, and logs in at no other node")
        }
        Ok(Some(Ok(()))) => StatusCode::OK.into_response(),
        Ok(Some(Err(error @ ClusterError::NewerSecret))) => told(StatusCode::CONFLICT, &error.to_string()),
        Ok(Some(Err(error))) => {
            let response = told(StatusCode::SERVICE_UNAVAILABLE, &error.advice());
            failed(response, "the secret of the cluster's nodes is the one before", &error)
        }
        Err(error) => answer(&error),
    }
}
