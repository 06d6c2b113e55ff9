//! What appending to the journal costs: `journal [DIR] [rounds]`.
//!
//! Commits of one item with prewritten segments, with segments that grow, and as a plain append with one fdatasync;
//! then batches, in MB/s and in nanoseconds of CPU for each item.
#![allow(clippy::disallowed_methods, reason = "it measures time in the real world")]

use std::path::{Path, PathBuf};

use base::env::{Disk, Env, OpenMode, RealDisk};
use base::{Cas, Datatype, DocKey, NewVersion, RevSeqno, Seqno, VbId, Version, VersionMeta};
use kvstore::VbStateDoc;
use kvstore::journal::{Filed, Frame, Journal, JournalConfig, JournalStats, Record, Replayed, State};
use rustix::time::{ClockId, clock_gettime};

fn seconds(clock: ClockId) -> f64 {
    let t = clock_gettime(clock);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn versions(n: u64, value_bytes: usize) -> Vec<Version> {
    let mut random = 88_172_645_463_325_252_u64;
    let mut version = |seqno| {
        let meta = VersionMeta {
            cas: Cas(seqno << 16),
            by_seqno: Seqno(seqno),
            rev_seqno: RevSeqno(1),
            datatype: Datatype::RAW,
            ..VersionMeta::default()
        };
        let value: Vec<u8> = (0..value_bytes.div_ceil(8))
            .flat_map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random.to_le_bytes()
            })
            .collect();
        let key = format!("key-{:015}", seqno % 1_000_000);
        NewVersion::new(base::Heap::shared(), meta, DocKey::new(key.as_bytes()), &[&value[..value_bytes]])
            .publish()
    };
    (1..=n).map(&mut version).collect()
}

/// Percentiles of some latencies in microseconds.
fn percentiles(mut all: Vec<f64>) -> String {
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize] * 1e6;
    format!("p50 {:.0} p99 {:.0} p99.9 {:.0} us", at(0.5), at(0.99), at(0.999))
}

/// A way to commit one item, and how long each took.
struct Way<'a> {
    name: String,
    commit: Box<dyn FnMut(usize) + 'a>,
    between: Box<dyn FnMut() + 'a>,
    each: Vec<f64>,
}

/// All ways by turns: what else the machine does meets them alike.
fn compare(mut ways: Vec<Way<'_>>, rounds: usize) {
    const TURN: usize = 100;
    for turn in 0..rounds.div_ceil(TURN) {
        for way in &mut ways {
            for i in 0..TURN {
                let before = seconds(ClockId::Monotonic);
                (way.commit)(turn * TURN + i);
                way.each.push(seconds(ClockId::Monotonic) - before);
            }
            (way.between)();
        }
    }
    for way in ways {
        let wall: f64 = way.each.iter().sum();
        let mean = way.each.len() as f64 / wall;
        println!("{:<56} {mean:>9.0} commits/s  {}", way.name, percentiles(way.each));
    }
}

/// A write and a sync for each commit, in blocks that were written before or not.
fn plain(dir: &Path, rounds: usize, bytes: usize, is_prewritten: bool) -> Way<'static> {
    let word = if is_prewritten { "overwrite" } else { "append" };
    let name = format!("plain {word} of {bytes} bytes + fdatasync");
    let file = RealDisk.open(&dir.join(&name), OpenMode::CreateNew).expect("a file");
    if is_prewritten {
        file.write_at(&vec![0; (rounds + 100) * bytes], 0).expect("a write");
        file.sync_data().expect("a sync");
    }
    let data = vec![7; bytes];
    let commit = move |i: usize| {
        file.write_at(&data, (i * bytes) as u64).expect("a write");
        file.sync_data().expect("a sync");
    };
    Way { name, commit: Box::new(commit), between: Box::new(|| ()), each: Vec::new() }
}

struct Bench {
    env: Env,
    config: JournalConfig,
    doc: VbStateDoc,
}

impl Bench {
    fn journal(&self, dir: &Path) -> Journal {
        self.env.disk.create_dir_all(dir).expect("a folder");
        Journal::recover(self.env.clone(), dir, self.config, &mut |_, _| Ok(())).expect("a journal")
    }

    fn append(&self, journal: &Journal, items: &[Version]) -> Frame {
        let table = || -> Vec<Filed> {
            let filed = |vb| Filed {
                vb: VbId(vb),
                through: Frame(1),
                revision: 1,
                header_offset: 4096,
                checksum: None,
            };
            (0..1024).map(filed).collect()
        };
        let save = Record::Save { vb: VbId(7), state: State::Numbers(&self.doc), items, is_repeat: false };
        journal.append(&[save], &table).expect("an append")
    }

