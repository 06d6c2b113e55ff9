//! Backend `nothing`: of a bucket without a disk. Takes everything, keeps nothing.

use base::{DocKey, Seqno, VbId, Version};

use crate::compaction::{Compacted, Compaction, RolledBack};
use crate::failure::Failure;
use crate::store::{Counts, KvStore, SaveBatch, Snapshot, States, Stats};

/// The store of a bucket whose documents are in memory only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl KvStore for Nothing {
    fn save_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<(), Failure>> {
        group.iter().map(|_| Ok(())).collect()
    }

    fn get(&self, _: VbId, _: DocKey<'_>) -> Result<Option<Version>, Failure> {
        Ok(None)
    }

    fn snapshot(&self, _: VbId) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        Ok(None)
    }

    fn states(&self) -> Result<States, Failure> {
        Ok(States::new())
    }

    fn counts(&self, _: VbId) -> Result<Counts, Failure> {
        Ok(Counts::default())
    }

    /// Nothing ever changes.
    fn take_changed(&self, _: &mut dyn FnMut(VbId)) -> bool {
        true
    }

    fn delete_vbucket(&self, _: VbId) -> Result<(), Failure> {
        Ok(())
    }

    fn rollback(&self, _: VbId, _: Seqno) -> Result<RolledBack, Failure> {
        Ok(RolledBack::default())
    }

    fn compact(&self, vb: VbId, _: &Compaction<'_>) -> Result<Compacted, Failure> {
        Err(Failure::NoVbucket { vb })
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}
