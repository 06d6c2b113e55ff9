//! The one way a client's change enters a vBucket: check everything, then change.

use base::planted::{self, Bug};
use base::{Cas, DocKey, Moment, NewVersion, RevSeqno, Seqno, Version};

use crate::locks::Locks;
use crate::vbucket::{Garbage, Unknown, VBucket};

/// Whether the document must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    /// It may or may not.
    Any,
    /// It must, alive.
    Live,
    /// It must not; a tombstone or an expired document counts as absent.
    Absent,
}

/// What the new version was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// From nothing of the old version.
    Nothing,
    /// From nothing, provided that the old version has no xattrs to carry over.
    NoXattrs,
    /// From exactly this version (its seqno and CAS), or from none.
    Version(Option<(Seqno, Cas)>),
}

impl Basis {
    /// Built from `version`, or from none.
    pub fn of(version: Option<&Version>) -> Basis {
        Basis::Version(version.map(|v| (v.meta().by_seqno, v.meta().cas)))
    }
}

/// A change that a client asks for. Flags, expiry, datatype and kind are set in the new version;
/// CAS, seqno and revision are given when it is applied.
pub struct Change {
    /// The version to put in place.
    pub new: NewVersion,
    /// Whether the document must exist.
    pub existence: Existence,
    /// The CAS that the document must have; [`Cas::ANY`] for any.
    pub cas: Cas,
    /// What the version was computed from.
    pub basis: Basis,
    /// Keep the expiry of a document that is alive.
    pub preserve_expiry: bool,
}

/// Why a change was not applied; nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The document does not exist.
    NotFound,
    /// The document exists already.
    Exists,
    /// The document has another CAS.
    CasMismatch,
    /// The document is locked by somebody else.
    Locked,
    /// The document is not the one that the change was computed from: compute again.
    Changed,
    /// The key may be on disk alone: have it brought, and ask again.
    Unknown,
    /// The present version has the same metadata: compare the values ([`crate::TieBreak`]), and ask again.
    NeedsTieBreak,
    /// The present version has the same metadata, and its value wins.
    TieLost,
    /// The document has a prepare that is neither committed nor aborted yet.
    SyncWriteInProgress,
    /// The document has a prepare that was made elsewhere, and that is about to be committed here.
    ReCommitInProgress,
    /// The vBucket's chains have too few members for a sync write.
    DurabilityImpossible,
}

/// A refusal, with the version that was not used, to be dropped outside the lock.
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// The unused version.
    pub new: NewVersion,
}

/// What an applied change got.
pub struct Stored {
    /// Its CAS.
    pub cas: Cas,
    /// Its seqno.
    pub by_seqno: Seqno,
    /// Its revision.
    pub rev_seqno: RevSeqno,
    /// To be dropped outside the lock.
    pub garbage: Garbage,
}

impl VBucket {
    /// Applies a change, or refuses it without a trace.
    ///
    /// `finish` is called once CAS, seqno and revision are in the metadata, for values that contain them.
    pub fn apply(
        &mut self,
        hash: u64,
        change: Change,
        now: Moment,
        finish: impl FnOnce(&mut NewVersion),
    ) -> Result<Stored, Refused> {
        let Change { mut new, existence, cas, basis, preserve_expiry } = change;
        if let Err(refusal) = check_prepare(self, hash, new.key(), existence, now)
            && !planted::is(Bug::WriteUnderPrepare)
        {
            return Err(Refused { refusal, new });
        }
        let forgotten = self.forgotten_rev();
        let slot = self.contents.table.find_slot(hash, new.key());
        let current = slot.get();
        let current = current.as_deref();
        if current.is_none() && self.contents.evicted.may_hold(hash, new.key()) {
            return Err(Refused { refusal: Refusal::Unknown, new });
        }
        let current = current.filter(|version| !self.contents.history.collections.hides(version));
        let verdict = check(current, existence, basis, now)
            .and_then(|()| check_cas(&self.contents.locks, new.key(), current, cas, now));
        if let Err(refusal) = verdict {
            return Err(Refused { refusal, new });
        }
        self.contents.locks.remove(new.key());
        self.contents.evicted.ties.changed(new.key());
        self.contents.history.complete(&mut new, current, forgotten, preserve_expiry, now);
        finish(&mut new);
        Ok(self.contents.history.record(slot, new))
    }

    /// The present version of a document that a change may replace, for a change that replaces it later.
    pub(crate) fn check(
        &self,
        hash: u64,
        key: DocKey<'_>,
        existence: Existence,
        cas: Cas,
        basis: Basis,
        now: Moment,
    ) -> Result<Option<Version>, Refusal> {
        check_prepare(self, hash, key, existence, now)?;
        let current = self.find(hash, key).map_err(|Unknown| Refusal::Unknown)?;
        check(current.as_deref(), existence, basis, now)?;
        if !planted::is(Bug::PrepareIgnoresCas) {
            check_cas(&self.contents.locks, key, current.as_deref(), cas, now)?;
        }
        Ok(current.map(|version| version.clone()))
    }
}

/// A prepare refuses all changes of its document but those that fail without it as well: what must be there and is not.
fn check_prepare(
    vb: &VBucket,
    hash: u64,
    key: DocKey<'_>,
    existence: Existence,
    now: Moment,
) -> Result<(), Refusal> {
    match vb.sync_writes.in_the_way(key) {
        None => Ok(()),
        Some(Refusal::SyncWriteInProgress) if existence == Existence::Live => {
            let current = vb.find(hash, key).map_err(|Unknown| Refusal::Unknown)?;
            let is_there = current.is_some_and(|version| version.is_live(now));
            Err(if is_there { Refusal::SyncWriteInProgress } else { Refusal::NotFound })
        }
        Some(refusal) => Err(refusal),
    }
}

fn check(current: Option<&Version>, existence: Existence, basis: Basis, now: Moment) -> Result<(), Refusal> {
    let live = current.filter(|v| v.is_live(now));
    let moved = match basis {
        Basis::Nothing => false,
        Basis::NoXattrs => live.is_some_and(|v| v.meta().datatype.is_xattr()),
        Basis::Version(seen) => current.map(|v| (v.meta().by_seqno, v.meta().cas)) != seen,
    };
    match (existence, live) {
        (Existence::Absent, Some(_)) => Err(Refusal::Exists),
        (Existence::Live, None) => Err(Refusal::NotFound),
        _ if moved => Err(Refusal::Changed),
        _ => Ok(()),
    }
}

/// A lock lets only its own CAS pass; without a lock the CAS is compared with that of the living document.
/// The lock of a document that has expired meanwhile has nothing left to guard.
fn check_cas(
    locks: &Locks,
    key: DocKey<'_>,
    current: Option<&Version>,
    cas: Cas,
    now: Moment,
) -> Result<(), Refusal> {
    let live = current.filter(|v| v.is_live(now));
    match live.and_then(|_| locks.holder(key, now)) {
        Some(lock) if cas == lock.cas => return Ok(()),
        Some(_) => return Err(Refusal::Locked),
        None if cas == Cas::ANY => return Ok(()),
        None => {}
    }
    match live {
        Some(v) if v.meta().cas == cas => Ok(()),
        Some(_) => Err(Refusal::CasMismatch),
        None => Err(Refusal::NotFound),
    }
}
