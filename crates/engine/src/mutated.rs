//! Receipt of a change.

use base::{RevSeqno, Seqno, VbUuid};
use vbucket::Stored;

use crate::completion::Completion;
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
}
