//! Changes that bring their own metadata (set, add and delete with meta): replication between clusters.

use base::planted::{self, Bug};
use base::{Cas, Moment, NewVersion, VersionMeta};

use crate::ops::change::{Existence, Refusal, Refused, Stored};
use crate::vbucket::VBucket;

/// The highest revision: files have 48 bits for it (couchstore's file_format.md, by-id index). Counting stops there.
pub const MAX_REV_SEQNO: u64 = base::version::MAX_SEQNO;
/// The highest CAS that a change may bring, nanoseconds in the year 2262: whatever it brings, changes can count on
/// from there, so that no two versions of a document ever have the same CAS.
pub const MAX_FOREIGN_CAS: Cas = Cas(i64::MAX as u64);

/// When the incoming version wins over the one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictRule {
    /// Always.
    Force,
    /// If its revision is higher; then its CAS, expiry and flags decide.
    RevisionWins,
    /// If its CAS is higher; then its revision, expiry and flags decide: the last write wins.
    TimeWins,
}

/// A change with its own CAS and revision, both already in the new version's metadata.
pub struct WithMeta {
    /// The version to put in place.
    pub new: NewVersion,
    /// Whether the document must be absent (add with meta).
    pub existence: Existence,
    /// The CAS that the present document must have; [`Cas::ANY`] for any.
    pub expected: Cas,
    /// The CAS of the version whose attributes the new one has; if another one is there, [`Refusal::Changed`].
    pub attributes_of: Option<Cas>,
    /// When it wins.
    pub rule: ConflictRule,
    /// Whether the document gets a CAS of this node instead of the one it brought.
    pub regenerate_cas: bool,
}

impl VBucket {
    /// Applies a change with its own metadata; what loses the conflict is refused as [`Refusal::CasMismatch`]. `fill` may
    /// write CAS and seqno, once they are there, into the value, whose length stays.
    pub fn apply_with_meta(
        &mut self,
        hash: u64,
        change: WithMeta,
        now: Moment,
        fill: impl FnOnce(&mut NewVersion),
    ) -> Result<Stored, Refused> {
        let WithMeta { mut new, existence, expected, attributes_of, rule, regenerate_cas } = change;
        if let Some(refusal) = self.sync_writes.in_the_way(new.key()) {
            // The prepare is what the change would replace.
            let prepared = self.sync_writes.of(new.key());
            let loses = prepared.is_some_and(|one| !wins(rule, &new.meta(), &one.version.meta()));
            return Err(Refused { refusal: if loses { Refusal::CasMismatch } else { refusal }, new });
        }
        let slot = self.contents.table.find_slot(hash, new.key());
        let current = slot.get();
        let current = current.as_deref();
        if current.is_none() && self.contents.evicted.may_hold(hash, new.key()) {
            return Err(Refused { refusal: Refusal::Unknown, new });
        }
        let current = current.filter(|version| !self.contents.history.collections.hides(version));
        let live = current.filter(|v| v.is_live(now));
        let lock = live.and_then(|_| self.contents.locks.holder(new.key(), now));
        // As in the original, the conflict is decided before the lock and the CAS are compared.
        let loses = current.is_some_and(|v| !wins(rule, &new.meta(), &v.meta()));
        let is_other = expected != Cas::ANY && current.is_none_or(|v| v.meta().cas != expected);
        let refusal = match lock {
            _ if loses => Some(Refusal::CasMismatch),
            _ if live.is_some() && existence == Existence::Absent => Some(Refusal::Exists),
            Some(lock) if lock.cas != expected => Some(Refusal::Locked),
            None if is_other && live.is_none() && !new.meta().kind.is_deleted() => Some(Refusal::NotFound),
            None if is_other => Some(Refusal::CasMismatch),
            _ if attributes_of.is_some_and(|cas| current.is_none_or(|v| v.meta().cas != cas)) => {
                Some(Refusal::Changed)
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Err(Refused { refusal, new });
        }
        self.contents.locks.remove(new.key());
        self.contents.evicted.ties.changed(new.key());
        if regenerate_cas {
            let present = current.map_or(Cas::ANY, |version| version.meta().cas);
            new.meta_mut().cas = self.contents.history.hlc.next_after(present, now.0);
        } else {
            self.contents.history.hlc.observe(new.meta().cas, now.0);
        }
        new.meta_mut().by_seqno = self.contents.history.high_seqno.next();
        fill(&mut new);
        Ok(self.contents.history.record(slot, new))
    }
}

/// Conflict resolution: the first of revision and CAS, or CAS and revision, then expiry and flags that differs decides; a
/// tombstone is compared by revision and CAS alone. Equal metadata lose.
fn wins(rule: ConflictRule, new: &VersionMeta, old: &VersionMeta) -> bool {
    let by_time = rule == ConflictRule::TimeWins && !planted::is(Bug::RevisionBeforeTime);
    let rank = |m: &VersionMeta| match by_time {
        true => (m.cas.0, m.rev_seqno.0),
        false => (m.rev_seqno.0, m.cas.0),
    };
    if rule == ConflictRule::Force {
        return true;
    }
    if new.kind.is_deleted() && !planted::is(Bug::TombstoneComparesFlags) {
        return rank(new) > rank(old) || (planted::is(Bug::TieGoesToLast) && rank(new) == rank(old));
    }
    let (new, old) = ((rank(new), new.expiry, new.flags), (rank(old), old.expiry, old.flags));
    new > old || (planted::is(Bug::TieGoesToLast) && new == old)
}
