//! Where a backfill goes on.

use base::leb128::encode_leb128;
use base::{CollectionId, Seqno};
use vbucket::collections::event::stored_prefixes;

/// Where a backfill goes on, which is also how it reads.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// By seqno, from this one on.
    Seqno(Seqno),
    /// By key.
    Key(KeyPlace),
}

/// A place in one range of stored keys, and the ranges behind it: what begins with a prefix.
#[derive(Clone, Debug)]
pub(super) struct KeyPlace {
    pub(super) prefix: Vec<u8>,
    /// The stored key that is read next.
    pub(super) from: Vec<u8>,
    later: Vec<Vec<u8>>,
}

impl KeyPlace {
    /// The events of a collection, then the collection.
    pub(super) fn of(collection: CollectionId) -> KeyPlace {
        let [first, second] = stored_prefixes(collection);
        let (bytes, len) = encode_leb128(collection.0);
        KeyPlace { from: first.clone(), prefix: first, later: vec![bytes[..len].to_vec(), second] }
    }

    /// The next range.
    pub(super) fn next(mut self) -> Option<KeyPlace> {
        let prefix = self.later.pop()?;
        Some(KeyPlace { from: prefix.clone(), prefix, later: self.later })
    }
}

impl Place {
    /// Nothing below it is read.
    pub(super) fn seqno(&self) -> Seqno {
        match self {
            Place::Seqno(seqno) => *seqno,
            Place::Key(_) => Seqno(1),
        }
    }
}
