//! Bringing the files up to date behind the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{RateLimit, VbId, Version};
use logstore::Retention;

use super::charged::Charged;
use super::runs::{Run, merged};
use super::{Journaled, Oldest, Vb};
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::journal::{Filed, Frame, Record, State};
use crate::sort::sort_with_past;
use crate::state::VbStateDoc;
use crate::store::SaveBatch;

/// When nothing was saved for so long there is time to file.
const IDLE: Duration = Duration::from_secs(1);
/// So many bytes of versions make a group, too.
const GROUP_BYTES: u64 = 32 << 20;

/// A vBucket whose file is at fault is tried again after so long.
const LEAVE_ALONE: Duration = Duration::from_secs(10);
/// What cannot be filed is journaled again when the journal is full, unless it is more than this share of it.
const CARRIED_SHARE: u64 = 4;
/// What one vBucket may have in the journal that cannot be filed, as a share of the journal.
const STUCK_SHARE: u64 = 16;

/// vBuckets that are not filed now, and why not if it was tried just now.
type Skipped = BTreeMap<VbId, Option<Failure>>;

/// What a look for something to file found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// Something, and some of it is filed.
    Some,
    /// Something, and none of it could be filed.
    Failed,
}

/// What is filed of one vBucket.
struct Part {
    vb: VbId,
    unfiled: Arc<Vb>,
    runs: Vec<Run>,
    items: Charged,
    state: Arc<VbStateDoc>,
    through: Frame,
    bytes: u64,
}

/// The newest version of each key, and those of the history.
fn with_past(mut newest: Vec<Version>, past: Vec<Version>) -> Vec<Version> {
    if !past.is_empty() {
        newest.extend(past);
        sort_with_past(&mut newest);
    }
    newest
}

/// See [`crate::KvStore::keep_history`]. What was saved before may lack versions, so it is filed before histories begin.
pub(super) fn limit_history(store: &Journaled, retention: Retention) -> Result<(), Failure> {
    if !retention.is_on() {
        store.files.keep_history(retention)?;
        store.keeps_history.store(false, Ordering::SeqCst);
        return Ok(());
    }
    let did = store.keeps_history.swap(true, Ordering::SeqCst);
    let begun = store.file_everything().and_then(|()| store.files.keep_history(retention));
    if begun.is_err() {
        store.keeps_history.store(did, Ordering::SeqCst);
    }
    begun
}

impl Journaled {
    /// Files the vBuckets that wait for longest if it is time to. Says whether it did.
    pub(super) fn file_step(&self) -> Result<bool, Failure> {
        let much = self.config.journal_bytes / 4 * 3;
        let most = much.min(self.unfiled_limit.load(Ordering::Relaxed));
        let is_full = self.unfiled_bytes.load(Ordering::Relaxed) > most || self.counted_bytes() > much;
        let now = self.env.clock.monotonic();
        let saved_at = Duration::from_nanos(self.saved_at_ns.load(Ordering::Relaxed));
        let is_idle = now.saturating_sub(saved_at) >= IDLE;
        let is_old = |oldest: Oldest| now.saturating_sub(oldest.at) >= self.config.file_after;
        let is_due = |oldest: Oldest| is_full || is_idle || is_old(oldest);
        let _filing = self.filing.lock();
        // what fails here is told, and tried again with the next step
        let _ = self.settle_undecided();
        if !self.may_wait.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        let mut skip = Skipped::new();
        for (vb, state) in self.each_vb() {
            let unfiled = state.unfiled.lock();
            if unfiled.since.is_some() {
                self.may_wait.store(true, Ordering::Release);
            }
            if unfiled.left_alone_until.is_some_and(|until| now < until) {
                skip.insert(vb, None);
            }
        }
        let found = self.file_oldest(is_due, &mut skip)?;
        // what was filed beside one that failed is progress
        match skip.into_values().flatten().next() {
            Some(failure) if found == Found::Failed => Err(failure),
            _ => Ok(found != Found::Nothing),
        }
    }

    /// Files first if the journal has reached its limit.
    pub(super) fn make_room(&self) -> Result<(), Failure> {
        let is_full = || {
            self.counted_bytes() > self.config.journal_bytes
                || self.unfiled_bytes.load(Ordering::Relaxed) > self.config.journal_bytes
        };
        if !is_full() {
            return Ok(());
        }
        let _filing = self.filing.lock();
        let mut failed = Skipped::new();
        while is_full() && self.file_oldest(|_| true, &mut failed)? != Found::Nothing {}
        if is_full() && self.misses_nothing().is_err() {
            self.give_up_missing()?;
        }
        if is_full() && !failed.is_empty() { self.carry_forward(failed) } else { Ok(()) }
    }

