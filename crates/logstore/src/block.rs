//! Blocks: what is read and checked at once. Checksums cover the file's random number and the place, so that a block that was
//! written elsewhere is not taken for this one.

use std::path::Path;
use std::sync::Arc;

use crate::codec::u32_at;
use crate::failure::Failure;
use crate::file::LogFile;

/// Bytes in front of each block: CRC32C, bytes as stored, bytes inflated, kind.
pub(crate) const PREFIX: usize = 13;
const PLAIN: u8 = 0;
const SNAPPY: u8 = 1;
/// The longest block, inflated or not: above any document.
const MOST_BYTES: usize = 256 << 20;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    /// Bytes with the prefix.
    pub(crate) len: u32,
}

fn checksum(seed: u64, offset: u64, rest: &[u8]) -> u32 {
    let seed = crc32c::crc32c(&seed.to_le_bytes());
    let seed = crc32c::crc32c_append(seed, &offset.to_le_bytes());
    crc32c::crc32c_append(seed, rest)
}

/// Compresses with Snappy, in space that is used again for the next.
pub struct Packer {
    encoder: snap::raw::Encoder,
    packed: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer { encoder: snap::raw::Encoder::new(), packed: Vec::new() }
    }
}

impl Packer {
    /// The content in at most seven eighths of its bytes; nothing if it cannot be had in so few.
    pub fn pack(&mut self, content: &[u8]) -> Option<&[u8]> {
        self.packed.resize(snap::raw::max_compress_len(content.len()), 0);
        let len = self.encoder.compress(content, &mut self.packed).ok()?;
        (len < content.len() - content.len() / 8).then(|| &self.packed[..len])
    }

    /// Gives back space beyond so many bytes.
    pub fn shrink(&mut self, most: usize) {
        self.packed.truncate(most);
        self.packed.shrink_to(most);
    }
}

/// Appends a block to what will be written from `base` on in a file with this seed.
pub(crate) fn append(packer: &mut Packer, out: &mut Vec<u8>, base: u64, seed: u64, content: &[u8]) -> Span {
    let at = out.len();
    let offset = base + at as u64;
    let (kind, stored) = packer.pack(content).map_or((PLAIN, content), |packed| (SNAPPY, packed));
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(stored);
    let crc = checksum(seed, offset, &out[at + 4..]);
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    Span { offset, len: (out.len() - at) as u32 }
}

/// The content of a block that was read from `offset` of a file with this seed.
pub(crate) fn open(raw: &[u8], seed: u64, offset: u64, path: &Arc<Path>) -> Result<Vec<u8>, Failure> {
    let damaged = |what| Failure::damaged(path, offset, what);
    if raw.len() < PREFIX {
        return Err(damaged("a block is too short"));
    }
    if checksum(seed, offset, &raw[4..]) != u32_at(raw, 0) {
        return Err(damaged("the checksum of a block"));
    }
    let (stored, inflated) = (u32_at(raw, 4) as usize, u32_at(raw, 8) as usize);
    let content = &raw[PREFIX..];
    if content.len() != stored || inflated > MOST_BYTES {
        return Err(damaged("the length of a block"));
    }
    match raw[12] {
        PLAIN if inflated == stored => Ok(content.to_vec()),
        SNAPPY => {
            let found = snap::raw::decompress_len(content).map_err(|_| damaged("a compressed block"))?;
            if found != inflated {
                return Err(damaged("the length of a compressed block"));
            }
            snap::raw::Decoder::new().decompress_vec(content).map_err(|_| damaged("a compressed block"))
        }
        _ => Err(damaged("the kind of a block")),
    }
}

/// Reads a block.
pub(crate) fn read(file: &LogFile, span: Span) -> Result<Vec<u8>, Failure> {
    if span.len as usize > MOST_BYTES + PREFIX {
        return Err(Failure::damaged(file.path(), span.offset, "the length of a block"));
    }
    let raw = file.read_exact(span.offset, span.len as usize)?;
    open(&raw, file.seed(), span.offset, file.path())
}
