//! A bucket that moves to another store while it is saved to, read and rolled back: power losses, failing calls and a full
//! disk at each step, beside a model; what readers see; damage; cancelling.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::sim::{Effect, Fault, On, SimClock, SimDisk, SimHandles, SplitMix64};
use base::env::{Disk, Env, OpenMode};
use base::{DocKey, ItemKind, Seqno, VbId, VbState, Version};
use kvstore::{
    Compaction, CouchConfig, Failure, FilesConfig, HistoryRetention, Journaled, JournaledConfig, KvStore,
    LONGEST_WAIT, LogConfig, Movable, MoveRefused, MoveStage, MoveStep, SaveBatch, Snapshot, StorageBackend,
    Values, VbStateDoc, is_moving, open_to_read,
};
use store_suite::{tuned, version};

const DIR: &str = "/data/buckets/b";
const VBS: u16 = 4;
const COUCHSTORE: StorageBackend = StorageBackend::Couchstore;
const MAGMA: StorageBackend = StorageBackend::LogStructured;
const BOTH: [StorageBackend; 2] = [COUCHSTORE, MAGMA];

fn other(backend: StorageBackend) -> StorageBackend {
    if backend == COUCHSTORE { MAGMA } else { COUCHSTORE }
}

fn config(backend: StorageBackend, history: HistoryRetention) -> JournaledConfig {
    let store = logstore::Config {
        shards: 2,
        step_bytes: 500,
        small_run_bytes: 600,
        small_segment_bytes: 2 << 10,
        small_segments: 3,
        manifest_bytes: 4 << 10,
        ..logstore::Config::default()
    };
    let files = match backend {
        StorageBackend::Couchstore => FilesConfig::Couch(CouchConfig::default()),
        StorageBackend::LogStructured => FilesConfig::Log(LogConfig { store, history }),
        StorageBackend::RocksDb => FilesConfig::Rocks(kvstore::RocksConfig::default()),
    };
    JournaledConfig { files, journal_bytes: 256 << 10, file_after: Duration::from_secs(1) }
}

fn try_open(env: Env, backend: StorageBackend) -> Result<Movable, Failure> {
    let open = |env, backend| {
        let store = Journaled::open(env, Path::new(DIR), config(backend, HistoryRetention::default()))?;
        Ok(Arc::new(store) as Arc<dyn KvStore>)
    };
    Movable::open(env, Path::new(DIR), VBS, backend, Box::new(open))
}

fn open(env: Env, backend: StorageBackend) -> Movable {
    try_open(env, backend).expect("the bucket opens")
}

/// What a vBucket holds: seqno, value and whether it is a tombstone, by key.
type Content = BTreeMap<Vec<u8>, (u64, Vec<u8>, bool)>;

fn read(snapshot: &dyn Snapshot) -> Content {
    let mut all = Content::new();
    let visit = &mut |v: Version| {
        let entry = (v.meta().by_seqno.0, v.value().to_vec(), v.is_deleted());
        all.insert(v.stored_key().to_vec(), entry);
        ControlFlow::Continue(())
    };
    snapshot.scan_all(Seqno(0), Values::Read, visit).expect("a scan");
    all
}

fn content(store: &dyn KvStore, vb: u16) -> Content {
    let snapshot = store.snapshot(VbId(vb)).expect("a snapshot");
    snapshot.map_or_else(Content::new, |snapshot| read(&*snapshot))
}

fn state(high: u64) -> VbStateDoc {
    VbStateDoc {
        state: VbState::Active,
        max_cas: high,
        snap_start: high,
        snap_end: high,
        ..VbStateDoc::default()
    }
}

/// A bucket, and what was acknowledged.
struct World {
    store: Movable,
    clock: Arc<SimClock>,
    rng: SplitMix64,
    model: BTreeMap<u16, Content>,
    high: BTreeMap<u16, u64>,
    /// What was saved without an answer: it is there or not.
    doubtful: BTreeMap<u16, Content>,
}

