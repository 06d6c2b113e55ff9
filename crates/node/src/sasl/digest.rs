//! The hash functions that SCRAM can run on.

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
}

/// The result of a hash function.
#[derive(Clone, Copy)]
pub struct Digest {
    bytes: [u8; 64],
    len: usize,
}

impl Digest {
    fn new(from: &[u8]) -> Digest {
        let mut bytes = [0; 64];
        bytes[..from.len()].copy_from_slice(from);
        Digest { bytes, len: from.len() }
    }

    /// One with these bytes, of which there must be at most 64.
    pub(super) fn of_bytes(bytes: &[u8]) -> Digest {
        Digest::new(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Each byte combined with the other's; both must be of the same mechanism.
    pub fn xor(&self, other: &Digest) -> Digest {
        assert_eq!(self.len, other.len, "digests of different mechanisms");
        let mut out = *self;
        for (byte, with) in out.bytes.iter_mut().zip(&other.bytes) {
            *byte ^= with;
        }
        out
    }
}

fn hmac_of<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    Digest::new(&mac.finalize().into_bytes())
}

impl Mechanism {
    /// All of them; a mechanism's number is its place here.
    pub const ALL: [Mechanism; 3] = [Mechanism::Sha1, Mechanism::Sha256, Mechanism::Sha512];

    /// Bytes of a digest.
    pub fn digest_bytes(self) -> usize {
        match self {
            Mechanism::Sha1 => 20,
            Mechanism::Sha256 => 32,
            Mechanism::Sha512 => 64,
        }
    }

    /// HMAC over the parts, one after the other.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        match self {
            Mechanism::Sha1 => hmac_of::<Hmac<Sha1>>(key, parts),
            Mechanism::Sha256 => hmac_of::<Hmac<Sha256>>(key, parts),
            Mechanism::Sha512 => hmac_of::<Hmac<Sha512>>(key, parts),
        }
    }

    /// The plain hash.
    pub fn hash(self, bytes: &[u8]) -> Digest {
        match self {
            Mechanism::Sha1 => Digest::new(&Sha1::digest(bytes)),
            Mechanism::Sha256 => Digest::new(&Sha256::digest(bytes)),
            Mechanism::Sha512 => Digest::new(&Sha512::digest(bytes)),
        }
    }

    /// PBKDF2 with this mechanism's HMAC.
    pub fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32) -> Digest {
        let mut out = [0; 64];
        let out = &mut out[..self.digest_bytes()];
        match self {
            Mechanism::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, out),
            Mechanism::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, out),
            Mechanism::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, out),
        }
        Digest::new(out)
    }
}
