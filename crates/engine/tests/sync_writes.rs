//! Sync writes: who sees what when, who is told what, and what is left after a crash.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use base::{Cas, Datatype, DurabilityLevel, RevSeqno, Seqno, SyncWrite, VbId, VbState, VersionMeta};
use common::{VB, World, doc, outcome, set, stores, topology};
use engine::{
    CounterRequest, Durable, Mutated, Refusal, StoreMode, StoreRequest, SyncOutcome, WithMetaRequest,
};
use kvstore::{KvStore, Values};

const ALONE: &str = r#"[["n_0"]]"#;
const TWO: &str = r#"[["n_0","n_1"]]"#;
const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::Majority,
    DurabilityLevel::MajorityAndPersistOnActive,
    DurabilityLevel::PersistToMajority,
];

fn durable(level: DurabilityLevel, timeout_ms: u64) -> Option<Durable> {
    Some(Durable { level, timeout: Duration::from_millis(timeout_ms) })
}

impl World {
    fn with_topology(seed: u64, json: &str) -> World {
        let world = World::new(seed);
        world.become_(VbState::Active, json);
        world
    }

    fn become_(&self, state: VbState, json: &str) {
        self.bucket.roles().set_vbucket_state(VB, state, topology(json)).expect("there is such a vBucket");
    }

    fn set_durably(&self, key: &str, value: &str, level: DurabilityLevel) -> Result<Mutated, Refusal> {
        self.bucket.documents().durably(durable(level, 10_000)).store(VB, &set(doc(key), value), self.now())
    }

    fn flush(&self) {
        assert!(self.bucket.flushing().flush_all(), "the disk works");
    }

    fn in_flight(&self) -> usize {
        self.bucket.inspect(VB, |vb| vb.sync_writes().prepares_in_flight()).expect("there is such a vBucket")
    }

    fn acknowledge(&self, node: &str, prepared: Seqno) {
        self.bucket.durability().acknowledged(VB, node, prepared);
    }
}

#[test]
fn alone_a_majority_is_at_once_and_takes_two_seqnos() {
    let world = World::with_topology(1, ALONE);
    for (n, key) in (0..).zip(["a", "b", "a"]) {
        let mutated = world.set_durably(key, "v", DurabilityLevel::Majority).expect("stored");
        assert_eq!((mutated.seqno, &mutated.pending), (Seqno(2 * n + 1), &None));
        assert_eq!(world.get(key).as_deref(), Ok("v"));
    }
    world.bucket.inspect(VB, |vb| {
        assert_eq!((vb.high_seqno(), vb.max_visible_seqno()), (Seqno(6), Seqno(6)));
        assert_eq!(
            (vb.sync_writes().high_prepared_seqno(), vb.sync_writes().high_completed_seqno()),
            (Seqno(5), Seqno(5))
        );
        assert_eq!((vb.counts().documents, vb.sync_writes().prepares_in_flight()), (2, 0));
    });
}

#[test]
fn alone_a_level_with_disk_waits_for_the_flusher() {
    for level in &LEVELS[1..] {
        let world = World::with_topology(2, ALONE);
        let first = world.set_durably("a", "1", *level).expect("prepared");
        let second = world.set_durably("b", "2", *level).expect("prepared");
        assert_eq!((outcome(&first), world.get("a")), (None, Err(Refusal::NotFound)));
        world.flush();
        assert_eq!(outcome(&first), Some(SyncOutcome::Committed));
        assert_eq!(outcome(&second), Some(SyncOutcome::Committed));
        assert_eq!((world.get("a").as_deref(), world.get("b").as_deref()), (Ok("1"), Ok("2")));
        assert_eq!(world.in_flight(), 0);
    }
}

#[test]
fn without_a_topology_this_node_is_alone() {
    let world = World::new(3);
    assert_eq!(world.set_durably("a", "1", DurabilityLevel::Majority).expect("stored").pending, None);
}

