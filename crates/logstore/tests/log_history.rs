//! The history of changes: every version, in order, until a limit lets it go.

mod world;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::SimHandles;
use base::env::sim::{SimClock, SimDisk};
use logstore::{Failure, HistoryUsage, KEPT, LogStore, Retention, Trust};
use world::{DIR, Doc, TestBatch, config};

const VB: u16 = 3;

struct Bench {
    disk: SimDisk,
    clock: Arc<SimClock>,
    store: LogStore,
    high: u64,
}

impl Bench {
    fn open(disk: SimDisk, clock: Arc<SimClock>) -> LogStore {
        let env = SimHandles { clock, ..SimHandles::new(2) }.with_disk(disk).env();
        LogStore::open(&env, Path::new(DIR), config(), &Trust::Last).expect("no fault is planned")
    }

    fn new(retention: Retention) -> Bench {
        let (disk, clock) = (SimDisk::new(), Arc::new(SimClock::new()));
        let store = Bench::open(disk.clone(), clock.clone());
        store.retain(retention).expect("no fault is planned");
        Bench { disk, clock, store, high: 0 }
    }

    /// Commits versions of these keys, which may be there several times, each of 100 bytes.
    fn commit(&mut self, keys: &[u64], flags: u8) {
        let next = |(at, key): (usize, &u64)| {
            let seqno = self.high + at as u64 + 1;
            (format!("key{key}").into_bytes(), Doc { seqno, flags, value: vec![b'v'; 100] })
        };
        let mut items: Vec<(Vec<u8>, Doc)> = keys.iter().enumerate().map(next).collect();
        items.sort_by(|a, b| (&a.0, a.1.seqno).cmp(&(&b.0, b.1.seqno)));
        self.high += keys.len() as u64;
        let mut batch = TestBatch { vb: VB, items, mark: 1, count: 0 };
        self.store.commit(&mut [&mut batch]).remove(0).expect("no fault is planned");
    }

    fn steps(&self) {
        while self.store.step().expect("no fault is planned") {}
    }

    fn reopen(mut self, retention: Retention) -> Bench {
        drop(self.store);
        self.store = Bench::open(self.disk.clone(), self.clock.clone());
        self.store.retain_as_before(retention);
        self
    }

    fn usage(&self) -> HistoryUsage {
        self.store.history(VB).expect("the vBucket is there")
    }

    /// Seqnos and keys of the history from a seqno on.
    fn history(&self, from: u64) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        let view = self.store.snapshot(VB).expect("it is read").expect("it is there");
        let visited = view.scan_history::<Failure>(from.max(view.history_start()), |item| {
            all.push((item.seqno, String::from_utf8_lossy(item.key).into_owned()));
            Ok(ControlFlow::Continue(()))
        });
        visited.expect("it is sound");
        all
    }

    fn seqnos(&self) -> Vec<u64> {
        self.history(0).into_iter().map(|(seqno, _)| seqno).collect()
    }
}

const FOR_EVER: Retention = Retention { seconds: 1_000_000, bytes: 0 };

#[test]
fn every_version_stays_in_order_through_rewrites_and_starts() {
    let mut bench = Bench::new(FOR_EVER);
    let mut wanted = Vec::new();
    for round in 0..40 {
        let keys = [round % 3, 7, round % 5 + 10, 7];
        let next = bench.high + 1;
        wanted.extend(keys.iter().enumerate().map(|(at, key)| (next + at as u64, format!("key{key}"))));
        bench.commit(&keys, KEPT);
        bench.steps();
    }
    assert_eq!(bench.history(0), wanted);
    let bench = bench.reopen(FOR_EVER);
    assert_eq!(bench.history(0), wanted);
    assert_eq!(bench.history(101), wanted[100..]);
    let usage = bench.usage();
    assert_eq!((usage.start, usage.versions), (1, 160 - 9));
}

