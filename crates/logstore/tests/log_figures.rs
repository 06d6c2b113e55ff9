//! What a store says of its size, and that waste goes by itself: versions that only a rollback needs are waste, too.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::SimHandles;
use base::env::sim::{SimClock, SimDisk};
use logstore::{Config, Entry, Erased, Failure, LogStore, Purger, Sealed, Trust, View};
use world::{DIR, Doc, TestBatch};

const VBS: u16 = 16;
const KEYS: u64 = 40;
const VALUE_BYTES: usize = 400;

/// A store whose caller has each commit on record, as a node's journal does.
struct Bench {
    disk: SimDisk,
    clock: Arc<SimClock>,
    store: LogStore,
    commits: BTreeMap<u16, u64>,
    next: BTreeMap<u16, u64>,
}

fn open(disk: &SimDisk, clock: &Arc<SimClock>, commits: &BTreeMap<u16, u64>) -> LogStore {
    let handles = SimHandles { clock: clock.clone(), ..SimHandles::new(1) };
    let missing = BTreeSet::new();
    let config = Config { shards: 2, has_record: true, ..Config::default() };
    let trust = Trust::Record { commits, missing: &missing };
    LogStore::open(&handles.with_disk(disk.clone()).env(), Path::new(DIR), config, &trust)
        .expect("no fault is planned")
}

impl Bench {
    fn new() -> Bench {
        let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
        let store = open(&disk, &clock, &BTreeMap::new());
        Bench { disk, clock, store, commits: BTreeMap::new(), next: BTreeMap::new() }
    }

    /// Commits some keys of each vBucket, each in `parts` commits, and puts them on record.
    fn write(&mut self, keys: std::ops::Range<u64>, parts: u64) {
        for part in 0..parts {
            for vb in 0..VBS {
                let next = self.next.entry(vb).or_insert(1);
                let mut items = Vec::new();
                for key in keys.clone().filter(|key| key % parts == part) {
                    // It compresses to about a tenth.
                    let value = format!("{key}-{next} ").into_bytes().repeat(200);
                    let value = value[..VALUE_BYTES].to_vec();
                    items.push((format!("key{key:04}").into_bytes(), Doc { seqno: *next, flags: 0, value }));
                    *next += 1;
                }
                let mut batch = TestBatch { vb, items, mark: 1, count: 0 };
                let commit = self.store.commit(&mut [&mut batch]).remove(0).expect("no fault is planned");
                self.store.recorded(vb, commit.number);
                self.commits.insert(vb, commit.number);
            }
        }
    }

    fn settle(&self) {
        while self.store.step().expect("no fault is planned") {}
    }

