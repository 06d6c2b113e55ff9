//! Requests over HTTP that become requests of the KV protocol: to the node that is active for a document, or to a named
//! one, with the rights of the user who asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ::node::audit::record::Ends;
use ::node::cluster_map::NodeEntry;
use ::node::replication::LinkError;
use ::node::user::User;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::VbId;
use engine::Bucket;
use protocol::Status;
use serde_json::json;

use super::shared::Shared;
use crate::inside::OwnDoor;
use crate::links::acting::{Acting, ActingFor, KvAnswer, MOST_TIME};

/// Requests over HTTP that may be on their way to nodes at the same time: each holds a connection and what it answers.
pub(super) const MOST_ACTING: usize = 8;

/// An answer that ends a request early.
pub(super) type Refused = Box<Response>;

/// Does something that takes connections to nodes, within the limits of time and number.
pub(super) async fn within_limits<T>(
    shared: &Shared,
    work: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Refused> {
    let late = || {
        let seconds = MOST_TIME.as_secs();
        let why = format!(
            "there was no answer within {seconds} seconds: the node does not answer, or {MOST_ACTING} such requests are \
             under way; a change may have taken place none the less: read the document, and try again"
        );
        refused(StatusCode::GATEWAY_TIMEOUT, &why)
    };
    let done = async {
        // It is never closed.
        let _place = shared.acting.acquire().await;
        work.await
    };
    tokio::select! {
        done = tokio::time::timeout(MOST_TIME, done) => done.map_err(|_| late())?,
        () = shared.stopped() => Err(refused(StatusCode::SERVICE_UNAVAILABLE, "the node stops")),
    }
}

/// What is answered instead.
pub(super) fn refused(code: StatusCode, why: &str) -> Refused {
    Box::new((code, Json(json!({ "errors": { "_": why } }))).into_response())
}

/// A node of the cluster map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: String,
    address: String,
    is_this: bool,
}

impl Place {
    fn of(shared: &Shared, entry: &NodeEntry, is_this: bool) -> Place {
        let address = if is_this {
            match &shared.kv_door {
                OwnDoor::Port(addr) => on_this_machine(*addr).to_string(),
                OwnDoor::Inside(_) => "itself".to_owned(),
            }
        } else {
            entry.address.kv_by(shared.node.doors().links.is_encrypted())
        };
        Place { id: entry.id.clone(), address, is_this }
    }
}