impl World {
    fn new((env, clock): (Env, Arc<SimClock>), backend: StorageBackend, seed: u64) -> World {
        let (rng, model, high) = (SplitMix64::new(seed), BTreeMap::new(), BTreeMap::new());
        World { store: open(env, backend), clock, rng, model, high, doubtful: BTreeMap::new() }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    /// Saves some documents of a vBucket; what failed is saved again first, as the flusher does.
    fn save(&mut self, vb: u16, count: u64) -> bool {
        let mut high = self.high.get(&vb).copied().unwrap_or(0);
        let mut after = self.model.entry(vb).or_default().clone();
        let mut items: BTreeMap<Vec<u8>, Version> = BTreeMap::new();
        for _ in 0..count {
            high += 1;
            let key = format!("key{}", self.below(40));
            let value = vec![high as u8; 20 + self.below(60) as usize];
            let item = match self.below(6) {
                0 => tuned(0, &key, high, b"", |meta| {
                    meta.kind = ItemKind::Deletion;
                    meta.expiry = 1_700_000_000;
                }),
                _ => version(0, &key, high, &value),
            };
            let entry = (high, item.value().to_vec(), item.is_deleted());
            after.insert(item.stored_key().to_vec(), entry);
            items.insert(item.stored_key().to_vec(), item);
        }
        let items: Vec<Version> = items.into_values().collect();
        let saved = self.store.save(VbId(vb), SaveBatch { items: &items, state: &state(high) });
        if saved.is_ok() {
            self.model.insert(vb, after);
            self.high.insert(vb, high);
            self.doubtful.remove(&vb);
            return true;
        }
        self.doubtful.insert(vb, after);
        false
    }

    /// What was acknowledged is there, and nothing else; what is in doubt is decided.
    fn check(&mut self, what: &str) {
        for vb in 0..VBS {
            let found = content(&self.store, vb);
            let expected = self.model.get(&vb).cloned().unwrap_or_default();
            if let Some(doubtful) = self.doubtful.remove(&vb).filter(|doubtful| *doubtful == found) {
                let high = doubtful.values().map(|(seqno, ..)| *seqno).max().unwrap_or(0);
                self.model.insert(vb, doubtful);
                self.high.insert(vb, high);
                continue;
            }
            assert!(found == expected, "{what}: vBucket {vb}: {found:?} is not {expected:?}");
            for (key, (seqno, value, _)) in &expected {
                let key = DocKey::parse(key).expect("a stored key");
                let got = self.store.get(VbId(vb), key).expect("a get").expect("it is there");
                assert_eq!((got.meta().by_seqno.0, got.value()), (*seqno, &value[..]), "{what}");
            }
        }
    }

    /// Something that happens to a bucket; false if the disk refused.
    fn something(&mut self) -> bool {
        let vb = self.below(u64::from(VBS) - 1) as u16;
        match self.below(12) {
            0..=5 => {
                let count = 1 + self.below(8);
                self.save(vb, count)
            }
            6 | 7 => self.store.background_step().is_ok(),
            8 => self.store.counts(VbId(vb)).is_ok(),
            9 => match self.store.compact(VbId(vb), &Compaction::default()) {
                Ok(_) | Err(Failure::CompactionRuns { .. } | Failure::NoVbucket { .. }) => true,
                Err(_) => false,
            },
            10 if self.below(8) == 0 => {
                let deleted = self.store.delete_vbucket(VbId(vb)).is_ok();
                if deleted {
                    self.model.remove(&vb);
                    self.high.remove(&vb);
                    self.doubtful.remove(&vb);
                } else {
                    self.doubtful.insert(vb, Content::new());
                }
                deleted
            }
            _ => true,
        }
    }

    /// Moves while other things happen, until it is over or the disk refuses; whether it is over.
    fn move_beside(&mut self, is_tried_again: bool) -> bool {
        for _ in 0..20_000 {
            let going_on = match self.store.step() {
                Ok(MoveStep::Moved(_) | MoveStep::Idle) => return true,
                Ok(MoveStep::Waiting) => {
                    self.clock.advance(Duration::from_secs(1));
                    true
                }
                Ok(MoveStep::Worked) => true,
                Err(_) => is_tried_again,
            };
            if !going_on || (!self.something() && !is_tried_again) {
                return false;
            }
        }
        panic!("it does not end: {:?}", self.store.progress());
    }
}

fn filled(handles: &SimHandles, backend: StorageBackend, seed: u64) -> World {
    filled_in((handles.env(), handles.clock.clone()), backend, seed)
}

fn filled_in(of: (Env, Arc<SimClock>), backend: StorageBackend, seed: u64) -> World {
    let mut world = World::new(of, backend, seed);
    for vb in 0..VBS - 1 {
        for _ in 0..6 {
            assert!(world.save(vb, 12));
        }
        world.store.counts(VbId(vb)).expect("it is filed");
    }
    world
}

fn over(disk: &SimDisk, seed: u64) -> Env {
    SimHandles::new(seed).with_disk(disk.clone()).env()
}

#[test]
fn what_is_saved_meanwhile_is_there() {
    for seed in 0..20 {
        for backend in BOTH {
            let (env, handles) = Env::sim(seed);
            let mut world = filled(&handles, backend, seed);
            world.store.begin(other(backend)).expect("it begins");
            assert!(is_moving(&*env.disk, Path::new(DIR)).expect("it is on record"));
            assert!(world.move_beside(false), "no fault is planned");
            assert_eq!(world.store.backend(), other(backend));
            assert!(!is_moving(&*env.disk, Path::new(DIR)).expect("it is over"));
            world.check("after the move");
            let progress = world.store.progress().expect("it is not noted");
            assert_eq!((progress.stage, progress.vbuckets), (MoveStage::Done, u64::from(VBS)));
            world.store.noted().expect("it is forgotten");
            for _ in 0..50 {
                assert!(world.something());
            }
            world.check("in the new store");
            let closes = seed % 2 == 0;
            if closes {
                world.store.close().expect("everything is filed");
            }
            world.store = open(env.clone(), other(backend));
            world.check("after a start");
            let left = env.disk.read_dir(Path::new(DIR)).expect("a list");
            assert!(!left.iter().any(|name| name.starts_with("migration")), "{left:?}");
            // And back.
            world.store.begin(backend).expect("it begins");
            assert!(world.move_beside(false));
            world.check("back again");
        }
    }
}

/// The power goes at each change of the disk in turn: whatever was acknowledged is there, and the move goes on.
#[test]
fn a_power_loss_at_any_step_loses_nothing() {
    for backend in BOTH {
        let (mut at, mut goes_on, mut was_over) = (1, 0, 0);
        loop {
            let handles = SimHandles::new(at);
            let mut world = filled(&handles, backend, at % 7);
            handles.disk.plan(Fault::power_off_at(at));
            let is_over = world.store.begin(other(backend)).is_ok() && world.move_beside(false);
            if !handles.disk.is_off() {
                assert!(is_over, "no fault was met");
                break;
            }
            let env = over(&handles.disk.crash(at), at);
            world.store = open(env.clone(), backend);
            world.check(&format!("{backend:?}, change {at}"));
            match world.store.progress() {
                Some(progress) if progress.stage == MoveStage::Done => was_over += 1,
                Some(_) => goes_on += 1,
                None => {
                    assert_eq!(world.store.backend(), backend);
                    world.store.begin(other(backend)).expect("it begins anew");
                }
            }
            if world.store.backend() == backend {
                if world.store.progress().is_some_and(|progress| progress.stage == MoveStage::Done) {
                    world.store.begin(other(backend)).expect("one that never began is begun again");
                }
                assert!(world.move_beside(false), "no fault is planned");
            }
            world.check(&format!("{backend:?}, change {at}, after the move"));
            assert_eq!(world.store.backend(), other(backend));
            world.store = open(env, backend);
            world.check(&format!("{backend:?}, change {at}, started again"));
            assert_eq!(world.store.backend(), other(backend), "the record says it");
            // each of the first, and fewer of those that are much alike
            at += 1 + at / 60;
        }
        assert!(goes_on > 30 && was_over > 0, "{at}: {goes_on} went on, {was_over} were over");
    }
}

/// Without room for it no copy of a vBucket begins, and what is saved meanwhile is saved.
#[test]
fn a_copy_waits_for_room() {
    for backend in BOTH {
        let (_, handles) = Env::sim(3);
        let mut world = filled(&handles, backend, 3);
        handles.disk.set_free(64 << 20);
        world.store.begin(other(backend)).expect("it begins");
        let mut refused = 0;
        for _ in 0..20 {
            match world.store.step() {
                Err(failure) if failure.is_disk_full() => refused += 1,
                Ok(MoveStep::Worked) if refused == 0 => {}
                step => panic!("{step:?}"),
            }
            assert!(world.save(0, 2));
        }
        let progress = world.store.progress().expect("it is under way");
        assert_eq!((progress.items, progress.vbuckets), (0, 1), "what is stored nowhere needs no room");
        assert!(progress.failure.is_some_and(|why| why.contains("the move goes on when there are")));
        world.check("without room");
        handles.disk.set_free(65 << 20);
        assert!(world.move_beside(false));
        world.check("with room");
    }
}

/// Calls fail once, or for a while, or there is no room: it is tried again until it is over, and no save is lost.
#[test]
fn calls_that_fail_are_tried_again() {
    for backend in BOTH {
        for (effect, on) in
            [(Effect::IO_ERROR, On::Any), (Effect::IO_ERROR, On::Changes), (Effect::DISK_FULL, On::Changes)]
        {
            let mut at = 1;
            loop {
                let handles = SimHandles::new(at);
                let mut world = filled(&handles, backend, at % 5);
                let is_long = at % 3 == 0;
                handles.disk.plan(Fault { on, nth: at, for_ever: is_long, effect });
                let begun = world.store.begin(other(backend));
                if begun.is_err() {
                    handles.disk.heal();
                    world.check("it did not begin");
                    world.store.begin(other(backend)).expect("the disk is well again");
                }
                for _ in 0..40 {
                    if !is_long {
                        break;
                    }
                    let _ = world.store.step();
                    let _ = world.something();
                }
                let mut was_struck = handles.disk.was_struck();
                if is_long {
                    handles.disk.heal();
                }
                assert!(world.move_beside(true));
                was_struck |= handles.disk.was_struck();
                handles.disk.heal();
                // What is refused since a failure is saved again.
                for vb in world.doubtful.keys().copied().collect::<Vec<_>>() {
                    while !world.save(vb, 1) {}
                }
                world.check(&format!("{backend:?}, {effect:?} at {on:?} {at}"));
                world.store = open(handles.env(), backend);
                world.check(&format!("{backend:?}, {effect:?} at {on:?} {at}, started again"));
                assert_eq!(world.store.backend(), other(backend));
                if !was_struck {
                    break;
                }
                at += 1 + at / 12;
            }
        }
    }
}

#[test]
fn a_cancelled_move_goes_back() {
    for seed in 0..30 {
        let backend = BOTH[seed as usize % 2];
        let handles = SimHandles::new(seed);
        let mut world = filled(&handles, backend, seed);
        world.store.begin(other(backend)).expect("it begins");
        for _ in 0..seed * 3 {
            world.store.step().expect("no fault is planned");
            assert!(world.something());
            if world.store.progress().is_some_and(|progress| progress.stage != MoveStage::Copying) {
                break;
            }
        }
        match world.store.cancel() {
            Ok(()) => {}
            Err(MoveRefused::TooLate) => continue,
            Err(refused) => panic!("{refused}"),
        }
        let mut env = handles.env();
        if seed % 3 == 0 {
            let progress = world.store.progress().expect("it is under way");
            assert_eq!(progress.stage, MoveStage::Cancelling);
            env = over(&handles.disk.crash(seed), seed);
            world.store = open(env.clone(), backend);
            world.check("after a power loss");
        }
        assert!(world.move_beside(false));
        assert_eq!(world.store.backend(), backend);
        world.check("it is back");
        world.store.noted().expect("it is forgotten");
        assert!(matches!(world.store.cancel(), Err(MoveRefused::NotMoving)));
        world.store = open(env.clone(), backend);
        world.check("after a start");
        let left = env.disk.read_dir(Path::new(DIR)).expect("a list");
        assert!(!left.iter().any(|name| name.starts_with("migration")), "{left:?}");
    }
}

#[test]
fn what_was_read_before_is_read_to_its_end() {
    for backend in BOTH {
        let handles = SimHandles::new(5);
        let mut world = filled(&handles, backend, 5);
        let snapshots: Vec<_> =
            (0..VBS - 1).map(|vb| world.store.snapshot(VbId(vb)).expect("read").expect("there")).collect();
        let before: Vec<Content> = (0..VBS - 1).map(|vb| content(&world.store, vb)).collect();
        world.store.begin(other(backend)).expect("it begins");
        let mut steps = 0;
        while world.store.step().expect("a step") != MoveStep::Waiting {
            assert!(world.save(steps % (VBS - 1), 1));
            steps += 1;
        }
        let progress = world.store.progress().expect("it is under way");
        assert_eq!(progress.stage, MoveStage::Ending);
        assert_eq!(progress.waits_for, (0..VBS - 1).map(VbId).collect::<Vec<_>>(), "the snapshots are held");
        assert!(matches!(world.store.begin(backend), Err(MoveRefused::TooLate)));
        assert!(snapshots.iter().zip(&before).all(|(snapshot, before)| read(&**snapshot) == *before));
        world.check("read from the other store");
        drop(snapshots);
        assert_eq!(world.store.step().expect("a step"), MoveStep::Worked);
        assert!(world.store.progress().is_some_and(|progress| progress.waits_for.is_empty()));
        assert!(world.move_beside(false));
        world.check("the other store alone");
    }
}

#[test]
fn a_reader_that_does_not_end_is_ended() {
    for backend in BOTH {
        let handles = SimHandles::new(5);
        let mut world = filled(&handles, backend, 5);
        let (held, before) =
            (world.store.snapshot(VbId(1)).expect("read").expect("there"), content(&world.store, 1));
        world.store.begin(other(backend)).expect("it begins");
        while world.store.step().expect("a step") != MoveStep::Waiting {}
        world.clock.advance(LONGEST_WAIT - Duration::from_secs(1));
        // A reader that reads when its time is over is not cut off within the read.
        let mut is_first = true;
        let visit = &mut |_: Version| {
            if std::mem::take(&mut is_first) {
                let progress = world.store.progress().expect("it waits");
                assert_eq!(progress.waits_for, [VbId(1)]);
                world.clock.advance(Duration::from_secs(2));
                std::thread::scope(|scope| {
                    let step = scope.spawn(|| world.store.step().expect("a step")).join();
                    assert_eq!(step.expect("no panic"), MoveStep::Waiting);
                });
                let key = before.keys().next().and_then(|key| DocKey::parse(key)).expect("a stored key");
                held.get(key).expect("a read within a read");
            }
            ControlFlow::Continue(())
        };
        held.scan_all(Seqno(0), Values::Read, visit).expect("it is read to its end");
        assert!(!held.has_ended());
        assert_eq!(world.store.step().expect("a step"), MoveStep::Worked);
        let ended = held.scan_all(Seqno(0), Values::Read, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(&ended, Err(Failure::SnapshotEnded { vb }) if *vb == VbId(1)), "{ended:?}");
        assert!(held.has_ended() && !ended.expect_err("it ended").is_damage());
        assert_eq!(held.high_seqno().0, world.high[&1], "that is known");
        assert!(world.move_beside(false));
        world.check("the other store alone");
    }
}

#[test]
fn a_damaged_vbucket_stays_and_the_others_move() {
    let handles = SimHandles::new(3);
    let mut world = filled(&handles, COUCHSTORE, 3);
    world.store.close().expect("everything is filed");
    let file = Path::new(DIR).join("1.couch.1");
    let len = handles.disk.open(&file, OpenMode::Read).expect("there").len().expect("a length");
    for offset in (0..len).step_by(97) {
        handles.disk.rot(&file, offset, 0x40).expect("it is damaged");
    }
    world.store = open(handles.env(), COUCHSTORE);
    world.store.begin(MAGMA).expect("it begins");
    while world.store.step().expect("a step") != MoveStep::Waiting {}
    let progress = world.store.progress().expect("it is not over");
    assert_eq!((progress.vbuckets, progress.of_vbuckets), (3, 4));
    assert_eq!(progress.left.iter().map(|(vb, _)| vb.0).collect::<Vec<_>>(), [1]);
    world.model.remove(&1);
    assert!(world.store.snapshot(VbId(1)).is_err());
    assert!(world.save(0, 3) && world.save(2, 3));
    let files = |name: &str| handles.disk.open(&Path::new(DIR).join(name), OpenMode::Read).is_ok();
    assert!(files("1.couch.1") && !files("0.couch.1"));
    // Once it is deleted the move ends.
    world.store.delete_vbucket(VbId(1)).expect("it goes");
    handles.clock.advance(Duration::from_secs(31));
    assert_eq!(world.store.step().expect("a step"), MoveStep::Waiting);
    assert!(world.move_beside(false));
    world.high.remove(&1);
    world.check("after the move");
}

#[test]
fn what_may_not_be_moved_is_refused() {
    let (env, handles) = Env::sim(1);
    let world = filled(&handles, COUCHSTORE, 1);
    assert!(matches!(world.store.begin(COUCHSTORE), Err(MoveRefused::IsThere)));
    world.store.begin(MAGMA).expect("it begins");
    assert!(matches!(world.store.begin(MAGMA), Err(MoveRefused::Moving)));
    let refused = open_to_read(&env, Path::new(DIR)).err().expect("it is in two stores").to_string();
    assert!(refused.contains("moved to another store"), "{refused}");
    let kept = world.store.keep_history(HistoryRetention { seconds: 10, bytes: 0 });
    assert!(kept.is_err_and(|failure| failure.to_string().contains("being moved")));
    world.store.keep_history(HistoryRetention::default()).expect("none is kept");
    // Of vBuckets that the bucket does not have.
    let world = filled(&SimHandles::new(2), COUCHSTORE, 2);
    world.store.save_state(VbId(9), &state(0)).expect("a save");
    assert!(matches!(world.store.begin(MAGMA), Err(MoveRefused::Unknown(VbId(9)))));
}

/// The record of a move is lost, at any moment of the move: no vBucket is thrown away with it.
#[test]
fn without_the_record_of_a_move_no_vbucket_is_thrown_away() {
    let (dir, folder) = (Path::new(DIR), Path::new(DIR).join("migration"));
    for backend in BOTH {
        let (mut refused, mut began) = (0, 0);
        for steps in 0..80 {
            let handles = SimHandles::new(steps);
            let env = handles.env();
            let mut world = filled(&handles, backend, 3);
            world.store.begin(other(backend)).expect("it begins");
            for _ in 0..steps {
                world.store.step().expect("no fault is planned");
            }
            let progress = world.store.progress().expect("it is not noted");
            if progress.stage != MoveStage::Copying {
                break;
            }
            let env = if steps % 2 == 0 {
                over(&handles.disk.crash(steps), steps)
            } else {
                world.store.close().expect("everything is filed");
                env
            };
            let records = ["migration.json", "migration.json.copy"].map(|name| dir.join(name));
            let kept = records.clone().map(|path| read_all(&env, &path));
            records.iter().for_each(|path| env.disk.remove_file(path).expect("it was there"));
            let opened = try_open(env.clone(), backend);
            // The vBucket of which nothing is stored moves first, and leaves nothing.
            if progress.vbuckets <= 1 && opened.is_ok() {
                began += 1;
                continue;
            }
            let why = opened.err().expect("vBuckets have moved").to_string();
            assert!(why.contains("the record of the move to that store is missing"), "{why}");
            assert!(env.disk.read_dir(&folder).is_ok_and(|names| !names.is_empty()), "it stays");
            assert!(is_moving(&*env.disk, dir).expect("it is listed"), "tools do not read half of it");
            refused += 1;
            // Put back, the record has the move go on.
            for (path, bytes) in records.iter().zip(kept) {
                let file = env.disk.open(path, OpenMode::Create).expect("made");
                file.write_at(&bytes, 0).expect("written");
            }
            world.store = open(env, backend);
            world.check("with the record");
        }
        assert!(refused > 10 && began > 0, "{backend:?}: {refused} refused, {began} began again");
    }
}

fn read_all(env: &Env, path: &Path) -> Vec<u8> {
    let file = env.disk.open(path, OpenMode::Read).expect("there");
    let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("it is small")];
    file.read_at(&mut bytes, 0).expect("read");
    bytes
}

