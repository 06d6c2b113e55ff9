//! The filer and memory: versions that only wait for their files must not fill it.

mod common;

use base::env::Env;
use common::{World, stores};
use engine::Progress;

/// A bucket with a journal, and so many documents of a kilobyte that are journaled and not filed.
fn filled(quota_bytes: u64, documents: u32) -> World {
    let (env, handles) = Env::sim(1);
    let world = stores::open(env, handles, stores::journaled, |config| config.quota_bytes = quota_bytes);
    for number in 0..documents {
        world.set(&format!("key{number}"), &"v".repeat(1000)).expect("there is room");
        assert!(world.bucket.flushing().flush_all());
    }
    while world.bucket.flushing().file_step() == Progress::Worked {}
    world
}

#[test]
fn files_follow_at_once_when_memory_is_short() {
    let (documents, bytes) = (850, 850 * 1000);
    let world = filled(1 << 30, documents);
    assert!(world.bucket.store_stats().unfiled_bytes > bytes, "with room they wait for more");
    let world = filled(1 << 20, documents);
    assert!(world.bucket.memory().is_above_low_watermark(), "or the test tests nothing");
    assert!(world.bucket.store_stats().unfiled_bytes <= (1 << 20) / 16);
}

/// Filing takes syncs: a bucket that is asked for its sizes beside that must not do, or wait for, any of it.
#[test]
fn sizes_of_files_are_told_without_filing() {
    let world = filled(1 << 30, 100);
    let unfiled = world.bucket.store_stats().unfiled_bytes;
    let changes = world.handles.disk.changes();
    let totals = engine::file_totals(&world.bucket);
    assert_eq!(totals.unreadable_vbuckets, 0);
    world.bucket.filed_counts(common::VB).expect("it is read");
    assert_eq!((world.bucket.store_stats().unfiled_bytes, world.handles.disk.changes()), (unfiled, changes));
    let counts = world.bucket.disk_counts(common::VB).expect("that files it");
    assert_eq!(world.bucket.filed_counts(common::VB).expect("it is read"), counts);
    let totals = engine::file_totals(&world.bucket);
    assert_eq!((totals.file_bytes, totals.used_bytes), (counts.file_bytes, counts.used_bytes));
}
