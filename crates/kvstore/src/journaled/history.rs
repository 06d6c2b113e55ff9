//! What changes a vBucket's past: rollback, and the file that a compaction puts in place of the old one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::planted::{self, Bug};
use base::{Seqno, VbId, Version};

use super::{Journaled, Unfiled, Vb};
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::Failure;
use crate::journal::{Filed, Frame, Record, Replayed, ReplayedState};
use crate::sort::sort_with_past;
use crate::state::VbStateDoc;
use crate::store::{KvStore, SaveBatch, StoredVb};

/// A save as it was journaled.
struct Save {
    state: Arc<VbStateDoc>,
    items: Vec<Version>,
    is_repeat: bool,
}

impl Save {
    /// Whether it ends in the middle of a replica's snapshot that goes beyond `to`.
    fn is_unfinished_behind(&self, to: Seqno) -> bool {
        let high = self.items.iter().map(|version| version.meta().by_seqno).max();
        high.is_some_and(|high| self.state.unfinished_at(high).is_some() && self.state.snap_end > to.0)
    }
}

/// While it lives, readers of a vBucket wait. The owner holds `filing`.
struct ReadersWait<'v>(&'v Vb);

impl<'v> ReadersWait<'v> {
    fn begin(vb: &'v Vb) -> ReadersWait<'v> {
        let mut unfiled = vb.unfiled.lock();
        unfiled.is_rolling_back = true;
        unfiled.filings += 1;
        ReadersWait(vb)
    }
}

impl Drop for ReadersWait<'_> {
    fn drop(&mut self) {
        self.0.unfiled.lock().is_rolling_back = false;
    }
}

/// Before a file is written to that nothing was journaled of: the journal has to tell of the files then. A catalog that lists
/// them would have what is written taken for another program's, should the process end before it is on record.
fn begin_journal(store: &Journaled, vb: VbId) -> Result<(), Failure> {
    if !store.files.are_listed() || planted::is(Bug::WrittenWhileListed) {
        return Ok(());
    }
    let _appending = store.appending.lock();
    let filed = { store.filed.lock().by_vbucket.get(&vb).copied() };
    store.append(filed.map(Record::Filed)).map(drop)
}

impl Journaled {
    pub(super) fn roll_back(&self, vb: VbId, to: Seqno) -> Result<RolledBack, Failure> {
        let _filing = self.filing.lock();
        let unfiled = self.vb(vb);
        let _readers_wait = ReadersWait::begin(&unfiled);
        // Before a file is removed: one that may be on record is not needed any more once a newer record is there.
        self.settle_undecided()?;
        if unfiled.unfiled.lock().file_is_void {
            self.remove_void_file(vb, &unfiled)?;
        }
        // read once, as saves go on meanwhile
        let now = self.stored(vb, Vb::at_once)?;
        let high = now.as_ref().map(|now| now.high_seqno);
        if high.is_none_or(|high| high <= to) {
            return Ok(RolledBack { seqno: high.unwrap_or_default(), stored: now });
        }
        let filed = self.files.snapshot(vb)?.map(|file| file.high_seqno());
        if filed.is_some_and(|filed| filed > to) {
            begin_journal(self, vb)?;
            let rolled_back = self.files.rollback_with(vb, to, &|at| self.void_unfiled(vb, at))?;
            unfiled.unfiled.lock().file_is_void = false;
            return Ok(rolled_back);
        }
        let kept = self.saves_through(vb, to)?;
        let stored = self.keep_only(vb, kept)?;
        Ok(RolledBack { seqno: stored.as_ref().map_or(Seqno(0), |stored| stored.high_seqno), stored })
    }

    /// The file goes back to an older commit, or goes: what was journaled behind it is void.
    fn void_unfiled(&self, vb: VbId, at: Option<FileAt>) -> Result<(), Failure> {
        let _appending = self.appending.lock();
        let through = Frame(self.journal.next_frame().0 - 1);
        match at {
            Some(at) => {
                let filed = Filed::of(vb, through, at);
                self.append([Record::RolledBack(filed)])?;
                self.filed.lock().by_vbucket.insert(vb, filed);
            }
            None => {
                self.append([Record::Dropped(vb)])?;
                self.filed.lock().forget(vb);
            }
        }
        // Of a file that goes nothing is true any more, whether or not it can be removed.
        self.replace(vb, Unfiled { file_is_void: at.is_none(), ..Unfiled::default() });
        Ok(())
    }

    /// Puts something else in the place of what is in the journal only.
    pub(super) fn replace(&self, vb: VbId, new: Unfiled) {
        let vb = self.vb(vb);
        let mut unfiled = vb.unfiled.lock();
        let filings = unfiled.filings + 1;
        self.unfiled_bytes.fetch_add(new.bytes, Ordering::Relaxed);
        let is_rolling_back = unfiled.is_rolling_back;
        let old = std::mem::replace(&mut *unfiled, Unfiled { filings, is_rolling_back, ..new });
        drop(unfiled);
        self.may_wait.store(true, Ordering::Release);
        self.unfiled_bytes.fetch_sub(old.bytes, Ordering::Relaxed);
    }

