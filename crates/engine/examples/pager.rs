//! How long the pager works at a stretch and holds a vBucket's lock, and what counting accesses costs a read.
//!
//! All in processor time of this thread: what the kernel gives to other processes meanwhile is not the pager's.
//!
//! `cargo run --release -p engine --example pager -- [--json] [DOCUMENTS [VBUCKETS]]`

use std::sync::Arc;

use base::env::{Clock, Env};
use base::{
    Cas, Datatype, DocKey, FrequencyFactor, Heap, HistogramCounts, NewVersion, VbId, VersionMeta, vbucket_map,
};
use engine::settings::Key;
use engine::{Bucket, BucketConfig, Holder, StoreMode, StoreRequest};

const VALUE: [u8; 512] = [b'v'; 512];
/// The share of the quota that is in use when the pager begins, in percent.
const USED_PERCENT: u64 = 90;
/// Holds are counted as long from here on: the power of two above 100 microseconds.
const LONG_NS: u64 = 128_000;
const RAISES: u64 = 20_000_000;

fn main() {
    let is_json = std::env::args().any(|argument| argument == "--json");
    let numbers: Vec<u32> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let documents = numbers.first().copied().unwrap_or(300_000);
    let vbuckets = numbers.get(1).copied().unwrap_or(16) as u16;
    let bucket = open(vbuckets);
    fill(&bucket, documents, vbuckets);
    // The housekeeper's first steps have nothing to do.
    bucket.maintenance().keep_step();
    let used = bucket.memory().used_bytes();
    bucket.settings().put(Key::MaxSize, used * 100 / USED_PERCENT);
    bucket.set_param("paging_visitor_pause_ms", "0").expect("it can be set");
    let begun = bucket.env().clock.monotonic();
    while bucket.memory().is_above_high_watermark() {
        bucket.maintenance().keep_step();
    }
    while bucket.maintenance().keep_step() {}
    let seconds = (bucket.env().clock.monotonic() - begun).as_secs_f64();
    let stats = bucket.eviction().eviction_stats();
    let times = bucket.lock_times_of(Holder::Pager);
    let steps = bucket.maintenance().chore_stats();
    let pager = steps.iter().find(|chore| chore.name == "pager").expect("there is one");
    let long: u64 = times.ranges_ns().filter(|range| range.from >= LONG_NS).map(|range| range.count).sum();
    println!("{documents} documents of 512 bytes in {vbuckets} vBuckets, {} evicted", stats.evicted_values);
    println!("evicted a second            {:>12.0}", stats.evicted_values as f64 / seconds);
    println!("looked at a second          {:>12.0}", stats.visited as f64 / seconds);
    println!("longest step, ms            {:>12.2}", pager.longest_ns as f64 / 1e6);
    println!("lock holds                  {:>12}", times.total());
    println!("mean hold, us               {:>12.2}", times.mean_ns() as f64 / 1e3);
    println!("longest hold, us            {:>12.1}", times.longest_ns() as f64 / 1e3);
    println!("holds of more than 128 us   {long:>12}");
    print_histogram(&times);
    let raise_ns = raise_ns(&bucket);
    println!("counting an access, ns      {raise_ns:>12.2}");
    if is_json {
        let json = serde_json::json!({
            "documents": documents, "evicted": stats.evicted_values,
            "evicted_per_s": stats.evicted_values as f64 / seconds,
            "longest_step_ms": pager.longest_ns as f64 / 1e6,
            "holds": times.total(), "long_holds": long, "longest_hold_us": times.longest_ns() as f64 / 1e3,
            "raise_ns": raise_ns,
        });
        println!("{json}");
    }
}

/// Processor time of whichever thread asks.
struct ProcessorTime;

impl Clock for ProcessorTime {
    fn unix_ns(&self) -> u64 {
        1_700_000_000_000_000_000 + self.monotonic_ns()
    }

    #[allow(clippy::disallowed_methods, reason = "a clock of its own, for a measurement")]
    fn monotonic_ns(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn open(vbuckets: u16) -> Bucket {
    let (mut env, _) = Env::sim(1);
    env.clock = Arc::new(ProcessorTime);
    let mut config = BucketConfig::new("pager", "/data/pager".into());
    (config.vbuckets, config.quota_bytes) = (vbuckets, 64 << 30);
    let store = kvstore::Couch::open(env.clone(), &config.dir, kvstore::CouchConfig::default());
    Bucket::open(config, env, Arc::new(store.expect("the simulated disk works"))).expect("it works")
}

fn fill(bucket: &Bucket, documents: u32, vbuckets: u16) {
    for n in 0..documents {
        let key = format!("document-{n:011}");
        let vb: VbId = vbucket_map::vbucket_of(key.as_bytes(), vbuckets);
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: &VALUE,
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(vb, &request, bucket.now()).expect("there is room");
    }
    assert!(bucket.flushing().flush_all(), "the simulated disk works");
}

fn print_histogram(times: &HistogramCounts) {
    for range in times.ranges_ns() {
        println!("  below {:>10} ns        {:>12}", range.to, range.count);
    }
}

/// What counting an access costs a reader that has the document at hand.
fn raise_ns(bucket: &Bucket) -> f64 {
    let (factor, heap) = (FrequencyFactor::default(), Heap::default());
    let version = NewVersion::new(&heap, VersionMeta::default(), DocKey::new(b"k"), &[&VALUE]).publish();
    let begun = bucket.env().clock.monotonic_ns();
    for _ in 0..RAISES {
        factor.raise(std::hint::black_box(&version));
    }
    (bucket.env().clock.monotonic_ns() - begun) as f64 / RAISES as f64
}
