//! Where clients of another network reach this node, in the field's form.

use ::node::alternate::from_fields;
use ::node::form;
use ::node::management::BucketError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cluster::state::Alternate;
use serde_json::json;

use super::failures::failed;
use super::manage::change_buckets;
use super::settings::refused;
use super::shared::Shared;

/// Where it is changed.
pub(super) const PATH: &str = "/node/controller/setupAlternateAddresses/external";

/// `PUT` of [`PATH`]: `hostname`, and ports by service; without ports those of the node itself.
pub(super) async fn put(State(shared): State<Shared>, body: Bytes) -> Response {
    match from_fields(&form::parse(&body)) {
        Ok(alternate) => change(&shared, Some(alternate)).await,
        Err(wrong) => refused(wrong),
    }
}

/// `DELETE` of [`PATH`]
pub(super) async fn delete(State(shared): State<Shared>) -> Response {
    change(&shared, None).await
}

async fn change(shared: &Shared, alternate: Option<Alternate>) -> Response {
    let node = std::sync::Arc::clone(&shared.node);
    let changed = change_buckets(shared, move |_| Ok::<_, BucketError>(node.change_alternate(alternate)));
    match changed.await {
        Ok(Ok(())) => StatusCode::OK.into_response(),
        Ok(Err(error)) => {
            let errors = json!({ "errors": { "_": error } });
            let response = (StatusCode::INTERNAL_SERVER_ERROR, Json(errors)).into_response();
            failed(response, "the address for clients of another network was not changed", &error)
        }
        Err(error) => super::manage::answer(&error),
    }
}
