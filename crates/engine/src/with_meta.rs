//! Set, add and delete with meta.

use base::{Cas, Datatype, DocKey, ItemKind, Moment, NewVersion, SyncWrite, VbId, VersionMeta, limits};
use subdoc::exec::Late;
use vbucket::{ConflictRule, Existence, MAX_FOREIGN_CAS, MAX_REV_SEQNO, TieBreak, VBucket, WithMeta};

use crate::bucket_core::active_for_change;
use crate::documents::Documents;
use crate::mutated::Mutated;
use crate::refusal::Refusal;
use crate::settings::Key;
use crate::whole::Whole;
use crate::{value, write};

/// A change that brings its own metadata.
pub struct WithMetaRequest<'a> {
    /// The document.
    pub key: DocKey<'a>,
    /// Its value as sent, xattrs included if the datatype says so.
    pub value: &'a [u8],
    /// What the value is.
    pub datatype: Datatype,
    /// CAS, revision, flags, expiry (absolute) and kind; the seqno is ignored.
    pub meta: VersionMeta,
    /// Refuse if the document exists.
    pub add: bool,
    /// The CAS the present document must have.
    pub expected: Cas,
    /// Skip conflict resolution.
    pub force: bool,
    /// Give the document a CAS of this node.
    pub regenerate_cas: bool,
    /// Where CAS and seqno are written into the xattrs, which are not compressed then.
    pub late: Option<&'a Late>,
}

impl Documents {
    /// Applies a change that brings its own metadata; one that loses the conflict is refused as `Exists`, or as `TieLost`
    /// if only the values decided. It is never a sync write, as in the field.
    pub fn apply_with_meta(
        &self,
        vb: VbId,
        request: &WithMetaRequest<'_>,
        now: Moment,
    ) -> Result<Mutated, Refusal> {
        if request.meta.cas == Cas::ANY || request.meta.cas > MAX_FOREIGN_CAS {
            return Err(Refusal::Exists);
        }
        if request.meta.rev_seqno.0 > MAX_REV_SEQNO {
            return Err(Refusal::Invalid);
        }
        let is_replaced = replaces_cas(self, request, now)?;
        // Nearly every change is decided by its metadata, so that values are compared only when one was not.
        let mut tied_with = None;
        for _ in 0..write::MAX_TRIES {
            let kept = kept_attributes(self, vb, request, now)?;
            match apply_with(self, vb, request, kept, tied_with.as_ref(), is_replaced, now) {
                Err(Refusal::Busy) => tied_with = tied(self, vb, request, now)?,
                applied => return applied,
            }
        }
        Err(Refusal::Busy)
    }
}

/// The version with the CAS and the revision of a change, if there is one. Refused if its value is not in memory.
fn tied(
    documents: &Documents,
    vb: VbId,
    request: &WithMetaRequest<'_>,
    now: Moment,
) -> Result<Option<Whole>, Refusal> {
    let present = documents.peek_as_is(vb, request.key, now)?.map(|seen| seen.version);
    let rank = |meta: &VersionMeta| (meta.cas, meta.rev_seqno);
    present.filter(|version| rank(&version.meta()) == rank(&request.meta)).map(Whole::of).transpose()
}

/// How a new version compares with a present one, by their values.
fn tie_break(new: &NewVersion, present: &Whole) -> Result<TieBreak, Refusal> {
    let (meta, of_present) = (new.meta(), present.meta());
    let plain = value::plain_of(new.value(), meta.datatype)?;
    Ok(TieBreak::between((&meta, &plain), (&of_present, &value::plain(present)?)))
}

/// The system xattrs of what is deleted without a value, which the tombstone keeps as in the original, and the CAS of that
/// version.
fn kept_attributes(
    documents: &Documents,
    vb: VbId,
    request: &WithMetaRequest<'_>,
    now: Moment,
) -> Result<Option<(Vec<u8>, Cas)>, Refusal> {
    if !request.meta.kind.is_deleted() || !request.value.is_empty() {
        return Ok(None);
    }
    let found = documents.peek(vb, request.key, now)?.filter(|one| one.version.meta().datatype.is_xattr());
    let Some(version) = found.map(|found| found.version) else {
        return Ok(None);
    };
    Ok(Some((write::system_section_of(&version)?, version.meta().cas)))
}

