//! A strict consumer of several vBuckets over one connection, which is broken off now and then.
//!
//! It checks every message, and compares each whole snapshot with what the bucket held at its end.

#![allow(dead_code, unused_imports, reason = "not every test needs all of it")]

#[path = "strict_copy.rs"]
mod copy;

use std::sync::Arc;

use base::{CollectionId, DocKey, ScopeId, VbId};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal, read_event};
use engine::{Bucket, Progress};
use protocol::dcp::{EndReason, FailoverLog, Message, OpenFlags, What};
use protocol::{Limits, Parsed, Status, parse};
use vbucket::SystemEvent;

use crate::dice::{Dice, show};
pub use copy::{Documents, name_of, seqnos};
use copy::{StrictCopy, check_marker, close_if_whole, place};

/// What of a vBucket a consumer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Everything,
    Collection(CollectionId),
    Scope(ScopeId),
}

/// What the bucket must hold, as the test knows it.
pub trait Truth {
    fn bucket(&self) -> &Arc<Bucket>;

    /// The documents of a vBucket as of a seqno, of those that are wanted.
    fn documents(&self, vb: VbId, until: u64, wanted: Wanted) -> Documents;

    /// Whether a change between two others is none of a document: a prepare, which these consumers are not sent.
    fn passes_over(&self, _vb: VbId, _after: u64, _before: u64) -> bool {
        false
    }

    /// What a consumer that has nothing of a vBucket asks for.
    fn choose(&self, vb: VbId, dice: &mut Dice) -> Wanted;
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub disconnects: u64,
    pub rollbacks: u64,
    pub snapshots: u64,
    pub closed_by_next: u64,
    pub out_of_order: u64,
    pub nothing_left: u64,
    pub closed: u64,
    pub state_changed: u64,
}

impl Counts {
    pub fn add(&mut self, more: &Counts) {
        self.disconnects += more.disconnects;
        self.rollbacks += more.rollbacks;
        self.snapshots += more.snapshots;
        self.out_of_order += more.out_of_order;
        self.nothing_left += more.nothing_left;
        self.closed_by_next += more.closed_by_next;
        self.closed += more.closed;
        self.state_changed += more.state_changed;
    }
}

/// A consumer and its connection, if it has one.
pub struct Consumer {
    at: usize,
    /// Whether it knows of no collections: it gets the default one, and is not told where a snapshot ends whose last
    /// change is not for it.
    is_plain: bool,
    copies: Vec<StrictCopy>,
    producer: Option<Producer>,
    /// Bytes that arrived and were not looked at.
    received: Vec<u8>,
    pub counts: Counts,
}

impl Consumer {
    pub fn new(at: usize, vbuckets: u16) -> Consumer {
        let copies = (0..vbuckets).map(|_| StrictCopy::default()).collect();
        let (received, counts) = (Vec::new(), Counts::default());
        Consumer { at, is_plain: false, copies, producer: None, received, counts }
    }

    /// One that knows of no collections.
    pub fn plain(at: usize, vbuckets: u16) -> Consumer {
        Consumer { is_plain: true, ..Consumer::new(at, vbuckets) }
    }

    pub fn name(&self) -> String {
        format!("consumer {}", self.at)
    }

    pub fn documents(&self, vb: VbId) -> Documents {
        self.copies[usize::from(vb.0)].documents.clone()
    }

    /// What it wants of a vBucket that it has asked for.
    pub fn wanted(&self, vb: VbId) -> Wanted {
        self.copies[usize::from(vb.0)].wanted.expect("it was asked for")
    }

