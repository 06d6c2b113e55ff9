//! The state in several entries of the coordination store: what changes together with others is small.
//!
//! `state` is the root: everything but the buckets, and their names. Each bucket has three entries below `buckets/NAME/`:
//! `settings`, `manifest`, and `map`, which holds its chains and steps in a compact form. All entries of a state are
//! written by one commit whose guard is the version of the root, and every commit writes the root: who reads entries of
//! one moment reads one state, and of two who write only one succeeds.
//!
//! Versions before this format find a root that they refuse in words: it has the fields that they read, without
//! buckets, and another format.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compact::{self, Rows};
use super::{Bucket, FORMAT, Invalid, MAX_BYTES, NextIds, NodeId, SINGLE, State, Step, StoreMove};
use crate::keys;
use crate::store::{Put, Snapshot};

/// The most bytes that a commit takes: etcd refuses requests of 1.5 MiB, keys and overhead included.
pub const MAX_COMMIT_BYTES: usize = 1_400 << 10;

/// No node has this number.
const NOBODY: NodeId = NodeId(0);

/// What a bucket is asked to be.
#[derive(Serialize, Deserialize)]
struct Asked {
    uuid: String,
    settings: Value,
    replicas: u8,
    flushes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flushing: Option<u64>,
    next_ids: NextIds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store_move: Option<StoreMove>,
}

/// Who has the vBuckets of a bucket, and what is under way.
#[derive(Serialize, Deserialize)]
struct Map {
    map: Rows,
    #[serde(default, skip_serializing_if = "Rows::is_empty")]
    target: Rows,
    /// By step, which vBuckets are in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<(Step, String)>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    missing: BTreeMap<NodeId, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forgot: BTreeMap<NodeId, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    links_down: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Asked {
    fn of(bucket: &Bucket) -> Asked {
        Asked {
            uuid: bucket.uuid.clone(),
            settings: bucket.settings.clone(),
            replicas: bucket.replicas,
            flushes: bucket.flushes,
            flushing: bucket.flushing,
            next_ids: bucket.next_ids,
            store_move: bucket.store_move.clone(),
        }
    }

    fn is_same(one: &Bucket, other: &Bucket) -> bool {
        let settings = (&one.settings, &one.store_move) == (&other.settings, &other.store_move);
        settings
            && (&one.uuid, one.replicas, one.flushes, one.flushing, one.next_ids)
                == (&other.uuid, other.replicas, other.flushes, other.flushing, other.next_ids)
    }
}

