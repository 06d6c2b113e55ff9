//! A file gets smaller and keeps what it holds; a running node and a journal are respected.

use std::io;

use base::env::OpenMode;
use base::env::sim::{SimHandles, SplitMix64};
use base::{ItemKind, VbId, Version};
use expect_test::expect;
use kvstore::{HistoryRetention, Log, LogConfig, SaveBatch, VbStateDoc};
use store_suite::tuned;

use super::*;
use crate::commands::encryption_flags::EncryptionFlags;

const VB: VbId = VbId(17);
const DIR: &str = "/data/buckets/default";

fn save(store: &Couch, mut items: Vec<Version>) {
    items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
    store.save(VB, SaveBatch { items: &items, state: &VbStateDoc::default() }).expect("a save");
}

/// A file with documents that were replaced, tombstones, and a dropped collection.
fn write(env: &Env) -> PathBuf {
    env.disk.create_dir_all(Path::new(DIR)).expect("a folder");
    let store = Couch::open(env.clone(), Path::new(DIR), CouchConfig::default()).expect("the bucket opens");
    let document = |collection, key: &str, seqno| tuned(collection, key, seqno, &[1; 100], |_| ());
    let tombstone = |collection, key: &str, seqno, deleted_s| {
        tuned(collection, key, seqno, b"", |meta| {
            meta.kind = ItemKind::Deletion;
            meta.expiry = deleted_s;
        })
    };
    for round in 0..5 {
        save(&store, (0..40).map(|i| document(0, &format!("k{i}"), round * 40 + i + 1)).collect());
    }
    save(&store, vec![document(9, "a", 201), document(9, "b", 202)]);
    save(&store, vec![tombstone(1, "\u{0}\u{9}_collection", 203, 0)]);
    let now_s = env.clock.unix_s();
    save(&store, vec![tombstone(0, "old", 204, now_s - 10_000), tombstone(0, "new", 205, now_s - 10)]);
    save(&store, vec![document(0, "last", 206)]);
    Path::new(DIR).join("17.couch.1")
}