#[test]
fn items_without_the_bit_are_there_once() {
    let mut bench = Bench::new(FOR_EVER);
    (0..5).for_each(|_| bench.commit(&[1, 2, 1], 0));
    bench.commit(&[2], KEPT);
    bench.commit(&[2], KEPT);
    bench.steps();
    let wanted = [(15, "key1".to_owned()), (16, "key2".to_owned()), (17, "key2".to_owned())];
    assert_eq!(bench.history(0), wanted);
}

#[test]
fn versions_go_when_they_are_too_old() {
    let retention = Retention { seconds: 100, bytes: 0 };
    let mut bench = Bench::new(retention);
    for _ in 0..10 {
        bench.commit(&[1, 2], KEPT);
        bench.clock.advance(Duration::from_secs(20));
    }
    // 200 s have gone by: what was committed up to second 80 is older than 100 s.
    bench.steps();
    assert_eq!(bench.seqnos(), (11..=20).collect::<Vec<_>>());
    bench.clock.advance(Duration::from_secs(1000));
    bench.steps();
    assert_eq!(
        bench.seqnos(),
        Vec::<u64>::new(),
        "all versions are older, and the newest two are no change of it"
    );
    let view = bench.store.view(VB).expect("it is read").expect("it is there");
    assert!(view.get(b"key1", |item| item.seqno).expect("it is read").is_some(), "it stays a document");
    assert_eq!(view.history_start(), 21);
    let wasted = bench.store.usage(VB).expect("it is there");
    // What the last commits replaced stays for a rollback.
    let waste = wasted.bytes - wasted.live_bytes - bench.store.stats().rollback_bytes;
    assert!(waste * 4 < wasted.bytes, "segments were rewritten without them: {wasted:?}");
}

#[test]
fn versions_go_when_they_are_too_many() {
    let retention = Retention { seconds: 0, bytes: 2000 };
    let mut bench = Bench::new(retention);
    for _ in 0..200 {
        bench.commit(&[1, 2, 1], KEPT);
        bench.steps();
        assert!(bench.usage().bytes <= 2000 + 3 * 120, "{:?}", bench.usage());
    }
    bench.commit(&[3], KEPT);
    let usage = bench.usage();
    assert!(usage.bytes <= 2000 && usage.versions >= 10, "{usage:?}");
    let seqnos = bench.seqnos();
    assert_eq!(seqnos, (usage.start..=bench.high).collect::<Vec<_>>(), "without gaps");
    bench.steps();
    assert!(bench.store.stats().segment_bytes < 20_000, "{:?}", bench.store.stats());
}

#[test]
fn a_rollback_goes_back_inside_the_history() {
    let mut bench = Bench::new(FOR_EVER);
    (0..3).for_each(|_| bench.commit(&[1, 2], KEPT));
    bench.store.rollback(VB, 4).expect("it is kept").expect("it is there");
    bench.high = 4;
    assert_eq!(bench.seqnos(), [1, 2, 3, 4]);
    assert_eq!(bench.usage().versions, 2, "seqnos 3 and 4 are the newest again");
    bench.commit(&[2], KEPT);
    bench.steps();
    let wanted = [(1, 1), (2, 2), (3, 1), (4, 2), (5, 2)].map(|(seqno, key)| (seqno, format!("key{key}")));
    assert_eq!(bench.history(0), wanted);
    let bench = bench.reopen(FOR_EVER);
    assert_eq!(bench.history(0), wanted);
}

#[test]
fn it_begins_when_it_is_switched_on_and_ends_when_it_is_switched_off() {
    let mut bench = Bench::new(Retention::default());
    (0..3).for_each(|_| bench.commit(&[1, 1], KEPT));
    assert_eq!(bench.usage(), HistoryUsage::default());
    bench.store.retain(FOR_EVER).expect("no fault is planned");
    bench.commit(&[1, 1], KEPT);
    assert_eq!((bench.usage().start, bench.seqnos()), (7, vec![7, 8]));
    bench.store.retain(Retention::default()).expect("no fault is planned");
    assert_eq!(bench.usage(), HistoryUsage::default());
    bench.store.retain(FOR_EVER).expect("no fault is planned");
    bench.commit(&[1], KEPT);
    assert_eq!((bench.usage().start, bench.seqnos()), (9, vec![9]));
}
