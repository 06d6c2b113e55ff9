//! A connection that sends changes: its streams by vBucket, whose turn it is, and how much the consumer takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{Seqno, VbId, VbUuid};
use engine::{Bucket, Follower, StreamRefusal};
use protocol::Status;
use protocol::dcp::{EndReason, FailoverLog, StreamFlags, StreamRequest};
use vbucket::ResumePoint;

use crate::agreement::Agreement;
use crate::content::Features;
use crate::filter::Filter;
use crate::sink::Sink;
use crate::stream::{Allowance, Common, Stream, Turn};

/// Bytes that one stream sends before others have their turn.
const TURN_BYTES: u64 = 256 << 10;

/// Why a stream request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRequestRefusal {
    /// With this status.
    Status(Status),
    /// The consumer has to roll back to this seqno first.
    RollBack(Seqno),
}

impl From<Status> for StreamRequestRefusal {
    fn from(status: Status) -> StreamRequestRefusal {
        StreamRequestRefusal::Status(status)
    }
}

/// What is to be done about a connection after some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Nothing until then, on the monotonic clock.
    Wait(Duration),
    /// A noop is to be sent with this opaque.
    Noop(u32),
    /// The consumer does not answer: close.
    Dead,
    /// Nothing at all.
    Never,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits: for news, for the disk, or for acknowledgements.
    Idle,
    /// There is more to send at once.
    More,
}

#[derive(Default)]
struct Slot {
    streams: Vec<Stream>,
    is_queued: bool,
}

/// A connection that sends changes.
pub struct Producer {
    bucket: Arc<Bucket>,
    name: String,
    agreed: Agreement,
    features: Features,
    follower: Arc<Follower>,
    /// By vBucket; nothing for those without streams.
    slots: Box<[Option<Box<Slot>>]>,
    queue: VecDeque<VbId>,
    streams: usize,
    /// Bytes that were sent and not acknowledged.
    unacknowledged: u64,
    noop_sent: bool,
    noop_at: Option<Duration>,
    noop_opaque: u32,
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
            slots: (0..vbuckets).map(|_| None).collect(),
            bucket,
            name,
            agreed,
            features,
            queue: VecDeque::new(),
            streams: 0,
            unacknowledged: 0,
            noop_sent: false,
            noop_at: None,
            noop_opaque: 0,
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

    /// How many streams it has.
    pub fn streams(&self) -> usize {
        self.streams
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
        self.agreed.control(key, value)
    }

