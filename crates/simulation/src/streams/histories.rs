//! The histories that nodes are in, and whether a node has what its history says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use base::env::sim::DocumentNames;
use base::{Datatype, DocKey, ItemKind, VbId, VbState, limits};
use engine::{Bucket, Fetched, Refusal};

use super::copy::{self, Branch, Place, Record};
use super::counts::StreamCounts;
use crate::dice::show;
use crate::nodes::Nodes;

/// Keys of each vBucket: few, so that changes meet each other.
pub const KEYS: u64 = 12;

/// A vBucket of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// The node's place.
    pub node: usize,
    /// The vBucket.
    pub vb: VbId,
}

/// What was made in each history, and what each node had of it.
pub struct Histories {
    /// By vBucket and history.
    branches: HashMap<(u16, u64), Branch>,
    /// By vBucket: tombstones up to here may be gone.
    purged: BTreeMap<VbId, u64>,
    /// The last change that must survive a crash.
    persisted: BTreeMap<At, u64>,
    /// The last change that was seen.
    seen: BTreeMap<At, u64>,
    /// What documents are called.
    names: Vec<Vec<u8>>,
    /// What happened.
    pub counts: StreamCounts,
}

/// The bucket of a node, which has one at all times.
pub fn bucket_of(nodes: &Nodes, node: usize) -> &Arc<Bucket> {
    nodes[node].bucket.as_ref().expect("nodes of streams have their bucket")
}

/// All vBuckets of a node.
pub fn all_of(nodes: &Nodes, node: usize) -> impl Iterator<Item = At> + use<> {
    nodes.vbuckets().map(move |vb| At { node, vb: VbId(vb) })
}

/// Where a node stands in a vBucket.
pub fn place(nodes: &Nodes, At { node, vb }: At) -> Place {
    let look = |vb: &vbucket::VBucket| {
        let snapshot = vb.snapshot();
        Place {
            uuid: vb.uuid().0,
            high: vb.high_seqno().0,
            start: snapshot.start.0,
            end: snapshot.end.0,
            purge: vb.purge_seqno().0,
        }
    };
    bucket_of(nodes, node).with_vbucket(vb, look).expect("there is one")
}

/// The role of a vBucket at a node.
pub fn role(nodes: &Nodes, At { node, vb }: At) -> Option<VbState> {
    bucket_of(nodes, node).state_of(vb)
}

/// Brings what there is of a key into memory, where it stays while what is returned lives.
fn bring(bucket: &Bucket, vb: VbId, doc: DocKey<'_>) -> Result<Option<Fetched>, Refusal> {
    let fetch = bucket.fetching().fetch(vb, doc)?;
    bucket.fetching().fetch_step();
    Ok(fetch.try_take())
}

impl Histories {
    /// No changes yet, in the histories that nodes have begun with.
    pub fn new(seed: u64, nodes: &Nodes) -> Histories {
        let mut histories = Histories {
            branches: HashMap::new(),
            purged: BTreeMap::new(),
            persisted: BTreeMap::new(),
            seen: BTreeMap::new(),
            names: DocumentNames::of(seed, limits::MAX_COLLECTION_KEY_BYTES).first(KEYS).collect(),
            counts: StreamCounts::default(),
        };
        for at in (0..nodes.len()).flat_map(|node| all_of(nodes, node)) {
            histories.branches.insert((at.vb.0, place(nodes, at).uuid), Branch::new());
        }
        histories
    }

    /// The name of a document.
    pub fn name(&self, number: u64) -> Vec<u8> {
        self.names[number as usize].clone()
    }

    fn purged(&self, vb: VbId) -> u64 {
        self.purged.get(&vb).copied().unwrap_or(0)
    }

    /// The history that a node is in.
    pub fn branch(&self, nodes: &Nodes, at: At) -> Result<&Branch, String> {
        let uuid = place(nodes, at).uuid;
        let branch = self.branches.get(&(at.vb.0, uuid));
        branch.ok_or_else(|| format!("{at:?} has an unknown history {uuid:x}"))
    }

    /// Looks at everything that a node has of a vBucket.
    pub fn look(&mut self, nodes: &Nodes, at: At) -> Result<(), String> {
        if role(nodes, at) == Some(VbState::Dead) {
            return Ok(());
        }
        self.counts.looks += 1;
        let records = copy::read(bucket_of(nodes, at.node), at.vb)?;
        show(|| format!("{at:?} has {:?}", records.values().map(|r| r.seqno).collect::<BTreeSet<_>>()));
        let place = place(nodes, at);
        copy::check(&records, self.branch(nodes, at)?, &place, self.purged(at.vb))
            .map_err(|what| format!("{at:?} at {place:?}: {what}"))
    }

