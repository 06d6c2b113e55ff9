//! Stave's own storage: one vBucket.

use std::path::Path;

use anyhow::Result;
use base::env::Env;
use base::{Cas, Datatype, DocKey, NewVersion, RevSeqno, Seqno, VbId, Version, VersionMeta};
use kvstore::{Couch, CouchConfig, FailoverEntry, KvStore, SaveBatch, VbStateDoc};

use super::Engine;
use crate::work::Item;

const VBUCKET: VbId = VbId(0);

/// A store with one vBucket, by key and by seqno, as the server uses it.
pub struct Stave {
    store: Box<dyn KvStore>,
    state: VbStateDoc,
    seqno: u64,
    staged: Vec<Version>,
}

impl Stave {
    /// Without a journal: every batch commits in the vBucket's file.
    pub fn files(dir: &Path) -> Result<Stave> {
        Ok(Stave::over(Box::new(Couch::open(Env::real(), dir, CouchConfig::default())?)))
    }

    fn over(store: Box<dyn KvStore>) -> Stave {
        let failover_table = vec![FailoverEntry { id: 1, seq: 0 }];
        let state = VbStateDoc { failover_table, ..VbStateDoc::default() };
        Stave { store, state, seqno: 0, staged: Vec::new() }
    }
}

impl Engine for Stave {
    fn stage(&mut self, items: Vec<Item>) {
        self.staged = items
            .into_iter()
            .map(|item| {
                self.seqno += 1;
                let meta = VersionMeta {
                    cas: Cas(self.seqno << 16),
                    by_seqno: Seqno(self.seqno),
                    rev_seqno: RevSeqno(1),
                    datatype: Datatype::RAW,
                    ..VersionMeta::default()
                };
                NewVersion::new(meta, DocKey::new(&item.key), &[&item.value]).publish()
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
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let version = self.store.get(VBUCKET, DocKey::new(key))?;
        Ok(version.map(|version| version.value().to_vec()))
    }
}
