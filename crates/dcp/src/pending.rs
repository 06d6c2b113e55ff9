//! What a stream has taken from memory or disk and not sent yet.

use std::collections::VecDeque;

use base::{Account, Part, Seqno, Version};
use engine::Bucket;

/// Changes of one snapshot in the order in which they are sent, charged to the account of the bucket.
pub(crate) struct Pending {
    items: VecDeque<Version>,
    account: Account,
    charged: usize,
    /// Up to where everything is sent once these are.
    pub(crate) end: Option<Seqno>,
    /// The last change of the snapshot that the consumer wants.
    pub(crate) last_wanted: Seqno,
    /// Whether the snapshot was announced to a consumer that does not want all of it.
    pub(crate) is_announced: bool,
    /// Whether the cursor moves to the end, too: these were taken with it.
    pub(crate) moves_cursor: bool,
    /// Whether the snapshot is in the order of keys.
    pub(crate) is_out_of_order: bool,
}

impl Pending {
    pub(crate) fn new(bucket: &Bucket) -> Pending {
        Pending {
            items: VecDeque::new(),
            account: bucket.memory().account().clone(),
            charged: 0,
            end: None,
            last_wanted: Seqno(0),
            is_announced: false,
            moves_cursor: false,
            is_out_of_order: false,
        }
    }

    pub(crate) fn extend(&mut self, items: impl Iterator<Item = Version>) {
        self.items.extend(items);
        let seqnos = self.items.iter().map(|version| version.meta().by_seqno);
        self.last_wanted = seqnos.max().unwrap_or_default();
        let bytes = self.items.capacity() * size_of::<Version>();
        self.account.charge(Part::Streams, bytes - self.charged);
        self.charged = bytes;
    }

    pub(crate) fn pop(&mut self) -> Option<Version> {
        self.items.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.account.release(Part::Streams, self.charged);
    }
}
