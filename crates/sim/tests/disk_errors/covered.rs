//! Nothing that works in the background, and no kind of call to the disk, is left out of the table.

use std::collections::BTreeSet;
use std::path::Path;

use base::env::sim::Call;
use base::env::{Disk, Env, OpenMode, RealDisk};
use engine::{Bucket, BucketConfig};
use kvstore::Nothing;

use super::run::{Kind, TASKS, base, calls_of};

/// Chores that ask nothing of the disk themselves, and methods of a store that other methods stand for.
const WITHOUT_A_TASK: &[(&str, &str)] = &[
    ("checkpoint_recovery", "frees memory"),
    ("pager", "evicts from memory what is on disk"),
    ("expiry_pager", "makes changes, which the flusher saves"),
    ("tombstone_purger", "of ephemeral buckets, which have no files of documents"),
    ("compressor", "works in memory"),
    ("defragmenter", "works in memory"),
    ("account_check", "works in memory"),
    ("sync_writes", "makes changes, which the flusher saves"),
    ("range_scans", "closes files that were only read"),
    ("save", "is `save_group` of one"),
    ("save_state", "is `save_group` of one"),
    ("tune", "notes what later steps go by"),
    ("counts", "is part of `states`"),
    ("stored_vbucket", "is `states` of one"),
    ("filed_counts", "is `counts` without the journal"),
    ("filed_snapshot", "is `snapshot` without the journal"),
    ("usage", "answers from memory"),
    ("each_collection", "answers from memory"),
    ("take_changed", "answers from memory"),
    ("stats", "answers from memory"),
    ("hold_at_most", "is a number"),
    ("is_journaled", "answers from memory"),
    ("take_damage", "answers from memory"),
    ("has_vbucket_files", "answers from memory"),
    ("adopt_file", "is refused at each call in engine/tests/fill_by_file.rs"),
];

fn covered() -> BTreeSet<&'static str> {
    let without = WITHOUT_A_TASK.iter().map(|(name, _)| *name);
    TASKS.iter().flat_map(|task| task.covers.iter().copied()).chain(without).collect()
}

fn sources(folder: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let names = RealDisk.read_dir(&folder).expect("it is there");
    let read = |name: &String| {
        let file = RealDisk.open(&folder.join(name), OpenMode::Read).expect("it is there");
        let mut bytes = vec![0; file.len().expect("it can be read") as usize];
        file.read_at(&mut bytes, 0).expect("it can be read");
        String::from_utf8(bytes).expect("it is text")
    };
    names.iter().filter(|name| name.ends_with(".rs")).map(read).collect()
}

/// Names of functions whose line begins like this.
fn functions<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    let rest = text.lines().filter_map(move |line| line.strip_prefix(begin));
    rest.filter_map(|rest| rest.split_once(['(', '<']).map(|(name, _)| name))
}

#[test]
fn every_thread_of_a_bucket_has_a_task() {
    let text = sources("../engine/src");
    let covered = covered();
    let is_thread = |name: &&str| name.starts_with("run_") || name.starts_with("help_");
    let threads: BTreeSet<&str> = functions(&text, "    pub fn ").filter(is_thread).collect();
    assert!(threads.len() >= 8, "the engine's threads are found: {threads:?}");
    let missing: Vec<&&str> = threads.iter().filter(|name| !covered.contains(*name)).collect();
    assert!(missing.is_empty(), "add a task for {missing:?} to `TASKS`");
}

#[test]
fn every_chore_has_a_task() {
    let (env, _) = Env::sim(1);
    let mut config = BucketConfig::new("b", "/data/b".into());
    config.vbuckets = 1;
    let bucket = Bucket::open(config, env, std::sync::Arc::new(Nothing)).expect("the disk is well");
    let covered = covered();
    for chore in bucket.maintenance().chore_stats() {
        let name = chore.name;
        assert!(
            covered.contains(name),
            "add a task for the chore {name} to `TASKS`, or say why it needs none"
        );
    }
}

#[test]
fn every_method_of_a_store_has_a_task() {
    let text = include_str!("../../../kvstore/src/store.rs");
    let (_, text) = text.split_once("pub trait KvStore").expect("it is there");
    let (text, _) = text.split_once("\n}\n").expect("it ends");
    let covered = covered();
    let methods: Vec<&str> = functions(text, "    fn ").collect();
    assert!(methods.len() >= 20, "the trait's methods are found: {methods:?}");
    for name in methods {
        assert!(covered.contains(name), "add a task for {name} to `TASKS`, or say why it needs none");
    }
}

#[test]
fn every_kind_of_call_fails_in_a_task() {
    let mut made = BTreeSet::new();
    for kind in Kind::ALL {
        let base = base(kind);
        for task in TASKS.iter().filter(|task| task.is_with(kind)) {
            let calls = calls_of(&base, task);
            assert!(!calls.is_empty(), "{kind:?}: {} asks nothing of the disk", task.name);
            made.extend(calls.into_keys());
        }
    }
    let all: BTreeSet<Call> = Call::ALL.into_iter().collect();
    assert_eq!(made, all, "each kind of call is made by a task");
}
