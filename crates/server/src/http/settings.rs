//! Settings of a bucket over HTTP: all of them with their bounds, and changes of several at once.

use std::sync::Arc;

use ::node::bucket_form::{Errors, by_setting};
use ::node::management::{BucketChange, BucketError};
use ::node::naming;
use ::node::user::User;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::settings::{Changed, Key, Kind, SETTINGS, Setting};
use engine::{Bucket, SettingError};
use serde_json::{Map, Value, json};

use super::answers::no_such_bucket;
use super::basic_auth::Caller;
use super::manage::{answer, change_buckets};
use super::rights::require_cluster_admin;
use super::shared::Shared;

pub(super) fn refused(errors: Errors) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": errors }))).into_response()
}

/// The bucket, if the caller may see it.
pub(super) fn find(shared: &Shared, user: &User, name: &str) -> Result<Arc<Bucket>, Box<Response>> {
    let visible = shared.node.bucket(name).filter(|_| user.may_select(name));
    visible.ok_or_else(|| Box::new(no_such_bucket()))
}

/// `GET /v1/buckets/BUCKET/settings`
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    let bucket = match find(&shared, &user, &name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    let settings: Vec<Value> = SETTINGS.iter().map(|setting| describe(&bucket, setting)).collect();
    let kind = naming::type_name(bucket.config().kind, bucket.backend());
    Json(json!({ "bucket": name, "type": kind, "settings": settings })).into_response()
}

fn describe(bucket: &Bucket, setting: &Setting) -> Value {
    let value = bucket.settings().get(setting.key);
    let mut out = json!({
        "name": setting.name,
        "value": typed(setting, value),
        "default": typed(setting, setting.default),
        "takes": setting.kind.to_string(),
        "doc": setting.doc,
    });
    let fields = out.as_object_mut().into_iter();
    fields.for_each(|fields| put_bounds(fields, setting));
    out
}

fn put_bounds(fields: &mut Map<String, Value>, setting: &Setting) {
    let (unit, least, most) = match setting.kind {
        Kind::Bytes { least, most } => ("bytes", least, most),
        Kind::Percent { least, most } => ("percent", least, most),
        Kind::Seconds { least, most } => ("seconds", least, most),
        Kind::Milliseconds { least, most } => ("milliseconds", least, most),
        Kind::Count { least, most } => ("count", least, most),
        Kind::Decimal { least, most } => ("decimal", least, most),
        Kind::Switch => {
            fields.insert("unit".to_owned(), json!("switch"));
            return;
        }
        Kind::Choice(words) => {
            fields.insert("unit".to_owned(), json!("choice"));
            fields.insert("choices".to_owned(), json!(words));
            return;
        }
    };
    fields.insert("unit".to_owned(), json!(unit));
    fields.insert("least".to_owned(), typed(setting, least));
    fields.insert("most".to_owned(), typed(setting, most));
}

/// A value as JSON has it: a number, a truth value or a word.
fn typed(setting: &Setting, value: u64) -> Value {
    match setting.kind {
        Kind::Switch => json!(value != 0),
        Kind::Choice(_) => json!(setting.show(value)),
        Kind::Decimal { .. } => json!(value as f64 / 1000.0),
        _ => json!(value),
    }
}

/// `PATCH` or `POST /v1/buckets/BUCKET/settings`: an object of names and values, of which all are taken or none. They are
/// kept with a bucket that was made over HTTP; all nodes of a cluster take them.
pub(super) async fn change(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    let bucket = match find(&shared, &user, &name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    let object: Map<String, Value> = match serde_json::from_slice(&body) {
        Ok(object) => object,
        Err(error) => {
            let what = format!("the body must be a JSON object of names and values: {error}");
            return refused(Errors::from([("_".to_owned(), what)]));
        }
    };
    let pairs: Vec<_> = object.iter().map(|(name, value)| (name.as_str(), text_of(value))).collect();
    let changes_quota = pairs.iter().any(|(name, value)| is_other_quota(&bucket, name, value));
    if changes_quota && let Err(response) = require_cluster_admin(&user) {
        return *response;
    }
    let (changed, change) = match read(&bucket, &pairs) {
        Ok(read) => read,
        Err(errors) => return refused(by_setting(&errors)),
    };
    // What deletes the bucket waits until it is held by no request.
    drop(bucket);
    match change_buckets(&shared, move |management| management.change(&name, change)).await {
        Ok(()) => Json(json!({ "changed": changed.iter().map(told).collect::<Vec<_>>() })).into_response(),
        Err(BucketError::Settings(errors)) => refused(by_setting(&errors)),
        Err(error @ BucketError::Quota(_)) => {
            refused(Errors::from([(naming::name_of(Key::MaxSize).to_owned(), error.to_string())]))
        }
        Err(error) => answer(&error),
    }
}

/// What the settings change at this node, and how it is asked for; or everything that is wrong with them.
fn read(
    bucket: &Bucket,
    pairs: &[(&str, String)],
) -> Result<(Vec<Changed>, BucketChange), Vec<SettingError>> {
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let changed = bucket.settings().clone().set_all(bucket.config().kind, &pairs)?;
    let change = BucketChange::of_settings(&pairs).map_err(|error| vec![error])?;
    Ok((changed, change))
}

/// The text that a value would have on the command line.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn told(changed: &Changed) -> Value {
    json!({ "name": changed.setting.name, "old": changed.old, "new": changed.new })
}

/// Whether a setting is the quota, and not the one that the bucket has.
pub(super) fn is_other_quota(bucket: &Bucket, name: &str, value: &str) -> bool {
    engine::settings::find(name).is_ok_and(|setting| {
        setting.key == Key::MaxSize && setting.kind.parse(value) != Some(bucket.settings().get(Key::MaxSize))
    })
}
