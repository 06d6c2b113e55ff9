//! Making, changing, emptying and deleting buckets, with the statuses and words that SDKs' bucket managers look at.

use ::node::bucket_form::{BucketForm, Errors, by_field};
use ::node::form;
use ::node::host_failure::HostFailure;
use ::node::kept_by::KeptBy;
use ::node::management::{BucketError, Management};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::answers::{bucket_down, no_such_bucket};
use super::basic_auth::Caller;
use super::failures::failed;
use super::query::Query;
use super::rights::require_cluster_admin;
use super::settings::{is_other_quota, refused};
use super::shared::Shared;
use super::threads::NotDone;

/// What may stand behind the question mark.
#[derive(serde::Deserialize)]
pub(super) struct Options {
    /// Only say what is wrong.
    #[serde(default)]
    just_validate: Option<String>,
    /// Say nothing of what is only doubtful.
    #[serde(default)]
    ignore_warnings: Option<String>,
}

impl Options {
    fn just_validates(&self) -> bool {
        self.just_validate.as_deref() == Some("1")
    }

    fn ignores_warnings(&self) -> bool {
        self.ignore_warnings.as_deref() == Some("1")
    }

    /// What is said of a bucket that could be made or changed; `code` if there is nothing to say.
    fn validated(&self, shared: &Shared, replicas: Option<u8>, code: StatusCode) -> Response {
        let nodes = shared.node.cluster_map().layout().active().count();
        let errors = match replicas.filter(|replicas| usize::from(*replicas) >= nodes) {
            Some(_) if !self.ignores_warnings() => {
                Errors::from([("replicaNumber".to_owned(), TOO_FEW_NODES.to_owned())])
            }
            _ => return (code, Json(json!({ "errors": {} }))).into_response(),
        };
        refused(errors)
    }
}

/// The field's words for more replicas than there are nodes for.
const TOO_FEW_NODES: &str = "Warning: you do not have enough data servers or server groups to support this number of \
                             replicas.";

/// What is said of a change that the next start does not know of.
const NOT_KEPT: &str = "Warning: the bucket is of the configuration file or of --bucket, and after a restart of the node it \
                        is what these say: change them, too.";

/// `POST /pools/default/buckets`
pub(super) async fn create(
    State(shared): State<Shared>,
    Query(options): Query<Options>,
    body: Bytes,
) -> Response {
    let vbuckets = shared.node.host().map_or(base::limits::DEFAULT_VBUCKETS, |host| host.config().vbuckets);
    let spec = match BucketForm::new(form::parse(&body)).create(vbuckets) {
        Ok(spec) => spec,
        Err(errors) => return refused(errors),
    };
    if !options.just_validates() {
        return done(
            StatusCode::ACCEPTED,
            change_buckets(&shared, move |management| management.create(spec)).await,
        );
    }
    let replicas = spec.replicas;
    match change_buckets(&shared, move |management| management.check_create(&spec)).await {
        Ok(()) => options.validated(&shared, Some(replicas), StatusCode::OK),
        Err(error) => answer(&error),
    }
}

/// `POST /pools/default/buckets/BUCKET`: fields of a form, of which all are taken or none.
pub(super) async fn change(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    Query(options): Query<Options>,
    body: Bytes,
) -> Response {
    let Some((spec, bucket)) = shared.node.buckets().into_iter().find(|(spec, _)| spec.name == name) else {
        return no_such_bucket();
    };
    let change = match BucketForm::new(form::parse(&body)).change(&spec, bucket.vbuckets()) {
        Ok(change) => change,
        Err(errors) => return refused(errors),
    };
    let mut settings = change.settings.iter();
    let takes_more = settings.any(|(name, value)| is_other_quota(&bucket, name, value))
        || change.replicas.is_some_and(|replicas| replicas != spec.replicas);
    if takes_more && let Err(response) = require_cluster_admin(&user) {
        return *response;
    }
    drop(bucket);
    if !options.just_validates() {
        let kept_by = KeptBy::of(&shared.node, &name);
        let changed = change_buckets(&shared, move |management| management.change(&name, change)).await;
        return match changed {
            // Empty, as of the field's server, unless there is something to say.
            Ok(()) if kept_by == KeptBy::Configuration && !options.ignores_warnings() => {
                Json(json!({ "warnings": { "_": NOT_KEPT } })).into_response()
            }
            changed => done(StatusCode::OK, changed),
        };
    }
    let replicas = change.replicas;
    match change_buckets(&shared, move |management| management.check_change(&name, &change)).await {
        // As the field's server has it.
        Ok(()) => options.validated(&shared, replicas, StatusCode::ACCEPTED),
        Err(error) => answer(&error),
    }
}

