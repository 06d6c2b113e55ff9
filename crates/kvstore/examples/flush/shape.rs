//! The original's benchmark shape: one batch, one commit, values of 1 byte, keys `key<i>`, beside a raw sorted append.
//!
//! Everything is queued before the clock starts; the clock covers what a flusher does: taking the versions, sorting,
//! keeping the newest of each key, saving, both syncs.

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, Env, File, OpenMode, RealDisk};
use base::{VbId, Version};
use kvstore::{Couch, CouchConfig, KvStore, SaveBatch, VbStateDoc};
use serde_json::{Value, json};
use store_suite::version;

use crate::counted::peak;
use crate::{Clocks, Numbers, median};

const VB: VbId = VbId(0);
/// What the raw append gathers before it writes.
const RAW_BUFFER: usize = 256 << 10;

/// Where versions of documents come from.
pub struct Queue {
    pub numbers: Numbers,
    pub seqno: u64,
    pub value_bytes: usize,
}

impl Queue {
    pub fn new(value_bytes: usize) -> Queue {
        Queue { numbers: Numbers::new(), seqno: 0, value_bytes }
    }

    pub fn version(&mut self, key: &str) -> Version {
        self.seqno += 1;
        let value: Vec<u8> =
            (0..self.value_bytes.div_ceil(8)).flat_map(|_| self.numbers.next().to_le_bytes()).collect();
        version(0, key, self.seqno, &value[..self.value_bytes])
    }

    /// One version of each of `n` keys, in order of their numbers.
    fn keys(&mut self, n: usize) -> Vec<Version> {
        (0..n).map(|i| self.version(&format!("key{i}"))).collect()
    }

    /// The same in random order.
    fn shuffled(&mut self, n: usize) -> Vec<Version> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, (self.numbers.next() % (i as u64 + 1)) as usize);
        }
        order.into_iter().map(|i| self.version(&format!("key{i}"))).collect()
    }
}

pub fn open(dir: &Path, config: CouchConfig) -> Couch {
    let env = Env { disk: Arc::new(RealDisk), ..Env::real() };
    Couch::open(env, dir, config).expect("the bucket opens")
}

/// What a flusher does with what is queued.
pub fn flush(store: &Couch, vb: VbId, queue: &[Version]) {
    let mut items = kvstore::newest_of(queue.iter());
    store.save(vb, SaveBatch { items: &items, state: &VbStateDoc::default() }).expect("a save");
    kvstore::release(&mut items);
}

/// The least that keeps versions in order and safe: sort, append with checksums, sync, and sync again.
fn raw_append(dir: &Path, queue: &[Version]) {
    let path = dir.join("raw");
    let file = RealDisk.open(&path, OpenMode::CreateNew).expect("a file");
    let timed = |file: &dyn File| {
        let mut items: Vec<&Version> = queue.iter().collect();
        items.sort_unstable_by(|a, b| a.stored_key().cmp(b.stored_key()));
        let (mut buf, mut at) = (Vec::with_capacity(RAW_BUFFER + 4096), 0);
        for item in items {
            append_record(&mut buf, item);
            if buf.len() >= RAW_BUFFER {
                file.write_at(&buf, at).expect("a write");
                at += buf.len() as u64;
                buf.clear();
            }
        }
        file.write_at(&buf, at).expect("a write");
        file.sync_data().expect("a sync");
        file.write_at(&[1; 64], at + buf.len() as u64).expect("a write");
        file.sync_data().expect("a sync");
    };
    timed(&*file);
    RealDisk.remove_file(&path).expect("it is there");
}

