//! A record of a file as it is sent, or why it is not.

use base::{Datatype, DocKey};
use couchstore::{DocInfo, Durability, Failure, RevMeta, Snapshot};

use crate::with_meta::{Record, Skipped};

/// Namespaces that stand where a key has its collection (kv_engine collections.md).
pub(super) const SYSTEM_EVENTS: u32 = 1;
const PREPARES: u32 = 2;

/// Reads a record with its value, which stays compressed where the document is and the server takes it so.
pub(super) fn read_record<'a>(
    file: &Snapshot,
    info: &DocInfo<'a>,
    takes_snappy: bool,
    stored: &'a mut Vec<u8>,
    inflated: &'a mut Vec<u8>,
) -> Result<Result<Record<'a>, Skipped>, Failure> {
    let (Some(key), Some(meta)) = (DocKey::parse(info.id), RevMeta::decode(info.rev_meta)) else {
        return Ok(Err(Skipped::Unreadable));
    };
    match (key.collection.0, meta.durability) {
        (PREPARES, _) | (_, Some(Durability::Pending { .. } | Durability::Abort { .. })) => {
            return Ok(Err(Skipped::Prepare));
        }
        (SYSTEM_EVENTS, _) => return Ok(Err(Skipped::SystemEvent)),
        _ => {}
    }
    let Some(datatype) = Datatype::from_wire(meta.datatype.unwrap_or(0)) else {
        return Ok(Err(Skipped::Unreadable));
    };
    let stays_compressed = datatype.is_snappy() && takes_snappy && !info.deleted;
    let (value, datatype) = if stays_compressed {
        (file.stored_body(info, stored)?, datatype)
    } else {
        (file.body(info, stored, inflated)?, datatype.without(Datatype::SNAPPY))
    };
    Ok(Ok(Record {
        key,
        deleted: info.deleted,
        expired: meta.expired,
        cas: meta.cas,
        rev_seqno: info.rev_seqno,
        expiry: meta.expiry,
        flags: meta.flags,
        datatype,
        value,
    }))
}
