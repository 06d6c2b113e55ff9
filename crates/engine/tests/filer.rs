//! The filer and memory: versions that only wait for their files must not fill it.

mod common;

use std::sync::Arc;

use base::env::Env;
use common::{World, stores};
use engine::Progress;
use kvstore::{FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig};

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

/// A bucket in a log-structured store, behind a journal.
fn logged(env: &Env) -> Arc<dyn KvStore> {
    let config =
        JournaledConfig { files: FilesConfig::Log(LogConfig::default()), ..JournaledConfig::default() };
    let store = Journaled::open(env.clone(), "/data/test".as_ref(), config);
    Arc::new(store.expect("the disk works"))
}

/// What Set Param says of merges and rewrites holds from the filer's next step on.
#[test]
fn a_log_structured_store_is_tuned_by_settings() {
    let (env, handles) = Env::sim(2);
    let world = stores::open(env, handles, logged, |_| ());
    let set = |name, value| drop(world.bucket.set_param(name, value).expect("a setting"));
    let file = || {
        for number in 0..200 {
            world.set(&format!("key{number}"), &"v".repeat(500)).expect("there is room");
        }
        assert!(world.bucket.flushing().flush_all());
        world.bucket.disk_counts(common::VB).expect("that files it");
        while world.bucket.flushing().file_step() == Progress::Worked {}
        world.bucket.store_stats().log.expect("it is log-structured")
    };
    set("log_compaction_paused", "true");
    file();
    let mut paused = file();
    for _ in 0..6 {
        paused = file();
    }
    assert_eq!((paused.written.merges, paused.written.rewrites), (0, 0), "{paused:?}");
    set("log_compaction_paused", "false");
    set("log_merge_runs", "2");
    set("log_waste_percent", "5");
    let going = file();
    assert!(going.written.merges > 0 && going.runs < paused.runs, "{going:?}, {paused:?} before");
    for (name, value) in
        [("log_merge_runs", "1"), ("log_waste_percent", "4"), ("log_compaction_paused", "maybe")]
    {
        assert!(world.bucket.set_param(name, value).is_err(), "{name}={value}");
    }
}
