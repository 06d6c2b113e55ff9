//! A connection that is sent changes: its vBuckets, what it says to the producer, and how much it has room for.
//!
//! A state machine without socket: bytes in, bytes out, and what is to be done elsewhere is told.
//! Nothing that the producer says is relied on before it was looked at.

mod controls;
mod counts;
mod decode;
mod disconnect;
mod led;
mod prepares;
mod receive;
mod settle;
mod track;
mod turn;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::limits::MAX_FRAME_BODY_BYTES;
use base::{Seqno, VbId, VbUuid};
use engine::{Bucket, Follower, ReplicaPosition};
use protocol::dcp::{StreamFlags, StreamRequest};
use protocol::{HEADER_BYTES, RequestParts, opcode, write_request};

use crate::content::Features;
use controls::OTHER_OPAQUES;
pub use counts::ConsumerCounts;
pub use disconnect::Disconnect;
use led::Led;
pub use settle::{RollBack, Settled};
use track::Track;
pub use track::{Mode, Stage, Trouble};
use turn::ConsumerTurn;
pub use turn::{TURN_BYTES, TURN_MESSAGES};

/// The opaque under which the producer is asked for its last changes.
const SEQNOS_OPAQUE: u32 = u32::MAX;
/// Between two such questions.
const ASK_SEQNOS_EVERY: Duration = Duration::from_secs(1);
/// Bytes are acknowledged when they are such a part of the buffer.
const ACKNOWLEDGE_ONE_IN: u64 = 5;
/// Fewer bytes are acknowledged when none were for so long: what a quiet producer waits for ends.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_secs(5);
/// A producer that asks to roll back more often than this without a stream in between does not mean it.
const MOST_ROLLBACKS: u32 = 16;

/// What a consumer asks of its producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// The connection's name; of two with one name the producer closes the first.
    pub name: String,
    /// The name by which this node takes part in sync writes; nothing if it does not.
    pub consumer_name: Option<String>,
    /// Bytes that may be on their way, or here and not applied.
    pub buffer_bytes: u32,
    /// Seconds between two signs of life of the producer; after twice as much it is taken for dead.
    pub noop_interval_s: u32,
    /// What was agreed on before the connection was opened for changes.
    pub features: Features,
    /// Whether files are brought, by whoever drives it, where they are faster than documents
    /// ([`engine::Roles::fills_by_file`]).
    pub takes_files: bool,
    /// Whether every version is asked for, of a producer that keeps a history of changes.
    pub change_streams: bool,
}

impl ConsumerConfig {
    /// How many bytes that were worked on are worth a message.
    fn least_acknowledged(&self) -> u64 {
        u64::from(self.buffer_bytes) / ACKNOWLEDGE_ONE_IN
    }
}

/// What a producer is asked for of a vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VbAsked {
    /// Of all messages of the stream.
    pub opaque: u32,
    /// The last change that was here.
    pub start: Seqno,
    /// The history that this belongs to.
    pub uuid: VbUuid,
    /// The snapshot of which a part was here.
    pub snapshot_start: Seqno,
    /// Its end.
    pub snapshot_end: Seqno,
}

impl VbAsked {
    fn of(position: &ReplicaPosition, opaque: u32) -> VbAsked {
        VbAsked {
            opaque,
            start: position.start,
            uuid: position.uuid,
            snapshot_start: position.snapshot_start,
            snapshot_end: position.snapshot_end,
        }
    }
}

/// Where one vBucket stands.
#[derive(Clone, Copy, Debug)]
pub struct VbProgress {
    /// Which.
    pub vb: VbId,
    /// What is to become of it.
    pub mode: Mode,
    /// How far its stream is.
    pub stage: Stage,
    /// The last change that is here.
    pub high: Seqno,
    /// The last change of the producer, as of the last time that it was asked; nothing if it never answered.
    pub source_high: Option<Seqno>,
    /// For how long nobody could write while it was taken over.
    pub blocked_for: Option<Duration>,
    /// Why it does not stream.
    pub trouble: Option<Trouble>,
    /// What its producer was asked for last.
    pub asked: Option<VbAsked>,
    /// Messages that came and are not applied, changes of one batch as one.
    pub queued: usize,
}

