//! The fields that each command family puts into its extras (BinaryProtocol.md, the command's own section).
//!
//! Decoding gives nothing if the length is wrong; which lengths a command allows is the command table's business.

use base::{Cas, RevSeqno, Seqno, VbUuid};

use crate::reader::Reader;

/// Runs `fields` over exactly these bytes.
fn exactly<T>(bytes: &[u8], fields: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Option<T> {
    let mut reader = Reader(bytes);
    let parsed = fields(&mut reader)?;
    reader.is_empty().then_some(parsed)
}

/// A single number: the expiry time of touch and get-and-touch, the seconds of get-and-lock, the level of verbosity.
pub fn decode_u32(bytes: &[u8]) -> Option<u32> {
    exactly(bytes, |r| r.u32())
}

/// A single number: the seqno of seqno persistence.
pub fn decode_u64(bytes: &[u8]) -> Option<u64> {
    exactly(bytes, |r| r.u64())
}

/// Of set, add and replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreExtras {
    /// The client's flags.
    pub flags: u32,
    /// Expiry time: 0 never, up to 30 days relative to now, else seconds since 1970.
    pub expiry: u32,
}

impl StoreExtras {
    /// Decodes 8 bytes.
    pub fn decode(bytes: &[u8]) -> Option<StoreExtras> {
        exactly(bytes, |r| Some(StoreExtras { flags: r.u32()?, expiry: r.u32()? }))
    }

    /// Encodes them.
    pub fn encode(self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&self.flags.to_be_bytes());
        out[4..].copy_from_slice(&self.expiry.to_be_bytes());
        out
    }
}

/// Of increment and decrement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterExtras {
    /// How much to add or take away.
    pub delta: u64,
    /// The value of a new counter.
    pub initial: u64,
    /// Expiry time of a new counter; [`CounterExtras::DO_NOT_CREATE`] for "make no new one".
    pub expiry: u32,
}

impl CounterExtras {
    /// The expiry time that says that a missing counter is not created.
    pub const DO_NOT_CREATE: u32 = u32::MAX;

    /// Decodes 20 bytes.
    pub fn decode(bytes: &[u8]) -> Option<CounterExtras> {
        exactly(bytes, |r| Some(CounterExtras { delta: r.u64()?, initial: r.u64()?, expiry: r.u32()? }))
    }

    /// Encodes them.
    pub fn encode(self) -> [u8; 20] {
        let mut out = [0; 20];
        out[..8].copy_from_slice(&self.delta.to_be_bytes());
        out[8..16].copy_from_slice(&self.initial.to_be_bytes());
        out[16..].copy_from_slice(&self.expiry.to_be_bytes());
        out
    }
}

/// Of the answer to a change, if mutation tokens were negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MutationToken {
    /// The history the change belongs to.
    pub uuid: VbUuid,
    /// Its position in it.
    pub seqno: Seqno,
}

impl MutationToken {
    /// Decodes 16 bytes.
    pub fn decode(bytes: &[u8]) -> Option<MutationToken> {
        exactly(bytes, |r| Some(MutationToken { uuid: VbUuid(r.u64()?), seqno: Seqno(r.u64()?) }))
    }

    /// Encodes it.
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.uuid.0.to_be_bytes());
        out[8..].copy_from_slice(&self.seqno.0.to_be_bytes());
        out
    }
}

/// Of set, add and delete with meta (`set_with_meta.md`): the document's metadata come from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithMetaExtras {
    /// The client's flags; for a deletion part of the tombstone.
    pub flags: u32,
    /// Expiry time, or time of the deletion.
    pub expiry: u32,
    /// How often the document was changed.
    pub rev_seqno: RevSeqno,
    /// Its CAS there.
    pub cas: Cas,
    /// See the constants.
    pub options: u32,
    /// Bytes of extended metadata at the end of the value, which are ignored.
    pub extended_meta_len: u16,
}

/// What the answer to a change with metadata says, beside the status of a conflict, if the document has the same metadata
/// and another value: who sends changes tells that from a document that was there already.
pub const TIE_LOST: &str = "The document has the same metadata and another value, which wins";

impl WithMetaExtras {
    /// Write even what would lose the conflict.
    pub const FORCE_WITH_META: u32 = 0x01;
    /// The bucket resolves by time and the sender knows it.
    pub const FORCE_ACCEPT: u32 = 0x02;
    /// Give the document a new CAS.
    pub const REGENERATE_CAS: u32 = 0x04;
    /// Do not resolve conflicts.
    pub const SKIP_CONFLICT_RESOLUTION: u32 = 0x08;
    /// The deletion is an expiration.
    pub const IS_EXPIRATION: u32 = 0x10;

