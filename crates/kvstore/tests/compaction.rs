//! Compaction and rollback with saves between their steps: whatever call on the disk fails, and whenever the power
//! goes, either the old or the new file is there, with everything that was acknowledged.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use base::env::sim::{Call, Effect, Fault, On, SimDisk, SimHandles, Survival};
use base::env::{Disk, Env};
use base::{CollectionId, ItemKind, Seqno, VbId, Version};
use kvstore::{
    Compaction, CompactionSteps, Couch, CouchConfig, Failure, KvStore, Memory, SaveBatch, Values, VbStateDoc,
};
use store_suite::{tuned, version};

const DIR: &str = "/bucket";
const VB: VbId = VbId(5);
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn env(disk: &SimDisk) -> Env {
    SimHandles::new(0).with_disk(disk.clone()).env()
}

fn open(disk: &SimDisk) -> Result<Couch, Failure> {
    let compaction = CompactionSteps { step_bytes: 600, last_changes: 4 };
    Couch::open(env(disk), Path::new(DIR), CouchConfig { compaction, ..CouchConfig::default() })
}

/// A disk with the bucket's folder on it.
fn fresh() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new(DIR)).expect("no fault is planned");
    disk.sync_dir(Path::new("/")).expect("no fault is planned");
    disk
}

/// Everything a store tells of the vBucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    documents: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    high_seqno: u64,
    purge_seqno: u64,
    max_cas: u64,
    counts: (u64, u64),
    /// Documents and highest seqno of each collection.
    collections: BTreeMap<u32, (u64, u64)>,
}

fn content(store: &dyn KvStore) -> Result<Content, Failure> {
    let mut content = Content::default();
    store.scan(VB, Seqno(0), Values::Read, &mut |version| {
        let entry = (version.meta().by_seqno.0, version.value().to_vec());
        content.documents.insert(version.stored_key().to_vec(), entry);
        ControlFlow::Continue(())
    })?;
    for (vb, stored) in store.states()? {
        assert_eq!(vb, VB);
        let stored = stored?;
        content.high_seqno = stored.high_seqno.0;
        content.purge_seqno = stored.purge_seqno.0;
        content.max_cas = stored.state.max_cas;
        content.counts = (stored.counts.documents, stored.counts.tombstones);
        content.collections =
            stored.collections.iter().map(|(id, s)| (id.0, (s.item_count, s.high_seqno.0))).collect();
    }
    Ok(content)
}

/// The store under test, beside one in memory that says what is right.
struct Pair<'d> {
    disk: &'d SimDisk,
    couch: Couch,
    memory: Memory,
    seqno: Cell<u64>,
    /// How often an operation is tried.
    tries: u32,
    /// After how many changes to the disk what was acknowledged.
    acknowledged: RefCell<Vec<(u64, Content)>>,
    /// What may be there instead if the last operation was not acknowledged.
    instead: RefCell<Option<Content>>,
}

/// An operation failed for good.
#[derive(Debug)]
struct GaveUp;

