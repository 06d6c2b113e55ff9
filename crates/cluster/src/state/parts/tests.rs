//! Tests of the state in parts: what is cut apart comes together again, within the sizes of entries.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;
use crate::command::{self, Command};
use crate::state::{Address, Status};
use crate::store::{Commit, MemoryStore, Store};
use crate::view::View;

/// As the version before this format wrote it.
const SINGLE_ENTRY: &str = r#"{"format":1,"epoch":3,"revision":9,"next_node":3,"nodes":{"1":{"uuid":"u1","address":
    {"host":"h1","kv":1,"http":2},"status":"active","incarnation":7},"2":{"uuid":"u2","address":{"host":"h2","kv":1,
    "http":2},"status":"failed_over","incarnation":8}},"buckets":{"b":{"uuid":"00","settings":{"name":"b"},
    "replicas":1,"manifest":{"uid":"0"},"map":[[1,null],[1,null]],"missing":{"1":[2]},"forgot":{"0":[1]},
    "steps":{"0":{"settle":{"since":8}},"1":{"choose":{"since":9,"taker":null,"needs":1,"forced":false}}},"flushes":2,
    "next_ids":{"scope":8,"collection":9}}},"rebalance":null,"finished":{"id":4,"purpose":"repair","outcome":"done"},
    "auto_failover":{"enabled":true,"timeout_ms":30000,"max_count":1,"count":0}}"#;

fn store() -> MemoryStore {
    MemoryStore::new(base::env::Env::sim(1).0.clock)
}

fn put(store: &MemoryStore, puts: &[Put]) {
    store.commit(Commit { guard: None, puts, lease: None }).expect("it is done");
}

fn read(store: &MemoryStore) -> State {
    View::of(&store.read().expect("it answers")).expect("sound").expect("there is one").state
}

fn single() -> State {
    let store = store();
    put(&store, &[Put { key: keys::STATE.to_owned(), value: Some(SINGLE_ENTRY.into()) }]);
    read(&store)
}

/// A bucket of which much is under way.
fn busy() -> State {
    let mut state = single().split();
    for id in 3..=5 {
        let mut node = state.nodes[&NodeId(1)].clone();
        node.uuid = format!("u{id}");
        state.nodes.insert(NodeId(id), node);
    }
    let create = Command::CreateBucket {
        name: "c".to_owned(),
        uuid: "01".to_owned(),
        settings: json!({ "quota_bytes": 5 }),
        replicas: 2,
        vbuckets: 64,
        manifest: json!({ "uid": "1", "scopes": [] }),
    };
    let view = View { state, ..View::default() };
    let mut state = command::apply(&view, &create).expect("it is made");
    let bucket = state.buckets.get_mut("c").expect("it is there");
    bucket.target = bucket.map.clone();
    bucket.target.reverse();
    for vb in 0..64 {
        let step = match vb % 7 {
            0 => Step::Build,
            1 => Step::Both { since: u64::from(vb) },
            2 => Step::TakeOver { since: 4 },
            3 => Step::Choose { since: 5, taker: Some(NodeId(3)), needs: None, forced: vb % 2 == 0 },
            4 => Step::Settle { since: 6 },
            _ => continue,
        };
        bucket.steps.insert(vb, step);
        bucket.forgot.insert(vb, [NodeId(1), NodeId(3)].into_iter().take(usize::from(vb % 3)).collect());
    }
    bucket.missing = BTreeMap::from([(3, vec![NodeId(1), NodeId(5)]), (9, vec![NodeId(5)])]);
    bucket.flushing = Some(11);
    state
}

#[test]
fn what_was_written_is_read() {
    let (store, state) = (store(), busy());
    put(&store, &state.changes(None).expect("sound"));
    assert_eq!(read(&store), state);
    let keys: Vec<String> = store.read().expect("it answers").entries.into_keys().collect();
    let of = |name: &str| ["manifest", "map", "settings"].map(|part| format!("buckets/{name}/{part}"));
    let expected: Vec<String> = of("b").into_iter().chain(of("c")).chain(["state".to_owned()]).collect();
    assert_eq!(keys, expected);
}

