//! What flushing costs: `flush [DIR] [leaf bytes] [interior bytes] [compress nodes 0|1] [value bytes] [batch]`.
//!
//! For each batch size: a file of about 1,000 documents is changed at random, then items per second of wall clock
//! and of the thread's CPU time are printed, with bytes written per item.
#![allow(clippy::disallowed_methods, reason = "it measures CPU time in the real world")]

use std::path::PathBuf;

use base::env::{Env, RealDisk};
use base::{Cas, Datatype, DocKey, NewVersion, RevSeqno, Seqno, VbId, Version, VersionMeta};
use kvstore::{Couch, CouchConfig, KvStore, SaveBatch, VbStateDoc};
use rustix::time::{ClockId, clock_gettime};

/// A small generator: the same work in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn seconds(clock: ClockId) -> f64 {
    let t = clock_gettime(clock);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

struct Bench {
    store: Couch,
    numbers: Numbers,
    seqno: u64,
    value_bytes: usize,
}

impl Bench {
    fn version(&mut self, key: u64) -> Version {
        self.seqno += 1;
        let meta = VersionMeta {
            cas: Cas(self.seqno << 16),
            by_seqno: Seqno(self.seqno),
            rev_seqno: RevSeqno(1),
            datatype: Datatype::RAW,
            ..VersionMeta::default()
        };
        let value: Vec<u8> =
            (0..self.value_bytes.div_ceil(8)).flat_map(|_| self.numbers.next().to_le_bytes()).collect();
        let key = format!("key-{key:016}");
        NewVersion::new(meta, DocKey::new(key.as_bytes()), &[&value[..self.value_bytes]]).publish()
    }

    /// A batch of `n` different keys below `keys`, sorted.
    fn batch(&mut self, n: usize, keys: u64) -> Vec<Version> {
        let mut chosen = std::collections::BTreeSet::new();
        while chosen.len() < n {
            chosen.insert(self.numbers.next() % keys);
        }
        chosen.into_iter().map(|key| self.version(key)).collect()
    }

    fn run(&mut self, name: &str, vb: VbId, batches: &[Vec<Version>]) {
        let state = VbStateDoc::default();
        let before = self.store.counts(vb).expect("counts").file_bytes;
        let (wall, cpu) = (seconds(ClockId::Monotonic), seconds(ClockId::ThreadCPUTime));
        for items in batches {
            self.store.save(vb, SaveBatch { items, state: &state }).expect("a save");
        }
        let (wall, cpu) = (seconds(ClockId::Monotonic) - wall, seconds(ClockId::ThreadCPUTime) - cpu);
        let items: usize = batches.iter().map(Vec::len).sum();
        let written = self.store.counts(vb).expect("counts").file_bytes - before;
        println!(
            "{name:<34} {:>9.0} items/wall s {:>9.0} items/CPU s {:>6.2} us CPU/item {:>6} B written/item",
            items as f64 / wall,
            items as f64 / cpu,
            cpu * 1e6 / items as f64,
            written / items as u64,
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let parent = PathBuf::from(args.first().map_or("/tmp", String::as_str));
    let dir = tempfile::tempdir_in(parent).expect("a folder");
    let mut config = CouchConfig::default();
    config.tuning.leaf_bytes = number(1, config.tuning.leaf_bytes);
    config.tuning.interior_bytes = number(2, config.tuning.interior_bytes);
    config.tuning.compress_nodes = number(3, usize::from(config.tuning.compress_nodes)) == 1;
    let env = Env { disk: std::sync::Arc::new(RealDisk), ..Env::real() };
    let store = Couch::open(env, dir.path(), config).expect("the bucket opens");
    let mut bench =
        Bench { store, numbers: Numbers(88_172_645_463_325_252), seqno: 0, value_bytes: number(4, 512) };
    println!("{config:?}");
    // one batch size alone runs longer, for a profiler
    let only = number(5, 0);
    let sizes = if only == 0 { vec![1, 40, 400] } else { vec![only] };
    for (vb, batch) in sizes.into_iter().enumerate() {
        let vb = VbId(vb as u16);
        let rounds = if only == 0 { 4000 } else { 80_000 } / batch.max(10);
        let fill = [bench.batch(1000, 1000)];
        bench.run("fill 1,000", vb, &fill);
        let batches: Vec<_> = (0..rounds).map(|_| bench.batch(batch, 1000)).collect();
        bench.run(&format!("replace {batch} of 1,000"), vb, &batches);
        let batches: Vec<_> = (0..rounds).map(|_| bench.batch(batch, 1 << 40)).collect();
        bench.run(&format!("insert {batch} into 1,000 and more"), vb, &batches);
    }
    if only != 0 {
        return;
    }
    let vb = VbId(10);
    let batches: Vec<_> = (0..10).map(|_| bench.batch(10_000, 1 << 40)).collect();
    bench.run("insert 10,000 at random", vb, &batches);
    let batches: Vec<_> =
        (0..10).map(|i| (0..10_000).map(|k| bench.version((1 << 41) + i * 10_000 + k)).collect()).collect();
    bench.run("insert 10,000 in order", vb, &batches);
}
