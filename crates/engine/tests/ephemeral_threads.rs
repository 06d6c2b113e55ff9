//! Writers, range readers and the housekeeper at the same time on an ephemeral bucket.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::env::Env;
use base::{Cas, Datatype, Seqno};
use common::{VB, doc};
use engine::{Bucket, BucketConfig, BucketKind, StoreMode, StoreRequest};
use kvstore::Snapshot;

const WRITERS: u64 = 2;
const READERS: usize = 2;
const KEYS: u64 = 400;
const WRITES: u64 = 20_000;

fn set(bucket: &Bucket, key: u64, number: u64) {
    let (name, text) = (key.to_string(), number.to_string());
    let request = StoreRequest {
        key: doc(&name),
        body: text.as_bytes(),
        datatype: Datatype::RAW,
        flags: 0,
        expiry: 0,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    bucket.documents().store(VB, &request, bucket.now()).expect("there is room");
}

/// Each writer has keys of its own, and gives them rising numbers; every seventh change is a deletion.
fn write(bucket: &Bucket, writer: u64) {
    for number in 0..WRITES {
        let key = (number * 37 % KEYS) * WRITERS + writer;
        if number % 7 == 6 {
            let now = bucket.now();
            let _ = bucket.documents().delete(VB, doc(&key.to_string()), Cas::ANY, now);
        } else {
            set(bucket, key, number);
        }
        if number % 16 == 0 {
            std::thread::yield_now();
        }
    }
}

/// Reads everything in slices. What is delivered must be a snapshot: in order, each key once, and all keys that nobody
/// ever touches.
fn read_all(bucket: &Arc<Bucket>, untouched: u64, slice: usize) -> usize {
    let mut range = bucket.streams().memory_range(VB, Seqno(0)).expect("few are open");
    let mut last = Seqno(0);
    let mut keys = BTreeMap::new();
    while !range.is_done() {
        for version in range.next(slice, usize::MAX).expect("it is there") {
            let seqno = version.meta().by_seqno;
            assert!(seqno > last && seqno <= range.high_seqno(), "{seqno:?} after {last:?}");
            last = seqno;
            let before = keys.insert(version.stored_key().to_vec(), version.is_deleted());
            assert_eq!(before, None, "a snapshot has each key once");
        }
        std::thread::yield_now();
    }
    let there = (0..untouched)
        .filter(|n| keys.contains_key([b"\0still", n.to_string().as_bytes()].concat().as_slice()));
    assert_eq!(there.count() as u64, untouched);
    keys.len()
}

#[test]
fn ranges_are_snapshots_whatever_happens_meanwhile() {
    let (env, handles) = Env::sim(77);
    let mut config = BucketConfig::new("cache", "/data/cache".into());
    (config.vbuckets, config.kind) = (8, BucketKind::Ephemeral);
    let bucket =
        Bucket::open_cold(config, env.clone(), Arc::new(kvstore::Nothing)).expect("nothing can fail");
    let bucket = Arc::new(bucket);
    let account = bucket.memory().account().clone();
    let untouched = 300;
    for n in 0..untouched {
        let name = format!("still{n}");
        let request = StoreRequest {
            key: doc(&name),
            body: b"v",
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(VB, &request, bucket.now()).expect("there is room");
    }
    bucket.set_param("ephemeral_metadata_purge_age", "1").expect("it is right");
    bucket.set_param("ephemeral_metadata_purge_interval", "1").expect("it is right");
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| {
            while !written.load(Ordering::Acquire) {
                handles.clock.advance(Duration::from_millis(500));
                bucket.maintenance().keep_step();
                std::thread::yield_now();
            }
        });
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let (bucket, written) = (&bucket, &written);
                scope.spawn(move || {
                    let mut ranges = 0;
                    while !written.load(Ordering::Acquire) || ranges == 0 {
                        read_all(bucket, untouched, 7 + 50 * reader);
                        ranges += 1;
                    }
                    ranges
                })
            })
            .collect();
        let bucket = &bucket;
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(bucket, writer))).collect();
        writers.into_iter().for_each(|writer| writer.join().expect("nothing speaks against writing"));
        written.store(true, Ordering::Release);
        keeper.join().expect("the housekeeper goes on to the end");
        let ranges: usize =
            readers.into_iter().map(|reader| reader.join().expect("every range is one")).sum();
        assert!(ranges >= READERS);
    });
    let expected = bucket.vbucket_stats(VB).expect("it is there");
    assert_eq!(read_all(&bucket, untouched, 100) as u64, expected.documents + expected.tombstones);
    assert!(expected.purge_seqno > Seqno(0), "some tombstones were purged");
    bucket.set_param("ephemeral_metadata_purge_age", "0").expect("it is right");
    handles.clock.advance(Duration::from_secs(2));
    bucket.maintenance().keep_step();
    let stats = bucket.vbucket_stats(VB).expect("it is there");
    let list = stats.seq_list.expect("it has no disk");
    assert!(stats.tombstones <= 1, "the last change may be one");
    assert_eq!((list.items, list.stale_items), (stats.documents + stats.tombstones, 0));
    assert_eq!(bucket.memory().account().exact()[0] as u64, stats.item_bytes);
    drop(Arc::into_inner(bucket).expect("nobody else holds it"));
    assert!(account.exact().iter().all(|bytes| *bytes == 0));
}
