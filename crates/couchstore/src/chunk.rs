//! Reading chunks: length, checksum and body, with the first byte of each block skipped
//! (couchstore file_format.md, "File Blocks" and "Data Chunks").

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use base::env::File;

use crate::encrypted::{self, Encryption, Locked};
use crate::failure::Failure;
use crate::pieces::Pieces;
use crate::snappy;
use crate::window::Window;

/// Bytes of a block; the first one tells data from header.
pub(crate) const BLOCK: u64 = 4096;
/// First byte of a block that holds data.
pub(crate) const DATA_BLOCK: u8 = 0;
/// First byte of a block that starts with a header.
pub(crate) const HEADER_BLOCK: u8 = 1;
/// Bytes of length and checksum in front of each body.
pub(crate) const CHUNK_PREFIX: usize = 8;
/// The highest bit of a data chunk's length.
pub(crate) const LENGTH_MARK: u32 = 0x8000_0000;
/// Longest body that is read: above any document with its xattrs.
pub(crate) const MAX_BODY_BYTES: usize = 128 << 20;

const WRONG_CHECKSUM: &str = "a checksum does not match";
const WRONG_TAG: &str = "a chunk was changed, or the key is another one: its tag does not match";

/// Which checksum a file uses: that of zlib up to version 11, Castagnoli since 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Crc32,
    Crc32c,
}

impl Checksum {
    pub(crate) fn of_version(version: u8) -> Checksum {
        if version <= 11 { Checksum::Crc32 } else { Checksum::Crc32c }
    }

    pub(crate) fn of(self, bytes: &[u8]) -> u32 {
        self.extend(0, bytes)
    }

    /// The checksum of what `before` is the checksum of, followed by `bytes`.
    pub(crate) fn extend(self, before: u32, bytes: &[u8]) -> u32 {
        match self {
            Checksum::Crc32 => {
                let mut hasher = crc32fast::Hasher::new_with_initial(before);
                hasher.update(bytes);
                hasher.finalize()
            }
            Checksum::Crc32c => crc32c::crc32c_append(before, bytes),
        }
    }
}

/// Bytes of the file that `len` bytes of content take when they start at `offset`.
pub(crate) fn span(offset: u64, len: u64) -> u64 {
    let within = offset % BLOCK;
    let (first, room) = if within == 0 { (1, BLOCK - 1) } else { (0, BLOCK - within) };
    if len <= room { first + len } else { first + len + (len - room).div_ceil(BLOCK - 1) }
}

/// Drops the first byte of each block from `raw[from..]`, whose first byte lies at `offset` in the file.
fn strip_block_bytes(raw: &mut Vec<u8>, from: usize, offset: u64) {
    let mut read = from;
    let mut write = from;
    let mut at = offset;
    while read < raw.len() {
        if at.is_multiple_of(BLOCK) {
            read += 1;
            at += 1;
        }
        let n = ((BLOCK - at % BLOCK) as usize).min(raw.len().saturating_sub(read));
        if read != write {
            raw.copy_within(read..read + n, write);
        }
        read += n;
        write += n;
        at += n as u64;
    }
    raw.truncate(write);
}

/// Whether `len` bytes of content that start at `offset` have no first byte of a block among them.
pub(crate) fn is_in_one_block(offset: u64, len: usize) -> bool {
    let within = offset % BLOCK;
    within != 0 && len as u64 <= BLOCK - within
}

/// Appends `raw`, whose first byte lies at `offset` in the file, to `out` without the first byte of each block.
pub(crate) fn strip_into(mut raw: &[u8], offset: u64, out: &mut Vec<u8>) {
    let mut at = offset;
    while !raw.is_empty() {
        if at.is_multiple_of(BLOCK) {
            (raw, at) = (&raw[1..], at + 1);
        }
        let (part, rest) = raw.split_at(raw.len().min((BLOCK - at % BLOCK) as usize));
        out.extend_from_slice(part);
        (raw, at) = (rest, at + part.len() as u64);
    }
}

