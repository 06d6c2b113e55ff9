//! Settings of a bucket over HTTP: all of them with their bounds, changes of several at once, and the form in which
//! SDKs and scripts update a bucket.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::settings::{Changed, Key, Kind, SETTINGS, Setting};
use engine::{Bucket, SettingError};
use serde_json::{Map, Value, json};

use super::basic_auth::Caller;
use super::{Shared, form, no_such_bucket};
use crate::naming;
use crate::privilege::Privilege;
use crate::user::User;

/// What is wrong, by what it is wrong with.
type Errors = BTreeMap<String, String>;

fn refused(errors: Errors) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": errors }))).into_response()
}

/// The bucket, if the caller may see it.
pub(super) fn find(shared: &Shared, user: &User, name: &str) -> Result<Arc<Bucket>, Box<Response>> {
    let visible = shared.node.bucket(name).filter(|_| user.may_select(name));
    visible.ok_or_else(|| Box::new(no_such_bucket()))
}

/// The bucket, if the caller may change it.
pub(super) fn find_for_change(
    shared: &Shared,
    user: &User,
    name: &str,
) -> Result<Arc<Bucket>, Box<Response>> {
    let bucket = find(shared, user, name)?;
    if user.privileges().has(Privilege::NodeSupervisor) {
        return Ok(bucket);
    }
    let message =
        json!({ "message": "Forbidden. User needs the role admin", "permissions": ["NodeSupervisor"] });
    Err(Box::new((StatusCode::FORBIDDEN, Json(message)).into_response()))
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
    let kind = naming::type_name(bucket.config().kind);
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

/// `PATCH` or `POST /v1/buckets/BUCKET/settings`: an object of names and values, of which all are taken or none.
pub(super) async fn change(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    let bucket = match find_for_change(&shared, &user, &name) {
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
    let pairs = object.iter().map(|(name, value)| (name.as_str(), text_of(value)));
    match apply(&bucket, &pairs.collect::<Vec<_>>()) {
        Ok(changed) => {
            Json(json!({ "changed": changed.iter().map(told).collect::<Vec<_>>() })).into_response()
        }
        Err(errors) => refused(by_setting(&errors)),
    }
}

/// The text that a value would have on the command line.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn told(changed: &Changed) -> Value {
    json!({ "name": changed.setting.name, "old": changed.old, "new": changed.new })
}

fn apply(bucket: &Bucket, pairs: &[(&str, String)]) -> Result<Vec<Changed>, Vec<SettingError>> {
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    bucket.set_params(&pairs)
}

fn by_setting(errors: &[SettingError]) -> Errors {
    errors.iter().map(|error| (name_in(error).to_owned(), error.to_string())).collect()
}

fn name_in(error: &SettingError) -> &str {
    match error {
        SettingError::Unknown(name) => name,
        SettingError::Value { name, .. } | SettingError::Conflict { name, .. } => name,
    }
}

/// Fields of the form that are settings here.
const FORM_SETTINGS: [(&str, Key); 5] = [
    ("ramQuotaMB", Key::MaxSize),
    ("evictionPolicy", Key::EvictionPolicy),
    ("maxTTL", Key::MaxTtl),
    ("compressionMode", Key::CompressionMode),
    ("durabilityMinLevel", Key::DurabilityMinLevel),
];

/// Fields of the form that a single node has fixed: SDKs send them with what they read before.
const FORM_FIXED: [(&str, &str); 7] = [
    ("replicaNumber", "0"),
    ("replicaIndex", "0"),
    ("flushEnabled", "0"),
    ("threadsNumber", "3"),
    ("conflictResolutionType", "seqno"),
    ("authType", "sasl"),
    ("saslPassword", ""),
];

/// `POST /pools/default/buckets/BUCKET`: fields of a form, of which all are taken or none.
pub(super) async fn update_bucket(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    let bucket = match find_for_change(&shared, &user, &name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    let fields = form::parse(&body);
    let mut errors = Errors::new();
    let mut pairs = Vec::new();
    for (field, value) in &fields {
        match setting_of(&bucket, field, value) {
            Ok(Some(pair)) => pairs.push(pair),
            Ok(None) => {}
            Err(what) => {
                errors.insert(field.clone(), what);
            }
        }
    }
    if !errors.is_empty() {
        return refused(errors);
    }
    match apply(&bucket, &pairs) {
        Ok(_) => StatusCode::OK.into_response(),
        Err(errors) => refused(by_field(&errors)),
    }
}

/// What a field changes; nothing if it says what is so already.
fn setting_of(bucket: &Bucket, field: &str, value: &str) -> Result<Option<(&'static str, String)>, String> {
    if let Some((_, key)) = FORM_SETTINGS.iter().find(|(name, _)| *name == field) {
        let value = match key {
            Key::MaxSize => {
                let megabytes: u64 = value.parse().map_err(|_| format!("{value:?}: give a number of MiB"))?;
                megabytes.saturating_mul(1 << 20).to_string()
            }
            Key::EvictionPolicy => naming::policy_from(value).to_owned(),
            _ => value.to_owned(),
        };
        return Ok(Some((naming::name_of(*key), value)));
    }
    let kind = bucket.config().kind;
    let is = match field {
        "name" => bucket.name(),
        "bucketType" if naming::kind_from(value) == Some(kind) => value,
        "bucketType" => naming::bucket_type(kind),
        "storageBackend" => naming::storage_backend(kind),
        _ => match FORM_FIXED.iter().find(|(name, _)| *name == field) {
            Some((_, is)) => is,
            None => return Err("there is no such field, or it cannot be changed".to_owned()),
        },
    };
    let means_is = value == is || (is == "0" && value == "false");
    if means_is { Ok(None) } else { Err(format!("{value:?}: it is {is:?} and cannot be changed")) }
}

fn by_field(errors: &[SettingError]) -> Errors {
    let field = |error: &SettingError| {
        let named = |(_, key): &&(&str, Key)| naming::name_of(*key) == name_in(error);
        let field = FORM_SETTINGS.iter().find(named).map_or(name_in(error), |(field, _)| field);
        (field.to_owned(), error.to_string())
    };
    errors.iter().map(field).collect()
}
