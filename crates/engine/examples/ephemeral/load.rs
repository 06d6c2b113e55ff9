//! A bucket under load: a writer, a reader of ranges, the housekeeper; counts once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::env::Env;
use base::{Cas, Datatype, DocKey, Seqno, VbId, vbucket_map};
use engine::{Bucket, BucketConfig, BucketKind, StoreMode, StoreRequest};
use kvstore::Snapshot;

/// Of so many changes one is a deletion.
const DELETIONS: u64 = 4;
/// Items that the reader takes at once; it rests between two slices, as a stream does whose client is slow.
const SLICE_ITEMS: usize = 100;
const SLICE_BYTES: usize = 1 << 20;
const REST: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Counts {
    sets: AtomicU64,
    deletions: AtomicU64,
    ranges: AtomicU64,
    delivered: AtomicU64,
    longest_slice_us: AtomicU64,
    is_over: AtomicBool,
}

fn open(vbuckets: u16) -> Arc<Bucket> {
    let dir = std::env::temp_dir().join(format!("stave-ephemeral-{}", std::process::id()));
    let mut config = BucketConfig::new("cache", dir);
    (config.vbuckets, config.kind, config.quota_bytes) = (vbuckets, BucketKind::Ephemeral, 8 << 30);
    let bucket =
        Bucket::open_cold(config, Env::real(), Arc::new(kvstore::Nothing)).expect("the folder can be made");
    let set = |name, value| bucket.set_param(name, value).expect("it is right");
    set("ephemeral_metadata_purge_age", "3");
    set("ephemeral_metadata_purge_interval", "1");
    Arc::new(bucket)
}

fn write(bucket: &Bucket, keys: u64, counts: &Counts) {
    let mut random = super::list::random(keys * DELETIONS);
    let body = [b'v'; 100];
    while !counts.is_over.load(Ordering::Relaxed) {
        let chance = random();
        let name = format!("key-{:016}", chance / DELETIONS);
        let (key, now) = (DocKey::new(name.as_bytes()), bucket.now());
        let vb = vbucket_map::vbucket_of(name.as_bytes(), bucket.vbuckets());
        if chance.is_multiple_of(DELETIONS) {
            let deleted = bucket.documents().delete(vb, key, Cas::ANY, now).is_ok();
            counts.deletions.fetch_add(u64::from(deleted), Ordering::Relaxed);
            continue;
        }
        let request = StoreRequest {
            key,
            body: &body,
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(vb, &request, now).expect("there is room");
        counts.sets.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads one vBucket after the other from its beginning, and holds it to what a snapshot promises.
fn read(bucket: &Arc<Bucket>, counts: &Counts) {
    let mut vb = 0;
    while !counts.is_over.load(Ordering::Relaxed) {
        let mut range = bucket.streams().memory_range(VbId(vb), Seqno(0)).expect("few are open");
        let mut last = Seqno(0);
        while !range.is_done() {
            let begin = Instant::now();
            let items = range.next(SLICE_ITEMS, SLICE_BYTES).expect("it is there");
            let took_us = begin.elapsed().as_micros() as u64;
            counts.longest_slice_us.fetch_max(took_us, Ordering::Relaxed);
            counts.delivered.fetch_add(items.len() as u64, Ordering::Relaxed);
            for version in items {
                assert!(version.meta().by_seqno > last && version.meta().by_seqno <= range.high_seqno());
                last = version.meta().by_seqno;
            }
            std::thread::sleep(REST);
        }
        counts.ranges.fetch_add(1, Ordering::Relaxed);
        vb = (vb + 1) % bucket.vbuckets();
    }
}

fn row(second: u64, bucket: &Bucket, counts: &Counts) {
    let all = bucket.stats().all();
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let list = all.seq_list_bytes as f64 / all.seq_list_items.max(1) as f64;
    println!(
        "| {second} | {} | {} | {} | {} | {} | {} | {list:.1} | {} | {} | {} |",
        get(&counts.sets),
        get(&counts.deletions),
        all.documents,
        all.tombstones,
        all.stale_items,
        all.stale_bytes >> 10,
        get(&counts.ranges),
        get(&counts.delivered),
        bucket.memory().used_bytes() >> 20,
    );
}

/// Shows the counts once a second.
pub fn run(seconds: u64, keys: u64, vbuckets: u16) {
    let bucket = open(vbuckets);
    let counts = Counts::default();
    println!(
        "A bucket of {vbuckets} vBuckets under load, one change in {DELETIONS} a deletion; tombstones are purged after 3 s, every second.\n"
    );
    println!(
        "| second | sets | deletions | documents | tombstones | stale | stale KiB | list bytes/item | ranges | delivered | used MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| bucket.maintenance().run_keeper());
        let reader = scope.spawn(|| read(&bucket, &counts));
        let writer = scope.spawn(|| write(&bucket, keys, &counts));
        for second in 1..=seconds {
            std::thread::sleep(Duration::from_secs(1));
            row(second, &bucket, &counts);
        }
        counts.is_over.store(true, Ordering::Relaxed);
        writer.join().expect("nothing speaks against writing");
        reader.join().expect("every range is a snapshot");
        // With nobody writing all tombstones grow old but the last change of each vBucket.
        std::thread::sleep(Duration::from_secs(6));
        row(seconds + 6, &bucket, &counts);
        bucket.maintenance().stop_keeper();
        keeper.join().expect("the housekeeper ends");
    });
    let all = bucket.stats().all();
    assert!(all.tombstones <= u64::from(vbuckets) && all.stale_items == 0, "{all:?}");
    let purger =
        bucket.maintenance().chore_stats().into_iter().find(|chore| chore.name == "tombstone_purger");
    let purger = purger.expect("there is one");
    println!(
        "\nPurger: {} steps, {} ms in all, longest {:.1} ms. Longest slice of {SLICE_ITEMS} for the reader: {} us.",
        purger.steps,
        purger.total_ns / 1_000_000,
        purger.longest_ns as f64 / 1e6,
        counts.longest_slice_us.load(Ordering::Relaxed),
    );
    let account = bucket.memory().account().clone();
    let _ = std::fs::remove_dir_all(&bucket.config().dir);
    drop(bucket);
    println!("After dropping it {} bytes are charged.", account.exact().iter().sum::<i64>());
}
