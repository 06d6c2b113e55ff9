//! Metadata: get meta, and changes that bring their own.

use std::borrow::Cow;

use base::planted::{self, Bug};
use base::{Cas, Datatype, ItemKind, VersionMeta};
use engine::{ConflictRule, Mutated, Refusal, StoreMode, StoreRequest, WithMetaRequest};
use protocol::extras::{GetMetaExtras, WithMetaExtras, is_extended_meta};
use protocol::feature::Feature;
use protocol::{Request, Status};
use subdoc::exec::Late;

use crate::commands::mutation;
use crate::context::{Context, Outcome};
use crate::privilege::Privilege;
use crate::reply::Answer;

/// Get meta: metadata of a document or tombstone.
pub fn get_meta(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let with_datatype = match request.extras {
        [] | [0 | 1] => false,
        [2] => true,
        [_] => return cx.invalid("Request extras invalid"),
        _ => return cx.invalid("Request extras must be of length 0 or 1"),
    };
    match cx.bucket().documents().peek_as_is(request.vbucket, cx.key, cx.now) {
        Ok(Some(found)) => {
            let meta = found.version.meta();
            let extras = GetMetaExtras {
                // Nobody can read an expired document any more, although it is still there.
                deleted: !found.version.is_live(cx.now),
                flags: meta.flags,
                expiry: meta.expiry,
                rev_seqno: meta.rev_seqno,
                datatype: meta.datatype.0,
            };
            let encoded = extras.encode();
            let len = if with_datatype { encoded.len() } else { encoded.len() - 1 };
            cx.reply.send(&Answer { cas: found.cas, extras: &encoded[..len], ..Answer::default() });
            Outcome::Done
        }
        Ok(None) => cx.status(Status::KeyEnoent),
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Set with meta: stores a document with the metadata it brings.
pub fn set_with_meta(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    with_meta(cx, request, false, false)
}

/// Add with meta: the same for a document that must not exist.
pub fn add_with_meta(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    with_meta(cx, request, true, false)
}

/// Delete with meta: leaves a tombstone with the metadata it brings.
pub fn delete_with_meta(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    with_meta(cx, request, false, true)
}

fn with_meta(cx: &mut Context<'_>, request: &Request<'_>, add: bool, delete: bool) -> Outcome {
    let Some(extras) = WithMetaExtras::decode(request.extras) else {
        return cx.invalid("Request extras must be of length 24, 26, 28 or 30");
    };
    let options = extras.options;
    if !are_possible(cx, options) {
        return cx.status(Status::Einval);
    }
    // What is behind the value, as its length in the extras says, is extended metadata that nothing uses any more.
    let value_len = request.value.len().checked_sub(usize::from(extras.extended_meta_len));
    let Some((value, extended)) = value_len.map(|len| request.value.split_at(len)) else {
        return cx.invalid("The extended metadata is longer than the value");
    };
    if !extended.is_empty() && !is_extended_meta(extended) {
        return cx.invalid("The extended metadata is malformed");
    }
    let kind = match (delete, options & WithMetaExtras::IS_EXPIRATION != 0) {
        (false, _) => ItemKind::Mutation,
        (true, false) => ItemKind::Deletion,
        (true, true) => ItemKind::Expiration,
    };
    if !cx.may(Privilege::SystemXattrWrite)
        && Attributes::of(value, Datatype(request.datatype)).is_ok_and(|attributes| attributes.has_system)
        && let Err(denied) = cx.require(Privilege::SystemXattrWrite)
    {
        return denied;
    }
    let (value, datatype): (Cow<'_, [u8]>, Datatype) = if delete {
        match Attributes::of(value, Datatype(request.datatype)) {
            Ok(Attributes { section, .. }) if section.is_empty() => (section.into(), Datatype::RAW),
            Ok(Attributes { section, .. }) => (section.into(), Datatype::XATTR),
            Err(_) => return cx.error(Status::XattrEinval, "The provided xattr segment is not valid"),
        }
    } else {
        (value.into(), marked(cx, value, Datatype(request.datatype)))
    };
    let meta = VersionMeta {
        cas: extras.cas,
        rev_seqno: extras.rev_seqno,
        flags: extras.flags,
        // Always absolute: it was computed where the document was written.
        expiry: extras.expiry,
        kind,
        ..VersionMeta::default()
    };
    let change = WithMetaChange { value, datatype, meta, add, options, late: None };
    let applied = apply(cx, request, &change);
    // A new CAS that the client asked for is not told for a document, as recorded: it asked with its own.
    let is_kept = delete || options & WithMetaExtras::REGENERATE_CAS == 0;
    let shown = |m: Mutated| if is_kept { m } else { Mutated { cas: extras.cas, ..m } };
    answer(cx, applied.map(shown))
}

/// A change with its own metadata, as a request asks for it.
pub(super) struct WithMetaChange<'a> {
    pub(super) value: Cow<'a, [u8]>,
    pub(super) datatype: Datatype,
    pub(super) meta: VersionMeta,
    pub(super) add: bool,
    /// Those of [`WithMetaExtras`], which [`are_possible`].
    pub(super) options: u32,
    /// Where CAS and seqno go in the value.
    pub(super) late: Option<Late>,
}

/// Applies a change.
pub(super) fn apply(
    cx: &Context<'_>,
    request: &Request<'_>,
    change: &WithMetaChange<'_>,
) -> Result<Mutated, Refusal> {
    let WithMetaChange { value, datatype, meta, add, options, late } = change;
    let asked = WithMetaRequest {
        key: cx.key,
        value,
        datatype: *datatype,
        meta: *meta,
        add: *add,
        expected: request.cas,
        force: forces(*options),
        regenerate_cas: options & WithMetaExtras::REGENERATE_CAS != 0,
        late: late.as_ref(),
    };
    cx.bucket().documents().durably(mutation::durable(cx)).apply_with_meta(request.vbucket, &asked, cx.now)
}

/// Answers such a change.
pub(super) fn answer(cx: &mut Context<'_>, applied: Result<Mutated, Refusal>) -> Outcome {
    match applied {
        Err(Refusal::BadXattr) => cx.error(Status::XattrEinval, "The provided xattr segment is not valid"),
        applied => mutation::answer(cx, applied, &[]),
    }
}

/// Whether these options leave conflicts unresolved.
fn forces(options: u32) -> bool {
    options & (WithMetaExtras::FORCE_WITH_META | WithMetaExtras::SKIP_CONFLICT_RESOLUTION) != 0
}

/// Whether options go with each other and with the bucket. Clients say with "accept" that they know of conflict resolution
/// by time, so that it is not mixed with the other one (set_with_meta.md of the original); a new CAS would make resolution
/// pointless.
pub(super) fn are_possible(cx: &Context<'_>, options: u32) -> bool {
    let accepts = options & WithMetaExtras::FORCE_ACCEPT != 0;
    let by_time = cx.bucket().settings().conflict_rule() == ConflictRule::TimeWins;
    let regenerates_cas = options & WithMetaExtras::REGENERATE_CAS != 0;
    accepts == by_time && (forces(options) || !regenerates_cas)
}

/// The datatype of a value, with JSON found if the client did not agree to mark it.
fn marked(cx: &Context<'_>, value: &[u8], datatype: Datatype) -> Datatype {
    if cx.session.has(Feature::Json) {
        return datatype;
    }
    let inflated = datatype.is_snappy().then(|| engine::value::inflate(value, base::limits::MAX_VALUE_BYTES));
    let plain = match &inflated {
        Some(Ok(inflated)) => inflated,
        // What cannot be inflated is refused when it is stored.
        Some(Err(_)) => return datatype,
        None => value,
    };
    let body = engine::value::split(plain, datatype).map_or(&b""[..], |(_, body)| body);
    datatype.with(engine::value::detect(body))
}

/// The xattrs of a value, which a tombstone keeps of it, those of users included: they may be a transaction's.
struct Attributes {
    /// Them all with their length in front; empty if the datatype says that there are none.
    section: Vec<u8>,
    /// Whether system xattrs are among them.
    has_system: bool,
}

impl Attributes {
    fn of(value: &[u8], datatype: Datatype) -> Result<Attributes, Refusal> {
        let inflated;
        let plain = if datatype.is_snappy() {
            inflated = engine::value::inflate(value, base::limits::MAX_VALUE_BYTES)?;
            &inflated
        } else {
            value
        };
        if !datatype.is_xattr() {
            return Ok(Attributes { section: Vec::new(), has_system: false });
        }
        subdoc::xattr::validate(plain).map_err(|_| Refusal::BadXattr)?;
        let (xattrs, body) = engine::value::split(plain, datatype)?;
        let has_system = !xattrs.system_section().is_empty();
        // Without any it is the length alone: a deletion says so that its tombstone has none.
        Ok(Attributes { section: engine::value::section(plain, body).to_vec(), has_system })
    }
}

/// Return meta: set, add or delete that answers with the metadata it gave.
pub fn return_meta(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let &[m0, m1, m2, m3, f0, f1, f2, f3, e0, e1, e2, e3] = request.extras else {
        return cx.invalid("Request must include extras of length 12");
    };
    let mode = u32::from_be_bytes([m0, m1, m2, m3]);
    let needed = match mode {
        1 => Privilege::Upsert,
        2 => Privilege::Insert,
        3 => Privilege::Delete,
        _ => return cx.invalid("Invalid mode"),
    };
    if let Err(denied) = cx.require(needed) {
        return denied;
    }
    let bucket = cx.bucket();
    let (flags, expiry) = (u32::from_be_bytes([f0, f1, f2, f3]), u32::from_be_bytes([e0, e1, e2, e3]));
    let mut told = (flags, engine::absolute_expiry(expiry, cx.now));
    let outcome = match mode {
        mode @ (1 | 2) => bucket.documents().store(
            request.vbucket,
            &StoreRequest {
                key: cx.key,
                body: request.value,
                datatype: Datatype(request.datatype),
                flags,
                expiry,
                mode: if mode == 1 { StoreMode::Set } else { StoreMode::Add },
                cas: request.cas,
                preserve_expiry: false,
            },
            cx.now,
        ),
        _ => {
            // The tombstone's metadata are those of the document that it was.
            let old = bucket.documents().peek_as_is(request.vbucket, cx.key, cx.now);
            told = match old {
                Ok(Some(old)) => (old.version.meta().flags, old.version.meta().expiry),
                _ => (0, 0),
            };
            bucket.documents().delete(request.vbucket, cx.key, request.cas, cx.now)
        }
    };
    match outcome {
        Ok(mutated) => {
            let mut extras = [0; 16];
            extras[..4].copy_from_slice(&told.0.to_be_bytes());
            extras[4..8].copy_from_slice(&told.1.to_be_bytes());
            extras[8..].copy_from_slice(&mutated.rev_seqno.0.to_be_bytes());
            let answer = Answer { cas: mutated.cas, extras: &extras, ..Answer::default() };
            if planted::is(Bug::ReturnMetaBeforeCommit) {
                cx.reply.send(&answer);
                return Outcome::Done;
            }
            mutation::tell(cx, mutated, &answer, None)
        }
        Err(Refusal::Exists) if request.cas == Cas::ANY => cx.status(Status::NotStored),
        Err(refusal) => cx.refuse(refusal),
    }
}