/// Whether a deletion says that its tombstone has no attributes, those of the system included: it brings a section without
/// any. Where two clusters are to become the same, a tombstone is sent so if it has none.
fn has_no_attributes(request: &WithMetaRequest<'_>) -> bool {
    request.meta.kind.is_deleted() && request.datatype.is_xattr() && request.value == [0; 4]
}

fn apply_with(
    documents: &Documents,
    vb: VbId,
    request: &WithMetaRequest<'_>,
    kept: Option<(Vec<u8>, Cas)>,
    tied_with: Option<&Whole>,
    is_replaced: bool,
    now: Moment,
) -> Result<Mutated, Refusal> {
    let (value, sent) = match &kept {
        Some((section, _)) if !section.is_empty() => (section.as_slice(), Datatype::XATTR),
        // Without a value there is nothing that a datatype could say something about.
        _ if request.value.is_empty() || has_no_attributes(request) => (&[][..], Datatype::RAW),
        _ => (request.value, request.datatype),
    };
    let keeps_compressed = documents.core.keeps_compressed();
    let limit = limits::MAX_VALUE_BYTES + limits::MAX_SYSTEM_XATTR_BYTES;
    // Which part of a plain value is too long is for the check of its attributes to say.
    let bytes =
        if sent.is_snappy() { value::stored_len(value, sent, keeps_compressed, limit)? } else { value.len() };
    documents.admit_coming(bytes, request.meta.kind.is_deleted())?;
    let (datatype, bytes) = value::checked(keeps_compressed, sent, value, &documents.core.value_times)?;
    let meta = VersionMeta { datatype, sync_write: SyncWrite::No, ..request.meta };
    let new = NewVersion::new(&documents.core.context.heap, meta, request.key, &[&bytes]);
    documents.admit_long(&new)?;
    let hash = documents.core.hash(request.key);
    let tie_break = tied_with.map(|present| tie_break(&new, present)).transpose()?;
    let mut change = WithMeta {
        tie_break,
        new,
        existence: if request.add { Existence::Absent } else { Existence::Any },
        expected: request.expected,
        attributes_of: kept.map(|(_, cas)| cas),
        rule: if request.force { ConflictRule::Force } else { documents.core.settings.conflict_rule() },
        regenerate_cas: request.regenerate_cas || is_replaced,
    };
    let (outcome, uuid) = {
        let mut shard = active_for_change(&documents.core, vb, request.key.collection)?;
        let ttl_s = shard.vb.collections().get(request.key.collection).and_then(|one| one.max_ttl_s);
        let capped = documents.capped_expiry(&request.meta, ttl_s, now);
        // A version that comes once more does not live longer for it.
        let had = if capped == request.meta.expiry { None } else { capped_before(&shard.vb, hash, request) };
        change.new.meta_mut().expiry = had.map_or(capped, |had| had.min(capped));
        let outcome = shard.vb.apply_with_meta(hash, change, now, |new| {
            if let Some(late) = request.late {
                write::fill(late, new);
            }
        });
        if outcome.is_ok() {
            documents.core.queue_flush(&mut shard);
        }
        (outcome, shard.vb.uuid())
    };
    Mutated::done(outcome, uuid)
}

/// The expiry that a version got which comes once more. `None` if another one is there, or if it is not in memory: then the
/// change is refused until it is, or needs none.
fn capped_before(vb: &VBucket, hash: u64, request: &WithMetaRequest<'_>) -> Option<u32> {
    let present = vb.find(hash, request.key).ok().flatten()?.meta();
    let is_same = (present.cas, present.rev_seqno) == (request.meta.cas, request.meta.rev_seqno);
    (is_same && !request.force && present.kind == ItemKind::Mutation && present.expiry > 0)
        .then_some(present.expiry)
}

/// Whether a change gets a CAS of this node because its own is too far ahead; refused if the settings say so.
fn replaces_cas(documents: &Documents, request: &WithMetaRequest<'_>, now: Moment) -> Result<bool, Refusal> {
    let strategy = documents.core.settings.get(Key::ImpossibleCas);
    let is_asked = strategy != 0 && !request.regenerate_cas;
    if !is_asked || !documents.core.context.clock.is_impossible(request.meta.cas, now.0) {
        return Ok(false);
    }
    if strategy == 1 { Err(Refusal::ImpossibleCas) } else { Ok(true) }
}
