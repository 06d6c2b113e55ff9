//! The suite on the log-structured store.

mod common;

use std::path::Path;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::{Env, OpenMode};
use common::WithJournal;
use kvstore::{Background, FilesConfig, JournaledConfig, KvStore, Log, LogConfig};
use store_suite::{self as suite, Subject};

struct Alone {
    env: Env,
    dir: tempfile::TempDir,
    config: LogConfig,
    store: Option<Log>,
}

impl Alone {
    fn on(env: Env, config: LogConfig) -> Alone {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Some(open(&env, dir.path(), config));
        Alone { env, dir, config, store }
    }
}

fn open(env: &Env, dir: &Path, config: LogConfig) -> Log {
    Log::open(env.clone(), dir, config).expect("the bucket opens")
}

impl Subject for Alone {
    fn store(&self) -> &dyn KvStore {
        self.store.as_ref().expect("it is open")
    }

    fn restart(&mut self) {
        self.store = None;
        self.store = Some(open(&self.env, self.dir.path(), self.config));
    }

    fn keeps_commits(&self) -> bool {
        false
    }
}

/// Everything happens after a few batches.
fn small() -> LogConfig {
    LogConfig {
        store: logstore::Config {
            shards: 2,
            most_open_files: 2,
            cache_bytes: 64 << 10,
            step_bytes: 500,
            merge_runs: 2,
            small_run_bytes: 600,
            small_segment_bytes: 2 << 10,
            small_segments: 3,
            manifest_bytes: 4 << 10,
            ..logstore::Config::default()
        },
        ..LogConfig::default()
    }
}

fn journaled(log: LogConfig, journal_bytes: u64) -> JournaledConfig {
    JournaledConfig { files: FilesConfig::Log(log), journal_bytes, ..JournaledConfig::default() }
}

fn encrypted() -> Env {
    EncryptedDisk::env(&Env::real(), DataKeys::ephemeral(&Env::real()))
}

#[test]
fn alone() {
    suite::run(|| Alone::on(Env::real(), LogConfig::default()));
}

#[test]
fn alone_with_small_files() {
    suite::run(|| Alone::on(Env::real(), small()));
}

#[test]
fn behind_a_journal() {
    for closes in [false, true] {
        suite::run(|| WithJournal::on(Env::real(), journaled(LogConfig::default(), 1 << 30), closes));
        suite::run(|| WithJournal::on(Env::real(), journaled(small(), 64 << 10), closes));
    }
}

#[test]
fn encrypted_behind_a_journal() {
    suite::run(|| WithJournal::on(encrypted(), journaled(small(), 64 << 10), false));
}

#[test]
fn everything_is_done_in_the_end() {
    let subject = Alone::on(Env::real(), small());
    let store = subject.store();
    for seqno in 1..200 {
        let items = [suite::version(0, &format!("key{}", seqno % 17), seqno, &[b'v'; 100])];
        let batch = kvstore::SaveBatch { items: &items, state: &kvstore::VbStateDoc::default() };
        store.save(base::VbId(3), batch).expect("a save");
    }
    let mut steps = 0;
    while store.background_step().expect("a step") == Background::Worked {
        steps += 1;
        assert!(steps < 10_000, "there is an end");
    }
    let usage = store.usage(base::VbId(3)).expect("it is there");
    assert!(usage.file_bytes < 20 * 1000, "{usage:?}");
}

