//! What the expiry pager and the compressor do to those who read meanwhile.
//!
//! `cargo run --release -p engine --example background -- DIR [DOCUMENTS [VALUE_BYTES]]`
//!
//! DIR gets no more than the bucket's identity.
//!
//! All documents are in one vBucket, half of them have expired; a reader reads the others all the time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::Env;
use base::{Cas, Datatype, DocKey, VbId};
use engine::{Bucket, BucketConfig, StoreMode, StoreRequest};

const VB: VbId = VbId(0);

fn key_of(n: u64) -> String {
    format!("key-{n:016}")
}

fn fill(bucket: &Bucket, documents: u64, value_bytes: usize) {
    let text = "{\"name\":\"somebody\",\"city\":\"somewhere\",\"tags\":[\"one\",\"two\"]},";
    for n in 0..documents {
        let (key, body) = (key_of(n), format!("{n}{}", text.repeat(value_bytes / text.len() + 1)));
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: &body.as_bytes()[..value_bytes],
            datatype: Datatype::RAW,
            flags: 0,
            // A time long past, as an absolute one.
            expiry: if n % 2 == 0 { 1_000_000_000 } else { 0 },
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(VB, &request, bucket.now()).expect("there is room");
        if n % 10_000 == 9_999 {
            assert!(bucket.flushing().flush_all());
        }
    }
    assert!(bucket.flushing().flush_all());
}

/// Reads living documents until told to stop; returns the times of reads in nanoseconds, sorted.
fn read_all_the_time(bucket: &Bucket, documents: u64, stop: &AtomicBool) -> Vec<u64> {
    let clock = &bucket.env().clock;
    let mut times = Vec::new();
    let mut n = 1;
    while !stop.load(Ordering::Relaxed) {
        let key = key_of(n);
        let (now, begin) = (bucket.now(), clock.monotonic_ns());
        assert!(bucket.documents().get(VB, DocKey::new(key.as_bytes()), now).is_ok(), "it never expires");
        times.push(clock.monotonic_ns() - begin);
        n = ((n + 7918) % documents) | 1;
    }
    times.sort_unstable();
    times
}

/// Keeps house until `is_done`, with a reader beside, and prints what both came to.
fn measure(bucket: &Arc<Bucket>, documents: u64, what: &str, is_done: impl Fn() -> bool) {
    let (clock, stop) = (bucket.env().clock.clone(), AtomicBool::new(false));
    let begin = clock.monotonic();
    let times = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all_the_time(bucket, documents, &stop));
        while !is_done() {
            let busy = bucket.maintenance().keep_step();
            bucket.flushing().flush_step();
            if !busy {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("every read succeeds")
    });
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    println!("{what}: {:.2} s, {} reads beside it", (clock.monotonic() - begin).as_secs_f64(), times.len());
    println!("  reads: p50 {:.1} us, p99.9 {:.1} us, p99.99 {:.1} us", at(0.5), at(0.999), at(0.9999));
    for chore in bucket.maintenance().chore_stats().iter().filter(|chore| chore.name == what) {
        let per_step = Duration::from_nanos(chore.total_ns / chore.steps.max(1));
        println!(
            "  steps: {}, {per_step:?} each, the longest {:?}",
            chore.steps,
            Duration::from_nanos(chore.longest_ns)
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = PathBuf::from(args.first().expect("a folder"));
    let number =
        |at: usize, default: u64| args.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (documents, value_bytes) = (number(1, 1_000_000), number(2, 512) as usize);
    let config = BucketConfig { vbuckets: 1, quota_bytes: 64 << 30, ..BucketConfig::new("background", dir) };
    let bucket = Bucket::open(config, Env::real(), Arc::new(kvstore::Memory::default()));
    let bucket = Arc::new(bucket.expect("the folder can be made"));
    let set = |name, value| bucket.set_param(name, value).expect("a good value");
    set("exp_pager_enabled", "false");
    fill(&bucket, documents, value_bytes);
    let item_bytes = || bucket.stats().all().item_bytes >> 20;
    let before = item_bytes();
    set("exp_pager_stime", "1");
    set("exp_pager_enabled", "true");
    measure(&bucket, documents, "expiry_pager", || {
        bucket.documents().expiry_stats().by_pager == documents.div_ceil(2)
    });
    println!("  {:?}", bucket.documents().expiry_stats());
    set("exp_pager_enabled", "false");
    set("item_compressor_interval", "1");
    set("compression_mode", "active");
    measure(&bucket, documents, "compressor", || bucket.compression().compression_stats().rounds >= 2);
    println!("  {:?}", bucket.compression().compression_stats());
    println!("items: {before} MiB before, {} MiB now", item_bytes());
}
