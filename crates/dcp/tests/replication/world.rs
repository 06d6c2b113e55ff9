//! Nodes with a bucket each, what clients write, and what happens to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On, SimDisk, Survival};
use base::env::{Env, SimHandles};
use base::{Cas, Datatype, DocKey, Heap, ItemKind, VbId, VbState};
use engine::{Bucket, CompactRequest, Fetched, Refusal, StoreRequest};

use crate::copy::{self, Branch, Place, Record, Records};
use crate::dice::{Dice, show};
use crate::mistakes::Mistake;
use crate::{Counts, KEYS, VBUCKETS, buckets};

/// ENOSPC.
const NO_SPACE: i32 = 28;

pub struct Node {
    handles: SimHandles,
    pub bucket: Arc<Bucket>,
    is_journaled: bool,
    evicts_whole: bool,
    is_disk_full: bool,
    /// What the disk was some time ago, for a node that forgets.
    old_disk: Option<SimDisk>,
    /// By vBucket: the last change that must survive a crash.
    persisted: Vec<u64>,
    /// By vBucket: the last change that was seen.
    seen: Vec<u64>,
    /// By vBucket: up to where tombstones may be gone, as the disk must know it.
    purge: Vec<u64>,
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
}

fn vbuckets() -> impl Iterator<Item = VbId> {
    (0..VBUCKETS).map(VbId)
}

/// A node's bucket with what is on its disk.
fn open(handles: &SimHandles, is_journaled: bool, evicts_whole: bool) -> Arc<Bucket> {
    let bucket = buckets::open(&handles.env().with_heap(Heap::default()), VBUCKETS, is_journaled);
    if evicts_whole {
        bucket.set_param("item_eviction_policy", "full_eviction").expect("it has a disk");
    }
    bucket
}