#[test]
fn in_a_cluster_nothing_is_committed_before_the_topology_is_known() {
    let (env, handles) = base::env::Env::sim(40);
    let world = stores::open(env, handles, stores::files, |config| {
        (config.first_role, config.needs_topology) = (VbState::Dead, true);
    });
    let active_without =
        || world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("there is one");
    active_without();
    for level in LEVELS {
        assert_eq!(world.set_durably("a", "1", level), Err(Refusal::DurabilityImpossible));
    }
    world.set("a", "0").expect("what is not durable needs no majority");
    world.become_(VbState::Active, TWO);
    let mutated = world.set_durably("a", "2", DurabilityLevel::Majority).expect("prepared");
    // It is taken over, as by DCP: whoever was in its chain says nothing to the new active one before that is told.
    world.bucket.roles().set_vbucket_state(VB, VbState::Pending, None).expect("there is one");
    assert_eq!(outcome(&mutated), Some(SyncOutcome::GivenUp));
    active_without();
    world.flush();
    world.acknowledge("n_1", mutated.seqno);
    assert_eq!((world.in_flight(), world.get("a").as_deref()), (1, Ok("0")));
    assert_eq!(world.set_durably("b", "1", DurabilityLevel::Majority), Err(Refusal::DurabilityImpossible));
    world.become_(VbState::Active, TWO);
    assert_eq!((world.in_flight(), world.get("a").as_deref()), (0, Ok("2")));
}

#[test]
fn nobody_sees_a_prepare_until_the_replica_has_it() {
    for level in LEVELS {
        let world = World::with_topology(4, TWO);
        world.set("a", "old").expect("stored");
        let mutated = world.set_durably("a", "new", level).expect("prepared");
        world.flush();
        assert_eq!((outcome(&mutated), world.get("a").as_deref()), (None, Ok("old")));
        world.acknowledge("stranger", mutated.seqno);
        world.acknowledge("n_1", Seqno(0));
        world.acknowledge("n_1", Seqno(mutated.seqno.0 - 1));
        assert_eq!(outcome(&mutated), None);
        world.acknowledge("n_1", mutated.seqno);
        assert_eq!((outcome(&mutated), world.get("a").as_deref()), (Some(SyncOutcome::Committed), Ok("new")));
        world.bucket.inspect(VB, |vb| assert_eq!(vb.counts().documents, 1));
    }
}

#[test]
fn a_level_with_disk_needs_the_active_nodes_too() {
    let world = World::with_topology(5, TWO);
    let mutated = world.set_durably("a", "1", DurabilityLevel::PersistToMajority).expect("prepared");
    world.acknowledge("n_1", mutated.seqno);
    assert_eq!(outcome(&mutated), None);
    world.flush();
    assert_eq!(outcome(&mutated), Some(SyncOutcome::Committed));
}

#[test]
fn one_acknowledgement_commits_all_before_it_in_order() {
    let world = World::with_topology(6, TWO);
    let all: Vec<Mutated> = (0..100)
        .map(|n| world.set_durably(&format!("k{n}"), "v", DurabilityLevel::Majority).expect("prepared"))
        .collect();
    world.acknowledge("n_1", all[69].seqno);
    for (n, mutated) in all.iter().enumerate() {
        assert_eq!(outcome(mutated), (n < 70).then_some(SyncOutcome::Committed), "{n}");
        assert_eq!(world.get(&format!("k{n}")).is_ok(), n < 70);
    }
    assert_eq!(world.in_flight(), 30);
}

