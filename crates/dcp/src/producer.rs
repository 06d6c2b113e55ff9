//! A connection that sends changes: its streams by vBucket, whose turn it is, and how much the consumer takes.

mod answers;
mod life;
mod progress;
mod request;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::planted::{self, Bug};
use base::{Seqno, VbId};
use engine::{Bucket, Follower, StreamWanted};
use kvstore::StorageBackend;
use protocol::dcp::EndReason;
use protocol::{Status, opcode};
use vbucket::CursorName;

use crate::agreement::Agreement;
use crate::content::Features;
use crate::interest::{Interest, about};
use crate::sink::Sink;
use crate::stream::Stream;
use crate::turn::{Allowance, Common, Turn};
pub use life::Tick;
pub use progress::{Pause, Progress, StreamKey};
pub use request::StreamRequestRefusal;

/// Bytes that one stream sends before others have their turn.
const TURN_BYTES: u64 = 256 << 10;

/// Bytes that a stream takes beside what it sends, with its cursor in memory and its figures for other threads: a round
/// number above the sum of these.
const STREAM_BYTES: usize = 768;
/// The same of one that reads from disk: its backfill, what writes its messages, and the snapshot.
const BACKFILL_BYTES: usize = 1 << 10;
/// Bytes of a vBucket's places in a connection's tables.
const PLACE_BYTES: usize = size_of::<Option<Box<Stream>>>() + 2 * size_of::<bool>();

/// Why a consumer's acknowledgement of prepares is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcknowledgeRefusal {
    /// It has not said that it takes part in sync writes, and by which name.
    Nameless,
    /// It never had a stream of the vBucket: it cannot have anything of it.
    NoStream,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits: for news, for the disk, or for acknowledgements.
    Idle,
    /// There is more to send at once.
    More,
}

/// A collection is sent in the order of keys, if that was agreed on, from so many changes of the vBucket on: below
/// that everything is read about as quickly.
const OUT_OF_ORDER_FROM: u64 = 10_000;

/// A connection that sends changes.
pub struct Producer {
    bucket: Arc<Bucket>,
    name: CursorName,
    agreed: Agreement,
    features: Features,
    follower: Arc<Follower>,
    /// That of all streams, if the consumer knows no collections.
    default_interest: Arc<Interest>,
    /// By vBucket; nothing for those without streams.
    slots: Box<[Option<Box<Stream>>]>,
    /// vBuckets whose streams want a turn, and which they are.
    queue: VecDeque<VbId>,
    is_queued: Box<[bool]>,
    /// vBuckets that were streamed at some time.
    was_streamed: Box<[bool]>,
    /// Those that wait until another one is done with the disk.
    line: VecDeque<VbId>,
    streams: usize,
    /// Whether a vBucket was handed over to the consumer, or began to be.
    hands_over: bool,
    /// Bytes of what the streams are about.
    interest_bytes: usize,
    /// Streams that read from disk.
    on_disk: Cell<usize>,
    out_of_order_from: u64,
    /// Bytes that were sent and not acknowledged.
    unacknowledged: u64,
    progress: Arc<Progress>,
    noop_sent: bool,
    noop_at: Option<Duration>,
    noop_opaque: u32,
    /// Whether anything was heard since the last look,
    is_heard: bool,
    /// and when it was, on the monotonic clock.
    heard_at: Duration,
    stall_look_at: Option<Duration>,
}

