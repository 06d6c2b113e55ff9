//! The suite on RocksDB: alone, behind a journal, and after a bucket moved to it.

mod common;

use std::path::Path;
use std::sync::Arc;

use base::env::Env;
use common::WithJournal;
use kvstore::{
    FilesConfig, Journaled, JournaledConfig, KvStore, Movable, MoveStep, RocksConfig, StorageBackend,
    open_rocks,
};
use store_suite::{self as suite, Subject};

struct Alone {
    dir: tempfile::TempDir,
    store: Option<Box<dyn KvStore>>,
}

impl Alone {
    fn new() -> Alone {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Some(open_rocks(Env::real(), dir.path()).expect("the bucket opens"));
        Alone { dir, store }
    }
}

impl Subject for Alone {
    fn store(&self) -> &dyn KvStore {
        &**self.store.as_ref().expect("it is open")
    }

    fn restart(&mut self) {
        // One database is not open twice.
        self.store = None;
        self.store = Some(open_rocks(Env::real(), self.dir.path()).expect("the bucket opens"));
    }
}

fn journaled(rocks: RocksConfig, journal_bytes: u64) -> JournaledConfig {
    JournaledConfig { files: FilesConfig::Rocks(rocks), journal_bytes, ..JournaledConfig::default() }
}

/// Little memory, few descriptors, and many questions whether to go on.
fn small() -> RocksConfig {
    RocksConfig { step_keys: 3, ..RocksConfig::new(1, 1 << 20) }
}

/// It can go back to every commit, since they are few here.
#[test]
fn alone() {
    suite::run(Alone::new);
}

#[test]
fn behind_a_journal() {
    for closes in [false, true] {
        suite::run(|| WithJournal::on(Env::real(), journaled(RocksConfig::default(), 1 << 30), closes));
    }
}

#[test]
fn behind_a_small_journal() {
    suite::run(|| WithJournal::on(Env::real(), journaled(small(), 64 << 10), false));
}

/// A bucket that moved to RocksDB from another store, or from there to the other one.
struct Moved {
    dir: tempfile::TempDir,
    backend: StorageBackend,
    store: Option<Movable>,
}

fn open(dir: &Path, backend: StorageBackend) -> Movable {
    let folder = dir.to_owned();
    let open = move |env: Env, backend| {
        let files = match backend {
            StorageBackend::RocksDb => FilesConfig::Rocks(small()),
            _ => FilesConfig::default(),
        };
        let config = JournaledConfig { files, journal_bytes: 256 << 10, ..JournaledConfig::default() };
        Ok(Arc::new(Journaled::open(env, &folder, config)?) as Arc<dyn KvStore>)
    };
    Movable::open(Env::real(), dir, 64, backend, Box::new(open)).expect("the bucket opens")
}

impl Moved {
    fn from(backend: StorageBackend) -> Moved {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Some(open(dir.path(), backend));
        let mut moved = Moved { dir, backend, store };
        moved.move_it();
        moved
    }

    fn movable(&self) -> &Movable {
        self.store.as_ref().expect("it is open")
    }

    fn move_it(&mut self) {
        let to = match self.movable().backend() {
            StorageBackend::RocksDb => StorageBackend::Couchstore,
            _ => StorageBackend::RocksDb,
        };
        self.movable().begin(to).expect("it begins");
        while self.movable().step().expect("a step") != MoveStep::Moved(to) {}
        self.movable().noted().expect("it is forgotten");
        self.backend = to;
    }
}

impl Subject for Moved {
    fn store(&self) -> &dyn KvStore {
        self.movable()
    }

    fn restart(&mut self) {
        self.store = None;
        self.store = Some(open(self.dir.path(), self.backend));
        // There and back while it is in use: its folder is renamed under an open database.
        self.move_it();
        self.move_it();
    }

    fn keeps_commits(&self) -> bool {
        false
    }
}

#[test]
fn with_moves_there_and_back_at_every_restart() {
    suite::run(|| Moved::from(StorageBackend::Couchstore));
    suite::run(|| Moved::from(StorageBackend::RocksDb));
}
