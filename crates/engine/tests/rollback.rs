//! Going back to an earlier commit: what is on disk and what is in memory agree afterwards.

mod common;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::env::{Env, SimHandles};
use base::planted::{self, Bug};
use base::{Cas, Seqno, VbId, VbState};
use common::stores::{self, files, journaled};
use common::{VB, World, doc};
use engine::{Progress, Refusal};
use kvstore::KvStore;

/// Far longer than it takes: a lock that is held fails the test.
fn patience() -> Duration {
    Duration::from_secs(if planted::is(Bug::RollbackHoldsAll) { 2 } else { 60 })
}

fn open(env: Env, handles: SimHandles, store: fn(&Env) -> Arc<dyn KvStore>) -> World {
    stores::open(env, handles, store, |_| ())
}

fn goes_back(store: fn(&Env) -> Arc<dyn KvStore>) {
    let (env, handles) = Env::sim(1);
    let world = open(env, handles, store);
    world.set("a", "1").expect("stored");
    world.set("b", "1").expect("stored");
    world.set("d", "1").expect("stored");
    assert!(world.bucket.flushing().flush_all());
    world.set("a", "2").expect("stored");
    world.set("c", "2").expect("stored");
    world.bucket.documents().delete(VB, doc("d"), Cas::ANY, world.now()).expect("deleted");
    assert!(world.bucket.flushing().flush_all());
    world.set("b", "not on disk").expect("stored");
    assert_eq!(world.bucket.roles().rollback(VB, Seqno(4)).err(), Some(Refusal::Invalid), "it is active");
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let seqno = world.bucket.roles().rollback(VB, Seqno(5)).expect("a replica").expect("the disk works");
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
    assert!(world.bucket.flushing().flush_all());
    let World { env, handles, bucket } = world;
    drop(bucket);
    let world = open(env, handles, store);
    check(&world);
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("set");
    for key in ["a", "b", "d"] {
        assert_eq!(world.get(key), Ok("1".into()));
    }
    assert_eq!(world.get("c"), Err(Refusal::NotFound));
    assert_eq!(world.set("e", "3").expect("stored").seqno, Seqno(4));
    assert!(world.bucket.flushing().flush_all());
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
    assert!(world.bucket.flushing().flush_all());
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    let seqno = world.bucket.roles().rollback(VB, Seqno(1)).expect("a replica").expect("the disk works");
    assert_eq!(seqno, Seqno(0));
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!((stats.state, stats.high_seqno, stats.documents), (VbState::Replica, Seqno(0), 0));
    assert_eq!(documents_bytes(&world), 0);
}

/// What must go on while what is stored of `VB` is replaced.
fn others_go_on(world: &common::Watched) {
    let other = VbId(VB.0 + 1);
    let bucket = &world.bucket;
    let seqno = world.set_in(other, "k", "v").expect("it is active").seqno;
    while bucket.flushing().flush_step() == Progress::Worked {}
    let stats = bucket.vbucket_stats(other).expect("it is there");
    assert_eq!(stats.persisted_seqno, seqno, "it is written meanwhile");
    for state in [VbState::Replica, VbState::Active] {
        bucket.roles().set_vbucket_state(other, state, None).expect("its role changes meanwhile");
    }
    while bucket.flushing().flush_step() == Progress::Worked {}
}

type Replace = fn(&common::Watched);

#[allow(clippy::disallowed_methods, reason = "a thread that may hang, and is left behind then")]
#[test]
fn other_vbuckets_are_written_and_change_roles_while_one_goes_back_or_goes() {
    let world = Arc::new(common::Watched::open_with_quota(3, 256 << 20));
    for value in ["1", "2"] {
        world.set("a", value);
        assert!(world.bucket.flushing().flush_all());
    }
    let replace: [(VbState, Replace); 3] = [
        (VbState::Replica, |world| {
            let back =
                world.bucket.roles().rollback(VB, Seqno(1)).expect("a replica").expect("the disk works");
            assert_eq!(back, Seqno(1));
        }),
        (VbState::Active, |world| world.bucket.roles().remove_all_documents().expect("the disk works")),
        (VbState::Dead, |world| {
            world.bucket.roles().delete_vbucket(VB).expect("it is dead").expect("the disk works")
        }),
    ];
    for (state, replace) in replace {
        world.bucket.roles().set_vbucket_state(VB, state, None).expect("set");
        let (patience, (sender, meanwhile)) = (patience(), mpsc::channel());
        let seen = Arc::clone(&world);
        let hook = move || {
            // On a thread of its own, so that a lock that is held fails the test instead of hanging it.
            let (sender_of_end, end) = mpsc::channel();
            std::thread::spawn(move || {
                others_go_on(&seen);
                sender_of_end.send(())
            });
            let _ = sender.send(end.recv_timeout(patience));
        };
        *world.spy.before_replacing.lock() = Some(Box::new(hook));
        replace(&world);
        meanwhile.recv().expect("it was replaced").expect("others went on meanwhile");
    }
}

#[test]
fn what_changes_while_a_vbucket_goes_back_is_written_behind_it() {
    let world = Arc::new(common::Watched::open_with_quota(4, 256 << 20));
    for value in ["1", "2"] {
        world.set("a", value);
        assert!(world.bucket.flushing().flush_all());
    }
    world.bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
    // The role waits to be written; while it goes back the flusher passes it over.
    world.spy.saves.lock().clear();
    let (bucket, spy) = (Arc::clone(&world.bucket), Arc::clone(&world.spy));
    let (sender, saved) = mpsc::channel();
    *world.spy.before_replacing.lock() = Some(Box::new(move || {
        while bucket.flushing().flush_step() == Progress::Worked {}
        let _ = sender.send(std::mem::take(&mut *spy.saves.lock()));
    }));
    assert_eq!(
        world.bucket.roles().rollback(VB, Seqno(1)).expect("a replica").expect("the disk works"),
        Seqno(1)
    );
    assert!(!saved.recv().expect("it was rolled back").contains(&VB), "nothing of it is written meanwhile");
    while world.bucket.flushing().flush_step() == Progress::Worked {}
    assert!(world.spy.saves.lock().contains(&VB), "it is written behind that");
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Rollbacks, |seed| {
        // Nothing depends on it.
        if seed > 0 {
            return Ok(());
        }
        other_vbuckets_are_written_and_change_roles_while_one_goes_back_or_goes();
        Ok(())
    });
}
