//! How many documents and how much memory the nodes of a cluster have together: the node that is asked asks the others.

use std::collections::BTreeMap;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use ::cluster::NodeId;
use ::node::cluster::serving;
use ::node::hosting::Host;
use axum::Json;
use axum::extract::State;
use axum::http::Method;
use base::VbState;
use base::env::Env;
use engine::Bucket;
use rustls::ClientConfig;
use tokio::sync::oneshot;

use super::node_figures::{Figures, OfBucket, OfNode};
use super::node_key::NodeRequest;
use super::shared::{Shared, view_of};
use crate::http_client::{self, Answer, Ask};

/// Whoever does not answer in this time is left out.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);
/// A node that does not answer in this time may have just died.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);
/// More than this is no answer of ours.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Where a node tells its own figures.
pub(super) const PATH: &str = "/v1/figures";

impl OfNode {
    /// The machine's; without the buckets.
    fn here(shared: &Shared) -> OfNode {
        let env = shared.node.env();
        let machine = shared.kept.machine(env);
        let room = shared.node.host().and_then(|host| host.room(env));
        let shares = shared.kept.cpu_shares(&*env.disk);
        OfNode {
            memory_bytes: machine.memory,
            free_bytes: machine.free,
            limit_bytes: machine.limit,
            swap_bytes: machine.swap,
            swap_used_bytes: machine.swap_used,
            cores: machine.cores,
            busy_percent: shares.map(|shares| shares.busy),
            stolen_percent: shares.map(|shares| shares.stolen),
            stalls: machine.stalls,
            disk_bytes: room.map_or(0, |room| room.total_bytes),
            disk_free_bytes: room.map_or(0, |room| room.free_bytes),
            disk_used_bytes: room.map(|room| room.used_bytes),
            quota_bytes: shared.node.host().map_or(0, Host::memory_quota_bytes),
            uptime_s: Some(shared.node.uptime_s()),
            version: version_of(env!("CARGO_PKG_VERSION")),
            buckets: OfBucket::default(),
        }
    }
}

/// A version as numbers, which a node tells in few bytes.
fn version_of(text: &str) -> Option<[u16; 3]> {
    let numbers = text.split(['.', '-', '+']).take(3).map(|part| part.parse().ok());
    numbers.collect::<Option<Vec<u16>>>()?.try_into().ok()
}

impl Figures {
    /// Those of this node. One that may not serve has no documents: what it is active for others may have, too.
    pub(super) fn here(shared: &Shared) -> Figures {
        let node = &shared.node;
        let serves = serving::why_not(node).is_none();
        let buckets: BTreeMap<String, OfBucket> = node
            .buckets()
            .iter()
            .map(|(spec, bucket)| (spec.name.clone(), of_bucket(shared, &spec.name, bucket, serves)))
            .collect();
        let mut own = OfNode::here(shared);
        buckets.values().for_each(|of| own.buckets.add(of));
        let of_cluster = node.cluster().map(|cluster| cluster.uuid().to_owned());
        let uuid = of_cluster.unwrap_or_else(|| node.uuid().to_owned());
        Figures {
            memory_quota_bytes: node.host().map_or(0, Host::memory_quota_bytes),
            buckets,
            nodes: [(uuid, own)].into(),
        }
    }

    /// Those of all nodes that serve and answer. Requests that come while the others are asked share the next answers.
    pub(super) async fn of_all(shared: &Shared) -> Arc<Figures> {
        let clock = &shared.node.env().clock;
        let asked_ns = clock.monotonic_ns();
        let mut last = shared.asking.last.lock().await;
        match &*last {
            Some((began_ns, figures)) if *began_ns >= asked_ns => return Arc::clone(figures),
            _ => {}
        }
        let began_ns = clock.monotonic_ns();
        let asked = others(shared).into_iter().filter_map(|other| ask(shared, other)).collect();
        let mut all = Figures::here(shared);
        gather(asked, ANSWERED_WITHIN).await.into_iter().for_each(|other| all.add(other));
        let all = Arc::new(all);
        *last = Some((began_ns, Arc::clone(&all)));
        all
    }
}

