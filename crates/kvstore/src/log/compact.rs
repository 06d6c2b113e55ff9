//! Compaction: what is left out, and rewriting what that makes garbage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use base::{CollectionId, DurabilityLevel, Seqno, SyncWrite, VbId};
use logstore::{Entry, Erased, Purger, Sealed, View};

use super::item::{GONE, PREPARE, VersionMaker, weigh};
use super::state::LogState;
use super::{Log, decode_state, failed};
use crate::collections::{collection_of, event_prefix};
use crate::compaction::{Candidate, Compacted, Compaction, CompactionProgress, FileAt, Reason};
use crate::failure::Failure;
use crate::files::BeforeSwitch;
use crate::store::Values;

/// No other compaction of the vBucket begins while this lives.
struct LogTurn<'l>(&'l Log, VbId);

impl Drop for LogTurn<'_> {
    fn drop(&mut self) {
        self.0.compacting.lock().remove(&self.1);
    }
}

/// vBuckets of which a compaction left versions out, and whose segments are to be rewritten.
///
/// vBuckets share segments. If each compaction rewrote them, a compaction of a whole bucket would write its files once for
/// each vBucket.
#[derive(Default)]
pub(super) struct ToRewrite {
    /// With the bytes that each took before.
    vbs: BTreeMap<VbId, u64>,
    /// Compactions that leave versions out now: they look here when they are done.
    leaving_out: usize,
}

/// A compaction that leaves versions out.
struct LeavingOut<'l>(&'l Log);

impl Drop for LeavingOut<'_> {
    fn drop(&mut self) {
        self.0.to_rewrite.lock().leaving_out -= 1;
    }
}

impl<'l> LeavingOut<'l> {
    fn begin(log: &'l Log) -> LeavingOut<'l> {
        log.to_rewrite.lock().leaving_out += 1;
        LeavingOut(log)
    }

    /// Ends it; `own`: the vBucket of which it has left versions out, with the bytes that it took before. Answers the vBuckets
    /// for which segments are to be rewritten now: none if another compaction will do it.
    fn end(self, own: Option<(VbId, u64)>, others_wait: &dyn Fn() -> bool) -> BTreeMap<VbId, u64> {
        let log = self.0;
        let mut to_rewrite = log.to_rewrite.lock();
        to_rewrite.vbs.extend(own);
        to_rewrite.leaving_out -= 1;
        // Under the same lock: of two that end at once, one is the last.
        std::mem::forget(self);
        let is_last = to_rewrite.leaving_out == 0 && !others_wait();
        if is_last { std::mem::take(&mut to_rewrite.vbs) } else { BTreeMap::new() }
    }
}

impl Log {
    /// Compacts as [`crate::KvStore::compact`] does, and calls `before` with the last commit while no other can happen.
    pub(super) fn compact_and_tell(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        self.check(vb)?;
        if !self.compacting.lock().insert(vb) {
            return Err(Failure::CompactionRuns { vb });
        }
        let _turn = LogTurn(self, vb);
        // One that fails, or finds nothing to compact, may be the last of many all the same.
        let leaving_out = LeavingOut::begin(self);
        let left = self.leave_out(vb, request, before);
        let own = left.as_ref().ok().map(|left| (vb, left.before_bytes));
        let all = leaving_out.end(own, request.others_wait);
        let total_bytes = left.as_ref().map_or(0, |left| left.total_bytes);
        let progress = CompactionProgress { done_bytes: total_bytes, total_bytes };
        let vbs: BTreeSet<u16> = all.keys().map(|vb| vb.0).collect();
        let reclaimed = match vbs.is_empty() {
            true => Ok(()),
            false => self.store.reclaim_all(&vbs, &mut || (request.observe)(progress)),
        };
        let LeftOut { mut compacted, .. } = left?;
        reclaimed.map_err(failed(vb))?;
        compacted.before_bytes = all.values().sum();
        // Of items: the record of the compaction itself must not look like growth.
        let after = all.keys().filter_map(|vb| self.store.usage(vb.0));
        compacted.after_bytes = after.map(|usage| usage.bytes).sum();
        compacted.purge_seqno =
            self.store.stored(vb.0).map_err(failed(vb))?.map_or(Seqno(0), |now| Seqno(now.purge_seqno));
        Ok(compacted)
    }

