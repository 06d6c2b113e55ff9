//! One direction of a simulated connection: a bounded queue of pieces on their way.

use std::collections::VecDeque;

/// How the bytes of new connections travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetFaults {
    /// Most bytes on their way or unread in one direction; more would block the writer.
    pub buffer_bytes: usize,
    /// A read or write moves at most this many bytes; how many, the seed decides. 0: as many as there are.
    pub most_piece_bytes: usize,
    /// A piece takes up to this many steps to arrive; how many, the seed decides.
    pub most_delay_steps: u64,
}

impl Default for NetFaults {
    fn default() -> NetFaults {
        NetFaults { buffer_bytes: 64 << 10, most_piece_bytes: 0, most_delay_steps: 0 }
    }
}

#[derive(Debug)]
struct Piece {
    arrives_at_step: u64,
    bytes: Vec<u8>,
    read: usize,
}

/// Bytes from one end to the other, in order.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pieces: VecDeque<Piece>,
    unread: usize,
    /// The writer will send no more.
    pub(super) is_finished: bool,
    /// The end of the writer or the reader is gone, and what was on its way with it.
    pub(super) is_cut: bool,
}

impl Pipe {
    /// How many bytes more there is room for.
    pub(super) fn room(&self, buffer_bytes: usize) -> usize {
        buffer_bytes.saturating_sub(self.unread)
    }

    pub(super) fn push(&mut self, bytes: &[u8], arrives_at_step: u64) {
        // What is sent later never arrives earlier.
        let before = self.pieces.back().map_or(0, |piece| piece.arrives_at_step);
        let arrives_at_step = arrives_at_step.max(before);
        self.unread += bytes.len();
        self.pieces.push_back(Piece { arrives_at_step, bytes: bytes.to_vec(), read: 0 });
    }

    /// Takes what has arrived; 0 if nothing has.
    pub(super) fn take(&mut self, buf: &mut [u8], step: u64) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(piece) = self.pieces.front_mut().filter(|p| p.arrives_at_step <= step) else { break };
            let rest = &piece.bytes[piece.read..];
            let len = rest.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&rest[..len]);
            piece.read += len;
            done += len;
            if piece.read == piece.bytes.len() {
                self.pieces.pop_front();
            }
        }
        self.unread -= done;
        done
    }

    /// Whether everything that will ever come was read.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_finished && self.pieces.is_empty()
    }

    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        self.pieces.clear();
        self.unread = 0;
    }
}
