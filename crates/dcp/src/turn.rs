//! A stream's turn: what bounds it, what it may know, and what came of it.

use std::cell::Cell;
use std::sync::Arc;

use base::planted::{self, Bug};
use base::{ItemKind, Seqno, SyncWrite, Version, VersionMeta};
use engine::{Bucket, Follower};
use protocol::dcp::OpenFlags;
use vbucket::CursorName;

use crate::agreement::Agreement;
use crate::content::Features;
use crate::sync_writes::{Look, Visible};

/// What a stream says about itself after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for news.
    Idle,
    /// It waits until another stream of the connection is done with the disk.
    Queued,
    /// It has more to send.
    More,
    /// It has ended, and said so.
    Ended,
}

/// What bounds a turn.
pub(crate) struct Allowance {
    /// Bytes that may be sent; the message that exceeds them is the last one.
    most: u64,
    /// Bytes that were sent.
    pub(crate) used: u64,
    /// Messages among them that are changes.
    pub(crate) changes: u64,
}

impl Allowance {
    pub(crate) fn new(most: u64) -> Allowance {
        Allowance { most, used: 0, changes: 0 }
    }

    pub(crate) fn left(&self) -> u64 {
        self.most.saturating_sub(self.used)
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used >= self.most
    }

    pub(crate) fn use_up(&mut self, bytes: usize) {
        self.used += bytes as u64;
    }
}

/// What every stream of a connection has in common.
pub(crate) struct Common<'a> {
    pub(crate) bucket: &'a Bucket,
    pub(crate) follower: &'a Arc<Follower>,
    pub(crate) agreed: &'a Agreement,
    pub(crate) features: Features,
    pub(crate) name: &'a CursorName,
    /// Streams of the connection that read from disk.
    pub(crate) on_disk: &'a Cell<usize>,
    /// A collection is read in the order of keys from so many changes of the vBucket on.
    pub(crate) out_of_order_from: u64,
}

impl Common<'_> {
    /// Where the snapshot of changes in seqno order ends for this consumer, all of which end with `end`.
    pub(crate) fn visible(&self, items: &[Version], end: Seqno, look: Look) -> Visible {
        match self.agreed.sync_writes {
            true => Visible { end, is_hidden_last: false },
            false => Visible::of(items, end, self.features.collections, look),
        }
    }

    /// Whether the consumer is told of prepares, or of gaps in their places.
    pub(crate) fn hears_of_prepares(&self) -> bool {
        self.agreed.sync_writes || self.features.collections
    }

    /// Whether the consumer is told of gaps in place of what it is not shown.
    pub(crate) fn tells_gaps(&self) -> bool {
        self.features.collections && (!self.agreed.sync_writes || self.may_skip_deletions())
    }

    /// Whether a stream that begins from disk leaves deletions out: for who is told of gaps alone.
    pub(crate) fn may_skip_deletions(&self) -> bool {
        self.features.collections && self.agreed.flags.has(OpenFlags::SKIP_DELETES)
    }

    /// What the consumer is told of changes in seqno order, when it has everything up to `sent`.
    pub(crate) fn shown(&self, mut changes: Vec<Version>, sent: Seqno) -> Vec<Version> {
        changes.retain(|version| is_shown(&version.meta(), self.agreed));
        let is_alone = |version: &Version| matches!(version.meta().sync_write, SyncWrite::Alone(_));
        if !self.agreed.sync_writes || !changes.iter().any(is_alone) {
            return changes;
        }
        let parts =
            changes.into_iter().flat_map(|version| match self.bucket.streams().parts_of_alone(&version) {
                Some([prepare, commit]) => [Some(prepare), Some(commit)],
                None => [Some(version), None],
            });
        // It may have the prepare already.
        parts.flatten().filter(|version| version.meta().by_seqno > sent).collect()
    }
}

/// Whether a consumer with whom this was agreed on knows of such changes.
pub(crate) fn is_shown(meta: &VersionMeta, agreed: &Agreement) -> bool {
    if planted::is(Bug::ExpirationsNotSent) && meta.kind == ItemKind::Expiration {
        return false;
    }
    agreed.sync_writes || !meta.sync_write.is_hidden()
}
