//! vBuckets of which a damaged journal may have had something: not served, while the bucket's others are
//! (docs/adr/0094-gaps-cost-their-vbuckets.md).
//!
//! *Guarantee:* the damaged segments stay, and each start looks again, so that damage that heals costs nothing. Segments go
//! only if the vBuckets are deleted, or if it is on record that they miss changes.

use std::collections::BTreeMap;

use base::VbId;
use base::planted::{self, Bug};

use super::Journaled;
use crate::failure::Failure;
use crate::journal::{Filed, Frame, Gap, Record, Replayed};

/// The first gap that a vBucket has something in which nothing behind it makes up for.
pub(crate) struct Lost {
    /// Where the damage is.
    pub(crate) what: String,
}

/// The vBuckets of which gaps may have something that was not filed behind them.
pub(crate) fn lost_in<'t>(
    gaps: &[Gap],
    told: impl Iterator<Item = (Frame, &'t Replayed)>,
) -> BTreeMap<VbId, Lost> {
    // Through which frame it does not matter what a vBucket had.
    let mut made_up: BTreeMap<VbId, Frame> = BTreeMap::new();
    for (frame, told) in told {
        let (vb, through) = match told {
            Replayed::Filed(filed) | Replayed::RolledBack(filed) => (filed.vb, filed.through),
            Replayed::Dropped(vb) => (*vb, frame),
            Replayed::Save { .. } => continue,
        };
        let known = made_up.entry(vb).or_default();
        *known = through.max(*known);
    }
    let mut lost = BTreeMap::new();
    if planted::is(Bug::GapHidesNothing) {
        return lost;
    }
    for gap in gaps {
        let Gap { first, last, path, offset, what, .. } = gap;
        for vb in gap.vbs.iter().flatten() {
            if made_up.get(vb).is_none_or(|through| through < last) {
                let what =
                    format!("frames {} to {} ({}: offset {offset}: {what})", first.0, last.0, path.display());
                lost.entry(*vb).or_insert(Lost { what });
            }
        }
    }
    lost
}

impl Journaled {
    /// The journal misses changes of these vBuckets, and its segments stay as they are.
    pub(super) fn miss(&self, lost: BTreeMap<VbId, Lost>) {
        for (vb, Lost { what, .. }) in &lost {
            tracing::error!(
                event = "changes_missing", %vb, missing = what,
                "acknowledged changes may be missing; the vBucket is not served"
            );
            self.filed.lock().forget(*vb);
        }
        *self.lost.lock() = lost.into_iter().map(|(vb, lost)| (vb, lost.what)).collect();
        self.let_go_if_all_is_found();
    }

    /// Why a vBucket takes no saves, if changes of it are missing.
    pub(super) fn is_missing_changes(&self, vb: VbId) -> Result<(), Failure> {
        self.lost.lock().get(&vb).map_or(Ok(()), |what| Err(Failure::Lost { vb, what: what.clone() }))
    }

    /// Why the journal must stay, if changes of any vBucket are missing in it.
    pub(super) fn misses_nothing(&self) -> Result<(), Failure> {
        let first = self.lost.lock().keys().next().copied();
        first.map_or(Ok(()), |vb| self.is_missing_changes(vb))
    }

    /// A vBucket was deleted: what is missing of it is missed no more.
    pub(super) fn is_deleted(&self, vb: VbId) {
        let was_missing = self.lost.lock().remove(&vb).is_some();
        if was_missing {
            self.let_go_if_all_is_found();
        }
    }

    fn let_go_if_all_is_found(&self) {
        if self.lost.lock().is_empty() {
            self.journal.let_go_of_gaps();
        }
    }

    /// Bytes of the journal that count towards its limit: damaged segments come on top, up to as much again.
    pub(super) fn counted_bytes(&self) -> u64 {
        let on_top = self.journal.pinned_bytes().min(self.config.journal_bytes);
        self.journal.stats().used_bytes.saturating_sub(on_top)
    }

    /// There is no more room for what may be found again: puts on record that changes of these vBuckets are missing, so
    /// that the journal can go on. The caller holds `filing`.
    pub(super) fn give_up_missing(&self) -> Result<(), Failure> {
        let lost = self.lost.lock().clone();
        if lost.is_empty() {
            return Ok(());
        }
        let mut marked: Vec<Filed> = Vec::new();
        for (vb, what) in lost {
            tracing::error!(
                event = "changes_given_up", %vb, missing = what,
                "the journal is full: the missing changes are given up"
            );
            // Nothing of it in the journal counts behind this.
            let filed = Filed::of(vb, Frame(0), self.files.give_up(vb));
            self.filed.lock().by_vbucket.insert(vb, filed);
            marked.push(filed);
        }
        let _appending = self.appending.lock();
        self.append(marked.into_iter().map(Record::Filed))?;
        self.lost.lock().clear();
        self.journal.let_go_of_gaps();
        self.append([]).map(drop)
    }
}
