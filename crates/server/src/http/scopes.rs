//! Scopes and collections over HTTP, as SDKs and scripts manage them (Couchbase Server's REST API, Scopes and
//! Collections API). Errors are worded as clients compare them.

use std::sync::Arc;
use std::time::Duration;

use ::node::form;
use ::node::management::ManifestError as Refused;
use ::node::roles::Rights;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::ScopeId;
use engine::settings::Key;
use engine::{Bucket, HISTORY_NEEDS_LOG, ManifestRefusal, NextIds};
use kvstore::StorageBackend;
use serde::Deserialize;
use serde_json::{Value, json};
use vbucket::collections::manifest::{DEFAULT_NAME, InvalidManifest, is_user_name};
use vbucket::{Collection, Manifest, ManifestUid, Scope};

use super::basic_auth::Caller;
use super::failures::failed;
use super::manage::{answer, on_a_thread};
use super::query::Query;
use super::rights::rights_in;
use super::settings::find;
use super::shared::Shared;

fn refusal(refused: Refused) -> Response {
    let (status, message) = match refused {
        Refused::Invalid(message) => (StatusCode::BAD_REQUEST, message),
        Refused::NotFound(message) => (StatusCode::NOT_FOUND, message),
        Refused::Manifest(
            refusal @ (ManifestRefusal::Successor(_) | ManifestRefusal::TooManyForQuota { .. }),
        ) => (StatusCode::BAD_REQUEST, refusal.to_string()),
        Refused::Manifest(refusal @ ManifestRefusal::Full) => {
            (StatusCode::SERVICE_UNAVAILABLE, refusal.to_string())
        }
        Refused::Manifest(ManifestRefusal::Failure(failure)) => {
            let message = json!({ "errors": { "_": "The manifest could not be saved" } });
            let response = (StatusCode::INTERNAL_SERVER_ERROR, Json(message)).into_response();
            return failed(response, "the manifest stays as it is", &failure);
        }
        Refused::Bucket(error) => return answer(&error),
    };
    (status, Json(json!({ "errors": { "_": message } }))).into_response()
}

fn scope_named<'m>(manifest: &'m Manifest, name: &str) -> Result<&'m Scope, Refused> {
    let missing = || Refused::NotFound(format!("Scope with name {name:?} is not found"));
    manifest.scope_named(name).ok_or_else(missing)
}

fn collection_named<'m>(manifest: &'m Manifest, scope: &str, name: &str) -> Result<&'m Collection, Refused> {
    let missing =
        || Refused::NotFound(format!("Collection with name {name:?} in scope {scope:?} is not found"));
    manifest.collection_named(scope_named(manifest, scope)?.id, name).ok_or_else(missing)
}

fn check_name(name: &str) -> Result<(), Refused> {
    if is_user_name(name) {
        return Ok(());
    }
    let rule = "must be 1 to 251 letters, digits, or any of _ - % and not begin with _ or %";
    Err(Refused::Invalid(format!("The name {name:?} {rule}")))
}

/// A max TTL as clients send it: seconds, 0 for that of the bucket, -1 for none.
fn max_ttl(text: &str) -> Result<Option<u32>, Refused> {
    let wrong = || Refused::Invalid("maxTTL must be a number from -1 to 2147483647".to_owned());
    match text.parse::<i32>().map_err(|_| wrong())? {
        -1 => Ok(Some(0)),
        0 => Ok(None),
        seconds => u32::try_from(seconds).map(Some).map_err(|_| wrong()),
    }
}

/// The next manifest, which begins as the present one, and ids for what is new in it.
struct Draft {
    manifest: Manifest,
    next: NextIds,
}

impl Draft {
    fn of(present: &Manifest, next: NextIds) -> Draft {
        Draft { manifest: present.successor(), next }
    }

    fn add_scope(&mut self, name: &str) -> Result<ScopeId, Refused> {
        check_name(name)?;
        if self.manifest.scope_named(name).is_some() {
            return Err(Refused::Invalid(format!("Scope with name {name:?} already exists")));
        }
        let id = self.next.scope;
        self.manifest.add_scope(Scope { id, name: name.to_owned() }).map_err(invalid)?;
        self.next.scope.0 = id.0.saturating_add(1);
        Ok(id)
    }

