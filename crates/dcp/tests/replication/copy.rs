//! What a node holds of a vBucket, read as a client of its streams reads it, and what it must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Datatype, ItemKind, Seqno, VbId};
use dcp::{Agreement, Features, Producer, Step};
use engine::{Bucket, Progress};
use protocol::dcp::{Marker, Message, OpenFlags, StreamRequest, What};
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
        write!(f, "[{seqno} {kind:?} cas {cas} rev {rev} flags {flags} time {time} type {datatype} {len} bytes]")
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
    let mut agreed = Agreement::open(OpenFlags(flags), b"copy", true).map_err(|status| format!("{status:?}"))?;
    for (key, value) in [("enable_noop", "true"), ("enable_expiry_opcode", "true")] {
        assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Success);
    }
    let features = Features { collections: true, snappy: false, json: true };
    let mut producer = Producer::new(Arc::clone(bucket), "copy".to_owned(), agreed, features, || {});
    let request = StreamRequest { end: Seqno(u64::MAX), ..StreamRequest::default() };
    producer.request(vb, 0, &request, b"").map_err(|refusal| format!("{vb:?} cannot be read: {refusal:?}"))?;
    let mut received: Vec<u8> = Vec::new();
    loop {
        let before = received.len();
        let step = producer.step(&mut received, 1 << 20);
        let worked = bucket.backfill_step() == Progress::Worked;
        if step == Step::Idle && !worked && received.len() == before {
            break;
        }
    }
    let (mut records, mut last, mut snapshot) = (Records::new(), 0, (0, 0));
    let mut rest = &received[..];
    while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
        let message = Message::read(&request).ok_or("an unreadable message")?;
        if let What::Marker(Marker { start, end, .. }) = message.what {
            snapshot = (start.0, end.0);
        } else if let Some(record) = record(&message) {
            if record.seqno <= last || !(snapshot.0..=snapshot.1).contains(&record.seqno) {
                return Err(format!("{vb:?}: {} after {last} in {snapshot:?}", record.seqno));
            }
            last = record.seqno;
            records.insert(text(&message.key[1..]), record);
        }
        rest = &rest[total_len..];
    }
    Ok(records)
}

/// One history of a vBucket: every change in order.
pub type Branch = Vec<(String, Record)>;

/// The latest change of each key up to `until`.
pub fn latest(branch: &Branch, until: u64) -> BTreeMap<&str, &Record> {
    branch.iter().filter(|(_, record)| record.seqno <= until).map(|(key, record)| (key.as_str(), record)).collect()
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
        let is_newer = has.is_some_and(|has| has.seqno > base);
        if has != Some(wanted) && !is_newer && !(has.is_none() && may_be_missing) {
            return Err(format!("{key} is {has:?}, must be {wanted:?}"));
        }
    }
    for (key, wanted) in latest(branch, whole).into_iter().filter(|(_, record)| (base..=high).contains(&record.seqno)) {
        let may_be_missing = wanted.kind != ItemKind::Mutation && wanted.seqno <= purged;
        let has = records.get(key);
        if has != Some(wanted) && !may_be_missing {
            return Err(format!("{key} is {has:?}, must be {wanted:?} inside the snapshot"));
        }
    }
    Ok(())
}
