//! Bringing the files up to date behind the journal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{VbId, Version};

use super::runs::{Run, merged};
use super::{Journaled, Oldest, Vb};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::journal::{Filed, Frame};
use crate::state::VbStateDoc;
use crate::store::{KvStore, SaveBatch};

/// The most vBuckets that are filed together: they share a sync.
const GROUP_VBUCKETS: usize = 128;
/// When nothing was saved for so long there is time to file.
const IDLE: Duration = Duration::from_secs(1);
/// So many bytes of versions make a group, too.
const GROUP_BYTES: u64 = 32 << 20;

/// What is filed of one vBucket.
struct Part {
    vb: VbId,
    unfiled: Arc<Vb>,
    runs: Vec<Run>,
    items: Vec<Version>,
    state: Arc<VbStateDoc>,
    through: Frame,
    bytes: u64,
}

impl Journaled {
    /// Files the vBuckets that wait for longest if it is time to. Says whether it did.
    pub(super) fn file_step(&self) -> Result<bool, Failure> {
        let much = self.config.journal_bytes / 4 * 3;
        let is_full =
            self.unfiled_bytes.load(Ordering::Relaxed) > much || self.journal.stats().used_bytes > much;
        let now = self.env.clock.monotonic();
        let saved_at = Duration::from_nanos(self.saved_at_ns.load(Ordering::Relaxed));
        let is_idle = now.saturating_sub(saved_at) >= IDLE;
        let is_old = |oldest: Oldest| now.saturating_sub(oldest.at) >= self.config.file_after;
        let is_due = |oldest: Oldest| is_full || is_idle || is_old(oldest);
        let _filing = self.filing.lock();
        self.file_oldest(is_due)
    }

    /// Files first if the journal has reached its limit.
    pub(super) fn make_room(&self) -> Result<(), Failure> {
        let is_full = || {
            self.journal.stats().used_bytes > self.config.journal_bytes
                || self.unfiled_bytes.load(Ordering::Relaxed) > self.config.journal_bytes
        };
        if !is_full() {
            return Ok(());
        }
        let _filing = self.filing.lock();
        while is_full() && self.file_oldest(|_| true)? {}
        Ok(())
    }

    /// Files everything that was journaled before.
    pub(super) fn file_everything(&self) -> Result<(), Failure> {
        let _filing = self.filing.lock();
        while self.file_oldest(|_| true)? {}
        Ok(())
    }

    /// Files a group, the oldest of those that are due. Says whether there were any.
    fn file_oldest(&self, is_due: impl Fn(Oldest) -> bool) -> Result<bool, Failure> {
        let mut waiting: Vec<(Frame, VbId)> = Vec::new();
        for (vb, state) in self.each_vb() {
            let since = state.unfiled.lock().since;
            waiting.extend(since.filter(|since| is_due(*since)).map(|since| (since.frame, vb)));
        }
        waiting.sort_unstable();
        waiting.truncate(GROUP_VBUCKETS);
        if waiting.is_empty() {
            return Ok(false);
        }
        let mut parts = Vec::new();
        let mut bytes = 0;
        let mut failed = Ok(());
        for (_, vb) in waiting {
            match self.take(vb) {
                Ok(part) => {
                    bytes += part.as_ref().map_or(0, |part| part.bytes);
                    parts.extend(part);
                }
                // the others go on
                Err(failure) => failed = Err(failure),
            }
            if bytes > GROUP_BYTES {
                break;
            }
        }
        self.file(parts).and(failed)?;
        // on record at once, so that the journal can let go of what was filed
        let _appending = self.appending.lock();
        self.append([])?;
        Ok(true)
    }

    /// Files what there is of one vBucket now. The caller holds `filing`.
    pub(super) fn file_one(&self, vb: VbId) -> Result<(), Failure> {
        let end = self.journal.next_frame();
        let state = self.vb(vb);
        let is_left = || state.unfiled.lock().since.is_some_and(|since| since.frame < end);
        while is_left()
            && let Some(part) = self.take(vb)?
        {
            self.file(vec![part])?;
        }
        Ok(())
    }

    /// Takes what there is to file of a vBucket; it stays visible until it is filed.
    fn take(&self, vb: VbId) -> Result<Option<Part>, Failure> {
        let unfiled = self.vb(vb);
        if unfiled.unfiled.lock().file_is_void {
            self.remove_void_file(vb, &unfiled)?;
        }
        let mut now = unfiled.unfiled.lock();
        let (Some(_), Some(state)) = (now.since, now.state.clone()) else { return Ok(None) };
        now.filings += 1;
        let (runs, barrier) = now.runs.freeze();
        let (through, bytes) = (barrier.unwrap_or(now.last), std::mem::take(&mut now.bytes));
        drop(now);
        let items = merged(&runs);
        Ok(Some(Part { vb, unfiled, runs, items, state, through, bytes }))
    }

    fn file(&self, parts: Vec<Part>) -> Result<(), Failure> {
        let group: Vec<(VbId, SaveBatch<'_>)> = parts
            .iter()
            .map(|part| (part.vb, SaveBatch { items: &part.items, state: &part.state }))
            .collect();
        let outcomes = self.files.file_group(&group);
        let mut failed = Ok(());
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            match outcome {
                Ok(at) => self.is_filed(part, at),
                Err(failure) => {
                    let mut unfiled = part.unfiled.unfiled.lock();
                    drop(unfiled.runs.thaw(false));
                    unfiled.bytes += part.bytes;
                    failed = Err(failure);
                }
            }
        }
        failed
    }

    fn is_filed(&self, part: Part, at: FileAt) {
        self.filed.lock().set(Filed {
            vb: part.vb,
            through: part.through,
            revision: at.revision,
            header_offset: at.header_offset,
        });
        let mut unfiled = part.unfiled.unfiled.lock();
        let gone = unfiled.runs.thaw(true);
        // what came meanwhile is in the frames after
        let at = self.env.clock.monotonic();
        let next = Oldest { frame: Frame(part.through.0 + 1), at };
        unfiled.since = (unfiled.last > part.through).then_some(next);
        drop(unfiled);
        self.unfiled_bytes.fetch_sub(part.bytes, Ordering::Relaxed);
        drop((gone, part.runs));
    }

    /// Removes the file of a vBucket that was deleted.
    pub(super) fn remove_void_file(&self, vb: VbId, unfiled: &Vb) -> Result<(), Failure> {
        self.files.delete_vbucket(vb)?;
        unfiled.unfiled.lock().file_is_void = false;
        Ok(())
    }
}
