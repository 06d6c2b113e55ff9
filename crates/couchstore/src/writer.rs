//! Appending to a file: one buffer, written in large pieces, with the byte at each block's start filled in.

use crate::chunk::{BLOCK, CHUNK_PREFIX, DATA_BLOCK, LENGTH_MARK, Source, span};
use crate::failure::Failure;

/// The buffer is written out when it holds this much.
const BUFFER_BYTES: usize = 256 << 10;

/// What the buffer may hold above that, so that it need not grow for a usual chunk.
const SLACK_BYTES: usize = 16 << 10;

/// Where an appended chunk went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) offset: u64,
    /// Length and checksum included, bytes at block starts not.
    pub(crate) bytes: u32,
    /// Whether it is a body that was compressed on the way.
    pub(crate) packed: bool,
}

/// The end of a file that is being appended to.
pub(crate) struct Writer {
    source: Source,
    buf: Vec<u8>,
    /// Where the buffer's first byte belongs.
    start: u64,
    /// Whether nothing was appended since what stands before it may be durable.
    is_behind_commit: bool,
    poisoned: bool,
}

impl Writer {
    pub(crate) fn new(source: Source, end: u64) -> Writer {
        Writer { source, buf: Vec::new(), start: end, is_behind_commit: true, poisoned: false }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Where the next byte goes.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.buf.len() as u64
    }

    /// Everything before this has been written to the file.
    pub(crate) fn written_end(&self) -> u64 {
        self.start
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.poisoned { Err(Failure::Poisoned { path: self.source.path.clone() }) } else { Ok(()) }
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let within = self.end() % BLOCK;
            if within == 0 {
                self.buf.push(DATA_BLOCK);
                continue;
            }
            let n = bytes.len().min((BLOCK - within) as usize);
            self.buf.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
        }
    }

    /// Appends a chunk whose body is `head` followed by `tail`.
    pub(crate) fn append_chunk(&mut self, head: &[u8], tail: &[u8]) -> Result<Placed, Failure> {
        self.check()?;
        let len = head.len() + tail.len();
        let checksum = self.source.checksum;
        let crc = checksum.of(head);
        let crc = if tail.is_empty() { crc } else { checksum.extend(crc, tail) };
        let mut prefix = [0; CHUNK_PREFIX];
        prefix[..4].copy_from_slice(&(len as u32 | LENGTH_MARK).to_be_bytes());
        prefix[4..].copy_from_slice(&crc.to_be_bytes());
        if std::mem::take(&mut self.is_behind_commit) {
            assert!(self.buf.is_empty(), "a commit leaves nothing in the buffer");
            self.start = self.source.file.append_from(self.start);
        }
        self.make_room(CHUNK_PREFIX + len);
        if self.end().is_multiple_of(BLOCK) {
            self.buf.push(DATA_BLOCK);
        }
        let offset = self.end();
        if (BLOCK - offset % BLOCK) as usize >= CHUNK_PREFIX + len {
            self.buf.extend_from_slice(&prefix);
            self.buf.extend_from_slice(head);
            self.buf.extend_from_slice(tail);
        } else {
            self.append(&prefix);
            self.append(head);
            self.append(tail);
        }
        if self.buf.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(Placed { offset, bytes: (len + CHUNK_PREFIX) as u32, packed: false })
    }

    /// Lets the buffer grow for `content` bytes: doubled while it is small, but not far beyond where it is written out.
    fn make_room(&mut self, content: usize) {
        let needed = self.buf.len() + span(self.end(), content as u64) as usize + 1;
        if needed > self.buf.capacity() {
            let doubled = (2 * self.buf.capacity()).min(BUFFER_BYTES + SLACK_BYTES);
            self.buf.reserve_exact(needed.max(doubled) - self.buf.len());
        }
    }

    /// Writes what is buffered.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.check()?;
        if !self.buf.is_empty() {
            let result = self.source.file.write_at(&self.buf, self.start);
            self.outcome("write", self.start, result)?;
            self.start += self.buf.len() as u64;
            self.buf.clear();
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub(crate) fn sync(&mut self) -> Result<(), Failure> {
        self.check()?;
        let result = self.source.file.sync_data();
        self.outcome("sync", self.start, result)
    }

    /// Writes an encoded header at the next block boundary; the gap before it reads as zeros.
    pub(crate) fn write_header(&mut self, header: &[u8]) -> Result<(), Failure> {
        self.check()?;
        assert!(self.buf.is_empty(), "a header is written after its data");
        let offset = self.next_block();
        let result = self.source.file.write_at(header, offset);
        self.outcome("write", offset, result)?;
        self.start = offset + header.len() as u64;
        self.is_behind_commit = true;
        Ok(())
    }

    /// From now on every call fails.
    pub(crate) fn poison(&mut self) {
        self.poisoned = true;
    }

    /// Exchanges the buffer, which is empty unless the file is given up.
    pub(crate) fn swap_buffer(&mut self, other: &mut Vec<u8>) {
        assert!(self.buf.is_empty() || self.poisoned, "only a buffer that is written out is passed on");
        self.buf.clear();
        other.clear();
        std::mem::swap(&mut self.buf, other);
    }

    /// The next block boundary: where a header would go.
    pub(crate) fn next_block(&self) -> u64 {
        self.end().next_multiple_of(BLOCK)
    }

    fn outcome(
        &mut self,
        operation: &'static str,
        offset: u64,
        result: std::io::Result<()>,
    ) -> Result<(), Failure> {
        result.map_err(|source| {
            self.poisoned = true;
            Failure::Io { operation, path: self.source.path.clone(), offset, source }
        })
    }
}
