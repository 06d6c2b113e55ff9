//! What flushing costs.
//! `flush shape [--json] [--dir DIR] [--batch N] [--long]`: the original's benchmark shape beside a raw sorted append.
//! `flush sort`: what sorting alone costs.
//! `flush random [--dir DIR] [--documents N] [--batch N] [--leaf BYTES] [--interior BYTES]`: batches of random keys,
//! 512-byte values, a growing file.
//! `flush small [--dir DIR] [--leaf BYTES] [--interior BYTES]`: batches of 30 to 1,000 in files of 1,000 to 10,000.
//! `flush [DIR] [leaf bytes] [interior bytes] [compress nodes 0|1] [value bytes] [batch]`.
//! With `syncs` instead of the numbers: what making groups of files durable costs, one by one and at once.
//! With `groups [group] [batch] [leaf bytes] [interior bytes]`: what saving groups of vBuckets costs.
//!
//! For each batch size: a file of about 1,000 documents is changed at random, then items per second of wall clock
//! and of the thread's CPU time are printed, with bytes written per item.
#![allow(clippy::disallowed_methods, reason = "it measures CPU time in the real world")]

mod counted;
mod random;
mod shape;

use std::path::{Path, PathBuf};

use base::env::{Disk, Env, GroupSync, OpenMode, RealDisk, SyncEach};
use base::{VbId, Version};
use kvstore::{Couch, CouchConfig, FailoverEntry, KvStore, SaveBatch, VbStateDoc};
use rustix::time::{ClockId, clock_gettime};
use shape::Queue;

#[global_allocator]
static ALLOCATOR: counted::Counted = counted::Counted;

/// A small generator: the same work in each run.
struct Numbers(u64);

impl Numbers {
    fn new() -> Numbers {
        Numbers(88_172_645_463_325_252)
    }

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

/// Wall clock and the thread's CPU time since a moment.
struct Clocks {
    wall: f64,
    cpu: f64,
}

impl Clocks {
    fn start() -> Clocks {
        Clocks { wall: seconds(ClockId::Monotonic), cpu: seconds(ClockId::ThreadCPUTime) }
    }

