//! Compactions: those that somebody asks for, and those of files that waste much.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use base::{CollectionId, Seqno, VbId, Version};
use kvstore::{Expired, Usage};

use crate::bucket_core::Core;
use crate::collections::BucketCollections;
use crate::compaction_queue::{CompactOutcome, CompactRequest, CompactionQueue, CompactionStats, Job};
use crate::completion::Completion;
use crate::documents::Documents;
use crate::evict::Eviction;
use crate::expiry::ExpiredBy;
use crate::failure_log::Failed;
use crate::fetcher::Fetching;
use crate::flush_queue::LARGE_BACKLOG;
use crate::flusher::Flushing;
use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::tasks::{StoreOp, TaskId};

/// How often the compactor looks for files that waste much.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often it looks at files of which none has been written since: for one that was left alone for a while.
const LOOK_UNCHANGED_EVERY: Duration = Duration::from_secs(60);
/// How long it pauses after a failure.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// A file of so few bytes is copied in less time than its syncs take.
const SHORT_BYTES: u64 = 1 << 20;
/// Items that are looked at under a vBucket's lock at once.
const SLICE_ITEMS: usize = 256;

/// When the compactor looked at all files, and what had changed them by then.
struct FilesLook {
    at: Duration,
    /// Of the flusher and the filer: what they write leaves waste, and makes filters stale.
    filer_steps: u64,
    /// A file may not be encrypted as a new one would be.
    key_changes: u64,
}

impl FilesLook {
    /// Whether this look, which found nothing to do, makes `next` unnecessary.
    fn is_enough(&self, next: &FilesLook) -> bool {
        let is_same = (self.filer_steps, self.key_changes) == (next.filer_steps, next.key_changes);
        is_same && next.at.saturating_sub(self.at) < LOOK_UNCHANGED_EVERY
    }
}

/// Compactions of files, and what they find expired.
pub struct Compaction {
    pub(crate) core: Arc<Core>,
    pub(crate) collections: Arc<BucketCollections>,
    pub(crate) documents: Arc<Documents>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) fetching: Arc<Fetching>,
    pub(crate) flushing: Arc<Flushing>,
    pub(crate) queue: CompactionQueue,
}

impl Compaction {
    pub(crate) fn new(
        core: &Arc<Core>,
        collections: &Arc<BucketCollections>,
        documents: &Arc<Documents>,
        eviction: &Arc<Eviction>,
        fetching: &Arc<Fetching>,
        flushing: &Arc<Flushing>,
    ) -> Compaction {
        Compaction {
            core: Arc::clone(core),
            collections: Arc::clone(collections),
            documents: Arc::clone(documents),
            eviction: Arc::clone(eviction),
            fetching: Arc::clone(fetching),
            flushing: Arc::clone(flushing),
            queue: CompactionQueue::default(),
        }
    }

    /// Asks for a compaction of a vBucket's file. Refused as busy if one is under way or waiting already.
    pub fn compact(&self, vb: VbId, request: CompactRequest) -> Result<Completion<CompactOutcome>, Refusal> {
        drop(self.core.vbuckets.find(vb, Holder::FrontEnd)?);
        if self.core.is_ephemeral() {
            return Err(Refusal::NoDisk);
        }
        self.queue.ask(vb, request, self.is_short(vb)).ok_or(Refusal::Busy)
    }

    /// Asks for a compaction of the file of each vBucket that is here, as if they wasted much. Those that wait already
    /// are not asked for again. Refused if there is no disk.
    pub fn compact_all(&self) -> Result<usize, Refusal> {
        if self.core.is_ephemeral() {
            return Err(Refusal::NoDisk);
        }
        let request = self.routine();
        let ask = |vb: &VbId| self.compact(*vb, request).is_ok();
        Ok((0..self.core.vbuckets()).map(VbId).filter(ask).count())
    }

    /// Gives up compactions that wait because somebody asked for them; those that are under way go on. How many these
    /// were.
    pub fn cancel_compactions(&self) -> usize {
        self.queue.cancel()
    }

    /// What a compaction leaves out that nobody asked for in particular: tombstones of the purge age.
    fn routine(&self) -> CompactRequest {
        let purge_before_s = self.core.now().unix_s().checked_sub(self.core.config.purge_age_s);
        CompactRequest { purge_before_s, ..CompactRequest::default() }
    }

    /// What compactions came to.
    pub fn compaction_stats(&self) -> CompactionStats {
        self.queue.stats()
    }

    /// Compacts one vBucket: the next that somebody asked for, or else the one whose file wastes most. If there is
    /// none, makes a filter of evicted keys anew that is stale.
    pub fn compact_step(&self) -> Progress {
        let Some(job) = self.queue.begin(|| self.most_fragmented()) else {
            return self.eviction.filter_step();
        };
        self.carry_out(job)
    }

