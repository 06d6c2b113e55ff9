//! How long commands may take on this node before they are slow operations.

use ::node::bucket_form::Errors;
use ::node::form;
use ::node::slow::limits;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::settings::refused;
use super::shared::Shared;

/// Where the limits are.
pub(super) const PATH: &str = "/node/settings/slowOperations";

/// `GET` of [`PATH`]: the commands that have limits of their own, with milliseconds.
pub(super) async fn show(State(shared): State<Shared>) -> Json<Value> {
    let own = shared.node.events().slow.limits.own();
    Json(own.into_iter().map(|(name, ms)| (name.to_owned(), ms.into())).collect::<Map<_, _>>().into())
}

/// `POST` of [`PATH`]: fields `COMMAND=MILLISECONDS` or `COMMAND=default`; all are taken or none. It holds until the node
/// starts again; what the configuration file says holds then.
pub(super) async fn change(State(shared): State<Shared>, body: Bytes) -> Response {
    let (mut taken, mut errors) = (Vec::new(), Errors::new());
    for (command, limit) in form::parse(&body) {
        match limits::parse(&command, limit.trim()) {
            Ok(limit) => taken.push(limit),
            Err(error) => {
                errors.insert(command, error.to_string());
            }
        }
    }
    if taken.is_empty() && errors.is_empty() {
        errors.insert("_".to_owned(), "give COMMAND=MILLISECONDS: nothing was changed".to_owned());
    }
    if !errors.is_empty() {
        return refused(errors);
    }
    taken.into_iter().for_each(|limit| shared.node.events().slow.limits.change(limit));
    StatusCode::OK.into_response()
}
