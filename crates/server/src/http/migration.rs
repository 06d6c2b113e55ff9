//! A bucket that moves to another store while it is served, over HTTP.

use std::sync::Arc;

use ::cluster::{MemberMove, StoreReport, StoreStage};
use ::node::bucket_form::Errors;
use ::node::cluster::ClusterMove;
use ::node::management::BucketError;
use ::node::migration::{self, Migration, MigrationProgress};
use ::node::node::Node;
use ::node::{form, naming};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::BucketKind;
use kvstore::{MoveProgress, MoveStage};
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
        return wrong("it must be couchstore, magma or rocksdb".to_owned());
    };
    if !backend.is_built_in() {
        return wrong(naming::NOT_BUILT_IN.to_owned());
    }
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
    let mut told = json!({
        "bucket": name,
        "storageBackend": naming::storage_backend(found.kind, found.backend),
        "state": "none",
    });
    let more = match &found.progress {
        MigrationProgress::None => return told,
        MigrationProgress::Node(progress) => of_node(progress),
        MigrationProgress::Cluster(progress) => Some(of_cluster(progress)),
    };
    if let (Some(told), Some(Value::Object(more))) = (told.as_object_mut(), more) {
        told.extend(more);
    }
    told
}

fn rate(items: u64, millis: u64) -> u64 {
    items.saturating_mul(1000).checked_div(millis).unwrap_or(0)
}

/// Of a node alone; `None` if the move is over.
fn of_node(progress: &MoveProgress) -> Option<Value> {
    let word = |backend| naming::storage_backend(BucketKind::Persistent, backend);
    let state = match progress.stage {
        MoveStage::Copying => "copying",
        MoveStage::Cancelling => "cancelling",
        MoveStage::Ending => "ending",
        MoveStage::Done => return None,
    };
    let left = progress.left.iter().map(|(vb, why)| json!({ "vbucket": vb.0, "reason": why }));
    let millis = u64::try_from(progress.time.as_millis()).unwrap_or(u64::MAX);
    Some(json!({
        "state": state,
        "from": word(progress.from),
        "to": word(progress.to),
        "vbuckets": progress.vbuckets,
        "ofVbuckets": progress.of_vbuckets,
        "items": progress.items,
        "itemsPerSecond": rate(progress.items, millis),
        "left": left.collect::<Vec<_>>(),
        "waitsFor": progress.waits_for.iter().map(|vb| vb.0).collect::<Vec<u16>>(),
        "waitsSeconds": progress.waits.as_secs(),
        "failure": progress.failure,
    }))
}

