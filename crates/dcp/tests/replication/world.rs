//! Nodes with a bucket each, what clients write, and what happens to them.

mod histories;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{DocumentNames, SimDisk, Survival};
use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, DurabilityLevel, Heap, VbId, VbState, limits};
use engine::{Bucket, CompactRequest, Durable, Refusal, StoreRequest};

use crate::copy::{Branch, Place};
use crate::dice::{Dice, show};
use crate::mistakes::Mistake;
use crate::{Counts, KEYS, VBUCKETS, buckets};

pub struct Node {
    handles: SimHandles,
    pub bucket: Arc<Bucket>,
    is_journaled: bool,
    /// What the disk was some time ago, for a node that forgets.
    old_disk: Option<SimDisk>,
    /// By vBucket: the last change that must survive a crash.
    persisted: Vec<u64>,
    /// By vBucket: the last change that was seen.
    seen: Vec<u64>,
}

pub struct World {
    pub nodes: Vec<Node>,
    /// By vBucket and history.
    branches: HashMap<(u16, u64), Branch>,
    /// By vBucket: tombstones up to here may be gone.
    pub purged: Vec<u64>,
    written: u64,
    mistake: Mistake,
    pub counts: Counts,
    /// What documents are called.
    names: DocumentNames,
}

fn vbuckets() -> impl Iterator<Item = VbId> {
    (0..VBUCKETS).map(VbId)
}

/// A node's bucket with what is on its disk.
fn open(handles: &SimHandles, is_journaled: bool) -> Arc<Bucket> {
    buckets::open(&handles.env().with_heap(Heap::default()), VBUCKETS, is_journaled)
}

