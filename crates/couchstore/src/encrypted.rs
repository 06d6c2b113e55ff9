//! Encrypted files of the original, version 14: they are read if their key is given, and never written
//! (couchstore file_format.md, "Encrypted Data Chunks" and "Metadata Header").
//!
//! The first block of such a file says which key the key of the file is made of, and how. With the key of the file each
//! chunk is encrypted for itself: AES-256-GCM, nothing bound to it, the nonce is its offset as a big-endian number.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

/// First byte of the first block of a file with a metadata header.
pub(crate) const METADATA_BLOCK: u8 = 2;
/// Bytes of a tag behind each body.
pub(crate) const TAG: usize = 16;
/// Bytes of the length in front of each body.
pub(crate) const LENGTH: usize = 4;
/// Bytes of a key.
const KEY: usize = 32;
/// What keys of files are derived for, and for nothing else.
const LABEL: &[u8] = b"FileKey";
/// The text in front of the context in the derivation.
const CONTEXT_PREFIX: &[u8] = b"couchstore/";

/// Keys by their identifiers, of which the keys of files are made.
#[derive(Clone, Default)]
pub struct OriginalKeys(BTreeMap<String, [u8; KEY]>);

impl OriginalKeys {
    /// Adds a key for AES-256-GCM; of two with one identifier the later one counts.
    pub fn insert(&mut self, id: String, key: [u8; KEY]) {
        self.0.insert(id, key);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for OriginalKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What a file is read with: the keys that were given, and its cipher once its metadata header was read.
#[derive(Clone, Default)]
pub(crate) struct Encryption {
    keys: Arc<OriginalKeys>,
    cipher: Option<Arc<LessSafeKey>>,
}

impl Encryption {
    pub(crate) fn with(keys: &OriginalKeys) -> Encryption {
        Encryption { keys: Arc::new(keys.clone()), cipher: None }
    }

    /// Whether chunks are decrypted.
    pub(crate) fn is_on(&self) -> bool {
        self.cipher.is_some()
    }

    /// Decrypts the body of a chunk, its tag behind it, in place; `None` if anything was changed. `place` is where the chunk
    /// begins, behind the first byte of a block if it begins with one.
    pub(crate) fn decrypt<'b>(&self, place: u64, body: &'b mut [u8]) -> Option<&'b [u8]> {
        let cipher = self.cipher.as_ref()?;
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&place.to_be_bytes());
        let opened = cipher.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::empty(), body);
        opened.ok().map(|body| &*body)
    }

    /// Gets the key of the file ready that begins with `block`, if its metadata header names one.
    pub(crate) fn unlock(&mut self, block: &[u8]) -> Result<(), Locked> {
        let metadata = Metadata::decode(block).ok_or(Locked::Damaged("the metadata header is damaged"))?;
        if metadata.key_id.is_empty() {
            // Made while encryption was off.
            return Ok(());
        }
        let key_id = String::from_utf8_lossy(metadata.key_id).into_owned();
        let Some(key) = self.keys.0.get(&key_id) else { return Err(Locked::KeyNotGiven(key_id)) };
        let key = match metadata.version {
            0 => unwrap(key, &metadata).ok_or(Locked::Damaged(WRONG_KEY))?,
            1 => derive(key, metadata.context),
            _ => return Err(Locked::Damaged("the metadata header has an unknown version")),
        };
        self.cipher = Some(Arc::new(cipher_of(&key)));
        Ok(())
    }
}

const WRONG_KEY: &str = "the key of the file does not open with the key that was given for it";

/// Why a file cannot be decrypted.
pub(crate) enum Locked {
    /// What does not hold.
    Damaged(&'static str),
    /// The key with this identifier was not given.
    KeyNotGiven(String),
}

/// Whether a block has a metadata header.
pub(crate) fn is_metadata(block: &[u8]) -> bool {
    Metadata::decode(block).is_some()
}

/// Where the key of a file comes from.
struct Metadata<'b> {
    version: u8,
    key_id: &'b [u8],
    context: &'b [u8],
}

impl Metadata<'_> {
    fn decode(block: &[u8]) -> Option<Metadata<'_>> {
        let (&mark, rest) = block.split_first()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        // As with headers, the length includes the checksum.
        let body = rest.get(..(u32::from_be_bytes(*length) as usize).checked_sub(crc.len())?)?;
        if mark != METADATA_BLOCK || crc32c::crc32c(body) != u32::from_be_bytes(*crc) {
            return None;
        }
        let (&version, rest) = body.split_first()?;
        let (key_id, rest) = short(rest)?;
        let (context, _) = short(rest)?;
        Some(Metadata { version, key_id, context })
    }
}

/// Bytes behind their number, which is one byte, and what follows them.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(len))
}

fn cipher_of(key: &[u8; KEY]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key);
    LessSafeKey::new(key.expect("the length of a key is that of the cipher"))
}

/// Metadata version 0: the key of the file, encrypted, with its nonce in front, and the identifier bound to it.
fn unwrap(key: &[u8; KEY], metadata: &Metadata<'_>) -> Option<[u8; KEY]> {
    let (nonce, wrapped) = metadata.context.split_first_chunk::<NONCE_LEN>()?;
    let mut wrapped = wrapped.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = cipher_of(key).open_in_place(nonce, Aad::from(metadata.key_id), &mut wrapped);
    opened.ok()?.try_into().ok().map(|key: &mut [u8; KEY]| *key)
}

/// Metadata version 1: KBKDF in counter mode with HMAC-SHA-256 (NIST SP 800-108, section 4.1). A key is as long as what
/// the function gives, so that one round does.
fn derive(key: &[u8; KEY], context: &[u8]) -> [u8; KEY] {
    let mut round = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    round.update(&1u32.to_be_bytes());
    for part in [LABEL, &[0], CONTEXT_PREFIX, context] {
        round.update(part);
    }
    round.update(&(KEY as u32 * 8).to_be_bytes());
    let mut derived = [0; KEY];
    derived.copy_from_slice(round.sign().as_ref());
    derived
}

#[cfg(test)]
mod tests;
