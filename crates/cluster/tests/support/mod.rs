//! Three nodes and a bucket of one vBucket, as the leader sees them.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;

use base::VbState;
use cluster::command::{self, Command};
use cluster::store::Version;
use cluster::{Address, Member, NodeId, Report, State, Status, VbReport, View};
use serde_json::json;

pub const BUCKET: &str = "b";

pub fn address(id: u32) -> Address {
    Address::new(format!("h{id}"), 1, 2)
}

/// Three active nodes that are alive, and a bucket of one vBucket that node 1 is active for.
pub fn three() -> View {
    let mut state = State::empty();
    for id in 1..=3 {
        let join = Command::Join { uuid: id.to_string(), address: address(id), incarnation: 10 };
        state = command::apply(&view_of(state), &join).expect("it joins");
    }
    state.nodes.values_mut().for_each(|node| node.status = Status::Active);
    let create = Command::CreateBucket {
        name: BUCKET.to_owned(),
        uuid: "0".repeat(32),
        settings: json!({}),
        replicas: 2,
        vbuckets: 1,
        manifest: json!({ "uid": "0" }),
    };
    state = command::apply(&view_of(state), &create).expect("it is made");
    let bucket = state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.map[0] = [1, 2, 3].map(|id| Some(NodeId(id))).to_vec();
    let mut view = view_of(state);
    (1..=3).for_each(|id| lives(&mut view, id, 10));
    view
}

pub fn view_of(state: State) -> View {
    View { state, version: Version(1), members: BTreeMap::new(), reports: BTreeMap::new() }
}

pub fn lives(view: &mut View, id: u32, incarnation: u64) {
    view.members.insert(
        id.to_string(),
        Member {
            incarnation,
            address: address(id),
            limits: None,
            reads: 2,
            node_login: true,
            timed_proofs: true,
            moves_stores: true,
        },
    );
}

/// A node says that it is as the document says, and has everything up to `prepared`.
pub fn reports(view: &mut View, id: u32, state: VbState, prepared: u64) {
    let copy = VbReport {
        state: Some(state),
        high_seqno: prepared,
        persisted: prepared,
        high_prepared: prepared,
        uuid: 1,
    };
    reports_copy(view, id, copy);
}

/// A node says that it is as the document says, and has no copy.
pub fn reports_nothing(view: &mut View, id: u32) {
    reports_copy(view, id, VbReport::NOTHING);
}

/// A node says that it is as the document says, and what it has.
pub fn reports_copy(view: &mut View, id: u32, copy: VbReport) {
    let incarnation = view.members[&id.to_string()].incarnation;
    let vbuckets = BTreeMap::from([(BUCKET.to_owned(), BTreeMap::from([(0, copy)]))]);
    let report = Report { incarnation, applied: view.state.revision, vbuckets, ..Report::default() };
    view.reports.insert(id.to_string(), report);
}
