//! What came is applied, in its order, and what follows from it is said.

use std::time::Duration;

use base::{Seqno, VbId, VbState};
use engine::{Incoming, Refusal, ReplicaRefusal};
use protocol::dcp::EndReason;
use protocol::{Response, Status, opcode};
use vbucket::{FailoverEntry, IncomingSnapshot, Misplaced, SnapshotKind};

use super::track::{Queued, Stage, Trouble, Work};
use super::turn::ConsumerTurn;
use super::{Consumer, Disconnect, MOST_ROLLBACKS, Mode};

/// A vBucket that has to forget everything after a seqno: on a thread of its own, as that reads and writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollBack {
    /// Which.
    pub vb: VbId,
    /// What it keeps.
    pub to: Seqno,
}

/// What settling came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// To be done elsewhere, and told by [`Consumer::rolled_back`].
    pub rollbacks: Vec<RollBack>,
    /// vBuckets whose file is to be brought and put in place, told by [`Consumer::rolled_back`], too.
    pub fills: Vec<VbId>,
    /// What is this node's now, and for how long nobody could write meanwhile.
    pub taken_over: Vec<(VbId, Option<Duration>)>,
    /// Whether something could not be applied for want of memory: to be settled again when there is room
    /// ([`engine::Replicas::replica_room`]).
    pub is_full: bool,
    /// Whether the turn ended before the messages that came: there is more to do at once, when others of the thread have
    /// had their turn.
    pub has_more: bool,
}

/// What of a vBucket's messages is left.
enum Left {
    /// Nothing.
    Nothing,
    /// Something waits for memory.
    Full,
    /// Something waits for the next turn.
    Turn,
}

/// What became of a piece of work.
enum Done {
    /// It is done.
    Yes,
    /// It has to wait, and what comes behind it.
    Full,
    /// Instead of what the stream brings a file is to come.
    ByFile,
    /// The stream is over.
    Ended(Trouble),
    /// The vBucket was taken over.
    TakenOver,
}

impl Consumer {
    /// Applies what was received, acknowledges it, and tells what is to be done elsewhere.
    ///
    /// An error means that the producer broke the protocol: the connection is to be closed.
    pub fn settle(&mut self, out: &mut Vec<u8>) -> Result<Settled, Disconnect> {
        let mut settled = Settled { has_more: self.received.is_over(), ..Settled::default() };
        let mut turn = ConsumerTurn::default();
        let due = std::mem::take(&mut self.due);
        for (at, &vb) in due.iter().enumerate() {
            if turn.is_over() {
                settled.has_more = true;
                // In the next turn they come before those that had theirs.
                self.due.splice(0..0, due[at..].iter().copied());
                break;
            }
            match self.settle_vbucket(vb, &mut turn, &mut settled, out)? {
                Left::Nothing => {}
                Left::Full => {
                    settled.is_full = true;
                    self.due.push(vb);
                }
                Left::Turn => {
                    settled.has_more = true;
                    self.due.push(vb);
                }
            }
            self.acknowledge_prepares(vb, out);
        }
        settled.rollbacks = std::mem::take(&mut self.rollbacks);
        settled.fills = std::mem::take(&mut self.fills);
        self.acknowledge_persisted(out);
        self.counts.full += u64::from(settled.is_full);
        self.acknowledge(self.config.least_acknowledged(), out);
        Ok(settled)
    }