impl Producer {
    /// A producer of `bucket`, as was agreed on. `wake` is called, from any thread, when there may be something to send.
    pub fn new(
        bucket: Arc<Bucket>,
        name: String,
        agreed: Agreement,
        features: Features,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Producer {
        let vbuckets = bucket.vbuckets();
        Producer {
            follower: Follower::new(vbuckets, wake),
            default_interest: Arc::new(Interest::Default),
            slots: (0..vbuckets).map(|_| None).collect(),
            is_queued: vec![false; usize::from(vbuckets)].into_boxed_slice(),
            was_streamed: vec![false; usize::from(vbuckets)].into_boxed_slice(),
            line: VecDeque::new(),
            on_disk: Cell::new(0),
            out_of_order_from: OUT_OF_ORDER_FROM,
            bucket,
            name: name.into(),
            progress: Arc::new(Progress::new(vbuckets, &agreed)),
            agreed,
            features,
            queue: VecDeque::new(),
            streams: 0,
            hands_over: false,
            interest_bytes: 0,
            unacknowledged: 0,
            noop_sent: false,
            noop_at: None,
            noop_opaque: 0,
            is_heard: true,
            heard_at: Duration::ZERO,
            stall_look_at: None,
        }
    }

    /// The connection's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was agreed on.
    pub fn agreed(&self) -> &Agreement {
        &self.agreed
    }

    /// How far its streams are, for other threads.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// How many streams it has.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Whether the consumer acts as a node does: it takes part in durable writes by a name, or takes vBuckets over.
    pub fn serves_a_node(&self) -> bool {
        self.hands_over || self.agreed.consumer_name.is_some()
    }

    /// Bytes that are held for the connection: its tables and streams, and what waits in them for the consumer.
    pub fn held_bytes(&self) -> usize {
        let tables = self.slots.len() * PLACE_BYTES + self.progress.held_bytes();
        let queues = (self.queue.capacity() + self.line.capacity()) * size_of::<VbId>();
        let disk = self.on_disk.get() * BACKFILL_BYTES;
        let streams = self.streams * STREAM_BYTES + disk + self.interest_bytes;
        size_of::<Producer>() + tables + queues + streams + self.follower.waiting_bytes()
    }

    /// Whether a vBucket is streamed: one look into its slot.
    #[inline]
    pub fn has_stream(&self, vb: VbId) -> bool {
        self.slots.get(usize::from(vb.0)).is_some_and(Option::is_some)
    }

    /// Bytes on their way that are not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.unacknowledged
    }

    /// A control message.
    pub fn control(&mut self, key: &[u8], value: &[u8]) -> Status {
        self.is_heard = true;
        // The interval may be another one from now on.
        self.noop_at = None;
        let keeps_none = self.bucket.backend() != StorageBackend::LogStructured;
        if key == b"change_streams" && value == b"true" && keeps_none {
            return Status::NotSupported;
        }
        let status = self.agreed.control(key, value);
        self.progress.note_agreed(&self.agreed);
        status
    }

    /// Has collections sent in the order of keys, if that was agreed on, from so many changes of the vBucket on.
    pub fn set_out_of_order_from(&mut self, changes: u64) {
        self.out_of_order_from = changes;
    }

