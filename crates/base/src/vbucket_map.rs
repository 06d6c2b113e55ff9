//! From a key to its vBucket, as every client computes it.

use crate::ids::VbId;

/// The vBucket of `key` (without collection prefix) among `vbuckets`, which must be a power of two.
/// Formula: bits 16 to 30 of the key's CRC32 (zlib polynomial), modulo the number of vBuckets.
pub fn vbucket_of(key: &[u8], vbuckets: u16) -> VbId {
    let crc = crc32fast::hash(key);
    VbId(((crc >> 16) & 0x7fff) as u16 & (vbuckets - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_clients() {
        // zlib.crc32(b"foo") = 0x8c736521
        assert_eq!(vbucket_of(b"foo", 1024), VbId(0x0c73 & 1023));
        assert_eq!(vbucket_of(b"", 64), VbId(0));
    }
}
