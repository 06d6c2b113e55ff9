//! Where links stand, for people and for whoever declares what is replicated.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{Seqno, VbId};
use dcp::{ConsumerCounts, Mode, Stage, VbProgress};

use super::link::{Inner, Link, LinkState};

/// What taking over came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeOvers {
    /// vBuckets that are this node's now.
    pub done: u64,
    /// The longest time for which nobody could write to one of them, as this node saw it.
    pub blocked_longest: Duration,
    /// Those times together.
    pub blocked_total: Duration,
}

/// Where a link stands.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Of which bucket.
    pub bucket: String,
    /// The node that it follows.
    pub node: String,
    /// Who it logs in as.
    pub username: String,
    /// The name of its connection.
    pub name: String,
    /// How far it is.
    pub state: LinkState,
    /// vBuckets that it follows or takes over; those that it took over are not among them.
    pub vbuckets: Vec<VbProgress>,
    /// What it took over.
    pub taken_over: TakeOvers,
    /// What it counted, on all of its connections.
    pub counts: ConsumerCounts,
    /// Bytes that came and are not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Bytes that may be on their way to it; 0 while it is not connected.
    pub buffer_bytes: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were given up because the source broke the protocol.
    pub violations: u64,
    /// Why the last connection broke.
    pub last_error: Option<String>,
    /// Bytes of files that came to fill vBuckets.
    pub file_bytes: u64,
    /// vBuckets that were filled by documents because no file of theirs could be had or used.
    pub files_refused: u64,
    /// Why, the last time.
    pub file_refused: Option<String>,
}

impl LinkStatus {
    pub(super) fn of(link: &Link, inner: &Inner) -> LinkStatus {
        let mut counts = inner.before;
        let mut vbuckets: Vec<VbProgress> = Vec::new();
        if let Some(consumer) = &inner.consumer {
            counts.add(&consumer.counts());
            vbuckets.extend(consumer.progress().filter(|progress| progress.stage != Stage::TakenOver));
        }
        // Those that wait for a connection, or for others to be taken over.
        let is_told: BTreeSet<VbId> = vbuckets.iter().map(|progress| progress.vb).collect();
        let is_waiting = |vb: &VbId| !inner.taken_over.contains_key(vb) && !is_told.contains(vb);
        let wanted = inner.wanted.iter().filter(|(vb, _)| is_waiting(vb));
        vbuckets.extend(wanted.map(|(vb, mode)| waiting(link, *vb, *mode)));
        vbuckets.sort_unstable_by_key(|progress| progress.vb);
        let blocked = || inner.taken_over.values().flatten().copied();
        LinkStatus {
            bucket: link.bucket.name().to_owned(),
            node: link.node().to_owned(),
            username: link.username().to_owned(),
            name: link.connection_name(),
            state: inner.state,
            vbuckets,
            taken_over: TakeOvers {
                done: inner.taken_over.len() as u64,
                blocked_longest: blocked().max().unwrap_or_default(),
                blocked_total: blocked().sum(),
            },
            counts,
            unacknowledged_bytes: inner.consumer.as_ref().map_or(0, dcp::Consumer::unacknowledged_bytes),
            buffer_bytes: inner.consumer.as_ref().map_or(0, |consumer| consumer.config().buffer_bytes.into()),
            connections: inner.connections,
            violations: inner.violations,
            last_error: inner.last_error.clone(),
            file_bytes: link.file_bytes.load(Ordering::Relaxed),
            files_refused: inner.files_refused,
            file_refused: inner.file_refused.clone(),
        }
    }

    /// vBuckets whose changes come just now.
    pub fn streaming(&self) -> usize {
        self.vbuckets.iter().filter(|progress| progress.stage == Stage::Streaming).count()
    }

    /// Changes that the source had when it was asked last, and this node has not; nothing if it never answered.
    pub fn lag(&self) -> Option<u64> {
        self.vbuckets.iter().map(lag_of).sum()
    }

    /// Whether everything comes, and was here when the source was asked last.
    pub fn is_caught_up(&self) -> bool {
        let is_here = |progress: &VbProgress| {
            progress.stage == Stage::Streaming
                && progress.mode == Mode::Replicate
                && lag_of(progress) == Some(0)
        };
        self.vbuckets.iter().all(is_here)
    }
}

/// Changes that a vBucket's source had when it was asked last, and this node has not.
pub fn lag_of(progress: &VbProgress) -> Option<u64> {
    progress.source_high.map(|high| high.0.saturating_sub(progress.high.0))
}

fn waiting(link: &Link, vb: VbId, mode: Mode) -> VbProgress {
    VbProgress {
        vb,
        mode,
        stage: Stage::Pausing,
        high: link.bucket.streams().stream_state(vb).map_or(Seqno(0), |(_, _, _, high)| high),
        source_high: None,
        blocked_for: None,
        trouble: None,
        asked: None,
        queued: 0,
    }
}