    fn add_collection(
        &mut self,
        scope: &Scope,
        name: &str,
        max_ttl_s: Option<u32>,
        history: Option<bool>,
    ) -> Result<(), Refused> {
        check_name(name)?;
        if self.manifest.collection_named(scope.id, name).is_some() {
            let scope = &scope.name;
            let message = format!("Collection with name {name:?} in scope {scope:?} already exists");
            return Err(Refused::Invalid(message));
        }
        let id = self.next.collection;
        let collection = Collection { id, scope: scope.id, name: name.to_owned(), max_ttl_s, history };
        self.manifest.add_collection(collection).map_err(invalid)?;
        self.next.collection.0 = id.0.saturating_add(1);
        Ok(())
    }
}

fn invalid(invalid: InvalidManifest) -> Refused {
    Refused::Invalid(invalid.to_string())
}

/// How often, and how long each time, a change waits until others are on disk.
const ROOM_LOOKS: u32 = 200;
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Changes the manifest of a bucket and answers with its uid. Waits for the disk, and in a cluster
/// until that knows.
async fn change(
    shared: &Shared,
    caller: &Caller,
    name: &str,
    draft: impl Fn(&Manifest, Draft) -> Result<Manifest, Refused> + Send + Sync + 'static,
) -> Response {
    let bucket = match find(shared, &caller.0, name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    let draft = Arc::new(draft);
    let mut changed = Err(Refused::Manifest(ManifestRefusal::Full));
    // Scripts make one collection after the other: who has to wait for the disk does so here.
    for _ in 0..ROOM_LOOKS {
        let (bucket, draft) = (Arc::clone(&bucket), Arc::clone(&draft));
        changed = on_a_thread(shared, move |management| {
            management
                .change_manifest(&bucket, &move |present, next| draft(present, Draft::of(present, next)))
        })
        .await;
        if !matches!(changed, Err(Refused::Manifest(ManifestRefusal::Full))) {
            break;
        }
        tokio::time::sleep(ROOM_PAUSE).await;
    }
    match changed {
        Ok(manifest) => Json(json!({ "uid": manifest.uid().to_string() })).into_response(),
        Err(refused) => refusal(refused),
    }
}

/// A field of a form.
fn field(body: &[u8], name: &str) -> Option<String> {
    form::parse(body).into_iter().find(|(field, _)| field == name).map(|(_, value)| value)
}

fn required(body: &[u8], name: &str) -> Result<String, Refused> {
    field(body, name).ok_or_else(|| Refused::Invalid(format!("The value of {name} must be supplied")))
}

/// `GET /pools/default/buckets/BUCKET/scopes`
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Response {
    let bucket = match find(&shared, &caller.0, &name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    let manifest = bucket.collections().manifest();
    let rights = rights_in(&caller.0, &bucket);
    Json(shown(&manifest, &rights, can_keep_history(&bucket))).into_response()
}

/// A manifest as this interface shows it, with what the user sees of it: every collection says its max TTL, and whether it
/// has a part in the history of changes.
fn shown(manifest: &Manifest, rights: &Rights, can_keep_history: bool) -> Value {
    let collection = |one: &Collection| {
        let max_ttl = match one.max_ttl_s {
            None => 0,
            Some(0) => -1,
            Some(seconds) => i64::from(seconds),
        };
        let uid = format!("{:x}", one.id.0);
        let history = can_keep_history && one.history.unwrap_or(true);
        json!({ "name": one.name, "uid": uid, "maxTTL": max_ttl, "history": history })
    };
    let scope = |scope: &Scope| {
        let seen = manifest.collections_of(scope.id).filter(|one| rights.sees_collection(one.id));
        let collections: Vec<Value> = seen.map(collection).collect();
        json!({ "name": scope.name, "uid": format!("{:x}", scope.id.0), "collections": collections })
    };
    let seen = manifest.scopes().filter(|scope| rights.sees_scope(scope.id));
    let scopes: Vec<Value> = seen.map(scope).collect();
    json!({ "uid": manifest.uid().to_string(), "scopes": scopes })
}

/// `POST .../scopes`, `name=`
pub(super) async fn create_scope(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    change(&shared, &caller, &name, move |_, mut draft| {
        draft.add_scope(&required(&body, "name")?)?;
        Ok(draft.manifest)
    })
    .await
}

/// `DELETE .../scopes/SCOPE`
pub(super) async fn drop_scope(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((name, scope)): Path<(String, String)>,
) -> Response {
    change(&shared, &caller, &name, move |present, mut draft| {
        let id = scope_named(present, &scope)?.id;
        if scope == DEFAULT_NAME {
            return Err(Refused::Invalid("Deleting _default scope is not allowed".to_owned()));
        }
        draft.manifest.remove_scope(id);
        Ok(draft.manifest)
    })
    .await
}

/// Whether a bucket can keep a history of changes: one that keeps none at present can begin with it.
fn can_keep_history(bucket: &Bucket) -> bool {
    bucket.backend() == StorageBackend::LogStructured
}

/// Whether collections of a bucket have a part in its history if they do not say; `None` if it can keep none.
fn default_history(shared: &Shared, name: &str) -> Option<bool> {
    let bucket = shared.node.bucket(name).filter(|bucket| can_keep_history(bucket))?;
    Some(bucket.settings().is_on(Key::HistoryOfCollections))
}

/// Whether a collection has a part in the history, as its field says, or else `default`.
fn history(said: Option<bool>, default: Option<bool>) -> Result<Option<bool>, Refused> {
    match (said, default) {
        (Some(true), None) => Err(Refused::Invalid(format!("history: {HISTORY_NEEDS_LOG}"))),
        (said, default) => Ok(default.map(|default| said.unwrap_or(default))),
    }
}

/// The field `history` of a form.
fn history_in(body: &[u8]) -> Result<Option<bool>, Refused> {
    match field(body, "history").as_deref() {
        None => Ok(None),
        Some("true" | "1") => Ok(Some(true)),
        Some("false" | "0") => Ok(Some(false)),
        Some(other) => Err(Refused::Invalid(format!("history must be true or false, not {other:?}"))),
    }
}

/// `POST .../scopes/SCOPE/collections`, `name=`, `maxTTL=`, `history=`
pub(super) async fn create_collection(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((name, scope)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let default = default_history(&shared, &name);
    change(&shared, &caller, &name, move |present, mut draft| {
        let history = history(history_in(&body)?, default)?;
        let ttl = field(&body, "maxTTL").map(|text| max_ttl(&text)).transpose()?.flatten();
        let collection = required(&body, "name")?;
        draft.add_collection(scope_named(present, &scope)?, &collection, ttl, history)?;
        Ok(draft.manifest)
    })
    .await
}

/// `PATCH .../scopes/SCOPE/collections/COLLECTION`, `maxTTL=`, `history=`
pub(super) async fn change_collection(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((name, scope, collection)): Path<(String, String, String)>,
    body: Bytes,
) -> Response {
    let default = default_history(&shared, &name);
    change(&shared, &caller, &name, move |present, mut draft| {
        let id = collection_named(present, &scope, &collection)?.id;
        let (ttl, said) = (field(&body, "maxTTL"), history_in(&body)?);
        if let Some(ttl) = &ttl {
            draft.manifest.set_max_ttl(id, max_ttl(ttl)?);
        }
        if said.is_some() {
            draft.manifest.set_history(id, history(said, default)?);
        }
        let is_same = draft.manifest.collection(id) == present.collection(id);
        if ttl.is_none() && is_same { Ok(present.clone()) } else { Ok(draft.manifest) }
    })
    .await
}

/// `DELETE .../scopes/SCOPE/collections/COLLECTION`
pub(super) async fn drop_collection(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((name, scope, collection)): Path<(String, String, String)>,
) -> Response {
    change(&shared, &caller, &name, move |present, mut draft| {
        let id = collection_named(present, &scope, &collection)?.id;
        draft.manifest.remove_collection(id);
        Ok(draft.manifest)
    })
    .await
}

/// The scopes that there shall be.
#[derive(Deserialize)]
struct WantedScopes {
    scopes: Vec<WantedScope>,
}

#[derive(Deserialize)]
struct WantedScope {
    name: String,
    #[serde(default)]
    collections: Vec<WantedCollection>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WantedCollection {
    name: String,
    #[serde(default, rename = "maxTTL")]
    max_ttl: i64,
    history: Option<bool>,
}

/// What a change of everything may depend on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Condition {
    /// The uid that the present manifest must have.
    valid_on_uid: Option<String>,
}

/// `PUT .../scopes[?validOnUid=UID]`: all scopes and collections at once, by name. What is there already and stays keeps
/// its number.
pub(super) async fn replace(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Query(condition): Query<Condition>,
    body: Bytes,
) -> Response {
    let default = default_history(&shared, &name);
    change(&shared, &caller, &name, move |present, draft| {
        if condition.valid_on_uid.as_ref().is_some_and(|uid| *uid != present.uid().to_string()) {
            let message = format!("The manifest has the uid {}, not the one given", present.uid());
            return Err(Refused::Invalid(message));
        }
        let wanted: WantedScopes =
            serde_json::from_slice(&body).map_err(|error| Refused::Invalid(error.to_string()))?;
        all_of(&wanted, present, draft, default)
    })
    .await
}

fn all_of(
    wanted: &WantedScopes,
    present: &Manifest,
    mut draft: Draft,
    default: Option<bool>,
) -> Result<Manifest, Refused> {
    if !wanted.scopes.iter().any(|scope| scope.name == DEFAULT_NAME) {
        return Err(Refused::Invalid("Deleting _default scope is not allowed".to_owned()));
    }
    // What stays is put back below, where it is wanted.
    present.scopes().for_each(|scope| draft.manifest.remove_scope(scope.id));
    present.collections().for_each(|one| draft.manifest.remove_collection(one.id));
    let mut is_default_met = false;
    for scope in &wanted.scopes {
        let id = match present.scope_named(&scope.name) {
            // The default scope has stayed.
            Some(there) if there.id == ScopeId(0) && !is_default_met => {
                is_default_met = true;
                there.id
            }
            Some(there) => {
                draft.manifest.add_scope(there.clone()).map_err(invalid)?;
                there.id
            }
            None => draft.add_scope(&scope.name)?,
        };
        let of = Scope { id, name: scope.name.clone() };
        for one in &scope.collections {
            let ttl = max_ttl(&one.max_ttl.to_string())?;
            match present.collection_named(id, &one.name) {
                Some(there) => {
                    let said = one.history.map(|said| history(Some(said), default)).transpose()?;
                    let history = said.unwrap_or(there.history);
                    let kept = Collection { max_ttl_s: ttl, history, ..there.clone() };
                    draft.manifest.add_collection(kept).map_err(invalid)?;
                }
                None => draft.add_collection(&of, &one.name, ttl, history(one.history, default)?)?,
            }
        }
    }
    let next = &draft.manifest;
    let is_same = next.scopes().eq(present.scopes()) && next.collections().eq(present.collections());
    if is_same { Ok(present.clone()) } else { Ok(draft.manifest) }
}

/// `POST` or `GET .../scopes/@ensureManifest/UID`: whether all of the bucket has that manifest, or a later one.
pub(super) async fn ensure(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((name, uid)): Path<(String, String)>,
) -> Response {
    let bucket = match find(&shared, &caller.0, &name) {
        Ok(bucket) => bucket,
        Err(response) => return *response,
    };
    let Ok(wanted) = u64::from_str_radix(&uid, 16) else {
        return refusal(Refused::Invalid("The uid of a manifest is a hexadecimal number".to_owned()));
    };
    // All vBuckets have a manifest before whoever set it is answered.
    if bucket.collections().manifest().uid() >= ManifestUid(wanted) {
        return Json(json!({})).into_response();
    }
    let message = format!("The manifest has the uid {} until now", bucket.collections().manifest().uid());
    (StatusCode::GATEWAY_TIMEOUT, Json(json!({ "errors": { "_": message } }))).into_response()
}
