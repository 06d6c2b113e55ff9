//! What every change of a document goes through.

use base::{Cas, Datatype, DocKey, ItemKind, Moment, NewVersion, VbId, Version, VersionMeta};
use subdoc::exec::Late;
use vbucket::{Basis, Change, Existence};

use crate::bucket_core::active_for_change;
use crate::counters::OpCounts;
use crate::documents::Documents;
use crate::mutated::Mutated;
use crate::read::Seen;
use crate::refusal::Refusal;
use crate::value;
use crate::whole::Whole;
use crate::writer::Writer;

/// How often a change that is computed from the old version is computed again when others get in between.
pub(crate) const MAX_TRIES: usize = 128;

/// From this length on a value is asked for once more when it was copied.
const LONG_VALUE_BYTES: usize = 64 << 10;

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

/// The system xattrs of a version, with the length in front; empty if there are none.
/// Refused if it has xattrs that are not in memory, or cannot be read.
pub(crate) fn system_section_of(version: &Version) -> Result<Vec<u8>, Refusal> {
    if !version.meta().datatype.is_xattr() {
        return Ok(Vec::new());
    }
    let whole = Whole::of(version.clone())?;
    let section = value::section_of(&whole)?;
    Ok(value::split(&section, version.meta().datatype)?.0.system_section())
}

impl Writer<'_> {
    /// A tombstone in the place of `version`: only its system xattrs stay.
    /// Refused if it has xattrs that are not in memory, or cannot be read.
    pub(crate) fn tombstone_of(
        &self,
        version: &Version,
        kind: ItemKind,
        now: Moment,
    ) -> Result<NewVersion, Refusal> {
        let system = system_section_of(version)?;
        let datatype = if system.is_empty() { Datatype::RAW } else { Datatype::XATTR };
        let meta = VersionMeta {
            expiry: now.unix_s(),
            flags: version.meta().flags,
            datatype,
            kind,
            ..VersionMeta::default()
        };
        Ok(self.version(meta, version.key(), &[&system]))
    }

    /// Applies a change to an active vBucket: one lock, once.
    pub(crate) fn apply(
        &self,
        vb: VbId,
        hash: u64,
        mut change: Change,
        now: Moment,
        count: impl FnOnce(&mut OpCounts),
        finish: impl FnOnce(&mut NewVersion),
    ) -> Result<Mutated, Refusal> {
        if let Some(durable) = self.durable {
            return self.prepare(vb, hash, change, durable, now, count, finish);
        }
        let (outcome, uuid) = {
            let collection = change.new.key().collection;
            // The time of a document ends, whatever clients may change (record 197).
            let mut shard = match change.new.meta().kind {
                ItemKind::Expiration => self.core.active_with(vb, collection)?,
                _ => active_for_change(&self.core, vb, collection)?,
            };
            let ttl_s = shard.vb.collections().get(collection).and_then(|one| one.max_ttl_s);
            change.new.meta_mut().expiry = self.capped_expiry(&change.new.meta(), ttl_s, now);
            let kind = change.new.meta().kind;
            let outcome = shard.vb.apply(hash, change, now, finish);
            match outcome.as_ref().map_err(|refused| refused.refusal) {
                Ok(_) => {
                    count(&mut shard.ops);
                    shard.vb.collections_mut().count_op(collection, |ops| match kind {
                        ItemKind::Mutation => ops.stores += 1,
                        ItemKind::Deletion => ops.deletes += 1,
                        ItemKind::Expiration | ItemKind::SystemEvent => {}
                    });
                    self.core.queue_flush(&mut shard);
                }
                // It is computed again: nobody was refused anything yet.
                Err(vbucket::Refusal::Changed | vbucket::Refusal::Unknown) => {}
                Err(_) => shard.ops.conflicts += 1,
            }
            (outcome, shard.vb.uuid())
        };
        Mutated::done(outcome, uuid)
    }

    /// Computes a change from what is there and applies it, again if somebody else was faster.
    ///
    /// `compute` sees the document, tombstone or nothing, and returns the new version or a refusal; `cas` is what
    /// the living document must have.
    pub(crate) fn modify<T>(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        cas: Cas,
        now: Moment,
        mut compute: impl FnMut(Option<&Seen>) -> Result<Computed<T>, Refusal>,
    ) -> Result<(Mutated, T), Refusal> {
        for _ in 0..MAX_TRIES {
            let found = self.peek(vb, key, now)?;
            let computed = compute(found.as_ref())?;
            match self.apply_computed(vb, key, cas, found.as_ref(), computed, now) {
                Ok(done) => return Ok(done),
                Err(Refusal::Busy) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Busy)
    }

    /// Applies what was computed from `found`; refused as busy if that is not the present version any more.
    pub(crate) fn apply_computed<T>(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        cas: Cas,
        found: Option<&Seen>,
        computed: Computed<T>,
        now: Moment,
    ) -> Result<(Mutated, T), Refusal> {
        let Computed { new, preserve_expiry, late, outcome } = computed;
        self.admit(&new)?;
        let deleted = new.is_deleted();
        let basis = Basis::of(found.map(|f| &f.version));
        let change = Change { new, existence: Existence::Any, cas, basis, preserve_expiry };
        let count = |ops: &mut OpCounts| *(if deleted { &mut ops.deletes } else { &mut ops.stores }) += 1;
        let mutated = self.apply(vb, self.core.hash(key), change, now, count, |new| fill(&late, new))?;
        Ok((mutated, outcome))
    }
}

