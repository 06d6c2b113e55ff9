//! Sync writes of a vBucket that is not active: prepares, commits and aborts as the active one sends them.
//!
//! They come in snapshots, in the order of seqnos, as documents do: see `replicated.rs`.

use base::planted::{self, Bug};
use base::{DocKey, Moment, NewVersion, RevSeqno, Seqno, SyncWrite, Version, VersionMeta};

use crate::durability::NO_DEADLINE;
use crate::ops::change::Stored;
use crate::ops::prepare::make_abort;
use crate::ops::replicated::{Misplaced, SnapshotKind, expects_in};
use crate::vbucket::{Garbage, VBucket};

impl VBucket {
    /// Applies a prepare that was made elsewhere, complete with seqno, CAS and revision. One that is refused is handed
    /// back, and nothing happened.
    ///
    /// Of a snapshot from a disk all must be on this one before the prepare counts as safe. An older prepare of the key
    /// is over: the active one has left out what became of it.
    pub fn receive_prepare(
        &mut self,
        new: NewVersion,
        now: Moment,
    ) -> Result<Stored, (Misplaced, NewVersion)> {
        let meta = new.meta();
        let SyncWrite::Prepare(level) = meta.sync_write else {
            panic!("a prepare is received as one");
        };
        if let Err(misplaced) = expects_in(self, new.document_key().collection, meta.by_seqno) {
            return Err((misplaced, new));
        }
        let prepare = new.publish();
        let snapshot = self.contents.history.checkpoints.receiving();
        let disk_end = (snapshot.kind != SnapshotKind::Memory).then_some(snapshot.end);
        self.contents.history.hlc.observe(meta.cas, now.0);
        self.contents.locks.remove(prepare.document_key());
        let superseded = self.sync_writes.supersede(prepare.document_key(), &mut self.contents.history);
        let on_disk = (level == base::DurabilityLevel::PersistToMajority).then_some(meta.by_seqno);
        let needs_none = self.contents.history.seq_list.is_some() || planted::is(Bug::AcknowledgeBeforeDisk);
        let until = if needs_none { None } else { disk_end.or(on_disk) };
        self.sync_writes.passive.prepared(meta.by_seqno, until);
        self.contents.history.collections.changed(prepare.document_key(), meta.by_seqno);
        self.sync_writes.prepares_mut(self.contents.table.context()).insert(
            prepare.clone(),
            NO_DEADLINE,
            true,
        );
        let mut garbage = Garbage::default();
        self.contents.history.queue(prepare, None, &mut garbage);
        garbage.prepare = superseded;
        Ok(Stored { cas: meta.cas, by_seqno: meta.by_seqno, rev_seqno: meta.rev_seqno, garbage })
    }

    /// Commits the prepare of a document at seqno `at`. `prepared` is its seqno, 0 if the sender does not say.
    pub fn receive_commit(
        &mut self,
        hash: u64,
        document: DocKey<'_>,
        prepared: Seqno,
        at: Seqno,
        now: Moment,
    ) -> Result<Stored, Misplaced> {
        expects_in(self, document.collection, at)?;
        let in_flight = self.sync_writes.of(document).ok_or(Misplaced::NotPrepared)?;
        if prepared != Seqno(0) && prepared != in_flight.prepared {
            return Err(Misplaced::NotPrepared);
        }
        let sync_write = SyncWrite::Commit { prepared: in_flight.prepared };
        let meta = VersionMeta { by_seqno: at, sync_write, ..in_flight.version.meta() };
        let heap = &self.contents.table.context().heap;
        let new = NewVersion::like(heap, meta, document, &in_flight.version);
        // The prepare goes with what is replaced.
        self.apply_replicated(hash, new, now).map_err(|(misplaced, _)| misplaced)
    }

    /// Aborts the prepare of a document at seqno `at`. The prepare need not be here: a disk keeps the abort alone.
    pub fn receive_abort(
        &mut self,
        document: DocKey<'_>,
        prepared: Seqno,
        at: Seqno,
        now: Moment,
    ) -> Result<Stored, Misplaced> {
        expects_in(self, document.collection, at)?;
        let is_lost = planted::is(Bug::AbortLostOnReplica);
        let prepare =
            if is_lost { None } else { self.sync_writes.supersede(document, &mut self.contents.history) };
        let meta = match &prepare {
            Some(prepare) => VersionMeta { by_seqno: prepared, ..prepare.meta() },
            None => VersionMeta { by_seqno: prepared, rev_seqno: RevSeqno(1), ..VersionMeta::default() },
        };
        self.sync_writes.completed = self.sync_writes.completed.max(prepared);
        let (key, len) = document.to_prepared();
        let key = DocKey { collection: base::CollectionId::PREPARES, key: &key[..len] };
        let abort = make_abort(&self.contents.table.context().heap, key, meta, at, now.unix_s());
        self.contents.history.collections.changed(document, at);
        let (cas, rev_seqno) = (meta.cas, meta.rev_seqno);
        let mut garbage = Garbage::default();
        self.contents.history.queue(abort, None, &mut garbage);
        garbage.prepare = prepare;
        Ok(Stored { cas, by_seqno: at, rev_seqno, garbage })
    }

    /// Notes whether the snapshot that is being received is complete by now; call it when something of it was applied.
    /// Prepares that are over by its producer's word are put into `out`, to be dropped outside the lock.
    pub fn note_complete(&mut self, out: &mut Vec<Version>) {
        let snapshot = self.contents.history.checkpoints.receiving();
        if snapshot.end != self.contents.history.high_seqno && !planted::is(Bug::AcknowledgeInsideSnapshot) {
            return;
        }
        self.sync_writes.passive.snapshot_complete();
        self.sync_writes.passive.persisted(self.contents.persisted_seqno);
        // A snapshot from memory has all that happened since the one before.
        let completed = self.contents.history.checkpoints.announced_completed();
        let Some(completed) = completed.filter(|_| snapshot.kind != SnapshotKind::Memory) else { return };
        while let Some(first) = self.sync_writes.prepares.as_ref().and_then(|prepares| prepares.front()) {
            if first.prepared > completed {
                break;
            }
            let document = first.version.clone();
            out.extend(self.sync_writes.supersede(document.document_key(), &mut self.contents.history));
        }
        self.sync_writes.completed = self.sync_writes.completed.max(completed);
    }
}
