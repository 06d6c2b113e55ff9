//! vBuckets of which a damaged journal may have had something: dead from the start that finds it on, while the bucket's
//! others are served (docs/adr/0094-gaps-cost-their-vbuckets.md).
//!
//! *Guarantee:* what is on record keeps them dead, whichever segments go later, until they are deleted or repaired.

use std::collections::BTreeMap;

use base::VbId;
use base::planted::{self, Bug};

use super::Journaled;
use crate::couch;
use crate::failure::Failure;
use crate::journal::{Filed, Frame, Gap, Record, Replayed};

/// The first gap that a vBucket has something in which nothing behind it makes up for.
pub(crate) struct Lost {
    /// The first missing frame.
    pub(crate) first: Frame,
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
                lost.entry(*vb).or_insert(Lost { first: *first, what });
            }
        }
    }
    lost
}

impl Journaled {
    /// Puts on record that changes of these vBuckets are missing. What is there of them goes into their files first, so
    /// that a repair finds it there.
    pub(super) fn lose(&self, lost: BTreeMap<VbId, Lost>) -> Result<(), Failure> {
        let _filing = self.filing.lock();
        for vb in lost.keys() {
            if let Err(failure) = self.file_one(*vb) {
                tracing::warn!(%vb, %failure, "what the journal has before its gap stays in it");
            }
        }
        let mut marked: Vec<Filed> = Vec::new();
        for (vb, Lost { what, .. }) in lost {
            let at = couch::lose(&self.files, vb, what);
            let through = self.filed.lock().by_vbucket.get(&vb).map_or(Frame(0), |filed| filed.through);
            let filed = Filed { vb, through, revision: at.revision, header_offset: at.header_offset };
            self.filed.lock().by_vbucket.insert(vb, filed);
            marked.push(filed);
        }
        let _appending = self.appending.lock();
        self.append(marked.into_iter().map(Record::Filed)).map(drop)
    }
}
