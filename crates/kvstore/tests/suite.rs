//! The suite on each backend.

use std::path::Path;

use base::env::Env;
use kvstore::suite::{self, Subject};
use kvstore::{CompactionSteps, Couch, CouchConfig, Journaled, JournaledConfig, KvStore, Memory};

struct InMemory(Memory);

impl Subject for InMemory {
    fn store(&self) -> &dyn KvStore {
        &self.0
    }

    fn restart(&mut self) {}
}

struct OnDisk {
    dir: tempfile::TempDir,
    config: CouchConfig,
    store: Couch,
}

impl OnDisk {
    fn new(config: CouchConfig) -> OnDisk {
        let dir = tempfile::tempdir().expect("a folder");
        let store = open(dir.path(), config);
        OnDisk { dir, config, store }
    }
}

fn open(dir: &Path, config: CouchConfig) -> Couch {
    Couch::open(Env::real(), dir, config).expect("the bucket opens")
}

impl Subject for OnDisk {
    fn store(&self) -> &dyn KvStore {
        &self.store
    }

    fn restart(&mut self) {
        self.store = open(self.dir.path(), self.config);
    }
}

#[test]
fn memory() {
    suite::run(|| InMemory(Memory::default()));
}

#[test]
fn couch() {
    suite::run(|| OnDisk::new(CouchConfig::default()));
}

#[test]
fn couch_with_few_descriptors_and_small_nodes() {
    let tuning = couchstore::Tuning { leaf_bytes: 300, interior_bytes: 300, compress_nodes: true };
    let compaction = CompactionSteps { step_bytes: 500, last_changes: 3 };
    suite::run(|| OnDisk::new(CouchConfig { max_open_files: 2, tuning, compaction }));
}

struct WithJournal {
    dir: tempfile::TempDir,
    config: JournaledConfig,
    /// Whether it is closed before it is opened again, or just dropped.
    closes: bool,
    store: Option<Journaled>,
}

impl WithJournal {
    fn new(config: JournaledConfig, closes: bool) -> WithJournal {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Journaled::open(Env::real(), dir.path(), config).expect("the bucket opens");
        WithJournal { dir, config, closes, store: Some(store) }
    }
}

impl Subject for WithJournal {
    fn keeps_commits(&self) -> bool {
        false
    }

    fn store(&self) -> &dyn KvStore {
        self.store.as_ref().expect("it is open")
    }

    fn restart(&mut self) {
        let store = self.store.take().expect("it is open");
        if self.closes {
            store.close().expect("everything can be filed");
        }
        drop(store);
        let store = Journaled::open(Env::real(), self.dir.path(), self.config).expect("the bucket opens");
        self.store = Some(store);
    }
}

#[test]
fn journaled_and_closed() {
    suite::run(|| WithJournal::new(JournaledConfig::default(), true));
}

#[test]
fn journaled_and_killed() {
    suite::run(|| WithJournal::new(JournaledConfig::default(), false));
}

#[test]
fn journaled_with_little_room() {
    let couch = CouchConfig { max_open_files: 2, ..CouchConfig::default() };
    let config = JournaledConfig { couch, journal_bytes: 64 << 10, ..JournaledConfig::default() };
    suite::run(|| WithJournal::new(config, false));
}

#[test]
fn open_files_are_bounded() {
    let subject = OnDisk::new(CouchConfig { max_open_files: 4, ..CouchConfig::default() });
    for round in 0..3 {
        for vb in 0..10 {
            let state = kvstore::VbStateDoc { max_cas: round, ..Default::default() };
            subject.store.save_state(base::VbId(vb), &state).expect("a save");
            assert!(subject.store.stats().open_files <= 4);
        }
    }
    let stats = subject.store.stats();
    assert_eq!((stats.saves, stats.file_evictions, stats.failures), (30, 16, 0));
}