/// What this node has of a bucket; documents only if it `serves`.
fn of_bucket(shared: &Shared, name: &str, bucket: &Bucket, serves: bool) -> OfBucket {
    let stats = bucket.stats();
    let active = stats.of(VbState::Active);
    let (documents, not_resident) = if serves { (active.documents, active.without_value) } else { (0, 0) };
    let (file_bytes, data_bytes) = engine::file_usage(bucket);
    OfBucket {
        documents,
        replica_documents: stats.of(VbState::Replica).documents,
        all_documents: stats.all().documents,
        not_resident,
        used_bytes: bucket.memory().used_bytes(),
        quota_bytes: bucket.memory().quota_bytes(),
        disk_queue: stats.all().unpersisted_items,
        file_bytes,
        data_bytes,
        rates: shared.samples.rates(name),
    }
}

/// What has come in time: all are asked at once, so that one who is late takes nothing away from the others.
async fn gather(asked: Vec<oneshot::Receiver<Figures>>, within: Duration) -> Vec<Figures> {
    let end = tokio::time::sleep(within);
    tokio::pin!(end);
    let mut came = Vec::new();
    for mut answer in asked {
        let told = if end.is_elapsed() {
            answer.try_recv().ok()
        } else {
            tokio::select! {
                biased;
                told = &mut answer => told.ok(),
                () = &mut end => None,
            }
        };
        came.extend(told);
    }
    came
}

/// Other nodes that seem to serve and do not answer within this time: their leases may still run although they have died. One that cannot be asked counts as one that does not answer.
pub(super) async fn silent(shared: &Shared) -> Vec<NodeId> {
    let asked: Vec<_> =
        others(shared).into_iter().map(|other| (other.id, ask_within(shared, other, ALIVE_WITHIN))).collect();
    let end = tokio::time::sleep(ALIVE_WITHIN);
    tokio::pin!(end);
    let mut silent = Vec::new();
    for (id, answer) in asked {
        let told = match answer {
            Some(mut answer) if end.is_elapsed() => answer.try_recv().is_ok(),
            Some(mut answer) => tokio::select! {
                biased;
                told = &mut answer => told.is_ok(),
                () = &mut end => false,
            },
            None => false,
        };
        if !told {
            silent.push(id);
        }
    }
    silent
}

/// A node that is asked.
struct OtherNode {
    id: NodeId,
    uuid: String,
    /// What it is called, `HOST:PORT`.
    name: String,
    /// Where it is asked: the same, or its port for TLS.
    endpoint: String,
}

/// The other nodes that serve, as far as this one knows.
fn others(shared: &Shared) -> Vec<OtherNode> {
    let Some((cluster, view)) = view_of(shared) else { return Vec::new() };
    let nodes = view.state.nodes.iter().filter(|(id, node)| {
        node.uuid != cluster.uuid() && view.state.is_active(**id) && view.alive(**id).is_some()
    });
    let is_encrypted = shared.node.doors().peers.is_encrypted();
    nodes
        .map(|(id, node)| OtherNode {
            id: *id,
            uuid: node.uuid.clone(),
            name: node.address.http(),
            endpoint: node.address.http_by(is_encrypted),
        })
        .collect()
}

/// Asks another node, on a thread of its own: looking a name up and connecting may take long. Nothing if too many are
/// asked already.
fn ask(shared: &Shared, other: OtherNode) -> Option<oneshot::Receiver<Figures>> {
    ask_within(shared, other, ANSWERED_WITHIN)
}

fn ask_within(shared: &Shared, other: OtherNode, within: Duration) -> Option<oneshot::Receiver<Figures>> {
    let place = shared.asking.place()?;
    let asked = NodeRequest { method: &Method::GET, path: PATH, node: &other.name };
    let authorization = shared.proof_for(&other.uuid, asked)?;
    let (done, outcome) = oneshot::channel();
    let (env, tls) = (shared.node.env().clone(), shared.peer_tls.for_http());
    let job = move || {
        match told(&env, &other.endpoint, tls.as_ref(), &authorization, within) {
            // Nobody hears it if it comes too late.
            Ok(figures) => drop(done.send(figures)),
            Err(error) => tracing::debug!(%error, node = other.name, "a node does not tell its figures"),
        }
        drop(place);
    };
    shared.node.env().spawn.spawn("figures", Box::new(job)).ok()?;
    Some(outcome)
}

