//! The keys of a run, made from their numbers: no table of a million keys to miss the caches with.

use base::limits::MAX_KEY_BYTES;

const PREFIX: &[u8] = b"bench-";

/// Keys of one size: a prefix, then the number with leading zeros.
#[derive(Clone, Debug)]
pub struct KeySpace {
    /// One byte of collection prefix (the default collection, 0), then the key of number 0.
    template: Vec<u8>,
}

/// A key, rewritten in place for each request.
#[derive(Clone, Debug)]
pub struct KeyBuffer {
    bytes: Vec<u8>,
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
        let mut template = vec![0];
        template.extend_from_slice(prefix);
        template.resize(1 + size_bytes, b'0');
        Ok(KeySpace { template })
    }

    /// A buffer for these keys.
    pub fn buffer(&self) -> KeyBuffer {
        KeyBuffer { bytes: self.template.clone() }
    }

    /// Puts key `number` into `buffer`.
    #[inline]
    pub fn write(&self, mut number: u64, buffer: &mut KeyBuffer) {
        buffer.bytes.copy_from_slice(&self.template);
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
    /// The key with the prefix of the default collection.
    #[inline]
    pub fn prefixed(&self) -> &[u8] {
        &self.bytes
    }

    /// The key alone.
    #[inline]
    pub fn plain(&self) -> &[u8] {
        &self.bytes[1..]
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
    fn refuses_sizes_that_cannot_hold_the_number() {
        assert!(KeySpace::new(1_000_000, 5).is_err());
        assert!(KeySpace::new(1, 0).is_err());
        assert!(KeySpace::new(1, 251).is_err());
    }
}
