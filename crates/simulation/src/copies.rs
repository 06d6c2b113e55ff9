//! What a node holds of a vBucket, read as a client of its streams reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CollectionId, Datatype, DocKey, ItemKind, Seqno, VbId, VbUuid};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal, read_event};
use engine::{Bucket, Progress};
use protocol::dcp::{FailoverLog, Marker, Message, OpenFlags, StreamRequest, What};
use protocol::{Limits, Parsed, parse};
use vbucket::SystemEvent;

/// A document or tombstone with everything that all copies must have of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place.
    pub seqno: u64,
    /// Its CAS.
    pub cas: u64,
    /// Its revision.
    pub rev: u64,
    /// What the client put there; a tombstone has none.
    pub flags: u32,
    /// When it expires or, a tombstone, was deleted: seconds since 1970; 0 for never.
    pub time: u32,
    /// Of the value as it is, uncompressed.
    pub datatype: u8,
    /// What it is.
    pub kind: ItemKind,
    /// With extended attributes in front, if there are any.
    pub value: Vec<u8>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Record { seqno, cas, rev, flags, time, datatype, kind, value } = self;
        let len = value.len();
        write!(
            f,
            "[{seqno} {kind:?} cas {cas:x} rev {rev} flags {flags} time {time} type {datatype} {len} bytes]"
        )
    }
}

/// By key, with its collection in front.
pub type Records = BTreeMap<Vec<u8>, Record>;

fn record(message: &Message<'_>) -> Option<Record> {
    let (seqno, rev, flags, time, kind) = match message.what {
        What::Mutation(m) => (m.by_seqno, m.rev_seqno, m.flags, m.expiry, ItemKind::Mutation),
        What::Deletion(d) => (d.by_seqno, d.rev_seqno, 0, d.delete_time.unwrap_or(0), ItemKind::Deletion),
        What::Expiration(d) => (d.by_seqno, d.rev_seqno, 0, d.delete_time.unwrap_or(0), ItemKind::Expiration),
        _ => return None,
    };
    let datatype = message.datatype & !Datatype::SNAPPY.0;
    let value = message.value.to_vec();
    Some(Record { seqno: seqno.0, cas: message.cas.0, rev: rev.0, flags, time, datatype, kind, value })
}

/// A replica's stream ends when what it announced became part of something larger; not for ever.
const MOST_STREAMS: usize = 8;

/// Everything that a bucket has of a vBucket, from its first change to its last.
pub fn read(bucket: &Arc<Bucket>, vb: VbId) -> Result<Records, String> {
    let flags =
        OpenFlags::PRODUCER | OpenFlags::XATTRS | OpenFlags::DELETE_TIMES | OpenFlags::DELETED_USER_XATTRS;
    let mut agreed =
        Agreement::open(OpenFlags(flags), b"copy", true).map_err(|status| format!("{status:?}"))?;
    for (key, value) in [("enable_noop", "true"), ("enable_expiry_opcode", "true")] {
        let _ = agreed.control(key.as_bytes(), value.as_bytes());
    }
    let features = Features { collections: true, snappy: false, json: true };
    let mut producer = Producer::new(Arc::clone(bucket), "copy".to_owned(), agreed, features, || {});
    let mut copy = Copy::default();
    for _ in 0..MOST_STREAMS {
        let request = copy.request();
        let log = match producer.request(vb, 0, &request, b"") {
            Ok(log) => log,
            // A replica that has not the end of the snapshot yet, of which this has a part.
            Err(StreamRequestRefusal::RollBack(_)) if copy.last > 0 => {
                copy = Copy::default();
                continue;
            }
            Err(refusal) => return Err(format!("{vb:?} cannot be read from {request:?}: {refusal:?}")),
        };
        copy.log = FailoverLog::decode(&log).ok_or("a failover log")?;
        let mut received: Vec<u8> = Vec::new();
        loop {
            let before = received.len();
            let step = producer.step(&mut received, 1 << 20);
            let worked = bucket.streams().backfills().step() == Progress::Worked;
            if step == Step::Idle && !worked && received.len() == before {
                break;
            }
        }
        if !copy.take(&received)? {
            return Ok(copy.records);
        }
    }
    Err(format!("{vb:?}: its streams end again and again"))
}

fn collection_of(key: &[u8]) -> Option<CollectionId> {
    DocKey::parse(key).map(|key| key.collection)
}

/// What was read so far.
#[derive(Default)]
struct Copy {
    records: Records,
    last: u64,
    snapshot: (u64, u64),
    log: Vec<(VbUuid, Seqno)>,
}

impl Copy {
    fn request(&self) -> StreamRequest {
        let history = self.log.iter().find(|(_, seqno)| seqno.0 <= self.last);
        let (start, end) = if self.last == self.snapshot.1 { (self.last, self.last) } else { self.snapshot };
        StreamRequest {
            start: Seqno(self.last),
            end: Seqno(u64::MAX),
            uuid: history.map_or(VbUuid(0), |(uuid, _)| *uuid),
            snapshot_start: Seqno(start.min(self.last)),
            snapshot_end: Seqno(end),
            ..StreamRequest::default()
        }
    }

    /// Takes what was sent; whether the stream ended. Nothing stays of a collection that ends: when a node erases its
    /// documents is the node's own affair.
    fn take(&mut self, received: &[u8]) -> Result<bool, String> {
        let mut rest = received;
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            rest = &rest[total_len..];
            let message = Message::read(&request).ok_or("an unreadable message")?;
            match message.what {
                What::Marker(Marker { start, end, .. }) => self.snapshot = (start.0, end.0),
                What::SeqnoAdvanced(seqno) => self.last = seqno.0,
                What::End(_) => return Ok(true),
                What::SystemEvent(seqno, ..) => {
                    self.advance(seqno.0)?;
                    let event = read_event(&message).ok_or("an unreadable event")?;
                    if let SystemEvent::CollectionEnd { id, .. } = event {
                        self.records.retain(|key, _| collection_of(key) != Some(id));
                    }
                }
                _ => {}
            }
            let Some(record) = record(&message) else { continue };
            self.advance(record.seqno)?;
            self.records.insert(message.key.to_vec(), record);
        }
        Ok(false)
    }

    /// Changes come in their order, each within what was announced.
    fn advance(&mut self, seqno: u64) -> Result<(), String> {
        if seqno <= self.last || !(self.snapshot.0..=self.snapshot.1).contains(&seqno) {
            return Err(format!("{seqno} after {} in {:?}", self.last, self.snapshot));
        }
        self.last = seqno;
        Ok(())
    }
}

/// Whether two copies are the same; tombstones up to `purged` may be gone from either.
pub fn compare(one: &Records, other: &Records, purged: u64) -> Result<(), String> {
    let keys: std::collections::BTreeSet<&Vec<u8>> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let (mine, theirs) = (one.get(key), other.get(key));
        let is_gone = |record: Option<&Record>, other: Option<&Record>| {
            let may_be = |record: &Record| record.kind != ItemKind::Mutation && record.seqno <= purged;
            record.is_none() && other.is_some_and(may_be)
        };
        if mine != theirs && !is_gone(mine, theirs) && !is_gone(theirs, mine) {
            let doc = DocKey::parse(key).ok_or("a key without a collection")?;
            let (id, key) = (doc.collection.0, doc.key.escape_ascii());
            return Err(format!("{key} of collection {id:#x} is {mine:?} and {theirs:?}"));
        }
    }
    Ok(())
}
