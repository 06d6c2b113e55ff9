//! The largest cluster fits into etcd as it comes: 128 changes a commit, 1.5 MiB a request.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::collections::BTreeMap;
use std::time::Duration;

use base::VbState;
use cluster::command::{self, Command};
use cluster::state::{FORMAT, Step};
use cluster::store::{Commit, MAX_PUTS, Put, Store};
use cluster::{
    Address, Agent, Leader, LeaderConfig, Member, MemoryStore, NodeId, State, Status, VbReport, View,
};
use serde_json::json;

const NODES: u32 = 16;
const BUCKETS: usize = 30;
const COLLECTIONS: usize = 1_200;
/// Of etcd: `--max-request-bytes`, `--max-txn-ops`.
const REQUEST_BYTES: usize = 3 << 19;
const OPERATIONS: usize = 128;

fn uuid(n: u32) -> String {
    format!("{n:032x}")
}

fn address(n: u32) -> Address {
    Address::new(format!("stave-{n}.database.svc.cluster.local"), 11_210, 8_091)
}

fn member(n: u32, incarnation: u64) -> (String, Member) {
    (
        uuid(n),
        Member {
            incarnation,
            address: address(n),
            reads: FORMAT,
            limits: None,
            node_login: true,
            timed_proofs: true,
            moves_stores: true,
        },
    )
}

/// A cluster at rest.
fn largest() -> State {
    let mut state = command::found(&uuid(1), &address(1), 1 << 50);
    for n in 2..=NODES {
        let join = Command::Join { uuid: uuid(n), address: address(n), incarnation: 1 << 50 };
        state = command::apply(&View { state, ..View::default() }, &join).expect("it joins");
    }
    state.nodes.values_mut().for_each(|node| node.status = Status::Active);
    let collection =
        |at: usize| json!({ "name": format!("a_collection_name_{at:04}"), "uid": format!("{:x}", at + 8) });
    let collections: Vec<_> = (0..COLLECTIONS).map(collection).collect();
    let scopes = json!([{ "name": "_default", "uid": "0", "collections": collections }]);
    for at in 0..BUCKETS {
        let create = Command::CreateBucket {
            name: format!("bucket-with-a-name-{at:02}"),
            uuid: format!("{at:032x}"),
            settings: json!({ "name": format!("bucket-with-a-name-{at:02}"), "type": "couchbase", "quota_bytes": 1 << 28,
                "replicas": 3, "flush_enabled": false, "durability_min_level": "none", "settings": {} }),
            replicas: 3,
            vbuckets: 1024,
            manifest: json!({ "uid": "1", "scopes": scopes }),
        };
        state = command::apply(&View { state, ..View::default() }, &create).expect("it is made");
    }
    state
}

fn view(state: State, incarnation: u64) -> View {
    View { state, members: (1..=NODES).map(|n| member(n, incarnation)).collect(), ..View::default() }
}

/// A store that takes what etcd takes, and the largest of what it was given.
struct Etcd {
    store: MemoryStore,
    most: (usize, usize),
}

impl Etcd {
    fn new() -> Etcd {
        Etcd { store: MemoryStore::new(base::env::Env::sim(1).0.clock), most: (0, 0) }
    }

    fn commit(&mut self, puts: &[Put]) {
        let bytes = puts.iter().map(Put::bytes).sum();
        assert!(puts.len() <= OPERATIONS && bytes < REQUEST_BYTES, "{} entries, {bytes} bytes", puts.len());
        self.most = (self.most.0.max(puts.len()), self.most.1.max(bytes));
        self.store.commit(Commit { guard: None, puts, lease: None }).expect("it is taken");
    }

    /// The next state in the place of another one; what is read again is that.
    fn write(&mut self, next: &State, before: Option<&State>) {
        self.commit(&next.changes(before).expect("it is not too large"));
        let read = View::of(&self.store.read().expect("it answers")).expect("sound").expect("there is one");
        assert!(read.state == *next);
    }
}

