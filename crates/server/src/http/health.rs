//! `GET /healthz`: whether clients should be sent to this node.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Shared;
use crate::cluster::serving;

pub(super) async fn healthz(State(shared): State<Shared>) -> Response {
    match serving::why_not(&shared.node) {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}