impl Documents {
    /// Whether the disk takes changes, and the quota has room for a new version; there it is for tombstones,
    /// as long as what waits for the disk has not filled its share.
    pub(crate) fn admit(&self, new: &NewVersion) -> Result<(), Refusal> {
        // It is among what is held.
        self.admit_coming(0, new.is_deleted())
    }

    /// The same for a version that was let in by [`Documents::admit_coming`], if it is so long that others which were let
    /// in at the same time may have taken the room.
    pub(crate) fn admit_long(&self, new: &NewVersion) -> Result<(), Refusal> {
        if new.value().len() >= LONG_VALUE_BYTES { self.admit(new) } else { Ok(()) }
    }

    /// The same for a value of so many bytes that comes: asked before it is scanned and copied.
    pub(crate) fn admit_coming(&self, bytes: usize, is_deletion: bool) -> Result<(), Refusal> {
        if self.core.disk.is_full() {
            return Err(Refusal::DiskFull);
        }
        let held_bytes = self.core.memory.held_bytes() + bytes as u64;
        if held_bytes >= self.core.memory.high_watermark_bytes() {
            self.eviction.make_room();
        }
        let is_room =
            (is_deletion || self.core.memory.admits(held_bytes)) && self.checkpoints.have_checkpoints_room();
        if is_room {
            Ok(())
        } else {
            Err(self.eviction.counters.refuse(held_bytes >= self.core.memory.quota_bytes()))
        }
    }
}

/// A change computed from the old version.
pub(crate) struct Computed<T> {
    /// The version to put in place.
    pub new: NewVersion,
    /// Keep the expiry of a document that is alive.
    pub preserve_expiry: bool,
    /// What is filled in when it is applied.
    pub late: Late,
    /// What the caller wants to know afterwards.
    pub outcome: T,
}

impl<T> Computed<T> {
    /// A change with nothing to fill in.
    pub fn new(new: NewVersion, outcome: T) -> Computed<T> {
        Computed { new, preserve_expiry: false, late: Late::default(), outcome }
    }
}

pub(crate) fn fill(late: &Late, new: &mut NewVersion) {
    // A value without placeholders may be another version's.
    if !late.placeholders.is_empty() {
        let (cas, seqno) = (new.meta().cas.0, new.meta().by_seqno.0);
        late.fill(new.value_mut(), cas, seqno);
    }
}
