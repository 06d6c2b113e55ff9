//! Bodies that lie close together and are wanted in another order: read in large pieces, a few of which are kept.

use crate::chunk::Source;
use crate::failure::Failure;

const PIECE_BYTES: u64 = 64 << 10;
/// Pieces that are kept, so that a batch that was saved together is read once.
const MOST_PIECES: usize = 16;
/// Where so much more is read than is wanted, pieces do not pay.
const MOST_READ_TO_WANTED: u64 = 4;
/// What may be read for nothing before that is known.
const TRIAL_BYTES: u64 = 512 << 10;

/// Pieces of one file that were read while many bodies of it are looked at. Nothing of a file is ever changed, so
/// they stay right.
#[derive(Default)]
pub struct Pieces {
    kept: Vec<(u64, Vec<u8>)>,
    /// Which one gives way next.
    oldest: usize,
    read_bytes: u64,
    wanted_bytes: u64,
}

impl Pieces {
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
        let end = offset + len as u64;
        let is_sparse = self.read_bytes > TRIAL_BYTES + MOST_READ_TO_WANTED * self.wanted_bytes;
        if is_sparse || end > limit || len as u64 > PIECE_BYTES {
            return source.append_raw(out, offset, len);
        }
        self.wanted_bytes += len as u64;
        let mut at = offset;
        while at < end {
            let (start, piece) = self.piece(source, at, limit)?;
            let from = (at - *start) as usize;
            let Some(found) = piece.get(from..).filter(|found| !found.is_empty()) else { break };
            let n = found.len().min((end - at) as usize);
            out.extend_from_slice(&found[..n]);
            at += n as u64;
        }
        Ok((at - offset) as usize)
    }

    /// The piece that `offset` is in.
    fn piece(&mut self, source: &Source, offset: u64, limit: u64) -> Result<&(u64, Vec<u8>), Failure> {
        let start = offset - offset % PIECE_BYTES;
        if let Some(found) = self.kept.iter().position(|(kept, _)| *kept == start) {
            return Ok(&self.kept[found]);
        }
        if self.kept.len() < MOST_PIECES {
            self.oldest = self.kept.len();
            self.kept.push((u64::MAX, Vec::new()));
        } else {
            self.oldest = (self.oldest + 1) % MOST_PIECES;
        }
        let place = &mut self.kept[self.oldest];
        // Until it is filled it is none.
        place.0 = u64::MAX;
        place.1.resize((limit - start).min(PIECE_BYTES) as usize, 0);
        let n = source.read_raw(&mut place.1, start)?;
        place.1.truncate(n);
        place.0 = start;
        self.read_bytes += n as u64;
        Ok(place)
    }
}
