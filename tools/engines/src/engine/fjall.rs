//! fjall: a log-structured tree in Rust. Each batch syncs its journal.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Engine, sort};
use crate::work::Item;

/// A database with one keyspace, set up as it comes, but without compression: nothing here can be compressed.
pub struct Fjall {
    database: Database,
    keyspace: Keyspace,
    staged: Vec<Item>,
}

impl Fjall {
    /// In an empty folder.
    pub fn open(dir: &Path) -> Result<Fjall> {
        let database = Database::builder(dir).open()?;
        let keyspace = database.keyspace("documents", KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, keyspace, staged: Vec::new() })
    }
}

impl Engine for Fjall {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items;
    }

    fn save(&mut self) -> Result<()> {
        sort(&mut self.staged);
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for item in &self.staged {
            batch.insert(&self.keyspace, &item.key[..], &item.value[..]);
        }
        batch.commit()?;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.keyspace.rotate_memtable_and_wait()?;
        while self.database.outstanding_flushes() + self.database.active_compactions() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.keyspace.get(key)?.map(|value| value.to_vec()))
    }
}