#[test]
fn a_document_with_a_prepare_is_left_alone() {
    let world = World::with_topology(7, TWO);
    world.set("there", "1").expect("stored");
    for key in ["there", "absent"] {
        let prepared = world.set_durably(key, "2", DurabilityLevel::Majority).expect("prepared");
        let now = world.now();
        let bucket = &world.bucket;
        let busy = Err(Refusal::SyncWriteInProgress);
        assert_eq!(world.set(key, "x"), busy);
        assert_eq!(world.store(key, "x", StoreMode::Add, Cas::ANY, 0), busy);
        assert_eq!(world.set_durably(key, "x", DurabilityLevel::Majority), busy);
        assert_eq!(
            bucket.documents().touch(VB, doc(key), 100, now).map(drop),
            Err(Refusal::SyncWriteInProgress)
        );
        assert_eq!(
            bucket.documents().get_and_lock(VB, doc(key), 10, now).map(drop),
            Err(Refusal::SyncWriteInProgress)
        );
        assert_eq!(bucket.documents().unlock(VB, doc(key), Cas(1), now), Err(Refusal::SyncWriteInProgress));
        let counter = CounterRequest {
            key: doc(key),
            increment: true,
            delta: 1,
            initial: Some(1),
            expiry: 0,
            preserve_expiry: false,
        };
        assert_eq!(bucket.documents().count(VB, &counter, now).map(drop), Err(Refusal::SyncWriteInProgress));
        // What is not there is neither deleted nor replaced, whatever is prepared.
        let of_what_is_there = if key == "there" { busy } else { Err(Refusal::NotFound) };
        assert_eq!(bucket.documents().delete(VB, doc(key), Cas::ANY, now), of_what_is_there);
        assert_eq!(world.store(key, "x", StoreMode::Replace, Cas::ANY, 0), of_what_is_there);
        let durably = bucket.documents().durably(durable(DurabilityLevel::Majority, 1000));
        let replace = StoreRequest { mode: StoreMode::Replace, ..set(doc(key), "x") };
        assert_eq!(durably.store(VB, &replace, now), of_what_is_there);
        world.acknowledge("n_1", prepared.seqno);
        assert_eq!(world.get(key).as_deref(), Ok("2"));
        world.set(key, "3").expect("nothing is in the way any more");
    }
}

/// What a prepare would replace, a change with its own metadata would replace, too: the two are in conflict.
#[test]
fn a_change_with_meta_is_compared_with_the_prepare() {
    let world = World::with_topology(15, TWO);
    world.set("there", "1").expect("stored");
    for (key, prepared_rev) in [("there", 2), ("absent", 1)] {
        let prepared = world.set_durably(key, "2", DurabilityLevel::Majority).expect("prepared");
        let with_rev = |rev| {
            let meta = VersionMeta { cas: Cas(1), rev_seqno: RevSeqno(rev), ..VersionMeta::default() };
            let request = WithMetaRequest {
                key: doc(key),
                value: b"x",
                datatype: Datatype::RAW,
                meta,
                add: false,
                expected: Cas::ANY,
                force: false,
                regenerate_cas: false,
                late: None,
            };
            world.bucket.documents().apply_with_meta(VB, &request, world.now()).map(drop)
        };
        assert_eq!(with_rev(prepared_rev), Err(Refusal::Exists), "{key}: its CAS is less");
        assert_eq!(with_rev(prepared_rev + 1), Err(Refusal::SyncWriteInProgress), "{key}");
        world.acknowledge("n_1", prepared.seqno);
        assert_eq!(with_rev(prepared_rev + 1), Ok(()), "{key}");
    }
}

#[test]
fn a_deletion_is_prepared_too() {
    let world = World::with_topology(8, TWO);
    world.set("a", "1").expect("stored");
    let writer = world.bucket.documents().durably(durable(DurabilityLevel::Majority, 1000));
    let deleted = writer.delete(VB, doc("a"), Cas::ANY, world.now()).expect("prepared");
    assert_eq!(world.get("a").as_deref(), Ok("1"));
    world.acknowledge("n_1", deleted.seqno);
    assert_eq!(world.get("a"), Err(Refusal::NotFound));
    world.bucket.inspect(VB, |vb| {
        let counts = vb.counts();
        assert_eq!((counts.documents, counts.tombstones, vb.high_seqno()), (0, 1, Seqno(3)));
    });
}

#[test]
fn the_lock_of_a_document_is_used_up_by_a_prepare() {
    let world = World::with_topology(9, TWO);
    world.set("a", "1").expect("stored");
    let locked = world.bucket.documents().get_and_lock(VB, doc("a"), 10, world.now()).expect("locked");
    assert_eq!(world.set_durably("a", "2", DurabilityLevel::Majority), Err(Refusal::Locked));
    let writer = world.bucket.documents().durably(durable(DurabilityLevel::Majority, 1000));
    let with_cas = StoreRequest { cas: locked.cas, ..set(doc("a"), "2") };
    let prepared = writer.store(VB, &with_cas, world.now()).expect("prepared");
    world.acknowledge("n_1", prepared.seqno);
    assert_eq!(world.get("a").as_deref(), Ok("2"));
}

