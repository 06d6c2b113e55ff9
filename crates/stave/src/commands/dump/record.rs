//! How a record of a file is shown: with the field names of couch_dbdump, or as a row.

use std::fmt;

use base::doc_key::DocKey;
use base::leb128::decode_leb128;
use base::{Datatype, VbId};
use base64::Engine as _;
use couchstore::{DocInfo, Durability, RevMeta};
use serde_json::{Value, json};

/// Namespaces that stand where a key has its collection (kv_engine collections.md).
const DEFAULT_COLLECTION: u32 = 0;
const SYSTEM_EVENTS: u32 = 1;
const PREPARES: u32 = 2;

/// Bytes as text where they are text.
pub(super) enum Shown {
    Text(String),
    Json(Value),
    Binary(String),
}

impl Shown {
    fn of(bytes: &[u8]) -> Shown {
        match std::str::from_utf8(bytes) {
            // binary forms with few and small numbers are UTF-8, too
            Ok(text) if !text.contains('\0') => Shown::Text(text.to_owned()),
            _ => Shown::Binary(base64::engine::general_purpose::STANDARD.encode(bytes)),
        }
    }

    /// Puts it into an object under `name`, in base64 under `name_base64`.
    pub(super) fn put(self, object: &mut Value, name: &str) {
        match self {
            Shown::Text(text) => object[name] = text.into(),
            Shown::Json(value) => object[name] = value,
            Shown::Binary(base64) => object[format!("{name}_base64")] = base64.into(),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Text(text) => write!(f, "{}", text.escape_debug()),
            Shown::Json(value) => write!(f, "{value}"),
            Shown::Binary(base64) => write!(f, "base64:{base64}"),
        }
    }
}

/// The value of a local document: JSON as such, counts of a collection by their names (docs/file_format.md).
pub(super) fn local_value(id: &[u8], value: &[u8]) -> Shown {
    if id.starts_with(b"|0x")
        && let Some([item_count, high_seqno, disk_size]) = three_numbers(value)
    {
        return Shown::Json(
            json!({ "item_count": item_count, "high_seqno": high_seqno, "disk_size": disk_size }),
        );
    }
    match serde_json::from_slice(value) {
        Ok(value) => Shown::Json(value),
        Err(_) => Shown::of(value),
    }
}

/// Three unsigned LEB128 numbers and nothing else.
fn three_numbers(bytes: &[u8]) -> Option<[u64; 3]> {
    let mut numbers = [0u64; 3];
    let mut bytes = bytes.iter();
    for number in &mut numbers {
        let mut shift = 0;
        loop {
            let byte = *bytes.next()?;
            if shift > 63 {
                return None;
            }
            *number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    bytes.next().is_none().then_some(numbers)
}

/// A stored key with its collection in words.
pub(super) fn key(stored: &[u8]) -> String {
    match DocKey::parse(stored) {
        // one prepare does not hold another, so no deeper
        Some(DocKey { collection, key }) if collection.0 == PREPARES => {
            format!("(prepare:{}", &document_key(key)[1..])
        }
        _ => document_key(stored),
    }
}

/// Begins with a bracket in any case.
fn document_key(stored: &[u8]) -> String {
    let Some(DocKey { collection, key }) = DocKey::parse(stored) else {
        return format!("(no collection){}", stored.escape_ascii());
    };
    match collection.0 {
        DEFAULT_COLLECTION => format!("(collection:0x0:default){}", key.escape_ascii()),
        SYSTEM_EVENTS => {
            system_event(key).unwrap_or_else(|| format!("(system-event-key:unknown){}", key.escape_ascii()))
        }
        id => format!("(collection:{id:#x}){}", key.escape_ascii()),
    }
}

fn system_event(key: &[u8]) -> Option<String> {
    let (kind, rest) = key.split_first()?;
    let (id, len) = decode_leb128(rest)?;
    let kind = match kind {
        0 => "collection",
        1 => "scope",
        _ => return None,
    };
    Some(format!("(system-event-key:{kind}:{id:#x}){}", rest.get(len..)?.escape_ascii()))
}

fn datatype_names(datatype: Datatype) -> Vec<&'static str> {
    let all = [(Datatype::SNAPPY, "snappy"), (Datatype::JSON, "json"), (Datatype::XATTR, "xattr")];
    let names: Vec<_> =
        all.iter().filter(|(bit, _)| datatype.contains(*bit)).map(|(_, name)| *name).collect();
    if names.is_empty() { vec!["raw"] } else { names }
}

/// The level of a pending sync write; its number takes two bits in the file.
fn level_name(level: u8) -> &'static str {
    ["none", "majority", "majorityAndPersistOnMaster", "persistToMajority"][usize::from(level & 3)]
}

