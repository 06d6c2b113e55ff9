//! Compactions that an operator asks for: `compactBucket` and `cancelBucketCompaction` of the field, on all nodes that serve.

use std::sync::Arc;

use ::node::form::escaped;
use ::node::user::User;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::{Bucket, BucketKind};
use serde::Deserialize;

use super::acting::{Refused, refused};
use super::answers::no_such_bucket;
use super::basic_auth::Caller;
use super::metrics::too_many_wait;
use super::range::{all_nodes, elsewhere};
use super::sample_requests::ask_node;
use super::settings::find;
use super::shared::Shared;

/// Where another node is asked for it: the bucket's name follows, then what it is to do.
pub(super) const PATH: &str = "/v1/compaction/{bucket}/{act}";
/// More than this is no answer of ours.
const MOST_ANSWER_BYTES: usize = 1 << 16;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Act {
    /// Compact each vBucket's file, one after the other.
    Start,
    /// Leave those alone that wait for it.
    Cancel,
}

impl Act {
    fn name(self) -> &'static str {
        match self {
            Act::Start => "start",
            Act::Cancel => "cancel",
        }
    }

    /// Does it on this node.
    fn carry_out(self, bucket: &Bucket) {
        let compaction = bucket.compaction();
        let (what, vbuckets) = match self {
            // One without a disk is refused before.
            Act::Start => ("compaction asked for", compaction.compact_all().unwrap_or(0)),
            Act::Cancel => ("compaction cancelled", compaction.cancel_compactions()),
        };
        tracing::info!(event = "compaction_requested", bucket = bucket.name(), vbuckets, "{what}");
    }
}

/// `POST /pools/default/buckets/BUCKET/controller/compactBucket`: answers at once; `/pools/default/tasks` says how far it is.
pub(super) async fn start(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    everywhere(&shared, &user, &name, &headers, Act::Start).await.unwrap_or_else(|refused| *refused)
}

/// `POST /pools/default/buckets/BUCKET/controller/cancelBucketCompaction`: the files that are being compacted still are.
pub(super) async fn cancel(
    State(shared): State<Shared>,
    Extension(Caller(user)): Extension<Caller>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    everywhere(&shared, &user, &name, &headers, Act::Cancel).await.unwrap_or_else(|refused| *refused)
}

async fn everywhere(
    shared: &Shared,
    user: &Arc<User>,
    name: &str,
    headers: &HeaderMap,
    act: Act,
) -> Result<Response, Refused> {
    let bucket = find(shared, user, name)?;
    if bucket.config().kind == BucketKind::Ephemeral {
        let why = format!("bucket {name} is ephemeral: it has no files to compact");
        return Err(refused(StatusCode::BAD_REQUEST, &why));
    }
    let others = all_nodes(shared, headers).into_iter().filter(|node| node.serves);
    let others: Vec<_> = others
        .filter_map(|node| node.elsewhere)
        .map(|(node, endpoint)| {
            let path = PATH.replace("{bucket}", &escaped(name)).replace("{act}", act.name());
            let shared = shared.clone();
            tokio::spawn(async move {
                let told =
                    ask_node(&shared, node.clone(), endpoint, path, MOST_ANSWER_BYTES, Some("{}")).await;
                match told {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    Ok(answer) => Err(format!("node {node}: it answers with status {}", answer.status)),
                    Err((_, why)) => Err(format!("node {node}: {why}")),
                }
            })
        })
        .collect();
    if elsewhere(shared, move |_| act.carry_out(&bucket)).await.is_none() {
        return Err(Box::new(too_many_wait()));
    }
    let mut failed = Vec::new();
    for other in others {
        failed.extend(other.await.unwrap_or_else(|_| Err("a node was not asked".to_owned())).err());
    }
    if failed.is_empty() {
        return Ok(StatusCode::OK.into_response());
    }
    let why = format!("this was done on the other nodes, but not everywhere: {}", failed.join("; "));
    Err(refused(StatusCode::BAD_GATEWAY, &why))
}

/// `POST /v1/compaction/BUCKET/ACT`: on this node alone, for other nodes, which have checked the user's rights.
pub(super) async fn act(State(shared): State<Shared>, Path((bucket, act)): Path<(String, Act)>) -> Response {
    let Some(bucket) = shared.node.bucket(&bucket) else { return no_such_bucket() };
    let done = elsewhere(&shared, move |_| act.carry_out(&bucket)).await;
    done.map_or_else(too_many_wait, |()| StatusCode::OK.into_response())
}