/// A file to read chunks from.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: Arc<Path>,
    pub(crate) checksum: Checksum,
    pub(crate) encryption: Encryption,
}

impl Source {
    /// Reads the metadata header, which a header said to be there, and gets the key of the file ready.
    ///
    /// # Errors
    ///
    /// If the key was not given or is another one, or the metadata header is damaged.
    pub(crate) fn unlock(&mut self) -> Result<(), Failure> {
        if self.encryption.is_on() {
            return Ok(());
        }
        let mut block = vec![0; BLOCK as usize];
        let read = self.read_raw(&mut block, 0)?;
        self.encryption.unlock(&block[..read]).map_err(|locked| match locked {
            Locked::Damaged(what) => self.damaged(0, what),
            Locked::KeyNotGiven(key_id) => Failure::Encrypted { path: self.path.clone(), key_id },
        })
    }

    /// Bytes in front of the body of each chunk.
    pub(crate) fn prefix(&self) -> usize {
        if self.encryption.is_on() { encrypted::LENGTH } else { CHUNK_PREFIX }
    }

    /// Bytes of a chunk beside its body.
    pub(crate) fn overhead(&self) -> usize {
        if self.encryption.is_on() { encrypted::LENGTH + encrypted::TAG } else { CHUNK_PREFIX }
    }

