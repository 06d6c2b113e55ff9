//! What a stream has taken from memory or disk and not sent yet.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use base::{Account, Part, Seqno, Version};
use engine::{Follower, Frames};
use protocol::HEADER_BYTES;
use protocol::dcp::MarkerMore;

use crate::turn::Common;

/// A snapshot that is to be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) start: Seqno,
    pub(crate) end: Seqno,
    pub(crate) flags: u32,
    /// For those who understand it.
    pub(crate) more: MarkerMore,
}

/// What is said between changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A snapshot begins.
    Snapshot(Announcement),
    /// Up to here there is nothing more in it.
    Advanced(Seqno),
}

/// Changes of one snapshot or of several in the order in which they are sent. The lists are charged to the account of the
/// bucket, and told to the connection's follower.
pub(crate) struct Pending {
    /// What a backfill made; comes before the items.
    frames: VecDeque<Arc<Frames>>,
    /// Bytes of the first of them that are sent.
    cut: usize,
    items: VecDeque<Version>,
    /// Items that were taken out.
    popped: usize,
    /// Notices, each with how many items come before it.
    notices: VecDeque<(usize, Notice)>,
    account: Account,
    follower: Arc<Follower>,
    charged: usize,
    /// Up to where everything is sent once these are.
    pub(crate) end: Option<Seqno>,
    /// Up to where the snapshot was announced.
    pub(crate) marker_end: Seqno,
    /// Whether commits are told as the documents that they made: on disk the prepares are gone.
    pub(crate) is_of_documents: bool,
    /// Commits of which that is so in a snapshot of several checkpoints.
    pub(crate) as_documents: HashSet<Seqno>,
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
    pub(crate) fn new(common: &Common<'_>) -> Pending {
        Pending {
            frames: VecDeque::new(),
            cut: 0,
            items: VecDeque::new(),
            popped: 0,
            notices: VecDeque::new(),
            account: common.bucket.memory().account().clone(),
            follower: Arc::clone(common.follower),
            charged: 0,
            end: None,
            marker_end: Seqno(0),
            is_of_documents: false,
            as_documents: HashSet::new(),
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
        self.last_wanted = self.last_wanted.max(seqnos.max().unwrap_or_default());
        self.charge();
    }

    /// Charges what the lists take now.
    fn charge(&mut self) {
        let listed = self.items.capacity() * size_of::<Version>();
        let noticed = self.notices.capacity() * size_of::<(usize, Notice)>();
        let made = self.frames.capacity() * size_of::<Arc<Frames>>();
        // A set has a byte beside each place.
        let documents = self.as_documents.capacity() * (size_of::<Seqno>() + 1);
        let bytes = listed + noticed + made + documents;
        self.account.charge(Part::Streams, bytes);
        self.account.release(Part::Streams, self.charged);
        self.follower.list_takes(self.charged, bytes);
        self.charged = bytes;
    }

    /// The first change in it.
    pub(crate) fn first(&self) -> Option<Seqno> {
        self.items.front().map(|version| version.meta().by_seqno)
    }

    /// Takes what a backfill made, up to this change.
    pub(crate) fn take_frames(&mut self, frames: Vec<Frames>, last: Seqno) {
        self.frames.extend(frames.into_iter().map(Arc::new));
        self.last_wanted = self.last_wanted.max(last);
        self.charge();
    }

    /// The next whole messages that a backfill made: the last of them is the one with which `most` bytes are reached.
    pub(crate) fn pop_frames(&mut self, most: u64) -> Option<(Arc<Frames>, Range<usize>)> {
        let frames = self.frames.front()?;
        let from = self.cut;
        let mut end = frames.len();
        if ((end - from) as u64) > most {
            end = from;
            while ((end - from) as u64) < most {
                end += message_bytes(&frames[end..]);
            }
        }
        if end < frames.len() {
            self.cut = end;
            return Some((Arc::clone(frames), from..end));
        }
        self.cut = 0;
        self.frames.pop_front().map(|frames| (frames, from..end))
    }

    /// Appends what was chosen apart.
    pub(crate) fn append(&mut self, mut chosen: Pending) {
        self.as_documents.extend(std::mem::take(&mut chosen.as_documents));
        self.extend(std::mem::take(&mut chosen.items).into_iter());
    }

    /// Whether its consumer, if it has sync writes, has the prepare of the commit `version`.
    pub(crate) fn has_prepare(&self, version: &Version) -> bool {
        !self.is_of_documents && !self.as_documents.contains(&version.meta().by_seqno)
    }

    /// What comes next belongs to this snapshot.
    pub(crate) fn announce(&mut self, snapshot: Announcement) {
        self.notices.push_back((self.popped + self.items.len(), Notice::Snapshot(snapshot)));
        self.charge();
    }

    /// Up to `to` nothing comes any more.
    pub(crate) fn advance(&mut self, to: Seqno) {
        self.notices.push_back((self.popped + self.items.len(), Notice::Advanced(to)));
        self.charge();
    }

    /// What is to be said before anything else is taken out.
    pub(crate) fn pop_notice(&mut self) -> Option<Notice> {
        let is_due = self.notices.front().is_some_and(|(before, _)| *before == self.popped);
        if is_due { self.notices.pop_front().map(|(_, notice)| notice) } else { None }
    }

    pub(crate) fn pop(&mut self) -> Option<Version> {
        let item = self.items.pop_front();
        self.popped += usize::from(item.is_some());
        item
    }

    /// Changes from memory that are not sent.
    pub(crate) fn items(&self) -> u64 {
        self.items.len() as u64
    }

    /// Bytes that the lists take.
    pub(crate) fn list_bytes(&self) -> u64 {
        self.charged as u64
    }

    /// Bytes of messages from disk that are not sent.
    pub(crate) fn frame_bytes(&self) -> u64 {
        let bytes: usize = self.frames.iter().map(|frames| frames.len()).sum();
        (bytes - self.cut) as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.items.is_empty() && self.notices.is_empty()
    }
}

/// How many messages `frames` are.
pub(crate) fn count_messages(mut frames: &[u8]) -> u64 {
    let mut count = 0;
    while !frames.is_empty() {
        frames = &frames[message_bytes(frames)..];
        count += 1;
    }
    count
}

/// Bytes of the message that is the first of `frames`.
fn message_bytes(frames: &[u8]) -> usize {
    let length = frames[8..].first_chunk().expect("frames are whole messages");
    HEADER_BYTES + u32::from_be_bytes(*length) as usize
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.account.release(Part::Streams, self.charged);
        self.follower.list_takes(self.charged, 0);
    }
}
