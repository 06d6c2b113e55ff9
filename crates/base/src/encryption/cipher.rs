//! The cryptography of encrypted files: ciphers, the keys of a file, and wrapped data keys.

use std::fmt;

use ring::aead::{self, LessSafeKey, UnboundKey};
use ring::hkdf;

use crate::env::Random;

/// Bytes of a data key and of a wrapping key.
pub(super) const KEY_BYTES: usize = 32;
/// Bytes of an authentication tag.
pub(super) const TAG_BYTES: usize = 16;
/// Bytes of the random salt of a file.
pub(super) const SALT_BYTES: usize = 32;
/// Bytes of the random number that the key of an opening is derived from.
pub(super) const EPOCH_BYTES: usize = 16;
const NONCE_BYTES: usize = aead::NONCE_LEN;
/// What keys of pages are derived for, and for nothing else.
const PAGE_LABEL: &[u8] = b"stave page key 1";
/// The same of keys of pieces.
const PIECE_LABEL: &[u8] = b"stave piece key 1";

/// An AEAD with keys of 256 bits and tags of 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// AES where the processor has instructions for it, ChaCha20 elsewhere.
    pub fn fastest() -> Cipher {
        #[cfg(target_arch = "x86_64")]
        let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 }
    }

    pub(super) fn number(self) -> u32 {
        match self {
            Cipher::Aes256Gcm => 1,
            Cipher::ChaCha20Poly1305 => 2,
        }
    }

    pub(super) fn of_number(number: u32) -> Option<Cipher> {
        [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305].into_iter().find(|cipher| cipher.number() == number)
    }

    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// Names a data key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(super) [u8; 16]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// A secret of 32 bytes. It has no `Debug` that shows it.
pub(super) struct Secret(pub(super) [u8; KEY_BYTES]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from leaving the fill out.
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The key of one file: what the keys of its pages are derived from.
pub(super) struct FileKey {
    prk: hkdf::Prk,
    cipher: Cipher,
}

impl FileKey {
    /// HKDF-SHA-256, with the salt of the file and the data key.
    pub(super) fn derive(data_key: &Secret, salt: &[u8; SALT_BYTES], cipher: Cipher) -> FileKey {
        FileKey { prk: hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&data_key.0), cipher }
    }

    /// The key of the pages that were written in one opening of the file.
    pub(super) fn of_epoch(&self, epoch: &[u8; EPOCH_BYTES]) -> PageKey {
        self.expand(&[PAGE_LABEL, &epoch[..]])
    }

    /// The key of one piece, which has a random salt of its own.
    pub(super) fn of_piece(data_key: &Secret, salt: &[u8], cipher: Cipher) -> PageKey {
        let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&data_key.0);
        FileKey { prk, cipher }.expand(&[PIECE_LABEL])
    }

    fn expand(&self, info: &[&[u8]]) -> PageKey {
        let derived = self.prk.expand(info, self.cipher.algorithm()).map(UnboundKey::from);
        PageKey(LessSafeKey::new(derived.expect("the key is shorter than what HKDF can give")))
    }
}

/// Encrypts and decrypts pages.
pub(super) struct PageKey(LessSafeKey);

impl PageKey {
    /// Encrypts in place; a number must not be used twice. Returns the tag.
    pub(super) fn seal(&self, number: u32, bound: &[u8], content: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self.0.seal_in_place_separate_tag(nonce(number), aead::Aad::from(bound), content);
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.expect("a page is shorter than what the cipher takes").as_ref());
        bytes
    }

    /// Decrypts in place; false, and nothing usable in `content`, if anything was changed.
    pub(super) fn open(&self, number: u32, bound: &[u8], tag: [u8; TAG_BYTES], content: &mut [u8]) -> bool {
        let opened = self.0.open_in_place_separate_tag(
            nonce(number),
            aead::Aad::from(bound),
            tag.into(),
            content,
            0..,
        );
        opened.is_ok()
    }
}

fn nonce(number: u32) -> aead::Nonce {
    let mut bytes = [0; NONCE_BYTES];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    aead::Nonce::assume_unique_for_key(bytes)
}

/// Bytes of a wrapped data key: nonce, encrypted key, tag.
pub(super) const WRAPPED_BYTES: usize = NONCE_BYTES + KEY_BYTES + TAG_BYTES;

/// Wraps a data key with AES-256-GCM, under a random nonce, bound to the identifier of the data key.
pub(super) fn wrap(wrapping: &Secret, id: KeyId, key: &Secret, random: &dyn Random) -> [u8; WRAPPED_BYTES] {
    let mut wrapped = [0; WRAPPED_BYTES];
    random.fill(&mut wrapped[..NONCE_BYTES]);
    let (head, rest) = wrapped.split_at_mut(NONCE_BYTES);
    let (content, tag) = rest.split_at_mut(KEY_BYTES);
    content.copy_from_slice(&key.0);
    let nonce = aead::Nonce::try_assume_unique_for_key(head).expect("it has the length of a nonce");
    let sealed = wrapping_key(wrapping).seal_in_place_separate_tag(nonce, aead::Aad::from(id.0), content);
    tag.copy_from_slice(sealed.expect("a key is short").as_ref());
    wrapped
}

/// `None` if this is another wrapping key, or anything was changed.
pub(super) fn unwrap(wrapping: &Secret, id: KeyId, wrapped: &[u8; WRAPPED_BYTES]) -> Option<Secret> {
    let nonce = aead::Nonce::try_assume_unique_for_key(&wrapped[..NONCE_BYTES]).ok()?;
    let mut content = wrapped[NONCE_BYTES..].to_vec();
    let opened = wrapping_key(wrapping).open_in_place(nonce, aead::Aad::from(id.0), &mut content);
    let key = opened.ok().and_then(|key| <[u8; KEY_BYTES]>::try_from(&*key).ok()).map(Secret);
    content.fill(0);
    key
}

fn wrapping_key(secret: &Secret) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&aead::AES_256_GCM, &secret.0).expect("it has the length of a key"))
}

/// An identifier of a secret that gives nothing of it away.
pub(super) fn fingerprint(secret: &Secret) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret.0);
    hex(&ring::hmac::sign(&key, b"stave wrapping key 1").as_ref()[..8])
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