    /// Applies what came for one vBucket, as far as the turn and the memory allow.
    fn settle_vbucket(
        &mut self,
        vb: VbId,
        turn: &mut ConsumerTurn,
        settled: &mut Settled,
        out: &mut Vec<u8>,
    ) -> Result<Left, Disconnect> {
        // It is taken out while it is worked on, so that the rest of the consumer can be used.
        let Some(mut track) = self.tracks.get_mut(usize::from(vb.0)).and_then(Option::take) else {
            return Ok(Left::Nothing);
        };
        let mut left = Left::Nothing;
        let mut ended = None;
        while let Some(mut queued) = track.queue.pop_front() {
            if turn.is_over() {
                track.queue.push_front(queued);
                left = Left::Turn;
                break;
            }
            let (before, messages) = (queued.bytes(), queued.messages());
            let done = self.work(vb, &mut track, &mut queued, out);
            match done {
                // What waits for memory is no work: it waits until there is room, not for the next turn.
                Ok(Done::Full) => turn.count(messages - queued.messages(), 0),
                _ => turn.count(messages, before),
            }
            match done {
                Ok(Done::Yes) => {
                    self.held_bytes -= before;
                    self.applied_bytes += before;
                }
                Ok(Done::Full) => {
                    track.queue.push_front(queued);
                    left = Left::Full;
                    break;
                }
                Ok(Done::ByFile) => {
                    self.held_bytes -= before;
                    self.applied_bytes += before;
                    give_way(self, vb, &mut track, out);
                }
                Ok(Done::Ended(trouble)) => {
                    self.held_bytes -= before;
                    self.applied_bytes += before;
                    self.give_up_queue(&mut track);
                    self.counts.ends += 1;
                    ended = Some(trouble);
                }
                Ok(Done::TakenOver) => {
                    self.held_bytes -= before;
                    self.applied_bytes += before;
                    track.stage = Stage::TakenOver;
                    track.trouble = None;
                    self.counts.taken_over += 1;
                    settled.taken_over.push((vb, track.blocked_for));
                }
                Err(disconnect) => {
                    self.held_bytes -= before;
                    self.tracks[usize::from(vb.0)] = Some(track);
                    return Err(disconnect);
                }
            }
        }
        track.is_due = !matches!(left, Left::Nothing);
        self.tracks[usize::from(vb.0)] = Some(track);
        if let Some(trouble) = ended {
            self.put_off(vb, trouble, out);
        }
        Ok(left)
    }

    fn work(
        &mut self,
        vb: VbId,
        track: &mut super::Track,
        queued: &mut Queued,
        out: &mut Vec<u8>,
    ) -> Result<Done, Disconnect> {
        // What comes behind the role of the active one, or behind the end, is the end of the stream and no more.
        if track.stage == Stage::TakenOver {
            return Ok(match queued.work {
                Work::End(reason) if self.led.is_some() => Done::Ended(Trouble::Ended(reason)),
                _ => Done::Yes,
            });
        }
        let outcome = match &mut queued.work {
            Work::Accepted(log) => {
                let accepted = self.accepted(track, std::mem::take(log));
                if accepted.is_ok() {
                    super::led::tell_added(track, Status::Success, out);
                }
                accepted
            }
            Work::Snapshot(snapshot, _) if is_better_by_file(self, track, snapshot) => {
                return Ok(Done::ByFile);
            }
            Work::Snapshot(snapshot, acknowledge) => {
                self.counts.filled_by_documents += u64::from(snapshot.kind == SnapshotKind::InitialDisk);
                let begun = stream_of(track)
                    .and_then(|stream| self.bucket.replicas().begin_snapshot(stream, snapshot));
                if begun.is_ok() && *acknowledge {
                    track.acknowledge_at = Some(snapshot.end);
                }
                begun
            }
            Work::Changes(changes, last, _) => {
                let outcome = self.apply(track, changes);
                if outcome.is_ok() {
                    track.applied = *last;
                    // Something came of it: pauses are short again.
                    track.failures = 0;
                }
                outcome
            }
            Work::Advanced(seqno) => stream_of(track)
                .and_then(|stream| self.bucket.replicas().seqno_advanced(stream, *seqno))
                .map(|_| track.applied = *seqno),
            Work::State(state) => return Ok(self.take_role(vb, track, *state, out)),
            Work::End(reason) => return Ok(self.producer_ended(vb, track, *reason)),
        };
        match outcome {
            Ok(()) => {
                acknowledge_snapshot(track, out);
                Ok(Done::Yes)
            }
            Err(ReplicaRefusal::Full) => Ok(Done::Full),
            Err(refusal) => match broken(refusal) {
                Some(what) => Err(Disconnect::Violation(vb, what)),
                None => {
                    note_fault(self, vb, refusal);
                    super::close_stream(vb, out);
                    Ok(Done::Ended(Trouble::Here(why_not(refusal))))
                }
            },
        }
    }