/// What listens at all addresses is reached at the machine's own.
fn on_this_machine(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// The node that is active for each of a bucket's vBuckets, as the cluster map has it now.
pub(super) fn actives(shared: &Shared, bucket: &Bucket) -> Vec<Option<Arc<Place>>> {
    let map = shared.node.cluster_map();
    let layout = map.layout();
    let place =
        |(at, entry)| Arc::new(Place::of(shared, entry, layout.this_node.map(usize::from) == Some(at)));
    let places: Vec<Arc<Place>> = layout.nodes.iter().enumerate().map(place).collect();
    let rows = layout.buckets.iter().find(|there| there.name == bucket.name()).map(|there| &there.rows);
    let active = |vb: u16| {
        let row = rows.and_then(|rows| rows.get(usize::from(vb)))?;
        places.get(usize::from(row.first().copied().flatten()?)).cloned()
    };
    (0..bucket.vbuckets()).map(active).collect()
}

/// The node that is active for a vBucket.
pub(super) fn active(shared: &Shared, bucket: &Bucket, vb: VbId) -> Result<Arc<Place>, Refused> {
    let place = actives(shared, bucket).get(usize::from(vb.0)).cloned().flatten();
    place.ok_or_else(|| {
        let why = format!("no node serves vBucket {} at the moment: see the nodes of the cluster", vb.0);
        refused(StatusCode::SERVICE_UNAVAILABLE, &why)
    })
}

/// The node of this name, or this one.
pub(super) fn named(shared: &Shared, id: Option<&str>) -> Result<Place, Refused> {
    let map = shared.node.cluster_map();
    let layout = map.layout();
    let is_this = |at: usize| layout.this_node.map(usize::from) == Some(at);
    let mut nodes = layout.nodes.iter().enumerate();
    let found = nodes.find(|(at, entry)| id.map_or(is_this(*at), |id| entry.id == id));
    found.map(|(at, entry)| Place::of(shared, entry, is_this(at))).ok_or_else(|| {
        let why = match id {
            Some(id) => format!("the cluster has no node {id:?}: /pools/nodes lists those that it has"),
            None => "this node is none of the cluster's at the moment".to_owned(),
        };
        refused(StatusCode::NOT_FOUND, &why)
    })
}

/// Connects to a node, to act there for a user, whose connection is between `ends`.
pub(super) async fn connect(
    shared: &Shared,
    place: &Place,
    bucket: &Bucket,
    user: &User,
    ends: Ends,
) -> Result<Acting, Refused> {
    let acting = ActingFor {
        node: &shared.node,
        tls: &shared.peer_tls,
        address: &place.address,
        door: place.is_this.then_some(&shared.kv_door),
        bucket: bucket.name(),
        vbuckets: bucket.vbuckets(),
        user: user.name(),
        client: ends.remote,
        derived: &shared.derived,
    };
    Acting::connect(acting).await.map_err(|error| unreachable_node(place, &error))
}

/// What is answered when a node cannot be asked.
pub(super) fn unreachable_node(place: &Place, error: &LinkError) -> Refused {
    refused(StatusCode::BAD_GATEWAY, &format!("node {} ({}): {error}", place.id, place.address))
}

/// What is answered when a node was asked for a change, and has not answered.
pub(super) fn unknown_outcome(place: &Place, error: &LinkError) -> Refused {
    let why = format!(
        "node {} ({}): {error}; it is not known whether the change took place: read the document",
        place.id, place.address
    );
    refused(StatusCode::BAD_GATEWAY, &why)
}

/// What is answered to what a node refused.
pub(super) fn of_status(answer: &KvAnswer) -> Refused {
    use StatusCode as Code;
    let because = context(&answer.value).unwrap_or_default();
    let (code, why) = match answer.status() {
        Some(Status::KeyEnoent) => (Code::NOT_FOUND, "there is no such document".to_owned()),
        Some(Status::KeyEexists) => (
            Code::CONFLICT,
            "the document exists, or was changed since it was read (its CAS is another one): read it again"
                .to_owned(),
        ),
        Some(Status::Locked) => (Code::CONFLICT, "the document is locked: try again later".to_owned()),
        Some(Status::Eaccess) => (Code::FORBIDDEN, format!("Forbidden. {because}")),
        Some(Status::E2big) => (Code::PAYLOAD_TOO_LARGE, "the document is too large".to_owned()),
        Some(Status::UnknownCollection) => {
            (Code::NOT_FOUND, "there is no such collection any more".to_owned())
        }
        Some(Status::NotMyVbucket) => {
            (Code::SERVICE_UNAVAILABLE, "the document's vBucket moves to another node: try again".to_owned())
        }
        Some(status @ (Status::Etmpfail | Status::Enomem)) => (
            Code::SERVICE_UNAVAILABLE,
            format!("the node cannot do it just now ({}): try again", status.name()),
        ),
        Some(Status::SyncWriteInProgress | Status::SyncWriteReCommitInProgress) => {
            (Code::CONFLICT, "a durable write of the document is under way: try again".to_owned())
        }
        Some(Status::SyncWriteAmbiguous) => (
            Code::GATEWAY_TIMEOUT,
            "it is not known whether the change took place: read the document".to_owned(),
        ),
        Some(status) => (Code::BAD_REQUEST, format!("the node refuses it: {} {because}", status.name())),
        None => (Code::BAD_GATEWAY, format!("the node answered with status 0x{:02x}", answer.status_code)),
    };
    refused(code, why.trim_end())
}

/// The text that a node adds to a status.
fn context(value: &[u8]) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(value).ok()?;
    json.pointer("/error/context")?.as_str().map(str::to_owned)
}