impl Pair<'_> {
    fn note(&self) {
        let now = content(&self.memory).expect("memory does not fail");
        self.acknowledged.borrow_mut().push((self.disk.changes(), now));
    }

    /// Does something with both; `couch` first.
    fn both<T>(&self, what: impl Fn(&dyn KvStore) -> Result<T, Failure>) -> Result<T, GaveUp> {
        let done = (0..self.tries).find_map(|_| what(&self.couch).ok());
        let right = what(&self.memory).expect("memory does not fail");
        match done {
            Some(_) => {
                self.note();
                Ok(right)
            }
            None => {
                *self.instead.borrow_mut() = Some(content(&self.memory).expect("memory does not fail"));
                Err(GaveUp)
            }
        }
    }

    fn save(&self, documents: u64) -> Result<(), GaveUp> {
        let mut items: Vec<Version> = (0..documents)
            .map(|i| {
                self.seqno.set(self.seqno.get() + 1);
                let seqno = self.seqno.get();
                let key = format!("k{:02}", (seqno * 7 + i) % 40);
                let collection = if i % 4 == 3 { 9 } else { 0 };
                let is_deleted = seqno.is_multiple_of(3);
                let value = vec![seqno as u8; if is_deleted { 0 } else { seqno as usize % 60 }];
                tuned(collection, &key, seqno, &value, |meta| {
                    meta.expiry = if is_deleted { 100 } else { 0 };
                    meta.kind = if is_deleted { ItemKind::Deletion } else { ItemKind::Mutation };
                })
            })
            .collect();
        items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
        items.dedup_by(|a, b| a.stored_key() == b.stored_key());
        let state = VbStateDoc { max_cas: self.seqno.get(), ..VbStateDoc::default() };
        self.both(|store| store.save(VB, SaveBatch { items: &items, state: &state }).map(|_| ()))
    }

    fn rollback(&self, to: u64) -> Result<(), GaveUp> {
        let seqno = self.both(|store| Ok(store.rollback(VB, Seqno(to))?.seqno))?;
        self.seqno.set(seqno.0);
        Ok(())
    }

    /// Compacts; between the first steps something is saved, `saves` times.
    fn compact(&self, saves: u32) -> Result<(), GaveUp> {
        let left = Cell::new(saves);
        let gave_up = Cell::new(false);
        let observe = |_| {
            if left.get() > 0 && !gave_up.get() {
                left.set(left.get() - 1);
                gave_up.set(self.save(9).is_err());
            }
            if gave_up.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let limit = Seqno(self.seqno.get() / 2);
        let request = Compaction {
            purge_before_s: Some(200),
            is_dropped: &|collection, seqno| collection == CollectionId(9) && seqno <= limit,
            ..Compaction::default()
        };
        // memory judges what it holds when it begins, so the other one runs while it does
        let begun = Cell::new(false);
        let done = Cell::new(false);
        let compacted = self.memory.compact(
            VB,
            &Compaction {
                observe: &|_| {
                    if !begun.replace(true) {
                        let watched = Compaction { observe: &observe, ..request };
                        let try_once = || !gave_up.get() && self.couch.compact(VB, &watched).is_ok();
                        done.set((0..self.tries).any(|_| try_once()));
                    }
                    if gave_up.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                },
                ..request
            },
        );
        match (gave_up.get(), done.get()) {
            (true, _) => Err(GaveUp),
            (false, true) => {
                compacted.expect("memory does not fail");
                self.note();
                Ok(())
            }
            (false, false) => {
                *self.instead.borrow_mut() = Some(content(&self.memory).expect("memory does not fail"));
                Err(GaveUp)
            }
        }
    }

    fn everything(&self) -> Result<(), GaveUp> {
        self.save(20)?;
        self.save(12)?;
        self.compact(4)?;
        self.save(5)?;
        let before = self.seqno.get();
        self.save(6)?;
        self.rollback(before + 3)?;
        self.save(4)?;
        self.compact(0)?;
        self.save(3)?;
        self.rollback(2)?;
        self.save(8)?;
        self.compact(1)?;
        self.both(|store| store.delete_vbucket(VB))?;
        self.seqno.set(0);
        self.save(3)
    }
}

/// What was acknowledged and after how many changes, and what may be there instead.
type Outcome = (Vec<(u64, Content)>, Option<Content>);

fn run(disk: &SimDisk, tries: u32) -> Option<Outcome> {
    let pair = Pair {
        disk,
        couch: open(disk).ok()?,
        memory: Memory::default(),
        seqno: Cell::new(0),
        tries,
        acknowledged: RefCell::new(vec![(0, Content::default())]),
        instead: RefCell::new(None),
    };
    let done = pair.everything();
    assert_eq!(done.is_err(), pair.instead.borrow().is_some());
    if done.is_ok() {
        disk.heal();
        let right = content(&pair.memory).expect("memory does not fail");
        assert_eq!(content(&pair.couch).expect("the disk is sound"), right);
    }
    Some((pair.acknowledged.into_inner(), pair.instead.into_inner()))
}