fn told(
    env: &Env,
    endpoint: &str,
    tls: Option<&Arc<ClientConfig>>,
    token: &str,
    within: Duration,
) -> io::Result<Figures> {
    let addr = endpoint.to_socket_addrs()?.next();
    let addr = addr.ok_or_else(|| io::Error::other("the name has no address"))?;
    let ask = Ask {
        endpoint,
        addr,
        tls,
        path: PATH,
        token: Some(token),
        body: None,
        most_bytes: MAX_ANSWER_BYTES,
        no_word: "it ended the connection without a word",
    };
    let answer = http_client::ask(env, ask, within)?;
    parse(&answer).ok_or_else(|| io::Error::other("the answer is not what nodes answer"))
}

fn parse(answer: &Answer) -> Option<Figures> {
    if answer.status == 200 { serde_json::from_slice(&answer.body).ok() } else { None }
}

/// `GET /v1/figures`: those of this node alone, for other nodes.
pub(super) async fn show(State(shared): State<Shared>) -> Json<Figures> {
    Json(Figures::here(&shared))
}

#[cfg(test)]
mod tests {
    use super::super::node_figures::Rates;
    use super::*;

    #[test]
    fn a_version_is_three_numbers() {
        assert_eq!(version_of("0.12.3"), Some([0, 12, 3]));
        assert_eq!(version_of("1.2.3-beta.1"), Some([1, 2, 3]));
        assert_eq!(version_of("1.x.3"), None);
        assert!(version_of(env!("CARGO_PKG_VERSION")).is_some());
    }

    #[test]
    fn who_is_late_is_left_out_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let ((_late, late), (done, in_time), (gone, silent)) =
            (oneshot::channel(), oneshot::channel(), oneshot::channel());
        drop(gone);
        done.send(Figures { memory_quota_bytes: 7, ..Figures::default() }).expect("it is waited for");
        let came = runtime.block_on(gather(vec![silent, late, in_time], Duration::ZERO));
        assert_eq!(came.iter().map(|of| of.memory_quota_bytes).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn nodes_are_told_apart_and_their_buckets_added() {
        let of = |name: &str, gets| {
            let rates = Rates { gets, ..Rates::default() };
            let bucket = OfBucket { file_bytes: 10, not_resident: 1, rates, ..OfBucket::default() };
            let own = OfNode { memory_bytes: 5, buckets: bucket, ..OfNode::default() };
            let (buckets, nodes) = ([("a".to_owned(), bucket)].into(), [(name.to_owned(), own)].into());
            Figures { memory_quota_bytes: 1, buckets, nodes }
        };
        let mut all = of("one", 1.5);
        all.add(of("two", 2.0));
        let sum = all.of("a");
        assert_eq!((sum.file_bytes, sum.not_resident, sum.rates.gets), (20, 2, 3.5));
        assert_eq!(all.nodes.keys().collect::<Vec<_>>(), ["one", "two"]);
        let told = serde_json::to_vec(&all).expect("JSON");
        assert_eq!(parse(&Answer { status: 200, body: told }), Some(all));
    }

    #[test]
    fn sums_what_nodes_answer() {
        let body =
            r#"{"memory_quota_bytes":7,"buckets":{"a":{"documents":1,"used_bytes":2,"quota_bytes":3}}}"#;
        let told = |status, body: &str| parse(&Answer { status, body: body.as_bytes().to_vec() });
        let mut all = told(200, body).expect("figures");
        all.add(told(200, body).expect("figures"));
        all.add(Figures::default());
        assert_eq!(all.memory_quota_bytes, 14);
        let expected = OfBucket { documents: 2, used_bytes: 4, quota_bytes: 6, ..OfBucket::default() };
        assert_eq!(all.of("a"), expected, "a node of an earlier version tells no more");
        assert_eq!(all.of("b"), OfBucket::default());
        for (status, wrong) in [(200, ""), (503, body), (200, "{}")] {
            assert_eq!(told(status, wrong), None, "{wrong:?}");
        }
    }
}
