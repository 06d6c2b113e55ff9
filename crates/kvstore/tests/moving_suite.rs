//! The suite on a store that can be moved to another one: before, while vBuckets are in both stores, after, and with a move
//! at every restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::Env;
use kvstore::{
    CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, Movable, MoveStep,
    StorageBackend,
};
use store_suite::{self as suite, Subject};

const BOTH: [StorageBackend; 2] = [StorageBackend::Couchstore, StorageBackend::LogStructured];

/// How far a move is while the suite runs.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Before,
    /// It has begun, and the vBuckets are in the first store.
    InFirst,
    /// They are in the other store, which is still beside the first one.
    InOther,
    After,
    /// Each restart is followed by a move to the other store, and one back.
    Often,
    /// Each restart is followed by a move that is cancelled when all are in the other store.
    Cancelled,
}

struct Moved {
    env: Env,
    dir: PathBuf,
    /// Of a real disk.
    _folder: Option<tempfile::TempDir>,
    backend: StorageBackend,
    state: State,
    closes: bool,
    store: Option<Movable>,
}

fn other(backend: StorageBackend) -> StorageBackend {
    if backend == BOTH[0] { BOTH[1] } else { BOTH[0] }
}

fn files(backend: StorageBackend) -> FilesConfig {
    let store = logstore::Config {
        shards: 2,
        step_bytes: 500,
        small_run_bytes: 600,
        small_segment_bytes: 2 << 10,
        small_segments: 3,
        manifest_bytes: 4 << 10,
        ..logstore::Config::default()
    };
    match backend {
        StorageBackend::Couchstore => FilesConfig::Couch(CouchConfig::default()),
        StorageBackend::LogStructured => FilesConfig::Log(LogConfig { store, ..LogConfig::default() }),
        StorageBackend::RocksDb => FilesConfig::Rocks(kvstore::RocksConfig::default()),
    }
}

fn open(env: &Env, dir: &Path, backend: StorageBackend) -> Movable {
    let folder = dir.to_owned();
    let open = move |env: Env, backend| {
        let (journal_bytes, file_after) = (256 << 10, Duration::from_secs(1));
        let config = JournaledConfig { files: files(backend), journal_bytes, file_after };
        Ok(Arc::new(Journaled::open(env, &folder, config)?) as Arc<dyn KvStore>)
    };
    Movable::open(env.clone(), dir, 1024, backend, Box::new(open)).expect("the bucket opens")
}

impl Moved {
    fn on_real_disk(env: Env, backend: StorageBackend, state: State) -> Moved {
        let folder = tempfile::tempdir().expect("a folder");
        Moved::at((env, folder.path().to_owned(), Some(folder)), backend, state, false)
    }

    fn simulated(backend: StorageBackend, state: State, closes: bool) -> Moved {
        Moved::at((Env::sim(1).0, "/data/b".into(), None), backend, state, closes)
    }

    fn at(
        (env, dir, folder): (Env, PathBuf, Option<tempfile::TempDir>),
        backend: StorageBackend,
        state: State,
        closes: bool,
    ) -> Moved {
        let store = open(&env, &dir, backend);
        let moved = Moved { env, dir, _folder: folder, backend, state, closes, store: Some(store) };
        match state {
            State::Before | State::Often | State::Cancelled => {}
            State::InFirst => moved.begin(),
            State::InOther => {
                moved.begin();
                assert_eq!(moved.movable().step().expect("a step"), MoveStep::Worked);
                let progress = moved.movable().progress().expect("it moves");
                assert_eq!((progress.vbuckets, progress.of_vbuckets), (1024, 1024));
            }
            State::After => moved.move_all(),
        }
        moved
    }

    fn movable(&self) -> &Movable {
        self.store.as_ref().expect("it is open")
    }

    fn begin(&self) {
        self.movable().begin(other(self.movable().backend())).expect("it begins");
    }

    fn steps(&self) -> MoveStep {
        loop {
            match self.movable().step().expect("a step") {
                MoveStep::Worked => {}
                MoveStep::Waiting => panic!("{:?}", self.movable().progress()),
                end => return end,
            }
        }
    }

    fn move_all(&self) {
        let to = other(self.movable().backend());
        self.begin();
        assert_eq!(self.steps(), MoveStep::Moved(to));
        self.movable().noted().expect("it is forgotten");
        assert_eq!((self.movable().backend(), self.movable().progress()), (to, None));
    }

    fn move_and_come_back(&self) {
        self.begin();
        while self.movable().progress().is_some_and(|progress| progress.vbuckets < progress.of_vbuckets) {
            self.movable().step().expect("a step");
        }
        self.movable().cancel().expect("it is cancelled");
        assert_eq!(self.steps(), MoveStep::Moved(self.backend));
        self.movable().noted().expect("it is forgotten");
        assert_eq!(self.movable().backend(), self.backend);
    }
}

impl Subject for Moved {
    fn store(&self) -> &dyn KvStore {
        self.movable()
    }

    fn restart(&mut self) {
        let store = self.store.take().expect("it is open");
        if self.closes {
            store.close().expect("everything can be filed");
        }
        if self.state != State::InFirst && self.state != State::InOther {
            self.backend = store.backend();
        }
        drop(store);
        self.store = Some(open(&self.env, &self.dir, self.backend));
        match self.state {
            State::Often => {
                self.move_all();
                self.move_all();
            }
            State::Cancelled => self.move_and_come_back(),
            _ => {}
        }
    }

    fn keeps_commits(&self) -> bool {
        false
    }
}

fn run(state: State) {
    for backend in BOTH {
        for closes in [false, true] {
            suite::run(|| Moved::simulated(backend, state, closes));
        }
    }
}

#[test]
fn before_a_move() {
    run(State::Before);
}

#[test]
fn in_the_first_store_of_two() {
    run(State::InFirst);
}

#[test]
fn in_the_other_store_of_two() {
    run(State::InOther);
}

#[test]
fn after_a_move() {
    run(State::After);
}

#[test]
fn with_a_move_at_every_restart() {
    run(State::Often);
}

#[test]
fn with_a_cancelled_move_at_every_restart() {
    run(State::Cancelled);
}

#[test]
fn encrypted_on_a_real_disk() {
    let env = EncryptedDisk::env(&Env::real(), DataKeys::ephemeral(&Env::real()));
    for backend in BOTH {
        suite::run(|| Moved::on_real_disk(env.clone(), backend, State::After));
    }
}
