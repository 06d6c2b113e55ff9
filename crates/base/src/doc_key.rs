//! Document keys: a collection and the bytes that the application chose.

use crate::ids::CollectionId;
use crate::leb128::{decode_leb128, encode_leb128};
use crate::limits;

/// A key as a request names it: borrowed, not yet encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DocKey<'a> {
    /// The collection the key lives in.
    pub collection: CollectionId,
    /// The key without collection prefix; what clients hash to find the vBucket.
    pub key: &'a [u8],
}

impl<'a> DocKey<'a> {
    /// A key of the default collection.
    pub fn new(key: &'a [u8]) -> DocKey<'a> {
        DocKey { collection: CollectionId::DEFAULT, key }
    }

    /// Splits `prefix + key`, as a connection that negotiated collections sends it and as files hold it.
    /// Nothing if the prefix is not a canonical unsigned LEB128 of at most five bytes.
    #[inline]
    pub fn parse(encoded: &'a [u8]) -> Option<DocKey<'a>> {
        let (id, len) = decode_leb128(encoded)?;
        Some(DocKey { collection: CollectionId(id), key: &encoded[len..] })
    }

    /// Writes the collection prefix; returns the buffer and how much of it is used.
    pub fn prefix(&self) -> ([u8; 5], usize) {
        encode_leb128(self.collection.0)
    }

    /// Prefix and key, and how long they are: the key of the document's prepare in [`CollectionId::PREPARES`].
    ///
    /// The key must have a valid length.
    pub fn to_prepared(&self) -> ([u8; limits::MAX_PREFIXED_KEY_BYTES], usize) {
        let (prefix, prefix_len) = self.prefix();
        let mut out = [0; limits::MAX_PREFIXED_KEY_BYTES];
        out[..prefix_len].copy_from_slice(&prefix[..prefix_len]);
        out[prefix_len..prefix_len + self.key.len()].copy_from_slice(self.key);
        (out, prefix_len + self.key.len())
    }

    /// Bytes of prefix and key together.
    pub fn encoded_len(&self) -> usize {
        self.prefix().1 + self.key.len()
    }

    /// Whether `encoded` (prefix and key) is this key.
    pub fn matches(&self, encoded: &[u8]) -> bool {
        if self.collection.0 < 0x80 {
            return encoded.len() == self.key.len() + 1
                && encoded[0] == self.collection.0 as u8
                && &encoded[1..] == self.key;
        }
        let (prefix, len) = self.prefix();
        encoded.len() == len + self.key.len()
            && encoded[..len] == prefix[..len]
            && &encoded[len..] == self.key
    }

    /// Whether the length is within what the protocol allows.
    pub fn is_valid_len(&self) -> bool {
        let most = if self.collection == CollectionId::DEFAULT {
            limits::MAX_KEY_BYTES
        } else {
            limits::MAX_COLLECTION_KEY_BYTES
        };
        !self.key.is_empty() && self.key.len() <= most
    }

    /// An owned copy, encoded.
    pub fn to_stored(&self) -> StoredKey {
        let (prefix, len) = self.prefix();
        let mut bytes = Vec::with_capacity(len + self.key.len());
        bytes.extend_from_slice(&prefix[..len]);
        bytes.extend_from_slice(self.key);
        StoredKey(bytes.into_boxed_slice())
    }
}

/// An owned key: collection prefix and key bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredKey(pub Box<[u8]>);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_matches_its_own_encoding(id: u32, key in proptest::collection::vec(any::<u8>(), 0..20)) {
            let key = DocKey { collection: CollectionId(id), key: &key };
            let stored = key.to_stored();
            prop_assert!(key.matches(&stored.0));
            prop_assert_eq!(DocKey::parse(&stored.0), Some(key));
        }
    }
}