    /// The consumer has worked on so many bytes.
    pub fn acknowledge(&mut self, bytes: u32) {
        self.is_heard = true;
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes.into());
        self.progress.add_acknowledged(bytes.into());
    }

    /// The consumer has all prepares of a vBucket up to `prepared`, as safe as their levels ask. Of a stream that has
    /// ended meanwhile that may still come.
    pub fn acknowledge_prepares(&mut self, vb: VbId, prepared: Seqno) -> Result<(), AcknowledgeRefusal> {
        self.is_heard = true;
        let Some(name) = self.agreed.consumer_name.as_deref().filter(|_| self.agreed.sync_writes) else {
            return Err(AcknowledgeRefusal::Nameless);
        };
        if !self.was_streamed.get(usize::from(vb.0)).is_some_and(|was| *was) {
            return Err(AcknowledgeRefusal::NoStream);
        }
        self.bucket.durability().acknowledged(vb, name, prepared);
        Ok(())
    }

    fn streams_of(&self, vb: VbId) -> impl Iterator<Item = &Stream> {
        let first = self.slots.get(usize::from(vb.0)).and_then(Option::as_deref);
        std::iter::successors(first, |stream| stream.next.as_deref())
    }

    /// Ends a stream because the consumer says so.
    pub fn close_stream(&mut self, vb: VbId, stream_id: Option<u16>, out: &mut dyn Sink) -> Status {
        self.is_heard = true;
        if stream_id.is_some() != self.agreed.stream_ids {
            return Status::DcpStreamIdInvalid;
        }
        let was_streamed = self.was_streamed.get(usize::from(vb.0)).is_some_and(|was| *was);
        let unknown =
            if was_streamed && stream_id.is_some() { Status::DcpStreamIdInvalid } else { Status::KeyEnoent };
        let Some(mut at) = self.slots.get_mut(usize::from(vb.0)) else { return unknown };
        while at.as_ref().is_some_and(|stream| stream.figures.stream_id != stream_id) {
            at = &mut at.as_mut().expect("it was looked at").next;
        }
        let Some(mut stream) = at.take() else { return unknown };
        *at = stream.next.take();
        stream.close(&self.bucket, &self.on_disk);
        self.progress.leave(&stream.figures);
        self.streams -= 1;
        self.interest_bytes -= Interest::bytes_of(stream.interest_size);
        if self.agreed.end_on_close {
            let mut allowance = Allowance::new(u64::MAX);
            stream.finish(EndReason::Closed, &mut allowance, out);
        }
        self.forget_if_empty(vb);
        self.serve_line();
        Status::Success
    }

    /// Ends the streams of which the user may not have all any more, and says so.
    pub fn end_forbidden(&mut self, may_have: impl Fn(StreamWanted<'_>) -> bool, out: &mut dyn Sink) {
        for at in 0..self.slots.len() {
            let before = self.streams;
            let mut slot = &mut self.slots[at];
            while let Some(stream) = slot {
                if !may_have(about(stream.interest.as_deref())) {
                    stream.close(&self.bucket, &self.on_disk);
                    self.progress.leave(&stream.figures);
                    let mut allowance = Allowance::new(u64::MAX);
                    stream.finish(EndReason::LostPrivileges, &mut allowance, out);
                    self.unacknowledged += allowance.used;
                    self.streams -= 1;
                    self.interest_bytes -= Interest::bytes_of(stream.interest_size);
                    let next = stream.next.take();
                    *slot = next;
                    continue;
                }
                slot = &mut slot.as_mut().expect("it was looked at").next;
            }
            if self.streams < before {
                self.forget_if_empty(VbId(at as u16));
            }
        }
        self.serve_line();
    }

    fn forget_if_empty(&self, vb: VbId) {
        if self.slots[usize::from(vb.0)].is_none() {
            self.bucket.streams().unfollow(vb, &self.follower);
        }
        self.note_progress(vb);
    }

    /// Tells other threads how far the streams of a vBucket are.
    fn note_progress(&self, vb: VbId) {
        self.progress.note(vb, self.streams_of(vb).map(|stream| stream.sent).min());
    }

    fn enqueue(&mut self, vb: VbId) {
        let at = usize::from(vb.0);
        if self.slots[at].is_some() && !std::mem::replace(&mut self.is_queued[at], true) {
            self.queue.push_back(vb);
        }
    }

    /// Lets the next one to the disk, if vBuckets go there one after the other.
    fn serve_line(&mut self) {
        while self.on_disk.get() == 0
            && let Some(vb) = self.line.pop_front()
        {
            self.enqueue(vb);
            if self.slots[usize::from(vb.0)].is_some() {
                return;
            }
        }
    }

    /// Whether the consumer has as much on its way as it takes.
    fn is_full(&self) -> bool {
        self.agreed.buffer_bytes > 0 && self.unacknowledged >= self.agreed.buffer_bytes
    }

    /// Sends about `max_bytes` of what there is.
    pub fn step(&mut self, out: &mut dyn Sink, max_bytes: usize) -> Step {
        let before = (out.bytes().len(), self.progress.changes());
        let step = self.send(out, max_bytes);
        let has_sent = before != (out.bytes().len(), self.progress.changes());
        let pause = match step {
            Step::More => None,
            Step::Idle if self.is_full() => Some(Pause::BufferFull),
            Step::Idle => Some(Pause::NothingReady),
        };
        self.progress.note_turn(pause, has_sent, (self.on_disk.get(), self.line.len()));
        step
    }

    fn send(&mut self, out: &mut dyn Sink, max_bytes: usize) -> Step {
        let follower = Arc::clone(&self.follower);
        follower.take(|vb| self.enqueue(vb));
        let end = out.bytes().len() + max_bytes;
        let mut sent = 0;
        while sent < max_bytes && out.bytes().len() < end {
            if self.is_full() {
                return Step::Idle;
            }
            let Some(vb) = self.queue.pop_front() else { return Step::Idle };
            sent += self.turn(vb, out);
        }
        if self.queue.is_empty() { Step::Idle } else { Step::More }
    }

    /// Lets the streams of a vBucket have their turn.
    fn turn(&mut self, vb: VbId, out: &mut dyn Sink) -> usize {
        self.is_queued[usize::from(vb.0)] = false;
        let room = match self.agreed.buffer_bytes {
            0 => u64::MAX,
            size => size.saturating_sub(self.unacknowledged),
        };
        let common = Common {
            bucket: &self.bucket,
            follower: &self.follower,
            agreed: &self.agreed,
            features: self.features,
            name: &self.name,
            on_disk: &self.on_disk,
            out_of_order_from: self.out_of_order_from,
        };
        let mut allowance = Allowance::new(room.min(TURN_BYTES));
        let (mut again, mut waits) = (false, false);
        let mut at = &mut self.slots[usize::from(vb.0)];
        while let Some(stream) = at {
            match stream.turn(&common, &mut allowance, out) {
                Turn::Idle => {}
                Turn::Queued => waits = true,
                Turn::More => again = true,
                Turn::Ended => {
                    stream.close(common.bucket, common.on_disk);
                    self.progress.leave(&stream.figures);
                    self.streams -= 1;
                    self.interest_bytes -= Interest::bytes_of(stream.interest_size);
                    let next = stream.next.take();
                    *at = next;
                    continue;
                }
            }
            crate::stream::note(stream);
            at = &mut at.as_mut().expect("it had its turn").next;
        }
        self.progress.add_changes(allowance.changes);
        let bytes = allowance.used as usize;
        self.unacknowledged += bytes as u64;
        self.forget_if_empty(vb);
        if again {
            self.enqueue(vb);
        }
        if waits && !self.line.contains(&vb) {
            self.line.push_back(vb);
        }
        self.serve_line();
        bytes
    }

    /// The consumer answered a message. False if no consumer that follows may answer so: it has something else than what
    /// it was sent, and the connection has to end.
    pub fn answered(&mut self, opcode: u8, opaque: u32, status: u16) -> bool {
        self.is_heard = true;
        match opcode {
            opcode::DCP_NOOP if opaque == self.noop_opaque => {
                self.noop_sent = false;
                self.progress.note_noop(false);
                true
            }
            opcode::DCP_SNAPSHOT_MARKER | opcode::DCP_SET_VBUCKET_STATE => {
                self.step_answered(opcode, opaque);
                true
            }
            opcode => answers::is_fine(opcode, status, self.agreed.exact_answers),
        }
    }

    /// One step of a handover is done. There are few of these, so nobody keeps an index of opaques.
    fn step_answered(&mut self, opcode: u8, opaque: u32) {
        for at in 0..self.slots.len() {
            let mut next = self.slots[at].as_deref_mut();
            while let Some(stream) = next {
                if stream.figures.opaque == opaque {
                    match opcode {
                        opcode::DCP_SNAPSHOT_MARKER => stream.marker_acknowledged(),
                        _ => stream.state_acknowledged(&self.bucket),
                    }
                    if !planted::is(Bug::AnswerGivesNoTurn) {
                        self.enqueue(VbId(at as u16));
                    }
                    return;
                }
                next = stream.next.as_deref_mut();
            }
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let mut any = false;
            while let Some(mut stream) = slot.take() {
                stream.close(&self.bucket, &self.on_disk);
                *slot = stream.next.take();
                any = true;
            }
            if any {
                self.bucket.streams().unfollow(VbId(at as u16), &self.follower);
            }
        }
    }
}
