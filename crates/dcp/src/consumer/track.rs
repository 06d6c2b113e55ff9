//! One vBucket that a consumer follows: how far its stream is, and what came and is not applied yet.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Seqno, VbState};
use engine::{Incoming, ReplicaPosition, ReplicaStream};
use protocol::dcp::EndReason;
use vbucket::{FailoverEntry, IncomingSnapshot};

use super::led::Added;

/// What is to become of a vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It follows the active one.
    Replicate,
    /// It becomes the active one.
    TakeOver,
}

/// Where a vBucket stands, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is asked for again after a pause.
    Pausing,
    /// It was asked for.
    Asked,
    /// What the producer's history does not have is being forgotten.
    RollingBack,
    /// The file of the producer's vBucket comes, instead of the documents that are in it.
    Filling,
    /// Changes come.
    Streaming,
    /// It was taken over: the producer gave it away and this node is the active one.
    TakenOver,
}

impl Stage {
    /// Its name in status and stats.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Pausing => "pausing",
            Stage::Asked => "asked",
            Stage::RollingBack => "rolling back",
            Stage::Filling => "filling by file",
            Stage::Streaming => "streaming",
            Stage::TakenOver => "taken over",
        }
    }
}

/// Something that came and is applied in its turn.
pub(super) enum Work {
    /// The stream began; these are the producer's histories.
    Accepted(Vec<FailoverEntry>),
    /// A snapshot begins; whether its end is to be acknowledged.
    Snapshot(IncomingSnapshot, bool),
    /// Changes, the seqno of the last one, and bytes of their messages.
    Changes(Vec<Incoming>, Seqno, u64),
    /// Up to here there is nothing more.
    Advanced(Seqno),
    /// The role that the producer gives the vBucket.
    State(VbState),
    /// The stream ended.
    End(EndReason),
}

/// What came for a vBucket, and the bytes of the message.
pub(super) struct Queued {
    pub(super) work: Work,
    /// Bytes to acknowledge when it is done, beside those of changes.
    pub(super) bytes: u64,
}

/// A vBucket.
pub(super) struct Track {
    pub(super) mode: Mode,
    pub(super) stage: Stage,
    /// Of its stream, or of the request for it.
    pub(super) opaque: u32,
    /// What was asked for.
    pub(super) position: Option<ReplicaPosition>,
    /// The stream as the bucket knows it.
    pub(super) stream: Option<ReplicaStream>,
    /// Rollbacks since the last stream.
    pub(super) rollbacks: u32,
    /// What is not applied yet, in order.
    pub(super) queue: VecDeque<Queued>,
    /// Whether it waits for its turn to be applied.
    pub(super) is_due: bool,
    /// A snapshot of a vBucket that is taken over is acknowledged when everything up to here is applied.
    pub(super) acknowledge_at: Option<Seqno>,
    /// Everything up to here is applied, as far as this stream is concerned.
    pub(super) applied: Seqno,
    /// Prepares up to here were acknowledged on this stream.
    pub(super) acknowledged: Seqno,
    /// Attempts that failed one after the other: pauses grow with them.
    pub(super) failures: u32,
    /// When it is asked for again.
    pub(super) again_at: Duration,
    /// The last change of the producer, as of the last time that it was asked.
    pub(super) source_high: Option<Seqno>,
    /// Since when nobody can write, because the producer was told that it may give the vBucket away.
    pub(super) blocked_since: Option<Duration>,
    /// For how long nobody could write.
    pub(super) blocked_for: Option<Duration>,
    /// Why it is pausing.
    pub(super) trouble: Option<Trouble>,
    /// No file came of it: it is filled by documents.
    pub(super) has_no_file: bool,
    /// Of a vBucket that is followed because the other end said so.
    pub(super) added: Option<Added>,
}

/// Why a vBucket does not stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The producer answered with this status.
    Status(u16),
    /// The producer ended the stream.
    Ended(EndReason),
    /// This node cannot take it: why.
    Here(&'static str),
    /// The producer wants it to go back again and again, or to where it never was.
    Rollback,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Status(code) => match protocol::Status::from_code(*code) {
                Some(status) => write!(f, "the source refuses it: {}", status.text()),
                None => write!(f, "the source refuses it with status 0x{code:02x}"),
            },
            Trouble::Ended(reason) => write!(f, "the source ended the stream ({reason:?})"),
            Trouble::Here(what) => f.write_str(what),
            Trouble::Rollback => f.write_str("the source asks to roll back without end"),
        }
    }
}

/// The first pause before a stream is asked for again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

impl Track {
    pub(super) fn new(mode: Mode) -> Track {
        Track {
            mode,
            stage: Stage::Pausing,
            opaque: 0,
            position: None,
            stream: None,
            rollbacks: 0,
            queue: VecDeque::new(),
            is_due: false,
            acknowledge_at: None,
            applied: Seqno(0),
            acknowledged: Seqno(0),
            failures: 0,
            again_at: Duration::ZERO,
            source_high: None,
            blocked_since: None,
            blocked_for: None,
            trouble: None,
            has_no_file: false,
            added: None,
        }
    }

    /// Has it asked for again after a pause that grows with each failure.
    pub(super) fn pause(&mut self, now: Duration, trouble: Trouble) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.stage = Stage::Pausing;
        self.again_at = now + pause;
        self.trouble = Some(trouble);
        self.acknowledge_at = None;
    }

    /// Bytes of everything that is not applied.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.queue.iter().map(Queued::bytes).sum()
    }
}

impl Queued {
    /// Messages that it is made of.
    pub(super) fn messages(&self) -> usize {
        match &self.work {
            Work::Changes(changes, ..) => changes.len(),
            _ => 1,
        }
    }

    /// Bytes to acknowledge when it is done.
    pub(super) fn bytes(&self) -> u64 {
        match self.work {
            Work::Changes(_, _, bytes) => self.bytes + bytes,
            _ => self.bytes,
        }
    }
}
