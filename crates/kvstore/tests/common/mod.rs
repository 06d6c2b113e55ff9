//! What tests of several stores share.

use base::env::Env;
use kvstore::{Journaled, JournaledConfig, KvStore};
use store_suite::Subject;

/// A store behind a journal, in a folder of its own.
pub struct WithJournal {
    env: Env,
    dir: tempfile::TempDir,
    config: JournaledConfig,
    /// Whether it is closed before it is opened again, or just dropped.
    closes: bool,
    store: Option<Journaled>,
}

impl WithJournal {
    /// Made in a world.
    pub fn on(env: Env, config: JournaledConfig, closes: bool) -> WithJournal {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Journaled::open(env.clone(), dir.path(), config).expect("the bucket opens");
        WithJournal { env, dir, config, closes, store: Some(store) }
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
        let store =
            Journaled::open(self.env.clone(), self.dir.path(), self.config).expect("the bucket opens");
        self.store = Some(store);
    }
}
