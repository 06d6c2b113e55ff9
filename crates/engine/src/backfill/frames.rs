//! What a backfill has made ready for its stream: bytes, charged as long as anybody holds them.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use base::{Account, Part, Seqno};

use super::BackfillQueue;
use crate::follower::Follower;

/// Whole messages, one behind the other. Charged to the bucket until they are dropped, wherever they are then.
pub struct Frames {
    bytes: Vec<u8>,
    account: Account,
    hold: Option<Hold>,
}

/// A part of what is ready for a connection. When it is dropped, the connection's backfills that wait for room go on.
struct Hold {
    bytes: usize,
    follower: Arc<Follower>,
    queue: Weak<BackfillQueue>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let before = self.follower.buffered.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(queue) = self.queue.upgrade() {
            queue.holders.fetch_sub((before == self.bytes).into(), Ordering::Relaxed);
            queue.has_sent(self.bytes);
            queue.unpark(&self.follower);
        }
    }
}

impl Frames {
    /// Charges what the bytes take.
    pub fn new(bytes: Vec<u8>, account: &Account) -> Frames {
        let frames = Frames { bytes, account: account.clone(), hold: None };
        frames.account.charge(Part::Streams, frames.allocated_bytes());
        frames
    }

    /// Counts them as ready for a connection until they are dropped: also after its stream has taken them, until they are
    /// sent.
    pub(super) fn hold(&mut self, queue: &Arc<BackfillQueue>, follower: &Arc<Follower>) {
        let bytes = self.allocated_bytes();
        queue.buffered.fetch_add(bytes, Ordering::Relaxed);
        let before = follower.buffered.fetch_add(bytes, Ordering::Relaxed);
        queue.holders.fetch_add((before == 0).into(), Ordering::Relaxed);
        self.hold = Some(Hold { bytes, follower: Arc::clone(follower), queue: Arc::downgrade(queue) });
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
    /// Whether all of it is of the history of changes.
    pub(super) is_history: bool,
}