/// Brings what there is of a key into memory, where it stays while what is returned lives.
fn bring(bucket: &Bucket, vb: VbId, doc: DocKey<'_>) -> Result<Option<Fetched>, Refusal> {
    let fetch = bucket.fetch(vb, doc)?;
    bucket.fetch_step();
    Ok(fetch.try_take())
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
            let (is_journaled, evicts_whole) = (dice.one_in(2), dice.one_in(3));
            let bucket = open(&handles, is_journaled, evicts_whole);
            let zeros = vec![0; usize::from(VBUCKETS)];
            Node {
                handles,
                bucket,
                is_journaled,
                evicts_whole,
                is_disk_full: false,
                old_disk: None,
                persisted: zeros.clone(),
                seen: zeros.clone(),
                purge: zeros,
            }
        });
        let mut world = World {
            nodes: nodes.collect(),
            branches: HashMap::new(),
            purged: vec![0; usize::from(VBUCKETS)],
            written: 0,
            mistake,
            counts: Counts::default(),
        };
        for vb in vbuckets() {
            for at in 0..world.nodes.len() {
                let role = if at == 0 { VbState::Active } else { VbState::Replica };
                world.nodes[at].bucket.set_vbucket_state(vb, role, None).expect("there is one");
                let uuid = world.place(at, vb).uuid;
                world.branches.insert((vb.0, uuid), Branch::new());
            }
        }
        world.nodes.iter().for_each(|node| assert!(node.bucket.flush_all()));
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
            .map_err(|what| format!("node {at} {vb:?} at {place:?}: {what}"))?;
        self.check_count(at, vb, &records, !self.nodes[at].evicts_whole)
    }

    /// A node has counted as many documents as it has. One that takes changes of keys without knowing whether they are
    /// on disk may count too many, until it counts anew.
    fn check_count(&self, at: usize, vb: VbId, records: &Records, is_exact: bool) -> Result<(), String> {
        let counted = self.nodes[at].bucket.with_vbucket(vb, |vb| vb.documents()).expect("it is there");
        let has = records.values().filter(|record| record.kind == ItemKind::Mutation).count() as u64;
        if counted == has || (!is_exact && counted > has && counted <= KEYS) {
            return Ok(());
        }
        Err(format!("node {at} {vb:?} has {has} documents and has counted {counted}"))
    }

    /// The same of a node that has done all that was to be done.
    pub fn check_recounted(&self, at: usize, vb: VbId) -> Result<(), String> {
        self.check_count(at, vb, &copy::read(&self.nodes[at].bucket, vb)?, true)
    }

    /// A node has a history of its own from here on, if it has a new name for it.
    fn name_branch(&mut self, at: usize, vb: VbId, before: u64) -> Result<(), String> {
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

    pub fn set_role(&mut self, at: usize, vb: VbId, role: VbState) -> Result<(), String> {
        let before = self.place(at, vb).uuid;
        if role == VbState::Active && self.role(at, vb) != Some(role) {
            self.look(at, vb)?;
        }
        self.nodes[at].bucket.set_vbucket_state(vb, role, None).expect("there is one");
        self.name_branch(at, vb, before)
    }

    /// A node became active by what another one told it.
    pub fn took_over(&mut self, at: usize, vb: VbId, from: usize) -> Result<(), String> {
        let before = self.place(from, vb).uuid;
        self.name_branch(at, vb, before)
    }

    /// Notes what a node has made of its vBucket.
    fn learn(&mut self, at: usize, vb: VbId) {
        let Ok(branch) = self.branch(at, vb) else { return };
        let last = branch.last().map_or(0, |(_, record)| record.seqno);
        let (bucket, uuid) = (Arc::clone(&self.nodes[at].bucket), self.place(at, vb).uuid);
        let mut new = Vec::new();
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            let Ok(Some(seen)) = bucket.peek_as_is(vb, DocKey::new(key.as_bytes()), bucket.now()) else {
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
                value: engine::value::plain(&whole).into_owned(),
            };
            new.push((key, record));
        }
        new.sort_by_key(|(_, record)| record.seqno);
        new.iter().for_each(|new| show(|| format!("node {at} {vb:?} {new:?}")));
        self.counts.expirations +=
            new.iter().filter(|(_, new)| new.kind == ItemKind::Expiration).count() as u64;
        self.branches.get_mut(&(vb.0, uuid)).expect("it was there").extend(new);
    }

    /// A client changes something, wherever a node takes it.
    pub fn change(&mut self, dice: &mut Dice) {
        let (vb, at) =
            (VbId(dice.below(VBUCKETS.into()) as u16), dice.below(self.nodes.len() as u64) as usize);
        let key = format!("k{}", dice.below(KEYS));
        let doc = DocKey::new(key.as_bytes());
        let bucket = Arc::clone(&self.nodes[at].bucket);
        let now = bucket.now();
        // It may expire by being looked at.
        let mut _held = None;
        match bucket.get(vb, doc, now) {
            Err(Refusal::NotMyVbucket) => return,
            Err(Refusal::NotResident) => {
                _held = bring(&bucket, vb, doc).ok();
                let _ = bucket.get(vb, doc, now);
            }
            _ => {}
        }
        self.learn(at, vb);
        self.written += 1;
        if dice.one_in(4) {
            // Refused if there is nothing to delete.
            let _ = bucket.delete(vb, doc, Cas::ANY, now);
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
            let _ = bucket.store(vb, &request, now);
        }
        self.learn(at, vb);
        self.counts.writes += 1;
    }

    /// Has everything expire whose time has come, if the node may.
    pub fn expire(&mut self, at: usize, vb: VbId) {
        let bucket = Arc::clone(&self.nodes[at].bucket);
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            let doc = DocKey::new(key.as_bytes());
            let _held = match bucket.get(vb, doc, bucket.now()) {
                Err(Refusal::NotResident) => bring(&bucket, vb, doc).ok(),
                _ => None,
            };
            // Whatever there is.
            let _ = bucket.get(vb, doc, bucket.now());
        }
        self.learn(at, vb);
    }

    pub fn flush(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.bucket.flush_step();
        for vb in vbuckets() {
            let look = |vb: &vbucket::VBucket| {
                (vb.persisted_seqno().0, (!vb.has_unflushed()).then(|| vb.purge_seqno().0))
            };
            let (persisted, purge) = node.bucket.with_vbucket(vb, look).expect("there is one");
            let slot = usize::from(vb.0);
            node.persisted[slot] = persisted.max(node.persisted[slot]);
            node.purge[slot] = purge.unwrap_or_default().max(node.purge[slot]);
        }
    }

    pub fn keep(&mut self, at: usize) {
        self.nodes[at].bucket.keep_step();
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
        match dice.below(12) {
            0 => {
                self.counts.purges += 1;
                show(|| format!("node {at} {vb:?} is compacted"));
                let request = CompactRequest { purge_before_s: Some(u32::MAX), purge_through: None };
                drop(bucket.compact(vb, request));
                bucket.compact_step();
            }
            1 => {
                self.counts.dropped_cursors += 1;
                bucket.drop_stream_cursors(vb);
            }
            2 => bucket.create_checkpoint(vb).expect("there is one"),
            3 => {
                let key = format!("k{}", dice.below(KEYS));
                let doc = DocKey::new(key.as_bytes());
                // Refused if there is nothing in memory that may leave it.
                let _ = match bucket.evicts_whole() {
                    true => bucket.evict_whole(vb, doc),
                    false => bucket.evict_value(vb, doc),
                };
            }
            4 => self.set_memory(at, true),
            5 => self.set_memory(at, false),
            6 => _ = bucket.file_step(),
            7 => self.fill_disk(at),
            8 | 9 => self.free_disk(at),
            10 => _ = bucket.compact_step(),
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

    /// From now on nothing can be written.
    fn fill_disk(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !std::mem::replace(&mut node.is_disk_full, true) {
            self.counts.full_disks += 1;
            let no_space = Effect::Errno(NO_SPACE);
            node.handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, no_space));
        }
    }

    pub fn free_disk(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if std::mem::take(&mut node.is_disk_full) {
            node.handles.disk.heal();
        }
    }

    /// Counts anew what has to be, compacts what wastes much.
    pub fn tidy(&mut self, at: usize) {
        self.nodes[at].bucket.compact_step();
        vbuckets().for_each(|vb| self.learn(at, vb));
    }

    /// A node's process ends without a word, or its power goes.
    pub fn crash(&mut self, at: usize, seed: u64) -> Result<(), String> {
        let is_power = seed.is_multiple_of(2);
        let before: Vec<u64> = vbuckets().map(|vb| self.place(at, vb).uuid).collect();
        self.free_disk(at);
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
        node.bucket = open(&node.handles, node.is_journaled, node.evicts_whole);
        let kind = if is_power { &mut self.counts.power_losses } else { &mut self.counts.kills };
        *kind += 1;
        for vb in vbuckets() {
            let (place, slot) = (self.place(at, vb), usize::from(vb.0));
            show(|| format!("node {at} {vb:?} comes back at {place:?}, power {is_power}"));
            let (persisted, purge) = (self.nodes[at].persisted[slot], self.nodes[at].purge[slot]);
            if place.high < persisted || place.purge < purge {
                return Err(format!(
                    "node {at} {vb:?} had {persisted} on disk, purged up to {purge}, and stands at {place:?}"
                ));
            }
            self.nodes[at].seen[slot] = place.high;
            self.name_branch(at, vb, before[slot])?;
            self.look(at, vb)?;
        }
        Ok(())
    }

    /// A replica went back.
    pub fn rolled_back(&mut self, at: usize, vb: VbId, to: u64, back: u64) -> Result<(), String> {
        let place = self.place(at, vb);
        // What a disk that is full could not undo its producer sends back again.
        let is_too_far = (back > to || place.end > to) && !self.nodes[at].is_disk_full;
        if is_too_far || place.high != back {
            return Err(format!("node {at} {vb:?} went back to {back} for {to}, and stands at {place:?}"));
        }
        let node = &mut self.nodes[at];
        let slot = usize::from(vb.0);
        node.persisted[slot] = node.persisted[slot].min(back);
        node.seen[slot] = back;
        node.purge[slot] = place.purge;
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
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            let (doc, now) = (DocKey::new(key.as_bytes()), bucket.now());
            let read = || match bucket.state_of(vb) {
                Some(VbState::Active) => bucket.get(vb, doc, now),
                _ => bucket.get_replica(vb, doc, now),
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
