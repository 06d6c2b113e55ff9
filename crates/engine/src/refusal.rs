//! Expected answers other than success: small, without text, without allocation.

/// Why an operation was not carried out; nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This node does not serve the vBucket in the state that the operation needs.
    NotMyVbucket,
    /// The document does not exist.
    NotFound,
    /// The document exists already, or has another CAS.
    Exists,
    /// The document has the same metadata as the change, and another value, which wins over that of the change.
    TieLost,
    /// The document is locked by somebody else.
    Locked,
    /// The document is not locked.
    NotLocked,
    /// The value would be larger than a document may be.
    TooBig,
    /// The document is not a number that a counter can change.
    NotANumber,
    /// The bucket's memory is used up for now.
    OverQuota,
    /// The disk is full: nothing is taken that could not be saved.
    DiskFull,
    /// Too many others changed the document at the same time; try again.
    Busy,
    /// The value is not a valid Snappy block.
    BadSnappy,
    /// The xattr section is malformed.
    BadXattr,
    /// What is stored cannot be read: it is not the Snappy block, or has not the xattrs, that its datatype says.
    Unreadable,
    /// The request's arguments contradict each other.
    Invalid,
    /// The vBucket's history is another one.
    OtherHistory,
    /// The document, or its value, is not in memory: fetch it, and ask again.
    NotResident,
    /// The vBucket is about to get another role: wait for that, and ask again.
    Pending,
    /// Changes are held for a snapshot of the bucket: wait for its end, and ask again.
    Held,
    /// The vBucket's documents are still being loaded: wait for them, and ask again.
    Loading,
    /// The bucket has no disk, so this cannot be.
    NoDisk,
    /// The document has a prepare that is neither committed nor aborted yet.
    SyncWriteInProgress,
    /// The document has a prepare that an earlier active node made, and that is about to be committed here.
    ReCommitInProgress,
    /// The vBucket's chains have too few members for a sync write.
    DurabilityImpossible,
    /// The bucket cannot keep the durability level.
    DurabilityInvalidLevel,
    /// The vBucket has no such collection.
    UnknownCollection,
    /// The CAS that a change brings is too far ahead of the clock.
    ImpossibleCas,
}

impl From<vbucket::Refusal> for Refusal {
    fn from(refusal: vbucket::Refusal) -> Refusal {
        match refusal {
            vbucket::Refusal::NotFound => Refusal::NotFound,
            vbucket::Refusal::Exists | vbucket::Refusal::CasMismatch => Refusal::Exists,
            vbucket::Refusal::Locked => Refusal::Locked,
            vbucket::Refusal::Changed | vbucket::Refusal::NeedsTieBreak => Refusal::Busy,
            vbucket::Refusal::TieLost => Refusal::TieLost,
            vbucket::Refusal::Unknown => Refusal::NotResident,
            vbucket::Refusal::SyncWriteInProgress => Refusal::SyncWriteInProgress,
            vbucket::Refusal::ReCommitInProgress => Refusal::ReCommitInProgress,
            vbucket::Refusal::DurabilityImpossible => Refusal::DurabilityImpossible,
        }
    }
}

impl From<vbucket::UnlockRefusal> for Refusal {
    fn from(refusal: vbucket::UnlockRefusal) -> Refusal {
        match refusal {
            vbucket::UnlockRefusal::NotFound => Refusal::NotFound,
            vbucket::UnlockRefusal::NotLocked => Refusal::NotLocked,
            vbucket::UnlockRefusal::WrongCas => Refusal::Locked,
            vbucket::UnlockRefusal::Unknown => Refusal::NotResident,
        }
    }
}

impl From<vbucket::Unknown> for Refusal {
    fn from(_: vbucket::Unknown) -> Refusal {
        Refusal::NotResident
    }
}
