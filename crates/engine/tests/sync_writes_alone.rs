//! Sync writes of a node that is a majority alone: prepare and commit are one version, which nobody sees too early.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On};
use base::{Cas, CollectionId, DocKey, DurabilityLevel, ScopeId, Seqno, SyncWrite, VbId, VbState};
use common::{VB, World, doc, outcome, set, topology};
use engine::{
    Changes, Durable, Follower, InlineFlushOutcome, Mutated, Progress, Refusal, StreamWanted, SyncOutcome,
};
use vbucket::{Collection, Manifest, ManifestUid, RangeLimit, ResumePoint, Scope, SyncWriteState};

const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::Majority,
    DurabilityLevel::MajorityAndPersistOnActive,
    DurabilityLevel::PersistToMajority,
];
const PERSIST: DurabilityLevel = DurabilityLevel::PersistToMajority;

impl World {
    fn durably(&self, vb: VbId, key: DocKey<'_>, level: DurabilityLevel) -> Result<Mutated, Refusal> {
        let durable = Durable { level, timeout: Duration::from_secs(10) };
        self.bucket.documents().durably(Some(durable)).store(vb, &set(key, "v"), self.now())
    }

    fn prepare(&self, key: &str) -> Mutated {
        self.durably(VB, doc(key), PERSIST).expect("prepared")
    }

    fn remove_durably(&self, key: &str) -> Mutated {
        let durable = Durable { level: PERSIST, timeout: Duration::from_secs(10) };
        self.bucket
            .documents()
            .durably(Some(durable))
            .delete(VB, doc(key), Cas::ANY, self.now())
            .expect("prepared")
    }

    fn flush(&self) {
        assert!(self.bucket.flushing().flush_all(), "the disk works");
    }

    fn high_seqno(&self) -> Seqno {
        self.bucket.inspect(VB, |vb| vb.high_seqno()).expect("there is one")
    }

    fn sync_writes(&self) -> SyncWriteState {
        self.bucket.inspect(VB, |vb| vb.sync_writes().sync_write_state()).expect("there is one")
    }

    fn documents(&self) -> u64 {
        self.bucket.inspect(VB, |vb| vb.counts().documents).expect("there is one")
    }
}

/// What a stream finds in memory.
struct Stream<'a> {
    world: &'a World,
    place: engine::StreamPlace,
    cursor: vbucket::CursorId,
    follower: Arc<Follower>,
}

impl Stream<'_> {
    fn new(world: &World) -> Stream<'_> {
        let follower = Follower::new(8, || {});
        let (at, wanted) = (ResumePoint::default(), StreamWanted::Everything);
        let start = world.bucket.streams().begin_stream(VB, &follower, &at, wanted, true).expect("it begins");
        let cursor = world
            .bucket
            .streams()
            .join_memory(start.place, &"s".into(), Seqno(0))
            .expect("a place in memory");
        Stream { world, place: start.place, cursor: cursor.id, follower }
    }

    /// Seqnos and parts of everything that is there by now.
    fn take(&self) -> Vec<(u64, SyncWrite)> {
        let mut all = Vec::new();
        let bucket = &self.world.bucket;
        while let Changes::Range(range) =
            bucket.streams().take_changes(self.place, self.cursor, RangeLimit::NONE)
        {
            all.extend(range.iter().map(|version| (version.meta().by_seqno.0, version.meta().sync_write)));
            bucket.streams().advance_stream(self.place, self.cursor, range.end());
        }
        all
    }

    fn is_told(&self) -> bool {
        let mut is_told = false;
        self.follower.take(|_| is_told = true);
        is_told
    }
}