fn append_record(buf: &mut Vec<u8>, item: &Version) {
    let (key, value, meta) = (item.stored_key(), item.value(), item.meta());
    let start = buf.len();
    buf.extend_from_slice(&[0; 4]);
    buf.extend_from_slice(&(key.len() as u32).to_le_bytes());
    buf.extend_from_slice(&(value.len() as u32).to_le_bytes());
    buf.extend_from_slice(&meta.by_seqno.0.to_le_bytes());
    buf.extend_from_slice(&meta.cas.0.to_le_bytes());
    buf.extend_from_slice(&meta.rev_seqno.0.to_le_bytes());
    buf.extend_from_slice(&meta.flags.to_le_bytes());
    buf.extend_from_slice(&meta.expiry.to_le_bytes());
    buf.extend_from_slice(key);
    buf.extend_from_slice(value);
    let crc = crc32c::crc32c(&buf[start + 4..]);
    buf[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Seconds of wall clock and CPU, bytes written and most bytes held, of each round.
#[derive(Default)]
struct Rounds {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    written: u64,
    peak: usize,
}

impl Rounds {
    fn flush(&mut self, store: &Couch, queue: &[Version]) {
        let before = store.counts(VB).expect("counts").file_bytes;
        let clocks = Clocks::start();
        let ((), peak) = peak(|| flush(store, VB, queue));
        let (wall, cpu) = clocks.stop();
        self.wall.push(wall);
        self.cpu.push(cpu);
        self.written = store.counts(VB).expect("counts").file_bytes - before;
        self.peak = self.peak.max(peak);
    }

    fn raw(&mut self, dir: &Path, queue: &[Version]) {
        let clocks = Clocks::start();
        raw_append(dir, queue);
        let (wall, cpu) = clocks.stop();
        self.wall.push(wall);
        self.cpu.push(cpu);
    }
}

fn fresh(store: &Couch) {
    store.delete_vbucket(VB).expect("it goes");
    store.save_state(VB, &VbStateDoc::default()).expect("a vBucket");
    // the file was closed when it got its name: it is open when the clock starts, as under a steady load
    store.save_state(VB, &VbStateDoc::default()).expect("a vBucket");
}

fn row(dir: &Path, config: CouchConfig, batch: usize, rounds: usize) -> Value {
    let (mut raw, mut insert, mut replace) = (Rounds::default(), Rounds::default(), Rounds::default());
    let store = open(&dir.join("bucket"), config);
    let mut queue = Queue::new(1);
    for _ in 0..rounds {
        fresh(&store);
        let items = queue.keys(batch);
        raw.raw(dir, &items);
        insert.flush(&store, &items);
        drop(items);
        let items = queue.keys(batch);
        replace.flush(&store, &items);
    }
    let n = batch as f64;
    let rate = |seconds: &[f64]| n / median(seconds);
    let ratio = |rounds: &Rounds| median(&raw.wall) / median(&rounds.wall);
    json!({
        "batch": batch,
        "insert_per_s": rate(&insert.wall), "replace_per_s": rate(&replace.wall),
        "insert_cpu_per_s": rate(&insert.cpu), "replace_cpu_per_s": rate(&replace.cpu),
        "raw_per_s": rate(&raw.wall), "raw_cpu_per_s": rate(&raw.cpu),
        "insert_ratio": ratio(&insert), "replace_ratio": ratio(&replace),
        "bytes_per_item_insert": insert.written as f64 / n, "bytes_per_item_replace": replace.written as f64 / n,
        "peak_bytes_per_item": insert.peak.max(replace.peak) as f64 / n,
    })
}

/// What it costs that every key is queued twice, with the same survivors.
fn dedup(dir: &Path, config: CouchConfig, batch: usize, rounds: usize, shuffled: bool) -> Value {
    let (mut once, mut twice) = (Rounds::default(), Rounds::default());
    let store = open(&dir.join("bucket"), config);
    for round in 0..2 * rounds {
        let mut queue = Queue::new(1);
        let mut items = if shuffled { queue.shuffled(batch) } else { queue.keys(batch) };
        let mut newest = if shuffled { queue.shuffled(batch) } else { queue.keys(batch) };
        fresh(&store);
        if round % 2 == 0 {
            once.flush(&store, &newest);
        } else {
            items.append(&mut newest);
            twice.flush(&store, &items);
        }
    }
    let (once_s, twice_s) = (median(&once.wall), median(&twice.wall));
    json!({
        "batch": batch, "order": if shuffled { "random" } else { "ascending" },
        "once_s": once_s, "twice_s": twice_s, "ratio": twice_s / once_s,
        "once_cpu_s": median(&once.cpu), "twice_cpu_s": median(&twice.cpu), "cpu_ratio": median(&twice.cpu) / median(&once.cpu),
    })
}

/// Random replaces in files of growing size.
fn growth(dir: &Path, config: CouchConfig, docs: usize, batch: usize, rounds: usize) -> Value {
    let store = open(&dir.join("bucket"), config);
    let mut queue = Queue::new(1);
    fresh(&store);
    for from in (0..docs).step_by(1_000_000) {
        let items: Vec<_> =
            (from..docs.min(from + 1_000_000)).map(|i| queue.version(&format!("key{i}"))).collect();
        flush(&store, VB, &items);
    }
    let mut replace = Rounds::default();
    for _ in 0..rounds {
        let keys: Vec<_> = (0..batch).map(|_| queue.numbers.next() as usize % docs).collect();
        let items: Vec<_> = keys.iter().map(|i| queue.version(&format!("key{i}"))).collect();
        replace.flush(&store, &items);
    }
    let n = batch as f64;
    json!({
        "documents": docs, "batch": batch, "replace_per_s": n / median(&replace.wall),
        "replace_cpu_us": median(&replace.cpu) * 1e6 / n, "bytes_per_item": replace.written as f64 / n,
    })
}

/// What sorting alone costs, for each version that stays.
pub fn sorts() {
    for n in [1_000, 10_000, 1_000_000] {
        for (order, shuffled) in [("ascending", false), ("random", true)] {
            let mut queue = Queue::new(1);
            let mut once = Vec::new();
            let mut sort = |twice: bool| {
                let mut items = if shuffled { queue.shuffled(n) } else { queue.keys(n) };
                if twice {
                    items.extend(if shuffled { queue.shuffled(n) } else { queue.keys(n) });
                }
                let clocks = Clocks::start();
                let mut newest = kvstore::newest_of(items.iter());
                let sorted = clocks.stop().1;
                assert_eq!(newest.len(), n);
                let clocks = Clocks::start();
                kvstore::release(&mut newest);
                (sorted * 1e9 / n as f64, clocks.stop().1 * 1e9 / n as f64)
            };
            for twice in [false, true] {
                let rounds: Vec<_> = (0..5).map(|_| sort(twice)).collect();
                let (sorts, releases): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
                once.push((median(&sorts), median(&releases)));
            }
            println!("{n:>8} {order:<9} (sort, release) ns once {:.0?}, twice {:.0?}", once[0], once[1]);
        }
    }
}

/// Runs everything; `sizes` alone if given.
pub fn run(dir: &Path, config: CouchConfig, only: Option<usize>, long: bool) -> Value {
    let rounds = |batch: usize| (200_000 / batch.max(1)).clamp(5, 300);
    let sizes = only.map_or(vec![1, 100, 10_000, 1_000_000], |n| vec![n]);
    let rows: Vec<_> = sizes
        .into_iter()
        .map(|n| row(dir, config, n, rounds(n).max(if n < 100_000 { 21 } else { 3 })))
        .collect();
    if only.is_some() {
        return json!({ "rows": rows });
    }
    let dedups = [(10_000, 41), (1_000_000, 3)];
    let mut orders = dedups
        .map(|(n, rounds)| [false, true].map(|shuffled| dedup(dir, config, n, rounds, shuffled)))
        .concat();
    let sizes: &[usize] =
        if long { &[10_000, 100_000, 1_000_000, 10_000_000] } else { &[10_000, 100_000, 1_000_000] };
    let growth: Vec<_> = sizes.iter().map(|&docs| growth(dir, config, docs, 1_000, 11)).collect();
    json!({ "rows": rows, "dedup": orders.remove(0), "dedup_others": orders, "growth": growth })
}

/// The same as lines for people.
pub fn print(measured: &Value) {
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    println!(
        "    batch   insert/s  replace/s  insert/CPU s replace/CPU s       raw/s  ratio i     r   B/item i     r  peak B/item"
    );
    for row in measured["rows"].as_array().into_iter().flatten() {
        let n = |name| number(row, name);
        println!(
            "{:>9} {:>10.0} {:>10.0} {:>13.0} {:>13.0} {:>11.0} {:>8.3} {:>5.3} {:>10.0} {:>5.0} {:>12.1}",
            n("batch"),
            n("insert_per_s"),
            n("replace_per_s"),
            n("insert_cpu_per_s"),
            n("replace_cpu_per_s"),
            n("raw_per_s"),
            n("insert_ratio"),
            n("replace_ratio"),
            n("bytes_per_item_insert"),
            n("bytes_per_item_replace"),
            n("peak_bytes_per_item"),
        );
    }
    let dedups =
        std::iter::once(&measured["dedup"]).chain(measured["dedup_others"].as_array().into_iter().flatten());
    for row in dedups.filter(|row| row.is_object()) {
        println!("each key twice: {row}");
    }
    for row in measured["growth"].as_array().into_iter().flatten() {
        println!("replace at random: {row}");
    }
}
