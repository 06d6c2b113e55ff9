//! Receipt of a change.

use base::{RevSeqno, Seqno, VbUuid};
use vbucket::{Refused, Stored};

use crate::completion::Completion;
use crate::refusal::Refusal;
use crate::sync_waiters::SyncOutcome;

/// Receipt of a change: what a client needs to recognise it later.
#[derive(Debug, PartialEq, Eq)]
pub struct Mutated {
    /// The document's new CAS.
    pub cas: base::Cas,
    /// The history it belongs to.
    pub uuid: VbUuid,
    /// Its place in that history.
    pub seqno: Seqno,
    /// The document's new revision.
    pub rev_seqno: RevSeqno,
    /// Of a sync write that is not committed yet: what becomes of it. Nothing: the change is done.
    pub pending: Option<Completion<SyncOutcome>>,
}

impl Mutated {
    pub(crate) fn of(stored: &Stored, uuid: VbUuid, pending: Option<Completion<SyncOutcome>>) -> Mutated {
        let Stored { cas, by_seqno: seqno, rev_seqno, .. } = *stored;
        Mutated { cas, uuid, seqno, rev_seqno, pending }
    }

    /// Of a change that waits for nothing. What it replaced goes here, outside of the lock.
    pub(crate) fn done(outcome: Result<Stored, Refused>, uuid: VbUuid) -> Result<Mutated, Refusal> {
        let stored = outcome.map_err(|refused| refused.refusal)?;
        let mutated = Mutated::of(&stored, uuid, None);
        drop(stored.garbage);
        Ok(mutated)
    }
}
