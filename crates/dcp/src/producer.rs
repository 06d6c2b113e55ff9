//! A connection that sends changes: its streams by vBucket, whose turn it is, and how much the consumer takes.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{Seqno, VbId, VbUuid};
use engine::{Bucket, Follower, StreamRefusal, StreamWanted};
use protocol::dcp::{EndReason, FailoverLog, OpenFlags, StreamFlags, StreamRequest};
use protocol::{Status, opcode};
use vbucket::ResumePoint;
use vbucket::collections::ManifestUid;

use crate::agreement::Agreement;
use crate::content::Features;
use crate::filter::Filter;
use crate::interest::Interest;
use crate::sink::Sink;
use crate::stream::Stream;
use crate::turn::{Allowance, Common, Turn};

/// Bytes that one stream sends before others have their turn.
const TURN_BYTES: u64 = 256 << 10;

/// Why a stream request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRequestRefusal {
    /// With this status.
    Status(Status),
    /// The consumer has to roll back to this seqno first.
    RollBack(Seqno),
    /// What it wants is unknown: with this status, by the manifest that is named.
    Unknown(Status, ManifestUid),
}

impl From<Status> for StreamRequestRefusal {
    fn from(status: Status) -> StreamRequestRefusal {
        StreamRequestRefusal::Status(status)
    }
}

impl From<StreamRefusal> for StreamRequestRefusal {
    fn from(refusal: StreamRefusal) -> StreamRequestRefusal {
        match refusal {
            StreamRefusal::RollBack(to) => StreamRequestRefusal::RollBack(to),
            StreamRefusal::UnknownCollection(uid) => {
                StreamRequestRefusal::Unknown(Status::UnknownCollection, uid)
            }
            StreamRefusal::UnknownScope(uid) => StreamRequestRefusal::Unknown(Status::UnknownScope, uid),
            StreamRefusal::NotMyVbucket => Status::NotMyVbucket.into(),
            StreamRefusal::Loading => Status::Etmpfail.into(),
        }
    }
}

/// Why a consumer's acknowledgement of prepares is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcknowledgeRefusal {
    /// It has not said by which name it takes part in sync writes.
    Nameless,
    /// It never had a stream of the vBucket: it cannot have anything of it.
    NoStream,
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

/// The consumer is dead if nothing was heard of it for so long while it owes an answer (kv_engine's configuration,
/// dcp_idle_timeout).
const MOST_SILENT: Duration = Duration::from_secs(360);
/// Between two looks at streams whose consumer may have stopped reading.
const STALL_LOOK: Duration = Duration::from_secs(60);
/// A collection is sent in the order of keys, if that was agreed on, from so many changes of the vBucket on: below
/// that everything is read about as quickly.
const OUT_OF_ORDER_FROM: u64 = 10_000;

