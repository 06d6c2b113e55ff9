//! What every change of a document goes through.

use base::{Cas, Datatype, DocKey, ItemKind, Moment, NewVersion, VbId, Version, VersionMeta};
use vbucket::{Basis, Change, Existence};

use crate::bucket::{Bucket, Mutated};
use crate::counters::OpCounts;
use crate::read::Found;
use crate::refusal::Refusal;
use crate::value;

/// How often a change that is computed from the old version is computed again when others get in between.
pub(crate) const MAX_TRIES: usize = 128;

/// Expiry times up to here (30 days) are relative, larger ones absolute.
const LONGEST_RELATIVE_S: u32 = 30 * 24 * 3600;

/// The absolute expiry time for what a client sent; 0 stays "never".
pub fn absolute_expiry(sent: u32, now: Moment) -> u32 {
    match sent {
        0 => 0,
        relative if relative <= LONGEST_RELATIVE_S => now.unix_s().saturating_add(relative),
        absolute => absolute,
    }
}

/// A tombstone in the place of `version`: only its system xattrs stay.
pub(crate) fn tombstone_of(version: &Version, kind: ItemKind, now: Moment) -> NewVersion {
    let plain = value::plain(version);
    let (xattrs, _) = value::split(&plain, version.meta().datatype);
    let system = if xattrs.is_empty() { Vec::new() } else { subdoc::xattr::keep_system(xattrs) };
    let datatype = if system.is_empty() { Datatype::RAW } else { Datatype::XATTR };
    let meta = VersionMeta {
        expiry: now.unix_s(),
        flags: version.meta().flags,
        datatype,
        kind,
        ..VersionMeta::default()
    };
    NewVersion::new(meta, version.key(), &[&system])
}

impl Bucket {
    /// Applies a change to an active vBucket: one lock, once.
    pub(crate) fn apply(
        &self,
        vb: VbId,
        hash: u64,
        change: Change,
        now: Moment,
        count: impl FnOnce(&mut OpCounts),
        finish: impl FnOnce(&mut NewVersion),
    ) -> Result<Mutated, Refusal> {
        let added = change.new.allocated_bytes();
        let (outcome, uuid) = {
            let mut shard = self.active(vb)?;
            let outcome = shard.vb.apply(hash, change, now, finish);
            if outcome.is_ok() {
                count(&mut shard.ops);
                self.queue_flush(&mut shard);
            } else {
                shard.ops.conflicts += 1;
            }
            (outcome, shard.vb.uuid())
        };
        match outcome {
            Ok(stored) => {
                self.settle(vb, added, stored.garbage);
                Ok(Mutated { cas: stored.cas, uuid, seqno: stored.by_seqno })
            }
            Err(refused) => Err(refused.refusal.into()),
        }
    }

    /// Computes a change from what is there and applies it, again if somebody else was faster.
    ///
    /// `compute` sees the document, tombstone or nothing, and returns the new version or a refusal; `cas` is what
    /// the living document must have.
    pub fn modify<T>(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        cas: Cas,
        now: Moment,
        mut compute: impl FnMut(Option<&Found>) -> Result<Computed<T>, Refusal>,
    ) -> Result<(Mutated, T), Refusal> {
        let hash = self.hash(key);
        for _ in 0..MAX_TRIES {
            let found = self.peek(vb, key, now)?;
            let Computed { new, preserve_expiry, finish, outcome } = compute(found.as_ref())?;
            self.admit(&new)?;
            let change = Change {
                new,
                existence: Existence::Any,
                cas,
                basis: Basis::of(found.as_ref().map(|f| &f.version)),
                preserve_expiry,
            };
            let deleted = change.new.is_deleted();
            let count = |ops: &mut OpCounts| *(if deleted { &mut ops.deletes } else { &mut ops.stores }) += 1;
            match self.apply(vb, hash, change, now, count, |new| finish.fill(new)) {
                Ok(mutated) => return Ok((mutated, outcome)),
                Err(Refusal::Busy) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Busy)
    }

    /// Whether the quota has room for a new version; tombstones are always admitted.
    pub(crate) fn admit(&self, new: &NewVersion) -> Result<(), Refusal> {
        if new.is_deleted() || self.memory.admits(new.allocated_bytes()) { Ok(()) } else { Err(Refusal::OverQuota) }
    }
}

/// A value's bytes that are known only when the change is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The CAS as `0x` and 16 hexadecimal digits, least significant byte first.
    Cas,
    /// The seqno as `0x` and 16 hexadecimal digits, most significant byte first.
    Seqno,
}

/// Where in a value which late bytes belong.
#[derive(Clone, Debug, Default)]
pub struct Finish(pub Vec<(usize, Late)>);

impl Finish {
    fn fill(&self, new: &mut NewVersion) {
        let (cas, seqno) = (new.meta().cas.0, new.meta().by_seqno.0);
        let value = new.value_mut();
        for (at, late) in &self.0 {
            let bytes = match late {
                Late::Cas => cas.to_le_bytes(),
                Late::Seqno => seqno.to_be_bytes(),
            };
            let text = format!("0x{}", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>());
            value[*at..*at + text.len()].copy_from_slice(text.as_bytes());
        }
    }
}

/// A change computed from the old version.
pub struct Computed<T> {
    /// The version to put in place.
    pub new: NewVersion,
    /// Keep the expiry of a document that is alive.
    pub preserve_expiry: bool,
    /// What is filled in when it is applied.
    pub finish: Finish,
    /// What the caller wants to know afterwards.
    pub outcome: T,
}

impl<T> Computed<T> {
    /// A change with nothing to fill in.
    pub fn new(new: NewVersion, outcome: T) -> Computed<T> {
        Computed { new, preserve_expiry: false, finish: Finish::default(), outcome }
    }
}