    fn stop(self) -> (f64, f64) {
        let now = Clocks::start();
        (now.wall - self.wall, now.cpu - self.cpu)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

struct Bench {
    store: Couch,
    queue: Queue,
}

impl Bench {
    fn version(&mut self, key: u64) -> Version {
        self.queue.version(&format!("key-{key:016}"))
    }

    /// A batch of `n` different keys below `keys`, sorted; of all keys if there are no more.
    fn batch(&mut self, n: usize, keys: u64) -> Vec<Version> {
        let n = n.min(usize::try_from(keys).unwrap_or(n));
        let mut chosen = std::collections::BTreeSet::new();
        while chosen.len() < n {
            chosen.insert(self.queue.numbers.next() % keys);
        }
        chosen.into_iter().map(|key| self.version(key)).collect()
    }

    /// What `writes` changes of 1,000 keys leave to be saved, some of which are changed far more often than others
    /// (about as Zipf has it).
    fn skewed_batch(&mut self, writes: usize) -> Vec<Version> {
        let key =
            |number: u64| (1000_f64.powf((number % (1 << 20)) as f64 / (1 << 20) as f64) as u64 * 617) % 1000;
        let chosen: std::collections::BTreeSet<u64> =
            (0..writes).map(|_| key(self.queue.numbers.next())).collect();
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

/// CPU time of the whole process, that of the kernel on its behalf included.
fn process_cpu() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Appends 60 kB and then 200 bytes to each of `n` files, making both durable.
fn syncs(dir: &Path, n: usize, group: &dyn GroupSync) -> (f64, f64) {
    let name = |i| dir.join(format!("sync-{i}"));
    let files: Vec<_> =
        (0..n).map(|i| RealDisk.open(&name(i), OpenMode::CreateNew).expect("a file")).collect();
    let (data, rounds) = (vec![7; 60_000], (600 / n).clamp(4, 60));
    let (mut wall, mut cpu) = (0.0, 0.0);
    for round in 0..rounds as u64 {
        for (bytes, at) in [(&data[..], 0), (&data[..200], 61_440)] {
            for file in &files {
                file.write_at(bytes, round * 65_536 + at).expect("a write");
            }
            let before = (seconds(ClockId::Monotonic), process_cpu());
            group.sync_files(&files).expect("a sync");
            wall += seconds(ClockId::Monotonic) - before.0;
            cpu += process_cpu() - before.1;
        }
    }
    (0..n).for_each(|i| RealDisk.remove_file(&name(i)).expect("it is there"));
    let commits = (rounds * n) as f64;
    (cpu * 1e6 / commits, wall * 1e6 / commits)
}

fn compare_syncs(dir: &Path) {
    let group = RealDisk.group_sync(dir).expect("the folder is there");
    for n in [1, 4, 8, 16, 64, 256] {
        for (name, how) in [("one by one", &SyncEach as &dyn GroupSync), ("as a group", &*group)] {
            let (cpu, wall) = syncs(dir, n, how);
            println!(
                "{n:>4} files, {name}: {cpu:>7.1} us CPU, {wall:>8.1} us wall for each file's two syncs"
            );
        }
    }
}

/// Writes `batch` times to 1,000 documents in each vBucket, `group` vBuckets at a time.
fn groups(bench: &mut Bench, group: usize, batch: usize) {
    let state = VbStateDoc { failover_table: vec![FailoverEntry { id: 1, seq: 0 }], ..VbStateDoc::default() };
    let vbuckets = group.max(256);
    for vb in 0..vbuckets {
        let items = bench.batch(1000, 1000);
        bench.store.save(VbId(vb as u16), SaveBatch { items: &items, state: &state }).expect("a save");
    }
    let file_bytes = |vb| bench.store.counts(VbId(vb as u16)).expect("counts").file_bytes;
    let filled: u64 = (0..vbuckets).map(file_bytes).sum();
    let (mut wall, mut cpu, mut items) = (0.0, 0.0, 0);
    let rounds = (12 * vbuckets / group).max(8);
    for round in 0..rounds {
        let batches: Vec<_> = (0..group).map(|_| bench.skewed_batch(batch)).collect();
        items += batches.iter().map(Vec::len).sum::<usize>();
        let group: Vec<_> = batches
            .iter()
            .enumerate()
            .map(|(i, items)| {
                (VbId(((round * group + i) % vbuckets) as u16), SaveBatch { items, state: &state })
            })
            .collect();
        let before = (seconds(ClockId::Monotonic), process_cpu());
        for saved in bench.store.save_group(&group) {
            saved.expect("a save");
        }
        wall += seconds(ClockId::Monotonic) - before.0;
        cpu += process_cpu() - before.1;
    }
    let file_bytes = |vb| bench.store.counts(VbId(vb as u16)).expect("counts").file_bytes;
    let written = (0..vbuckets).map(file_bytes).sum::<u64>() - filled;
    println!(
        "groups of {group:>3} vBuckets, {batch} writes to 1,000 documents each ({} items): {:>6.2} us CPU/item {:>6.2} us wall/item {:>6} B written/item",
        items / rounds / group,
        cpu * 1e6 / items as f64,
        wall * 1e6 / items as f64,
        written / items as u64,
    );
}

/// The word behind `name`.
fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1)).map(String::as_str)
}

/// The modes that are chosen by a word; false if the first word is none of theirs.
fn run_mode(args: &[String]) -> bool {
    let number = |name| option(args, name).and_then(|n| n.parse::<usize>().ok());
    let mode = args.first().map_or("", String::as_str);
    if mode == "sort" {
        shape::sorts();
        return true;
    }
    if !matches!(mode, "shape" | "random" | "small") {
        return false;
    }
    let dir = tempfile::tempdir_in(option(args, "--dir").unwrap_or(".")).expect("a folder");
    let mut config = CouchConfig::default();
    config.tuning.compress_nodes = args.iter().any(|arg| arg == "--compress");
    config.tuning.leaf_bytes = number("--leaf").unwrap_or(config.tuning.leaf_bytes);
    config.tuning.interior_bytes = number("--interior").unwrap_or(config.tuning.interior_bytes);
    let has = |name| args.iter().any(|arg| arg == name);
    match mode {
        "shape" => {
            let measured = shape::run(dir.path(), config, number("--batch"), has("--long"));
            if has("--json") { println!("{measured}") } else { shape::print(&measured) }
        }
        "random" => {
            let (documents, batch) = (number("--documents"), number("--batch"));
            random::run(dir.path(), config, documents.unwrap_or(1_000_000), batch.unwrap_or(10_000));
        }
        _ => random::small(dir.path(), config),
    }
    true
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if run_mode(&args) {
        return;
    }
    let number = |i: usize, default: usize| args.get(i).and_then(|s| s.parse().ok()).unwrap_or(default);
    let parent = PathBuf::from(args.first().map_or("/tmp", String::as_str));
    let dir = tempfile::tempdir_in(parent).expect("a folder");
    let mut config = CouchConfig::default();
    let is_groups = args.get(1).is_some_and(|word| word == "groups");
    let shape = if is_groups { 4 } else { 1 };
    config.tuning.leaf_bytes = number(shape, config.tuning.leaf_bytes);
    config.tuning.interior_bytes = number(shape + 1, config.tuning.interior_bytes);
    config.tuning.compress_nodes = !is_groups && number(3, 0) == 1;
    let env = Env { disk: std::sync::Arc::new(RealDisk), ..Env::real() };
    let store = Couch::open(env, dir.path(), config).expect("the bucket opens");
    let mut bench = Bench { store, queue: Queue::new(number(4, 512)) };
    println!("{config:?}");
    match args.get(1).map(String::as_str) {
        Some("syncs") => return compare_syncs(dir.path()),
        Some("groups") => {
            let sizes = if number(2, 0) == 0 { vec![1, 4, 16, 64, 128] } else { vec![number(2, 0)] };
            sizes.into_iter().for_each(|group| groups(&mut bench, group, number(3, 40)));
            return;
        }
        _ => {}
    }
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
