//! `GET /metrics`.

use ::node::stats::metrics::{CONTENT_TYPE, render};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Shared;

pub(super) async fn metrics(State(shared): State<Shared>) -> Response {
    let mut text = String::new();
    render(&shared.node, &mut text);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}
