//! Going back to an older commit of a vBucket's file.

use std::sync::atomic::Ordering;

use base::{Seqno, VbId};

use super::{Couch, Slot, Vbucket};
use crate::compaction::{FileAt, RolledBack};
use crate::failure::Failure;
use crate::files::BeforeRollback;

impl Couch {
    /// Goes back as [`crate::KvStore::rollback`] does, and calls `before` with the commit that is about to be in
    /// force, under the vBucket's lock; with nothing if none fits and the file is about to be removed. Not called if
    /// nothing changes. If it fails, everything stays.
    pub fn rollback_with(
        &self,
        vb: VbId,
        to: Seqno,
        before: &BeforeRollback<'_>,
    ) -> Result<RolledBack, Failure> {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        if slot.last_revision == 0 {
            return Ok(RolledBack::default());
        }
        let result = self.roll_back(vb, &vbucket, &mut slot, to, before);
        self.note_changed(vb);
        self.note(vb, &vbucket, &mut slot, result)
    }

    fn roll_back(
        &self,
        vb: VbId,
        vbucket: &Vbucket,
        slot: &mut Slot,
        to: Seqno,
        before: &BeforeRollback<'_>,
    ) -> Result<RolledBack, Failure> {
        self.promises.begin_writing()?;
        slot.settle(vb, &self.folder)?;
        let Some(revision) = slot.revision else {
            // an earlier try may have failed before it was durable
            slot.remove_file(vb, &self.folder)?;
            return Ok(RolledBack::default());
        };
        let identity = self.promises.identity(vb, revision);
        let file = self.opened(vb, vbucket, slot)?;
        let highest = Seqno(file.snapshot().info().update_seqno);
        let Some(seqno) = file.rollback(identity, to)? else {
            before(None)?;
            self.promises.forget(vb)?;
            vbucket.generation.fetch_add(1, Ordering::Relaxed);
            vbucket.close(slot, false);
            self.open_files.forget(vb);
            slot.known = None;
            slot.remove_file(vb, &self.folder)?;
            return Ok(RolledBack::default());
        };
        if seqno < highest {
            let commit = file.write_rollback(vb, self.env.clock.unix_ns())?;
            let (header_offset, checksum) = (commit.header_offset(), Some(commit.header_checksum()));
            // If this fails, nobody knows whether a restart will find the commit on record: it is not cut off.
            if let Err(failure) = before(Some(FileAt { revision, header_offset, checksum })) {
                slot.keeps_tail = true;
                self.is_undecided();
                return Err(failure);
            }
            vbucket.generation.fetch_add(1, Ordering::Relaxed);
            file.finish_rollback(identity)?;
            *vbucket.latest.lock() = Some(file.snapshot());
        }
        Ok(RolledBack { seqno, stored: Some(file.stored(vb)?) })
    }
}
