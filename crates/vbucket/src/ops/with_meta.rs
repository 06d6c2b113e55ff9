//! Changes that bring their own metadata (set, add and delete with meta): replication between clusters.

use std::cmp::Ordering;

use base::planted::{self, Bug};
use base::{Cas, Datatype, Moment, NewVersion, Seqno, VersionMeta};

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
    /// If its revision is higher; then its CAS decides, and what both rules have in common (record 218).
    RevisionWins,
    /// If its CAS is higher; then its revision decides, and what both rules have in common: the last write wins.
    TimeWins,
}

/// How a change compares with one version that has the same metadata. Values are compared outside of the vBucket's lock,
/// because they may be long, compressed or on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TieBreak {
    with: (Seqno, Cas),
    order: Ordering,
}

impl TieBreak {
    /// Compares two versions by what their metadata leave open: extended attributes rather than none, as in the original,
    /// then the bytes of the value without compression, then what is made of them. `new` and `old` are those bytes.
    pub fn between(new: (&VersionMeta, &[u8]), old: (&VersionMeta, &[u8])) -> TieBreak {
        fn rank<'a>((meta, plain): (&VersionMeta, &'a [u8])) -> (bool, &'a [u8], u8, u8) {
            (meta.datatype.is_xattr(), plain, meta.datatype.without(Datatype::SNAPPY).0, meta.kind as u8)
        }
        TieBreak { with: (old.0.by_seqno, old.0.cas), order: rank(new).cmp(&rank(old)) }
    }

    /// How the change compares with `old`; `None` if it was compared with another version.
    fn order_with(self, old: &VersionMeta) -> Option<Ordering> {
        (self.with == (old.by_seqno, old.cas)).then_some(self.order)
    }
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
    /// How it compares with the present version, if that was found to have the same metadata. Without it such a change is
    /// refused as [`Refusal::NeedsTieBreak`].
    pub tie_break: Option<TieBreak>,
    /// Whether the document gets a CAS of this node instead of the one it brought.
    pub regenerate_cas: bool,
}

impl VBucket {
    /// Applies a change with its own metadata; what loses the conflict is refused as [`Refusal::CasMismatch`], or, if only
    /// the values decide, as [`Refusal::TieLost`]. `fill` may write CAS and seqno, once they are there, into the value,
    /// whose length stays.
    pub fn apply_with_meta(
        &mut self,
        hash: u64,
        change: WithMeta,
        now: Moment,
        fill: impl FnOnce(&mut NewVersion),
    ) -> Result<Stored, Refused> {
        let WithMeta { mut new, existence, expected, attributes_of, rule, tie_break, regenerate_cas } =
            change;
        if let Some(refusal) = self.sync_writes.in_the_way(new.key()) {
            // The prepare is what the change would replace. If only the values differ, the change has to wait: it is sent
            // once, so that it has to be compared with what is there in the end.
            let prepared = self.sync_writes.of(new.key());
            let loses = prepared.is_some_and(|one| order(rule, &new.meta(), &one.version.meta()).is_lt());
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
        let conflict = current.and_then(|v| in_conflict(rule, tie_break, &new.meta(), &v.meta()));
        let is_added_again = live.is_some() && existence == Existence::Absent;
        let is_other = expected != Cas::ANY && current.is_none_or(|v| v.meta().cas != expected);
        let refusal = match lock {
            // Such a change never replaces anything, so that its value does not have to be compared.
            _ if is_added_again && conflict == Some(Refusal::NeedsTieBreak) => Some(Refusal::Exists),
            _ if conflict.is_some() => conflict,
            _ if is_added_again => Some(Refusal::Exists),
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

/// Why the new version does not take the place of the old one; `None` if it does.
fn in_conflict(
    rule: ConflictRule,
    tie_break: Option<TieBreak>,
    new: &VersionMeta,
    old: &VersionMeta,
) -> Option<Refusal> {
    match order(rule, new, old) {
        Ordering::Greater => None,
        Ordering::Less => Some(Refusal::CasMismatch),
        Ordering::Equal if planted::is(Bug::TieGoesToLast) => None,
        Ordering::Equal if planted::is(Bug::TieKeepsBoth) => Some(Refusal::CasMismatch),
        Ordering::Equal => match tie_break.and_then(|tie_break| tie_break.order_with(old)) {
            None => Some(Refusal::NeedsTieBreak),
            Some(Ordering::Greater) => None,
            Some(Ordering::Less) => Some(Refusal::TieLost),
            Some(Ordering::Equal) => Some(Refusal::CasMismatch),
        },
    }
}

/// Conflict resolution: the first of revision and CAS, or CAS and revision, that differs decides, then a document wins over
/// a tombstone, then the expiry and the flags of documents decide. If they are equal, [`TieBreak`] decides.
fn order(rule: ConflictRule, new: &VersionMeta, old: &VersionMeta) -> Ordering {
    let by_time = rule == ConflictRule::TimeWins && !planted::is(Bug::RevisionBeforeTime);
    let rank = |m: &VersionMeta| match by_time {
        true => (m.cas.0, m.rev_seqno.0),
        false => (m.rev_seqno.0, m.cas.0),
    };
    if rule == ConflictRule::Force {
        return Ordering::Greater;
    }
    // Of a tombstone they are the time of the deletion and what is left of the document.
    let compares_rest =
        !(new.kind.is_deleted() || old.kind.is_deleted()) || planted::is(Bug::TombstoneComparesFlags);
    let rest = |m: &VersionMeta| compares_rest.then_some((m.expiry, m.flags));
    rank(new)
        .cmp(&rank(old))
        .then_with(|| rest(new).cmp(&rest(old)))
        .then_with(|| old.kind.is_deleted().cmp(&new.kind.is_deleted()))
}
