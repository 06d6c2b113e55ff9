//! What a node holds of a vBucket, read as a client of its streams reads it, and what it must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{DocKey, ItemKind, VbId};
use engine::Bucket;

use crate::copies;
pub use crate::copies::Record;

/// By key, without bytes that are no text; all are in the default collection.
pub type NamedRecords = BTreeMap<String, Record>;

/// Everything that a bucket has of a vBucket, from its first change to its last.
pub fn read(bucket: &Arc<Bucket>, vb: VbId) -> Result<NamedRecords, String> {
    let named = |(key, record): (Vec<u8>, Record)| -> Result<(String, Record), String> {
        let doc = DocKey::parse(&key).ok_or("a key without a collection")?;
        Ok((doc.key.escape_ascii().to_string(), record))
    };
    copies::read(bucket, vb)?.into_iter().map(named).collect()
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
pub fn check(records: &NamedRecords, branch: &Branch, place: &Place, purged: u64) -> Result<(), String> {
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

/// Whether two histories have the same changes up to `until`.
pub fn agree(one: &Branch, other: &Branch, until: u64) -> bool {
    let changes = |branch: &Branch| -> Vec<(u64, u64)> {
        let all = branch.iter().map(|(_, record)| (record.seqno, record.cas));
        all.filter(|(seqno, _)| *seqno <= until).collect()
    };
    changes(one) == changes(other)
}
