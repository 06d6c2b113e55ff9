//! Pieces of bytes that are encrypted one by one, for files that are no pages: objects of a store, and files that grow by
//! short appends (docs/encryption_format.md, record 0176).
//!
//! # Guarantees
//!
//! - A piece that was changed, or that is read as another one, is refused; it is never opened as another content.
//! - Each piece has a key of its own, derived from a data key and 128 random bits: no key encrypts twice.

use std::sync::Arc;

use super::cipher::{Cipher, FileKey, KeyId, PageKey, TAG_BYTES};
use super::keys::{DataKey, DataKeys};
use crate::env::{Env, Random};

const VERSION: u8 = 1;
/// Bytes of the random number that a piece's key is derived from.
pub(super) const PIECE_SALT_BYTES: usize = 16;
/// Version, cipher, two zeros, data key, salt.
const PREFIX_BYTES: usize = 4 + 16 + PIECE_SALT_BYTES;

/// Why a piece cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealFault {
    /// Its data key is not known.
    #[error("it is encrypted with the key {0}, which the file encryption-keys of its folder does not have")]
    UnknownKey(KeyId),
    /// Another version, or something else, wrote it.
    #[error("it is not encrypted in a form that this version knows")]
    UnknownForm,
    /// It is not what was written there.
    #[error("it was changed after it was encrypted, or belongs elsewhere")]
    Changed,
}

/// Encrypts and decrypts pieces. Clones have the same keys.
#[derive(Clone)]
pub struct Sealer {
    keys: DataKeys,
    active: Arc<DataKey>,
    random: Arc<dyn Random>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sealer").field(&self.active.id).finish()
    }
}

impl Sealer {
    /// With the keys of a folder; `None` if none of them is active.
    pub fn new(env: &Env, keys: &DataKeys) -> Option<Sealer> {
        let active = keys.active_key()?;
        Some(Sealer { keys: keys.clone(), active, random: Arc::clone(&env.random) })
    }

    /// Appends `content` to `out`, encrypted and bound to `bound`: what the piece is, and where it belongs.
    pub fn seal(&self, bound: &[u8], content: &[u8], out: &mut Vec<u8>) {
        let cipher = Cipher::fastest();
        let mut salt = [0; PIECE_SALT_BYTES];
        self.random.fill(&mut salt);
        let begin = out.len();
        out.extend_from_slice(&[VERSION, cipher.number() as u8, 0, 0]);
        out.extend_from_slice(&self.active.id.0);
        out.extend_from_slice(&salt);
        let bound = [&out[begin..], bound].concat();
        let at = out.len();
        out.extend_from_slice(content);
        let tag = piece_key(&self.active, &salt, cipher).seal(0, &bound, &mut out[at..]);
        out.extend_from_slice(&tag);
    }

    /// The content of a piece.
    ///
    /// # Errors
    ///
    /// It is not a piece that was sealed with one of the keys and the same `bound`.
    pub fn open(&self, bound: &[u8], piece: &[u8]) -> Result<Vec<u8>, SealFault> {
        let (prefix, rest) = piece.split_at_checked(PREFIX_BYTES).ok_or(SealFault::UnknownForm)?;
        let (content, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(SealFault::UnknownForm)?;
        let (form, ids) = prefix.split_first_chunk::<4>().ok_or(SealFault::UnknownForm)?;
        let cipher = Cipher::of_number(u32::from(form[1])).ok_or(SealFault::UnknownForm)?;
        if *form != [VERSION, form[1], 0, 0] {
            return Err(SealFault::UnknownForm);
        }
        let (id, salt) = ids.split_first_chunk::<16>().ok_or(SealFault::UnknownForm)?;
        let salt = salt.try_into().map_err(|_| SealFault::UnknownForm)?;
        let key = self.keys.get(KeyId(*id)).ok_or(SealFault::UnknownKey(KeyId(*id)))?;
        let (bound, mut content) = ([prefix, bound].concat(), content.to_vec());
        if piece_key(&key, &salt, cipher).open(0, &bound, *tag, &mut content) {
            Ok(content)
        } else {
            Err(SealFault::Changed)
        }
    }
}

fn piece_key(key: &DataKey, salt: &[u8; PIECE_SALT_BYTES], cipher: Cipher) -> PageKey {
    FileKey::of_piece(&key.secret, salt, cipher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_opened_where_it_belongs_and_as_it_was_written() {
        let (env, _) = Env::sim(1);
        let keys = DataKeys::ephemeral(&env);
        let sealer = Sealer::new(&env, &keys).expect("there is a key");
        for content in [&b""[..], b"a known document body"] {
            let (mut piece, mut other) = (Vec::new(), Vec::new());
            sealer.seal(b"here", content, &mut piece);
            sealer.seal(b"here", content, &mut other);
            assert_ne!(piece, other, "each has a key of its own");
            assert!(content.is_empty() || !piece.windows(5).any(|part| part == &content[..5]));
            assert_eq!(sealer.open(b"here", &piece).as_deref(), Ok(content));
            assert_eq!(sealer.open(b"there", &piece), Err(SealFault::Changed));
            for at in 0..piece.len() {
                piece[at] ^= 1 << (at % 8);
                assert!(sealer.open(b"here", &piece).is_err(), "at {at}");
                piece[at] ^= 1 << (at % 8);
                assert!(sealer.open(b"here", &piece[..at]).is_err(), "cut at {at}");
            }
            let stranger = Sealer::new(&env, &DataKeys::ephemeral(&env)).expect("there is a key");
            let said = stranger.open(b"here", &piece).expect_err("another key").to_string();
            assert!(said.contains(&sealer.active.id.to_string()), "{said}");
        }
        assert!(Sealer::new(&env, &DataKeys::default()).is_none());
    }
}
