//! Reports in several entries of the store, which are not written at once.

mod support;

use std::collections::BTreeMap;

use base::VbState;
use cluster::store::{Commit, Put};
use cluster::{Damaged, MemoryStore, NodeId, Report, Store, VbReport, View};
use support::{BUCKET, three};

const COPY: VbReport =
    VbReport { state: Some(VbState::Replica), high_seqno: 5, persisted: 5, high_prepared: 5, uuid: 1 };

fn report(applied: u64, buckets: &[&str]) -> Report {
    let of = |name: &&str| ((*name).to_owned(), BTreeMap::from([(0, COPY)]));
    let vbuckets = buckets.iter().map(of).collect();
    Report { incarnation: 10, applied, vbuckets, ..Report::default() }
}

fn entries(report: &Report, is_single: bool) -> Vec<Put> {
    let entries = report.entries("1", is_single).into_iter();
    entries.map(|(key, value)| Put { key, value: Some(value) }).collect()
}

fn store() -> MemoryStore {
    let store = MemoryStore::new(base::env::Env::sim(1).0.clock);
    let view = three();
    put(&store, &view.state.changes(None).expect("sound"));
    for (uuid, member) in view.members {
        let value = serde_json::to_vec(&member).expect("JSON");
        put(&store, &[Put { key: cluster::keys::member(&uuid), value: Some(value) }]);
    }
    store
}

fn put(store: &MemoryStore, puts: &[Put]) {
    store.commit(Commit { guard: None, puts, lease: None }).expect("it is done");
}

fn view(store: &MemoryStore) -> View {
    View::of(&store.read().expect("it answers")).expect("sound").expect("there is one")
}

#[test]
fn what_is_reported_of_each_bucket_is_put_together() {
    for is_single in [true, false] {
        let store = store();
        let whole = report(7, &[BUCKET, "other"]);
        let puts = entries(&whole, is_single);
        assert_eq!(puts.len(), if is_single { 1 } else { 3 });
        put(&store, &puts);
        let view = view(&store);
        let read = view.report(NodeId(1)).expect("it is there");
        assert_eq!((read.of(BUCKET, 0), read.of("other", 0)), (Some(&COPY), Some(&COPY)));
        assert!(view.report_since(NodeId(1), 7).is_some());
        assert!(view.bucket_since(NodeId(1), BUCKET, 7).is_some());
        assert!(view.bucket_since(NodeId(1), BUCKET, 8).is_none());
    }
}

#[test]
fn what_is_said_of_a_bucket_holds_for_the_revision_that_it_names() {
    let store = store();
    put(&store, &entries(&report(7, &[BUCKET]), false));
    // The report of all has come, and that of the bucket has not: what is there of it is older.
    put(&store, &entries(&report(9, &[]), false));
    let seen = view(&store);
    assert!(seen.bucket_since(NodeId(1), BUCKET, 9).is_none());
    assert!(seen.bucket_since(NodeId(1), BUCKET, 7).is_some_and(|report| report.of(BUCKET, 0).is_some()));
    assert!(seen.bucket_since(NodeId(1), "other", 9).is_some());
    // That of a bucket which fails stays behind.
    let mut behind = report(7, &[BUCKET, "other"]);
    (behind.reached, behind.behind) = (9, BTreeMap::from([("other".to_owned(), 7)]));
    put(&store, &entries(&behind, false));
    let seen = view(&store);
    assert!(seen.bucket_since(NodeId(1), BUCKET, 9).is_some());
    assert!(seen.bucket_since(NodeId(1), "other", 8).is_none() && seen.report_since(NodeId(1), 8).is_none());
}

#[test]
fn what_another_life_said_of_a_bucket_is_not_believed() {
    let store = store();
    let old = Report { incarnation: 9, ..report(7, &[BUCKET]) };
    put(&store, &entries(&old, false));
    put(&store, &entries(&report(7, &[]), false));
    let seen = view(&store);
    assert!(seen.bucket_since(NodeId(1), BUCKET, 7).is_some_and(|report| report.of(BUCKET, 0).is_none()));
}

#[test]
fn damaged_copies_are_reported_with_their_bucket() {
    for is_single in [true, false] {
        let store = store();
        let mut whole = report(7, &[]);
        whole.note_damaged(BUCKET, Damaged::of([0]));
        whole.note_damaged("other", Damaged::down());
        whole.note_damaged("sound", Damaged::default());
        let puts = entries(&whole, is_single);
        assert_eq!(puts.len(), if is_single { 1 } else { 3 });
        put(&store, &puts);
        let view = view(&store);
        assert!(view.is_damaged(NodeId(1), BUCKET, 0) && !view.is_damaged(NodeId(1), BUCKET, 1));
        assert!(view.is_damaged(NodeId(1), "other", 1023) && !view.is_damaged(NodeId(1), "sound", 0));
        assert!(!view.is_damaged(NodeId(2), BUCKET, 0), "another node's copy");
        let wrongs = cluster::damage::wrongs(&view);
        assert_eq!(wrongs.len(), 1, "the cluster has one bucket: {wrongs:?}");
        assert_eq!(
            (wrongs[0].damaged.as_slice(), wrongs[0].lost.len()),
            (&[0][..], 0),
            "two more have a copy"
        );
    }
}