    /// The body of the chunk at `offset`, of which `chunk` is all, without the first byte of each block.
    pub(crate) fn body_of<'b>(&self, offset: u64, chunk: &'b mut [u8]) -> Result<&'b [u8], Failure> {
        if self.encryption.is_on() {
            let body = chunk.get_mut(encrypted::LENGTH..).unwrap_or_default();
            // A chunk at the start of a block may be said to be right behind the block's first byte.
            let place = offset + u64::from(offset.is_multiple_of(BLOCK));
            return self.encryption.decrypt(place, body).ok_or_else(|| self.damaged(offset, WRONG_TAG));
        }
        self.plain_body_of(offset, chunk)
    }

    /// The same of a file that is not encrypted.
    pub(crate) fn plain_body_of<'b>(&self, offset: u64, chunk: &'b [u8]) -> Result<&'b [u8], Failure> {
        let Some((_, crc)) = chunk_prefix(chunk) else {
            return Err(self.damaged(offset, "the file ends within a chunk"));
        };
        let body = &chunk[CHUNK_PREFIX..];
        if self.checksum.of(body) == crc { Ok(body) } else { Err(self.damaged(offset, WRONG_CHECKSUM)) }
    }

    /// Bytes of the chunk at `offset` that begins with `length`, which must be what the file's chunks begin with.
    pub(crate) fn chunk_bytes(&self, offset: u64, length: u32) -> Result<usize, Failure> {
        let is_marked = length & LENGTH_MARK != 0;
        let content = (length & !LENGTH_MARK) as usize;
        match self.encryption.is_on() {
            true if !is_marked && content >= encrypted::TAG => Ok(encrypted::LENGTH + content),
            false if is_marked => Ok(CHUNK_PREFIX + content),
            _ => Err(self.damaged(offset, "no chunk starts here")),
        }
    }

    pub(crate) fn damaged(&self, offset: u64, what: &'static str) -> Failure {
        Failure::Damaged { path: self.path.clone(), offset, what }
    }

    /// Appends `len` raw bytes from `offset` to `out`, or fewer at the end of the file.
    pub(crate) fn append_raw(&self, out: &mut Vec<u8>, offset: u64, len: usize) -> Result<usize, Failure> {
        let from = out.len();
        out.resize(from + len, 0);
        let n = self.read_raw(&mut out[from..], offset)?;
        out.truncate(from + n);
        Ok(n)
    }

    pub(crate) fn read_raw(&self, buf: &mut [u8], offset: u64) -> Result<usize, Failure> {
        self.file.read_at(buf, offset).map_err(|source| Failure::Io {
            operation: "read",
            path: self.path.clone(),
            offset,
            source,
        })
    }

    /// The same where only the blocks are wanted that `is_wanted` says, by a range of the file.
    pub(crate) fn read_raw_parts(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_wanted: &dyn Fn(Range<u64>) -> bool,
    ) -> Result<usize, Failure> {
        self.file.read_parts_at(buf, offset, is_wanted).map_err(|source| Failure::Io {
            operation: "read",
            path: self.path.clone(),
            offset,
            source,
        })
    }

    /// Reads the chunk at `offset`, which must end at or before `limit`, into `buf` and returns its body.
    /// `hint` is the body's likely length: a good one makes this a single read.
    pub(crate) fn read_chunk<'b>(
        &self,
        offset: u64,
        hint: usize,
        limit: u64,
        buf: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Failure> {
        self.read_chunk_with(offset, hint, limit, buf, |buf, offset, len| self.append_raw(buf, offset, len))
    }

    /// The same with raw bytes that come through `window`.
    pub(crate) fn read_chunk_ahead<'b>(
        &self,
        offset: u64,
        hint: usize,
        limit: u64,
        buf: &'b mut Vec<u8>,
        window: &mut Window,
    ) -> Result<&'b [u8], Failure> {
        let read = |buf: &mut Vec<u8>, offset, len| window.read(self, buf, offset, len, limit);
        self.read_chunk_with(offset, hint, limit, buf, read)
    }

    /// The same with raw bytes that come through `pieces`.
    pub(crate) fn read_chunk_in_pieces<'b>(
        &self,
        offset: u64,
        hint: usize,
        limit: u64,
        buf: &'b mut Vec<u8>,
        pieces: &mut Pieces,
    ) -> Result<&'b [u8], Failure> {
        let read = |buf: &mut Vec<u8>, offset, len| pieces.read(self, buf, offset, len, limit);
        self.read_chunk_with(offset, hint, limit, buf, read)
    }

    /// `read` appends raw bytes from an offset to the buffer, as many as it is told or fewer at the end of the file,
    /// and returns how many.
    fn read_chunk_with<'b>(
        &self,
        offset: u64,
        hint: usize,
        limit: u64,
        buf: &'b mut Vec<u8>,
        mut read: impl FnMut(&mut Vec<u8>, u64, usize) -> Result<usize, Failure>,
    ) -> Result<&'b [u8], Failure> {
        // appends `content` bytes of the file's content or fewer; returns the offset behind what was read
        let mut read_content = |buf: &mut Vec<u8>, offset: u64, content: usize| -> Result<u64, Failure> {
            let from = buf.len();
            let n = read(buf, offset, span(offset, content as u64) as usize)?;
            strip_block_bytes(buf, from, offset);
            Ok(offset + n as u64)
        };
        buf.clear();
        if offset == 0 || offset >= limit {
            return Err(self.damaged(offset, "a chunk is said to lie outside the file"));
        }
        let hint = hint.min((limit - offset) as usize);
        let end = read_content(buf, offset, self.overhead() + hint)?;
        let Some((length, _)) = buf.split_first_chunk::<4>() else {
            return Err(self.damaged(offset, "the file ends within a chunk"));
        };
        let content = self.chunk_bytes(offset, u32::from_be_bytes(*length))?;
        if content > MAX_BODY_BYTES + self.overhead() || offset + span(offset, content as u64) > limit {
            return Err(self.damaged(offset, "a chunk is longer than the file"));
        }
        if buf.len() < content {
            let missing = content - buf.len();
            read_content(buf, end, missing)?;
        }
        let Some(chunk) = buf.get_mut(..content) else {
            return Err(self.damaged(offset, "the file ends within a chunk"));
        };
        self.body_of(offset, chunk)
    }
}

/// Length field and checksum at the start of a chunk.
pub(crate) fn chunk_prefix(bytes: &[u8]) -> Option<(u32, u32)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, _) = rest.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*length), u32::from_be_bytes(*crc)))
}