    /// The producer ended a stream.
    fn producer_ended(&self, vb: VbId, track: &mut super::Track, reason: EndReason) -> Done {
        // The history is another one now: it is asked for at once.
        if let EndReason::Unknown(code) = reason
            && let Some(left_out) = engine::admit_log(&self.bucket, "unknown end of a stream")
        {
            let (bucket, name) = (self.bucket.name(), self.config.name.as_str());
            tracing::warn!(
                event = "stream_ended_oddly", bucket, link = name, %vb, code, left_out,
                "another node ended a stream for a reason that this version does not know; it is asked for again"
            );
        }
        let is_sudden = reason != EndReason::Rollback;
        track.failures = if is_sudden { track.failures } else { 0 };
        Done::Ended(Trouble::Ended(reason))
    }

    fn accepted(&mut self, track: &mut super::Track, log: Vec<FailoverEntry>) -> Result<(), ReplicaRefusal> {
        let position = track.position.take().ok_or(ReplicaRefusal::NotReplica)?;
        track.stream = Some(self.bucket.replicas().adopt_failover(&position, log)?);
        track.rollbacks = 0;
        Ok(())
    }

    fn apply(&mut self, track: &mut super::Track, changes: &mut Vec<Incoming>) -> Result<(), ReplicaRefusal> {
        let before = changes.len();
        let outcome = self.bucket.replicas().apply_replicated(stream_of(track)?, changes);
        self.counts.changes += (before - changes.len()) as u64;
        outcome.map(|_| ())
    }

    /// The producer hands the vBucket over, step by step; each is answered when it is done here.
    fn take_role(&mut self, vb: VbId, track: &mut super::Track, state: VbState, out: &mut Vec<u8>) -> Done {
        // If it was removed or given another role meanwhile, what the producer hands over is not wanted any more.
        let taken = track.stream.map_or(Ok(false), |stream| self.bucket.roles().hand_over(stream, state));
        let refused = match taken {
            Ok(true) => None,
            Ok(false) => Some(why_not(ReplicaRefusal::NotReplica)),
            Err(_) => Some("the vBucket cannot be given its role"),
        };
        if let Some(why) = refused {
            super::close_stream(vb, out);
            return Done::Ended(Trouble::Here(why));
        }
        let (opcode, opaque) = (opcode::DCP_SET_VBUCKET_STATE, track.opaque);
        Response { opcode, opaque, ..Response::default() }.write(out);
        if state == VbState::Pending {
            // From the answer on the producer takes no more changes.
            track.blocked_since = Some(self.now());
            return Done::Yes;
        }
        track.blocked_for = track.blocked_since.take().map(|since| self.now().saturating_sub(since));
        Done::TakenOver
    }

    /// A vBucket has to forget what the producer's history does not have.
    pub(super) fn roll_back(&mut self, vb: VbId, to: Seqno, out: &mut Vec<u8>) {
        let Some(track) = self.track(vb) else { return };
        track.rollbacks += 1;
        let is_endless = track.rollbacks > MOST_ROLLBACKS || to > track.applied;
        if is_endless {
            track.rollbacks = 0;
            self.counts.ends += 1;
            self.pause(vb, Trouble::Rollback, out);
            return;
        }
        track.stage = Stage::RollingBack;
        self.counts.rollbacks += 1;
        self.rollbacks.push(RollBack { vb, to });
    }
}

/// Whether what a snapshot has is faster here with the file that it is read from.
fn is_better_by_file(consumer: &Consumer, track: &super::Track, snapshot: &IncomingSnapshot) -> bool {
    let may = consumer.config.takes_files && track.mode == Mode::Replicate && track.stream.is_some();
    let is_first = snapshot.kind == SnapshotKind::InitialDisk && track.applied == Seqno(0);
    if !may || !is_first || track.has_no_file {
        return false;
    }
    let changes = snapshot.end.0.saturating_sub(snapshot.start.0);
    consumer.bucket.roles().fills_by_file().is_some_and(|least| changes >= least)
}