impl Map {
    fn of(bucket: &Bucket) -> Map {
        let mut steps: Vec<(Step, Vec<u16>)> = Vec::new();
        let mut at: BTreeMap<String, usize> = BTreeMap::new();
        for (vb, step) in &bucket.steps {
            let index = *at.entry(format!("{step:?}")).or_insert_with(|| {
                steps.push((step.clone(), Vec::new()));
                steps.len() - 1
            });
            steps[index].1.push(*vb);
        }
        let by_node = |of: &mut dyn Iterator<Item = (u16, NodeId)>| {
            let mut by_node: BTreeMap<NodeId, Vec<u16>> = BTreeMap::new();
            of.for_each(|(vb, id)| by_node.entry(id).or_default().push(vb));
            by_node.into_iter().map(|(id, vbs)| (id, compact::ranges(&vbs))).collect()
        };
        // A vBucket of which nobody is missing stays one of which that is said.
        fn pairs<'i>(vb: u16, ids: impl Iterator<Item = &'i NodeId>) -> Vec<(u16, NodeId)> {
            let pairs: Vec<_> = ids.map(|id| (vb, *id)).collect();
            if pairs.is_empty() { vec![(vb, NOBODY)] } else { pairs }
        }
        let missing = bucket.missing.iter().flat_map(|(vb, ids)| pairs(*vb, ids.iter()));
        let forgot = bucket.forgot.iter().flat_map(|(vb, ids)| pairs(*vb, ids.iter()));
        Map {
            map: Rows::of(&bucket.map),
            target: Rows::of(&bucket.target),
            steps: steps.into_iter().map(|(step, vbs)| (step, compact::ranges(&vbs))).collect(),
            missing: by_node(&mut { missing }),
            forgot: by_node(&mut { forgot }),
            links_down: bucket.links_down.clone(),
        }
    }

    fn is_same(one: &Bucket, other: &Bucket) -> bool {
        (&one.map, &one.target, &one.steps, &one.missing, &one.forgot, &one.links_down)
            == (&other.map, &other.target, &other.steps, &other.missing, &other.forgot, &other.links_down)
    }

    fn put_into(self, name: &str, bucket: &mut Bucket) -> Result<(), Invalid> {
        let wrong = |what| Invalid::Bucket(name.to_owned(), what);
        let rows = |rows: &Rows| rows.chains().ok_or_else(|| wrong("its chains cannot be read"));
        let vbs =
            |text: &str| compact::numbers(text).ok_or_else(|| wrong("a list of vBuckets cannot be read"));
        (bucket.map, bucket.target) = (rows(&self.map)?, rows(&self.target)?);
        bucket.steps.clear();
        for (step, text) in self.steps {
            bucket.steps.extend(vbs(&text)?.into_iter().map(|vb| (vb, step.clone())));
        }
        bucket.links_down = self.links_down;
        bucket.missing.clear();
        for (id, text) in self.missing {
            let ids = (id != NOBODY).then_some(id);
            vbs(&text)?.into_iter().for_each(|vb| bucket.missing.entry(vb).or_default().extend(ids));
        }
        bucket.forgot.clear();
        for (id, text) in self.forgot {
            let ids = (id != NOBODY).then_some(id);
            vbs(&text)?.into_iter().for_each(|vb| bucket.forgot.entry(vb).or_default().extend(ids));
        }
        Ok(())
    }
}

fn json<T: Serialize>(what: &T) -> Result<Vec<u8>, Invalid> {
    serde_json::to_vec(what).map_err(|error| Invalid::Json(error.to_string()))
}

fn parse<'j, T: Deserialize<'j>>(bytes: &'j [u8]) -> Result<T, Invalid> {
    serde_json::from_slice(bytes).map_err(|error| Invalid::Json(error.to_string()))
}

impl State {
    /// Everything but the buckets, and their names. It is large for nobody.
    fn root(&self) -> Result<Vec<u8>, Invalid> {
        let root = State {
            format: FORMAT,
            epoch: self.epoch,
            revision: self.revision,
            next_node: self.next_node,
            nodes: self.nodes.clone(),
            buckets: BTreeMap::new(),
            rebalance: self.rebalance.clone(),
            finished: self.finished.clone(),
            auto_failover: self.auto_failover,
            cluster: self.cluster.clone(),
            deleted: self.deleted.clone(),
            branches: self.branches.clone(),
            tenures: self.tenures.clone(),
        };
        let mut root = serde_json::to_value(root).map_err(|error| Invalid::Json(error.to_string()))?;
        root["bucket_names"] = self.buckets.keys().cloned().collect();
        json(&root)
    }

    /// The entries that make of a store with the state `before` one with this state; all of them if there is none, or if
    /// it is in one entry. They are to be committed together.
    pub fn changes(&self, before: Option<&State>) -> Result<Vec<Put>, Invalid> {
        self.check()?;
        if self.format == SINGLE {
            let value = json(self)?;
            return Ok(vec![Put::of(keys::STATE, value, MAX_BYTES)?]);
        }
        let before = before.filter(|before| before.format != SINGLE && !planted::is(Bug::WholeStateWritten));
        let mut puts = vec![Put::of(keys::STATE, self.root()?, MAX_BYTES)?];
        for (name, bucket) in &self.buckets {
            let old = before.and_then(|before| before.buckets.get(name));
            let mut put = |what: &str, value: Vec<u8>| {
                puts.push(Put::of(&keys::bucket(name, what), value, MAX_BYTES)?);
                Ok::<(), Invalid>(())
            };
            if !old.is_some_and(|old| Asked::is_same(old, bucket)) {
                put(keys::SETTINGS, json(&Asked::of(bucket))?)?;
            }
            if !old.is_some_and(|old| old.manifest == bucket.manifest) {
                put(keys::MANIFEST, json(&bucket.manifest)?)?;
            }
            if !old.is_some_and(|old| Map::is_same(old, bucket)) {
                put(keys::MAP, json(&Map::of(bucket))?)?;
            }
        }
        let gone = before.into_iter().flat_map(|before| before.buckets.keys());
        for name in gone.filter(|name| !self.buckets.contains_key(*name)) {
            let parts = [keys::SETTINGS, keys::MANIFEST, keys::MAP];
            puts.extend(parts.map(|part| Put { key: keys::bucket(name, part), value: None }));
        }
        let bytes = puts.iter().map(Put::bytes).sum();
        if bytes > MAX_COMMIT_BYTES { Err(Invalid::TooLarge(bytes)) } else { Ok(puts) }
    }
}