/// The content of a Snappy block that is a single literal, as most nodes are: nothing to inflate.
pub(crate) fn literal(block: &[u8]) -> Option<&[u8]> {
    let (len, used) = base::leb128::decode_leb128(block)?;
    let (&tag, rest) = block.get(used..)?.split_first()?;
    // Snappy format description, "Literals": up to 60 bytes their length is in the tag, from there on in 1 to 4 bytes
    let (literal, extra) = match tag {
        _ if tag & 3 != 0 => return None,
        0..0xf0 => (u64::from(tag >> 2), 0),
        _ => {
            let extra = usize::from(tag >> 2) - 59;
            let bytes = rest.get(..extra)?;
            (bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)), extra)
        }
    };
    let content = &rest[extra..];
    (literal + 1 == u64::from(len) && content.len() as u64 == u64::from(len)).then_some(content)
}

/// Inflates a body after checking that its declared length is possible at all.
pub(crate) fn inflate(block: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    snappy::inflate(block, MAX_BODY_BYTES, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_counts_a_byte_for_each_block_start() {
        assert_eq!(span(0, 1), 2);
        assert_eq!(span(1, 4095), 4095);
        assert_eq!(span(1, 4096), 4097);
        assert_eq!(span(4095, 2), 3);
        assert_eq!(span(100, 0), 0);
        assert_eq!(span(4096, 4095 * 2), 4096 * 2);
    }

    #[test]
    fn a_single_literal_is_read_in_place_and_nothing_else() {
        let mut state = 1u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(70_000)
        .collect();
        for len in [1, 2, 59, 60, 61, 62, 255, 256, 257, 258, 5_000, 65_535] {
            let content = &noise[..len];
            let block = snap::raw::Encoder::new().compress_vec(content).expect("it is short");
            assert_eq!(literal(&block), Some(content), "noise is stored as a literal: {len}");
            assert_eq!(literal(&block[..block.len() - 1]), None);
            assert_eq!(literal(&[&block[..], b"x"].concat()), None);
        }
        let copies = snap::raw::Encoder::new().compress_vec(&[7; 1000]).expect("it is short");
        assert_eq!(literal(&copies), None);
        for block in [&[][..], &[0], &[1], &[5, 0xf4], &[5, 0xfc, 1], &[0xff; 12]] {
            assert_eq!(literal(block), None);
        }
    }

    #[test]
    fn a_block_that_claims_too_much_takes_no_memory() {
        let claims: [&[u8]; 5] = [
            &[0xff, 0xff, 0xff, 0xff, 0x0f, 0, b'x'],
            &[0x80, 0x80, 0x80, 0x80, 0x08, 0, b'x'],
            // 16 MiB, which would be allowed, out of three bytes
            &[0x80, 0x80, 0x80, 0x08, 0, b'x', 0xfe],
            &[0xff; 12],
            &[],
        ];
        let mut out = Vec::new();
        for block in claims {
            assert_eq!(inflate(block, &mut out), None);
            assert_eq!(out.capacity(), 0);
        }
        let long = [&[0x81, 0x80, 0x80, 0x40][..], &vec![0; 8 << 20]].concat();
        assert_eq!(inflate(&long, &mut out), None, "a byte more than the longest body");
        assert_eq!(out.capacity(), 0);
        assert_eq!(inflate(&[64, 0, b'x', 0xfe, 0, 0], &mut out), None, "a copy from nowhere");
        assert_eq!(inflate(&[0], &mut out), Some(0));
    }

    #[test]
    fn block_bytes_are_stripped() {
        let mut raw: Vec<u8> = Vec::new();
        for at in 4090..12300u64 {
            raw.push(if at % BLOCK == 0 { 99 } else { 1 });
        }
        for from in [0, 1, 5, 6, 7, 4101, 4102] {
            let (mut copied, mut in_place) = (Vec::new(), raw[from..].to_vec());
            strip_into(&raw[from..], 4090 + from as u64, &mut copied);
            strip_block_bytes(&mut in_place, 0, 4090 + from as u64);
            assert_eq!(copied, in_place);
        }
        strip_into(&[99], 4096, &mut Vec::new());
        strip_block_bytes(&mut raw, 0, 4090);
        assert!(raw.iter().all(|&b| b == 1));
        assert_eq!(span(4090, raw.len() as u64), 12300 - 4090);
    }
}