#[test]
fn time_runs_out_for_each_by_itself() {
    let world = World::with_topology(10, TWO);
    let write = |key: &str, timeout_ms| {
        let writer = world.bucket.documents().durably(durable(DurabilityLevel::Majority, timeout_ms));
        writer.store(VB, &set(doc(key), "v"), world.now()).expect("prepared")
    };
    let (slow, quick) = (write("slow", 30_000), write("quick", 300));
    world.bucket.durability().sync_write_step();
    world.handles.clock.advance(Duration::from_millis(299));
    world.bucket.durability().sync_write_step();
    assert_eq!(outcome(&quick), None);
    world.handles.clock.advance(Duration::from_millis(1));
    world.bucket.durability().sync_write_step();
    assert_eq!((outcome(&quick), outcome(&slow)), (Some(SyncOutcome::Aborted), None));
    assert_eq!(world.get("quick"), Err(Refusal::NotFound));
    world.bucket.inspect(VB, |vb| {
        assert_eq!((vb.high_seqno(), vb.max_visible_seqno()), (Seqno(3), Seqno(0)));
        // The older one is still in flight.
        assert_eq!(vb.sync_writes().high_completed_seqno(), Seqno(0));
    });
    world.set("quick", "after").expect("nothing is in the way any more");
    world.acknowledge("n_1", slow.seqno);
    assert_eq!(outcome(&slow), Some(SyncOutcome::Committed));
    world.bucket.inspect(VB, |vb| assert_eq!(vb.sync_writes().high_completed_seqno(), Seqno(2)));
}

#[test]
fn the_chore_wakes_for_the_first_deadline() {
    let world = World::with_topology(11, TWO);
    let writer = world.bucket.documents().durably(durable(DurabilityLevel::Majority, 40));
    while world.bucket.maintenance().keep_step() {}
    let mutated = writer.store(VB, &set(doc("a"), "v"), world.now()).expect("prepared");
    for _ in 0..4 {
        assert_eq!(outcome(&mutated), None);
        world.handles.clock.advance(Duration::from_millis(10));
        world.bucket.maintenance().keep_step();
    }
    assert_eq!(outcome(&mutated), Some(SyncOutcome::Aborted));
}

