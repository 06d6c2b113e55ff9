//! Sync writes of a vBucket that is not active: prepares, commits and aborts as the active one sends them.
//!
//! Whoever applies a snapshot calls these in the order of seqnos, and [`VBucket::received_snapshot`] at its end.

use base::{DocKey, Moment, NewVersion, RevSeqno, Seqno, SyncWrite, Version, VersionMeta};

use crate::durability::NO_DEADLINE;
use crate::vbucket::{Garbage, VBucket};

/// A commit of something that is not prepared here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPrepared;

impl VBucket {
    /// Takes a prepare under its own seqno. `disk_end` is the end of the snapshot that it is in, if that comes from a
    /// disk: then all of it must be on this disk before the prepare counts as safe.
    ///
    /// An older prepare of the key is over: the active one has left out what became of it.
    pub fn receive_prepare(&mut self, prepare: Version, disk_end: Option<Seqno>) -> Garbage {
        let meta = prepare.meta();
        let SyncWrite::Prepare(level) = meta.sync_write else {
            panic!("a prepare is received as one");
        };
        let superseded = self.supersede_prepare(prepare.document_key());
        let on_disk = (level == base::DurabilityLevel::PersistToMajority).then_some(meta.by_seqno);
        let until = if self.history.seq_list.is_some() { None } else { disk_end.or(on_disk) };
        self.sync_writes.passive.prepared(meta.by_seqno, until);
        self.prepares_mut().insert(prepare.clone(), NO_DEADLINE, true);
        let mut garbage = Garbage::default();
        self.history.queue(prepare, None, &mut garbage);
        garbage.prepare = superseded;
        garbage
    }

    /// Takes the prepare of a document out of flight and makes what is to be put in the document's place at seqno `at`:
    /// its commit. The prepare is to be dropped outside the lock.
    pub fn receive_commit(
        &mut self,
        document: DocKey<'_>,
        prepared: Seqno,
        at: Seqno,
    ) -> Result<(NewVersion, Version), NotPrepared> {
        let is_it = self.sync_writes.of(document).is_some_and(|in_flight| in_flight.prepared == prepared);
        if !is_it {
            return Err(NotPrepared);
        }
        let prepare = self.supersede_prepare(document).ok_or(NotPrepared)?;
        let meta = VersionMeta { by_seqno: at, sync_write: SyncWrite::Commit { prepared }, ..prepare.meta() };
        let heap = &self.table.context().heap;
        Ok((NewVersion::new(heap, meta, document, &[prepare.value()]), prepare))
    }

    /// Takes an abort at seqno `at`. Its prepare need not be here: a disk keeps the abort alone.
    pub fn receive_abort(
        &mut self,
        document: DocKey<'_>,
        prepared: Seqno,
        at: Seqno,
        now: Moment,
    ) -> Garbage {
        let prepare = self.supersede_prepare(document);
        let meta = match &prepare {
            Some(prepare) => VersionMeta { by_seqno: prepared, ..prepare.meta() },
            None => VersionMeta { by_seqno: prepared, rev_seqno: RevSeqno(1), ..VersionMeta::default() },
        };
        self.sync_writes.completed = self.sync_writes.completed.max(prepared);
        let (key, len) = document.to_prepared();
        let key = DocKey { collection: base::CollectionId::PREPARES, key: &key[..len] };
        let abort = self.make_abort(key, meta, at, now.unix_s());
        let mut garbage = Garbage::default();
        self.history.queue(abort, None, &mut garbage);
        garbage.prepare = prepare;
        garbage
    }

    /// A document changes without a commit that names its prepare, as in a snapshot from a disk: a prepare of it is over.
    /// It is to be dropped outside the lock.
    pub fn supersede_prepare(&mut self, document: DocKey<'_>) -> Option<Version> {
        let prepared = self.sync_writes.of(document)?.prepared;
        let prepare = self.sync_writes.complete(prepared)?;
        if let Some(list) = &mut self.history.seq_list {
            // The prepare is held here, too: nothing is freed.
            drop(list.replaced(prepared));
        }
        Some(prepare.version)
    }

    /// A snapshot is complete. `high_completed` says, if its producer tells, up to where nothing is in flight: what is
    /// left here below is put into `out`, to be dropped outside the lock.
    pub fn received_snapshot(&mut self, high_completed: Option<Seqno>, out: &mut Vec<Version>) {
        self.sync_writes.passive.snapshot_complete();
        let Some(completed) = high_completed else { return };
        while let Some(first) = self.sync_writes.prepares.as_ref().and_then(|prepares| prepares.front()) {
            if first.prepared > completed {
                break;
            }
            let document = first.version.clone();
            out.extend(self.supersede_prepare(document.document_key()));
        }
        self.sync_writes.completed = self.sync_writes.completed.max(completed);
    }
}
