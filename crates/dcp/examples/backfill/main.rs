//! How fast a producer makes messages of what is on disk, without socket and consumer, beside reading the same files
//! from front to end with their checksums:
//! `cargo run --release -p dcp --example backfill -- BUCKET_DIR [ROUNDS [THREADS]]`, which prints a line of JSON.
//! With 0 rounds it only reads the files.
//!
//! The folder is that of a bucket (`DATA/buckets/NAME`) whose server was stopped; it is read, not changed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "raw reading is measured beside the doors"
)]

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use base::env::Env;
use base::{Heap, Seqno, VbId};
use dcp::{Agreement, Features, Producer, Sink, Step};
use engine::{Bucket, BucketConfig, Frames, Whole};
use kvstore::{CouchConfig, FilesConfig, Journaled, JournaledConfig};
use protocol::HEADER_BYTES;
use protocol::dcp::{OpenFlags, StreamRequest};

mod raw;

const VBUCKETS: u16 = 1024;
/// Threads that read, as a server has them, and as many for raw reading.
const THREADS: usize = 2;
/// Bytes of one turn, as a connection has them.
const STEP_BYTES: usize = 256 << 10;

/// Counts what a socket would be given: bytes of heads, and what is sent from where it is.
#[derive(Default)]
struct Counter {
    heads: Vec<u8>,
    bytes: u64,
    /// Whether messages in frames are counted, and how many there were.
    counts: bool,
    messages: u64,
}

impl Sink for Counter {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.heads
    }

    fn value(&mut self, version: &Whole, from: usize) {
        self.bytes += (version.value().len() - from) as u64;
    }

    fn frames(&mut self, frames: &Arc<Frames>, part: Range<usize>) {
        self.bytes += part.len() as u64;
        let mut rest = if self.counts { &frames[part] } else { &[] };
        while let Some(length) = rest.get(8..12) {
            let body = u32::from_be_bytes(length.try_into().expect("four bytes"));
            rest = &rest[HEADER_BYTES + body as usize..];
            self.messages += 1;
        }
    }
}

fn open(dir: &Path) -> Arc<Bucket> {
    let env = Env::real().with_heap(Heap::default());
    let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("backfill", dir.to_owned()) };
    let couch = CouchConfig { max_open_files: usize::from(VBUCKETS), ..CouchConfig::default() };
    let store = Journaled::without_journal(
        env.clone(),
        dir,
        JournaledConfig { files: FilesConfig::Couch(couch), ..JournaledConfig::default() },
    );
    let store = Arc::new(store.expect("a bucket's folder"));
    Arc::new(Bucket::open_cold(config, env, store).expect("a bucket that was stopped"))
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    bytes: u64,
    seconds: f64,
    /// Of all threads.
    cpu_seconds: f64,
}

impl Run {
    fn of(work: impl FnOnce() -> u64) -> Run {
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        let bytes = work();
        Run { bytes, seconds: begun.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds() - cpu }
    }

    fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }
}

/// What all threads of the process took so far, in ticks of which there are 100 a second (proc(5), fields 14 and 15 of
/// `/proc/PID/stat`): threads that have ended are part of it.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("the process");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
    let ticks = rest.split(' ').skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// Streams everything once.
fn stream(bucket: &Arc<Bucket>, mut out: Counter) -> Counter {
    let is_news = Arc::new(AtomicBool::new(true));
    let (wake, main) = (Arc::clone(&is_news), std::thread::current());
    let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"backfill", false).expect("a producer");
    let mut producer =
        Producer::new(Arc::clone(bucket), "backfill".into(), agreed, Features::default(), move || {
            wake.store(true, Ordering::Release);
            main.unpark();
        });
    for vb in (0..VBUCKETS).map(VbId) {
        let end = bucket.with_vbucket(vb, |vb| vb.high_seqno()).expect("there it is");
        if end > Seqno(0) {
            let request = StreamRequest { end, ..StreamRequest::default() };
            producer.request(vb, vb.0.into(), &request, b"").expect("a stream");
        }
    }
    while producer.streams() > 0 {
        let step = producer.step(&mut out, STEP_BYTES);
        out.bytes += out.heads.len() as u64;
        out.heads.clear();
        if step == Step::Idle && producer.streams() > 0 {
            while !is_news.swap(false, Ordering::Acquire) {
                std::thread::park();
            }
        }
    }
    out
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("the folder of a bucket"));
    let mut number = |otherwise| arguments.next().map_or(otherwise, |text| text.parse().expect("a number"));
    let (rounds, threads) = (number(3), number(THREADS));
    let files = raw::files(&dir);
    let read_raw = || Run::of(|| raw::read(&files, threads).bytes);
    let bare = raw::read(&files, threads);
    if rounds == 0 {
        let run = read_raw();
        println!(
            "{{\"file_bytes\":{},\"chunks\":{},\"raw_seconds\":{},\"raw_cpu_seconds\":{}}}",
            bare.bytes, bare.chunks, run.seconds, run.cpu_seconds
        );
        return;
    }
    let bucket = open(&dir);
    let readers: Vec<_> = (0..threads)
        .map(|_| {
            let bucket = Arc::clone(&bucket);
            std::thread::spawn(move || bucket.streams().backfills().run_backfiller())
        })
        .collect();
    // The first one warms the cache, as reading the files has done.
    let documents = stream(&bucket, Counter { counts: true, ..Counter::default() }).messages as f64;
    let (mut raws, mut runs) = (Vec::new(), Vec::new());
    eprintln!(
        "{:>12} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}",
        "items/s", "s", "CPU s", "raw s", "raw CPU s", "ratio", "CPU"
    );
    for _ in 0..rounds {
        let (raw, run) = (read_raw(), Run::of(|| stream(&bucket, Counter::default()).bytes));
        eprintln!(
            "{:>12.0} {:>10.3} {:>10.3} {:>10.3} {:>10.3} {:>8.3} {:>8.3}",
            documents / run.seconds,
            run.seconds,
            run.cpu_seconds,
            raw.seconds,
            raw.cpu_seconds,
            raw.seconds / run.seconds,
            raw.cpu_seconds / run.cpu_seconds
        );
        raws.push(raw);
        runs.push(run);
    }
    bucket.streams().backfills().stop();
    for reader in readers {
        reader.join().expect("a backfiller never panics");
    }
    let of = |runs: &[Run], figure: fn(&Run) -> f64| median(runs.iter().map(figure).collect());
    let ratios = |figure: fn(&Run) -> f64| {
        median(raws.iter().zip(&runs).map(|(raw, run)| figure(raw) / figure(run)).collect())
    };
    println!(
        "{{\"threads\":{threads},\"mb_per_s\":{:.0},\"raw_mb_per_s\":{:.0},\"items_per_s\":{:.0},\"to_raw\":{:.3},\"cpu_to_raw\":{:.3}}}",
        of(&runs, Run::mb_per_s),
        of(&raws, Run::mb_per_s),
        documents / of(&runs, |run| run.seconds),
        ratios(|run| run.seconds),
        ratios(|run| run.cpu_seconds)
    );
}