/// Of all nodes of a cluster: sums, and each node by itself.
fn of_cluster(progress: &ClusterMove) -> Value {
    let says = |member: &MemberMove| match member {
        MemberMove::Says(report) => Some(report.clone()),
        MemberMove::Away | MemberMove::Older | MemberMove::Unread => None,
    };
    let reports: Vec<(String, StoreReport)> =
        progress.members.iter().filter_map(|(id, _, member)| Some((id.to_string(), says(member)?))).collect();
    let sum = |of: fn(&StoreReport) -> u64| reports.iter().map(|(_, report)| of(report)).sum::<u64>();
    // Nodes that say nothing have as many as the others, and none is where it is to be.
    let most = reports.iter().map(|(_, report)| report.of_vbuckets).max().unwrap_or(0);
    let left = reports.iter().flat_map(|(node, report)| {
        let left = report.left.iter();
        left.map(move |(vb, why)| json!({ "node": node, "vbucket": vb, "reason": why }))
    });
    let waits_for: std::collections::BTreeSet<u16> =
        reports.iter().flat_map(|(_, report)| report.waits_for.iter().copied()).collect();
    let failure =
        reports.iter().find_map(|(node, report)| Some(format!("{node}: {}", report.failure.as_ref()?)));
    let are_ending = !reports.is_empty()
        && reports.len() == progress.members.len()
        && reports.iter().all(|(_, report)| matches!(report.stage, StoreStage::Ending | StoreStage::Done));
    let state = match progress.asked.is_cancelled {
        true => "cancelling",
        false if are_ending => "ending",
        false => "copying",
    };
    let nodes = progress.members.iter().map(|(id, address, member)| {
        let mut told =
            json!({ "node": id.to_string(), "hostname": address.http(), "state": state_of(member) });
        if let (Some(told), Some(report)) = (told.as_object_mut(), says(member)) {
            told.insert("vbuckets".to_owned(), json!(report.vbuckets));
            told.insert("ofVbuckets".to_owned(), json!(report.of_vbuckets));
            told.insert("items".to_owned(), json!(report.items));
            told.insert("failure".to_owned(), json!(report.failure));
        }
        told
    });
    json!({
        "state": state,
        "from": progress.asked.from,
        "to": progress.asked.to,
        "vbuckets": sum(|report| report.vbuckets),
        "ofVbuckets": most * progress.members.len() as u64,
        "items": sum(|report| report.items),
        "itemsPerSecond": reports.iter().map(|(_, report)| rate(report.items, report.millis)).sum::<u64>(),
        "left": left.collect::<Vec<_>>(),
        "waitsFor": waits_for,
        "waitsSeconds": reports.iter().map(|(_, report)| report.waits_s).max().unwrap_or(0),
        "failure": failure,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

fn state_of(member: &MemberMove) -> &'static str {
    match member {
        MemberMove::Away => "away",
        MemberMove::Older => "olderVersion",
        MemberMove::Unread => "unread",
        MemberMove::Says(report) => match report.stage {
            StoreStage::Waiting | StoreStage::Unknown => "waiting",
            StoreStage::Copying => "copying",
            StoreStage::Returning => "cancelling",
            StoreStage::Ending => "ending",
            StoreStage::Done => "done",
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ::cluster::state::StoreMove;
    use ::cluster::{Address, NodeId};

    use super::*;

    #[test]
    fn a_cluster_is_told_as_a_sum_and_node_by_node() {
        let report = |stage, vbuckets, items| StoreReport {
            stage,
            vbuckets,
            items,
            millis: 500,
            ..StoreReport::waiting(64, None)
        };
        let copying = StoreReport {
            left: BTreeMap::from([(7, "it is damaged".to_owned())]),
            waits_for: vec![3],
            waits_s: 9,
            failure: Some("the disk is full".to_owned()),
            ..report(StoreStage::Copying, 10, 100)
        };
        let says =
            [MemberMove::Says(copying), MemberMove::Says(report(StoreStage::Done, 64, 50)), MemberMove::Away];
        let member =
            |(at, says): (u32, MemberMove)| (NodeId(at), Address::new("h".to_owned(), 1, at as u16), says);
        let asked = StoreMove {
            since: 7,
            from: "couchstore".to_owned(),
            to: "magma".to_owned(),
            is_cancelled: false,
        };
        let mut found = ClusterMove { asked, members: (1..).zip(says).map(member).collect() };
        let told = of_cluster(&found);
        let sums =
            (&told["state"], &told["vbuckets"], &told["ofVbuckets"], &told["items"], &told["itemsPerSecond"]);
        assert_eq!(sums, (&json!("copying"), &json!(74), &json!(192), &json!(150), &json!(300)));
        assert_eq!(told["left"], json!([{ "node": "n_1", "vbucket": 7, "reason": "it is damaged" }]));
        assert_eq!((&told["waitsFor"], &told["waitsSeconds"]), (&json!([3]), &json!(9)));
        assert_eq!(told["failure"], "n_1: the disk is full");
        assert_eq!(told["nodes"][2], json!({ "node": "n_3", "hostname": "h:3", "state": "away" }));
        assert_eq!((&told["nodes"][1]["state"], &told["nodes"][1]["vbuckets"]), (&json!("done"), &json!(64)));
        found.asked.is_cancelled = true;
        assert_eq!(of_cluster(&found)["state"], "cancelling");
        found.asked.is_cancelled = false;
        found.members.truncate(2);
        found.members.remove(0);
        assert_eq!(of_cluster(&found)["state"], "ending");
    }
}