/// A connection that sends changes.
pub struct Producer {
    bucket: Arc<Bucket>,
    name: Arc<str>,
    agreed: Agreement,
    features: Features,
    follower: Arc<Follower>,
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
    /// Streams that read from disk.
    on_disk: Cell<usize>,
    out_of_order_from: u64,
    /// Bytes that were sent and not acknowledged.
    unacknowledged: u64,
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
            slots: (0..vbuckets).map(|_| None).collect(),
            is_queued: vec![false; usize::from(vbuckets)].into_boxed_slice(),
            was_streamed: vec![false; usize::from(vbuckets)].into_boxed_slice(),
            line: VecDeque::new(),
            on_disk: Cell::new(0),
            out_of_order_from: OUT_OF_ORDER_FROM,
            bucket,
            name: name.into(),
            agreed,
            features,
            queue: VecDeque::new(),
            streams: 0,
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
        self.is_heard = true;
        // The interval may be another one from now on.
        self.noop_at = None;
        self.agreed.control(key, value)
    }

    /// Has collections sent in the order of keys, if that was agreed on, from so many changes of the vBucket on.
    pub fn set_out_of_order_from(&mut self, changes: u64) {
        self.out_of_order_from = changes;
    }

    /// The consumer has worked on so many bytes.
    pub fn acknowledge(&mut self, bytes: u32) {
        self.is_heard = true;
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes.into());
    }

    /// The consumer has all prepares of a vBucket up to `prepared`, as safe as their levels ask. Of a stream that has
    /// ended meanwhile that may still come.
    pub fn acknowledge_prepares(&mut self, vb: VbId, prepared: Seqno) -> Result<(), AcknowledgeRefusal> {
        self.is_heard = true;
        let Some(name) = self.agreed.consumer_name.as_deref() else {
            return Err(AcknowledgeRefusal::Nameless);
        };
        if !self.was_streamed.get(usize::from(vb.0)).is_some_and(|was| *was) {
            return Err(AcknowledgeRefusal::NoStream);
        }
        self.bucket.acknowledged(vb, name, prepared);
        Ok(())
    }

    /// A stream request; the value of the answer is the failover log.
    pub fn request(
        &mut self,
        vb: VbId,
        opaque: u32,
        request: &StreamRequest,
        value: &[u8],
    ) -> Result<Vec<u8>, StreamRequestRefusal> {
        self.is_heard = true;
        if request.flags.has(StreamFlags::NO_VALUE) || is_contradictory(request.flags) {
            return Err(Status::Einval.into());
        }
        if self.slots.get(usize::from(vb.0)).is_none() || self.bucket.state_of(vb).is_none() {
            return Err(Status::NotMyVbucket.into());
        }
        let knows_much = self.features.collections || self.agreed.flags.has(OpenFlags::XATTRS);
        if knows_much && !self.agreed.noop {
            // Whoever knows of collections or xattrs has to show that it lives.
            return Err(Status::NotSupported.into());
        }
        let in_order = request.start <= request.end
            && (request.start == Seqno(0)
                || (request.snapshot_start <= request.start && request.start <= request.snapshot_end));
        if !in_order {
            return Err(Status::Erange.into());
        }
        if !value.is_empty() && !self.features.collections {
            return Err(Status::Einval.into());
        }
        let filter = Filter::parse(value).map_err(Status::from)?;
        let wanted = match (&filter.collections, filter.scope) {
            (Some(collections), _) => StreamWanted::Collections(collections),
            (None, Some(scope)) => StreamWanted::Scope(scope),
            (None, None) if self.features.collections => StreamWanted::Everything,
            (None, None) => StreamWanted::Default,
        };
        self.bucket.look_for(vb, wanted)?;
        self.check_filter(&filter)?;
        if self.streams_of(vb).any(|stream| stream.stream_id == filter.stream_id) {
            return Err(Status::KeyEexists.into());
        }
        let mut request = *request;
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
        let start = if request.flags.has(StreamFlags::TAKEOVER) && !only_active {
            self.bucket.begin_handover(vb, &self.follower, &at, wanted)?
        } else {
            self.bucket.begin_stream(vb, &self.follower, &at, wanted, only_active)?
        };
        if let (true, Some(node)) = (self.agreed.sync_writes, &self.agreed.consumer_name) {
            self.bucket.replica_resumes(vb, node, request.start);
        }
        let log = start.failover.iter().map(|entry| (VbUuid(entry.uuid.0), entry.seqno));
        let log = FailoverLog::encode(log);
        let interest = match wanted {
            StreamWanted::Everything => None,
            StreamWanted::Default => Some(Interest::Default),
            StreamWanted::Collections(collections) => {
                let has_all = start.has_all_that_is_wanted;
                let complete_to = if has_all { start.high_seqno } else { request.start };
                Some(Interest::Collections(collections.to_vec(), complete_to))
            }
            StreamWanted::Scope(scope) => Some(Interest::Scope(scope, start.collections.clone())),
        };
        let sync_writes = self.agreed.sync_writes;
        let mut stream =
            Box::new(Stream::new(opaque, &request, filter.stream_id, interest, &start, sync_writes));
        let slot = &mut self.slots[usize::from(vb.0)];
        stream.next = slot.take();
        *slot = Some(stream);
        self.was_streamed[usize::from(vb.0)] = true;
        self.streams += 1;
        self.enqueue(vb);
        Ok(log)
    }

    fn streams_of(&self, vb: VbId) -> impl Iterator<Item = &Stream> {
        let first = self.slots.get(usize::from(vb.0)).and_then(Option::as_deref);
        std::iter::successors(first, |stream| stream.next.as_deref())
    }

    fn check_filter(&self, filter: &Filter) -> Result<(), Status> {
        if filter.stream_id.is_some() != self.agreed.stream_ids {
            return Err(Status::DcpStreamIdInvalid);
        }
        if !filter.is_everything() && self.agreed.sync_writes {
            return Err(Status::NotSupported);
        }
        Ok(())
    }

    /// Ends a stream because the consumer says so.
    pub fn close_stream(&mut self, vb: VbId, stream_id: Option<u16>, out: &mut dyn Sink) -> Status {
        self.is_heard = true;
        let Some(mut at) = self.slots.get_mut(usize::from(vb.0)) else { return Status::KeyEnoent };
        while at.as_ref().is_some_and(|stream| stream.stream_id != stream_id) {
            at = &mut at.as_mut().expect("it was looked at").next;
        }
        let Some(mut stream) = at.take() else { return Status::KeyEnoent };
        *at = stream.next.take();
        stream.close(&self.bucket, &self.on_disk);
        self.streams -= 1;
        if self.agreed.end_on_close {
            let mut allowance = Allowance::new(u64::MAX);
            stream.finish(EndReason::Closed, &mut allowance, out);
        }
        self.forget_if_empty(vb);
        self.serve_line();
        Status::Success
    }

    fn forget_if_empty(&self, vb: VbId) {
        if self.slots[usize::from(vb.0)].is_none() {
            self.bucket.unfollow(vb, &self.follower);
        }
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
        let (mut again, mut waits, mut ended) = (false, false, 0);
        let mut at = &mut self.slots[usize::from(vb.0)];
        while let Some(stream) = at {
            match stream.turn(&common, &mut allowance, out) {
                Turn::Idle => {}
                Turn::Queued => waits = true,
                Turn::More => again = true,
                Turn::Ended => {
                    stream.close(common.bucket, common.on_disk);
                    ended += 1;
                    let next = stream.next.take();
                    *at = next;
                    continue;
                }
            }
            at = &mut at.as_mut().expect("it had its turn").next;
        }
        let bytes = allowance.used as usize;
        self.streams -= ended;
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

    /// What is to be done about the consumer's life at `now` on the monotonic clock.
    pub fn tick(&mut self, now: Duration) -> Tick {
        if std::mem::take(&mut self.is_heard) {
            self.heard_at = now;
        }
        let stalled = self.look_for_stalled(now);
        if !self.agreed.noop {
            return stalled.map_or(Tick::Never, Tick::Wait);
        }
        let interval = Duration::from_secs(self.agreed.noop_interval_s.into());
        let due = *self.noop_at.get_or_insert(now + interval);
        let wait = |until: Duration| Tick::Wait(stalled.map_or(until, |look| look.min(until)));
        if self.noop_sent {
            // The next one is sent when this one is answered.
            let dead_at = self.heard_at + MOST_SILENT.max(interval);
            return if now >= dead_at { Tick::Dead } else { wait(dead_at) };
        }
        if now < due {
            return wait(due);
        }
        self.noop_sent = true;
        // By the plan, not by when somebody came to look: being late does not add up.
        self.noop_at = Some((due + interval).max(now));
        self.noop_opaque = self.noop_opaque.wrapping_add(1);
        Tick::Noop(self.noop_opaque)
    }

    /// Gives up backfills whose consumer takes nothing. When to look again, if there are backfills at all.
    fn look_for_stalled(&mut self, now: Duration) -> Option<Duration> {
        if self.on_disk.get() == 0 {
            self.stall_look_at = None;
            return None;
        }
        let look_at = *self.stall_look_at.get_or_insert(now + STALL_LOOK);
        if now < look_at {
            return Some(look_at);
        }
        for at in 0..self.slots.len() {
            let mut any = false;
            let mut next = self.slots[at].as_deref_mut();
            while let Some(stream) = next {
                any |= stream.is_on_disk() && stream.give_up_if_stalled(&self.bucket, &self.on_disk, now);
                next = stream.next.as_deref_mut();
            }
            if any {
                self.enqueue(VbId(at as u16));
            }
        }
        self.serve_line();
        self.stall_look_at = Some(now + STALL_LOOK);
        self.stall_look_at
    }

    /// The consumer answered a message.
    pub fn answered(&mut self, opcode: u8, opaque: u32, _status: u16) {
        self.is_heard = true;
        match opcode {
            opcode::DCP_NOOP if opaque == self.noop_opaque => self.noop_sent = false,
            opcode::DCP_SNAPSHOT_MARKER | opcode::DCP_SET_VBUCKET_STATE => self.step_answered(opcode, opaque),
            _ => {}
        }
    }

    /// One step of a handover is done. There are few of these, so nobody keeps an index of opaques.
    fn step_answered(&mut self, opcode: u8, opaque: u32) {
        for at in 0..self.slots.len() {
            let mut next = self.slots[at].as_deref_mut();
            while let Some(stream) = next {
                if stream.opaque == opaque {
                    match opcode {
                        opcode::DCP_SNAPSHOT_MARKER => stream.marker_acknowledged(),
                        _ => stream.state_acknowledged(&self.bucket),
                    }
                    self.enqueue(VbId(at as u16));
                    return;
                }
                next = stream.next.as_deref_mut();
            }
        }
    }
}

/// Flags that cannot be meant: a vBucket is not handed over without its latest changes.
fn is_contradictory(flags: StreamFlags) -> bool {
    flags.has(StreamFlags::TAKEOVER | StreamFlags::DISK_ONLY)
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
                self.bucket.unfollow(VbId(at as u16), &self.follower);
            }
        }
    }
}
