//! How far a journal tells of each vBucket.

use std::collections::BTreeMap;

use base::{Seqno, VbId, Version};

use super::Replayed;

/// The highest seqno of each vBucket in the saves of a journal that was read whole.
///
/// *Invariant:* a change is durable in the journal before a file has it, and stays there until the header with it is on
/// record. So no file has a higher seqno than its header on record and the journal together, except that of a vBucket
/// that was deleted: its old file may be there still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldSeqnos(BTreeMap<VbId, Seqno>);

impl ToldSeqnos {
    pub(crate) fn told(&mut self, told: &Replayed) {
        match told {
            Replayed::Save { vb, items, .. } => self.saved(*vb, items),
            Replayed::Dropped(vb) => self.dropped(*vb),
            Replayed::Filed(_) | Replayed::RolledBack(_) => {}
        }
    }

    pub(crate) fn saved(&mut self, vb: VbId, items: &[Version]) {
        let highest = items.iter().map(|item| item.meta().by_seqno).max().unwrap_or_default();
        let told = self.0.entry(vb).or_default();
        *told = highest.max(*told);
    }

    /// Nothing is known of what an old file of the vBucket has.
    pub(crate) fn dropped(&mut self, vb: VbId) {
        self.0.insert(vb, Seqno(u64::MAX));
    }

    /// The highest seqno of the vBucket; `None` if the journal has neither a save nor the end of it.
    pub(crate) fn of(&self, vb: VbId) -> Option<Seqno> {
        self.0.get(&vb).copied()
    }
}
