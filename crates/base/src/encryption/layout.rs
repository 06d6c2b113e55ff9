//! Where things stand in an encrypted file: a head, then pages, each behind what is needed to decrypt it.

use std::io;

use super::cipher::{Cipher, EPOCH_BYTES, KeyId, SALT_BYTES, TAG_BYTES};
use crate::env::{File, Random};

/// Bytes of content in a page; as many as couchstore and the journal have in a block.
pub(super) const PAGE: u64 = 4096;
/// Bytes in front of a page's content.
pub(super) const PREFIX: usize = EPOCH_BYTES + 4 + 4 + TAG_BYTES;
/// Bytes of a whole page in the file.
pub(super) const STRIDE: u64 = PAGE + PREFIX as u64;
/// Bytes of the head.
pub(super) const HEAD: u64 = 4096;

const MAGIC: &[u8; 8] = b"StaveEnc";
pub(super) const VERSION: u32 = 1;
/// Bytes of one copy of the head.
const HEAD_BYTES: usize = 8 + 4 + 4 + 16 + SALT_BYTES + 4;
/// Where the second copy stands.
const SECOND: usize = 2048;

/// Where a byte of the content stands in the file; at the end of a page, where the next one begins.
pub(super) fn stored_len(content: u64) -> u64 {
    let rest = content % PAGE;
    HEAD + content / PAGE * STRIDE + if rest > 0 { PREFIX as u64 + rest } else { 0 }
}

/// How much content a file of so many bytes has.
pub(super) fn content_len(stored: u64) -> u64 {
    let pages = stored.saturating_sub(HEAD);
    pages / STRIDE * PAGE + (pages % STRIDE).saturating_sub(PREFIX as u64)
}

/// Where a page begins in the file.
pub(super) fn page_start(page: u64) -> u64 {
    HEAD + page * STRIDE
}

/// What a file begins with, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHead {
    pub(super) cipher: Cipher,
    /// The data key.
    pub(super) key: KeyId,
    /// Random: no two files have the same key.
    pub(super) salt: [u8; SALT_BYTES],
}

impl FileHead {
    pub(super) fn new(key: KeyId, random: &dyn Random) -> FileHead {
        let mut salt = [0; SALT_BYTES];
        random.fill(&mut salt);
        FileHead { cipher: Cipher::fastest(), key, salt }
    }

    pub(super) fn encode(&self) -> [u8; HEAD as usize] {
        let mut one = Vec::with_capacity(HEAD_BYTES);
        one.extend_from_slice(MAGIC);
        one.extend_from_slice(&VERSION.to_le_bytes());
        one.extend_from_slice(&self.cipher.number().to_le_bytes());
        one.extend_from_slice(&self.key.0);
        one.extend_from_slice(&self.salt);
        one.extend_from_slice(&crc32c::crc32c(&one).to_le_bytes());
        let mut block = [0; HEAD as usize];
        block[..HEAD_BYTES].copy_from_slice(&one);
        block[SECOND..SECOND + HEAD_BYTES].copy_from_slice(&one);
        block
    }

    /// The head of a file; `None` if the file is not encrypted.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or if it is of a version or has a cipher that is not known here.
    pub(super) fn read(file: &dyn File) -> io::Result<Option<FileHead>> {
        let mut block = [0; HEAD as usize];
        let read = file.read_at(&mut block, 0)?;
        if read < HEAD as usize {
            return Ok(None);
        }
        match FileHead::decode(&block[..HEAD_BYTES])? {
            None => FileHead::decode(&block[SECOND..SECOND + HEAD_BYTES]),
            found => Ok(found),
        }
    }

    /// Whether a file without a head begins as one with a head does.
    pub(super) fn is_begun(file: &dyn File) -> io::Result<bool> {
        let mut first = [0; MAGIC.len()];
        let read = file.read_at(&mut first, 0)?;
        let mut second = [0; MAGIC.len()];
        let read_second = file.read_at(&mut second, SECOND as u64)?;
        Ok(MAGIC.starts_with(&first[..read]) || (read_second == MAGIC.len() && second == *MAGIC))
    }

    fn decode(bytes: &[u8]) -> io::Result<Option<FileHead>> {
        let (body, crc) = bytes.split_at(HEAD_BYTES - 4);
        if !body.starts_with(MAGIC) || crc32c::crc32c(body).to_le_bytes() != crc {
            return Ok(None);
        }
        let number =
            |at: usize| body[at..at + 4].iter().rev().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
        let (mut key, mut salt) = ([0; 16], [0; SALT_BYTES]);
        key.copy_from_slice(&body[16..32]);
        salt.copy_from_slice(&body[32..]);
        let (version, cipher) = (number(8), number(12));
        match Cipher::of_number(cipher) {
            Some(cipher) if version == VERSION => Ok(Some(FileHead { cipher, key: KeyId(key), salt })),
            _ => Err(io::Error::other(format!(
                "it is encrypted in format {version} with cipher {cipher}, which this version cannot read: use a newer one"
            ))),
        }
    }
}

/// What stands in front of a page's content.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageHead {
    /// Random in each opening of the file.
    pub(super) epoch: [u8; EPOCH_BYTES],
    /// Counts the pages that were written since.
    pub(super) number: u32,
    /// Bytes of content; those behind them are zeros.
    pub(super) len: u32,
    pub(super) tag: [u8; TAG_BYTES],
}

impl PageHead {
    pub(super) fn encode(&self) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        bytes[..16].copy_from_slice(&self.epoch);
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.tag);
        bytes
    }

    /// `None` of a page that was never written.
    pub(super) fn decode(bytes: &[u8]) -> Option<PageHead> {
        let bytes: &[u8; PREFIX] = bytes.try_into().ok()?;
        let (mut epoch, mut tag) = ([0; EPOCH_BYTES], [0; TAG_BYTES]);
        epoch.copy_from_slice(&bytes[..16]);
        tag.copy_from_slice(&bytes[24..]);
        let number =
            |at: usize| bytes[at..at + 4].iter().rev().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
        let head = PageHead { epoch, number: number(16), len: number(20), tag };
        (epoch != [0; EPOCH_BYTES] && u64::from(head.len) <= PAGE).then_some(head)
    }
}

/// What a page is bound to: its place in the file, and how much of it is content. The file is in the key.
pub(super) fn bound(page: u64, len: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes[8..].copy_from_slice(&len.to_le_bytes());
    bytes
}
