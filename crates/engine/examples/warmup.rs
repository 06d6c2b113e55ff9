//! How long a bucket takes from its start to the first correct read, to all metadata, and to all values.
//!
//! `cargo run --release -p engine --example warmup -- DIR [DOCUMENTS [VALUE_BYTES [VBUCKETS [QUOTA_MIB]]]]`
//!
//! Fills DIR if there is no bucket in it yet. Run it a second time with a cold page cache
//! (`sync; echo 3 > /proc/sys/vm/drop_caches`, or `posix_fadvise` of its files) for the other half of the truth.

#[path = "../tests/common/wait.rs"]
mod wait;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::{Env, OpenMode};
use base::{Cas, Datatype, DocKey, VbId, vbucket_map};
use engine::{Bucket, BucketConfig, Fetched, Refusal, StoreMode, StoreRequest};
use kvstore::{Couch, CouchConfig};
use wait::wait;

/// Threads of each kind, as a node has them.
const THREADS: usize = 2;

fn value_of(n: u64, len: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut value = Vec::with_capacity(len + 8);
    while value.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(len);
    value
}

fn key_of(n: u64) -> String {
    format!("key-{n:016}")
}

fn open(env: &Env, dir: &Path, vbuckets: u16, quota_bytes: u64) -> Bucket {
    let config = BucketConfig { vbuckets, quota_bytes, ..BucketConfig::new("warmup", dir.to_owned()) };
    let store = Couch::open(env.clone(), dir, CouchConfig::default()).expect("the folder can be opened");
    Bucket::open_cold(config, env.clone(), Arc::new(store)).expect("the bucket can be opened")
}

fn fill(env: &Env, dir: &Path, documents: u64, value_bytes: usize, vbuckets: u16) {
    let bucket = open(env, dir, vbuckets, 64 << 30);
    for n in 0..documents {
        let (key, body) = (key_of(n), value_of(n, value_bytes));
        let request = StoreRequest {
            key: DocKey::new(key.as_bytes()),
            body: &body,
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(vb_of(&key, vbuckets), &request, bucket.now()).expect("there is room");
    }
    assert!(bucket.flushing().flush_all(), "the disk works");
    bucket.close().expect("the disk works");
}

fn vb_of(key: &str, vbuckets: u16) -> VbId {
    vbucket_map::vbucket_of(key.as_bytes(), vbuckets)
}

/// Reads a document as a handler does: waits for what has to come from the disk, and looks again.
fn read(bucket: &Bucket, key: &str) -> Vec<u8> {
    let (vb, key) = (vb_of(key, bucket.vbuckets()), DocKey::new(key.as_bytes()));
    // Held until the value was looked at: it may be in memory only for that.
    let mut fetched;
    loop {
        match bucket.documents().get(vb, key, bucket.now()) {
            Ok(found) => return found.version.value().to_vec(),
            Err(Refusal::Loading) => {
                if let Some(loaded) = bucket.loading().loaded(vb) {
                    wait(loaded);
                }
            }
            Err(Refusal::NotResident) => {
                let fetch = bucket.fetching().fetch(vb, key).expect("few wait");
                fetched = wait(fetch);
                assert!(matches!(fetched, Fetched::Look(_)), "the files are sound");
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = PathBuf::from(args.first().expect("a folder"));
    let number =
        |at: usize, default: u64| args.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (documents, value_bytes) = (number(1, 1_000_000), number(2, 512) as usize);
    let vbuckets = u16::try_from(number(3, 1024)).expect("at most 1024 vBuckets");
    let env = Env::real();
    if env.disk.open(&dir.join("uuid"), OpenMode::Read).is_err() {
        fill(&env, &dir, documents, value_bytes, vbuckets);
        println!("filled; run again to measure");
        return;
    }
    let began = env.clock.monotonic();
    let ms = || (env.clock.monotonic() - began).as_secs_f64() * 1000.0;
    let quota_bytes = number(4, 64 << 10) << 20;
    let bucket = Arc::new(open(&env, &dir, vbuckets, quota_bytes));
    println!("serving after           {:8.1} ms", ms());
    let start = |name: &str, run: fn(&Bucket)| {
        let bucket = bucket.clone();
        env.spawn.spawn(name, Box::new(move || run(&bucket))).expect("threads can be started")
    };
    let fetchers: Vec<_> =
        (0..THREADS).map(|_| start("fetch", |bucket| bucket.fetching().run_fetcher())).collect();
    let loaders: Vec<_> =
        (0..THREADS).map(|_| start("load", |bucket| bucket.loading().run_loader())).collect();
    let last = documents - 1;
    assert_eq!(read(&bucket, &key_of(last)), value_of(last, value_bytes), "the first read is correct");
    println!("first correct read after{:8.1} ms", ms());
    let step = (documents / 1000).max(1) as usize;
    for n in (0..documents).step_by(step) {
        assert_eq!(read(&bucket, &key_of(n)), value_of(n, value_bytes), "every read is correct");
    }
    println!("1,001 reads in all after{:8.1} ms", ms());
    for loader in loaders {
        assert!(loader.join());
    }
    let stats = bucket.loading().warmup_stats();
    println!("states found after      {:8.1} ms", stats.states_us as f64 / 1000.0);
    println!(
        "metadata loaded after   {:8.1} ms ({} keys)",
        stats.keys_us.unwrap_or_default() as f64 / 1000.0,
        stats.keys
    );
    println!("values loaded after     {:8.1} ms ({} values)", stats.total_us as f64 / 1000.0, stats.values);
    println!("fetches                 {:?}", bucket.fetching().fetch_stats());
    bucket.fetching().stop_fetchers();
    for fetcher in fetchers {
        assert!(fetcher.join());
    }
    bucket.close().expect("the disk works");
}
