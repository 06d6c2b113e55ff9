//! What a stream has taken from memory or disk and not sent yet.

use std::collections::{HashSet, VecDeque};

use base::{Account, Part, Seqno, Version};
use engine::Bucket;

/// Changes of one snapshot in the order in which they are sent, charged to the account of the bucket.
pub(crate) struct Pending {
    items: VecDeque<Version>,
    account: Account,
    charged: usize,
    /// Up to where everything is sent once these are.
    pub(crate) end: Option<Seqno>,
    /// Up to where the snapshot was announced.
    pub(crate) marker_end: Seqno,
    /// The last of these changes that readers can see.
    pub(crate) max_visible: Seqno,
    /// The last change of the snapshot that the consumer wants.
    pub(crate) last_wanted: Seqno,
    /// Whether commits are told as the documents that they made: on disk the prepares are gone.
    pub(crate) is_of_documents: bool,
    /// Commits of which that is so in a snapshot of several checkpoints.
    pub(crate) as_documents: HashSet<Seqno>,
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
            marker_end: Seqno(0),
            max_visible: Seqno(0),
            is_of_documents: false,
            as_documents: HashSet::new(),
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

    /// Puts `rest`, which belongs to the same snapshot, behind the changes.
    pub(crate) fn append(&mut self, mut rest: Pending) {
        // What is not from disk is told by name.
        self.as_documents.extend(std::mem::take(&mut rest.as_documents));
        self.extend(std::mem::take(&mut rest.items).into_iter());
        (self.end, self.moves_cursor, self.is_announced) = (rest.end, rest.moves_cursor, rest.is_announced);
    }

    /// Whether its consumer, if it has sync writes, has the prepare of the commit `version`.
    pub(crate) fn has_prepare(&self, version: &Version) -> bool {
        !self.is_of_documents && !self.as_documents.contains(&version.meta().by_seqno)
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