#[test]
fn a_later_deadline_of_one_vbucket_does_not_put_off_that_of_another() {
    let world = World::with_topology(11, TWO);
    let other = VbId(4);
    let led = world.bucket.roles().set_vbucket_state(other, VbState::Active, topology(TWO));
    led.expect("there is such a vBucket");
    while world.bucket.maintenance().keep_step() {}
    let write = |vb, key: &str, timeout_ms| {
        let writer = world.bucket.documents().durably(durable(DurabilityLevel::Majority, timeout_ms));
        writer.store(vb, &set(doc(key), "v"), world.now()).expect("prepared")
    };
    let (first, last) = (write(VB, "a", 40), write(VB, "b", 10_000));
    let second = write(other, "c", 80);
    let after = |ms| {
        world.handles.clock.advance(Duration::from_millis(ms));
        world.bucket.maintenance().keep_step();
        [&first, &second, &last].map(outcome)
    };
    assert_eq!(after(40), [Some(SyncOutcome::Aborted), None, None]);
    assert_eq!(after(40), [None, Some(SyncOutcome::Aborted), None], "the first was taken");
    assert_eq!(after(9_920), [None, None, Some(SyncOutcome::Aborted)]);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_done() {
    let world = World::with_topology(12, r#"[["n_0",null]]"#);
    assert_eq!(world.set_durably("a", "1", DurabilityLevel::Majority), Err(Refusal::DurabilityImpossible));
    world.become_(VbState::Active, r#"[["n_0",null,null]]"#);
    assert_eq!(world.set_durably("a", "1", DurabilityLevel::Majority), Err(Refusal::DurabilityImpossible));
    world.bucket.inspect(VB, |vb| assert_eq!(vb.high_seqno(), Seqno(0)));
    world.become_(VbState::Active, r#"[["n_0","n_1",null]]"#);
    assert!(world.set_durably("a", "1", DurabilityLevel::Majority).is_ok());
}

#[test]
fn a_topology_that_shrinks_commits_what_it_allows() {
    let world = World::with_topology(13, TWO);
    let mutated = world.set_durably("a", "1", DurabilityLevel::Majority).expect("prepared");
    world.become_(VbState::Active, r#"[["n_0",null]]"#);
    assert_eq!(outcome(&mutated), None);
    world.become_(VbState::Active, ALONE);
    assert_eq!((outcome(&mutated), world.get("a").as_deref()), (Some(SyncOutcome::Committed), Ok("1")));
}

#[test]
fn whoever_loses_the_role_gives_up_and_whoever_gets_it_goes_on() {
    for state in [VbState::Dead, VbState::Replica, VbState::Pending] {
        let world = World::with_topology(14, TWO);
        let mutated = world.set_durably("a", "1", DurabilityLevel::Majority).expect("prepared");
        world.acknowledge("n_1", Seqno(0));
        world.bucket.roles().set_vbucket_state(VB, state, None).expect("there is such a vBucket");
        assert_eq!(outcome(&mutated), Some(SyncOutcome::GivenUp));
        world.become_(VbState::Active, TWO);
        // This node made it itself: nothing is committed anew.
        assert_eq!(world.set("a", "x"), Err(Refusal::SyncWriteInProgress));
        // It has no timeout any more.
        world.handles.clock.advance(Duration::from_secs(3600));
        world.bucket.durability().sync_write_step();
        assert_eq!(world.in_flight(), 1);
        world.become_(VbState::Active, ALONE);
        assert_eq!(world.get("a").as_deref(), Ok("1"));
        world.set("a", "2").expect("nothing is in the way any more");
        world.bucket.inspect(VB, |vb| {
            let history: Vec<u64> = vb.failover().entries().iter().map(|entry| entry.seqno.0).collect();
            assert_eq!((vb.high_seqno(), history), (Seqno(3), vec![1, 0]));
        });
    }
}

#[test]
fn the_least_level_of_a_bucket_holds_for_every_change() {
    let world = World::with_topology(15, TWO);
    world.bucket.set_param("durability_min_level", "majority").expect("it is a level");
    let plain = world.set("a", "1").expect("prepared");
    assert_eq!(outcome(&plain), None);
    world.bucket.set_param("durability_min_level", "persistToMajority").expect("it is a level");
    let raised = world.set_durably("b", "1", DurabilityLevel::Majority).expect("prepared");
    world.acknowledge("n_1", raised.seqno);
    assert_eq!((outcome(&plain), outcome(&raised)), (Some(SyncOutcome::Committed), None));
    world.flush();
    assert_eq!(outcome(&raised), Some(SyncOutcome::Committed));
}

#[test]
fn an_expired_document_with_a_prepare_is_not_found() {
    let world = World::with_topology(16, TWO);
    world.store("a", "1", StoreMode::Set, Cas::ANY, 10).expect("stored");
    let prepared = world.set_durably("a", "2", DurabilityLevel::Majority).expect("prepared");
    world.handles.clock.advance(Duration::from_secs(60));
    assert_eq!(world.get("a"), Err(Refusal::NotFound));
    assert!(world.bucket.documents().peek(VB, doc("a"), world.now()).expect("it can be read").is_none());
    assert_eq!(world.bucket.documents().delete(VB, doc("a"), Cas::ANY, world.now()), Err(Refusal::NotFound));
    assert_eq!(world.set("a", "x"), Err(Refusal::SyncWriteInProgress));
    world.acknowledge("n_1", prepared.seqno);
    assert_eq!(world.get("a").as_deref(), Ok("2"));
}

/// What the disk has of everything, in order of seqno.
fn on_disk(world: &World) -> Vec<(u64, String, SyncWrite)> {
    let store = kvstore::Couch::open(world.env.clone(), &world.bucket.config().dir, Default::default());
    let mut all = Vec::new();
    let snapshot = store.expect("the disk works").snapshot(VB).expect("the disk works").expect("it is saved");
    let scanned = snapshot.scan_all(Seqno(0), Values::Leave, &mut |version| {
        let key = String::from_utf8_lossy(version.document_key().key).into_owned();
        all.push((version.meta().by_seqno.0, key, version.meta().sync_write));
        ControlFlow::Continue(())
    });
    scanned.expect("the disk works");
    all
}

#[test]
fn of_one_batch_only_the_commit_is_written() {
    let world = World::with_topology(17, ALONE);
    world.set_durably("a", "1", DurabilityLevel::Majority).expect("stored");
    world.set_durably("a", "2", DurabilityLevel::Majority).expect("stored");
    world.set("b", "1").expect("stored");
    world.flush();
    let commit = SyncWrite::Commit { prepared: Seqno(3) };
    assert_eq!(on_disk(&world), [(4, "a".to_owned(), commit), (5, "b".to_owned(), SyncWrite::No)]);
}

#[test]
fn prepares_in_flight_survive_a_crash_and_are_committed_by_whoever_comes_after() {
    for level in LEVELS {
        let world = World::with_topology(18, TWO);
        let done = world.set_durably("done", "1", level).expect("prepared");
        world.flush();
        world.acknowledge("n_1", done.seqno);
        world.set("changed", "old").expect("stored");
        world.set_durably("changed", "new", level).expect("prepared");
        world.set_durably("fresh", "new", level).expect("prepared");
        let writer = world.bucket.documents().durably(durable(level, 10));
        writer.store(VB, &set(doc("aborted"), "x"), world.now()).expect("prepared");
        world.handles.clock.advance(Duration::from_millis(10));
        world.bucket.durability().sync_write_step();
        world.flush();
        world.set_durably("lost", "x", level).expect("prepared");
        let world = world.restart();
        world.bucket.inspect(VB, |vb| {
            assert_eq!(vb.sync_writes().prepares_in_flight(), 2, "{level:?}");
            assert_eq!((vb.sync_writes().high_completed_seqno(), vb.counts().documents), (Seqno(3), 2));
        });
        assert_eq!(world.get("done").as_deref(), Ok("1"));
        for key in ["changed", "fresh"] {
            assert_eq!(
                world.get(key),
                Err(Refusal::ReCommitInProgress),
                "{key} may have been committed before"
            );
        }
        assert_eq!(world.set("fresh", "x"), Err(Refusal::ReCommitInProgress));
        world.set("aborted", "y").expect("nothing is in the way");
        let high = world.bucket.inspect(VB, |vb| vb.high_seqno()).expect("there is such a vBucket");
        world.acknowledge("n_1", high);
        assert_eq!((world.get("changed").as_deref(), world.get("fresh").as_deref()), (Ok("new"), Ok("new")));
        assert_eq!(world.in_flight(), 0);
        world.flush();
        let world = world.restart();
        assert_eq!((world.in_flight(), world.get("fresh").as_deref()), (0, Ok("new")));
    }
}

/// Bytes of prepares in files: none before one is saved, none after it was aborted and that is saved.
#[test]
fn prepares_on_disk_have_a_size() {
    let (env, handles) = base::env::Env::sim(41);
    let world = stores::open(env, handles, stores::files, |_| ());
    world.become_(VbState::Active, TWO);
    let bytes = || engine::file_totals(&world.bucket).prepare_bytes;
    // Without repetitions, which the file would not take in full.
    let char_of = |n: u64| char::from(33 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as u8 % 90);
    let value: String = (0..1000).map(|n| char_of(n * n)).collect();
    let level = DurabilityLevel::Majority;
    let request = set(doc("k"), &value);
    let writer = world.bucket.documents().durably(durable(level, 10));
    writer.store(VB, &request, world.now()).expect("prepared");
    assert_eq!(bytes(), 0, "it is in memory alone");
    world.flush();
    assert!((1000..1100).contains(&bytes()), "{}", bytes());
    world.handles.clock.advance(Duration::from_millis(10));
    world.bucket.durability().sync_write_step();
    world.flush();
    assert_eq!((world.in_flight(), bytes()), (0, 0));
}