    fn file_bytes(&self) -> u64 {
        self.disk.contents().into_iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Bytes of files, and those that are in use, as the store says.
    fn told(&self) -> (u64, u64) {
        let usages = (0..VBS).filter_map(|vb| self.store.usage(vb));
        usages.fold((0, 0), |(files, used), one| (files + one.file_bytes, used + one.used_bytes))
    }

    /// Bytes of items of one version of each document.
    fn once(&self) -> u64 {
        u64::from(VBS) * KEYS * VALUE_BYTES as u64
    }

    fn reopen(&mut self) {
        self.store = open(&self.disk, &self.clock, &self.commits);
    }
}

fn is_about(told: u64, right: u64, percent: u64) -> bool {
    told.abs_diff(right) * 100 <= right * percent
}

#[test]
fn the_bytes_of_files_are_those_on_disk() {
    let mut bench = Bench::new();
    bench.write(0..KEYS, 4);
    for _ in 0..2 {
        let (told, files) = (bench.told().0, bench.file_bytes());
        // Each share is rounded.
        assert!(told <= files && told + u64::from(VBS) >= files, "{told} are told, {files} are there");
        let items = bench.store.stats().item_bytes;
        assert!(files * 2 < items, "{files} of files for {items} of items: they compress well");
        bench.settle();
        bench.reopen();
    }
}

/// Replaced versions do not count from the commit on that replaces them, whether or not a rollback may need them.
#[test]
fn replaced_versions_do_not_count() {
    let mut bench = Bench::new();
    bench.write(0..KEYS, 1);
    let once = bench.store.stats().live_bytes;
    assert!(once >= bench.once(), "{once}");
    bench.write(0..KEYS * 3 / 4, 3);
    for _ in 0..2 {
        let stats = bench.store.stats();
        assert!(is_about(stats.live_bytes, once, 2), "{stats:?}, {once} before");
        assert!(stats.rollback_bytes > once / 5, "{stats:?}: what the last commit replaced");
        assert!(stats.space_amplification() > 1.5, "{}", stats.space_amplification());
        let (files, used) = bench.told();
        assert!(is_about(used * 7, files * 4, 5), "{used} of {files}: 4 of 7 versions count");
        bench.reopen();
    }
}

/// A while after the last commit the versions are given up that only a rollback needs, and what they took is rewritten.
#[test]
fn waste_is_rewritten_without_a_compaction() {
    let mut bench = Bench::new();
    bench.write(0..KEYS, 1);
    bench.settle();
    let before = bench.store.stats().segment_bytes;
    bench.write(0..KEYS, 3);
    bench.settle();
    let kept = bench.store.stats().rollback_bytes;
    assert!(kept > 0, "a rollback may be asked for at once");
    bench.clock.advance(Duration::from_secs(120));
    bench.settle();
    let stats = bench.store.stats();
    assert!(is_about(stats.item_bytes, stats.live_bytes, 30), "{stats:?}");
    assert!(is_about(stats.segment_bytes, before, 50), "{stats:?}, {before} before");
    let written = stats.written;
    bench.settle();
    assert_eq!(bench.store.stats().written, written, "there is an end to it");
    bench.reopen();
    for vb in 0..VBS {
        let view = bench.store.view(vb).expect("it can be read").expect("it is there");
        let seqno = view.get(b"key0007", |item| item.seqno).expect("it can be read");
        assert!(seqno.is_some_and(|seqno| seqno > KEYS), "{seqno:?} of vBucket {vb}");
    }
}

/// Under updates that never rest fewer commits are kept, so that these keep no more than one more version.
#[test]
fn what_rollbacks_keep_has_a_limit() {
    let mut bench = Bench::new();
    for round in 0..30 {
        bench.write(0..KEYS, 1);
        bench.settle();
        let stats = bench.store.stats();
        if round > 6 {
            assert!(stats.item_bytes * 10 <= stats.live_bytes * 25, "round {round}: {stats:?}");
        }
    }
    let high = bench.next[&0] - 1;
    let back = bench.store.rollback(0, high - 1).expect("no fault is planned");
    assert!(back.is_some(), "the commit before the last one can be gone back to");
}

struct NothingGoes;

impl Purger for NothingGoes {
    fn judge(&mut self, _: &View, _: &[u8], _: &Entry) -> Result<bool, Failure> {
        Ok(false)
    }

    fn go_on(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn seal(&mut self, now: &View, _: &[Erased], _: bool) -> Result<Sealed, String> {
        Ok(Sealed { state: now.state().to_vec(), purge_seqno: now.purge_seqno() })
    }
}

/// What vBuckets share is rewritten once for all of them.
#[test]
fn a_compaction_of_all_vbuckets_writes_the_files_once() {
    let mut bench = Bench::new();
    bench.write(0..KEYS, 1);
    bench.write(0..KEYS / 2, 3);
    let before = bench.file_bytes();
    for vb in 0..VBS {
        bench.store.purge(vb, &mut NothingGoes).expect("no fault is planned");
        bench.store.is_on_record(vb).expect("no fault is planned");
    }
    let all: BTreeSet<u16> = (0..VBS).collect();
    bench.store.reclaim_all(&all, &mut || ControlFlow::Continue(())).expect("no fault is planned");
    let stats = bench.store.stats();
    assert!((1..=before).contains(&stats.written.rewrites), "{stats:?}, {before} before");
    assert!(is_about(stats.item_bytes, stats.live_bytes, 2), "{stats:?}");
}
