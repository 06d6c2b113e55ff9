//! The settings of the audit log, and its events, over HTTP.

use ::node::audit::AuditError;
use ::node::audit::events::{AUDIT_EVENTS, AuditEvent};
use ::node::audit::record::{AuditRecord, Ends};
use ::node::bucket_form::Errors;
use ::node::form;
use ::node::management::BucketError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::manage::{answer, on_a_thread};
use super::settings::refused;
use super::shared::Shared;

/// `GET /settings/audit`
pub(super) async fn show(State(shared): State<Shared>) -> Json<Value> {
    let log = &shared.node.audit;
    Json(log.settings().told(&log.log_path()))
}

/// `POST /settings/audit`: fields of a form, of which all are taken or none.
pub(super) async fn change(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Extension(ends): Extension<Ends>,
    body: Bytes,
) -> Response {
    if body.trim_ascii_start().starts_with(b"{") {
        let what = "the body is JSON: send a form (name=value&name=value)".to_owned();
        return refused(Errors::from([("_".to_owned(), what)]));
    }
    let node = std::sync::Arc::clone(&shared.node);
    let record = AuditRecord::new(AuditEvent::AuditConfigured).by(user.name().as_bytes()).between(ends);
    let changed = on_a_thread(&shared, move |_| {
        let users = node.accounts().users();
        let is_user = |name: &str| users.get(name.as_bytes()).is_some();
        Ok::<_, BucketError>(node.audit.change(&form::parse(&body), is_user, record))
    });
    match changed.await {
        Ok(Ok(None)) => StatusCode::OK.into_response(),
        Ok(Ok(Some(error))) => {
            let warning = format!(
                "the settings hold until this node starts again, and cannot be kept: {error}; make room, or mend the disk, and \
                 send them again"
            );
            Json(json!({ "warnings": { "_": warning } })).into_response()
        }
        Ok(Err(AuditError::Fields(wrong))) => refused(wrong.into_iter().collect::<Errors>()),
        Ok(Err(AuditError::NotHere)) => {
            refused(Errors::from([("_".to_owned(), "this node has no data directory".to_owned())]))
        }
        Err(error) => answer(&error),
    }
}

pub(super) fn described(is_filterable: bool) -> Json<Value> {
    let rows = AUDIT_EVENTS.iter().filter(|row| row.is_filterable == is_filterable);
    let described = rows.map(
        |row| json!({ "id": row.id, "name": row.name, "module": row.module, "description": row.description }),
    );
    Json(described.collect())
}

/// `GET /settings/audit/descriptors`: events that can be switched on and off.
pub(super) async fn descriptors() -> Json<Value> {
    described(true)
}

/// `GET /settings/audit/nonFilterableDescriptors`: the others.
pub(super) async fn other_descriptors() -> Json<Value> {
    described(false)
}