    /// Leaves versions out of a vBucket; what they took goes when segments are rewritten.
    fn leave_out(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<LeftOut, Failure> {
        self.begin_writing()?;
        let stored = self.store.stored(vb.0).map_err(failed(vb))?.ok_or(Failure::NoVbucket { vb })?;
        let state = decode_state(vb, &self.dir, &stored.state)?;
        let usage = stored.usage;
        let mut purger = LogPurger {
            request,
            maker: VersionMaker { vb, dir: &self.dir, heap: &self.env.heap },
            completed: Seqno(state.state.completed_seqno),
            reasons: BTreeMap::new(),
            created: BTreeMap::new(),
            compacted: Compacted::default(),
            purged_through: 0,
            keys: state.tally.documents() + state.tombstones,
            total_bytes: usage.live_bytes,
        };
        self.store.purge(vb.0, &mut purger).map_err(failed(vb))?;
        let LogPurger { compacted, total_bytes, .. } = purger;
        self.store.with_last(vb.0, &mut |commit| before(at_of(commit)), failed(vb))?;
        self.store.is_on_record(vb.0).map_err(failed(vb))?;
        Ok(LeftOut { compacted, total_bytes, before_bytes: usage.bytes })
    }
}

/// What came of leaving versions out.
struct LeftOut {
    compacted: Compacted,
    total_bytes: u64,
    before_bytes: u64,
}

pub(super) fn at_of(commit: logstore::Commit) -> FileAt {
    FileAt { revision: commit.epoch, header_offset: commit.number, checksum: None }
}

struct LogPurger<'c> {
    request: &'c Compaction<'c>,
    maker: VersionMaker<'c>,
    /// Prepares up to here are committed.
    completed: Seqno,
    /// Why versions are left out that are not left out yet, by seqno.
    reasons: BTreeMap<u64, Reason>,
    /// When collections that were met were created.
    created: BTreeMap<CollectionId, Option<u64>>,
    compacted: Compacted,
    /// Highest seqno of a tombstone that is left out.
    purged_through: u64,
    keys: u64,
    total_bytes: u64,
}

impl LogPurger<'_> {
    fn leave_out(&mut self, view: &View, now: &mut LogState, erased: &Erased) {
        let Erased { key, entry } = erased;
        let reason = self.reasons.get(&entry.seqno).copied().unwrap_or(Reason::Dropped);
        if reason != Reason::Dropped || !self.is_of_former(view, erased) {
            now.tally.leave_out(key, weigh(entry));
        }
        if entry.flags & GONE != 0 {
            now.tombstones = now.tombstones.saturating_sub(1);
        }
    }

    /// Whether a record is of a collection that was dropped and created again since: it is not counted then.
    fn is_of_former(&mut self, view: &View, erased: &Erased) -> bool {
        let Some(collection) = collection_of(&erased.key) else { return false };
        let created = *self.created.entry(collection).or_insert_with(|| created_at(view, collection));
        created.is_some_and(|created| erased.entry.seqno < created)
    }
}

/// Seqno of the event that created a collection.
fn created_at(view: &View, collection: CollectionId) -> Option<u64> {
    let prefix = event_prefix(collection);
    let mut created = None;
    let looked = view.entries::<logstore::Failure>(&prefix, |key, entry| {
        if key.starts_with(&prefix) && entry.flags & GONE == 0 {
            created = Some(entry.seqno);
        }
        Ok(ControlFlow::Break(()))
    });
    // Damage shows again when that part is merged.
    looked.ok().and(created)
}

impl Purger for LogPurger<'_> {
    fn judge(&mut self, view: &View, key: &[u8], entry: &Entry) -> Result<bool, logstore::Failure> {
        if entry.seqno == view.high_seqno() {
            return Ok(false);
        }
        let is_prepare = entry.flags & PREPARE != 0;
        let candidate = Candidate {
            stored_key: key,
            seqno: Seqno(entry.seqno),
            deleted: entry.flags & GONE != 0,
            expiry: Some(entry.time),
            sync_write: Some(if is_prepare {
                SyncWrite::Prepare(DurabilityLevel::Majority)
            } else {
                SyncWrite::No
            }),
        };
        let mut unread = None;
        let reason = self.request.judge(candidate, self.completed, || {
            match view.get(key, |item| self.maker.version(item, Values::Leave)) {
                Ok(version) => version.and_then(Result::ok),
                Err(failure) => {
                    unread = Some(failure);
                    None
                }
            }
        });
        if let Some(failure) = unread {
            return Err(failure);
        }
        if let Some(reason) = reason {
            // What is replaced before it is left out has gone all the same.
            self.compacted.count(reason);
            self.reasons.insert(entry.seqno, reason);
            if reason == Reason::Purged {
                self.purged_through = self.purged_through.max(entry.seqno);
            }
        }
        Ok(reason.is_some())
    }

    fn go_on(&mut self, done: u64) -> ControlFlow<()> {
        let share =
            u128::from(self.total_bytes) * u128::from(done.min(self.keys)) / u128::from(self.keys.max(1));
        let progress = CompactionProgress { done_bytes: share as u64, total_bytes: self.total_bytes };
        (self.request.observe)(progress)
    }

    fn stays_in_history(&self, erased: &Erased) -> bool {
        self.reasons.get(&erased.entry.seqno).is_some_and(|reason| *reason != Reason::Dropped)
    }

    fn seal(&mut self, now: &View, erased: &[Erased], is_last: bool) -> Result<Sealed, String> {
        let mut state = LogState::decode(now.state())?;
        for one in erased {
            self.leave_out(now, &mut state, one);
        }
        let purge_seqno = now.purge_seqno().max(self.purged_through);
        self.reasons.clear();
        if is_last {
            self.request.erases(&mut state.manifest);
        }
        state.tally.take_changes();
        Ok(Sealed { state: state.encode(), purge_seqno })
    }
}