/// What a restart finds; nothing but one file may be left of the vBucket, at most.
/// The files of vBuckets, unfinished ones included.
fn files(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let is_one = |path: &Path| path.to_string_lossy().contains(".couch.");
    disk.contents().into_iter().filter(|(path, _)| is_one(path)).collect()
}

fn found(disk: &SimDisk) -> Content {
    let store = open(disk).expect("the bucket opens");
    let found = content(&store).expect("a sound vBucket");
    let names = disk.read_dir(Path::new(DIR)).expect("a list");
    assert!(files(disk).len() <= 1 && names.iter().all(|name| !name.ends_with(".new")), "{names:?}");
    for (path, _) in files(disk) {
        let mut faults = Faults::default();
        couchstore::check::check(disk, &path, &mut faults);
        assert_eq!(faults.0, [], "{}", path.display());
    }
    found
}

#[derive(Default)]
struct Faults(Vec<couchstore::check::Fault>);

impl couchstore::check::Watcher for Faults {
    fn fault(&mut self, fault: couchstore::check::Fault) {
        self.0.push(fault);
    }

    fn step(&mut self, _: u64) {}
}

fn survivals(n: u64) -> impl Iterator<Item = Survival> {
    [Survival::Synced, Survival::Everything]
        .into_iter()
        .chain((0..4).map(move |seed| Survival::Seeded(n * 31 + seed)))
}

#[test]
fn the_power_goes_at_any_moment() {
    let disk = fresh();
    disk.record();
    let (acknowledged, _) = run(&disk, 1).expect("no fault is planned");
    let recording = disk.recording().expect("it was started");
    let mut replay = recording.replay();
    let mut states = 0;
    loop {
        let at = replay.done() as u64;
        // the last one that was acknowledged then, or the one that was under way
        let next = acknowledged.iter().position(|(when, _)| *when > at).unwrap_or(acknowledged.len());
        let allowed = &acknowledged[next - 1..acknowledged.len().min(next + 1)];
        for survival in survivals(at) {
            let found = found(&replay.image(survival));
            let is_allowed = allowed.iter().any(|(_, content)| *content == found);
            assert!(is_allowed, "after {at} changes, {survival:?}: {found:?}, allowed {allowed:?}");
            states += 1;
        }
        if !replay.step() {
            break;
        }
    }
    assert!(states > 550, "{states} states");
}

#[test]
fn one_failure_is_healed_by_trying_again() {
    let kinds: [(&str, On, Effect); 5] = [
        ("any call", On::Any, Effect::Errno(EIO)),
        ("a sync", On::Kind(Call::Sync), Effect::Errno(EIO)),
        ("a folder sync", On::Kind(Call::SyncDir), Effect::Errno(EIO)),
        ("a removal", On::Kind(Call::Remove), Effect::Errno(EIO)),
        ("a short write", On::Kind(Call::Write), Effect::Short { bytes: 300, errno: ENOSPC }),
    ];
    for (what, on, effect) in kinds {
        for n in 1.. {
            let disk = fresh();
            disk.plan(Fault::once(on, n, effect));
            let Some((acknowledged, instead)) = run(&disk, 2) else { continue };
            assert!(instead.is_none(), "{what} {n} is not healed");
            let was_struck = disk.was_struck();
            disk.heal();
            let right = &acknowledged.last().expect("at least nothing").1;
            for survival in survivals(n) {
                assert_eq!(found(&disk.image(survival)), *right, "{what} {n}, {survival:?}");
            }
            if !was_struck {
                assert!(n > 5, "{what}: {n}");
                break;
            }
        }
    }
}

