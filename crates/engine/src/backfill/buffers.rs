//! Buffers of the threads that read for backfills: charged as long as they are held, and held only while there is
//! something to read.

use base::{Account, Part};
use kvstore::Reading;
use parking_lot::Mutex;

/// What a thread keeps for its next slice at most, in bytes: an unusually large document leaves more behind.
const MOST_KEPT_BYTES: usize = 4 << 20;

/// Buffers of a thread that reads slices.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) reading: Reading,
    /// What is being written.
    pub(super) out: Vec<u8>,
    /// Bytes that are charged for them.
    charged: usize,
}

impl Buffers {
    fn allocated_bytes(&self) -> usize {
        self.reading.allocated_bytes() + self.out.capacity()
    }
}

/// Buffers that no thread uses at the moment, as many as ever read at once.
#[derive(Default)]
pub(super) struct Pool(Mutex<Spare>);

#[derive(Default)]
struct Spare {
    buffers: Vec<Buffers>,
    /// Backfills that have not read everything.
    reading: usize,
}

impl Pool {
    /// One more backfill reads.
    pub(super) fn join(&self) {
        self.0.lock().reading += 1;
    }

    /// One of them has read everything, or is given up. With the last one all buffers go.
    pub(super) fn leave(&self, account: &Account) {
        let mut spare = self.0.lock();
        spare.reading -= 1;
        let unneeded = if spare.reading == 0 { std::mem::take(&mut spare.buffers) } else { Vec::new() };
        drop(spare);
        release(unneeded, account);
    }

    /// Some for the next slice.
    pub(super) fn take(&self) -> Buffers {
        self.0.lock().buffers.pop().unwrap_or_default()
    }

    /// Takes them back after a slice, and charges what they have become.
    pub(super) fn give_back(&self, mut buffers: Buffers, account: &Account) {
        let held = buffers.allocated_bytes();
        if held > MOST_KEPT_BYTES {
            release(vec![buffers], account);
            return;
        }
        account.charge(Part::Streams, held);
        account.release(Part::Streams, std::mem::replace(&mut buffers.charged, held));
        let mut spare = self.0.lock();
        if spare.reading > 0 {
            spare.buffers.push(buffers);
            return;
        }
        drop(spare);
        release(vec![buffers], account);
    }

    /// Bytes that are kept for the next slices.
    pub(super) fn kept_bytes(&self) -> usize {
        self.0.lock().buffers.iter().map(|buffers| buffers.charged).sum()
    }
}

fn release(buffers: Vec<Buffers>, account: &Account) {
    for one in buffers {
        account.release(Part::Streams, one.charged);
    }
}