#[test]
fn only_what_has_changed_is_written_and_read() {
    let (store, state, mut reader) = (store(), busy(), Reader::default());
    let mut look = |store: &MemoryStore| {
        let state = reader.read(&store.read().expect("it answers")).expect("sound");
        state.expect("there is one")
    };
    put(&store, &state.changes(None).expect("sound"));
    assert_eq!(look(&store), state);
    let mut next = state.next();
    next.buckets.get_mut("c").expect("it is there").steps.clear();
    let changed: BTreeSet<String> =
        next.changes(Some(&state)).expect("sound").into_iter().map(|put| put.key).collect();
    assert_eq!(changed, BTreeSet::from(["buckets/c/map".to_owned(), "state".to_owned()]));
    put(&store, &next.changes(Some(&state)).expect("sound"));
    assert_eq!((look(&store), look(&store), read(&store)), (next.clone(), next.clone(), next.clone()));
    let mut last = next.next();
    last.buckets.remove("c");
    let bucket = last.buckets.get_mut("b").expect("it is there");
    bucket.manifest = json!({ "uid": "2" }).into();
    bucket.flushes += 1;
    put(&store, &last.changes(Some(&next)).expect("sound"));
    assert_eq!((look(&store), read(&store)), (last.clone(), last));
    assert!(!store.read().expect("it answers").entries.keys().any(|key| key.starts_with("buckets/c/")));
}

#[test]
fn a_state_that_lacks_an_entry_is_not_read() {
    let (store, state) = (store(), busy());
    put(&store, &state.changes(None).expect("sound"));
    put(&store, &[Put { key: keys::bucket("c", keys::MAP), value: None }]);
    let read = View::of(&store.read().expect("it answers"));
    assert!(matches!(read, Err(Invalid::Bucket(name, _)) if name == "c"));
}

#[test]
fn the_state_of_the_last_version_is_read_and_split_when_every_node_reads_it_so() {
    let state = single();
    assert!(state.is_single());
    assert_eq!((state.revision, state.nodes[&NodeId(2)].status), (9, Status::FailedOver));
    assert_eq!(state.buckets["b"].steps[&0], Step::Settle { since: 8 });
    // As long as it is single it is written as that version reads it.
    let puts = state.next().changes(Some(&state)).expect("sound");
    assert_eq!(puts.iter().map(|put| put.key.as_str()).collect::<Vec<_>>(), [keys::STATE]);
    let json: Value = serde_json::from_slice(puts[0].value.as_ref().expect("it is written")).expect("JSON");
    assert_eq!((&json["format"], &json["buckets"]["b"]["map"][0]), (&json!(1), &json!([1, null])));

    let mut view = View { state, ..View::default() };
    let mut leader = crate::Leader::new(crate::LeaderConfig::default());
    let mut step = |view: &View| {
        let next = leader.step(view, std::time::Duration::ZERO);
        next.is_some_and(|next| !next.is_single())
    };
    view.state.buckets.get_mut("b").expect("it is there").steps.clear();
    view.state.buckets.get_mut("b").expect("it is there").missing.clear();
    let member = |incarnation, reads| crate::Member {
        incarnation,
        address: Address::new("h".to_owned(), 1, 2),
        reads,
        limits: None,
        node_login: true,
        timed_proofs: true,
        moves_stores: true,
    };
    view.members.insert("u1".to_owned(), member(7, FORMAT));
    assert!(!step(&view), "a node is away");
    view.members.insert("u2".to_owned(), member(8, 0));
    assert!(!step(&view), "a node is of the last version");
    view.members.insert("u2".to_owned(), member(8, FORMAT));
    assert!(step(&view));
    let split = view.state.split();
    assert_eq!(split.cluster, "u1-7");
    let puts = split.changes(Some(&view.state)).expect("sound");
    assert_eq!(puts.len(), 4, "all of it");
    // Who reads it as the last version did sees that it is of another format.
    let root: State = serde_json::from_slice(puts[0].value.as_ref().expect("written")).expect("it parses");
    assert!(root.format == FORMAT && root.buckets.is_empty());
}

#[test]
fn a_later_format_is_refused() {
    let store = store();
    let text = SINGLE_ENTRY.replacen("\"format\":1", "\"format\":3", 1);
    put(&store, &[Put { key: keys::STATE.to_owned(), value: Some(text.into_bytes()) }]);
    assert!(matches!(View::of(&store.read().expect("it answers")), Err(Invalid::Format(3))));
}
