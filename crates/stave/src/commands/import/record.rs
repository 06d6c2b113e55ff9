//! A record of a file as it is sent, or why it is not.

use base::{Datatype, DocKey};
use couchstore::{DocInfo, Durability, Failure, RevMeta, Snapshot};

/// Namespaces that stand where a key has its collection (kv_engine collections.md).
const SYSTEM_EVENTS: u32 = 1;
const PREPARES: u32 = 2;

/// Why a record is not in the bucket afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Skipped {
    Prepare,
    SystemEvent,
    UnknownCollection,
    Tombstone,
    Unreadable,
}

impl Skipped {
    pub(super) fn name(self) -> &'static str {
        match self {
            Skipped::Prepare => "prepares",
            Skipped::SystemEvent => "system_events",
            Skipped::UnknownCollection => "unknown_collections",
            Skipped::Tombstone => "tombstones",
            Skipped::Unreadable => "unknown_forms",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Skipped::Prepare => "skipped: durable writes not committed",
            Skipped::SystemEvent => "skipped: events of collections",
            Skipped::UnknownCollection => "skipped: collection is not in the bucket",
            Skipped::Tombstone => "skipped: tombstones, because of --conflict",
            Skipped::Unreadable => "skipped: key or metadata of an unknown form",
        }
    }
}

/// A document or tombstone.
pub(super) struct Record<'a> {
    pub(super) key: DocKey<'a>,
    pub(super) deleted: bool,
    pub(super) expired: bool,
    pub(super) cas: u64,
    pub(super) rev_seqno: u64,
    pub(super) expiry: u32,
    pub(super) flags: u32,
    pub(super) datatype: Datatype,
    pub(super) value: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a record with its value, which stays compressed where the document is and the server takes it so.
    pub(super) fn read(
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
}
