//! The histories that nodes are in, and whether a node has what its history says.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Datatype, DocKey, ItemKind, VbId, VbState};
use engine::{Bucket, Fetched, Refusal};

use super::{World, vbuckets};
use crate::KEYS;
use crate::copy::{self, Branch, Record};
use crate::dice::show;

/// Brings what there is of a key into memory, where it stays while what is returned lives.
fn bring(bucket: &Bucket, vb: VbId, doc: DocKey<'_>) -> Result<Option<Fetched>, Refusal> {
    let fetch = bucket.fetching().fetch(vb, doc)?;
    bucket.fetching().fetch_step();
    Ok(fetch.try_take())
}

impl World {
    pub fn branch(&self, at: usize, vb: VbId) -> Result<&Branch, String> {
        let uuid = self.place(at, vb).uuid;
        self.branches
            .get(&(vb.0, uuid))
            .ok_or_else(|| format!("node {at} {vb:?} has an unknown history {uuid:x}"))
    }

    /// Looks at everything that a node has of a vBucket.
    pub fn look(&mut self, at: usize, vb: VbId) -> Result<(), String> {
        if self.role(at, vb) == Some(VbState::Dead) {
            return Ok(());
        }
        self.counts.looks += 1;
        let records = copy::read(&self.nodes[at].bucket, vb)?;
        show(|| {
            format!(
                "node {at} {vb:?} has {:?}",
                records.values().map(|r| r.seqno).collect::<std::collections::BTreeSet<_>>()
            )
        });
        let (place, purged) = (self.place(at, vb), self.purged[usize::from(vb.0)]);
        copy::check(&records, self.branch(at, vb)?, &place, purged)
            .map_err(|what| format!("node {at} {vb:?} at {place:?}: {what}"))
    }

    /// A node has a history of its own from here on, if it has a new name for it.
    pub(super) fn name_branch(&mut self, at: usize, vb: VbId, before: u64) -> Result<(), String> {
        let place = self.place(at, vb);
        if self.branches.contains_key(&(vb.0, place.uuid)) {
            return Ok(());
        }
        let parent = self.branches.get(&(vb.0, before)).cloned().unwrap_or_default();
        let records = copy::read(&self.nodes[at].bucket, vb)?;
        let fork =
            self.nodes[at].bucket.with_vbucket(vb, |vb| vb.failover().newest().seqno.0).expect("it is there");
        let has = |key: &str, seqno: u64| records.get(key).is_some_and(|record| record.seqno == seqno);
        // A tombstone that it had may be gone.
        let purged = self.purged[usize::from(vb.0)].min(place.high);
        let is_gone = |key: &str, change: &Record| {
            change.kind.is_deleted() && change.seqno <= purged && !records.contains_key(key)
        };
        let keep = |change: &(String, Record)| {
            let (key, record) = change;
            record.seqno <= fork || has(key, record.seqno) || is_gone(key, record)
        };
        self.branches.insert((vb.0, place.uuid), parent.into_iter().filter(keep).collect());
        self.look(at, vb)
    }

    /// A node became active by what another one told it.
    pub fn took_over(&mut self, at: usize, vb: VbId, from: usize) -> Result<(), String> {
        let before = self.place(from, vb).uuid;
        self.name_branch(at, vb, before)
    }

    /// Notes what a node has made of its vBucket.
    pub(super) fn learn(&mut self, at: usize, vb: VbId) {
        let Ok(branch) = self.branch(at, vb) else { return };
        let last = branch.last().map_or(0, |(_, record)| record.seqno);
        let (bucket, uuid) = (Arc::clone(&self.nodes[at].bucket), self.place(at, vb).uuid);
        let mut new = Vec::new();
        for name in self.names.first(KEYS) {
            let Ok(Some(seen)) = bucket.documents().peek_as_is(vb, DocKey::new(&name), bucket.now()) else {
                continue;
            };
            let meta = seen.version.meta();
            if meta.by_seqno.0 <= last {
                continue;
            }
            let whole = seen.whole().expect("it was just made");
            let record = Record {
                seqno: meta.by_seqno.0,
                cas: meta.cas.0,
                rev: meta.rev_seqno.0,
                flags: if meta.kind.is_deleted() { 0 } else { meta.flags },
                time: meta.expiry,
                datatype: meta.datatype.0 & !Datatype::SNAPPY.0,
                kind: meta.kind,
                value: engine::value::plain(&whole).expect("readable").into_owned(),
            };
            new.push((name.escape_ascii().to_string(), record));
        }
        new.sort_by_key(|(_, record)| record.seqno);
        new.iter().for_each(|new| show(|| format!("node {at} {vb:?} {new:?}")));
        self.counts.expirations +=
            new.iter().filter(|(_, new)| new.kind == ItemKind::Expiration).count() as u64;
        self.branches.get_mut(&(vb.0, uuid)).expect("it was there").extend(new);
    }

    /// A replica went back.
    pub fn rolled_back(&mut self, at: usize, vb: VbId, to: u64, back: u64) -> Result<(), String> {
        let place = self.place(at, vb);
        if back > to || place.high != back || place.end > to {
            return Err(format!("node {at} {vb:?} went back to {back} for {to}, and stands at {place:?}"));
        }
        let node = &mut self.nodes[at];
        let slot = usize::from(vb.0);
        node.persisted[slot] = node.persisted[slot].min(back);
        node.seen[slot] = back;
        self.look(at, vb)
    }

    /// What a node has only grows, and lies in a snapshot.
    pub fn check_rising(&mut self, at: usize) -> Result<(), String> {
        for vb in vbuckets() {
            let (place, slot) = (self.place(at, vb), usize::from(vb.0));
            let seen = std::mem::replace(&mut self.nodes[at].seen[slot], place.high);
            if place.high < seen || place.high > place.end {
                return Err(format!("node {at} {vb:?} was at {seen}, stands at {place:?}"));
            }
        }
        Ok(())
    }

    /// The documents that clients read from a node must be those of its streams.
    pub fn check_reads(&self, at: usize, vb: VbId) -> Result<(), String> {
        let bucket = &self.nodes[at].bucket;
        let records: BTreeMap<String, Record> = copy::read(bucket, vb)?;
        for name in self.names.first(KEYS) {
            let key = name.escape_ascii().to_string();
            let (doc, now) = (DocKey::new(&name), bucket.now());
            let read = || match bucket.state_of(vb) {
                Some(VbState::Active) => bucket.documents().get(vb, doc, now),
                _ => bucket.documents().get_replica(vb, doc, now),
            };
            let mut found = read();
            let mut _held = None;
            if matches!(found, Err(Refusal::NotResident)) {
                _held = bring(bucket, vb, doc).map_err(|refusal| format!("{key}: {refusal:?}"))?;
                found = read();
            }
            let wanted = records.get(&key).filter(|record| record.kind == ItemKind::Mutation);
            let wanted = wanted.filter(|record| record.time == 0 || record.time > now.unix_s());
            let has = found.as_ref().ok().map(|found| found.version.meta().cas.0);
            if has != wanted.map(|record| record.cas) {
                return Err(format!("node {at} {vb:?} {key}: reads {has:x?}, streams {wanted:?}"));
            }
        }
        Ok(())
    }
}
