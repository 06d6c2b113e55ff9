//! A reader's streams, without its connection: a producer in this process, and other nodes, whose messages become events.

use std::sync::Arc;
use std::time::Duration;

use base::{Seqno, VbId, VbState, VbUuid};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal};
use engine::Bucket;
use protocol::dcp::{EndReason, FailoverLog, Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{Limits, Parsed, Status, parse};

use super::anchor::Anchor;
use super::bell::Bell;
use super::elsewhere::{Arrival, Elsewhere, MOST_WAITED, Reads};
use super::event::Writer;
use super::positions::{Positions, Told};
use super::token::{Place, Token};
use super::told_events::ToldEvents;

/// Bytes of messages that are made at once, which become one piece of the answer.
const STEP_BYTES: usize = 64 << 10;
/// Room that an empty buffer keeps.
const MOST_KEPT_BYTES: usize = 2 * STEP_BYTES;
/// After so many changes the reader is told its position.
const CHANGES_BETWEEN_POSITIONS: u32 = 1000;
/// A rollback that leads to the next one more often than this will not come to an end.
const MOST_ROLLBACKS: usize = 64;

/// What a reader wants.
pub struct Wishes {
    /// How events are written.
    pub writer: Writer,
    /// Whether it waits for what comes later.
    pub follow: bool,
    /// From where.
    pub since: Token,
    /// Whether it is rather from the present end of each vBucket of another node.
    pub from_now: bool,
    /// The kept position that the reader's token refers to.
    pub anchor: Option<Anchor>,
    /// Whether tokens are to need nothing that the server keeps.
    pub are_tokens_whole: bool,
    /// Whether it wants every version in the history of changes.
    pub with_history: bool,
    /// The value of stream requests: which collections; empty for all.
    pub filter: Vec<u8>,
    /// The one document that it wants to know of; `None` for all.
    pub only: Option<OneDocument>,
}

/// A document whose changes alone a reader wants.
pub struct OneDocument {
    /// Where it is.
    pub vb: VbId,
    /// Its key as streams have it, behind the number of its collection.
    pub key: Vec<u8>,
}

impl Wishes {
    /// Whether something of this vBucket may be wanted.
    pub(super) fn is_in(&self, vb: VbId) -> bool {
        self.only.as_ref().is_none_or(|only| only.vb == vb)
    }

    /// Whether a change is of a document that is wanted. Events of collections are wanted by all.
    fn is_about(&self, message: &Message<'_>) -> bool {
        let is_document = matches!(message.what, What::Mutation(_) | What::Deletion(_) | What::Expiration(_));
        self.only.as_ref().is_none_or(|only| !is_document || message.key == only.key)
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more at once.
    More,
    /// The bell rings when there is more.
    Idle,
    /// Everything that was wanted was written.
    Finished,
}

/// A reader's streams.
pub struct Feed {
    bucket: Arc<Bucket>,
    producer: Producer,
    wishes: Wishes,
    bell: Arc<Bell>,
    /// Where the present snapshot of each vBucket begins and ends.
    snapshots: Vec<(Seqno, Seqno)>,
    open: usize,
    /// What comes from other nodes, if the reader follows a cluster.
    elsewhere: Option<Elsewhere>,
    /// Changes since the reader was told its position.
    untold: u32,
    positions: Positions,
    /// The last token that the reader was told.
    told: Option<String>,
    events: ToldEvents,
    /// Events that are made and not taken yet, in their order.
    notes: Vec<u8>,
    messages: Vec<u8>,
}

/// Leaves a buffer that is empty no more room than it mostly needs: one that had a large document would keep it, and be
/// charged with it, for as long as its reader waits.
fn give_back(buffer: &mut Vec<u8>) {
    buffer.shrink_to(MOST_KEPT_BYTES);
}

impl Feed {
    /// Begins to read a bucket: its active vBuckets here, or with `elsewhere` those of the whole cluster.
    pub fn begin(bucket: Arc<Bucket>, wishes: Wishes, elsewhere: Option<Elsewhere>) -> Result<Feed, Status> {
        let values = if wishes.writer.values { 0 } else { OpenFlags::NO_VALUE };
        let mut agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER | values), b"http", false)?;
        for (key, value) in [("enable_noop", "true"), ("enable_expiry_opcode", "true")] {
            agreed.control(key.as_bytes(), value.as_bytes());
        }
        if wishes.with_history {
            agreed.control(b"change_streams", b"true");
        }
        let features = Features { collections: true, snappy: false, json: true };
        let bell = Arc::new(Bell::default());
        let rings = Arc::clone(&bell);
        let producer =
            Producer::new(Arc::clone(&bucket), "http".to_owned(), agreed, features, move || rings.ring());
        let snapshots = wishes.since.0.iter().map(|place| (place.snapshot_start, place.snapshot_end));
        let anchor = wishes.anchor.clone();
        let whole = wishes.are_tokens_whole;
        let positions = Positions::new(Arc::clone(&bucket), Arc::clone(&bell), whole, anchor);
        let mut feed = Feed {
            positions,
            told: None,
            events: ToldEvents::default(),
            snapshots: snapshots.collect(),
            bucket,
            producer,
            wishes,
            bell,
            open: 0,
            elsewhere,
            untold: 1,
            notes: Vec::new(),
            messages: Vec::new(),
        };
        let all = (0..feed.bucket.vbuckets()).map(VbId);
        let vbuckets: Vec<VbId> = all.filter(|vb| feed.wishes.is_in(*vb)).collect();
        if let Some(elsewhere) = &mut feed.elsewhere {
            elsewhere.ring(&feed.bell);
            feed.open = vbuckets.len();
            feed.look()?;
            return Ok(feed);
        }
        for vb in vbuckets {
            if feed.bucket.state_of(vb) == Some(VbState::Active) {
                feed.request(vb)?;
                feed.open += 1;
            }
        }
        Ok(feed)
    }

    fn now(&self) -> Duration {
        self.bucket.env().clock.monotonic()
    }

    /// Asks for vBuckets that wait, here or at the nodes that the map names.
    fn look(&mut self) -> Result<(), Status> {
        let now = self.now();
        let Some(mut elsewhere) = self.elsewhere.take() else { return Ok(()) };
        let mut outcome = Ok(());
        for vb in elsewhere.look(now, self) {
            if elsewhere.begins_now(vb)
                && let Some((.., uuid, high)) = self.bucket.streams().stream_state(vb)
            {
                self.set_place(vb, Place::at(uuid, high));
            }
            match self.request(vb) {
                Ok(()) => elsewhere.is_here(vb),
                Err(status) => {
                    elsewhere.waits_a_little(vb, status.text(), now);
                    let passes = matches!(status, Status::NotMyVbucket | Status::Etmpfail);
                    outcome = if passes { outcome } else { Err(status) };
                }
            }
        }
        self.elsewhere = Some(elsewhere);
        outcome
    }

    /// Bytes that it holds beside the bucket's changes and what comes from other nodes.
    pub fn held_bytes(&self) -> usize {
        let places = self.snapshots.capacity() * size_of::<(Seqno, Seqno)>();
        let made = self.notes.capacity() + self.messages.capacity();
        self.producer.held_bytes() + places + self.events.bytes() + made
    }

    /// For how long there is nothing to look at, as far as other nodes are concerned.
    pub fn next_look(&self) -> Option<Duration> {
        self.elsewhere.as_ref()?.next_look(self.now())
    }

    /// Takes what other nodes sent, a piece of one of them; whether there was any.
    fn receive(&mut self) -> bool {
        let Some(mut elsewhere) = self.elsewhere.take() else { return false };
        let now = self.now();
        let any = elsewhere.receive(now, self);
        let overdue = elsewhere.overdue(now);
        self.elsewhere = Some(elsewhere);
        if let Some((vb, why)) = overdue {
            // The reader comes back with its position, to whichever node.
            let message = format!("no node has streamed it for {} s: {why}", MOST_WAITED.as_secs());
            self.wishes.writer.ended(vb, "NotServed", Some(&message), &mut self.notes);
            self.elsewhere = None;
            self.open = 0;
            self.untold = self.untold.max(1);
        }
        any
    }

    /// Who is woken when there is more.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Whether the reader is to be told a position as soon as it may be.
    pub fn owes_position(&self) -> bool {
        self.untold > 0
    }

    /// Asks for a stream from where the reader stands, and goes back where histories part.
    fn request(&mut self, vb: VbId) -> Result<(), Status> {
        for _ in 0..MOST_ROLLBACKS {
            let place = *self.wishes.since.place(vb).ok_or(Status::NotMyVbucket)?;
            let flags = if self.wishes.follow { 0 } else { StreamFlags::TO_LATEST };
            let request = StreamRequest {
                flags: StreamFlags(flags),
                start: place.seqno,
                end: Seqno(u64::MAX),
                uuid: place.uuid,
                snapshot_start: place.snapshot_start,
                snapshot_end: place.snapshot_end,
            };
            match self.producer.request(vb, vb.0.into(), &request, &self.wishes.filter) {
                Ok(log) => {
                    let uuid = FailoverLog::decode(&log).and_then(|log| Some(log.first()?.0));
                    if let (Some(uuid), Some(place)) = (uuid, self.wishes.since.place(vb)) {
                        place.uuid = uuid;
                    }
                    return Ok(());
                }
                Err(StreamRequestRefusal::RollBack(to)) => {
                    self.roll_back(vb, to);
                }
                Err(StreamRequestRefusal::Status(status) | StreamRequestRefusal::Unknown(status, _)) => {
                    return Err(status);
                }
            }
        }
        Err(Status::Einternal)
    }

    /// What the reader has of a vBucket after `to` is no longer part of history.
    fn roll_back(&mut self, vb: VbId, to: Seqno) {
        let back = Place::at(self.place(vb).uuid, to);
        self.set_place(vb, back);
        // The reader forgets events of collections, too: they are told once more.
        self.events = ToldEvents::default();
        self.wishes.writer.rollback(vb, to, &mut self.notes);
        self.untold += 1;
    }

    fn set_place(&mut self, vb: VbId, place: Place) {
        if let Some(there) = self.wishes.since.place(vb) {
            *there = place;
        }
        if let Some(snapshot) = self.snapshots.get_mut(usize::from(vb.0)) {
            *snapshot = (place.snapshot_start, place.snapshot_end);
        }
    }

    /// Appends some of what there is.
    pub fn step(&mut self, out: &mut Vec<u8>) -> Progress {
        // That histories parted is told before anything of the new one.
        out.append(&mut self.notes);
        let mut messages = std::mem::take(&mut self.messages);
        // Behind the end nothing is made that the last position would not tell of.
        let is_open = self.open > 0;
        let step = if is_open { self.producer.step(&mut messages, STEP_BYTES) } else { Step::Idle };
        let mut rest = &messages[..];
        // Our own producer writes whole messages.
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            if let Some(message) = Message::read(&request) {
                self.take(&message);
            }
            rest = &rest[total_len..];
        }
        messages.clear();
        give_back(&mut messages);
        self.messages = messages;
        // A refusal now is one of those that a vBucket waits with.
        let _waits = self.look();
        let has_received = self.receive();
        out.append(&mut self.notes);
        give_back(&mut self.notes);
        let is_finished = self.open == 0;
        self.tell_position((step == Step::Idle && !has_received) || is_finished, is_finished, out);
        match step {
            _ if is_finished && self.untold == 0 && !self.positions.is_keeping() => Progress::Finished,
            // The bell rings when the last position has its token.
            _ if is_finished => Progress::Idle,
            Step::More => Progress::More,
            Step::Idle if has_received => Progress::More,
            Step::Idle => Progress::Idle,
        }
    }

    fn tell_position(&mut self, is_at_rest: bool, is_last: bool, out: &mut Vec<u8>) {
        if self.elsewhere.as_ref().is_some_and(Elsewhere::is_unplaced) {
            // There is no position yet that says where the reader is in every vBucket.
            return;
        }
        // It is of a moment ago: what came meanwhile comes again to a reader that goes back to it.
        let mut text = self.positions.made();
        if self.untold > CHANGES_BETWEEN_POSITIONS || (self.untold > 0 && is_at_rest) {
            match self.positions.tell(&self.wishes.since, is_last) {
                Told::Now(newer) => {
                    self.untold = 0;
                    text = Some(newer);
                }
                Told::Soon => self.untold = 0,
                Told::Later => {}
            }
        }
        if let Some(text) = text {
            self.wishes.writer.position(&text, out);
            self.told = Some(text);
        }
    }

    /// A sign of life while nothing happens.
    pub fn heartbeat(&self, out: &mut Vec<u8>) {
        self.wishes.writer.heartbeat(self.told.as_deref(), out);
    }

    /// Whether it is an event of collections that the reader was told of already, by another vBucket.
    fn is_repeated(&mut self, message: &Message<'_>) -> bool {
        let What::SystemEvent(_, number, _) = message.what else { return false };
        !self.events.note(number, message.value)
    }

    fn take(&mut self, message: &Message<'_>) {
        let vb = message.vb;
        let at = usize::from(vb.0);
        match message.what {
            What::Marker(marker) => self.snapshots[at] = (marker.start, marker.end),
            What::End(reason) => self.ended(vb, reason),
            _ => {
                let (start, end) = self.snapshots[at];
                let uuid = self.wishes.since.0[at].uuid;
                let is_repeated = self.is_repeated(message);
                let is_left_out = is_repeated || !self.wishes.is_about(message);
                let is_told = is_left_out || self.wishes.writer.change(message, uuid.0, &mut self.notes);
                if let Some(seqno) = seqno_of(&message.what) {
                    self.wishes.since.0[at] = place_within(uuid, seqno, start, end);
                    self.untold += 1;
                }
                debug_assert!(is_told || matches!(message.what, What::SeqnoAdvanced(_)));
            }
        }
    }

    /// A stream of this node's producer ended.
    fn ended(&mut self, vb: VbId, reason: EndReason) {
        let breaks_off = matches!(reason, EndReason::Rollback | EndReason::TooSlow);
        if breaks_off && self.request(vb).is_ok() {
            return;
        }
        let now = self.now();
        if let Some(elsewhere) = &mut self.elsewhere {
            if breaks_off || matches!(reason, EndReason::StateChanged | EndReason::Disconnected) {
                return elsewhere.waits(vb, "it moves", now, Duration::ZERO);
            }
            elsewhere.is_done(vb);
        }
        self.is_over(vb, reason);
    }

    /// Nothing more comes of a vBucket.
    fn is_over(&mut self, vb: VbId, reason: EndReason) {
        self.open = self.open.saturating_sub(1);
        if reason != EndReason::Ok {
            self.wishes.writer.ended(vb, &format!("{reason:?}"), None, &mut self.notes);
        }
    }
}