    /// The saves of a vBucket that are in the journal only, up to the first that goes beyond a seqno: runs in memory
    /// have merged them, the journal has not.
    fn saves_through(&self, vb: VbId, to: Seqno) -> Result<Vec<Save>, Failure> {
        let filed = self.filed.lock().by_vbucket.get(&vb).map_or(Frame(0), |filed| filed.through);
        let mut of_file = None;
        let mut state: Option<VbStateDoc> = None;
        let mut kept: Vec<(Frame, Save)> = Vec::new();
        self.journal.reread(&mut |frame, replayed| {
            match replayed {
                Replayed::Save { vb: of, state: change, items, is_repeat, .. } if of == vb => {
                    let state = match change {
                        ReplayedState::Whole(whole) => state.insert(whole),
                        ReplayedState::Numbers(numbers) => {
                            let base = || of_file.take().unwrap_or_default();
                            let state = state.get_or_insert_with(base);
                            numbers.apply(state);
                            state
                        }
                    };
                    kept.push((frame, Save { state: Arc::new(state.clone()), items, is_repeat }));
                }
                Replayed::Dropped(of) if of == vb => {
                    kept.clear();
                    state = None;
                }
                Replayed::RolledBack(filed) if filed.vb == vb => {
                    kept.retain(|(frame, _)| *frame > filed.through)
                }
                Replayed::Filed(filed) if filed.vb == vb && of_file.is_none() => {
                    of_file = self.files.snapshot(vb)?.map(|file| file.state()).transpose()?;
                }
                _ => {}
            }
            Ok(())
        })?;
        let within = |save: &Save| save.items.iter().all(|version| version.meta().by_seqno <= to);
        kept.retain(|(frame, _)| *frame > filed);
        if kept.iter().any(|(_, save)| save.is_repeat) {
            // Repeated saves are merged, and the originals may be gone: no state between the file's and the last can be
            // had again.
            return Ok(Vec::new());
        }
        let mut saves: Vec<Save> = kept.into_iter().map(|(_, save)| save).take_while(within).collect();
        // What is kept becomes one commit: it must not end inside a snapshot that goes beyond `to`.
        while saves.last().is_some_and(|save| save.is_unfinished_behind(to)) {
            saves.pop();
        }
        Ok(saves)
    }

    /// Files what is kept, and then journals that everything else before is void: one record, so that a power loss
    /// leaves the vBucket as it was or as it shall be.
    fn keep_only(&self, vb: VbId, kept: Vec<Save>) -> Result<Option<StoredVb>, Failure> {
        let at = self.filed.lock().by_vbucket.get(&vb).map(Filed::at);
        let mut at = at.unwrap_or_default();
        if let Some(last) = kept.last() {
            let all = kept.iter().flat_map(|save| &save.items);
            let items: Vec<Version> = if self.keeps_history() {
                let mut items = all.cloned().collect();
                sort_with_past(&mut items);
                items
            } else {
                let newest: BTreeMap<&[u8], &Version> =
                    all.map(|version| (version.stored_key(), version)).collect();
                newest.into_values().cloned().collect()
            };
            let batch = SaveBatch { items: &items, state: &last.state };
            let mut filed = self.files.file_group(&[(vb, batch)]);
            at = filed.pop().expect("an answer for each batch")?;
        }
        // before the record, as saves go on behind it; the files stay as they are while `filing` is held
        let stored = self.files.stored(vb)?;
        let _appending = self.appending.lock();
        let through = Frame(self.journal.next_frame().0 - 1);
        // a file that was compacted meanwhile holds the same under its newer revision
        let present = self.filed.lock().by_vbucket.get(&vb).copied();
        if let Some(present) = present.filter(|present| present.revision > at.revision) {
            at = present.at();
        }
        let filed = Filed::of(vb, through, at);
        self.append([Record::RolledBack(filed)])?;
        if filed.revision > 0 {
            self.filed.lock().by_vbucket.insert(vb, filed);
        }
        self.replace(vb, Unfiled::default());
        Ok(stored)
    }

    pub(super) fn compact_file(&self, vb: VbId, request: &Compaction<'_>) -> Result<Compacted, Failure> {
        {
            let _filing = self.filing.lock();
            self.file_one(vb)?;
        }
        self.files.compact_with(vb, request, &|at| {
            let _appending = self.appending.lock();
            if self.vb(vb).unfiled.lock().file_is_void {
                return Err(Failure::CompactionEnded { vb, why: "the vBucket was deleted" });
            }
            let through = self.filed.lock().by_vbucket.get(&vb).map_or(Frame(0), |filed| filed.through);
            let filed = Filed::of(vb, through, at);
            self.append([Record::Filed(filed)])?;
            self.filed.lock().by_vbucket.insert(vb, filed);
            Ok(())
        })
    }
}
