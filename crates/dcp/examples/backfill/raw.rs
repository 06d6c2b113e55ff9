//! Reading files of documents from front to end, with the checksums that they have: what no reader can do without.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a block; the first one tells data from header (couchstore file_format.md, "File Blocks").
const BLOCK: usize = 4096;
const HEADER_BLOCK: u8 = 1;
/// Length and checksum in front of each chunk and header.
const PREFIX: usize = 8;
/// The highest bit of a data chunk's length.
const DATA: u32 = 0x8000_0000;

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct WasRead {
    pub bytes: u64,
    /// Chunks and headers whose checksums were checked.
    pub chunks: u64,
}

/// The files of documents in a folder.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().contains(".couch.")).collect();
    files.sort();
    files
}

/// Reads all files as a whole, one after the other, with so many threads, and checks every checksum in them.
pub fn read(files: &[PathBuf], threads: usize) -> WasRead {
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut content, mut sum) = (Vec::new(), WasRead::default());
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut file = fs::File::open(path).expect("a file");
            let len = file.metadata().expect("a file").len() as usize;
            content.resize(content.len().max(len), 0);
            file.read_exact(&mut content[..len]).expect("readable");
            sum.chunks += check(&content[..len]).unwrap_or_else(|at| panic!("{}: {at}", path.display()));
            sum.bytes += len as u64;
        }
        sum
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = work();
        for other in others {
            let part = other.join().expect("it does not panic");
            sum = WasRead { bytes: sum.bytes + part.bytes, chunks: sum.chunks + part.chunks };
        }
        sum
    })
}

/// Checks every chunk and header of a file; how many there are, or where one is damaged.
fn check(file: &[u8]) -> Result<u64, usize> {
    let (mut at, mut chunks) = (0, 0);
    while at < file.len() {
        let is_header = at.is_multiple_of(BLOCK) && file[at] == HEADER_BLOCK;
        at += usize::from(at.is_multiple_of(BLOCK));
        let Some((prefix, body)) = prefix(file, at) else { return Ok(chunks) };
        let (length, crc) = prefix.split_at(4);
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        let length = number(length);
        let len = match (is_header, length & DATA != 0) {
            // A header's length counts the checksum.
            (true, false) => length as usize - 4,
            (false, true) => (length & !DATA) as usize,
            // Nothing more in this block.
            (false, false) => {
                at = at.next_multiple_of(BLOCK);
                continue;
            }
            (true, true) => return Err(at),
        };
        let (found, end) = sum(file, body, len).ok_or(at)?;
        if found != number(crc) {
            return Err(at);
        }
        (at, chunks) = (end, chunks + 1);
    }
    Ok(chunks)
}

/// The eight bytes of content from `at` on, and where the content goes on.
fn prefix(file: &[u8], at: usize) -> Option<([u8; PREFIX], usize)> {
    if !at.is_multiple_of(BLOCK) && at % BLOCK <= BLOCK - PREFIX {
        return Some((file.get(at..at + PREFIX)?.try_into().expect("so many"), at + PREFIX));
    }
    let (mut prefix, mut at) = ([0; PREFIX], at);
    for byte in &mut prefix {
        at += usize::from(at.is_multiple_of(BLOCK));
        *byte = *file.get(at)?;
        at += 1;
    }
    Some((prefix, at))
}

/// The checksum of `len` bytes of content from `at` on, and where they end.
fn sum(file: &[u8], mut at: usize, mut len: usize) -> Option<(u32, usize)> {
    let mut sum = 0;
    while len > 0 {
        at += usize::from(at.is_multiple_of(BLOCK));
        let part = file.get(at..at + len.min(BLOCK - at % BLOCK))?;
        sum = crc32c::crc32c_append(sum, part);
        (at, len) = (at + part.len(), len - part.len());
    }
    Some((sum, at))
}
