//! Revision metadata, as the key-value engine writes it into the trees.
//!
//! The first 16 bytes are described in couchstore's file_format.md ("Revision Metadata"); the bytes behind them are
//! read off files that the original wrote: flex code 1 with the datatype, then the state of a sync write.
//! No document or file at hand shows the bit for expired tombstones, nor the states committed and aborted: assumed.

use crate::tree::{be48, from_be48};

const WITH_DATATYPE: usize = 18;
const WITH_DURABILITY: usize = 25;
const FLEX_CODE: u8 = 0x01;
/// Top bit of the flex code: the tombstone comes from an expiry time that passed.
const EXPIRED: u8 = 0x80;

/// Where a sync write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A prepare that was neither committed nor aborted.
    Pending {
        /// Requested level, as on the wire.
        level: u8,
        /// Whether the prepare deletes the document.
        is_delete: bool,
    },
    /// Committed.
    Commit {
        /// Seqno of the prepare.
        prepared_seqno: u64,
    },
    /// Aborted.
    Abort {
        /// Seqno of the prepare.
        prepared_seqno: u64,
    },
}

/// Revision metadata of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevMeta {
    /// Compare-and-swap value.
    pub cas: u64,
    /// Expiry time, or deletion time of a tombstone.
    pub expiry: u32,
    /// The client's flags.
    pub flags: u32,
    /// Datatype bits; nothing in metadata of the oldest form.
    pub datatype: Option<u8>,
    /// Whether a tombstone comes from an expiry time that passed.
    pub expired: bool,
    /// State of a sync write.
    pub durability: Option<Durability>,
}

impl RevMeta {
    /// Longest encoding.
    pub const MAX_BYTES: usize = WITH_DURABILITY;

    /// Reads any form. Nothing if the length or a code is unknown.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<RevMeta> {
        let (cas, rest) = bytes.split_first_chunk()?;
        let (expiry, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let mut meta = RevMeta {
            cas: u64::from_be_bytes(*cas),
            expiry: u32::from_be_bytes(*expiry),
            flags: u32::from_be_bytes(*flags),
            ..RevMeta::default()
        };
        match *rest {
            [] => {}
            // a nineteenth byte held the conflict resolution mode for a while
            [flex, datatype] | [flex, datatype, _] if flex & !EXPIRED == FLEX_CODE => {
                meta.datatype = Some(datatype);
                meta.expired = flex & EXPIRED != 0;
            }
            [flex, datatype, operation, ref state @ ..] if flex & !EXPIRED == FLEX_CODE => {
                meta.datatype = Some(datatype);
                meta.expired = flex & EXPIRED != 0;
                meta.durability = Some(Durability::decode(operation, state)?);
            }
            _ => return None,
        }
        Some(meta)
    }

    /// The newest form that is needed: 18 bytes, 25 with the state of a sync write.
    pub fn encode(&self) -> ([u8; RevMeta::MAX_BYTES], usize) {
        let mut out = [0; RevMeta::MAX_BYTES];
        out[..8].copy_from_slice(&self.cas.to_be_bytes());
        out[8..12].copy_from_slice(&self.expiry.to_be_bytes());
        out[12..16].copy_from_slice(&self.flags.to_be_bytes());
        out[16] = FLEX_CODE | if self.expired { EXPIRED } else { 0 };
        out[17] = self.datatype.unwrap_or(0);
        let Some(durability) = self.durability else { return (out, WITH_DATATYPE) };
        let (operation, state) = durability.encode();
        out[18] = operation;
        out[19..].copy_from_slice(&be48(state));
        (out, WITH_DURABILITY)
    }
}

impl Durability {
    fn encode(self) -> (u8, u64) {
        match self {
            Durability::Pending { level, is_delete } => (0, u64::from(level) << 1 | u64::from(is_delete)),
            Durability::Commit { prepared_seqno } => (1, prepared_seqno),
            Durability::Abort { prepared_seqno } => (2, prepared_seqno),
        }
    }

    fn decode(operation: u8, state: &[u8]) -> Option<Durability> {
        let state = from_be48(*state.as_array()?);
        Some(match operation {
            0 => Durability::Pending { level: (state >> 1) as u8 & 3, is_delete: state & 1 != 0 },
            1 => Durability::Commit { prepared_seqno: state },
            2 => Durability::Abort { prepared_seqno: state },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_round_trips() {
        let states = [
            None,
            Some(Durability::Pending { level: 3, is_delete: true }),
            Some(Durability::Commit { prepared_seqno: 1 << 40 }),
            Some(Durability::Abort { prepared_seqno: 7 }),
        ];
        for durability in states {
            for expired in [false, true] {
                let meta = RevMeta { cas: 5, expiry: 6, flags: 7, datatype: Some(5), expired, durability };
                let (bytes, len) = meta.encode();
                assert_eq!(RevMeta::decode(&bytes[..len]), Some(meta));
                assert_eq!(RevMeta::decode(&bytes[..17]), None);
            }
        }
    }

    #[test]
    fn the_oldest_form_has_no_datatype() {
        let meta = RevMeta::decode(&[0; 16]);
        assert_eq!(meta, Some(RevMeta::default()));
    }
}