/// A connection to one node for many vBuckets of a bucket.
pub struct Consumer {
    bucket: Arc<Bucket>,
    config: ConsumerConfig,
    /// By vBucket.
    tracks: Box<[Option<Box<Track>>]>,
    next_opaque: u32,
    /// vBuckets with something to apply, in the order in which it came.
    due: Vec<VbId>,
    /// Rollbacks that are to be done elsewhere.
    rollbacks: Vec<RollBack>,
    /// vBuckets that are to be filled with files elsewhere.
    fills: Vec<VbId>,
    /// vBuckets that are asked for again, by when.
    pausing: BTreeSet<(Duration, VbId)>,
    /// Bytes of messages that are not applied.
    held_bytes: u64,
    /// Bytes that are applied and not acknowledged.
    applied_bytes: u64,
    /// When bytes were acknowledged last.
    acknowledged_at: Duration,
    /// When something was heard last.
    heard_at: Duration,
    is_heard: bool,
    seqnos_at: Duration,
    /// What was received in this turn.
    received: ConsumerTurn,
    counts: ConsumerCounts,
    /// Who is told when prepares are on disk.
    prepared: Option<Arc<Follower>>,
    /// Of a connection whose other end says what is followed; nothing if this node does.
    led: Option<Led>,
}

impl Consumer {
    /// A consumer for vBuckets of `bucket`; none yet.
    pub fn new(bucket: Arc<Bucket>, config: ConsumerConfig) -> Consumer {
        let now = bucket.env().clock.monotonic();
        Consumer {
            tracks: (0..bucket.vbuckets()).map(|_| None).collect(),
            bucket,
            config,
            next_opaque: 0,
            due: Vec::new(),
            rollbacks: Vec::new(),
            fills: Vec::new(),
            pausing: BTreeSet::new(),
            held_bytes: 0,
            applied_bytes: 0,
            acknowledged_at: now,
            heard_at: now,
            is_heard: true,
            seqnos_at: now,
            received: ConsumerTurn::default(),
            counts: ConsumerCounts::default(),
            prepared: None,
            led: None,
        }
    }

    /// Writes what a connection for changes begins with: that it is one, if this node opened it, and what is agreed on.
    pub fn open(&mut self, out: &mut Vec<u8>) {
        if self.led.is_none() {
            controls::open(&self.config, out);
        }
        controls::agree(&self.config, out);
    }

    /// What it counted.
    pub fn counts(&self) -> ConsumerCounts {
        self.counts
    }

    /// What it asks for.
    pub fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// vBuckets that are being taken over just now.
    pub fn taking_over(&self) -> usize {
        let is_under_way = |track: &Track| {
            track.mode == Mode::TakeOver && !matches!(track.stage, Stage::Pausing | Stage::TakenOver)
        };
        self.tracks.iter().flatten().filter(|track| is_under_way(track)).count()
    }

