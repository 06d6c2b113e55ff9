//! RocksDB: a log-structured tree in C++. Each batch syncs its write-ahead log.

use std::path::Path;

use anyhow::Result;
use rocksdb::{DB, Options, WaitForCompactOptions, WriteBatch, WriteOptions};

use super::{Engine, sort};
use crate::work::Item;

/// A database set up as it comes, but without compression: nothing here can be compressed.
pub struct RocksDb {
    database: DB,
    staged: Vec<Item>,
}

impl RocksDb {
    /// In an empty folder.
    pub fn open(dir: &Path) -> Result<RocksDb> {
        let mut options = Options::default();
        options.create_if_missing(true);
        Ok(RocksDb { database: DB::open(&options, dir)?, staged: Vec::new() })
    }
}

impl Engine for RocksDb {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items;
    }

    fn save(&mut self) -> Result<()> {
        sort(&mut self.staged);
        let mut batch = WriteBatch::default();
        for item in &self.staged {
            batch.put(&item.key, &item.value);
        }
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.database.write_opt(batch, &options)?;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.database.flush()?;
        self.database.wait_for_compact(&WaitForCompactOptions::default())?;
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.database.get(key)?)
    }
}