    fn carry_out(&self, job: Job) -> Progress {
        let (outcome, progress) =
            self.core.tasks.run(TaskId::Compactor, || self.compact_now(job.vb, job.request));
        if let Some(completer) = job.completer {
            completer.complete(outcome);
        }
        progress
    }

    /// Whether the compaction of a vBucket's file waits for the disk most of the time, as far as that is known.
    pub(crate) fn is_short(&self, vb: VbId) -> bool {
        self.core.store.usage(vb).is_some_and(|usage| usage.file_bytes <= SHORT_BYTES)
    }

    /// Helps until the bucket is closed whenever many short compactions wait, as when a collection was dropped: each
    /// waits for syncs that the disk does for several at once. For a thread of its own. Ends at once if there is no disk.
    pub fn help_compactor(&self) {
        if self.core.is_ephemeral() {
            return;
        }
        while let Some(job) = self.queue.begin_to_help() {
            self.carry_out(job);
        }
    }

    /// Runs such steps until the bucket is closed; for a thread of its own. Ends at once if there is no disk.
    pub fn run_compactor(&self) {
        if self.core.is_ephemeral() {
            return;
        }
        let (mut pause, mut last) = (LOOK_EVERY, None);
        while self.queue.pause(pause) {
            let look = self.look();
            if last.as_ref().is_some_and(|last: &FilesLook| last.is_enough(&look)) && !self.queue.is_asked() {
                pause = LOOK_EVERY;
                continue;
            }
            let progress = self.compact_step();
            last = (progress == Progress::Idle).then_some(look);
            pause = match progress {
                Progress::Worked => Duration::ZERO,
                Progress::Idle => LOOK_EVERY,
                Progress::Failed => PAUSE_AFTER_FAILURE,
            };
        }
    }

    /// What a look at the files finds out depends on this.
    fn look(&self) -> FilesLook {
        FilesLook {
            at: self.core.env.clock.monotonic(),
            filer_steps: self.flushing.filer.steps_with_work(),
            key_changes: self.core.env.disk.key_changes(),
        }
    }

    /// Lets the compactor's thread, and those that help it, end soon.
    pub fn stop_compactor(&self) {
        self.queue.stop();
    }

    /// The vBucket whose file wastes most, of those that waste enough; before them, one whose file is not encrypted as a
    /// new one would be. Asks for nothing that is not in memory.
    fn most_fragmented(&self) -> Option<Job> {
        let now = self.core.env.clock.monotonic();
        let worth = |usage: &Usage| {
            let wasted = usage.file_bytes.saturating_sub(usage.used_bytes);
            let is_much = u128::from(wasted) * 100
                >= u128::from(usage.file_bytes) * u128::from(self.core.config.compact_percent);
            let is_worth = is_much && wasted >= self.core.config.compact_min_waste_bytes;
            // One that is not encrypted as it should be comes first, however little it wastes.
            (is_worth || !usage.is_current).then_some((!usage.is_current, wasted))
        };
        let usage =
            (0..self.core.vbuckets()).map(VbId).filter_map(|vb| Some((vb, self.core.store.usage(vb)?)));
        let wasteful = usage.filter_map(|(vb, usage)| Some((worth(&usage)?, vb)));
        let (_, vb) = wasteful.filter(|(_, vb)| !self.queue.is_left_alone(*vb, now)).max()?;
        Some(Job { vb, request: self.routine(), is_short: false, completer: None })
    }