/// One record as an object; of a bucket's folder with its vBucket in the place of what only a file says of a body.
pub(super) fn json(info: &DocInfo<'_>, body: Option<&[u8]>, vb: Option<VbId>) -> Value {
    let mut line = json!({
        "body": null,
        "id": key(info.id),
        "physical_size": info.body_bytes,
        "rev": info.rev_seqno,
        "seq": info.seqno,
    });
    match vb {
        Some(vb) => line["vb"] = json!(vb.0),
        None => line["content_meta"] = json!(format!("{:#04x}", info.content_meta)),
    }
    if let Some(body) = body {
        Shown::of(body).put(&mut line, "body");
    }
    let meta = RevMeta::decode(info.rev_meta);
    if info.deleted {
        line["deleted"] = json!(deleted_by(meta.as_ref()));
    }
    let Some(meta) = meta else {
        line["rev_meta_base64"] = base64::engine::general_purpose::STANDARD.encode(info.rev_meta).into();
        return line;
    };
    line["cas"] = json!(meta.cas.to_string());
    line["expiry"] = json!(meta.expiry);
    line["flags"] = json!(meta.flags);
    if let Some(datatype) = meta.datatype {
        line["datatype"] = json!(datatype);
        line["datatype_as_text"] = json!(datatype_names(Datatype(datatype)));
    }
    match meta.durability {
        None => {}
        Some(Durability::Pending { level, is_delete }) => {
            line["sync_write"] = json!("pending");
            line["level"] = json!(level_name(level));
            line["isDelete"] = json!(is_delete);
        }
        Some(Durability::Commit { prepared_seqno }) => {
            line["sync_write"] = json!("commit");
            line["prepared_seqno"] = json!(prepared_seqno);
        }
        Some(Durability::Abort { prepared_seqno }) => {
            line["sync_write"] = json!("abort");
            line["prepared_seqno"] = json!(prepared_seqno);
        }
    }
    line
}

fn deleted_by(meta: Option<&RevMeta>) -> &'static str {
    if meta.is_some_and(|meta| meta.expired) { "TTL" } else { "explicit" }
}

/// Names of the columns of [`row`].
pub(super) fn table_head() -> String {
    format!(
        "{:>10} {:>7} {:>20} {:>10} {:>10}  {:<10}  {:>7} {:>9}  {:<7}  id",
        "seqno", "rev", "cas", "expiry", "flags", "datatype", "content", "bytes", "state",
    )
}

/// One record as a line; the id comes last, so that no column's width depends on it.
pub(super) fn row(info: &DocInfo<'_>) -> String {
    let meta = RevMeta::decode(info.rev_meta);
    let state = match meta.and_then(|meta| meta.durability) {
        Some(Durability::Abort { .. }) => "aborted",
        Some(Durability::Pending { .. }) => "pending",
        _ if info.deleted && meta.is_some_and(|meta| meta.expired) => "expired",
        _ if info.deleted => "deleted",
        _ => "live",
    };
    let datatype = meta.and_then(|meta| meta.datatype).map(|bits| datatype_names(Datatype(bits)).join(","));
    let meta = meta.unwrap_or_default();
    format!(
        "{:>10} {:>7} {:>20} {:>10} {:>#10x}  {:<10}  {:>7} {:>9}  {state:<7}  {}",
        info.seqno,
        info.rev_seqno,
        meta.cas,
        meta.expiry,
        meta.flags,
        datatype.as_deref().unwrap_or("-"),
        format!("{:#04x}", info.content_meta),
        info.body_bytes,
        key(info.id),
    )
}
