//! redb: a copy-on-write B+tree in Rust. Each batch is a transaction.

use std::path::Path;

use anyhow::Result;
use redb::{Database, ReadableDatabase, TableDefinition};

use super::{Engine, sort};
use crate::work::Item;

const DOCUMENTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("documents");

/// A database with one table, set up as it comes.
pub struct Redb {
    database: Database,
    staged: Vec<Item>,
}

impl Redb {
    /// In an empty folder.
    pub fn open(dir: &Path) -> Result<Redb> {
        Ok(Redb { database: Database::create(dir.join("documents.redb"))?, staged: Vec::new() })
    }
}

impl Engine for Redb {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items;
    }

    fn save(&mut self) -> Result<()> {
        sort(&mut self.staged);
        let transaction = self.database.begin_write()?;
        {
            let mut table = transaction.open_table(DOCUMENTS)?;
            for item in &self.staged {
                table.insert(&item.key[..], &item.value[..])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.database.begin_read()?.open_table(DOCUMENTS)?;
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }
}