/// Reads states from snapshots, and parses again only what has changed since the last one.
#[derive(Debug, Default)]
pub struct Reader {
    last: Option<State>,
    /// The entries that `last` was read from. Versions do not tell whether they are the same: a store that was restored
    /// gives them out again.
    entries: BTreeMap<String, Vec<u8>>,
}

impl Reader {
    /// The state in a snapshot; `None` if there is none.
    pub fn read(&mut self, snapshot: &Snapshot) -> Result<Option<State>, Invalid> {
        let Some(root) = snapshot.entries.get(keys::STATE) else { return Ok(None) };
        if self.last.is_some() && self.entries.iter().all(|(key, value)| is_same(snapshot, key, value)) {
            return Ok(self.last.clone());
        }
        if root.value.len() > MAX_BYTES {
            return Err(Invalid::TooLarge(root.value.len()));
        }
        let mut state: State = parse(&root.value)?;
        let mut entries = BTreeMap::from([(keys::STATE.to_owned(), root.value.clone())]);
        if state.format == FORMAT {
            #[derive(Deserialize)]
            struct Names {
                bucket_names: BTreeSet<String>,
            }
            let last = self.last.take();
            for name in parse::<Names>(&root.value)?.bucket_names {
                let old = last.as_ref().and_then(|last| last.buckets.get(&name));
                let bucket = read_bucket(snapshot, &name, old, &mut self.entries, &mut entries)?;
                state.buckets.insert(name, bucket);
            }
        }
        state.check()?;
        (self.entries, self.last) = (entries, Some(state.clone()));
        Ok(Some(state))
    }
}

fn is_same(snapshot: &Snapshot, key: &str, value: &[u8]) -> bool {
    snapshot.entries.get(key).is_some_and(|entry| entry.value == value)
}

/// A bucket, of which parts are taken from the last one that was read, if their entries are the same.
fn read_bucket(
    snapshot: &Snapshot,
    name: &str,
    old: Option<&Bucket>,
    known: &mut BTreeMap<String, Vec<u8>>,
    entries: &mut BTreeMap<String, Vec<u8>>,
) -> Result<Bucket, Invalid> {
    let mut bucket = old.cloned().unwrap_or_default();
    for part in [keys::SETTINGS, keys::MANIFEST, keys::MAP] {
        let key = keys::bucket(name, part);
        let missing = || Invalid::Bucket(name.to_owned(), "an entry of it is missing in the store");
        let entry = snapshot.entries.get(&key).ok_or_else(missing)?;
        let same = known.remove(&key).filter(|value| old.is_some() && *value == entry.value);
        let is_known = same.is_some();
        entries.insert(key, same.unwrap_or_else(|| entry.value.clone()));
        if is_known {
            continue;
        }
        match part {
            keys::SETTINGS => {
                let asked: Asked = parse(&entry.value)?;
                bucket.uuid = asked.uuid;
                bucket.settings = asked.settings;
                bucket.replicas = asked.replicas;
                (bucket.flushes, bucket.flushing) = (asked.flushes, asked.flushing);
                bucket.next_ids = asked.next_ids;
                bucket.store_move = asked.store_move;
            }
            keys::MANIFEST => bucket.manifest = parse(&entry.value)?,
            _ => parse::<Map>(&entry.value)?.put_into(name, &mut bucket)?,
        }
    }
    Ok(bucket)
}

#[cfg(test)]
mod tests;
