//! A reader's streams, without its connection: a producer in this process whose messages become events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use base::{Seqno, VbId, VbState, VbUuid};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal};
use engine::Bucket;
use parking_lot::Mutex;
use protocol::dcp::{EndReason, FailoverLog, Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{Limits, Parsed, Status, parse};

use super::anchor::Anchor;
use super::event::Writer;
use super::positions::{Positions, Told};
use super::token::{Place, Token};

/// Bytes of messages that are made at once, which become one piece of the answer.
const STEP_BYTES: usize = 64 << 10;
/// After so many changes the reader is told its position.
const CHANGES_BETWEEN_POSITIONS: u32 = 1000;
/// Events of collections that are remembered, some forty bytes each.
const MOST_EVENTS: usize = 8192;
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
    /// The kept position that the reader's token refers to.
    pub anchor: Option<Anchor>,
    /// Whether tokens are to need nothing that the server keeps.
    pub are_tokens_whole: bool,
    /// The value of stream requests: which collections; empty for all.
    pub filter: Vec<u8>,
}

/// Who is woken when there is something to send.
#[derive(Default)]
pub struct Bell(Mutex<Option<Waker>>);

impl Bell {
    /// From now on this one.
    pub fn listen(&self, waker: &Waker) {
        let mut heard = self.0.lock();
        if !heard.as_ref().is_some_and(|before| before.will_wake(waker)) {
            *heard = Some(waker.clone());
        }
    }

    /// Wakes the listeners.
    pub fn ring(&self) {
        if let Some(waker) = &*self.0.lock() {
            waker.wake_by_ref();
        }
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
    /// Changes since the reader was told its position.
    untold: u32,
    positions: Positions,
    /// The last token that the reader was told.
    told: Option<String>,
    /// Events of collections and scopes that were told: each comes once, not once for each vBucket.
    events: BTreeSet<Vec<u8>>,
    /// Events that are not about a change and wait for the next step.
    notes: Vec<u8>,
    messages: Vec<u8>,
}

impl Feed {
    /// Begins to read a bucket's active vBuckets.
    pub fn begin(bucket: Arc<Bucket>, wishes: Wishes) -> Result<Feed, Status> {
        let values = if wishes.writer.values { 0 } else { OpenFlags::NO_VALUE };
        let mut agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER | values), b"http", false)?;
        for (key, value) in [("enable_noop", "true"), ("enable_expiry_opcode", "true")] {
            agreed.control(key.as_bytes(), value.as_bytes());
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
            events: BTreeSet::new(),
            snapshots: snapshots.collect(),
            bucket,
            producer,
            wishes,
            bell,
            open: 0,
            untold: 1,
            notes: Vec::new(),
            messages: Vec::new(),
        };
        for vb in (0..feed.bucket.vbuckets()).map(VbId) {
            if feed.bucket.state_of(vb) == Some(VbState::Active) {
                feed.request(vb)?;
            }
        }
        Ok(feed)
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
                    self.open += 1;
                    return Ok(());
                }
                Err(StreamRequestRefusal::RollBack(to)) => {
                    let back = Place::at(place.uuid, to);
                    self.set_place(vb, back);
                    self.wishes.writer.rollback(vb, to, &mut self.notes);
                    self.untold += 1;
                }
                Err(StreamRequestRefusal::Status(status) | StreamRequestRefusal::Unknown(status, _)) => {
                    return Err(status);
                }
            }
        }
        Err(Status::Einternal)
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
        let step = self.producer.step(&mut messages, STEP_BYTES);
        let mut rest = &messages[..];
        // Our own producer writes whole messages.
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            if let Some(message) = Message::read(&request) {
                self.take(&message, out);
            }
            rest = &rest[total_len..];
        }
        messages.clear();
        self.messages = messages;
        out.append(&mut self.notes);
        let is_finished = self.open == 0;
        self.tell_position(step == Step::Idle || is_finished, is_finished, out);
        match step {
            _ if is_finished && self.untold == 0 && !self.positions.is_keeping() => Progress::Finished,
            // The bell rings when the last position has its token.
            _ if is_finished => Progress::Idle,
            Step::More => Progress::More,
            Step::Idle => Progress::Idle,
        }
    }

    fn tell_position(&mut self, is_at_rest: bool, is_last: bool, out: &mut Vec<u8>) {
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
        // The value begins with the manifest's number, so that the oldest are forgotten first.
        let event = [message.value, &number.to_be_bytes()].concat();
        let is_new = self.events.insert(event);
        if self.events.len() > MOST_EVENTS {
            self.events.pop_first();
        }
        !is_new
    }

    fn take(&mut self, message: &Message<'_>, out: &mut Vec<u8>) {
        let vb = message.vb;
        let at = usize::from(vb.0);
        match message.what {
            What::Marker(marker) => self.snapshots[at] = (marker.start, marker.end),
            What::End(reason) => self.ended(vb, reason),
            _ => {
                let (start, end) = self.snapshots[at];
                let uuid = self.wishes.since.0[at].uuid;
                let is_repeated = self.is_repeated(message);
                let is_told = is_repeated || self.wishes.writer.change(message, uuid.0, out);
                if let Some(seqno) = seqno_of(&message.what) {
                    self.wishes.since.0[at] = place_within(uuid, seqno, start, end);
                    self.untold += 1;
                }
                debug_assert!(is_told || matches!(message.what, What::SeqnoAdvanced(_)));
            }
        }
    }

    fn ended(&mut self, vb: VbId, reason: EndReason) {
        self.open -= 1;
        match reason {
            EndReason::Ok => {}
            EndReason::Rollback | EndReason::TooSlow if self.request(vb).is_ok() => {}
            _ => self.wishes.writer.ended(vb, reason, &mut self.notes),
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

fn seqno_of(what: &What) -> Option<Seqno> {
    match *what {
        What::Mutation(mutation) => Some(mutation.by_seqno),
        What::Deletion(deletion) | What::Expiration(deletion) => Some(deletion.by_seqno),
        What::SystemEvent(seqno, ..) | What::SeqnoAdvanced(seqno) => Some(seqno),
        _ => None,
    }
}
