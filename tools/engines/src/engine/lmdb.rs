//! LMDB: a copy-on-write B+tree in C, read through a memory map. Each batch is a transaction.

use std::path::Path;

use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions};

use super::{Engine, sort};
use crate::work::Item;

/// Room in the address space; the file takes what it needs.
const MAP_BYTES: usize = 64 << 30;

/// An environment with one database, set up as it comes: written with system calls, synced twice a commit.
pub struct Lmdb {
    env: Env,
    database: Database<Bytes, Bytes>,
    staged: Vec<Item>,
}

impl Lmdb {
    /// In an empty folder.
    pub fn open(dir: &Path) -> Result<Lmdb> {
        // SAFETY: the folder was made for this process alone, so nobody else changes the file under the map.
        let env = unsafe { EnvOpenOptions::new().map_size(MAP_BYTES).open(dir)? };
        let mut transaction = env.write_txn()?;
        let database = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb { env, database, staged: Vec::new() })
    }
}

impl Engine for Lmdb {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items;
    }

    fn save(&mut self) -> Result<()> {
        sort(&mut self.staged);
        let mut transaction = self.env.write_txn()?;
        for item in &self.staged {
            self.database.put(&mut transaction, &item.key, &item.value)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let transaction = self.env.read_txn()?;
        Ok(self.database.get(&transaction, key)?.map(<[u8]>::to_vec))
    }
}
