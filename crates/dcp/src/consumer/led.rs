//! A consumer whose other end says which vBuckets it follows: a client that opened the connection, and that passes on what
//! it is sent to a producer, and what the producer answers and sends.
//!
//! The rest is that of a consumer which this node leads itself. But a stream that is over is not asked for again: the
//! client does that if it wants to. And a message that cannot be taken is answered with a status.
//! Sources: `docs/dcp/documentation/commands/*.md`, and the recorded answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Seqno, VbId, VbState};
use engine::Bucket;
use protocol::dcp::{EndReason, Message, StreamFlags, What};
use protocol::frame::ClientAnswer;
use protocol::{HEADER_BYTES, Request, Response, Status, opcode};

use super::track::{Stage, Track, Trouble};
use super::{ASK_SEQNOS_EVERY, Consumer, ConsumerConfig, Disconnect, Mode, close_stream, controls};

/// What the connection is to remember.
#[derive(Default)]
pub(super) struct Led {
    /// The last stream of each vBucket that is followed no more, by opaque: what is still on its way is passed over.
    over: BTreeMap<VbId, u32>,
}

/// What was asked for.
pub(super) struct Added {
    /// How.
    pub(super) flags: StreamFlags,
    /// The opaque of the request, until it is answered.
    opaque: Option<u32>,
    /// The last change that came, applied or not.
    last: Seqno,
    /// The end of the snapshot that came last.
    snapshot_end: Option<Seqno>,
}

impl Added {
    /// It is asked for what is behind `start`.
    pub(super) fn begin(&mut self, start: Seqno) {
        self.last = start;
        self.snapshot_end = None;
    }

    /// Looks whether a message stands where it can, and takes its place into account.
    fn place(&mut self, what: &What) -> Result<(), Status> {
        let seqno = match *what {
            What::Marker(marker) => {
                // Both of it are behind the last change when a producer begins where it was asked to.
                if marker.start > marker.end {
                    return Err(Status::Einval);
                }
                if marker.end <= self.last && marker.start < self.last {
                    return Err(Status::Erange);
                }
                self.snapshot_end = Some(marker.end);
                return Ok(());
            }
            What::Mutation(mutation) => mutation.by_seqno,
            What::Deletion(deletion) | What::Expiration(deletion) => deletion.by_seqno,
            What::Prepare(prepare) => prepare.mutation.by_seqno,
            What::SystemEvent(seqno, ..)
            | What::Commit(_, seqno)
            | What::Abort(_, seqno)
            | What::SeqnoAdvanced(seqno) => seqno,
            What::OutOfOrder(_) => return Err(Status::NotSupported),
            What::SetVbucketState(_) | What::End(_) => return Ok(()),
        };
        if seqno <= self.last || self.snapshot_end.is_none_or(|end| seqno > end) {
            return Err(Status::Erange);
        }
        self.last = seqno;
        Ok(())
    }
}

/// The request for a stream is answered, if that is still to be done.
pub(super) fn tell_added(track: &mut Track, status: Status, out: &mut Vec<u8>) {
    let stream = track.opaque.to_be_bytes();
    let Some(opaque) = track.added.as_mut().and_then(|added| added.opaque.take()) else { return };
    let extras = if status == Status::Success { &stream[..] } else { &[] };
    Response { opcode: opcode::DCP_ADD_STREAM, opaque, status, extras, ..Response::default() }.write(out);
}

/// What is answered to a client that asked for a stream that did not come about.
fn status_of(trouble: Trouble) -> Status {
    match trouble {
        Trouble::Status(code) => Status::from_code(code).unwrap_or(Status::Einternal),
        Trouble::Ended(_) => Status::KeyEnoent,
        Trouble::Here(_) => Status::Etmpfail,
        Trouble::Rollback => Status::Rollback,
    }
}

/// Bytes of a whole message.
fn bytes_of(request: &Request<'_>) -> u64 {
    let parts = [request.frame_infos, request.extras, request.key, request.value];
    HEADER_BYTES as u64 + parts.into_iter().map(|part| part.len() as u64).sum::<u64>()
}

