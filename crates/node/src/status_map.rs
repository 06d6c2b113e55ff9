//! The one place where the engine's refusals become statuses of the protocol.

use engine::Refusal;
use protocol::{Status, opcode};

/// The status for a refusal.
pub fn status_of(refusal: Refusal) -> Status {
    match refusal {
        Refusal::NotMyVbucket | Refusal::Pending => Status::NotMyVbucket,
        Refusal::NotFound | Refusal::OtherHistory => Status::KeyEnoent,
        Refusal::Exists | Refusal::TieLost => Status::KeyEexists,
        Refusal::Locked => Status::Locked,
        Refusal::NotLocked => Status::NotLocked,
        Refusal::ImpossibleCas => Status::CasValueInvalid,
        Refusal::TooBig => Status::E2big,
        Refusal::NotANumber => Status::DeltaBadval,
        Refusal::OverQuota
        | Refusal::DiskFull
        | Refusal::Busy
        | Refusal::NotResident
        | Refusal::Loading
        | Refusal::Held => Status::Etmpfail,
        Refusal::BadSnappy | Refusal::Invalid => Status::Einval,
        Refusal::BadXattr => Status::XattrEinval,
        Refusal::Unreadable => Status::Einternal,
        Refusal::NoDisk => Status::NotSupported,
        Refusal::SyncWriteInProgress => Status::SyncWriteInProgress,
        Refusal::ReCommitInProgress => Status::SyncWriteReCommitInProgress,
        Refusal::DurabilityImpossible => Status::DurabilityImpossible,
        Refusal::DurabilityInvalidLevel => Status::DurabilityInvalidLevel,
        Refusal::UnknownCollection => Status::UnknownCollection,
    }
}

/// What to tell whoever debugs the client about a refusal, if there is something to tell.
pub fn context_of(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::TieLost => protocol::extras::TIE_LOST,
        Refusal::DiskFull => "The disk is full",
        Refusal::BadSnappy => "Failed to inflate payload",
        Refusal::NoDisk => "The bucket is ephemeral: it has no disk",
        Refusal::BadXattr => "The provided xattr segment is not valid",
        Refusal::Unreadable => "The stored value cannot be read",
        _ => "",
    }
}

/// The status as a client may see it: one that did not negotiate extended errors knows only the old ones.
/// Nothing if there is no old one that would not mislead it; then the connection is closed.
pub fn visible(status: Status, opcode: u8, has_cas: bool, has_xerror: bool) -> Option<Status> {
    if has_xerror {
        return Some(status);
    }
    match status {
        Status::Locked if has_cas && matches!(opcode, opcode::DELETE | opcode::DELETEQ) => {
            Some(Status::Etmpfail)
        }
        Status::Locked | Status::NotLocked if is_tried_again(opcode) => Some(Status::Etmpfail),
        Status::Locked | Status::CasValueInvalid => Some(Status::KeyEexists),
        Status::SyncWriteInProgress | Status::SyncWriteReCommitInProgress => Some(Status::Etmpfail),
        Status::CannotApplyCollectionsManifest => Some(Status::Einternal),
        Status::NoBucket | Status::Eaccess | Status::DurabilityImpossible | Status::SyncWriteAmbiguous => {
            None
        }
        other => Some(other),
    }
}

/// Whether a lock in the way of a command is told to old clients as a failure that passes, and not as another CAS.
fn is_tried_again(opcode: u8) -> bool {
    matches!(
        opcode,
        opcode::GET_LOCKED
            | opcode::UNLOCK_KEY
            | opcode::DELETE_WITH_META
            | opcode::DELETEQ_WITH_META
            | opcode::SUBDOC_GET..=opcode::SUBDOC_REPLACE_BODY_WITH_XATTR
    )
}