    /// A node has a history of its own from here on, if it has a new name for it; `before` is the one it comes from.
    pub fn name_branch(&mut self, nodes: &Nodes, at: At, before: u64) -> Result<(), String> {
        let place = place(nodes, at);
        if self.branches.contains_key(&(at.vb.0, place.uuid)) {
            return Ok(());
        }
        if role(nodes, at) == Some(VbState::Dead) && place.high == 0 {
            // It had gone back to nothing, and ended before even its role was on disk.
            self.branches.insert((at.vb.0, place.uuid), Branch::new());
            return Ok(());
        }
        let parent = self.branches.get(&(at.vb.0, before)).cloned().unwrap_or_default();
        let bucket = bucket_of(nodes, at.node);
        let records = copy::read(bucket, at.vb)?;
        let fork = bucket.with_vbucket(at.vb, |vb| vb.failover().newest().seqno.0).expect("it is there");
        let has = |key: &str, seqno: u64| records.get(key).is_some_and(|record| record.seqno == seqno);
        // A tombstone that it had may be gone.
        let purged = self.purged(at.vb).min(place.high);
        let is_gone = |key: &str, change: &Record| {
            change.kind.is_deleted() && change.seqno <= purged && !records.contains_key(key)
        };
        let keep = |change: &(String, Record)| {
            let (key, record) = change;
            record.seqno <= fork || has(key, record.seqno) || is_gone(key, record)
        };
        self.branches.insert((at.vb.0, place.uuid), parent.into_iter().filter(keep).collect());
        self.look(nodes, at)
    }

    /// Notes what a node has made of its vBucket. To be called before a document changes a second time.
    pub fn learn(&mut self, nodes: &Nodes, at: At) {
        let Ok(branch) = self.branch(nodes, at) else { return };
        let last = branch.last().map_or(0, |(_, record)| record.seqno);
        let (bucket, Place { uuid, high, .. }) = (bucket_of(nodes, at.node), place(nodes, at));
        if high <= last {
            return;
        }
        let mut new = Vec::new();
        for name in &self.names {
            // Only the active node makes changes, and no other one lets its documents be looked at in this way.
            let Ok(Some(seen)) = bucket.documents().peek_as_is(at.vb, DocKey::new(name), bucket.now()) else {
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
        new.iter().for_each(|new| show(|| format!("{at:?} {new:?}")));
        self.counts.expirations +=
            new.iter().filter(|(_, new)| new.kind == ItemKind::Expiration).count() as u64;
        self.branches.get_mut(&(at.vb.0, uuid)).expect("it was there").extend(new);
    }

    /// A node's threads have worked: notes what they made, saved and purged.
    pub fn note_work(&mut self, nodes: &Nodes, node: usize) {
        for at in all_of(nodes, node) {
            self.learn(nodes, at);
            let bucket = bucket_of(nodes, node);
            let (persisted, purge) = bucket
                .with_vbucket(at.vb, |vb| (vb.persisted_seqno().0, vb.purge_seqno().0))
                .expect("there is one");
            let known = self.persisted.entry(at).or_default();
            *known = persisted.max(*known);
            let known = self.purged.entry(at.vb).or_default();
            *known = purge.max(*known);
        }
    }

    /// A node has started again: it has what it had told to be on its disk. `before`, by vBucket, are the histories that
    /// it was in.
    pub fn came_back(&mut self, nodes: &Nodes, node: usize, before: &[u64]) -> Result<(), String> {
        for (at, before) in all_of(nodes, node).zip(before) {
            let place = place(nodes, at);
            show(|| format!("{at:?} comes back at {place:?}"));
            let persisted = self.persisted.get(&at).copied().unwrap_or(0);
            if place.high < persisted {
                return Err(format!("{at:?} had {persisted} on disk and stands at {place:?}"));
            }
            self.seen.insert(at, place.high);
            self.name_branch(nodes, at, *before)?;
            self.look(nodes, at)?;
        }
        Ok(())
    }

    /// A replica went back, because it was told to go back to `most` at the latest.
    pub fn rolled_back(&mut self, nodes: &Nodes, at: At, most: u64) -> Result<(), String> {
        let place = place(nodes, at);
        if place.high > most || place.end > most {
            return Err(format!("{at:?} was to go back to {most}, and stands at {place:?}"));
        }
        self.counts.rollbacks += 1;
        let known = self.persisted.entry(at).or_default();
        *known = place.high.min(*known);
        self.seen.insert(at, place.high);
        self.look(nodes, at)
    }

    /// What a node has only grows, and lies in a snapshot.
    pub fn check_rising(&mut self, nodes: &Nodes, node: usize) -> Result<(), String> {
        for at in all_of(nodes, node) {
            let place = place(nodes, at);
            let seen = self.seen.insert(at, place.high).unwrap_or(0);
            if place.high < seen || place.high > place.end {
                return Err(format!("{at:?} was at {seen}, stands at {place:?}"));
            }
        }
        Ok(())
    }

    /// The documents that clients read from a node must be those of its streams.
    pub fn check_reads(&self, nodes: &Nodes, At { node, vb }: At) -> Result<(), String> {
        let bucket = bucket_of(nodes, node);
        let records: BTreeMap<String, Record> = copy::read(bucket, vb)?;
        for name in &self.names {
            let key = name.escape_ascii().to_string();
            let (doc, now) = (DocKey::new(name), bucket.now());
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
                return Err(format!("node {node} {vb:?} {key}: reads {has:x?}, streams {wanted:?}"));
            }
        }
        Ok(())
    }
}
