//! Get-and-lock and unlock.

use base::{Cas, DocKey, Moment, NewVersion};

use crate::locks::Lock;
use crate::ops::change::{Basis, Refusal, Refused};
use crate::vbucket::{Contents, Garbage, Unknown, VBucket};

/// Why a document was not unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlockRefusal {
    /// The document does not exist.
    NotFound,
    /// It is not locked.
    NotLocked,
    /// It is locked with another CAS.
    WrongCas,
    /// The key may be on disk alone: have it brought, and ask again.
    Unknown,
}

impl VBucket {
    /// Locks a document until `until`: `copy`, made from the present version, takes its place under a CAS of its
    /// own; seqno and revision stay, nothing is queued, because the document did not change.
    pub fn lock(
        &mut self,
        hash: u64,
        mut copy: NewVersion,
        basis: Basis,
        until: Moment,
        now: Moment,
    ) -> Result<(Cas, Garbage), Refused> {
        if let Some(refusal) = self.sync_writes.in_the_way(copy.key()) {
            return Err(Refused { refusal, new: copy });
        }
        let slot = self.contents.table.find_slot(hash, copy.key());
        let present = slot.get().map_or(Cas::ANY, |version| version.meta().cas);
        let refusal = match slot.get().filter(|v| v.is_live(now)) {
            None if slot.get().is_none() && self.contents.evicted.may_hold(hash, copy.key()) => {
                Some(Refusal::Unknown)
            }
            None => Some(Refusal::NotFound),
            Some(_) if self.contents.locks.holder(copy.key(), now).is_some() => Some(Refusal::Locked),
            Some(v) if Basis::of(Some(&v)) != basis => Some(Refusal::Changed),
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            return Err(Refused { refusal, new: copy });
        }
        let cas = self.contents.history.hlc.next_after(present, now.0);
        copy.meta_mut().cas = cas;
        self.contents.locks.put(copy.key(), Lock { cas, until }, now);
        // The disk has another CAS: this one must not be forgotten before the next change.
        self.contents.evicted.ties.relock(copy.key());
        // The version there may have lost its value, or got it in another form, since the copy was made.
        let copy = copy.publish();
        self.contents.history.enter(&copy);
        // A reader of the list may meet the document with either CAS.
        let unlisted = self.contents.history.seq_list.as_mut().map(|list| list.swap(copy.clone()));
        let replaced = slot.replace(copy);
        self.contents.history.leave(&replaced);
        Ok((cas, Garbage { replaced: Some(replaced), unlisted, ..Garbage::default() }))
    }
}

impl Contents {
    /// Ends the lock on a document.
    pub fn unlock(&mut self, hash: u64, key: DocKey<'_>, cas: Cas, now: Moment) -> Result<(), UnlockRefusal> {
        let found = self.find(hash, key).map_err(|Unknown| UnlockRefusal::Unknown)?;
        if !found.is_some_and(|v| v.is_live(now)) {
            return Err(UnlockRefusal::NotFound);
        }
        match self.locks.holder(key, now) {
            None => Err(UnlockRefusal::NotLocked),
            Some(lock) if lock.cas != cas => Err(UnlockRefusal::WrongCas),
            Some(_) => {
                self.locks.remove(key);
                Ok(())
            }
        }
    }
}