/// What every node reports of what is under way; each entry must fit.
fn report(view: &mut View, role: VbState) -> (usize, usize) {
    let mut largest = (0, 0);
    let state = view.state.clone();
    for (id, node) in &state.nodes {
        let agent = Agent::new(&state, &node.uuid, node.incarnation).expect("it is a node");
        let seqno = u64::MAX >> 12;
        let of = |name: &str, vb: u16| {
            let is_active = state.buckets[name].active(vb) == Some(*id) && role == VbState::Active;
            let state = Some(if is_active { VbState::Active } else { VbState::Replica });
            let seqnos = (seqno, seqno, seqno);
            VbReport {
                state,
                high_seqno: seqnos.0,
                persisted: seqnos.1,
                high_prepared: seqnos.2,
                uuid: seqno,
            }
        };
        let report = agent.report(&state, &state.revision.into(), of);
        let entries = report.entries(&node.uuid, false);
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len());
        largest.0 = largest.0.max(bytes.clone().max().unwrap_or(0));
        largest.1 = largest.1.max(bytes.sum());
        view.reports.insert(node.uuid.clone(), report);
    }
    largest
}

#[test]
fn the_largest_cluster_fits_into_etcd_as_it_comes() {
    const { assert!(MAX_PUTS <= OPERATIONS) };
    let (mut etcd, at_rest) = (Etcd::new(), largest());
    // As it grew: one bucket after the other.
    let mut grown: Option<State> = None;
    for at in 0..=BUCKETS {
        let mut next = at_rest.clone();
        next.buckets = at_rest.buckets.clone().into_iter().take(at).collect();
        next.revision += at as u64;
        etcd.write(&next, grown.as_ref());
        grown = Some(next);
    }
    let state = grown.expect("it was made");
    println!("grown: most entries and bytes of a commit {:?}", etcd.most);

    // Every node is started anew at once, until all is served again.
    etcd.most = (0, 0);
    let mut view = view(state, 2 << 49 | 5);
    let mut leader = Leader::new(LeaderConfig::default());
    let mut steps = 0;
    let mut reported = (0, 0);
    while let Some(next) = leader.step(&view, Duration::ZERO) {
        etcd.write(&next, Some(&view.state));
        view.state = next;
        let role = if view.state.is_choosing() { VbState::Replica } else { VbState::Active };
        let largest = report(&mut view, role);
        reported = (reported.0.max(largest.0), reported.1.max(largest.1));
        steps += 1;
        assert!(steps < 20, "it comes to its end");
    }
    assert!(view.state.buckets.values().all(|bucket| bucket.steps.is_empty()), "all is served");
    println!("restarted: {steps} steps, most {:?}, largest report {reported:?}", etcd.most);
    assert!(reported.0 < REQUEST_BYTES);

    // One is failed over, and leaves: everything moves.
    etcd.most = (0, 0);
    let over =
        command::apply(&view, &Command::FailOver { node: NodeId(1), force: true }).expect("it is done");
    etcd.write(&over, Some(&view.state));
    view.state = over;
    report(&mut view, VbState::Replica);
    let chosen = leader.step(&view, Duration::ZERO).expect("copies are chosen");
    etcd.write(&chosen, Some(&view.state));
    view.state = chosen;
    view.state.buckets.values_mut().for_each(|bucket| bucket.steps.clear());
    let moves = command::apply(&view, &Command::Rebalance { eject: vec![NodeId(1)] }).expect("it begins");
    etcd.write(&moves, Some(&view.state));
    view.state = moves;
    // Every vBucket in a step that began at another revision than that of any other one.
    let mut worst = view.state.next();
    for (at, bucket) in worst.buckets.values_mut().enumerate() {
        let since = |vb: u16| 1_000_000_000 + u64::from(vb) * 30 + at as u64;
        bucket.steps = (0..1024).map(|vb| (vb, Step::Both { since: since(vb) })).collect();
    }
    let one = BTreeMap::from([(0, Step::Build)]);
    let mut last = worst.next();
    last.buckets.values_mut().take(8).for_each(|bucket| bucket.steps.extend(one.clone()));
    etcd.commit(&last.changes(Some(&worst)).expect("eight buckets go on at once"));
    println!("failed over and moved: most {:?}", etcd.most);
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Sizes, |seed| {
        // Nothing depends on it.
        if seed > 0 {
            return Ok(());
        }
        the_largest_cluster_fits_into_etcd_as_it_comes();
        Ok(())
    });
}