impl Consumer {
    /// A consumer for vBuckets of `bucket` that a client adds; none yet.
    pub fn led(bucket: Arc<Bucket>, config: ConsumerConfig) -> Consumer {
        let mut consumer = Consumer::new(bucket, config);
        consumer.led = Some(Led::default());
        // No client takes the number of a stream for that of none.
        consumer.next_opaque = 1;
        consumer
    }

    /// vBuckets that are followed.
    pub fn streams(&self) -> usize {
        self.tracks.iter().flatten().count()
    }

    /// The client asks for a stream; that is answered when the producer has answered.
    ///
    /// # Errors
    ///
    /// The answer to a request for a stream that is not asked for.
    pub fn add_stream(
        &mut self,
        vb: VbId,
        opaque: u32,
        flags: StreamFlags,
        out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        if !matches!(self.bucket.state_of(vb), Some(VbState::Replica | VbState::Pending)) {
            return Err(Status::NotMyVbucket);
        }
        if self.is_void(vb) {
            self.close_added(vb, EndReason::StateChanged, out);
        }
        if self.track(vb).is_some() {
            return Err(Status::KeyEexists);
        }
        let Some(place) = self.tracks.get_mut(usize::from(vb.0)) else { return Err(Status::NotMyVbucket) };
        let mode = if flags.has(StreamFlags::TAKEOVER) { Mode::TakeOver } else { Mode::Replicate };
        let added = Added { flags, opaque: Some(opaque), last: Seqno(0), snapshot_end: None };
        *place = Some(Box::new(Track { added: Some(added), ..Track::new(mode) }));
        self.follow_prepares(vb);
        self.ask(vb, out);
        Ok(())
    }