    fn compact_now(&self, vb: VbId, request: CompactRequest) -> (CompactOutcome, Progress) {
        let now = self.core.now();
        let incarnation = self.core.vbuckets.hold(vb, Holder::Compactor).incarnation;
        let expired = Cell::new(0);
        let on_expired = |version: &Version| {
            expired.set(expired.get() + u64::from(self.expire_stored(vb, version)));
            // its tombstone comes through the flusher and takes its place
            Expired::Keep
        };
        let dropped = self.collections.dropped_on_disk(vb);
        let is_dropped =
            |id, seqno| dropped.iter().any(|(of, end): &(CollectionId, Seqno)| *of == id && seqno <= *end);
        let compaction = kvstore::Compaction {
            is_dropped: &is_dropped,
            purge_before_s: request.purge_before_s,
            purge_through: request.purge_through,
            expired_before_s: Some(now.unix_s()),
            on_expired: &on_expired,
            observe: &|progress| self.queue.progress(vb, progress),
            others_wait: &|| self.queue.is_asked(),
        };
        let compacted =
            self.core.tasks.store_op(StoreOp::Compact, || self.core.store.compact(vb, &compaction));
        if let Ok(compacted) = &compacted {
            // Who saved what was purged may not have noted yet that it is saved; so long it would stay in memory.
            drop(self.flushing.space.lock());
            self.forget_purged(vb, incarnation, compacted.purge_seqno, &request);
        }
        match compacted {
            Ok(compacted) => {
                self.collections.erased_from_disk(vb, incarnation, &dropped);
                if compacted.tombstones_purged + compacted.documents_dropped > 0 {
                    // Tombstones among them that were not in memory could not be found there.
                    self.eviction.recount_evicted(vb, incarnation);
                }
                self.queue.done(vb, &compacted, expired.get());
                (CompactOutcome::Done, Progress::Worked)
            }
            Err(kvstore::Failure::NoVbucket { .. }) => {
                // Nothing is on disk yet, so there is nothing to give back.
                self.collections.erased_from_disk(vb, incarnation, &dropped);
                self.queue.gave_up(vb, self.core.env.clock.monotonic(), false);
                (CompactOutcome::Done, Progress::Worked)
            }
            Err(kvstore::Failure::CompactionEnded { .. } | kvstore::Failure::CompactionRuns { .. }) => {
                self.queue.gave_up(vb, self.core.env.clock.monotonic(), false);
                (CompactOutcome::Ended, Progress::Failed)
            }
            Err(failure) => {
                self.core.failure_log.failed(self.core.name(), vb, Failed::Compaction, &failure);
                self.core.unreadable.note_served(self.core.name(), vb, &failure);
                self.queue.gave_up(vb, self.core.env.clock.monotonic(), true);
                (CompactOutcome::Failed, Progress::Failed)
            }
        }
    }

    /// Makes a tombstone of an expired document that a compaction came across, as a reader would have done. Says
    /// whether it did: not if the document was changed since, or the flusher is far behind.
    fn expire_stored(&self, vb: VbId, stored: &Version) -> bool {
        let now = self.core.now();
        let hash = self.core.hash(stored.key());
        // If nothing of it is in memory, it has to come back before it can change.
        let _held = match self.eviction.is_evicted(vb, stored.key()) {
            Ok(false) => None,
            Ok(true) => Some(self.fetching.fetch_now(vb, stored.key())),
            Err(_) => return false,
        };
        let version = {
            let Ok(shard) = self.core.vbuckets.active(vb, Holder::Compactor) else { return false };
            let Ok(found) = shard.vb.find(hash, stored.key()) else { return false };
            match found.filter(|version| version.is_expired(now)) {
                Some(version) if shard.unflushed() < LARGE_BACKLOG => version.clone(),
                _ => return false,
            }
        };
        let by = ExpiredBy::Compactor;
        match self.documents.expire_as(vb, hash, &version, &version, by, now) {
            // Its system xattrs stay, so they have to be read.
            Err(Refusal::NotResident) => match self.core.store.get(vb, version.key()) {
                Ok(Some(whole)) if whole.meta().by_seqno == version.meta().by_seqno => {
                    self.documents.expire_as(vb, hash, &version, &whole, by, now) == Ok(true)
                }
                _ => false,
            },
            expired => expired == Ok(true),
        }
    }

    /// Tombstones that a compaction left out leave memory too, a slice at a time.
    fn forget_purged(&self, vb: VbId, incarnation: u64, through: Seqno, request: &CompactRequest) {
        let Some(before_s) = request.purge_before_s else { return };
        let purged = |version: &Version| {
            let meta = version.meta();
            version.is_deleted() && meta.by_seqno <= through && (1..before_s).contains(&meta.expiry)
        };
        let mut cursor = Some(0);
        let mut found = Vec::with_capacity(SLICE_ITEMS);
        while let Some(at) = cursor {
            let mut freed = Vec::with_capacity(SLICE_ITEMS);
            {
                let mut shard = self.core.vbuckets.hold(vb, Holder::Compactor);
                if shard.incarnation != incarnation {
                    return;
                }
                if at == 0 {
                    shard.vb.raise_purge_seqno(through);
                }
                cursor = shard.vb.table().visit(at, SLICE_ITEMS, |version| {
                    if purged(version) {
                        found.push(version.clone());
                    }
                });
                for version in found.drain(..) {
                    freed.extend(shard.vb.forget_tombstone(self.core.hash(version.key()), &version));
                }
            }
            drop(freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_unchanged_are_looked_at_seldom() {
        let look = |at_s, filer_steps, key_changes| FilesLook {
            at: Duration::from_secs(at_s),
            filer_steps,
            key_changes,
        };
        let last = look(100, 7, 1);
        assert!(last.is_enough(&look(110, 7, 1)) && last.is_enough(&look(159, 7, 1)));
        for changed in [look(110, 8, 1), look(110, 7, 2), look(160, 7, 1)] {
            assert!(!last.is_enough(&changed));
        }
    }
}
