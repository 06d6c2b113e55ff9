//! Backend `memory`: for tests and the simulator. Durable as long as the value lives.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use base::{DocKey, Seqno, VbId, Version};
use parking_lot::Mutex;

use crate::collections::{Owner, PREPARES, Tally, Weight};
use crate::failure::Failure;
use crate::state::VbStateDoc;
use crate::store::{Counts, KvStore, SaveBatch, Saved, States, Stats, StoredVb, Values};

/// What a record costs beyond key and value on a disk of the other backend.
const RECORD_BYTES: u64 = 18 + 8;

/// A bucket's documents in maps.
#[derive(Default)]
pub struct Memory {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    vbuckets: BTreeMap<VbId, Vbucket>,
    stats: Stats,
}

#[derive(Clone, Default)]
struct Vbucket {
    by_key: BTreeMap<Box<[u8]>, Version>,
    by_seqno: BTreeMap<Seqno, Version>,
    tally: Tally,
    state: VbStateDoc,
    high_seqno: Seqno,
    tombstones: u64,
    bytes: u64,
}

impl Vbucket {
    fn counts(&self) -> Counts {
        Counts {
            documents: self.tally.documents(),
            tombstones: self.tombstones,
            file_bytes: self.bytes,
            used_bytes: self.bytes,
        }
    }

    fn save(&mut self, version: &Version, saved: &mut Saved) {
        let key = version.stored_key();
        let seqno = version.meta().by_seqno;
        let old = self.by_key.insert(key.into(), version.clone());
        if let Some(old) = &old {
            self.by_seqno.remove(&old.meta().by_seqno);
            self.tombstones -= u64::from(old.is_deleted());
            self.bytes -= weight(old).disk_bytes;
        }
        self.tombstones += u64::from(version.is_deleted());
        self.bytes += weight(version).disk_bytes;
        self.by_seqno.insert(seqno, version.clone());
        self.high_seqno = self.high_seqno.max(seqno);
        let owner = self.tally.change(key, seqno, weight(version), old.as_ref().map(weight));
        if matches!(owner, Owner::Document(_)) {
            let was = old.is_some_and(|old| !old.is_deleted());
            saved.inserted += u64::from(!was && !version.is_deleted());
            saved.updated += u64::from(was && !version.is_deleted());
            saved.deleted += u64::from(was && version.is_deleted());
        }
    }
}

impl Inner {
    fn save(&mut self, vb: VbId, batch: SaveBatch<'_>) -> Saved {
        batch.assert_sorted();
        self.stats.saves += 1;
        self.stats.items_saved += batch.items.len() as u64;
        let vbucket = self.vbuckets.entry(vb).or_default();
        let mut saved = Saved::default();
        for version in batch.items {
            vbucket.save(version, &mut saved);
        }
        vbucket.tally.take_changes();
        vbucket.state = batch.state.clone();
        saved.counts = vbucket.counts();
        saved
    }
}

fn weight(version: &Version) -> Weight {
    let bytes = version.stored_key().len() + version.value().len();
    Weight { deleted: version.is_deleted(), disk_bytes: bytes as u64 + RECORD_BYTES }
}

impl KvStore for Memory {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<Saved, Failure>> {
        let mut inner = self.inner.lock();
        group.iter().map(|(vb, batch)| Ok(inner.save(*vb, *batch))).collect()
    }

    fn get(&self, vb: VbId, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let inner = self.inner.lock();
        Ok(inner.vbuckets.get(&vb).and_then(|vbucket| vbucket.by_key.get(&*key.to_stored().0)).cloned())
    }

    fn scan(
        &self,
        vb: VbId,
        from: Seqno,
        _: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let moment: Vec<Version> = match self.inner.lock().vbuckets.get(&vb) {
            None => return Ok(()),
            Some(vbucket) => vbucket.by_seqno.range(from..).map(|(_, version)| version.clone()).collect(),
        };
        for version in moment {
            if version.key().collection != PREPARES && visit(version).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn states(&self) -> Result<States, Failure> {
        let inner = self.inner.lock();
        let stored = |vbucket: &Vbucket| StoredVb {
            state: vbucket.state.clone(),
            high_seqno: vbucket.high_seqno,
            purge_seqno: Seqno(0),
            counts: vbucket.counts(),
            collections: vbucket.tally.all().to_vec(),
        };
        Ok(inner.vbuckets.iter().map(|(vb, vbucket)| (*vb, Ok(stored(vbucket)))).collect())
    }

    fn counts(&self, vb: VbId) -> Result<Counts, Failure> {
        Ok(self.inner.lock().vbuckets.get(&vb).map(Vbucket::counts).unwrap_or_default())
    }

    fn delete_vbucket(&self, vb: VbId) -> Result<(), Failure> {
        self.inner.lock().vbuckets.remove(&vb);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.inner.lock().stats
    }
}
