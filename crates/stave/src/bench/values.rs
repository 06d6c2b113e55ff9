//! The values of a run: slices of one pool of random bytes.

use std::str::FromStr;

use base::limits::MAX_VALUE_BYTES;

use super::rng::Rng;
use crate::units::parse_bytes;

/// Random bytes beyond the longest value, so that values start in many places and yet stay in the caches.
const POOL_BYTES: usize = 256 << 10;
/// The share that repeats is spread over the pool in blocks of this size.
const BLOCK_BYTES: usize = 64;
const JSON_HEAD: &[u8] = b"{\"value\":\"";
const JSON_TAIL: &[u8] = b"\"}";

/// Smallest and largest value in bytes, as written on the command line: `512`, `4KiB` or `64:1024`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueSize {
    /// Smallest.
    pub min_bytes: usize,
    /// Largest.
    pub max_bytes: usize,
}

impl FromStr for ValueSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueSize, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let size = |text: &str| {
            let bytes = parse_bytes(text)?;
            usize::try_from(bytes)
                .ok()
                .filter(|bytes| *bytes <= MAX_VALUE_BYTES)
                .ok_or_else(|| format!("`{text}` is more than a document may have: 20MiB"))
        };
        let size = ValueSize { min_bytes: size(min)?, max_bytes: size(max)? };
        if size.min_bytes > size.max_bytes {
            return Err(format!(
                "`{text}` is not a range of sizes; give the smaller one first, like 64:1024"
            ));
        }
        Ok(size)
    }
}

impl std::fmt::Display for ValueSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min_bytes == self.max_bytes {
            write!(f, "{}", self.min_bytes)
        } else {
            write!(f, "{} to {}", self.min_bytes, self.max_bytes)
        }
    }
}

/// What values look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ValueKind {
    /// Random bytes.
    #[default]
    Random,
    /// A JSON object with one string.
    Json,
}

/// Where values are cut from.
#[derive(Clone, Debug)]
pub struct ValuePool {
    size: ValueSize,
    kind: ValueKind,
    pool: Vec<u8>,
}

impl ValuePool {
    /// Values of these sizes, of which `compressible_percent` of the bytes repeat.
    pub fn new(
        size: ValueSize,
        kind: ValueKind,
        compressible_percent: u8,
        seed: u64,
    ) -> Result<ValuePool, String> {
        let around = JSON_HEAD.len() + JSON_TAIL.len();
        if kind == ValueKind::Json && size.min_bytes < around {
            return Err(format!("--value-size {size} is too small for JSON values; give at least {around}"));
        }
        let mut rng = Rng::new(seed, u64::MAX);
        let mut byte = || match kind {
            ValueKind::Random => rng.next() as u8,
            ValueKind::Json => b'a' + rng.below(26) as u8,
        };
        let repeats = BLOCK_BYTES * usize::from(compressible_percent) / 100;
        let pool = (0..POOL_BYTES + size.max_bytes)
            .map(|at| if at % BLOCK_BYTES < repeats { b'x' } else { byte() })
            .collect();
        Ok(ValuePool { size, kind, pool })
    }

    /// The next value; `scratch` holds it if it must be put together.
    #[inline]
    pub fn next<'a>(&'a self, rng: &mut Rng, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let span = (self.size.max_bytes - self.size.min_bytes) as u64;
        let size = self.size.min_bytes + if span == 0 { 0 } else { rng.below(span + 1) as usize };
        let start = rng.below(POOL_BYTES as u64) as usize;
        match self.kind {
            ValueKind::Random => &self.pool[start..start + size],
            ValueKind::Json => {
                let size = size - JSON_HEAD.len() - JSON_TAIL.len();
                scratch.clear();
                scratch.extend_from_slice(JSON_HEAD);
                scratch.extend_from_slice(&self.pool[start..start + size]);
                scratch.extend_from_slice(JSON_TAIL);
                scratch
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(size: &str, kind: ValueKind) -> Vec<Vec<u8>> {
        let pool = ValuePool::new(size.parse().unwrap(), kind, 30, 1).unwrap();
        let mut rng = Rng::new(1, 0);
        let mut scratch = Vec::new();
        (0..200).map(|_| pool.next(&mut rng, &mut scratch).to_vec()).collect()
    }

    #[test]
    fn sizes_stay_in_their_range() {
        for kind in [ValueKind::Random, ValueKind::Json] {
            assert!(values("512", kind).iter().all(|v| v.len() == 512));
            let mixed = values("12:14", kind);
            assert!((12..=14).all(|size| mixed.iter().any(|v| v.len() == size)));
            assert!(mixed.iter().all(|v| (12..=14).contains(&v.len())));
        }
        assert!(values("0", ValueKind::Random).iter().all(Vec::is_empty));
    }

    #[test]
    fn json_values_are_json() {
        assert!(
            values("20:300", ValueKind::Json)
                .iter()
                .all(|v| serde_json::from_slice::<serde_json::Value>(v).is_ok())
        );
        assert!(ValuePool::new("5".parse().unwrap(), ValueKind::Json, 0, 0).is_err());
    }

    #[test]
    fn reads_the_command_line() {
        assert_eq!("64:1KiB".parse(), Ok(ValueSize { min_bytes: 64, max_bytes: 1024 }));
        for bad in ["", "x", "10:5", "21MiB", "1:2:3", ":", "5:"] {
            assert!(bad.parse::<ValueSize>().is_err(), "{bad}");
        }
    }
}