fn compacted(env: &Env, file: &Path, purge_before: Option<&str>, json: bool) -> anyhow::Result<String> {
    let flags = CompactFlags {
        file: file.to_owned(),
        purge_before: purge_before.map(str::to_owned),
        json,
        encryption: EncryptionFlags::default(),
    };
    let mut out = Vec::new();
    compact(env, &flags, Progress::new(env, Box::new(io::sink()), false), &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

/// The lines with sizes depend on the shape of nodes.
fn without_sizes(text: &str) -> String {
    let line = |line: &str| match line.split_once(' ') {
        Some(("before", _)) => format!("{:<32}  (some)\n", "before"),
        Some(("after", _)) => format!("{:<32}  (less)\n", "after"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn files(env: &Env) -> Vec<String> {
    let names = env.disk.read_dir(Path::new(DIR)).expect("a list");
    names.into_iter().filter(|name| !name.starts_with("catalog")).collect()
}

fn sim() -> Env {
    SimHandles::new(7).env()
}

#[test]
fn a_file_gets_smaller() {
    let env = sim();
    let file = write(&env);
    let first = compacted(&env, &file, Some("1h"), false).expect("a compaction");
    expect![[r#"
        file                              /data/buckets/default/17.couch.2
        before                            (some)
        after                             (less)
        tombstones purged                 1
        documents of dropped collections  2
        purge seqno                       204
    "#]]
    .assert_eq(&without_sizes(&first));
    assert_eq!(files(&env), ["17.couch.2"]);
    let second = compacted(&env, &Path::new(DIR).join("17.couch.2"), None, true).expect("a compaction");
    let second: serde_json::Value = serde_json::from_str(&second).expect("JSON");
    assert_eq!(second["file"], "/data/buckets/default/17.couch.3");
    assert_eq!((&second["purge_seqno"], &second["tombstones_purged"]), (&json!(204), &json!(0)));
    assert!(second["after_bytes"].as_u64() <= second["before_bytes"].as_u64());
    let store = Couch::open(env.clone(), Path::new(DIR), CouchConfig::default()).expect("the bucket opens");
    let counts = store.counts(VB).expect("counts");
    assert_eq!((counts.documents, counts.tombstones), (41, 2));

    // after a clean stop the catalog lists the file: a compaction puts the new one there
    store.close().expect("the disk works");
    drop(store);
    compacted(&env, &Path::new(DIR).join("17.couch.3"), None, true).expect("a compaction");
    assert_eq!(files(&env), ["17.couch.4"]);
    let store = Couch::open(env.clone(), Path::new(DIR), CouchConfig::default()).expect("the bucket opens");
    let counts = store.counts(VB).expect("the file that is listed");
    assert_eq!((counts.documents, counts.tombstones), (41, 2));
}

#[test]
fn what_cannot_be_compacted_is_told() {
    let env = sim();
    let file = write(&env);
    let told = |file: &Path, purge_before| match compacted(&env, file, purge_before, false) {
        Ok(said) => panic!("{said}"),
        Err(error) => error.to_string(),
    };
    let dir = Path::new(DIR);
    expect!["cannot open /data/buckets/default/18.couch.1 at offset 0: entity not found"]
        .assert_eq(&told(&dir.join("18.couch.1"), None).replace("vBucket 18: ", ""));
    expect!["cannot open /data/buckets/default/readme: it is not named like 17.couch.3"]
        .assert_eq(&told(&dir.join("readme"), None));
    expect!["--purge-before: `soon` is no time; write it like 3d, 12h, 15m, 90s or in seconds since 1970"]
        .assert_eq(&told(&file, Some("soon")));
    env.disk.open(&dir.join("17.couch.2"), OpenMode::CreateNew).expect("a file");
    expect![
        "cannot open /data/buckets/default/17.couch.1: there is a newer file of this vBucket, which is the one in use"
    ]
    .assert_eq(&told(&file, None));
    env.disk.remove_file(&dir.join("17.couch.2")).expect("a file");
    env.disk.open(&dir.join("journal.1"), OpenMode::CreateNew).expect("a file");
    expect!["/data/buckets/default/journal.1 holds what is not in the files yet: start the node and stop it cleanly first; nothing was changed"]
        .assert_eq(&told(&file, None));
    env.disk.remove_file(&dir.join("journal.1")).expect("a file");
    assert_eq!(files(&env), ["17.couch.1"]);
}

#[test]
fn a_running_node_is_respected() {
    let folder = tempfile::tempdir().expect("a folder");
    let env = Env::real();
    let _node = DataDir::take(folder.path(), &env).expect("nobody else has it");
    let file = folder.path().join("buckets/default/0.couch.1");
    let error = run(
        &env,
        &CompactFlags { file, purge_before: None, json: false, encryption: EncryptionFlags::default() },
    );
    let said = format!("{:#}", error.expect_err("a node runs"));
    assert!(said.contains("a node runs on") && said.ends_with("nothing was changed"), "{said}");
}

/// A log-structured store with rounds of documents of which the last counts, closed.
fn write_log(env: &Env, config: LogConfig) {
    let store = Log::open(env.clone(), Path::new(DIR), config).expect("the bucket opens");
    for vb in [VbId(3), VB] {
        for round in 0..5u64 {
            let mut rng = SplitMix64::new(round);
            let mut value = || -> Vec<u8> { (0..1000).map(|_| rng.next_u64() as u8).collect() };
            let document = |i: u64| tuned(0, &format!("k{i}"), round * 40 + i + 1, &value(), |_| ());
            let mut items: Vec<Version> = (0..40).map(document).collect();
            items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
            // All of it counts, if a history is kept.
            let state = VbStateDoc { history_from: 1, ..VbStateDoc::default() };
            store.save(vb, SaveBatch { items: &items, state: &state }).expect("a save");
        }
    }
    store.close().expect("the disk works");
}

#[test]
fn a_log_structured_store_gets_smaller() {
    let env = sim();
    write_log(&env, LogConfig::default());
    let said = compacted(&env, Path::new(DIR), None, true).expect("a compaction");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["folder"], DIR);
    let [before, after] = ["before_bytes", "after_bytes"].map(|name| said[name].as_u64().expect("a number"));
    assert!(after * 2 < before, "{said}");
    let found = kvstore::check_log(&env, Path::new(DIR), &mut |_| ()).expect("it can be read");
    assert_eq!((found.faults, found.documents), (Vec::new(), 80));
    let store = Log::open(env.clone(), Path::new(DIR), LogConfig::default()).expect("the bucket opens");
    assert_eq!(store.was_closed(), Some(true));
    assert_eq!(store.counts(VB).expect("counts").documents, 40);
}

/// The command does not know for how long the node keeps it.
#[test]
fn a_history_of_changes_stays() {
    let env = sim();
    let history = HistoryRetention { seconds: 36_000, bytes: 0 };
    let config = LogConfig { history, ..LogConfig::default() };
    write_log(&env, config);
    let of = || Log::open(env.clone(), Path::new(DIR), config).expect("the bucket opens").history(VB);
    let before = of();
    assert!(before.start > 0 && before.versions >= 40, "each key was replaced four times: {before:?}");
    compacted(&env, Path::new(DIR), None, true).expect("a compaction");
    assert_eq!((of().start, of().versions), (before.start, before.versions));
}

#[test]
fn all_files_of_a_folder_get_smaller() {
    let env = sim();
    write(&env);
    let said = compacted(&env, Path::new(DIR), Some("1h"), true).expect("a compaction");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["folder"], &said["tombstones_purged"]), (&json!(DIR), &json!(1)));
    assert!(said["after_bytes"].as_u64() < said["before_bytes"].as_u64(), "{said}");
    assert_eq!(files(&env), ["17.couch.2"]);
    let error = compacted(&env, Path::new("/data"), None, false).expect_err("several buckets").to_string();
    assert!(error.starts_with("/data is not the folder of one bucket"), "{error}");
}

#[test]
fn progress_says_which_vbucket_of_how_many() {
    let env = sim();
    let mut progress = Progress::new(&env, Box::new(io::sink()), false);
    let now = CompactionProgress { done_bytes: 1024, total_bytes: 4096 };
    assert_eq!(progress.line(now), "1.00 KiB of 4.00 KiB copied");
    progress.begin(117, 1024);
    assert_eq!(progress.line(now), "vBucket 118 of 1,024: 1.00 KiB of 4.00 KiB copied");
}