    /// Files everything that was journaled before. Says now and then how much is left.
    pub(super) fn file_everything(&self) -> Result<(), Failure> {
        let _filing = self.filing.lock();
        let (mut failed, told) = (Skipped::new(), RateLimit::new());
        while self.file_oldest(|_| true, &mut failed)? != Found::Nothing {
            let left_bytes = self.unfiled_bytes.load(Ordering::Relaxed);
            if left_bytes > 0 && told.admit(self.env.clock.monotonic()).is_some() {
                tracing::info!(
                    event = "filing_started", folder = %self.files.dir().display(), left_bytes,
                    "the files are being brought up to date"
                );
            }
        }
        failed.into_values().flatten().next().map_or(Ok(()), Err)
    }

    /// Journals once more what cannot be filed, because the files of some vBuckets are damaged: so the old segments can
    /// go, and the others go on. Only as long as that is little. The caller holds `filing`.
    fn carry_forward(&self, failed: Skipped) -> Result<(), Failure> {
        let states: Vec<(VbId, Arc<Vb>)> = failed.keys().map(|vb| (*vb, self.vb(*vb))).collect();
        let _appending = self.appending.lock();
        let (mut bytes, mut runs, mut has_void) = (0, Vec::new(), false);
        // What is journaled again has the newest version of each key only.
        let mut has_past = false;
        for (vb, state) in &states {
            let mut unfiled = state.unfiled.lock();
            bytes += unfiled.bytes;
            has_void |= unfiled.file_is_void;
            has_past |= !unfiled.past.is_empty();
            if let Some(state) = unfiled.state.clone().filter(|_| unfiled.since.is_some()) {
                runs.push((*vb, state, unfiled.runs.all(self.account())));
            }
        }
        if has_void || has_past || bytes > self.config.journal_bytes / CARRIED_SHARE {
            return failed.into_values().flatten().next().map_or(Ok(()), Err);
        }
        let since = self.journal.next_frame();
        let records = runs.iter().flat_map(|(vb, state, runs)| {
            let nothing = runs.is_empty().then_some(&[][..]);
            let all = runs.iter().map(|run| &run[..]).chain(nothing);
            all.map(|items| Record::Save { vb: *vb, state: State::Whole(state), items, is_repeat: true })
        });
        if planted::is(Bug::ReleasedBeforeCarried) {
            self.release(since);
        }
        let last = self.append(records.collect::<Vec<_>>())?;
        for (_, state) in &states {
            let mut unfiled = state.unfiled.lock();
            if let Some(oldest) = &mut unfiled.since {
                oldest.frame = since;
                unfiled.last = last;
            }
        }
        self.release(self.oldest_unfiled());
        Ok(())
    }

    /// Whether a vBucket takes no more saves, because what it has in the journal cannot be filed and is much already.
    pub(super) fn is_stuck(&self, vb: VbId, state: &Vb) -> Result<(), Failure> {
        let is_stuck = || {
            let unfiled = state.unfiled.lock();
            unfiled.left_alone_until.is_some() && unfiled.bytes > self.config.journal_bytes / STUCK_SHARE
        };
        if !is_stuck() {
            return Ok(());
        }
        let _filing = self.filing.lock();
        self.file_one(vb)
    }

    /// Files a group, the oldest of those that are due and not to be skipped. Those that cannot be filed because of
    /// their own files are to be skipped then.
    fn file_oldest(&self, is_due: impl Fn(Oldest) -> bool, skip: &mut Skipped) -> Result<Found, Failure> {
        let mut waiting: Vec<(Frame, VbId)> = Vec::new();
        for (vb, state) in self.each_vb() {
            let since = state.unfiled.lock().since.filter(|_| !skip.contains_key(&vb));
            waiting.extend(since.filter(|since| is_due(*since)).map(|since| (since.frame, vb)));
        }
        waiting.sort_unstable();
        waiting.truncate(self.files.most_at_once());
        if waiting.is_empty() {
            return Ok(Found::Nothing);
        }
        let mut parts = Vec::new();
        let mut bytes = 0;
        let mut outcomes: Vec<(VbId, Result<(), Failure>)> = Vec::new();
        for (_, vb) in waiting {
            match self.take(vb) {
                Ok(part) => {
                    bytes += part.as_ref().map_or(0, |part| part.bytes);
                    parts.extend(part);
                }
                Err(failure) => outcomes.push((vb, Err(failure))),
            }
            if bytes > GROUP_BYTES {
                break;
            }
        }
        outcomes.extend(self.file(parts));
        let found =
            if outcomes.iter().any(|(_, outcome)| outcome.is_ok()) { Found::Some } else { Found::Failed };
        let mut failed = Ok(());
        for (vb, outcome) in outcomes {
            let Err(failure) = outcome else { continue };
            if failure.is_of_one_file() {
                self.leave_alone(vb, &failure);
                if failure.is_damage() {
                    self.damage.lock().insert(vb, failure.to_string());
                }
                skip.insert(vb, Some(failure));
            } else {
                failed = Err(failure);
            }
        }
        failed?;
        // on record at once, so that the journal can let go of what was filed
        let _appending = self.appending.lock();
        self.append([])?;
        Ok(found)
    }

