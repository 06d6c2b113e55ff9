//! What became of requests that people count by kind: counters, changes with a CAS, locks, metadata.
//!
//! Kept by worker and bucket, beside the times (`stats::timings`).

use std::sync::atomic::{AtomicU64, Ordering};

use base::Cas;
use protocol::opcode::*;
use protocol::{Request, Status};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counted {
    /// Increments that counted, or made the document.
    IncrementHit,
    /// Increments of a document that was not there.
    IncrementMiss,
    /// Decrements that counted, or made the document.
    DecrementHit,
    /// Decrements of a document that was not there.
    DecrementMiss,
    /// Changes whose CAS was the document's.
    CasHit,
    /// Changes with a CAS whose document was not there.
    CasMiss,
    /// Changes whose CAS was not the document's.
    CasWrong,
    /// Requests refused because the document was locked.
    Locked,
    /// Requests for a vBucket that is not active here.
    NotMyVbucket,
    /// Requests for metadata.
    GetMeta,
    /// Documents stored with their metadata.
    SetMeta,
    /// Those that were refused because the present document wins.
    SetMetaLost,
    /// Documents deleted with their metadata.
    DeleteMeta,
    /// Those that were refused because the present document wins.
    DeleteMetaLost,
    /// Documents stored whose new metadata were answered.
    SetReturningMeta,
    /// Documents deleted whose new metadata were answered.
    DeleteReturningMeta,
    /// Deletions of a document that was not there.
    DeleteMiss,
    /// Look-ups of paths of a document.
    SubdocLookup,
    /// Changes of paths of a document.
    SubdocMutation,
}

/// A counter of each kind with its name in stats.
pub const NAMES: [(Counted, &str); 19] = [
    (Counted::IncrementHit, "incr_hits"),
    (Counted::IncrementMiss, "incr_misses"),
    (Counted::DecrementHit, "decr_hits"),
    (Counted::DecrementMiss, "decr_misses"),
    (Counted::CasHit, "cas_hits"),
    (Counted::CasMiss, "cas_misses"),
    (Counted::CasWrong, "cas_badval"),
    (Counted::Locked, "lock_errors"),
    (Counted::NotMyVbucket, "ep_num_not_my_vbuckets"),
    (Counted::GetMeta, "ep_num_ops_get_meta"),
    (Counted::SetMeta, "ep_num_ops_set_meta"),
    (Counted::SetMetaLost, "ep_num_ops_set_meta_res_fail"),
    (Counted::DeleteMeta, "ep_num_ops_del_meta"),
    (Counted::DeleteMetaLost, "ep_num_ops_del_meta_res_fail"),
    (Counted::SetReturningMeta, "ep_num_ops_set_ret_meta"),
    (Counted::DeleteReturningMeta, "ep_num_ops_del_ret_meta"),
    (Counted::DeleteMiss, "delete_misses"),
    (Counted::SubdocLookup, "cmd_subdoc_lookup"),
    (Counted::SubdocMutation, "cmd_subdoc_mutation"),
];

/// The counters of one thread.
#[derive(Default)]
pub(crate) struct Tally([AtomicU64; NAMES.len()]);

impl Tally {
    pub(crate) fn count(&self, counted: Counted) {
        self.0[counted as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, counted: Counted) -> u64 {
        self.0[counted as usize].load(Ordering::Relaxed)
    }
}

/// What a request with this answer counts as; most count as nothing here.
#[inline]
pub(crate) fn kind_of(request: &Request<'_>, status: Status) -> Option<Counted> {
    match status {
        Status::Locked => Some(Counted::Locked),
        Status::NotMyVbucket => Some(Counted::NotMyVbucket),
        _ => kind_by_command(request, status),
    }
}

#[inline]
fn kind_by_command(request: &Request<'_>, status: Status) -> Option<Counted> {
    let (is_done, is_missing) = (status == Status::Success, status == Status::KeyEnoent);
    let is_lost = status == Status::KeyEexists;
    let of = |done, missing| match (is_done, is_missing) {
        (true, _) => Some(done),
        (_, true) => Some(missing),
        _ => None,
    };
    match request.opcode {
        INCREMENT | INCREMENTQ => of(Counted::IncrementHit, Counted::IncrementMiss),
        DECREMENT | DECREMENTQ => of(Counted::DecrementHit, Counted::DecrementMiss),
        SET | SETQ | REPLACE | REPLACEQ | APPEND | APPENDQ | PREPEND | PREPENDQ
            if request.cas != Cas::ANY =>
        {
            of(Counted::CasHit, Counted::CasMiss).or(is_lost.then_some(Counted::CasWrong))
        }
        DELETE | DELETEQ => is_missing.then_some(Counted::DeleteMiss),
        GET_META | GETQ_META => Some(Counted::GetMeta),
        SUBDOC_GET | SUBDOC_EXISTS | SUBDOC_GET_COUNT | SUBDOC_MULTI_LOOKUP => Some(Counted::SubdocLookup),
        SUBDOC_DICT_ADD..=SUBDOC_COUNTER | SUBDOC_REPLACE_BODY_WITH_XATTR | SUBDOC_MULTI_MUTATION => {
            Some(Counted::SubdocMutation)
        }
        SET_WITH_META | SETQ_WITH_META | ADD_WITH_META | ADDQ_WITH_META => {
            is_done.then_some(Counted::SetMeta).or(is_lost.then_some(Counted::SetMetaLost))
        }
        DELETE_WITH_META | DELETEQ_WITH_META => {
            is_done.then_some(Counted::DeleteMeta).or(is_lost.then_some(Counted::DeleteMetaLost))
        }
        RETURN_META if is_done => match request.extras.get(..4)? {
            [.., 3] => Some(Counted::DeleteReturningMeta),
            _ => Some(Counted::SetReturningMeta),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_stand_in_their_order() {
        for (at, (counted, _)) in NAMES.iter().enumerate() {
            assert_eq!(*counted as usize, at);
        }
    }
}
