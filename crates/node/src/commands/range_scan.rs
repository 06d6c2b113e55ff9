//! Range scans: documents of a collection of one vBucket in the order of their keys (docs/adr/0103-range-scans.md).

use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use base::leb128::encode_leb128;
use base::{CollectionId, Seqno, VbUuid, Version, limits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use engine::value::{self, WantedXattrs};
use engine::{
    RangeScanForm, RangeScanId, RangeScanProgress, RangeScanRefusal, RangeScanWanted, Refusal, Sampling,
    SnapshotRequirement,
};
use protocol::extras::decode_u32;
use protocol::feature::Feature;
use protocol::{Request, Status};
use serde_json::{Map, Value};

use super::observe::first_of;
use crate::context::{Context, Outcome, Ready};
use crate::privilege::Privilege;
use crate::reply::Answer;

/// The longest name that a client may give a scan, in bytes.
const MOST_NAME_BYTES: usize = 50;
/// The largest description of a scan, in bytes: two keys in Base64 take a hundredth of it.
const MOST_JSON_BYTES: usize = 64 << 10;
/// The longest wait for a change to be stored, in milliseconds.
const MOST_WAIT_MS: u64 = 600_000;
/// A continuation answers with no more than this, but for one document, whatever the client asks for.
const MOST_BYTES: usize = 1 << 20;
/// It takes no longer than this.
const MOST_TIME: Duration = Duration::from_millis(250);
/// Get keys answers with no more keys than this if the client does not say how many it wants.
const USUAL_KEYS: u32 = 1000;
/// One answer of a continuation holds about this much, if there is so much.
const BATCH_BYTES: usize = 32 << 10;

/// What a client asks for when it has a scan made.
struct Create {
    wanted: RangeScanWanted,
    /// How long it waits for the change that must be stored.
    wait_ms: u64,
}

/// Range scan create: answers with the 16 bytes by which the scan is called.
pub fn create(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    if request.datatype != base::Datatype::JSON.0 {
        return cx.invalid("Datatype must be JSON");
    }
    if request.value.len() > MOST_JSON_BYTES {
        return cx.invalid("The value is too large for a scan");
    }
    let Ok(Value::Object(json)) = serde_json::from_slice(request.value) else {
        return cx.invalid("The value must be a JSON object");
    };
    let collection = match optional(&json, "collection", collection_id) {
        Ok(id) => id.unwrap_or(CollectionId::DEFAULT.0),
        Err(context) => return cx.invalid(&context),
    };
    let Some(collection) = super::collections::check(&cx.bucket(), collection) else {
        return super::collections::unknown_collection(cx);
    };
    if let Err(denied) = cx.require_in(collection, Privilege::RangeScan) {
        return denied;
    }
    let Create { wanted, wait_ms } = match parse(&json, collection) {
        Ok(create) => create,
        Err(context) => return cx.invalid(&context),
    };
    if wanted.with_xattrs && !cx.session.has(Feature::Xattr) {
        return cx.error(Status::NotSupported, "Client does not support XATTRs");
    }
    let bucket = cx.bucket();
    let scans = bucket.range_scans();
    match (scans.check(cx.vbucket, &wanted), wanted.requirement) {
        (Ok(()), _) => {}
        (Err(RangeScanRefusal::NotPersisted), Some(requirement)) if cx.looks == 0 && wait_ms > 0 => {
            return wait(cx, requirement.seqno, wait_ms);
        }
        (Err(refusal), _) => return refuse(cx, refusal),
    }
    // It reads the disk.
    if cx.may_leave {
        return Outcome::Elsewhere;
    }
    match scans.create(cx.vbucket, wanted) {
        Ok(id) => {
            cx.reply.send(&Answer { value: &id.0, ..Answer::default() });
            Outcome::Done
        }
        Err(refusal) => refuse(cx, refusal),
    }
}

/// Waits until a change is stored; then the request is handled again.
fn wait(cx: &mut Context<'_>, seqno: Seqno, wait_ms: u64) -> Outcome {
    match cx.bucket().durability().persisted(cx.vbucket, seqno) {
        Ok(None) => Outcome::Again(Box::pin(std::future::ready(Ready::Look(None)))),
        Ok(Some(waiting)) => {
            let timeout = cx.timeout(wait_ms.min(MOST_WAIT_MS));
            Outcome::Again(Box::pin(async move {
                let persisted = first_of(waiting, timeout).await;
                persisted.map_or(Ready::Failed(Status::Etmpfail), |()| Ready::Look(None))
            }))
        }
        Err(refusal) => cx.refuse(refusal),
    }
}

/// Range scan continue: answers with the next keys or documents, in one answer or several.
pub fn go_on(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let (Some(id), Some(limits)) = (scan_id(request.extras), Limits::of(request.extras)) else {
        return cx.invalid("Request must include extras of length 28");
    };
    let bucket = cx.bucket();
    let scans = bucket.range_scans();
    let form = match scans.form(cx.vbucket, id) {
        Ok(form) => form,
        Err(refusal) => return refuse(cx, refusal),
    };
    if let Err(denied) = cx.require_in(form.collection, Privilege::RangeScan) {
        return denied;
    }
    if cx.may_leave {
        return Outcome::Elsewhere;
    }
    if !cx.reply.has_room(MOST_BYTES) {
        return cx.status(Status::Etmpfail);
    }
    let now = cx.node.env().clock.monotonic();
    let mut telling = Telling::new(cx, form, limits);
    let went = scans.go_on(telling.cx.vbucket, id, now + limits.time, &mut |version| telling.tell(version));
    let (last, fault) = (std::mem::take(&mut telling.batch), telling.fault);
    let refusal = match (went, fault) {
        (Ok(progress), None) => {
            let status = match progress {
                RangeScanProgress::More => Status::RangeScanMore,
                RangeScanProgress::Complete => Status::RangeScanComplete,
            };
            send(cx, form, status, last);
            return Outcome::Done;
        }
        (Err(refusal), _) => refuse(cx, refusal),
        (Ok(_), Some(Fault::NoRoom)) => cx.status(Status::Etmpfail),
        (Ok(_), Some(Fault::Refused(refusal))) => cx.refuse(refusal),
    };
    // What was not sent would be missing from what follows. It may have ended by itself.
    let _ = scans.cancel(cx.vbucket, id);
    refusal
}

/// Range scan cancel.
pub fn cancel(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    let Some(id) = scan_id(request.extras) else {
        return cx.invalid("Request must include extras of length 16");
    };
    // What ends closes files, and the last one that reads a file frees its blocks.
    if cx.may_leave {
        return Outcome::Elsewhere;
    }
    let bucket = cx.bucket();
    let scans = bucket.range_scans();
    let cancelled = match scans.form(cx.vbucket, id) {
        Ok(form) => {
            if let Err(denied) = cx.require_in(form.collection, Privilege::RangeScan) {
                return denied;
            }
            scans.cancel(cx.vbucket, id)
        }
        Err(refusal) => Err(refusal),
    };
    match cancelled {
        Ok(()) => cx.status(Status::Success),
        Err(refusal) => refuse(cx, refusal),
    }
}

/// Get keys: the stored keys of a collection from the request's key on, in one answer, each behind its length as 16 bits.
/// On connections with collections each begins with its collection. Fewer than were asked for do not mean that there
/// are no more: an answer without any does.
pub fn get_keys(cx: &mut Context<'_>, request: &Request<'_>) -> Outcome {
    // It reads the disk.
    if cx.may_leave {
        return Outcome::Elsewhere;
    }
    if !cx.reply.has_room(MOST_BYTES) {
        return cx.status(Status::Etmpfail);
    }
    let most = decode_u32(request.extras).unwrap_or(USUAL_KEYS) as usize;
    let with_collections = cx.session.has(Feature::Collections);
    let (mut keys, mut count) = (Vec::new(), 0);
    let until = cx.node.env().clock.monotonic() + MOST_TIME;
    let bucket = cx.bucket();
    let read = bucket.range_scans().keys(cx.vbucket, cx.key, until, &mut |version| {
        let key = if with_collections { version.stored_key() } else { version.key().key };
        if count == most || keys.len() + 2 + key.len() > MOST_BYTES {
            return ControlFlow::Break(());
        }
        count += 1;
        keys.extend_from_slice(&(key.len() as u16).to_be_bytes());
        keys.extend_from_slice(key);
        ControlFlow::Continue(())
    });
    if let Err(refusal) = read {
        return refuse(cx, refusal);
    }
    cx.reply.send_made(&Answer::default(), keys, 0);
    Outcome::Done
}

fn refuse(cx: &mut Context<'_>, refusal: RangeScanRefusal) -> Outcome {
    let status = match refusal {
        RangeScanRefusal::Refused(Refusal::OtherHistory) => Status::VbUuidNotEqual,
        RangeScanRefusal::Refused(refusal) => return cx.refuse(refusal),
        RangeScanRefusal::NotPersisted => Status::Etmpfail,
        RangeScanRefusal::IsReplaced => Status::NotStored,
        RangeScanRefusal::Empty | RangeScanRefusal::Unknown => Status::KeyEnoent,
        RangeScanRefusal::TooMany | RangeScanRefusal::IsContinuing => Status::Ebusy,
        RangeScanRefusal::Cancelled => Status::RangeScanCancelled,
        RangeScanRefusal::Failed => Status::Einternal,
    };
    cx.status(status)
}

/// How much a continuation may answer with.
#[derive(Clone, Copy)]
struct Limits {
    items: u32,
    time: Duration,
    bytes: usize,
}

impl Limits {
    /// As in the extras, behind the scan's id: 0 for as much as there may be.
    fn of(extras: &[u8]) -> Option<Limits> {
        let at = |from: usize| decode_u32(extras.get(from..from + 4)?);
        let (items, time_ms, bytes) = (at(16)?, at(20)?, at(24)?);
        let or_most = |wanted: u32| if wanted == 0 { u32::MAX } else { wanted };
        Some(Limits {
            items: or_most(items),
            time: Duration::from_millis(or_most(time_ms).into()).min(MOST_TIME),
            bytes: (or_most(bytes) as usize).min(MOST_BYTES),
        })
    }
}

fn scan_id(extras: &[u8]) -> Option<RangeScanId> {
    extras.first_chunk().copied().map(RangeScanId)
}

/// Why a continuation ends early.
#[derive(Clone, Copy)]
enum Fault {
    NoRoom,
    Refused(Refusal),
}

/// A continuation that puts answers together.
struct Telling<'c, 'a> {
    cx: &'c mut Context<'a>,
    form: RangeScanForm,
    limits: Limits,
    xattrs: WantedXattrs,
    takes_snappy: bool,
    batch: Vec<u8>,
    items: u32,
    bytes: usize,
    fault: Option<Fault>,
}

impl<'c, 'a> Telling<'c, 'a> {
    fn new(cx: &'c mut Context<'a>, form: RangeScanForm, limits: Limits) -> Telling<'c, 'a> {
        let reads_system = cx.session.rights.in_collection(form.collection).has(Privilege::SystemXattrRead);
        let xattrs = match (form.with_xattrs && cx.session.has(Feature::Xattr), reads_system) {
            (false, _) => WantedXattrs::None,
            (true, false) => WantedXattrs::User,
            (true, true) => WantedXattrs::All,
        };
        let takes_snappy = cx.session.has(Feature::Snappy) && cx.bucket().keeps_compressed();
        let (batch, items, bytes, fault) = (Vec::new(), 0, 0, None);
        Telling { cx, form, limits, xattrs, takes_snappy, batch, items, bytes, fault }
    }

    fn tell(&mut self, version: &Version) -> ControlFlow<()> {
        match self.append(version) {
            Ok(bytes) => self.bytes += bytes,
            Err(fault) => {
                self.fault = Some(fault);
                return ControlFlow::Break(());
            }
        }
        self.items += 1;
        if self.items >= self.limits.items || self.bytes >= self.limits.bytes {
            return ControlFlow::Break(());
        }
        if self.batch.len() >= BATCH_BYTES {
            let batch = std::mem::take(&mut self.batch);
            send(self.cx, self.form, Status::Success, batch);
        }
        ControlFlow::Continue(())
    }

    /// Appends a key or a document; returns the bytes that count.
    fn append(&mut self, version: &Version) -> Result<usize, Fault> {
        let key = version.key().key;
        if self.form.is_key_only {
            append_with_length(&mut self.batch, key);
            return Ok(key.len());
        }
        let (meta, stored) = (version.meta(), version.value());
        let inflated = if meta.datatype.is_snappy() { value::inflated_len(stored) } else { stored.len() };
        if inflated > MOST_BYTES && !self.cx.reply.has_room(self.batch.len() + inflated) {
            return Err(Fault::NoRoom);
        }
        let bucket = self.cx.bucket();
        let times = bucket.value_times();
        let shown = value::shown(stored, meta.datatype, self.xattrs, self.takes_snappy, times);
        let (shown, datatype) = shown.map_err(Fault::Refused)?;
        self.batch.extend_from_slice(&meta.flags.to_be_bytes());
        self.batch.extend_from_slice(&meta.expiry.to_be_bytes());
        self.batch.extend_from_slice(&meta.by_seqno.0.to_be_bytes());
        self.batch.extend_from_slice(&meta.cas.0.to_be_bytes());
        self.batch.push(self.cx.session.visible_datatype(datatype).0);
        append_with_length(&mut self.batch, key);
        append_with_length(&mut self.batch, &shown);
        Ok(key.len() + shown.len())
    }
}

/// Its length as unsigned LEB128, then the bytes.
fn append_with_length(out: &mut Vec<u8>, bytes: &[u8]) {
    let (length, len) = encode_leb128(bytes.len() as u32);
    out.extend_from_slice(&length[..len]);
    out.extend_from_slice(bytes);
}

fn send(cx: &mut Context<'_>, form: RangeScanForm, status: Status, batch: Vec<u8>) {
    let flags = u32::from(!form.is_key_only).to_be_bytes();
    cx.reply.send_made(&Answer { status, extras: &flags, ..Answer::default() }, batch, 0);
}

/// Reads everything but the collection.
fn parse(json: &Map<String, Value>, collection: CollectionId) -> Result<Create, String> {
    let range = optional(json, "range", object)?;
    let sampling = optional(json, "sampling", object)?;
    if range.is_some() && sampling.is_some() {
        return Err("The request has both range and sampling".to_owned());
    }
    let (start, end) = match range {
        None => (Bound::Unbounded, Bound::Unbounded),
        Some(range) => (bound(range, "start", "excl_start")?, bound(range, "end", "excl_end")?),
    };
    let sampling = sampling.map(|json| {
        let seed = optional(json, "seed", Value::as_u64)?.unwrap_or(0);
        Ok::<_, String>(Sampling { samples: required(json, "samples", Value::as_u64)?, seed })
    });
    let (mut requirement, mut wait_ms) = (None, 0);
    if let Some(json) = optional(json, "snapshot_requirements", object)? {
        let uuid = |json: &Value| json.as_str().and_then(|text| text.parse().ok());
        requirement = Some(SnapshotRequirement {
            uuid: VbUuid(required(json, "vb_uuid", uuid)?),
            seqno: Seqno(required(json, "seqno", Value::as_u64)?),
            must_be_newest: optional(json, "seqno_exists", Value::as_bool)?.unwrap_or(false),
        });
        wait_ms = optional(json, "timeout_ms", Value::as_u64)?.unwrap_or(0);
    }
    let name = optional(json, "name", Value::as_str)?.unwrap_or_default();
    if name.len() > MOST_NAME_BYTES {
        return Err(format!("name exceeds {MOST_NAME_BYTES} bytes"));
    }
    let is_key_only = optional(json, "key_only", Value::as_bool)?.unwrap_or(false);
    let with_xattrs = optional(json, "include_xattrs", Value::as_bool)?.unwrap_or(false);
    if is_key_only && with_xattrs {
        return Err("cannot set key_only:true and include_xattrs:true".to_owned());
    }
    let wanted = RangeScanWanted {
        collection,
        start,
        end,
        is_key_only,
        with_xattrs,
        sampling: sampling.transpose()?,
        requirement,
        name: name.to_owned(),
    };
    Ok(Create { wanted, wait_ms })
}

/// A field that may be missing, read by `read`.
fn optional<'v, T>(
    json: &'v Map<String, Value>,
    name: &str,
    read: impl Fn(&'v Value) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(value) = json.get(name) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| format!("{name} is not of the right kind"))
}

fn required<'v, T>(
    json: &'v Map<String, Value>,
    name: &str,
    read: impl Fn(&'v Value) -> Option<T>,
) -> Result<T, String> {
    optional(json, name, read)?.ok_or_else(|| format!("{name} is missing"))
}

fn object(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object()
}

/// Hexadecimal, with 0x in front or without.
fn collection_id(value: &Value) -> Option<u32> {
    let text = value.as_str()?;
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// One end of a range, in Base64 under one of two names.
fn bound(range: &Map<String, Value>, included: &str, excluded: &str) -> Result<Bound<Vec<u8>>, String> {
    let key = |value: &Value| BASE64.decode(value.as_str()?).ok();
    let (with, without) = (optional(range, included, key)?, optional(range, excluded, key)?);
    let bound = match (with, without) {
        (Some(key), None) => Bound::Included(key),
        (None, Some(key)) => Bound::Excluded(key),
        (Some(_), Some(_)) => return Err(format!("range included both {included} and {excluded}")),
        (None, None) => return Err(format!("range did not include {included} or {excluded}")),
    };
    match &bound {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > limits::MAX_KEY_BYTES => {
            Err(format!("invalid key size in range: {} bytes", key.len()))
        }
        _ => Ok(bound),
    }
}