impl Reads for Feed {
    fn place(&self, vb: VbId) -> Place {
        self.wishes.since.0.get(usize::from(vb.0)).copied().unwrap_or_default()
    }

    fn arrived(&mut self, arrival: Arrival<'_>) {
        match arrival {
            Arrival::Accepted(vb, uuid) => {
                if let Some(place) = self.wishes.since.place(vb) {
                    place.uuid = uuid;
                }
            }
            Arrival::RollBack(vb, to) => self.roll_back(vb, to),
            Arrival::Now(vb, place) => self.set_place(vb, place),
            Arrival::Message(message) => self.take(message),
            Arrival::Ended(vb, reason) => self.is_over(vb, reason),
        }
    }
}

/// Where a snapshot is complete, it does not matter any more where it began.
fn place_within(uuid: VbUuid, seqno: Seqno, start: Seqno, end: Seqno) -> Place {
    if seqno >= end {
        return Place::at(uuid, seqno);
    }
    Place { uuid, seqno, snapshot_start: start.min(seqno), snapshot_end: end }
}

pub(super) fn seqno_of(what: &What) -> Option<Seqno> {
    match *what {
        What::Mutation(mutation) => Some(mutation.by_seqno),
        What::Deletion(deletion) | What::Expiration(deletion) => Some(deletion.by_seqno),
        What::SystemEvent(seqno, ..) | What::SeqnoAdvanced(seqno) => Some(seqno),
        _ => None,
    }
}
