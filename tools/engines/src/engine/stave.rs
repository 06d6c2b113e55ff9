//! Stave's own storage: one vBucket, with the journal in front of its file and without.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use base::env::Env;
use base::{DocKey, VbId, Version};
use store_suite::version;
use kvstore::{
    Background, Couch, CouchConfig, FailoverEntry, Failure, Journaled, JournaledConfig, KvStore, SaveBatch,
    VbStateDoc,
};

use super::Engine;
use crate::work::Item;

const VBUCKET: VbId = VbId(0);
/// As the server looks whether there is something to do behind the saves.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A store with one vBucket, by key and by seqno, as the server uses it.
pub struct Stave {
    store: Arc<dyn KvStore>,
    filer: Option<Filer>,
    state: VbStateDoc,
    seqno: u64,
    staged: Vec<Version>,
}

/// The thread that brings the files up to date.
struct Filer {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Stave {
    /// Without a journal: every batch commits in the vBucket's file.
    pub fn files(dir: &Path) -> Result<Stave> {
        let store = Arc::new(Couch::open(Env::real(), dir, CouchConfig::default())?);
        Ok(Stave::over(store, None))
    }

    /// As it comes: batches are durable in the journal, a thread files them.
    pub fn journaled(dir: &Path) -> Result<Stave> {
        let store: Arc<dyn KvStore> =
            Arc::new(Journaled::open(Env::real(), dir, JournaledConfig::default())?);
        let filer = Filer::start(store.clone())?;
        Ok(Stave::over(store, Some(filer)))
    }

    fn over(store: Arc<dyn KvStore>, filer: Option<Filer>) -> Stave {
        let failover_table = vec![FailoverEntry { id: 1, seq: 0 }];
        let state = VbStateDoc { failover_table, ..VbStateDoc::default() };
        Stave { store, filer, state, seqno: 0, staged: Vec::new() }
    }
}

impl Filer {
    fn start(store: Arc<dyn KvStore>) -> Result<Filer> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let work = move || {
            while !stop.load(Ordering::Relaxed) {
                if store.background_step()? == Background::Idle {
                    thread::park_timeout(LOOK_EVERY);
                }
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("filer".to_owned()).spawn(work)?;
        Ok(Filer { stopping, thread: Some(thread) })
    }

    fn stop(&mut self) -> Result<()> {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            thread.join().map_err(|_| anyhow!("the filer panicked"))??;
        }
        Ok(())
    }
}

impl Drop for Stave {
    fn drop(&mut self) {
        if let Some(filer) = &mut self.filer
            && let Err(error) = filer.stop()
        {
            eprintln!("filing failed: {error:#}");
        }
    }
}

impl Engine for Stave {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items
            .into_iter()
            .map(|item| {
                self.seqno += 1;
                version(0, &item.key, self.seqno, &item.value)
            })
            .collect();
    }

    fn save(&mut self) -> Result<()> {
        self.staged.sort_unstable_by(|a, b| a.stored_key().cmp(b.stored_key()));
        self.store.save(VBUCKET, SaveBatch { items: &self.staged, state: &self.state })?;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.staged.clear();
        // Exact counts need the file: it is brought up to date first.
        self.store.counts(VBUCKET)?;
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let version = self.store.get(VBUCKET, DocKey::new(key))?;
        Ok(version.map(|version| version.value().to_vec()))
    }
}