fn xattrs(value: &str, written: u64) -> Vec<u8> {
    let mut pairs = Vec::new();
    for (key, value) in [("_system", format!("{{\"n\":{written}}}")), ("user", "1".to_owned())] {
        let pair = [key.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
        pairs.extend((pair.len() as u32).to_be_bytes());
        pairs.extend(pair);
    }
    [&(pairs.len() as u32).to_be_bytes()[..], &pairs, value.as_bytes()].concat()
}

impl World {
    pub fn new(seed: u64, nodes: usize, mistake: Mistake, dice: &mut Dice) -> World {
        let (_, handles) = Env::sim(seed);
        let nodes = (0..nodes).map(|_| {
            let handles = handles.with_disk(SimDisk::new());
            let is_journaled = dice.one_in(2);
            let bucket = open(&handles, is_journaled);
            let zeros = vec![0; usize::from(VBUCKETS)];
            Node { handles, bucket, is_journaled, old_disk: None, persisted: zeros.clone(), seen: zeros }
        });
        let mut world = World {
            nodes: nodes.collect(),
            branches: HashMap::new(),
            purged: vec![0; usize::from(VBUCKETS)],
            written: 0,
            mistake,
            counts: Counts::default(),
            names: DocumentNames::of(seed, limits::MAX_KEY_BYTES),
        };
        for vb in vbuckets() {
            for at in 0..world.nodes.len() {
                let role = if at == 0 { VbState::Active } else { VbState::Replica };
                world.nodes[at].bucket.roles().set_vbucket_state(vb, role, None).expect("there is one");
                let uuid = world.place(at, vb).uuid;
                world.branches.insert((vb.0, uuid), Branch::new());
            }
        }
        world.nodes.iter().for_each(|node| assert!(node.bucket.flushing().flush_all()));
        world
    }

    pub fn place(&self, at: usize, vb: VbId) -> Place {
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
        self.nodes[at].bucket.with_vbucket(vb, look).expect("there is one")
    }

    pub fn role(&self, at: usize, vb: VbId) -> Option<VbState> {
        self.nodes[at].bucket.state_of(vb)
    }

    pub fn set_role(&mut self, at: usize, vb: VbId, role: VbState) -> Result<(), String> {
        let before = self.place(at, vb).uuid;
        if role == VbState::Active && self.role(at, vb) != Some(role) {
            self.look(at, vb)?;
        }
        self.nodes[at].bucket.roles().set_vbucket_state(vb, role, None).expect("there is one");
        self.name_branch(at, vb, before)
    }

    /// A client changes something, wherever a node takes it.
    pub fn change(&mut self, dice: &mut Dice) {
        let (vb, at) =
            (VbId(dice.below(VBUCKETS.into()) as u16), dice.below(self.nodes.len() as u64) as usize);
        let key = self.names.name(dice.below(KEYS));
        let doc = DocKey::new(&key);
        let bucket = Arc::clone(&self.nodes[at].bucket);
        let now = bucket.now();
        // It may expire by being looked at.
        if let Err(Refusal::NotMyVbucket) = bucket.documents().get(vb, doc, now) {
            return;
        }
        self.learn(at, vb);
        self.written += 1;
        // Some are prepared, and committed at once with the seqno behind: whoever is active is alone.
        let level = DurabilityLevel::Majority;
        let durable = dice.one_in(8).then_some(Durable { level, timeout: Duration::from_secs(3) });
        let writer = bucket.documents().durably(durable);
        if dice.one_in(4) {
            // Refused if there is nothing to delete.
            let _ = writer.delete(vb, doc, Cas::ANY, now);
        } else {
            let size = if dice.one_in(15) { 30_000 } else { 30 };
            let mut value = format!("{}:{}", self.written, "v".repeat(dice.below(size) as usize));
            if dice.one_in(6) {
                value = format!("{{\"n\":{}}}", self.written);
            }
            let (body, datatype) = match dice.one_in(5) {
                true => (xattrs(&value, self.written), Datatype::XATTR),
                false => (value.into_bytes(), Datatype::RAW),
            };
            let request = StoreRequest {
                datatype,
                flags: self.written as u32,
                expiry: if dice.one_in(5) { 1 + dice.below(20) as u32 } else { 0 },
                ..buckets::set(doc, &body)
            };
            // Refused while memory is short.
            let _ = writer.store(vb, &request, now);
        }
        self.learn(at, vb);
        self.counts.writes += 1;
    }

    /// Has everything expire whose time has come, if the node may.
    pub fn expire(&mut self, at: usize, vb: VbId) {
        let bucket = Arc::clone(&self.nodes[at].bucket);
        for key in self.names.first(KEYS) {
            // Whatever there is.
            let _ = bucket.documents().get(vb, DocKey::new(&key), bucket.now());
        }
        self.learn(at, vb);
    }

    pub fn flush(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.bucket.flushing().flush_step();
        for vb in vbuckets() {
            let persisted = node.bucket.with_vbucket(vb, |vb| vb.persisted_seqno().0).expect("there is one");
            let known = &mut node.persisted[usize::from(vb.0)];
            *known = persisted.max(*known);
        }
    }

    pub fn keep(&mut self, at: usize) {
        self.nodes[at].bucket.maintenance().keep_step();
        vbuckets().for_each(|vb| self.learn(at, vb));
    }

    pub fn advance(&self, by: Duration) {
        // The nodes share a clock.
        self.nodes[0].handles.clock.advance(by);
    }

    /// What only a bucket's upkeep does to it.
    pub fn upkeep(&mut self, at: usize, dice: &mut Dice) {
        let vb = VbId(dice.below(VBUCKETS.into()) as u16);
        let bucket = Arc::clone(&self.nodes[at].bucket);
        match dice.below(9) {
            0 => {
                self.counts.purges += 1;
                show(|| format!("node {at} {vb:?} is compacted"));
                let request = CompactRequest { purge_before_s: Some(u32::MAX), purge_through: None };
                drop(bucket.compaction().compact(vb, request));
                bucket.compaction().compact_step();
            }
            1 => {
                self.counts.dropped_cursors += 1;
                bucket.streams().drop_stream_cursors(vb);
            }
            2 => bucket.roles().create_checkpoint(vb).expect("there is one"),
            3 => {
                let key = self.names.name(dice.below(KEYS));
                // Refused if there is no such value in memory.
                let _ = bucket.eviction().evict_value(vb, DocKey::new(&key));
            }
            4 => self.set_memory(at, true),
            5 => self.set_memory(at, false),
            6 => _ = bucket.flushing().file_step(),
            _ => self.keep(at),
        }
        for vb in vbuckets() {
            // Compaction has documents expire, too.
            self.learn(at, vb);
            let purge = self.place(at, vb).purge;
            let known = &mut self.purged[usize::from(vb.0)];
            *known = purge.max(*known);
        }
    }

    pub fn set_memory(&mut self, at: usize, is_short: bool) {
        self.counts.short_of_memory += u64::from(is_short);
        let (quota, share) = if is_short { ("1048576", "0.01") } else { ("268435456", "0.2") };
        let bucket = &self.nodes[at].bucket;
        bucket.set_params(&[("max_size", quota), ("checkpoint_memory_ratio", share)]).expect("valid");
    }

    /// A node's process ends without a word, or its power goes.
    pub fn crash(&mut self, at: usize, seed: u64) -> Result<(), String> {
        let is_power = seed.is_multiple_of(2);
        let before: Vec<u64> = vbuckets().map(|vb| self.place(at, vb).uuid).collect();
        let node = &mut self.nodes[at];
        if is_power {
            let mut disk = node.handles.disk.crash(seed);
            if self.mistake == Mistake::ForgetSync
                && let Some(old) = node.old_disk.take()
            {
                disk = old;
            }
            node.handles = node.handles.with_disk(disk);
        }
        if self.mistake == Mistake::ForgetSync {
            node.old_disk = Some(node.handles.disk.image(Survival::Synced));
        }
        node.bucket = open(&node.handles, node.is_journaled);
        let kind = if is_power { &mut self.counts.power_losses } else { &mut self.counts.kills };
        *kind += 1;
        for vb in vbuckets() {
            let (place, slot) = (self.place(at, vb), usize::from(vb.0));
            show(|| format!("node {at} {vb:?} comes back at {place:?}, power {is_power}"));
            let persisted = self.nodes[at].persisted[slot];
            if place.high < persisted {
                return Err(format!("node {at} {vb:?} had {persisted} on disk and stands at {place:?}"));
            }
            self.nodes[at].seen[slot] = place.high;
            self.name_branch(at, vb, before[slot])?;
            self.look(at, vb)?;
        }
        Ok(())
    }
}
