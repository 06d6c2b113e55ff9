//! What a node holds of a vBucket, read as a client of its streams reads it, and what it must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Datatype, ItemKind, Seqno, VbId, VbUuid};
use dcp::{Agreement, Features, Producer, Step, StreamRequestRefusal};
use engine::{Bucket, Progress};
use protocol::dcp::{FailoverLog, Marker, Message, OpenFlags, StreamRequest, What};
use protocol::{Limits, Parsed, Status, parse};

/// A document or tombstone with everything that a replica must have of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    pub seqno: u64,
    pub cas: u64,
    pub rev: u64,
    pub flags: u32,
    /// Expiry, or time of the deletion.
    pub time: u32,
    pub datatype: u8,
    pub kind: ItemKind,
    pub value: Vec<u8>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Record { seqno, cas, rev, flags, time, datatype, kind, value } = self;
        let len = value.len();
        write!(
            f,
            "[{seqno} {kind:?} cas {cas} rev {rev} flags {flags} time {time} type {datatype} {len} bytes]"
        )
    }
}

/// By key.
pub type Records = BTreeMap<String, Record>;

pub fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

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

/// Everything that a bucket has of a vBucket, from its first change to its last.
pub fn read(bucket: &Arc<Bucket>, vb: VbId) -> Result<Records, String> {
    let flags =
        OpenFlags::PRODUCER | OpenFlags::XATTRS | OpenFlags::DELETE_TIMES | OpenFlags::DELETED_USER_XATTRS;
    let mut agreed =
        Agreement::open(OpenFlags(flags), b"copy", true).map_err(|status| format!("{status:?}"))?;
    for (key, value) in [("enable_noop", "true"), ("enable_expiry_opcode", "true")] {
        assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Success);
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
            let worked = bucket.backfill_step() == Progress::Worked;
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

/// A replica's stream ends when what it announced became part of something larger; not for ever.
const MOST_STREAMS: usize = 8;

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

    /// Takes what was sent; whether the stream ended.
    fn take(&mut self, received: &[u8]) -> Result<bool, String> {
        let mut rest = received;
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            rest = &rest[total_len..];
            let message = Message::read(&request).ok_or("an unreadable message")?;
            match message.what {
                What::Marker(Marker { start, end, .. }) => self.snapshot = (start.0, end.0),
                What::SeqnoAdvanced(seqno) => self.last = seqno.0,
                What::End(_) => return Ok(true),
                _ => {}
            }
            let Some(record) = record(&message) else { continue };
            if record.seqno <= self.last || !(self.snapshot.0..=self.snapshot.1).contains(&record.seqno) {
                return Err(format!("{} after {} in {:?}", record.seqno, self.last, self.snapshot));
            }
            self.last = record.seqno;
            self.records.insert(text(&message.key[1..]), record);
        }
        Ok(false)
    }
}

/// One history of a vBucket: every change in order.
pub type Branch = Vec<(String, Record)>;

/// The latest change of each key up to `until`.
pub fn latest(branch: &Branch, until: u64) -> BTreeMap<&str, &Record> {
    branch
        .iter()
        .filter(|(_, record)| record.seqno <= until)
        .map(|(key, record)| (key.as_str(), record))
        .collect()
}

/// Where a node stands in a vBucket.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub uuid: u64,
    pub high: u64,
    /// The snapshot that it is in.
    pub start: u64,
    pub end: u64,
    pub purge: u64,
}

/// Whether `records` is what a node at this place may have of the branch; tombstones up to `purged` may be missing.
pub fn check(records: &Records, branch: &Branch, place: &Place, purged: u64) -> Result<(), String> {
    let Place { high, start, end, .. } = *place;
    let known: BTreeMap<u64, &(String, Record)> =
        branch.iter().map(|change| (change.1.seqno, change)).collect();
    for (key, record) in records {
        match known.get(&record.seqno) {
            Some((name, wanted)) if name == key && wanted == record && record.seqno <= high => {}
            Some((name, wanted)) => return Err(format!("{key} is {record:?}, made was {name} {wanted:?}")),
            None => return Err(format!("{key} {record:?} was never made")),
        }
    }
    // Inside a snapshot there may be what the snapshot's end does not have any more.
    let (base, whole) = if high >= end { (high, high) } else { (start.min(high), end) };
    for (key, wanted) in latest(branch, base) {
        let has = records.get(key);
        let may_be_missing = wanted.kind != ItemKind::Mutation && wanted.seqno <= purged;
        // Something newer of the unfinished snapshot, or a tombstone of it that is gone, too.
        let is_gone = |change: &Record| change.kind != ItemKind::Mutation && change.seqno <= purged;
        let replaced = branch.iter().any(|(name, change)| {
            name == key && (base + 1..=high).contains(&change.seqno) && is_gone(change)
        });
        let is_newer = has.map_or(replaced, |has| has.seqno > base);
        if has != Some(wanted) && !is_newer && !(has.is_none() && may_be_missing) {
            return Err(format!("{key} is {has:?}, must be {wanted:?}"));
        }
    }
    for (key, wanted) in
        latest(branch, whole).into_iter().filter(|(_, record)| (base..=high).contains(&record.seqno))
    {
        let may_be_missing = wanted.kind != ItemKind::Mutation && wanted.seqno <= purged;
        let has = records.get(key);
        if has != Some(wanted) && !may_be_missing {
            return Err(format!("{key} is {has:?}, must be {wanted:?} inside the snapshot"));
        }
    }
    Ok(())
}