#[test]
fn a_disk_that_stays_broken_costs_nothing_that_was_acknowledged() {
    for on in [On::Any, On::Changes, On::Kind(Call::Remove), On::Kind(Call::SyncDir), On::Kind(Call::Rename)]
    {
        for n in 1.. {
            let disk = fresh();
            disk.plan(Fault::for_ever(on, n, Effect::Errno(ENOSPC)));
            let Some((acknowledged, instead)) = run(&disk, 2) else { continue };
            let was_struck = disk.was_struck();
            disk.heal();
            let right = &acknowledged.last().expect("at least nothing").1;
            for survival in survivals(n) {
                let found = found(&disk.image(survival));
                let is_allowed = found == *right || Some(&found) == instead.as_ref();
                assert!(is_allowed, "{on:?} {n}, {survival:?}: {found:?}, right {right:?} or {instead:?}");
            }
            if !was_struck {
                break;
            }
        }
    }
}

#[test]
fn a_failed_takeover_leaves_the_old_file() {
    let disk = fresh();
    let couch = open(&disk).expect("the bucket opens");
    let items = [version(0, "a", 1, b"1"), version(0, "b", 2, b"2")];
    let state = VbStateDoc::default();
    couch.save(VB, SaveBatch { items: &items[..1], state: &state }).expect("a save");
    couch.save(VB, SaveBatch { items: &items[1..], state: &state }).expect("a save");
    let before = content(&couch).expect("sound");
    let refused = || Failure::NoVbucket { vb: VB };
    let seen = Cell::new(None);
    let result = couch.compact_with(VB, &Compaction::default(), &|at| {
        seen.set(Some(at));
        Err(refused())
    });
    assert!(result.is_err());
    assert_eq!(seen.get().map(|at| at.revision), Some(2));
    let rolled_back = couch.rollback_with(VB, Seqno(1), &|at| {
        seen.set(at);
        Err(refused())
    });
    assert!(rolled_back.is_err());
    assert_eq!(seen.get().map(|at| at.revision), Some(1));
    assert!(couch.rollback_with(VB, Seqno(0), &|_| Err(refused())).is_err());
    assert_eq!(content(&couch).expect("sound"), before);
    assert_eq!(found(&disk.image(Survival::Synced)), before);
    couch.rollback_with(VB, Seqno(2), &|_| Err(refused())).expect("nothing changes");
    couch
        .compact_with(VB, &Compaction::default(), &|at| {
            seen.set(Some(at));
            Ok(())
        })
        .expect("a compaction");
    assert_eq!(content(&couch).expect("sound"), before);
    let at = seen.get().expect("it was told");
    let path = Path::new(DIR).join(format!("5.couch.{}", at.revision));
    let file = couchstore::CouchFile::open_read(&disk, &path).expect("the file in use");
    assert_eq!(file.info().header_offset, at.header_offset);
}

#[test]
fn a_damaged_file_is_not_replaced_by_an_older_one() {
    let disk = fresh();
    let couch = open(&disk).expect("the bucket opens");
    let state = VbStateDoc::default();
    couch.save(VB, SaveBatch { items: &[version(0, "a", 1, b"1")], state: &state }).expect("a save");
    // the old file stays where it is
    disk.plan(Fault::for_ever(On::Kind(Call::Remove), 1, Effect::Errno(EIO)));
    couch.compact(VB, &Compaction::default()).expect("a compaction");
    couch.save(VB, SaveBatch { items: &[version(0, "b", 2, b"2")], state: &state }).expect("a save");
    disk.heal();
    assert_eq!(files(&disk).len(), 2);
    drop(couch);
    let path = Path::new(DIR).join("5.couch.2");
    for block in 0..8 {
        disk.rot(&path, block * 4096, 0x55).expect("a file");
    }
    let couch = open(&disk).expect("the bucket opens");
    assert!(couch.states().expect("states").iter().all(|(_, stored)| stored.is_err()));
    assert_eq!(files(&disk).len(), 2);
    couch.delete_vbucket(VB).expect("a delete");
    assert!(files(&disk).is_empty());
}

