//! Readers, writers, the flusher, fetchers, compactions that purge, and one who evicts whole documents and tombstones,
//! all at once: every answer to a writer is what it must be, no reader sees the past, and in the end what is counted
//! is what is there.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::Env;
use base::env::sim::SplitMix64;
use base::{Cas, Datatype, DocKey, RevSeqno};
use common::wait::wait;
use common::{VB, Watched};
use engine::settings::Key;
use engine::{CompactRequest, EvictionPolicy, Refusal, Settings, StoreMode, StoreRequest};

const KEYS: u64 = 60;
const WRITERS: u64 = 2;
const WRITES: u64 = 6_000;
const READS: u64 = 12_000;

fn name(key: u64) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

/// Asks again until something else is answered than that it has to come from the disk first, or that there is no
/// room now.
fn settle<T>(world: &Watched, key: &[u8], mut ask: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut held = None;
    loop {
        match ask() {
            Err(Refusal::NotResident) => {
                held.replace(wait(world.bucket.fetching().fetch(VB, DocKey::new(key)).expect("few wait")));
            }
            Err(Refusal::OverQuota) => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

/// The only one who changes some of the keys: it knows what there is.
struct Writer<'a> {
    world: &'a Watched,
    rng: SplitMix64,
    /// Of each key: the last change's number, whether it was a deletion, and its CAS.
    known: Vec<Option<(u64, bool, Cas)>>,
}

impl Writer<'_> {
    fn step(&mut self, key: u64, number: u64) {
        let known = self.known[key as usize];
        let live = known.is_some_and(|(_, deleted, _)| !deleted);
        let (bucket, name) = (&self.world.bucket, name(key));
        if self.rng.chance(1, 4) {
            let delete = || bucket.documents().delete(VB, DocKey::new(&name), Cas::ANY, bucket.now());
            match settle(self.world, &name, delete) {
                Ok(mutated) => {
                    assert!(live, "there was nothing to delete");
                    self.known[key as usize] = Some((number, true, mutated.cas));
                }
                Err(refusal) => assert!(!live && refusal == Refusal::NotFound, "{refusal:?}"),
            }
            return;
        }
        let mode = [StoreMode::Set, StoreMode::Add, StoreMode::Replace][self.rng.below(3) as usize];
        let cas = match known {
            Some((_, false, cas)) if self.rng.chance(1, 2) => cas,
            _ => Cas::ANY,
        };
        let body = format!("{number}:{}", "x".repeat(300 + key as usize * 10)).into_bytes();
        let request = StoreRequest {
            key: DocKey::new(&name),
            body: &body,
            datatype: Datatype::RAW,
            flags: key as u32,
            expiry: 0,
            mode,
            cas,
            preserve_expiry: false,
        };
        match (mode, settle(self.world, &name, || bucket.documents().store(VB, &request, bucket.now()))) {
            (StoreMode::Add, Err(Refusal::Exists)) => assert!(live, "add found a document"),
            (StoreMode::Replace, Err(Refusal::NotFound)) => assert!(!live, "replace found none"),
            (mode, answer) => {
                let fits = mode == StoreMode::Set || live == (mode == StoreMode::Replace);
                assert!(fits, "{mode:?} of a document that is {live}");
                let mutated = answer.expect("it fits");
                self.known[key as usize] = Some((number, false, mutated.cas));
            }
        }
    }
}

/// Whether so much had to be read from the disk that the rest is worth looking at.
fn is_much_fetched(world: &Watched) -> bool {
    world.bucket.fetching().fetch_stats().fetched > 100
}

/// Reads documents and tombstones; nothing of a key ever goes back. Goes on until much had to be read, however seldom
/// the others had their turns.
fn read(world: &Watched, stride: u64) {
    let mut seen = vec![(RevSeqno(0), 0); KEYS as usize];
    let goes_on = |n: &u64| *n < READS || *n < 100 * READS && !is_much_fetched(world);
    for n in (0..).take_while(goes_on) {
        let key = n * stride % KEYS;
        let (bucket, name) = (&world.bucket, name(key));
        let found = settle(world, &name, || {
            let found = bucket.documents().peek(VB, DocKey::new(&name), bucket.now())?;
            found.map(|found| found.whole()).transpose()
        });
        let Some(whole) = found.expect("nothing else refuses") else { continue };
        let meta = whole.meta();
        let now = (meta.rev_seqno, meta.by_seqno.0);
        let last = &mut seen[key as usize];
        assert!((now.0 > last.0) == (now.1 > last.1) && now >= *last, "{now:?} after {last:?} of {key}");
        assert!(whole.is_deleted() || whole.value().len() > 300 + key as usize * 10, "another's value");
        *last = now;
        if n.is_multiple_of(8) {
            std::thread::yield_now();
        }
    }
}

fn race(quota_bytes: u64, filtered: bool) {
    let settings = Settings::default();
    settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
    settings.put(Key::BfilterEnabled, u64::from(filtered));
    let (env, handles) = Env::sim(quota_bytes);
    let whole_world = Watched::open_with(env, handles, quota_bytes, &settings);
    let world = &whole_world;
    let done = AtomicBool::new(false);
    let known = std::thread::scope(|scope| {
        let fetchers = [(); 2].map(|()| scope.spawn(|| world.bucket.fetching().run_fetcher()));
        let evicting = scope.spawn(|| {
            let mut rng = SplitMix64::new(3);
            while !done.load(Ordering::Acquire) {
                world.bucket.flushing().flush_step();
                // The housekeeper gives back what the heap holds and nobody uses.
                world.handles.clock.advance(Duration::from_millis(20));
                world.bucket.maintenance().keep_step();
                for _ in 0..KEYS {
                    let _ = world.bucket.eviction().evict_whole(VB, DocKey::new(&name(rng.below(KEYS))));
                }
                std::thread::yield_now();
            }
        });
        let compacting = scope.spawn(|| {
            let request = CompactRequest { purge_before_s: Some(u32::MAX), ..CompactRequest::default() };
            while !done.load(Ordering::Acquire) {
                let waiting = world.bucket.compaction().compact(VB, request).expect("it is the only one");
                world.bucket.compaction().compact_step();
                wait(waiting);
                (0..200).for_each(|_| std::thread::yield_now());
            }
        });
        let readers = [1, 7].map(|stride| scope.spawn(move || read(world, stride)));
        let writers = [0, 1].map(|at| {
            scope.spawn(move || {
                let known = vec![None; KEYS as usize];
                let mut writer = Writer { world, rng: SplitMix64::new(at), known };
                for number in 1..=WRITES {
                    let key = writer.rng.below(KEYS / WRITERS) * WRITERS + at;
                    writer.step(key, number);
                    if number.is_multiple_of(4) {
                        std::thread::yield_now();
                    }
                }
                writer.known
            })
        });
        let known = writers.map(|writer| writer.join().expect("no writer is surprised"));
        readers.into_iter().for_each(|reader| reader.join().expect("no reader is surprised"));
        done.store(true, Ordering::Release);
        evicting.join().expect("evictions go on to the end");
        compacting.join().expect("compactions go on to the end");
        world.bucket.fetching().stop_fetchers();
        fetchers.into_iter().for_each(|fetcher| fetcher.join().expect("fetchers end"));
        known
    });
    let live = known.iter().flatten().filter(|known| matches!(known, Some((_, false, _)))).count();
    assert!(world.bucket.flushing().flush_all());
    let stats = world.bucket.vbucket_stats(VB).expect("it is there");
    let disk = world.bucket.disk_counts(VB).expect("readable");
    assert_eq!((stats.documents, stats.tombstones), (disk.documents, disk.tombstones));
    assert_eq!(stats.documents, live as u64);
    assert!(is_much_fetched(world));
    whole_world.end();
}

#[test]
fn with_room_for_everything() {
    race(1 << 20, true);
}

#[test]
fn with_room_for_hardly_anything() {
    race(60_000, true);
}

#[test]
fn without_a_filter() {
    race(1 << 20, false);
}