/// `DELETE /pools/default/buckets/BUCKET`
pub(super) async fn delete(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    done(StatusCode::OK, change_buckets(&shared, move |management| management.delete(&name)).await)
}

/// `POST /pools/default/buckets/BUCKET/controller/doFlush`
pub(super) async fn flush(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    done(StatusCode::OK, change_buckets(&shared, move |management| management.flush(&name)).await)
}

/// Changes buckets on a thread of its own, as soon as there may be one more.
pub(super) async fn change_buckets<T: Send + 'static, E: From<BucketError> + Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&dyn Management) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let management = shared.node.management();
    outcome(shared.threads.changes.run(shared.node.env(), shared.stopped(), move || work(&*management)).await)
}

/// Does what blocks on a thread of its own, so that others are answered meanwhile; not for what waits for changes of
/// buckets.
pub(super) async fn on_a_thread<T: Send + 'static, E: From<BucketError> + Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&dyn Management) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let management = shared.node.management();
    outcome(shared.threads.others.run(shared.node.env(), shared.stopped(), move || work(&*management)).await)
}

/// What came of work on a thread.
fn outcome<T, E: From<BucketError>>(done: Result<Result<T, E>, NotDone>) -> Result<T, E> {
    done.unwrap_or_else(|not_done| {
        let error = match (not_done.not_now(), not_done) {
            (Some(why), _) => BucketError::NotNow(why.to_owned()),
            (None, NotDone::NoThread(error)) => HostFailure::Thread(error).into(),
            (None, _) => BucketError::Elsewhere("the thread that should do it ended".to_owned()),
        };
        Err(error.into())
    })
}

fn done(code: StatusCode, outcome: Result<(), BucketError>) -> Response {
    match outcome {
        Ok(()) => code.into_response(),
        Err(error) => answer(&error),
    }
}

/// Nothing is wrong with what was asked: asking again later helps.
pub(super) fn not_now(why: &str) -> Response {
    let response = (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "errors": { "_": why } }))).into_response();
    failed(response, "the cluster cannot be changed just now", &why)
}

pub(super) fn answer(error: &BucketError) -> Response {
    let field = |field: &str| refused(Errors::from([(field.to_owned(), error.to_string())]));
    match error {
        BucketError::Unknown => no_such_bucket(),
        BucketError::Exists | BucketError::InTheWay(_) => field("name"),
        BucketError::Quota(_) => field("ramQuota"),
        BucketError::TooMany => field("_"),
        BucketError::NotMoved(_) => field("storageBackend"),
        BucketError::Settings(errors) => refused(by_field(errors)),
        // The one answer whose message stands outside of `errors`.
        BucketError::NotFlushable => {
            (StatusCode::BAD_REQUEST, Json(json!({ "_": error.to_string() }))).into_response()
        }
        BucketError::NotNow(why) => not_now(why),
        BucketError::Down(_) => bucket_down(&error.to_string()),
        BucketError::Fixed
        | BucketError::Elsewhere(_)
        | BucketError::Failed(_)
        | BucketError::Engine(_)
        | BucketError::Several(_) => {
            let errors = json!({ "errors": { "_": error.to_string() } });
            let response = (StatusCode::INTERNAL_SERVER_ERROR, Json(errors)).into_response();
            failed(response, "a bucket was not managed", error)
        }
    }
}
