//! What an ephemeral bucket does with the list of its items: range reads, and tombstones that are forgotten.

use base::{CollectionId, Seqno, SyncWrite, Version};

use crate::removed::Removed;
use crate::seq_list::{ReadId, SeqList, SliceLimits, TombstoneLimits};
use crate::vbucket::{Contents, History};

impl History {
    /// The items in seqno order; nothing if the bucket has a disk.
    pub fn seq_list(&self) -> Option<&SeqList> {
        self.seq_list.as_deref()
    }

    /// Opens a read of the items from `from` on as they are now; nothing if there is no list, or too many read it.
    pub fn open_range(&mut self, from: Seqno) -> Option<ReadId> {
        self.seq_list.as_mut()?.open_range(from)
    }

    /// Delivers what comes next in a range read. Whether there is more; nothing if no such read is open.
    pub fn read_range(&mut self, id: ReadId, limits: SliceLimits, out: &mut Vec<Version>) -> Option<bool> {
        self.seq_list.as_mut()?.read(id, limits, out)
    }

    /// Ends a range read.
    pub fn close_range(&mut self, id: ReadId) {
        if let Some(list) = &mut self.seq_list {
            list.close_range(id);
        }
    }

    /// Takes out stale copies from `from` on that no range read needs, to be dropped outside the lock. Returns where to
    /// go on.
    pub fn sweep_stale(&mut self, from: Seqno, most: usize, out: &mut Vec<Version>) -> Option<Seqno> {
        self.seq_list.as_mut()?.sweep(from, most, out)
    }

    /// Takes out the checkpoints that nobody reads, to be dropped outside the lock.
    pub fn remove_read_checkpoints(&mut self) -> Removed {
        self.checkpoints.remove_closed()
    }
}

impl Contents {
    /// Forgets some tombstones from `from` on that were deleted before a time: they leave the hash table, and become
    /// stale copies in the list, which [`History::sweep_stale`] frees. Whoever stood before one of them cannot go on
    /// from there, which the purge seqno says.
    ///
    /// Puts those that it forgot into `out`, which must be empty, to be dropped outside the lock. Returns where to go on.
    pub fn purge_tombstones(
        &mut self,
        from: Seqno,
        before_s: u32,
        most: TombstoneLimits,
        out: &mut Vec<Version>,
    ) -> Option<Seqno> {
        assert!(out.is_empty(), "what is in it is taken for a tombstone to be forgotten");
        let list = self.history.seq_list.as_mut()?;
        let next = list.old_tombstones(from, before_s, most, out);
        // A deletion that is only prepared is none yet.
        out.retain(|tombstone| !matches!(tombstone.meta().sync_write, SyncWrite::Prepare(_)));
        for tombstone in out.iter() {
            let seqno = tombstone.meta().by_seqno;
            if tombstone.meta().sync_write.is_hidden() {
                // An abort is in no table.
                list.retire(seqno);
                self.purge_seqno = self.purge_seqno.max(seqno);
                continue;
            }
            // The end of a scope or collection is in the list alone.
            if tombstone.key().collection != CollectionId::SYSTEM {
                let hash = self.table.hash(tombstone.key());
                let forgotten = self.table.find_slot(hash, tombstone.key()).remove();
                assert_eq!(
                    forgotten.meta().by_seqno,
                    seqno,
                    "what is in the list and not stale is in the table"
                );
                self.history.counts.leave(&forgotten);
                self.history.collections.leave(&forgotten);
            }
            list.retire(seqno);
            self.purge_seqno = self.purge_seqno.max(seqno);
        }
        next
    }
}
