//! What compaction costs: `compact [DIR] [documents] [value bytes] [rounds of replacing] [batch]`.
//!
//! One vBucket is filled, its documents are replaced in random order, and its file is compacted twice: as it is, and
//! while somebody else goes on saving. Printed are bytes in use per second, and how long a save takes at most.
#![allow(clippy::disallowed_methods, reason = "it measures time in the real world")]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use base::env::Env;
use base::{Cas, DocKey, NewVersion, RevSeqno, Seqno, VbId, Version, VersionMeta};
use kvstore::{Compaction, Couch, CouchConfig, KvStore, SaveBatch, VbStateDoc};
use rustix::time::{ClockId, clock_gettime};

const VB: VbId = VbId(0);

fn seconds(clock: ClockId) -> f64 {
    let t = clock_gettime(clock);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

struct Load {
    random: u64,
    seqno: u64,
    value_bytes: usize,
}

impl Load {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn version(&mut self, key: u64) -> Version {
        self.seqno += 1;
        let meta = VersionMeta {
            cas: Cas(self.seqno << 16),
            by_seqno: Seqno(self.seqno),
            rev_seqno: RevSeqno(1),
            ..VersionMeta::default()
        };
        let value: Vec<u8> =
            (0..self.value_bytes.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        let key = format!("key-{key:016}");
        NewVersion::new(
            base::Heap::shared(),
            meta,
            DocKey::new(key.as_bytes()),
            &[&value[..self.value_bytes]],
        )
        .publish()
    }

    fn save(&mut self, store: &Couch, keys: impl Iterator<Item = u64>) {
        let mut keys: Vec<u64> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        let items: Vec<Version> = keys.into_iter().map(|key| self.version(key)).collect();
        store.save(VB, SaveBatch { items: &items, state: &VbStateDoc::default() }).expect("a save");
    }
}

fn compact(name: &str, store: &Couch) {
    let used = store.counts(VB).expect("counts").used_bytes as f64;
    let (wall, cpu) = (seconds(ClockId::Monotonic), seconds(ClockId::ThreadCPUTime));
    let request = Compaction { observe: &|_| ControlFlow::Continue(()), ..Compaction::default() };
    let done = store.compact(VB, &request).expect("a compaction");
    let (wall, cpu) = (seconds(ClockId::Monotonic) - wall, seconds(ClockId::ThreadCPUTime) - cpu);
    println!(
        "{name:<14} {wall:.2} s, {:.0} MB/s, {:.0} MB per CPU second, {:.0} MB before, {:.0} MB after",
        used / wall / 1e6,
        used / cpu / 1e6,
        done.before_bytes as f64 / 1e6,
        done.after_bytes as f64 / 1e6
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(std::env::temp_dir, PathBuf::from).join("stave-compact");
    let mut number = |default: u64| args.next().map_or(default, |arg| arg.parse().expect("a number"));
    let (documents, value_bytes) = (number(200_000), number(512) as usize);
    let (rounds, batch) = (number(1), number(10_000));
    let _ = std::fs::remove_dir_all(&dir);
    let store = Couch::open(Env::real(), &dir, CouchConfig::default()).expect("the bucket opens");
    let mut load = Load { random: 88_172_645_463_325_252, seqno: 0, value_bytes };
    for from in (0..documents).step_by(batch as usize) {
        load.save(&store, from..(from + batch).min(documents));
    }
    for _ in 0..rounds * documents / batch {
        let keys: Vec<u64> = (0..batch).map(|_| load.next() % documents).collect();
        load.save(&store, keys.into_iter());
    }
    println!("{documents} documents of {value_bytes} bytes, replaced {rounds} times");
    compact("alone", &store);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let saver = scope.spawn(|| {
            let (mut longest, mut saves) = (0f64, 0u64);
            while !done.load(Ordering::Relaxed) {
                let keys: Vec<u64> = (0..100).map(|_| load.next() % documents).collect();
                let begin = seconds(ClockId::Monotonic);
                load.save(&store, keys.into_iter());
                longest = longest.max(seconds(ClockId::Monotonic) - begin);
                saves += 1;
                std::thread::yield_now();
            }
            (longest, saves)
        });
        compact("beside saves", &store);
        done.store(true, Ordering::Relaxed);
        let (longest, saves) = saver.join().expect("it saves");
        println!("{saves} saves of 100 meanwhile, the longest took {:.1} ms", longest * 1e3);
    });
    std::fs::remove_dir_all(&dir).expect("the folder");
}
