//! Going back to an earlier commit: what is on disk and what is in memory agree afterwards.

mod common;

use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{Cas, Seqno, VbState};
use common::stores::{self, files, journaled};
use common::{VB, World, doc};
use engine::Refusal;
use kvstore::KvStore;

fn open(env: Env, handles: SimHandles, store: fn(&Env) -> Arc<dyn KvStore>) -> World {
    stores::open(env, handles, store, |_| ())
}

fn goes_back(store: fn(&Env) -> Arc<dyn KvStore>) {
    let (env, handles) = Env::sim(1);
    let world = open(env, handles, store);
    world.set("a", "1").expect("stored");
    world.set("b", "1").expect("stored");
    world.set("d", "1").expect("stored");
    assert!(world.bucket.flush_all());
    world.set("a", "2").expect("stored");
    world.set("c", "2").expect("stored");
    world.bucket.delete(VB, doc("d"), Cas::ANY, world.now()).expect("deleted");
    assert!(world.bucket.flush_all());
    world.set("b", "not on disk").expect("stored");
    assert_eq!(world.bucket.rollback(VB, Seqno(4)).err(), Some(Refusal::Invalid), "it is active");
    world.bucket.set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let seqno = world.bucket.rollback(VB, Seqno(5)).expect("a replica").expect("the disk works");
    assert_eq!(seqno, Seqno(3));

    let check = |world: &World| {
        let stats = world.bucket.vbucket_stats(VB).expect("it is there");
        assert_eq!(
            (stats.state, stats.high_seqno, stats.persisted_seqno),
            (VbState::Replica, Seqno(3), Seqno(3))
        );
        assert_eq!((stats.documents, stats.tombstones), (3, 0));
        assert_eq!(documents_bytes(world), stats.item_bytes as i64, "the account is right");
    };
    check(&world);
    assert!(world.bucket.flush_all());
    let World { env, handles, bucket } = world;
    drop(bucket);
    let world = open(env, handles, store);
    check(&world);
    world.bucket.set_vbucket_state(VB, VbState::Active, None).expect("set");
    for key in ["a", "b", "d"] {
        assert_eq!(world.get(key), Ok("1".into()));
    }
    assert_eq!(world.get("c"), Err(Refusal::NotFound));
    assert_eq!(world.set("e", "3").expect("stored").seqno, Seqno(4));
    assert!(world.bucket.flush_all());
}

fn documents_bytes(world: &World) -> i64 {
    world.bucket.memory().account().exact()[base::Part::Documents as usize]
}

#[test]
fn files_go_back() {
    goes_back(files);
}

#[test]
fn what_is_in_the_journal_goes_back() {
    goes_back(journaled);
}

#[test]
fn without_such_a_commit_nothing_is_left() {
    let (env, handles) = Env::sim(2);
    let world = open(env, handles, files);
    world.set("a", "1").expect("stored");
    world.set("b", "1").expect("stored");
    assert!(world.bucket.flush_all());
    world.bucket.set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let seqno = world.bucket.rollback(VB, Seqno(1)).expect("a replica").expect("the disk works");
    assert_eq!(seqno, Seqno(0));
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!((stats.state, stats.high_seqno, stats.documents), (VbState::Replica, Seqno(0), 0));
    assert_eq!(documents_bytes(&world), 0);
}
