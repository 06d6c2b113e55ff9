//! How fast a producer makes messages of what is on disk, without socket and consumer, beside reading the same files
//! from front to end with checksums:
//! `cargo run --release -p dcp --example backfill -- BUCKET_DIR [ROUNDS]`, which prints a line of JSON.
//!
//! The folder is that of a bucket (`DATA/buckets/NAME`) whose server was stopped; it is read, not changed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "raw reading is measured beside the doors"
)]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use base::env::Env;
use base::{Heap, Seqno, VbId};
use dcp::{Agreement, Features, Producer, Sink, Step};
use engine::{Bucket, BucketConfig, Whole};
use kvstore::{CouchConfig, Journaled, JournaledConfig};
use protocol::dcp::{OpenFlags, StreamRequest};

const VBUCKETS: u16 = 1024;
/// Threads that read, as a server has them.
const BACKFILLERS: usize = 2;
/// Bytes of one turn, as a connection has them.
const STEP_BYTES: usize = 256 << 10;

/// Counts what a socket would be given: bytes of heads, and values that are sent from where they are.
#[derive(Default)]
struct Counter {
    heads: Vec<u8>,
    bytes: u64,
    values: u64,
}

impl Sink for Counter {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.heads
    }

    fn value(&mut self, version: &Whole, from: usize) {
        self.bytes += (version.value().len() - from) as u64;
        self.values += 1;
    }
}

fn open(dir: &Path) -> Arc<Bucket> {
    let env = Env::real().with_heap(Heap::default());
    let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("backfill", dir.to_owned()) };
    let couch = CouchConfig { max_open_files: usize::from(VBUCKETS), ..CouchConfig::default() };
    let store =
        Journaled::without_journal(env.clone(), dir, JournaledConfig { couch, ..JournaledConfig::default() });
    let store = Arc::new(store.expect("a bucket's folder"));
    Arc::new(Bucket::open_cold(config, env, store).expect("a bucket that was stopped"))
}

/// Streams everything once: messages' bytes and seconds.
fn stream(bucket: &Arc<Bucket>) -> (u64, u64, f64) {
    let is_news = Arc::new(AtomicBool::new(true));
    let (wake, main) = (Arc::clone(&is_news), std::thread::current());
    let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"backfill", false).expect("a producer");
    let mut producer =
        Producer::new(Arc::clone(bucket), "backfill".into(), agreed, Features::default(), move || {
            wake.store(true, Ordering::Release);
            main.unpark();
        });
    let begun = Instant::now();
    for vb in (0..VBUCKETS).map(VbId) {
        let end = bucket.with_vbucket(vb, |vb| vb.high_seqno()).expect("there it is");
        if end > Seqno(0) {
            let request = StreamRequest { end, ..StreamRequest::default() };
            producer.request(vb, vb.0.into(), &request, b"").expect("a stream");
        }
    }
    let mut out = Counter::default();
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
    (out.bytes, out.values, begun.elapsed().as_secs_f64())
}

/// Reads the files from front to end, with a checksum over everything: bytes and seconds.
fn raw(dir: &Path) -> (u64, f64) {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.to_string_lossy().contains(".couch."));
    files.sort();
    let (mut buffer, mut bytes, mut sum) = (vec![0; 1 << 20], 0, 0);
    let begun = Instant::now();
    for path in files {
        let mut file = fs::File::open(path).expect("a file");
        loop {
            let count = file.read(&mut buffer).expect("readable");
            if count == 0 {
                break;
            }
            sum = crc32c::crc32c_append(sum, &buffer[..count]);
            bytes += count as u64;
        }
    }
    std::hint::black_box(sum);
    (bytes, begun.elapsed().as_secs_f64())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("the folder of a bucket"));
    let rounds: usize = arguments.next().map_or(3, |rounds| rounds.parse().expect("a number"));
    let bucket = open(&dir);
    let readers: Vec<_> = (0..BACKFILLERS)
        .map(|_| {
            let bucket = Arc::clone(&bucket);
            std::thread::spawn(move || bucket.run_backfiller())
        })
        .collect();
    // The first of each warms the cache.
    let _ = (raw(&dir), stream(&bucket));
    let mut ratios = Vec::new();
    let mut last = (0.0, 0.0, 0.0);
    for _ in 0..rounds {
        let (raw_bytes, raw_seconds) = raw(&dir);
        let (bytes, items, seconds) = stream(&bucket);
        let (rate, raw_rate) = (bytes as f64 / seconds, raw_bytes as f64 / raw_seconds);
        last = (rate / 1e6, raw_rate / 1e6, items as f64 / seconds);
        eprintln!("{:>10.0} items/s {:>8.0} MB/s, raw {:>8.0} MB/s", last.2, last.0, last.1);
        ratios.push(rate / raw_rate);
    }
    bucket.stop_backfillers();
    for reader in readers {
        reader.join().expect("a backfiller never panics");
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{{\"mb_per_s\":{:.0},\"raw_mb_per_s\":{:.0},\"items_per_s\":{:.0},\"to_raw\":{:.3}}}",
        last.0,
        last.1,
        last.2,
        ratios[ratios.len() / 2]
    );
}