    /// Where it is not known whether a restart would find a switch or a rollback on record that failed, puts on record
    /// once more what is in use, and removes the other. The caller holds `filing`, or nothing else runs.
    pub(super) fn settle_undecided(&self) -> Result<(), Failure> {
        for undecided in self.files.undecided() {
            {
                let _appending = self.appending.lock();
                let filed = self.filed.lock().by_vbucket.get(&undecided.vb).copied();
                let is_void = || {
                    let state = self.vb(undecided.vb);
                    let unfiled = state.unfiled.lock();
                    unfiled.file_is_void && unfiled.since.is_none()
                };
                let newer = match filed {
                    Some(filed) => Some(Record::Filed(filed)),
                    // It was to adopt a file, and nothing was saved since: there may be no record but that of the file,
                    // which is about to go. Of one that was deleted a newer record is durable, and this repeats it.
                    None => is_void().then_some(Record::Dropped(undecided.vb)),
                };
                if let Some(newer) = newer {
                    self.append([newer])?;
                }
            }
            self.files.decide(&undecided)?;
        }
        Ok(())
    }

    /// The file of a vBucket is at fault: it is tried again later, and holds up no others.
    fn leave_alone(&self, vb: VbId, failure: &Failure) {
        let now = self.env.clock.monotonic();
        let before = self.vb(vb).unfiled.lock().left_alone_until.replace(now + LEAVE_ALONE);
        // A file may fail and be filed by turns, and then each failure is a first one.
        if before.is_none()
            && let Some(left_out) = self.not_filed.admit(now)
        {
            tracing::error!(
                event = "vbucket_filing_failed", %vb, %failure, left_out,
                "cannot bring the file up to date; the changes stay in the journal"
            );
        }
    }

    /// Files what there is of one vBucket now. The caller holds `filing`.
    pub(super) fn file_one(&self, vb: VbId) -> Result<(), Failure> {
        let end = self.journal.next_frame();
        let state = self.vb(vb);
        let is_left = || state.unfiled.lock().since.is_some_and(|since| since.frame < end);
        while is_left()
            && let Some(part) = self.take(vb)?
        {
            self.file(vec![part]).into_iter().try_for_each(|(_, outcome)| outcome)?;
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
        let (runs, barrier) = now.runs.freeze(self.account());
        let (through, bytes) = (barrier.unwrap_or(now.last), std::mem::take(&mut now.bytes));
        let past = now.past.iter().filter(|(frame, _)| *frame <= through);
        let past: Vec<Version> = past.flat_map(|(_, versions)| versions.iter()).cloned().collect();
        drop(now);
        let items = Charged::new(with_past(merged(&runs), past), self.account());
        Ok(Some(Part { vb, unfiled, runs, items, state, through, bytes }))
    }

    fn file(&self, parts: Vec<Part>) -> Vec<(VbId, Result<(), Failure>)> {
        let group: Vec<(VbId, SaveBatch<'_>)> = parts
            .iter()
            .map(|part| (part.vb, SaveBatch { items: &part.items, state: &part.state }))
            .collect();
        let filed = self.files.file_group(&group);
        let settle = |(part, filed): (Part, Result<FileAt, Failure>)| {
            let vb = part.vb;
            let outcome = match filed {
                Ok(at) => {
                    self.is_filed(part, at);
                    Ok(())
                }
                Err(failure) => {
                    let mut unfiled = part.unfiled.unfiled.lock();
                    drop(unfiled.runs.thaw(false));
                    unfiled.bytes += part.bytes;
                    Err(failure)
                }
            };
            (vb, outcome)
        };
        parts.into_iter().zip(filed).map(settle).collect()
    }

    fn is_filed(&self, part: Part, at: FileAt) {
        self.filed.lock().set(Filed::of(part.vb, part.through, at));
        let mut unfiled = part.unfiled.unfiled.lock();
        let gone = unfiled.runs.thaw(true);
        let past = std::mem::take(&mut unfiled.past);
        let (gone_past, left): (Vec<_>, Vec<_>) =
            past.into_iter().partition(|(frame, _)| *frame <= part.through);
        unfiled.past = left;
        unfiled.left_alone_until = None;
        // what came meanwhile is in the frames after
        let at = self.env.clock.monotonic();
        let next = Oldest { frame: Frame(part.through.0 + 1), at };
        unfiled.since = (unfiled.last > part.through).then_some(next);
        drop(unfiled);
        self.unfiled_bytes.fetch_sub(part.bytes, Ordering::Relaxed);
        drop((gone, gone_past, part.runs));
    }

    /// Removes the file of a vBucket that was deleted.
    pub(super) fn remove_void_file(&self, vb: VbId, unfiled: &Vb) -> Result<(), Failure> {
        self.files.delete_vbucket(vb)?;
        unfiled.unfiled.lock().file_is_void = false;
        Ok(())
    }
}