    fn connect(&mut self, bucket: &Arc<Bucket>, dice: &mut Dice) {
        let mut agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), b"test", true).expect("a producer");
        let mut control = |key: &str, value: &str| {
            assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Success, "{key}");
        };
        control("enable_noop", "true");
        if dice.one_in(2) {
            control("connection_buffer_size", &(100 + dice.below(20_000)).to_string());
        }
        if dice.one_in(3) {
            control("enable_out_of_order_snapshots", "true_with_seqno_advanced");
        }
        if dice.one_in(3) {
            control("backfill_order", "sequential");
        }
        if dice.one_in(3) {
            control("max_marker_version", "2.2");
        }
        let features = Features { collections: !self.is_plain, snappy: dice.one_in(2), json: true };
        let mut producer = Producer::new(bucket.clone(), self.name(), agreed, features, || {});
        producer.set_out_of_order_from(1);
        self.producer = Some(producer);
    }

    /// Breaks off, sometimes before it has looked at what had arrived.
    pub fn disconnect(&mut self) {
        self.counts.disconnects += u64::from(self.producer.is_some());
        self.producer = None;
        self.received.clear();
        for copy in &mut self.copies {
            copy.is_open = false;
            if std::mem::take(&mut copy.is_out_of_order) {
                // Such a snapshot has no middle where one could go on.
                copy.roll_back(0);
            }
        }
    }

    fn request(&mut self, vb: VbId, truth: &impl Truth, dice: &mut Dice) {
        let Some(producer) = &mut self.producer else { return };
        let copy = &mut self.copies[usize::from(vb.0)];
        if copy.last == 0 {
            let is_plain = self.is_plain;
            let plain = || is_plain.then_some(Wanted::Collection(CollectionId::DEFAULT));
            copy.wanted = plain().or_else(|| Some(truth.choose(vb, dice)));
        }
        let filter = match copy.wanted {
            _ if self.is_plain => String::new(),
            None | Some(Wanted::Everything) => String::new(),
            Some(Wanted::Collection(id)) => format!(r#"{{"collections":["{:x}"]}}"#, id.0),
            Some(Wanted::Scope(id)) => format!(r#"{{"scope":"{:x}"}}"#, id.0),
        };
        let request = copy.request();
        show(|| format!("{} {vb:?} {request:?}", self.at));
        match producer.request(vb, u32::from(vb.0), &request, filter.as_bytes()) {
            Ok(log) => {
                copy.snapshot = (request.snapshot_start.0, request.snapshot_end.0);
                copy.log = FailoverLog::decode(&log).expect("whole entries");
                copy.is_open = true;
            }
            Err(StreamRequestRefusal::RollBack(to)) => {
                assert!(to.0 <= copy.last, "it goes back");
                self.counts.rollbacks += 1;
                copy.roll_back(to.0);
            }
            Err(StreamRequestRefusal::Status(Status::NotMyVbucket)) => {}
            // It was dropped meanwhile, or this vBucket does not have it yet.
            Err(StreamRequestRefusal::Unknown(..)) => copy.begin_anew(),
            Err(refusal) => panic!("{refusal:?}"),
        }
    }

    pub fn act(&mut self, truth: &impl Truth, dice: &mut Dice) {
        match &mut self.producer {
            None => self.connect(truth.bucket(), dice),
            Some(_) if dice.one_in(25) => self.disconnect(),
            Some(producer) => {
                let at = dice.below(self.copies.len() as u64) as usize;
                if !self.copies[at].is_open {
                    self.request(VbId(at as u16), truth, dice);
                } else if dice.one_in(30) {
                    let mut end = Vec::new();
                    self.copies[at].is_open = false;
                    let closed = producer.close_stream(VbId(at as u16), None, &mut end);
                    self.counts.closed += 1;
                    // Its end may be on the way.
                    assert!(matches!(closed, Status::Success | Status::KeyEnoent), "{closed:?}");
                    // What was sent before still arrives, but nobody looks at it.
                    self.look(u64::MAX, truth, Some(at));
                    if std::mem::take(&mut self.copies[at].is_out_of_order) {
                        self.copies[at].roll_back(0);
                    }
                }
            }
        }
        self.pull(dice.below(30_000) as usize);
        self.look(dice.below(20), truth, None);
    }

    fn pull(&mut self, bytes: usize) -> bool {
        let Some(producer) = &mut self.producer else { return false };
        producer.step(&mut self.received, bytes) == Step::More
    }

    /// Looks at so many messages that have arrived.
    fn look(&mut self, most: u64, truth: &impl Truth, ignored: Option<usize>) -> u64 {
        let bytes = std::mem::take(&mut self.received);
        let mut rest = &bytes[..];
        let mut looked = 0;
        while looked < most && !rest.is_empty() {
            let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) else {
                panic!("a producer sends whole requests");
            };
            let message = Message::read(&request).expect("a message of a stream");
            assert_eq!(u32::from(message.vb.0), message.opaque);
            if ignored != Some(usize::from(message.vb.0)) {
                self.take(&message, truth);
            }
            rest = &rest[total_len..];
            if let Some(producer) = &mut self.producer {
                producer.acknowledge(total_len as u32);
            }
            looked += 1;
        }
        self.received = rest.to_vec();
        looked
    }

    fn take(&mut self, message: &Message<'_>, truth: &impl Truth) {
        show(|| format!("{} {:?} {:?}", self.at, message.vb, message.what));
        let vb = message.vb;
        let copy = &mut self.copies[usize::from(vb.0)];
        assert!(copy.is_open, "{vb:?}: nothing comes after the end");
        match message.what {
            What::Marker(marker) => {
                self.counts.snapshots += 1;
                let (_, end) = copy.snapshot;
                if self.is_plain && copy.last < end && end < marker.start.0 {
                    self.counts.closed_by_next += 1;
                    copy.is_whole(vb, end, truth);
                }
                check_marker(copy, &marker, truth.passes_over(vb, end, marker.start.0));
                copy.snapshot = (marker.start.0, marker.end.0);
            }
            What::Mutation(mutation) => {
                let value = match base::Datatype(message.datatype).is_snappy() {
                    true => snap::raw::Decoder::new().decompress_vec(message.value).expect("a block"),
                    false => message.value.to_vec(),
                };
                let value = String::from_utf8(value).expect("text");
                place(copy, mutation.by_seqno.0);
                copy.documents.insert(key_of(message, self.is_plain), (mutation.by_seqno.0, value));
                close_if_whole(copy, vb, truth);
            }
            What::Deletion(deletion) => {
                place(copy, deletion.by_seqno.0);
                copy.documents.remove(&key_of(message, self.is_plain));
                close_if_whole(copy, vb, truth);
            }
            What::SystemEvent(..) | What::SeqnoAdvanced(_) if self.is_plain => panic!("{message:?}"),
            What::SystemEvent(seqno, ..) => {
                place(copy, seqno.0);
                let event = read_event(message).expect("an event");
                if let SystemEvent::CollectionEnd { id, .. } = event {
                    let prefix = name_of(id, "");
                    copy.documents.retain(|name, _| !name.starts_with(&prefix));
                }
                close_if_whole(copy, vb, truth);
            }
            What::End(EndReason::FilterEmpty) => {
                assert!(copy.documents.is_empty() && matches!(copy.wanted, Some(Wanted::Collection(_))));
                self.counts.nothing_left += 1;
                copy.begin_anew();
            }
            What::OutOfOrder(true) => {
                assert!(copy.last == 0 && !copy.is_out_of_order, "only from the beginning");
                self.counts.out_of_order += 1;
                (copy.is_out_of_order, copy.highest_out_of_order) = (true, 0);
            }
            What::SeqnoAdvanced(seqno) if copy.is_out_of_order => copy.highest_out_of_order = seqno.0,
            What::SeqnoAdvanced(seqno) => {
                assert_eq!(seqno.0, copy.snapshot.1);
                copy.is_whole(vb, seqno.0, truth);
            }
            What::OutOfOrder(false) => {
                assert!(std::mem::take(&mut copy.is_out_of_order));
                copy.is_whole(vb, copy.highest_out_of_order, truth);
            }
            What::End(reason) => {
                copy.is_open = false;
                self.counts.state_changed += u64::from(reason == EndReason::StateChanged);
                if std::mem::take(&mut copy.is_out_of_order) {
                    copy.roll_back(0);
                }
            }
            _ => panic!("{message:?}"),
        }
    }

    /// Whether something has arrived that it has not looked at.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Looks at everything that has arrived.
    pub fn look_at_all(&mut self, truth: &impl Truth) {
        self.look(u64::MAX, truth, None);
    }

    /// Comes back and reads until nothing moves any more.
    pub fn finish(&mut self, truth: &impl Truth, dice: &mut Dice) {
        loop {
            if self.producer.is_none() {
                self.connect(truth.bucket(), dice);
            }
            for at in 0..self.copies.len() {
                if !self.copies[at].is_open {
                    self.request(VbId(at as u16), truth, dice);
                }
            }
            let more = self.pull(1 << 20);
            let looked = self.look(u64::MAX, truth, None);
            let read = truth.bucket().streams().backfills().step() != Progress::Idle;
            if !more && !read && looked == 0 && self.copies.iter().all(|copy| copy.is_open) {
                return;
            }
        }
    }
}

fn key_of(message: &Message<'_>, is_plain: bool) -> String {
    if is_plain {
        return name_of(CollectionId::DEFAULT, &message.key.escape_ascii().to_string());
    }
    let key = DocKey::parse(message.key).expect("a key with a collection");
    name_of(key.collection, &key.key.escape_ascii().to_string())
}
