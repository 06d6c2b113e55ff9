//! Document keys: a collection and the bytes that the application chose.

use crate::ids::CollectionId;
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

/// Encodes an unsigned LEB128.
pub fn encode_leb128(mut n: u32) -> ([u8; 5], usize) {
    let mut out = [0; 5];
    let mut len = 0;
    loop {
        let byte = (n & 0x7f) as u8;
        n >>= 7;
        out[len] = if n == 0 { byte } else { byte | 0x80 };
        len += 1;
        if n == 0 {
            return (out, len);
        }
    }
}

/// Decodes an unsigned LEB128 at the start of `bytes`: the number and how many bytes it took.
/// Nothing if it is unterminated, longer than five bytes, over 32 bits, or not canonical (a trailing zero byte).
#[inline]
pub fn decode_leb128(bytes: &[u8]) -> Option<(u32, usize)> {
    // As nearly all are.
    if let Some(&byte @ 0..0x80) = bytes.first() {
        return Some((byte.into(), 1));
    }
    decode_long_leb128(bytes)
}

fn decode_long_leb128(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut n: u64 = 0;
    for (i, &byte) in bytes.iter().take(5).enumerate() {
        n |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let canonical = i == 0 || byte != 0;
            return if canonical { u32::try_from(n).ok().map(|n| (n, i + 1)) } else { None };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn leb128_round_trips(n: u32) {
            let (bytes, len) = encode_leb128(n);
            prop_assert_eq!(decode_leb128(&bytes[..len]), Some((n, len)));
            prop_assert_eq!(decode_leb128(&bytes[..len - 1]), None);
        }

        #[test]
        fn a_key_matches_its_own_encoding(id: u32, key in proptest::collection::vec(any::<u8>(), 0..20)) {
            let key = DocKey { collection: CollectionId(id), key: &key };
            let stored = key.to_stored();
            prop_assert!(key.matches(&stored.0));
            prop_assert_eq!(DocKey::parse(&stored.0), Some(key));
        }
    }

    #[test]
    fn leb128_must_be_canonical() {
        assert_eq!(decode_leb128(&[0x80, 0x00]), None);
        assert_eq!(decode_leb128(&[0xff, 0xff, 0xff, 0xff, 0x7f]), None);
        assert_eq!(decode_leb128(&[]), None);
    }
}
