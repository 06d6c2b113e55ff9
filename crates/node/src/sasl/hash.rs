//! What a password is checked with that comes as it is: a hash that takes memory (Argon2id, RFC 9106), so that who steals
//! it guesses slowly.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::scram;

/// Bounds of what is configured, and of what is believed of a file.
pub const MEMORY_KIB: std::ops::RangeInclusive<u32> = 1 << 10..=256 << 10;
/// The same of the passes over the memory.
pub const PASSES: std::ops::RangeInclusive<u32> = 1..=100;
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// How much work checking a password is, for passwords that are set from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashing {
    /// How often SCRAM hashes.
    pub scram_iterations: u32,
    /// The memory of a hash.
    pub memory_kib: u32,
    /// How often that memory is gone through.
    pub passes: u32,
}

impl Hashing {
    /// The memory that a hash takes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_kib as usize * Block::SIZE
    }
}

impl Default for Hashing {
    fn default() -> Hashing {
        Hashing { scram_iterations: scram::ITERATIONS, memory_kib: 12 << 10, passes: 3 }
    }
}

#[cfg(test)]
impl Hashing {
    /// The least work that there is.
    pub(crate) const CHEAP: Hashing =
        Hashing { scram_iterations: 1, memory_kib: *MEMORY_KIB.start(), passes: 1 };
}

/// The hash of a password, with what is needed to make it again.
#[derive(Clone, PartialEq, Eq)]
pub struct HashKeys {
    salt: [u8; SALT_BYTES],
    memory_kib: u32,
    passes: u32,
    hash: [u8; HASH_BYTES],
}

impl HashKeys {
    /// Hashes a password. It takes milliseconds, and [`HashKeys::memory_bytes`].
    pub fn derive(password: &[u8], salt: [u8; SALT_BYTES], hashing: Hashing) -> HashKeys {
        let Hashing { memory_kib, passes, .. } = hashing;
        HashKeys { salt, memory_kib, passes, hash: hash(password, &salt, memory_kib, passes) }
    }

    /// One that no password has, for users who do not exist.
    pub fn decoy(noise: [u8; HASH_BYTES], hashing: Hashing) -> HashKeys {
        let Hashing { memory_kib, passes, .. } = hashing;
        HashKeys { salt: [0; SALT_BYTES], memory_kib, passes, hash: noise }
    }

    /// Whether it is of this password, at the cost of hashing that.
    pub fn is_of(&self, password: &[u8]) -> bool {
        hash(password, &self.salt, self.memory_kib, self.passes).ct_eq(&self.hash).into()
    }

    /// The memory that hashing takes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_kib as usize * Block::SIZE
    }

    /// As it is kept.
    pub fn to_secret(&self) -> HashSecret {
        HashSecret {
            algorithm: HashName::Argon2id,
            salt: STANDARD.encode(self.salt),
            memory_kib: self.memory_kib,
            passes: self.passes,
            hash: STANDARD.encode(self.hash),
        }
    }
}

fn hash(password: &[u8], salt: &[u8], memory_kib: u32, passes: u32) -> [u8; HASH_BYTES] {
    let params =
        Params::new(memory_kib, passes, 1, Some(HASH_BYTES)).expect("parameters within their bounds");
    let mut out = [0; HASH_BYTES];
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(password, salt, &mut out).expect("a salt of 16 bytes, a password of a frame");
    out
}

/// The algorithms of hashes that are kept.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum HashName {
    #[serde(rename = "argon2id")]
    Argon2id,
}

/// What is kept of a hash: bytes in Base64.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashSecret {
    algorithm: HashName,
    salt: String,
    memory_kib: u32,
    passes: u32,
    hash: String,
}

impl HashSecret {
    /// What a password is checked with; `None` if this is not such.
    pub fn keys(&self) -> Option<HashKeys> {
        if !MEMORY_KIB.contains(&self.memory_kib) || !PASSES.contains(&self.passes) {
            return None;
        }
        Some(HashKeys {
            salt: STANDARD.decode(&self.salt).ok()?.try_into().ok()?,
            memory_kib: self.memory_kib,
            passes: self.passes,
            hash: STANDARD.decode(&self.hash).ok()?.try_into().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_knows_its_password_when_it_is_read_again() {
        let keys = HashKeys::derive(b"secret-1", [7; 16], Hashing::CHEAP);
        let text = serde_json::to_string(&keys.to_secret()).expect("texts and numbers");
        let secret: HashSecret = serde_json::from_str(&text).expect("the same");
        let read = secret.keys().expect("sound");
        assert!(read == keys && read.is_of(b"secret-1") && !read.is_of(b"secret-2") && !read.is_of(b""));
        assert_eq!(read.memory_bytes(), 1 << 20);
        assert!(!text.contains("secret-1"), "{text}");
    }

    #[test]
    fn hashes_depend_on_all_that_is_kept() {
        let with = |salt, memory_kib, passes| {
            HashKeys::derive(b"p", salt, Hashing { scram_iterations: 1, memory_kib, passes }).hash
        };
        let first = with([1; 16], 1 << 10, 1);
        for other in [with([2; 16], 1 << 10, 1), with([1; 16], 2 << 10, 1), with([1; 16], 1 << 10, 2)] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn secrets_that_would_take_too_much_are_not_believed() {
        let secret = HashKeys::derive(b"p", [0; 16], Hashing::CHEAP).to_secret();
        for wrong in [
            HashSecret { memory_kib: 1 << 30, ..secret.clone() },
            HashSecret { passes: 1_000, ..secret.clone() },
            HashSecret { memory_kib: 0, ..secret.clone() },
            HashSecret { salt: "AAAA".to_owned(), ..secret.clone() },
            HashSecret { hash: "x".to_owned(), ..secret },
        ] {
            assert!(wrong.keys().is_none());
        }
    }
}