    /// Bytes that came and are not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.held_bytes + self.applied_bytes
    }

    /// Where each vBucket stands.
    pub fn progress(&self) -> impl Iterator<Item = VbProgress> {
        let all = self.tracks.iter().enumerate();
        all.filter_map(|(at, track)| {
            let (vb, track) = (VbId(at as u16), track.as_ref()?);
            Some(VbProgress {
                vb,
                mode: track.mode,
                stage: track.stage,
                high: self.bucket.streams().stream_state(vb).map_or(Seqno(0), |(_, _, _, high)| high),
                source_high: track.source_high,
                blocked_for: track.blocked_for,
                trouble: track.trouble,
                asked: track.position.as_ref().map(|position| VbAsked::of(position, track.opaque)),
                queued: track.queue.len(),
            })
        })
    }

    fn now(&self) -> Duration {
        self.bucket.env().clock.monotonic()
    }

    fn track(&mut self, vb: VbId) -> Option<&mut Track> {
        self.tracks.get_mut(usize::from(vb.0))?.as_deref_mut()
    }

    /// Follows a vBucket from where it stands; what was said of it before is void.
    ///
    /// It must be a replica, or pending. Numbers that the bucket does not have are passed over.
    pub fn want(&mut self, vb: VbId, mode: Mode, out: &mut Vec<u8>) {
        if self.tracks.get(usize::from(vb.0)).is_none() {
            return;
        }
        self.drop(vb, out);
        self.tracks[usize::from(vb.0)] = Some(Box::new(Track::new(mode)));
        self.follow_prepares(vb);
        self.ask(vb, out);
    }

    /// Follows a vBucket no more. What came and is not applied is given up: it can be asked for again.
    pub fn drop(&mut self, vb: VbId, out: &mut Vec<u8>) {
        let Some(mut track) = self.tracks.get_mut(usize::from(vb.0)).and_then(Option::take) else { return };
        self.unfollow_prepares(vb);
        self.pausing.remove(&(track.again_at, vb));
        self.give_up_queue(&mut track);
        if matches!(track.stage, Stage::Asked | Stage::Streaming) {
            close_stream(vb, out);
        }
        self.rollbacks.retain(|rollback| rollback.vb != vb);
        self.fills.retain(|filling| *filling != vb);
        self.acknowledge(self.config.least_acknowledged(), out);
    }

    fn give_up_queue(&mut self, track: &mut Track) {
        let bytes = track.queued_bytes();
        track.queue.clear();
        self.held_bytes -= bytes;
        self.applied_bytes += bytes;
    }

    /// Asks for a stream from where the vBucket stands; later, if that cannot be said now.
    fn ask(&mut self, vb: VbId, out: &mut Vec<u8>) {
        let position = self.bucket.replicas().replica_position(vb);
        let opaque = self.next_opaque;
        let Some(track) = self.track(vb) else { return };
        let position = match position {
            Ok(position) => position,
            Err(refusal) => {
                self.put_off(vb, Trouble::Here(settle::why(refusal)), out);
                return;
            }
        };
        track.stage = Stage::Asked;
        track.opaque = opaque;
        track.applied = position.start;
        // The producer has forgotten what was said on another stream.
        track.acknowledged = Seqno(0);
        track.acknowledge_at = None;
        track.stream = None;
        let flags = match (&mut track.added, track.mode) {
            (Some(added), _) => {
                added.begin(position.start);
                added.flags.0
            }
            // A life that may not serve has replicas only, and may have less than who would follow it.
            (None, Mode::Replicate) => StreamFlags::ACTIVE_ONLY,
            (None, Mode::TakeOver) => StreamFlags::TAKEOVER,
        };
        self.next_opaque = (opaque + 1) % OTHER_OPAQUES;
        let extras = StreamRequest {
            flags: StreamFlags(flags),
            start: position.start,
            end: Seqno(u64::MAX),
            uuid: position.uuid,
            snapshot_start: position.snapshot_start,
            snapshot_end: position.snapshot_end,
        };
        let parts = RequestParts {
            opcode: opcode::DCP_STREAM_REQ,
            vbucket: vb,
            opaque,
            extras: &extras.encode(),
            ..RequestParts::default()
        };
        send(out, &parts);
        if let Some(track) = self.track(vb) {
            track.position = Some(position);
        }
    }

    /// A rollback or a file that was to be done is done, or was not possible: why.
    pub fn rolled_back(&mut self, vb: VbId, outcome: Result<Seqno, &'static str>, out: &mut Vec<u8>) {
        let Some(track) = self.track(vb) else { return };
        match track.stage {
            Stage::RollingBack => {}
            Stage::Filling => {
                // Without a file documents are asked for.
                track.has_no_file = outcome.is_err();
                self.counts.filled_by_file += u64::from(outcome.is_ok());
                self.ask(vb, out);
                return;
            }
            _ => return,
        }
        match outcome {
            Ok(_) => self.ask(vb, out),
            Err(what) => self.put_off(vb, Trouble::Here(what), out),
        }
    }

    /// A vBucket is not followed now: it is asked for again after a pause, by this node or, if a client
    /// leads, by the client.
    fn put_off(&mut self, vb: VbId, trouble: Trouble, out: &mut Vec<u8>) {
        if self.led.is_some() {
            self.end_added(vb, trouble, out);
            return;
        }
        let now = self.now();
        let Some(track) = self.track(vb) else { return };
        track.pause(now, trouble);
        let again_at = track.again_at;
        self.pausing.insert((again_at, vb));
    }

    /// What is due at `now`, a time of the monotonic clock: streams that are asked for again, and the producer's last
    /// changes. When to look again; an error if the producer is dead.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) -> Result<Duration, Disconnect> {
        if std::mem::take(&mut self.is_heard) {
            self.heard_at = now;
        }
        if self.led.is_some() && self.streams() == 0 {
            // Who follows nothing because a client leads is sent nothing.
            self.heard_at = now;
        }
        let dead_at = self.heard_at + 2 * Duration::from_secs(self.config.noop_interval_s.into());
        if now >= dead_at {
            return Err(Disconnect::Silent);
        }
        if now >= self.acknowledged_at + ACKNOWLEDGE_AFTER {
            self.acknowledge(1, out);
        }
        if self.led.is_some() {
            return Ok(self.tick_led(now, out).min(dead_at));
        }
        while let Some((_, vb)) = self.pausing.first().copied().filter(|(at, _)| *at <= now) {
            self.pausing.pop_first();
            self.ask(vb, out);
        }
        if now >= self.seqnos_at {
            self.seqnos_at = now + ASK_SEQNOS_EVERY;
            let parts = RequestParts {
                opcode: opcode::GET_ALL_VB_SEQNOS,
                opaque: SEQNOS_OPAQUE,
                ..RequestParts::default()
            };
            send(out, &parts);
        }
        let next = self.pausing.first().map_or(self.seqnos_at, |(at, _)| (*at).min(self.seqnos_at));
        Ok(next.min(dead_at))
    }

    /// The most bytes that a producer which keeps to the buffer can have on their way: the last message may exceed it.
    fn most_unacknowledged_bytes(&self) -> u64 {
        u64::from(self.config.buffer_bytes) + (HEADER_BYTES + MAX_FRAME_BODY_BYTES) as u64
    }

    /// Acknowledges the bytes that are worked on, if they are at least `least`.
    fn acknowledge(&mut self, least: u64, out: &mut Vec<u8>) {
        if self.applied_bytes < least.max(1) {
            return;
        }
        self.acknowledged_at = self.now();
        // Never more than a buffer and one message, which is less than 4 GiB.
        let bytes = u32::try_from(self.applied_bytes).unwrap_or(u32::MAX);
        self.applied_bytes -= u64::from(bytes);
        self.counts.acknowledged_bytes += u64::from(bytes);
        let extras = bytes.to_be_bytes();
        send(
            out,
            &RequestParts { opcode: opcode::DCP_BUFFER_ACK, extras: &extras, ..RequestParts::default() },
        );
    }
}

fn close_stream(vb: VbId, out: &mut Vec<u8>) {
    let parts = RequestParts {
        opcode: opcode::DCP_CLOSE_STREAM,
        vbucket: vb,
        opaque: OTHER_OPAQUES,
        ..RequestParts::default()
    };
    send(out, &parts);
}

fn send(out: &mut Vec<u8>, parts: &RequestParts<'_>) {
    let fits = write_request(out, parts);
    assert!(fits, "requests of a consumer are short");
}