    /// Commits of one item each; what is not needed goes now and then, as a background thread would do it.
    fn singles<'a>(&'a self, journal: &'a Journal, items: &'a [Version], is_prewritten: bool) -> Way<'a> {
        let between = move || {
            journal.release(journal.next_frame()).expect("a release");
            while is_prewritten && journal.prepare_step().expect("a step") {}
        };
        let commit = move |i: usize| {
            self.append(journal, &items[i..=i]);
        };
        let word = if is_prewritten { "prewritten" } else { "growing" };
        let name = format!("journal, {word} segments");
        Way { name, commit: Box::new(commit), between: Box::new(between), each: Vec::new() }
    }

    fn batches(&self, dir: &Path, items: &[Version], batch: usize, rounds: usize) {
        let journal = self.journal(dir);
        let (mut wall, mut cpu) = (0.0, 0.0);
        let mut at = 0;
        for _ in 0..rounds {
            at = if at + batch > items.len() { 0 } else { at };
            let before = (seconds(ClockId::Monotonic), seconds(ClockId::ThreadCPUTime));
            let last = self.append(&journal, &items[at..at + batch]);
            wall += seconds(ClockId::Monotonic) - before.0;
            cpu += seconds(ClockId::ThreadCPUTime) - before.1;
            at += batch;
            journal.release(last).expect("a release");
        }
        let JournalStats { payload_bytes, written_bytes, .. } = journal.stats();
        let n = (batch * rounds) as f64;
        println!(
            "batches of {batch:>6}: {:>8.0} commits/s {:>9.0} items/s {:>6.0} MB/s  {:>5.0} ns CPU/item  {:.0} B/item, {:.0} written",
            rounds as f64 / wall,
            n / wall,
            written_bytes as f64 / wall / 1e6,
            cpu * 1e9 / n,
            payload_bytes as f64 / n,
            written_bytes as f64 / n,
        );
        journal.remove().expect("a removal");
    }
}

/// What reading a journal costs.
fn recovery(bench: &Bench, dir: &Path, items: &[Version]) {
    let journal = bench.journal(dir);
    items.chunks(2000).for_each(|some| {
        bench.append(&journal, some);
    });
    let bytes = journal.stats().used_bytes;
    drop(journal);
    let start = seconds(ClockId::Monotonic);
    let mut n = 0;
    let journal = Journal::recover(bench.env.clone(), dir, bench.config, &mut |_, told| {
        if let Replayed::Save { items, .. } = told {
            n += items.len();
        }
        Ok(())
    });
    let journal = journal.expect("a recovery");
    let wall = seconds(ClockId::Monotonic) - start;
    println!(
        "recovery: {n} items, {:.0} MB/s, {:.0} ns/item",
        bytes as f64 / wall / 1e6,
        wall * 1e9 / n as f64
    );
    journal.remove().expect("a removal");
}

/// Encoding without a disk behind it.
struct Nowhere;

impl base::env::File for Nowhere {
    fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
        Ok(0)
    }
    fn write_at(&self, buf: &[u8], _: u64) -> std::io::Result<()> {
        std::hint::black_box(buf);
        Ok(())
    }
    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn len(&self) -> std::io::Result<u64> {
        Ok(0)
    }
    fn set_len(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

impl Disk for Nowhere {
    fn open(&self, _: &Path, _: OpenMode) -> std::io::Result<std::sync::Arc<dyn base::env::File>> {
        Ok(std::sync::Arc::new(Nowhere))
    }
    fn create_dir_all(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn read_dir(&self, _: &Path) -> std::io::Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn rename(&self, _: &Path, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn remove_file(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parent = PathBuf::from(args.first().map_or("/tmp", String::as_str));
    let rounds = args.get(1).and_then(|s| s.parse().ok()).unwrap_or(20_000);
    let dir = tempfile::tempdir_in(parent).expect("a folder");
    let items = versions(rounds.max(200_000), 512);
    let bench = Bench { env: Env::real(), config: JournalConfig::default(), doc: VbStateDoc::default() };
    let nowhere = Env { disk: std::sync::Arc::new(Nowhere), ..Env::real() };
    let nowhere = Bench { env: nowhere, config: bench.config, doc: VbStateDoc::default() };
    println!("no disk:");
    for batch in [1, 128, 10_000] {
        nowhere.batches(
            &dir.path().join(format!("n{batch}")),
            &items,
            batch,
            (1_000_000 / batch).min(100_000),
        );
    }
    println!("{}:", dir.path().display());
    let once = rounds as usize;
    let (fresh, ready) = (bench.journal(&dir.path().join("a")), bench.journal(&dir.path().join("b")));
    bench.append(&ready, &items[..1]);
    while ready.prepare_step().expect("a step") {}
    let mut ways: Vec<Way<'_>> = [(700, false), (4096, false), (4096, true)]
        .map(|(bytes, is_prewritten)| plain(dir.path(), once, bytes, is_prewritten))
        .into();
    ways.push(bench.singles(&fresh, &items, false));
    ways.push(bench.singles(&ready, &items, true));
    compare(ways, once);
    println!("    {:?}", ready.stats());
    drop((fresh, ready));
    for (batch, rounds) in [(128, 4000), (2000, 300), (10_000, 60), (100_000, 8)] {
        bench.batches(&dir.path().join(format!("d{batch}")), &items, batch, rounds);
    }
    recovery(&bench, &dir.path().join("r"), &items);
}