    /// The client wants no more of a stream; the producer is told.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn remove_stream(&mut self, vb: VbId, out: &mut Vec<u8>) -> Result<(), Status> {
        if self.track(vb).is_none() {
            return Err(Status::KeyEnoent);
        }
        self.close_added(vb, EndReason::Closed, out);
        Ok(())
    }

    /// Takes a message of a stream; what it brings waits for [`Consumer::settle`].
    ///
    /// # Errors
    ///
    /// The answer to a message that is not taken.
    pub fn take(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let Some(message) = Message::read(request) else {
            self.refused(request, out);
            return Err(Status::Einval);
        };
        let bytes = bytes_of(request);
        self.is_heard = true;
        self.counts.bytes += bytes;
        let taken = self.take_message(&message, bytes, out);
        if taken.is_err() {
            // The producer counts it among what is on its way.
            self.applied_bytes += bytes;
        }
        taken
    }

    /// A message was refused without being looked at here: it cannot be read, or is not what was agreed on. Without it the
    /// vBucket would have a gap, so its stream ends.
    pub fn refused(&mut self, request: &Request<'_>, out: &mut Vec<u8>) {
        let bytes = bytes_of(request);
        self.is_heard = true;
        self.counts.bytes += bytes;
        self.counts.unsupported += 1;
        // The producer counts it among what is on its way.
        self.applied_bytes += bytes;
        let (vb, opaque) = (request.vbucket, request.opaque);
        if self.track(vb).is_some_and(|track| track.opaque == opaque && track.stage == Stage::Streaming) {
            self.close_added(vb, EndReason::Closed, out);
        }
        self.acknowledge(self.config.least_acknowledged(), out);
    }

    fn take_message(&mut self, message: &Message<'_>, bytes: u64, out: &mut Vec<u8>) -> Result<(), Status> {
        let (vb, opaque) = (message.vb, message.opaque);
        let has_room = self.unacknowledged_bytes() + bytes <= self.most_unacknowledged_bytes();
        let is_over = self.led.as_ref().is_some_and(|led| led.over.get(&vb) == Some(&opaque));
        let streams = |stage| matches!(stage, Stage::Streaming | Stage::TakenOver);
        let track = match self.track(vb) {
            Some(track) if track.opaque == opaque && streams(track.stage) => track,
            _ if is_over => {
                self.counts.strays += 1;
                self.applied_bytes += bytes;
                return Ok(());
            }
            Some(track) if track.opaque != opaque && streams(track.stage) => return Err(Status::KeyEexists),
            _ => return Err(Status::KeyEnoent),
        };
        track.added.as_mut().map_or(Ok(()), |added| added.place(&message.what))?;
        let refused = if has_room {
            match self.on_message(message, bytes) {
                Ok(()) => return Ok(()),
                Err(_) => Status::Einval,
            }
        } else {
            Status::Etmpfail
        };
        // Without it the vBucket would have a gap: the stream ends here.
        self.counts.unsupported += 1;
        self.close_added(vb, EndReason::Closed, out);
        Err(refused)
    }

    /// The producer answers what it was sent.
    ///
    /// # Errors
    ///
    /// The connection is to be closed: it refuses what is needed.
    pub fn answered(&mut self, answer: &ClientAnswer<'_>, out: &mut Vec<u8>) -> Result<(), Disconnect> {
        self.is_heard = true;
        let ClientAnswer { opcode, status, opaque, value } = *answer;
        match opcode {
            opcode::DCP_STREAM_REQ => self.on_stream_answer(opaque, status, value, out),
            opcode::DCP_CONTROL => match controls::answered(&self.config, opcode, opaque, status) {
                Err(refused @ Disconnect::Refused(..)) => Err(refused),
                // Between the producer and this node others may say something of their own.
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Something came that shows that the other end lives.
    pub fn heard(&mut self) {
        self.is_heard = true;
    }

    /// This end wants no more of a vBucket's stream: the producer is told, if it may still send something.
    fn close_added(&mut self, vb: VbId, reason: EndReason, out: &mut Vec<u8>) {
        if self.track(vb).is_some_and(|track| matches!(track.stage, Stage::Asked | Stage::Streaming)) {
            close_stream(vb, out);
        }
        self.end_added(vb, Trouble::Ended(reason), out);
    }

    /// A vBucket is followed no more, or not at all: the client is told if its request was not answered. What came and is
    /// not applied is given up.
    pub(super) fn end_added(&mut self, vb: VbId, trouble: Trouble, out: &mut Vec<u8>) {
        let Some(mut track) = self.tracks.get_mut(usize::from(vb.0)).and_then(Option::take) else { return };
        self.unfollow_prepares(vb);
        self.give_up_queue(&mut track);
        self.rollbacks.retain(|rollback| rollback.vb != vb);
        if let Some(led) = &mut self.led {
            led.over.insert(vb, track.opaque);
        }
        tell_added(&mut track, status_of(trouble), out);
        self.acknowledge(self.config.least_acknowledged(), out);
    }

    /// Whether a vBucket's stream is void: its role or its content here is another one now.
    fn is_void(&mut self, vb: VbId) -> bool {
        let bucket = Arc::clone(&self.bucket);
        let stage_and_stream = self.track(vb).map(|track| (track.stage, track.stream));
        match stage_and_stream {
            Some((Stage::Streaming, Some(stream))) => !bucket.replicas().is_followed(stream),
            Some((Stage::TakenOver, _)) => true,
            Some(_) => !matches!(bucket.state_of(vb), Some(VbState::Replica | VbState::Pending)),
            None => false,
        }
    }

    /// What is due: a vBucket's role changed while nothing came for it. Answers when to look again.
    pub(super) fn tick_led(&mut self, now: Duration, out: &mut Vec<u8>) -> Duration {
        if now >= self.seqnos_at {
            self.seqnos_at = now + ASK_SEQNOS_EVERY;
            for vb in (0..self.bucket.vbuckets()).map(VbId) {
                let is_taken_over = self.track(vb).is_some_and(|track| track.stage == Stage::TakenOver);
                if !is_taken_over && self.is_void(vb) {
                    self.close_added(vb, EndReason::StateChanged, out);
                }
            }
        }
        self.seqnos_at
    }
}