#[test]
fn seqnos_and_figures_are_those_of_a_chain_of_one() {
    let figures = |chain: Option<&str>| {
        let world = World::new(1);
        if let Some(chain) = chain {
            world
                .bucket
                .roles()
                .set_vbucket_state(VB, VbState::Active, topology(chain))
                .expect("there is one");
        }
        let mut seqnos = Vec::new();
        for (at, level) in LEVELS.iter().chain(&LEVELS).enumerate() {
            let mutated = world.durably(VB, doc(&format!("k{at}")), *level).expect("prepared");
            seqnos.push(mutated.seqno.0);
            world.flush();
            assert!(mutated.pending.is_none_or(|one| one.try_take() == Some(SyncOutcome::Committed)));
            world.set("plain", "v").expect("stored");
        }
        let deleted = world.remove_durably("k1");
        world.flush();
        assert_eq!(outcome(&deleted), Some(SyncOutcome::Committed));
        let seen = world
            .bucket
            .inspect(VB, |vb| (vb.high_seqno(), vb.max_visible_seqno(), vb.counts().documents))
            .expect("there is one");
        let state = world.sync_writes();
        world.flush();
        let world = world.restart();
        let counts = world.bucket.inspect(VB, |vb| {
            let counts = vb.counts();
            (vb.high_seqno(), vb.max_visible_seqno(), counts.documents, counts.tombstones)
        });
        (seqnos, seen, state, counts, world.sync_writes().high_completed, world.sync_writes().in_flight)
    };
    assert_eq!(figures(None), figures(Some(r#"[["n_0"]]"#)));
}

#[test]
fn nobody_sees_it_before_it_is_on_disk_and_then_all_do() {
    let world = World::new(2);
    world.set("before", "v").expect("stored");
    let stream = Stream::new(&world);
    let first = world.prepare("a");
    world.set("behind", "v").expect("stored");
    let second = world.prepare("b");
    assert_eq!((first.seqno, second.seqno, world.high_seqno()), (Seqno(2), Seqno(5), Seqno(6)));
    let not_found = Err(Refusal::NotFound);
    assert_eq!((world.get("a"), world.get("b"), world.documents()), (not_found.clone(), not_found, 2));
    assert_eq!(world.set("a", "x"), Err(Refusal::SyncWriteInProgress));
    assert_eq!(stream.take(), [(1, SyncWrite::No)]);
    stream.is_told();
    world.flush();
    assert!(stream.is_told());
    assert_eq!(
        (outcome(&first), outcome(&second)),
        (Some(SyncOutcome::Committed), Some(SyncOutcome::Committed))
    );
    assert_eq!((world.get("a").as_deref(), world.documents()), (Ok("v"), 4));
    let alone = SyncWrite::Alone(PERSIST);
    assert_eq!(stream.take(), [(3, alone), (4, SyncWrite::No), (6, alone)]);
    // What comes after the flusher has taken a batch is held back until the next one.
    world.prepare("a");
    assert!(stream.take().is_empty());
    world.set("behind", "w").expect("stored");
    world.flush();
    assert_eq!(stream.take(), [(8, alone), (9, SyncWrite::No)]);
}

#[test]
fn many_at_once_are_all_found_and_all_committed() {
    let world = World::new(3);
    let stream = Stream::new(&world);
    let all: Vec<Mutated> = (0..200).map(|at| world.prepare(&format!("k{at}"))).collect();
    for at in 0..200 {
        assert_eq!(world.set(&format!("k{at}"), "x"), Err(Refusal::SyncWriteInProgress));
    }
    assert_eq!(world.sync_writes().in_flight, 200);
    assert!(stream.take().is_empty());
    world.flush();
    assert!(all.iter().all(|one| outcome(one) == Some(SyncOutcome::Committed)));
    assert_eq!((stream.take().len(), world.documents(), world.sync_writes().in_flight), (200, 200, 0));
    let world = world.restart();
    assert_eq!((world.documents(), world.sync_writes().in_flight), (200, 0));
}

#[test]
fn a_crash_leaves_all_of_it_or_nothing() {
    let world = World::new(4);
    world.prepare("saved");
    world.flush();
    world.prepare("lost");
    let world = world.restart();
    assert_eq!((world.get("saved").as_deref(), world.get("lost")), (Ok("v"), Err(Refusal::NotFound)));
    world.set("lost", "anew").expect("nothing is in the way");
}

#[test]
fn what_waits_for_the_disk_too_long_is_ambiguous_and_stays_in_the_way_until_it_is_committed() {
    let world = World::new(5);
    let waiting = world.prepare("a");
    world.handles.clock.advance(Duration::from_secs(10));
    world.bucket.durability().sync_write_step();
    assert_eq!(outcome(&waiting), Some(SyncOutcome::GivenUp));
    assert_eq!(world.set("a", "x"), Err(Refusal::SyncWriteInProgress));
    world.handles.clock.advance(Duration::from_secs(10));
    world.bucket.durability().sync_write_step();
    assert_eq!(world.high_seqno(), Seqno(2), "no abort was written");
    world.flush();
    assert_eq!(world.get("a").as_deref(), Ok("v"));
    world.set("a", "x").expect("nothing is in the way any more");
}

#[test]
fn levels_stand_in_one_line() {
    let world = World::new(6);
    let persist = world.prepare("a");
    let memory = world.durably(VB, doc("b"), DurabilityLevel::Majority).expect("prepared");
    assert_eq!((outcome(&memory), world.get("b")), (None, Err(Refusal::NotFound)));
    world.flush();
    assert_eq!(
        (outcome(&persist), outcome(&memory)),
        (Some(SyncOutcome::Committed), Some(SyncOutcome::Committed))
    );
    assert_eq!(world.get("b").as_deref(), Ok("v"));
}

#[test]
fn who_sets_a_topology_knows_when_all_is_committed_that_it_does_not_cover() {
    let world = World::new(7);
    assert_eq!(world.bucket.durability().alone_committed(VB).map(|wait| wait.is_none()), Ok(true));
    let alone = world.prepare("a");
    world
        .bucket
        .roles()
        .set_vbucket_state(VB, VbState::Active, topology(r#"[["n_0","n_1"]]"#))
        .expect("there is one");
    let waiting =
        world.bucket.durability().alone_committed(VB).expect("there is one").expect("one is in flight");
    let two = world.durably(VB, doc("b"), PERSIST).expect("prepared");
    assert_eq!(waiting.try_take(), None);
    world.flush();
    assert_eq!((waiting.try_take(), outcome(&alone)), (Some(()), Some(SyncOutcome::Committed)));
    assert_eq!((world.get("a").as_deref(), world.get("b")), (Ok("v"), Err(Refusal::NotFound)));
    assert_eq!(outcome(&two), None);
    world.bucket.durability().acknowledged(VB, "n_1", two.seqno);
    assert_eq!((outcome(&two), world.get("b").as_deref()), (Some(SyncOutcome::Committed), Ok("v")));
    // Other vBuckets are alone still, and take either kind of version.
    let other = VbId(VB.0 + 1);
    let prepared = world.durably(other, doc("c"), PERSIST).expect("prepared");
    world.flush();
    assert_eq!(outcome(&prepared), Some(SyncOutcome::Committed));
}

#[test]
fn a_lost_role_leaves_it_to_the_disk() {
    for role in [VbState::Dead, VbState::Replica, VbState::Pending] {
        let world = World::new(8);
        let waiting = world.prepare("a");
        world.bucket.roles().set_vbucket_state(VB, role, None).expect("there is one");
        assert_eq!(outcome(&waiting), Some(SyncOutcome::GivenUp));
        world.flush();
        world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("there is one");
        assert_eq!((world.get("a").as_deref(), world.sync_writes().in_flight), (Ok("v"), 0), "{role:?}");
    }
}

#[test]
fn a_dropped_collection_takes_it_along() {
    const A: CollectionId = CollectionId(8);
    let manifest = |uid, with_a: bool| {
        let scope = Scope { id: ScopeId(0), name: "_default".into() };
        let collection = |id: CollectionId, name: &str| Collection {
            id,
            scope: ScopeId(0),
            name: name.into(),
            max_ttl_s: None,
            history: None,
        };
        let a = with_a.then(|| collection(A, "a"));
        let all = [Some(collection(CollectionId::DEFAULT, "_default")), a];
        Manifest::new(ManifestUid(uid), [scope], all.into_iter().flatten()).expect("it is valid")
    };
    let world = World::new(9);
    world.bucket.collections().set_manifest(manifest(1, true)).expect("it is newer");
    world.flush();
    let stream = Stream::new(&world);
    stream.take();
    let key = DocKey { collection: A, key: b"k" };
    let waiting = world.durably(VB, key, PERSIST).expect("prepared");
    world.bucket.collections().set_manifest(manifest(2, false)).expect("it is newer");
    world.flush();
    assert_ne!(outcome(&waiting), None, "somebody says what became of it");
    assert_eq!((world.documents(), world.sync_writes().in_flight), (0, 0));
    assert_eq!(stream.take().len(), 2, "what was prepared, and the event");
    let world = world.restart();
    assert_eq!((world.documents(), world.sync_writes().in_flight), (0, 0));
}

#[test]
fn who_stands_in_for_the_flusher_has_written_what_it_waits_for() {
    let world = World::new(1);
    world.bucket.documents().store(VbId(1), &set(doc("gathers"), "v"), world.now()).expect("stored");
    let inline_flush = world.bucket.flushing().inline_flush().expect("there is a disk");
    let pending = world.prepare("k").pending.expect("it waits for the disk");
    assert!(matches!(inline_flush.finish(), InlineFlushOutcome::Wrote(_)));
    assert_eq!(pending.try_take(), Some(SyncOutcome::Committed));
    let persisted = |vb| world.bucket.vbucket_stats(vb).expect("there is one").persisted_seqno;
    assert_eq!((persisted(VB), persisted(VbId(1))), (Seqno(2), Seqno(0)), "nobody waits for the other");
    assert_eq!(
        world.bucket.flushing().inline_flush().expect("there is a disk").finish(),
        InlineFlushOutcome::Nothing
    );
    assert_eq!(world.bucket.flushing().save_stats().stood_in, 1);
}

#[test]
fn what_somebody_who_stands_in_leaves_undone_the_flusher_does() {
    let world = World::new(1);
    let inline_flush = world.bucket.flushing().inline_flush();
    let pending = world.prepare("k").pending.expect("it waits for the disk");
    drop(inline_flush);
    assert_eq!(pending.try_take(), None);
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| world.bucket.flushing().run_flusher());
        assert_eq!(common::wait::wait(pending), SyncOutcome::Committed);
        world.bucket.flushing().stop_flusher();
        flusher.join().expect("it ran");
    });
    assert!(world.bucket.flushing().inline_flush().is_none(), "nothing is written any more");
}

#[test]
fn a_disk_that_refuses_who_stands_in_is_tried_again() {
    let world = World::new(1);
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::DISK_FULL));
    let inline_flush = world.bucket.flushing().inline_flush().expect("there is a disk");
    let pending = world.prepare("k").pending.expect("it waits for the disk");
    assert_eq!(inline_flush.finish(), InlineFlushOutcome::Failed);
    assert_eq!(pending.try_take(), None);
    world.handles.disk.heal();
    assert_eq!(world.bucket.flushing().flush_step(), Progress::Worked);
    assert_eq!(pending.try_take(), Some(SyncOutcome::Committed));
}
