//! The three trees and their reduce values (couchstore file_format.md, "Indexes").

/// One of the trees of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    BySeqno,
    ById,
    Local,
}

/// What a tree knows about everything below a node. Trees leave unused fields at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reduce {
    /// Records that are not deleted (by-id), all records (by-seqno).
    pub(crate) live: u64,
    pub(crate) deleted: u64,
    pub(crate) body_bytes: u64,
}

impl Reduce {
    pub(crate) fn add(&mut self, other: Reduce) {
        self.live += other.live;
        self.deleted += other.deleted;
        self.body_bytes += other.body_bytes;
    }
}

impl Tree {
    pub(crate) fn reduce_len(self) -> usize {
        match self {
            Tree::BySeqno => 5,
            Tree::ById => 16,
            Tree::Local => 0,
        }
    }

    /// What one record of a leaf adds; nothing if it is too short to be one.
    pub(crate) fn reduce_of_record(self, value: &[u8]) -> Option<Reduce> {
        match self {
            Tree::BySeqno => Some(Reduce { live: 1, ..Reduce::default() }),
            Tree::Local => Some(Reduce::default()),
            Tree::ById => {
                let body_bytes = u64::from(u32::from_be_bytes(*value.get(6..)?.first_chunk()?));
                let deleted = u64::from(*value.get(10)? >> 7);
                Some(Reduce { live: 1 - deleted, deleted, body_bytes })
            }
        }
    }

    /// What one record of a leaf adds, in short: bytes of its body, and in the highest bit whether it is deleted.
    /// Nothing if it cannot be one.
    pub(crate) fn weight_of_record(self, value: &[u8]) -> Option<u32> {
        match self {
            Tree::BySeqno | Tree::Local => Some(0),
            Tree::ById => {
                let body_bytes = u32::from_be_bytes(*value.get(6..10)?.first_chunk()?);
                // bodies have 28 bits of length
                (body_bytes < WEIGHT_DELETED).then_some(weight(body_bytes, value.get(10)? >> 7 != 0))
            }
        }
    }

    /// What the records of a leaf come to.
    pub(crate) fn reduce_of_weights(self, weights: impl ExactSizeIterator<Item = u32>) -> Reduce {
        let records = weights.len() as u64;
        match self {
            Tree::Local => Reduce::default(),
            Tree::BySeqno => Reduce { live: records, ..Reduce::default() },
            Tree::ById => {
                let (mut deleted, mut body_bytes) = (0, 0);
                for weight in weights {
                    deleted += u64::from(weight >> 31);
                    body_bytes += u64::from(weight & !WEIGHT_DELETED);
                }
                Reduce { live: records - deleted, deleted, body_bytes }
            }
        }
    }

    pub(crate) fn encode_reduce(self, reduce: Reduce, out: &mut Vec<u8>) {
        match self {
            Tree::Local => {}
            Tree::BySeqno => out.extend_from_slice(&reduce.live.to_be_bytes()[3..]),
            Tree::ById => {
                out.extend_from_slice(&reduce.live.to_be_bytes()[3..]);
                out.extend_from_slice(&reduce.deleted.to_be_bytes()[3..]);
                out.extend_from_slice(&reduce.body_bytes.to_be_bytes()[2..]);
            }
        }
    }

    /// The reduce value, if it has this tree's length.
    pub(crate) fn decode_reduce(self, bytes: &[u8]) -> Option<Reduce> {
        if bytes.len() != self.reduce_len() {
            return None;
        }
        Some(match self {
            Tree::Local => Reduce::default(),
            Tree::BySeqno => Reduce { live: be(bytes), ..Reduce::default() },
            Tree::ById => {
                Reduce { live: be(&bytes[..5]), deleted: be(&bytes[5..10]), body_bytes: be(&bytes[10..]) }
            }
        })
    }
}

const WEIGHT_DELETED: u32 = 1 << 31;

/// A record's share of the counts; see [`Tree::weight_of_record`].
pub(crate) fn weight(body_bytes: u32, deleted: bool) -> u32 {
    body_bytes | if deleted { WEIGHT_DELETED } else { 0 }
}

/// A big-endian number of up to eight bytes.
#[inline]
pub(crate) fn be(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[8 - bytes.len()..].copy_from_slice(bytes);
    u64::from_be_bytes(number)
}

/// The same of five bytes, loaded as they stand: what is copied together first is waited for.
#[inline]
pub(crate) fn from_be40([a, b, c, d, e]: [u8; 5]) -> u64 {
    u64::from(u32::from_be_bytes([a, b, c, d])) << 8 | u64::from(e)
}

/// The same of six bytes.
#[inline]
pub(crate) fn from_be48([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from(u32::from_be_bytes([a, b, c, d])) << 16 | u64::from(u16::from_be_bytes([e, f]))
}

/// A number as the 48 bits it takes in the file.
pub(crate) fn be48(n: u64) -> [u8; 6] {
    let b = n.to_be_bytes();
    [b[2], b[3], b[4], b[5], b[6], b[7]]
}