/// Instead of what a stream brings a file is to come.
fn give_way(consumer: &mut Consumer, vb: VbId, track: &mut super::Track, out: &mut Vec<u8>) {
    consumer.give_up_queue(track);
    track.stage = Stage::Filling;
    track.stream = None;
    super::close_stream(vb, out);
    consumer.fills.push(vb);
}

fn stream_of(track: &super::Track) -> Result<engine::ReplicaStream, ReplicaRefusal> {
    track.stream.ok_or(ReplicaRefusal::NotReplica)
}

/// A snapshot whose end is to be acknowledged, and is here.
fn acknowledge_snapshot(track: &mut super::Track, out: &mut Vec<u8>) {
    if track.acknowledge_at.is_some_and(|end| track.applied >= end) {
        track.acknowledge_at = None;
        let (opcode, opaque) = (opcode::DCP_SNAPSHOT_MARKER, track.opaque);
        Response { opcode, opaque, ..Response::default() }.write(out);
    }
}

/// What the producer did wrong, if it did.
fn broken(refusal: ReplicaRefusal) -> Option<&'static str> {
    Some(match refusal {
        ReplicaRefusal::Misplaced(Misplaced::NoSnapshot) => "a change without a snapshot",
        ReplicaRefusal::Misplaced(Misplaced::NotRising) => "a seqno that does not rise",
        ReplicaRefusal::Misplaced(Misplaced::OutsideSnapshot) => "a change outside of its snapshot",
        ReplicaRefusal::Misplaced(Misplaced::BadSnapshot) => "a snapshot that cannot be",
        ReplicaRefusal::Misplaced(Misplaced::BadEvent) => "an event of collections that cannot be read",
        ReplicaRefusal::Misplaced(Misplaced::NotPrepared) => "a commit of what is not prepared",
        ReplicaRefusal::BadFailoverLog => "a failover log that cannot be",
        ReplicaRefusal::Malformed => "a change that cannot be",
        // The link goes on with the other vBuckets.
        ReplicaRefusal::Misplaced(Misplaced::NoCollection)
        | ReplicaRefusal::NotReplica
        | ReplicaRefusal::Loading
        | ReplicaRefusal::Full
        | ReplicaRefusal::NotSupported => return None,
    })
}

fn why_not(refusal: ReplicaRefusal) -> &'static str {
    match refusal {
        ReplicaRefusal::NotReplica => "the vBucket here is no replica, or became another one",
        ReplicaRefusal::Loading => "the vBucket's documents are not loaded yet",
        ReplicaRefusal::NotSupported => "a kind of change that is not taken yet",
        ReplicaRefusal::Misplaced(Misplaced::NoCollection) => {
            "the source sent a change in a collection that the vBucket does not have"
        }
        _ => "it cannot be applied here",
    }
}

/// Why it cannot be said where a vBucket stands.
pub(super) fn why(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Loading => "the vBucket's documents are not loaded yet",
        Refusal::NotMyVbucket => "the vBucket here is no replica",
        _ => "it is not known where the vBucket stands",
    }
}

/// Counts and logs a message that no source should send, and that costs the stream alone.
fn note_fault(consumer: &mut Consumer, vb: VbId, refusal: ReplicaRefusal) {
    let faults = [ReplicaRefusal::NotSupported, ReplicaRefusal::Misplaced(Misplaced::NoCollection)];
    if !faults.contains(&refusal) {
        return;
    }
    consumer.counts.unsupported += 1;
    if let Some(left_out) = engine::admit_log(&consumer.bucket, "fault in a stream") {
        let (bucket, name, why) = (consumer.bucket.name(), consumer.config.name.as_str(), why_not(refusal));
        tracing::warn!(
            event = "stream_reopened", bucket, link = name, %vb, why, left_out,
            "a stream has a message that this replica cannot apply: the stream is closed and asked for again"
        );
    }
}
