//! Reading ahead: what is read in order of its place in the file is read in large pieces.

use crate::chunk::Source;
use crate::failure::Failure;

/// Reads that go on within so many bytes behind the last one are in order.
const GAP_BYTES: u64 = 8 << 10;
/// The first piece that is read ahead, doubled with each one after it.
const FIRST_AHEAD: usize = 8 << 10;
const MOST_AHEAD: usize = 128 << 10;

/// A piece of a file that was read, which may be more than was asked for. Nothing of a file is ever changed, so it
/// stays right.
#[derive(Default)]
pub(crate) struct Window {
    buf: Vec<u8>,
    start: u64,
    /// Where the last read ended.
    last_end: u64,
    /// How much was read ahead last.
    ahead: usize,
}

impl Window {
    /// Another file, or the same one opened again: forgets everything.
    pub(crate) fn clear(&mut self) {
        self.buf.clear();
        (self.start, self.last_end, self.ahead) = (0, 0, 0);
    }

    /// Bytes that it takes at the moment.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.buf.capacity()
    }

    /// Appends `len` raw bytes from `offset` to `out`, or fewer at the end of the file; never asks for bytes behind
    /// `limit` on its own.
    pub(crate) fn read(
        &mut self,
        source: &Source,
        out: &mut Vec<u8>,
        offset: u64,
        len: usize,
        limit: u64,
    ) -> Result<usize, Failure> {
        let in_order = offset >= self.last_end && offset - self.last_end <= GAP_BYTES;
        self.last_end = offset + len as u64;
        if let Some(found) = self.held(offset, len) {
            out.extend_from_slice(found);
            return Ok(len);
        }
        self.ahead = if in_order { (self.ahead * 2).clamp(FIRST_AHEAD, MOST_AHEAD) } else { 0 };
        let wanted = usize::try_from(limit.saturating_sub(offset)).unwrap_or(usize::MAX).min(self.ahead);
        if wanted <= len {
            return source.append_raw(out, offset, len);
        }
        self.start = offset;
        self.buf.resize(wanted, 0);
        let n = source.read_raw(&mut self.buf, offset).inspect_err(|_| self.buf.clear())?;
        self.buf.truncate(n);
        let n = n.min(len);
        out.extend_from_slice(&self.buf[..n]);
        Ok(n)
    }

    fn held(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.buf.get(from..from.checked_add(len)?)
    }
}
