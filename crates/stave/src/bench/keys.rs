//! The keys of a run, made from their numbers: no table of a million keys to miss the caches with.

use base::CollectionId;
use base::leb128::encode_leb128;
use base::limits::MAX_KEY_BYTES;

const PREFIX: &[u8] = b"bench-";

/// The most bytes of a collection's number before a key.
const MAX_PREFIX_BYTES: usize = 5;

/// Keys of one size: a prefix, then the number with leading zeros. They take turns through the collections.
#[derive(Clone, Debug)]
pub struct KeySpace {
    /// Room for a collection's number, then the key of number 0.
    template: Vec<u8>,
    /// The numbers of the collections, as they are before keys.
    collections: Vec<Vec<u8>>,
}

/// A key, rewritten in place for each request.
#[derive(Clone, Debug)]
pub struct KeyBuffer {
    bytes: Vec<u8>,
    /// Where the collection's number begins.
    start: usize,
}

impl KeySpace {
    /// For `keys` different keys of `size_bytes` bytes each.
    pub fn new(keys: u64, size_bytes: usize) -> Result<KeySpace, String> {
        let digits = keys.saturating_sub(1).to_string().len();
        if size_bytes < digits || size_bytes > MAX_KEY_BYTES {
            return Err(format!(
                "--key-size {size_bytes} does not do for {keys} keys; give {digits} to {MAX_KEY_BYTES} bytes"
            ));
        }
        let prefix = &PREFIX[..PREFIX.len().min(size_bytes - digits)];
        let mut template = vec![0; MAX_PREFIX_BYTES];
        template.extend_from_slice(prefix);
        template.resize(MAX_PREFIX_BYTES + size_bytes, b'0');
        Ok(KeySpace { template, collections: vec![vec![0]] })
    }

    /// The same keys, spread over these collections, of which there is at least one.
    pub fn over(mut self, ids: &[CollectionId]) -> KeySpace {
        let encoded = |id: &CollectionId| {
            let (bytes, len) = encode_leb128(id.0);
            bytes[..len].to_vec()
        };
        self.collections = ids.iter().map(encoded).collect();
        self
    }

    /// A buffer for these keys.
    pub fn buffer(&self) -> KeyBuffer {
        KeyBuffer { bytes: self.template.clone(), start: MAX_PREFIX_BYTES - 1 }
    }

    /// Puts key `number` into `buffer`.
    #[inline]
    pub fn write(&self, mut number: u64, buffer: &mut KeyBuffer) {
        buffer.bytes.copy_from_slice(&self.template);
        let collection = match &*self.collections {
            [only] => only,
            all => &all[(number % all.len() as u64) as usize],
        };
        buffer.start = MAX_PREFIX_BYTES - collection.len();
        buffer.bytes[buffer.start..MAX_PREFIX_BYTES].copy_from_slice(collection);
        for digit in buffer.bytes.iter_mut().rev() {
            if number == 0 {
                break;
            }
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

impl KeyBuffer {
    /// The key with its collection before it.
    #[inline]
    pub fn prefixed(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The key alone.
    #[inline]
    pub fn plain(&self) -> &[u8] {
        &self.bytes[MAX_PREFIX_BYTES..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(keys: u64, size_bytes: usize, number: u64) -> String {
        let space = KeySpace::new(keys, size_bytes).unwrap();
        let mut buffer = space.buffer();
        space.write(keys - 1, &mut buffer);
        space.write(number, &mut buffer);
        assert_eq!(buffer.prefixed()[0], 0);
        String::from_utf8(buffer.plain().to_vec()).unwrap()
    }

    #[test]
    fn has_the_size_asked_for() {
        assert_eq!(key(1_000_000, 20, 42), "bench-00000000000042");
        assert_eq!(key(1_000_000, 20, 999_999), "bench-00000000999999");
        assert_eq!(key(1_000_000, 8, 42), "be000042");
        assert_eq!(key(1_000_000, 6, 42), "000042");
        assert_eq!(key(1, 1, 0), "0");
    }

    #[test]
    fn keys_take_turns_through_collections() {
        let ids = [CollectionId(8), CollectionId(0x1234), CollectionId(u32::MAX)];
        let space = KeySpace::new(100, 8).unwrap().over(&ids);
        let mut buffer = space.buffer();
        for number in 0..9 {
            space.write(number, &mut buffer);
            let key = base::DocKey::parse(buffer.prefixed()).expect("a key");
            assert_eq!(key.collection, ids[number as usize % 3]);
            assert_eq!(key.key, format!("bench-0{number}").as_bytes());
            assert_eq!(buffer.plain(), key.key);
        }
    }

    #[test]
    fn refuses_sizes_that_cannot_hold_the_number() {
        assert!(KeySpace::new(1_000_000, 5).is_err());
        assert!(KeySpace::new(1, 0).is_err());
        assert!(KeySpace::new(1, 251).is_err());
    }
}
