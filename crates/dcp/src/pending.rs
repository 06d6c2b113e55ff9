//! What a stream has taken from memory or disk and not sent yet.

use std::collections::VecDeque;

use base::{Account, Part, Seqno, Version};
use engine::Bucket;

/// A snapshot that is to be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) start: Seqno,
    pub(crate) end: Seqno,
    pub(crate) purge: Seqno,
    pub(crate) flags: u32,
}

/// Changes of one snapshot or of several in the order in which they are sent, charged to the account of the bucket.
pub(crate) struct Pending {
    items: VecDeque<Version>,
    /// Items that were taken out.
    popped: usize,
    /// Snapshots, each with how many items come before it.
    announcements: VecDeque<(usize, Announcement)>,
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
    /// Whether there is nothing more for the consumer after these.
    pub(crate) is_last: bool,
}

impl Pending {
    pub(crate) fn new(bucket: &Bucket) -> Pending {
        Pending {
            items: VecDeque::new(),
            popped: 0,
            announcements: VecDeque::new(),
            account: bucket.memory().account().clone(),
            charged: 0,
            end: None,
            last_wanted: Seqno(0),
            is_announced: false,
            moves_cursor: false,
            is_out_of_order: false,
            is_last: false,
        }
    }

    pub(crate) fn extend(&mut self, items: impl Iterator<Item = Version>) {
        self.items.extend(items);
        let seqnos = self.items.iter().map(|version| version.meta().by_seqno);
        self.last_wanted = seqnos.max().unwrap_or_default();
        let announced = self.announcements.capacity() * size_of::<(usize, Announcement)>();
        let bytes = self.items.capacity() * size_of::<Version>() + announced;
        self.account.charge(Part::Streams, bytes - self.charged);
        self.charged = bytes;
    }

    /// Appends what was chosen apart.
    pub(crate) fn append(&mut self, mut chosen: Pending) {
        self.extend(std::mem::take(&mut chosen.items).into_iter());
    }

    /// What comes next belongs to this snapshot.
    pub(crate) fn announce(&mut self, snapshot: Announcement) {
        self.announcements.push_back((self.popped + self.items.len(), snapshot));
    }

    /// The snapshot that is to be announced before anything else is taken out.
    pub(crate) fn pop_announcement(&mut self) -> Option<Announcement> {
        let is_due = self.announcements.front().is_some_and(|(before, _)| *before == self.popped);
        if is_due { self.announcements.pop_front().map(|(_, snapshot)| snapshot) } else { None }
    }

    pub(crate) fn pop(&mut self) -> Option<Version> {
        let item = self.items.pop_front();
        self.popped += usize::from(item.is_some());
        item
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.announcements.is_empty()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.account.release(Part::Streams, self.charged);
    }
}
