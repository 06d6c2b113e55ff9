//! A bucket that moves to another store while it is served, over HTTP.

use std::sync::Arc;

use ::node::bucket_form::Errors;
use ::node::management::BucketError;
use ::node::migration::{self, Migration};
use ::node::node::Node;
use ::node::{form, naming};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::BucketKind;
use kvstore::MoveStage;
use serde_json::{Value, json};

use super::basic_auth::Caller;
use super::manage::{answer, change_buckets};
use super::settings::{find, refused};
use super::shared::Shared;

/// The address.
pub(super) const PATH: &str = "/v1/buckets/{bucket}/migration";

/// `POST /v1/buckets/BUCKET/migration`: the bucket moves to the store that the form names.
pub(super) async fn begin(State(shared): State<Shared>, Path(name): Path<String>, body: Bytes) -> Response {
    let form = form::parse(&body);
    let wrong = |what: String| refused(Errors::from([("storageBackend".to_owned(), what)]));
    if let Some((other, _)) = form.iter().find(|(field, _)| *field != "storageBackend") {
        return wrong(format!("{other} is no field of this form: storageBackend is its only one"));
    }
    let word = form.first().map(|(_, value)| value.clone()).unwrap_or_default();
    let Some(backend) = naming::backend_from(&word) else {
        return wrong("it must be couchstore or magma".to_owned());
    };
    told(&shared, name, move |node, name| migration::begin(node, name, backend)).await
}

/// `DELETE /v1/buckets/BUCKET/migration`: the vBuckets go back to the store in which they were.
pub(super) async fn cancel(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    told(&shared, name, migration::cancel).await
}

/// `GET /v1/buckets/BUCKET/migration`: how far it is.
pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    if let Err(response) = find(&shared, &user, &name) {
        return *response;
    }
    match migration::look(&shared.node, &name) {
        Ok(found) => Json(describe(&name, &found)).into_response(),
        Err(error) => answer(&error),
    }
}

/// Does what blocks on a thread of its own, and tells how far the move is then.
async fn told(
    shared: &Shared,
    name: String,
    work: impl FnOnce(&Arc<Node>, &str) -> Result<(), BucketError> + Send + 'static,
) -> Response {
    let node = Arc::clone(&shared.node);
    let done = change_buckets(shared, move |_| {
        work(&node, &name)?;
        migration::look(&node, &name).map(|found| describe(&name, &found))
    });
    match done.await {
        Ok(found) => (StatusCode::ACCEPTED, Json(found)).into_response(),
        Err(error) => answer(&error),
    }
}

fn describe(name: &str, found: &Migration) -> Value {
    let word = |backend| naming::storage_backend(BucketKind::Persistent, backend);
    let mut told = json!({
        "bucket": name,
        "storageBackend": naming::storage_backend(found.kind, found.backend),
        "state": "none",
    });
    let Some(progress) = &found.progress else { return told };
    let state = match progress.stage {
        MoveStage::Copying => "copying",
        MoveStage::Cancelling => "cancelling",
        MoveStage::Ending => "ending",
        MoveStage::Done => return told,
    };
    let left = progress.left.iter().map(|(vb, why)| json!({ "vbucket": vb.0, "reason": why }));
    let seconds = progress.time.as_secs_f64();
    let rate = if seconds > 0.0 { (progress.items as f64 / seconds) as u64 } else { 0 };
    let more = json!({
        "state": state,
        "from": word(progress.from),
        "to": word(progress.to),
        "vbuckets": progress.vbuckets,
        "ofVbuckets": progress.of_vbuckets,
        "items": progress.items,
        "itemsPerSecond": rate,
        "left": left.collect::<Vec<_>>(),
        "waitsFor": progress.waits_for.iter().map(|vb| vb.0).collect::<Vec<u16>>(),
        "failure": progress.failure,
    });
    if let (Some(told), Value::Object(more)) = (told.as_object_mut(), more) {
        told.extend(more);
    }
    told
}
