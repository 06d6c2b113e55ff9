//! What a backfill has made ready for its stream: bytes, charged as long as anybody holds them.

use std::ops::Deref;

use base::{Account, Part, Seqno};

/// Whole messages, one behind the other. Charged to the bucket until they are dropped, wherever they are then.
pub struct Frames {
    bytes: Vec<u8>,
    account: Account,
}

impl Frames {
    /// Charges what the bytes take.
    pub fn new(bytes: Vec<u8>, account: &Account) -> Frames {
        let frames = Frames { bytes, account: account.clone() };
        frames.account.charge(Part::Streams, frames.allocated_bytes());
        frames
    }

    /// Bytes that are charged for it.
    pub fn allocated_bytes(&self) -> usize {
        self.bytes.capacity() + size_of::<Frames>()
    }
}

impl Deref for Frames {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.account.release(Part::Streams, self.allocated_bytes());
    }
}

/// What a stream takes at once: frames, and what it has to know of the changes in them.
pub(super) struct Piece {
    pub(super) frames: Frames,
    /// The last change that is in it.
    pub(super) last: Seqno,
}