#[test]
fn what_is_in_use_is_what_a_compaction_keeps() {
    let disk = fresh();
    let couch = open(&disk).expect("the bucket opens");
    let state = VbStateDoc::default();
    for round in 0..10 {
        let items: Vec<Version> =
            (0..300).map(|i| version(0, &format!("k{i:03}"), round * 300 + i + 1, &[7; 200])).collect();
        couch.save(VB, SaveBatch { items: &items, state: &state }).expect("a save");
    }
    let on_disk = || files(&disk).iter().map(|(_, bytes)| bytes.len() as u64).collect::<Vec<_>>();
    let before = couch.counts(VB).expect("counts");
    assert_eq!(on_disk(), [before.file_bytes]);
    assert!(before.used_bytes * 5 < before.file_bytes, "{before:?}");
    let compacted = couch.compact(VB, &Compaction::default()).expect("a compaction");
    let after = couch.counts(VB).expect("counts");
    assert_eq!(on_disk(), [after.file_bytes]);
    assert_eq!((compacted.before_bytes, compacted.after_bytes), (before.file_bytes, after.file_bytes));
    // besides what is in use there are a byte at the start of each block and the room before the header
    let overhead = after.file_bytes - after.used_bytes;
    assert!(overhead < after.file_bytes / 4096 + 2 * 4096, "{after:?}");
    // the trees are built anew, so they may differ a little in size
    assert!(after.used_bytes.abs_diff(before.used_bytes) < before.used_bytes / 10, "{before:?} {after:?}");
}

#[test]
fn saves_reads_and_compactions_go_on_beside_each_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let compaction = CompactionSteps { step_bytes: 20_000, last_changes: 20 };
    let config = CouchConfig { compaction, max_open_files: 2, ..CouchConfig::default() };
    let couch = Couch::open(Env::real(), dir.path(), config).expect("the bucket opens");
    let state = VbStateDoc::default();
    let save = |vb: VbId, round: u64| {
        let mut items: Vec<Version> = (0..50)
            .map(|i| version(0, &format!("k{:03}", (round * 31 + i * 7) % 400), round * 50 + i + 1, &[1; 90]))
            .collect();
        items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
        couch.save(vb, SaveBatch { items: &items, state: &state }).expect("a save");
    };
    let vbuckets = [VbId(1), VbId(2), VbId(3)];
    vbuckets.iter().for_each(|vb| save(*vb, 0));
    let (couch, save) = (&couch, &save);
    std::thread::scope(|scope| {
        for vb in vbuckets {
            scope.spawn(move || (1..120).for_each(|round| save(vb, round)));
            scope.spawn(move || {
                let mut highest = 0;
                for _ in 0..60 {
                    let (mut keys, mut last) = (std::collections::BTreeSet::new(), 0);
                    let scanned = couch.scan(vb, Seqno(0), Values::Read, &mut |version| {
                        assert!(
                            version.meta().by_seqno.0 > last && keys.insert(version.stored_key().to_vec())
                        );
                        assert_eq!(version.value(), [1; 90]);
                        last = version.meta().by_seqno.0;
                        ControlFlow::Continue(())
                    });
                    scanned.expect("a scan");
                    // no scan sees less than one before
                    assert!(last >= highest && last.is_multiple_of(50));
                    highest = last;
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(move || {
                for i in 0..30 {
                    match couch.compact(vbuckets[i % 3], &Compaction::default()) {
                        Ok(_) | Err(Failure::CompactionRuns { .. }) => {}
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    let couch = Couch::open(Env::real(), dir.path(), config).expect("the bucket opens");
    for (vb, stored) in couch.states().expect("states") {
        let stored = stored.expect("sound");
        assert_eq!((stored.high_seqno, stored.counts.documents), (Seqno(6_000), 400), "{vb}");
        let mut seen = 0;
        let scanned = couch.scan(vb, Seqno(0), Values::Read, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        });
        scanned.expect("a scan");
        assert_eq!(seen, 400);
    }
}