    /// The consumer has worked on so many bytes.
    pub fn acknowledge(&mut self, bytes: u32) {
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes.into());
    }

    /// A stream request; the value of the answer is the failover log.
    pub fn request(
        &mut self,
        vb: VbId,
        opaque: u32,
        request: &StreamRequest,
        value: &[u8],
    ) -> Result<Vec<u8>, StreamRequestRefusal> {
        if request.flags.has(StreamFlags::NO_VALUE) {
            return Err(Status::Einval.into());
        }
        let slot = self.slots.get(usize::from(vb.0)).ok_or(Status::NotMyVbucket)?;
        if self.bucket.state_of(vb).is_none() {
            return Err(Status::NotMyVbucket.into());
        }
        if self.features.collections && !self.agreed.noop {
            // Whoever knows of collections has to show that it lives.
            return Err(Status::NotSupported.into());
        }
        if !value.is_empty() && !self.features.collections {
            return Err(Status::Einval.into());
        }
        let filter = Filter::parse(value).map_err(Status::from)?;
        self.check_filter(&filter)?;
        let has_one = |slot: &Slot| slot.streams.iter().any(|stream| stream.stream_id == filter.stream_id);
        if slot.as_deref().is_some_and(has_one) {
            return Err(Status::KeyEexists.into());
        }
        let mut request = *request;
        let in_order = request.start <= request.end
            && (request.start == Seqno(0)
                || (request.snapshot_start <= request.start && request.start <= request.snapshot_end));
        if !in_order {
            return Err(Status::Erange.into());
        }
        if request.flags.has(StreamFlags::FROM_LATEST)
            && let Some((_, _, uuid, high)) = self.bucket.stream_state(vb)
        {
            (request.start, request.snapshot_start, request.snapshot_end) = (high, high, high);
            request.uuid = uuid;
        }
        let at = ResumePoint {
            start: request.start,
            uuid: request.uuid,
            snapshot_start: request.snapshot_start,
            snapshot_end: request.snapshot_end,
            strict_uuid: request.flags.has(StreamFlags::STRICT_UUID),
            ignore_purged: request.flags.has(StreamFlags::IGNORE_PURGED),
            purge: filter.purge_seqno.map(Seqno),
        };
        let only_active = request.flags.has(StreamFlags::ACTIVE_ONLY);
        let start = match self.bucket.begin_stream(vb, &self.follower, &at, only_active) {
            Ok(start) => start,
            Err(StreamRefusal::RollBack(to)) => return Err(StreamRequestRefusal::RollBack(to)),
            Err(StreamRefusal::NotMyVbucket) => return Err(Status::NotMyVbucket.into()),
            Err(StreamRefusal::Loading) => return Err(Status::Etmpfail.into()),
        };
        let log = start.failover.iter().map(|entry| (VbUuid(entry.uuid.0), entry.seqno));
        let log = FailoverLog::encode(log);
        let stream = Stream::new(vb, opaque, &request, filter, &start);
        self.slots[usize::from(vb.0)].get_or_insert_default().streams.push(stream);
        self.streams += 1;
        self.enqueue(vb);
        Ok(log)
    }

    fn check_filter(&self, filter: &Filter) -> Result<(), Status> {
        if filter.stream_id.is_some() != self.agreed.stream_ids {
            return Err(Status::DcpStreamIdInvalid);
        }
        if !filter.is_everything() && self.agreed.sync_writes {
            return Err(Status::NotSupported);
        }
        let is_unknown = |id: &base::CollectionId| *id != base::CollectionId::DEFAULT;
        if filter.collections.iter().flatten().any(is_unknown) {
            return Err(Status::UnknownCollection);
        }
        if filter.scope.is_some_and(|scope| scope != base::ScopeId(0)) {
            return Err(Status::UnknownScope);
        }
        Ok(())
    }

    /// Ends a stream because the consumer says so.
    pub fn close_stream(&mut self, vb: VbId, stream_id: Option<u16>, out: &mut dyn Sink) -> Status {
        let Some(slot) = self.slots.get_mut(usize::from(vb.0)).and_then(Option::as_deref_mut) else {
            return Status::KeyEnoent;
        };
        let Some(at) = slot.streams.iter().position(|stream| stream.stream_id == stream_id) else {
            return Status::KeyEnoent;
        };
        let mut stream = slot.streams.swap_remove(at);
        stream.close(&self.bucket);
        self.streams -= 1;
        if self.agreed.end_on_close {
            let mut allowance = Allowance::new(u64::MAX);
            stream.finish(EndReason::Closed, &mut allowance, out);
        }
        self.forget_if_empty(vb);
        Status::Success
    }

    fn forget_if_empty(&mut self, vb: VbId) {
        let slot = &mut self.slots[usize::from(vb.0)];
        if slot.as_ref().is_some_and(|slot| slot.streams.is_empty()) {
            self.bucket.unfollow(vb, &self.follower);
            *slot = None;
        }
    }

    fn enqueue(&mut self, vb: VbId) {
        if let Some(slot) = &mut self.slots[usize::from(vb.0)]
            && !std::mem::replace(&mut slot.is_queued, true)
        {
            self.queue.push_back(vb);
        }
    }

    /// Whether the consumer has as much on its way as it takes.
    fn is_full(&self) -> bool {
        self.agreed.buffer_bytes > 0 && self.unacknowledged >= self.agreed.buffer_bytes
    }

    /// Sends about `max_bytes` of what there is.
    pub fn step(&mut self, out: &mut dyn Sink, max_bytes: usize) -> Step {
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
        let Some(slot) = self.slots[usize::from(vb.0)].as_deref_mut() else { return 0 };
        slot.is_queued = false;
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
        };
        let mut allowance = Allowance::new(room.min(TURN_BYTES));
        let mut again = false;
        let mut ended = 0;
        slot.streams.retain_mut(|stream| match stream.turn(&common, &mut allowance, out) {
            Turn::Idle => true,
            Turn::More => {
                again = true;
                true
            }
            Turn::Ended => {
                stream.close(common.bucket);
                ended += 1;
                false
            }
        });
        let bytes = allowance.used as usize;
        self.streams -= ended;
        self.unacknowledged += bytes as u64;
        self.forget_if_empty(vb);
        if again {
            self.enqueue(vb);
        }
        bytes
    }

    /// What is to be done about the consumer's life at `now` on the monotonic clock.
    pub fn tick(&mut self, now: Duration) -> Tick {
        if !self.agreed.noop {
            return Tick::Never;
        }
        let interval = Duration::from_secs(self.agreed.noop_interval_s.into());
        let due = *self.noop_at.get_or_insert(now + interval);
        if now < due {
            return Tick::Wait(due);
        }
        if self.noop_sent {
            return Tick::Dead;
        }
        self.noop_sent = true;
        self.noop_at = Some(now + interval);
        self.noop_opaque = self.noop_opaque.wrapping_add(1);
        Tick::Noop(self.noop_opaque)
    }

    /// The consumer answered a message.
    pub fn answered(&mut self, opcode: u8, opaque: u32, _status: u16) {
        if opcode == protocol::opcode::DCP_NOOP && opaque == self.noop_opaque {
            self.noop_sent = false;
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            slot.streams.iter_mut().for_each(|stream| stream.close(&self.bucket));
            self.bucket.unfollow(VbId(at as u16), &self.follower);
        }
    }
}