#[test]
fn an_encrypted_bucket_is_encrypted_in_both() {
    for backend in BOTH {
        let (plain, handles) = Env::sim(4);
        let env = EncryptedDisk::env(&plain, DataKeys::ephemeral(&plain));
        let mut world = filled_in((env, handles.clock.clone()), backend, 4);
        let item = version(0, "secret", 1000, b"what nobody may read");
        let batch = SaveBatch { items: std::slice::from_ref(&item), state: &state(1000) };
        world.store.save(VbId(3), batch).expect("a save");
        world.store.begin(other(backend)).expect("it begins");
        let mut is_over = false;
        while !is_over {
            is_over = matches!(world.store.step().expect("a step"), MoveStep::Moved(_));
            assert!(world.something());
            for (path, bytes) in handles.disk.contents() {
                let is_clear = bytes.windows(11).any(|window| window == b"nobody may ");
                assert!(!is_clear, "{}", path.display());
            }
        }
        let found = world.store.get(VbId(3), DocKey::new(b"secret")).expect("a get").expect("it is there");
        assert_eq!(found.value(), b"what nobody may read");
    }
}

/// Who rolls back to a commit of the copy's beginning would find the older versions of later documents missing.
#[test]
fn no_part_of_a_copy_is_gone_back_to() {
    let (env, _) = Env::sim(6);
    let store = open(env, COUCHSTORE);
    let value = vec![7; 100 << 10];
    for seqno in 1..=60 {
        let items = [version(0, &format!("key{seqno}"), seqno, &value)];
        let state = VbStateDoc { state: VbState::Replica, ..state(seqno) };
        store.save(VbId(0), SaveBatch { items: &items, state: &state }).expect("a save");
    }
    store.begin(MAGMA).expect("it begins");
    while !matches!(store.step().expect("a step"), MoveStep::Moved(_)) {}
    let rolled_back = store.rollback(VbId(0), Seqno(40)).expect("a rollback");
    if let Some(stored) = rolled_back.stored {
        assert_eq!(stored.unfinished_behind(Seqno(40)), Some(Seqno(0)), "its reader goes back to 0");
    }
}