/// Each vBucket's compaction rewrites nothing while others wait; the last one rewrites what all of them left, once.
#[test]
fn compacting_all_vbuckets_writes_the_files_about_once() {
    const VBS: u16 = 32;
    let mut random = base::env::sim::SplitMix64::new(1);
    let mut value = || (0..500).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    let subject = Alone::on(Env::real(), LogConfig::default());
    let store = subject.store();
    for round in 0..4 {
        let states = kvstore::VbStateDoc::default();
        let mut batches = Vec::new();
        for _ in 0..VBS {
            // All, then half of them: no segment is wasted as a whole.
            let keys = (1..=20).filter(|at| round == 0 || at % 2 == 0);
            let items = keys.map(|at| suite::version(0, &format!("key{at:02}"), round * 20 + at, &value()));
            batches.push(items.collect::<Vec<_>>());
        }
        let group: Vec<_> = (0..VBS)
            .map(|vb| {
                (base::VbId(vb), kvstore::SaveBatch { items: &batches[usize::from(vb)], state: &states })
            })
            .collect();
        store.save_group(&group).into_iter().for_each(|saved| saved.expect("saved"));
    }
    let usages = || (0..VBS).filter_map(|vb| store.usage(base::VbId(vb)));
    let files = || usages().map(|usage| usage.file_bytes).sum::<u64>();
    let before = files();
    let mut told = (0, 0);
    for vb in 0..VBS {
        let others_wait = || vb + 1 < VBS;
        let request = kvstore::Compaction { others_wait: &others_wait, ..kvstore::Compaction::default() };
        let compacted = store.compact(base::VbId(vb), &request).expect("it is compacted");
        told = (told.0 + compacted.before_bytes, told.1 + compacted.after_bytes);
    }
    let written = store.stats().log.expect("it is such a store").written;
    assert!(written.rewrites > 0 && written.rewrites < before, "{written:?}, {before} before");
    assert!(usages().all(|usage| usage.used_bytes * 100 > usage.file_bytes * 95), "nothing is wasted");
    assert!(told.0 > told.1 && told.1 > 0, "{told:?}");
}

/// A member of a cluster makes a damaged bucket again, and must not do that for what it is only asked.
#[test]
fn what_the_store_refuses_is_no_damage() {
    let env = Env::real();
    let dir = tempfile::tempdir().expect("a folder");
    let config = journaled(LogConfig::default(), 1 << 20);
    let refused =
        kvstore::Journaled::without_journal(env.clone(), dir.path(), config).err().expect("it needs one");
    assert!(!refused.is_damage() && refused.to_string().contains("switched off"), "{refused}");
    drop(open(&env, dir.path(), LogConfig::default()));
    let version = suite::version(0, "k", 1, b"v");
    let state = kvstore::VbStateDoc::default();
    let batch = kvstore::SaveBatch { items: &[version], state: &state };
    open(&env, dir.path(), LogConfig::default()).save(base::VbId(0), batch).expect("saved");
    let couch = kvstore::Couch::open(env, dir.path(), kvstore::CouchConfig::default());
    let refused = couch.err().expect("the files are of another store");
    assert!(!refused.is_damage() && refused.to_string().contains("magma"), "{refused}");
}

/// Files that were there when encryption was switched on are written again while there is nothing else to do.
#[test]
fn what_was_plain_is_encrypted_in_the_background() {
    const BODY: &[u8] = b"a body that nobody may read";
    let plain = Env::real();
    let dir = tempfile::tempdir().expect("a folder");
    let names = || plain.disk.read_dir(dir.path()).expect("a list");
    let shows = |name: &String| {
        let file = plain.disk.open(&dir.path().join(name), OpenMode::Read).expect("it is there");
        let mut bytes = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut bytes, 0).expect("a read");
        bytes.windows(BODY.len()).any(|window| window == BODY) || bytes.starts_with(b"stavel")
    };
    let config = journaled(LogConfig::default(), 1 << 20);
    let store = kvstore::Journaled::open(plain.clone(), dir.path(), config).expect("it opens");
    for seqno in 1..4 {
        let items = [suite::version(0, &format!("key{seqno}"), seqno, BODY)];
        let batch = kvstore::SaveBatch { items: &items, state: &kvstore::VbStateDoc::default() };
        store.save(base::VbId(3), batch).expect("a save");
    }
    store.close().expect("it closes");
    drop(store);
    assert!(names().iter().filter(|name| kvstore::is_log_file(name)).all(shows));
    let env = encrypted();
    let store = kvstore::Journaled::open(env.clone(), dir.path(), config).expect("it opens");
    let mut steps = 0;
    while store.background_step().expect("a step") == Background::Worked {
        steps += 1;
        assert!(steps < 10_000, "there is an end");
    }
    assert!(!names().iter().filter(|name| kvstore::is_log_file(name)).any(shows), "{:?}", names());
    let found = store.get(base::VbId(3), base::DocKey::new(b"key2")).expect("it is read");
    assert_eq!(found.expect("it is there").value(), BODY);
}