    /// Decodes 24 bytes, 26 (with extended metadata), 28 (with options) or 30 (with both).
    pub fn decode(bytes: &[u8]) -> Option<WithMetaExtras> {
        exactly(bytes, |r| {
            let mut extras = WithMetaExtras {
                flags: r.u32()?,
                expiry: r.u32()?,
                rev_seqno: RevSeqno(r.u64()?),
                cas: Cas(r.u64()?),
                ..WithMetaExtras::default()
            };
            if matches!(bytes.len(), 28 | 30) {
                extras.options = r.u32()?;
            }
            if matches!(bytes.len(), 26 | 30) {
                extras.extended_meta_len = r.u16()?;
            }
            Some(extras)
        })
    }
}

/// Whether `bytes` are extended metadata: a version, then entries of a kind, a length and that number of bytes.
///
/// Nothing uses what they say any more (kv_engine set_with_meta.md), but what is malformed is refused.
pub fn is_extended_meta(bytes: &[u8]) -> bool {
    const VERSION: u8 = 1;
    const KINDS: std::ops::RangeInclusive<u8> = 1..=2;
    let mut reader = Reader(bytes);
    if reader.u8() != Some(VERSION) {
        return false;
    }
    while !reader.is_empty() {
        let entry = reader.u8().filter(|kind| KINDS.contains(kind)).and_then(|_| reader.u16());
        if entry.and_then(|len| reader.bytes(usize::from(len))).is_none() {
            return false;
        }
    }
    true
}

/// Of the answer to get-meta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetMetaExtras {
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// The client's flags.
    pub flags: u32,
    /// Expiry time, or time of the deletion.
    pub expiry: u32,
    /// How often the document was changed.
    pub rev_seqno: RevSeqno,
    /// What the value is made of; only in the long form.
    pub datatype: u8,
}

impl GetMetaExtras {
    /// Decodes 20 bytes or the 21 of version 2.
    pub fn decode(bytes: &[u8]) -> Option<GetMetaExtras> {
        exactly(bytes, |r| {
            Some(GetMetaExtras {
                deleted: r.u32()? & 1 != 0,
                flags: r.u32()?,
                expiry: r.u32()?,
                rev_seqno: RevSeqno(r.u64()?),
                datatype: if bytes.len() == 21 { r.u8()? } else { 0 },
            })
        })
    }

    /// Encodes them in the long form; the short one is its first 20 bytes.
    pub fn encode(self) -> [u8; 21] {
        let mut out = [0; 21];
        out[..4].copy_from_slice(&u32::from(self.deleted).to_be_bytes());
        out[4..8].copy_from_slice(&self.flags.to_be_bytes());
        out[8..12].copy_from_slice(&self.expiry.to_be_bytes());
        out[12..20].copy_from_slice(&self.rev_seqno.0.to_be_bytes());
        out[20] = self.datatype;
        out
    }
}

/// Of get-cluster-config with a known version: what the client has already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigVersion {
    /// Counts how often the cluster lost its history.
    pub epoch: i64,
    /// Counts the changes in an epoch.
    pub revision: i64,
}

impl ConfigVersion {
    /// Decodes 16 bytes.
    pub fn decode(bytes: &[u8]) -> Option<ConfigVersion> {
        exactly(bytes, |r| {
            Some(ConfigVersion { epoch: r.u64()?.cast_signed(), revision: r.u64()?.cast_signed() })
        })
    }

    /// Encodes it.
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.epoch.to_be_bytes());
        out[8..].copy_from_slice(&self.revision.to_be_bytes());
        out
    }
}

/// Of a sub-document command with one path (SubDocument.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubdocExtras {
    /// Bytes of the path, which starts the value.
    pub path_len: u16,
    /// Flags of the path.
    pub path_flags: u8,
    /// Expiry time, if it was given.
    pub expiry: Option<u32>,
    /// Flags of the document.
    pub doc_flags: u8,
}

impl SubdocExtras {
    /// Decodes 3 bytes, 4 (with document flags), 7 (with expiry time) or 8 (with both).
    pub fn decode(bytes: &[u8]) -> Option<SubdocExtras> {
        exactly(bytes, |r| {
            Some(SubdocExtras {
                path_len: r.u16()?,
                path_flags: r.u8()?,
                expiry: if bytes.len() >= 7 { Some(r.u32()?) } else { None },
                doc_flags: if matches!(bytes.len(), 4 | 8) { r.u8()? } else { 0 },
            })
        })
    }
}

/// Of a sub-document command with several paths (SubDocument.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubdocMultiExtras {
    /// Expiry time, if it was given.
    pub expiry: Option<u32>,
    /// Flags of the document.
    pub doc_flags: u8,
}

impl SubdocMultiExtras {
    /// Decodes nothing, 1 byte (document flags), 4 (expiry time) or 5 (both).
    pub fn decode(bytes: &[u8]) -> Option<SubdocMultiExtras> {
        exactly(bytes, |r| {
            Some(SubdocMultiExtras {
                expiry: if bytes.len() >= 4 { Some(r.u32()?) } else { None },
                doc_flags: if matches!(bytes.len(), 1 | 5) { r.u8()? } else { 0 },
            })
        })
    }
}
