//! The `couch` backend keeps, vBucket by vBucket, exactly a prefix of its batches and every one that it acknowledged.
#![allow(
    clippy::type_complexity,
    reason = "a group is a list of what is saved together, and has no other name"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::env::sim::{Call, Effect, Fault, On, SimDisk, SimHandles, SplitMix64};
use base::env::{Disk, Env};
use base::{
    Cas, Datatype, DocKey, ItemKind, NewVersion, RevSeqno, Seqno, VbId, VbState, Version, VersionMeta,
};
use kvstore::{Couch, CouchConfig, KvStore, SaveBatch, VbStateDoc};
use sim::crash::{every_crash, every_kill, every_kind_of_fault, recorded};
use sim::ledger::Entry;
use sim::{CrashPlan, Ledger, Restored, Verdict};

const DIR: &str = "/data/bucket";
const VBUCKETS: u16 = 4;

/// A store that had to make room already has files to open again; a group may be larger than that.
fn config() -> CouchConfig {
    CouchConfig { max_open_files: 3, ..CouchConfig::default() }
}

fn env(disk: &SimDisk) -> Env {
    SimHandles::new(0).with_disk(disk.clone()).env()
}

/// The folder that the bucket's is in must be there durably; that is its owner's business, not the store's.
fn prepare(disk: &SimDisk) {
    disk.create_dir_all_synced(Path::new(DIR)).expect("no fault planned yet");
}

fn open(disk: &SimDisk) -> Result<Couch, kvstore::Failure> {
    Couch::open(env(disk), Path::new(DIR), config())
}

/// A batch of one vBucket, sorted, with its state.
type VbBatch = (VbId, Vec<Version>, VbStateDoc);

/// What was written to one vBucket besides documents.
#[derive(Clone, Debug, Default)]
struct VbRun {
    seqno: u64,
    /// Counts saves; every state document holds its number.
    saves: u64,
    promised_saves: Vec<(u64, u64)>,
    /// Seqnos at which batches end.
    ends: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct Run {
    ledger: Ledger,
    vbuckets: BTreeMap<VbId, VbRun>,
}

fn version(rng: &mut SplitMix64, key: &[u8], seqno: u64) -> Version {
    let deleted = rng.chance(1, 6);
    let most = if rng.chance(1, 20) { 9000 } else { 200 };
    let mut value = vec![b'v'; if deleted { 0 } else { rng.between(0, most) as usize }];
    value.iter_mut().step_by(2).for_each(|b| *b = rng.next_u64() as u8);
    let kind = match (deleted, rng.chance(1, 2)) {
        (false, _) => ItemKind::Mutation,
        (true, false) => ItemKind::Deletion,
        (true, true) => ItemKind::Expiration,
    };
    let meta = VersionMeta {
        cas: Cas(seqno << 16),
        by_seqno: Seqno(seqno),
        rev_seqno: RevSeqno(seqno),
        flags: rng.next_u64() as u32,
        expiry: rng.below(100) as u32,
        datatype: if deleted {
            Datatype::RAW
        } else {
            [Datatype::RAW, Datatype::JSON][rng.below(2) as usize]
        },
        kind,
        ..VersionMeta::default()
    };
    NewVersion::new(base::Heap::shared(), meta, DocKey::new(key), &[&value]).publish()
}

/// One batch for one vBucket: sorted, one version a key. A few batches are empty: the state alone.
fn batch(rng: &mut SplitMix64, vb: &mut VbRun) -> (Vec<Version>, VbStateDoc) {
    let mut keys = BTreeSet::new();
    if !rng.chance(1, 8) {
        keys.extend((0..rng.between(1, 15)).map(|_| format!("k{}", rng.below(50))));
    }
    let mut items = Vec::new();
    for key in &keys {
        vb.seqno += 1;
        items.push(version(rng, key.as_bytes(), vb.seqno));
    }
    vb.saves += 1;
    vb.ends.insert(vb.seqno);
    let state = VbStateDoc {
        state: VbState::Active,
        max_cas: vb.seqno << 16,
        snap_end: vb.saves,
        ..VbStateDoc::default()
    };
    (items, state)
}

impl Run {
    /// One batch for each of a few vBuckets, or of one alone.
    fn group(&mut self, rng: &mut SplitMix64, at: u64) -> Vec<VbBatch> {
        let first = rng.below(u64::from(VBUCKETS)) as u16;
        let size = if rng.chance(1, 3) { 1 } else { rng.between(2, u64::from(VBUCKETS)) as u16 };
        (first..first + size).map(|vb| self.batch(rng, VbId(vb % VBUCKETS), at)).collect()
    }

    fn batch(&mut self, rng: &mut SplitMix64, vb: VbId, at: u64) -> VbBatch {
        let (mut items, state) = batch(rng, self.vbuckets.entry(vb).or_default());
        items.iter().for_each(|version| self.ledger.wrote(vb, version.stored_key(), Entry::of(version), at));
        items.sort_by(|a, b| a.stored_key().cmp(b.stored_key()));
        (vb, items, state)
    }

    fn saved(&mut self, vb: VbId, at: u64) {
        let run = self.vbuckets.entry(vb).or_default();
        run.promised_saves.push((at, run.saves));
        self.ledger.promised(vb, Seqno(run.seqno), at);
    }

    /// Goes on from what a restart found.
    fn restarted(&mut self, found: &BTreeMap<VbId, Found>) {
        for (vb, run) in &mut self.vbuckets {
            let found = found.get(vb);
            run.seqno = found.map_or(0, |found| found.restored.high_seqno.0);
            run.saves = found.map_or(0, |found| found.state.snap_end);
            run.promised_saves = vec![(0, run.saves)];
            self.ledger.restarted(*vb, Seqno(run.seqno));
        }
    }
}

/// Saves what is left of a group; what was saved leaves it.
fn save(store: &Couch, left: &mut Vec<VbBatch>) -> Vec<VbId> {
    let group: Vec<_> = left.iter().map(|(vb, items, state)| (*vb, SaveBatch { items, state })).collect();
    let outcomes = store.save_group(&group);
    let saved: Vec<VbId> =
        group.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok()).map(|((vb, _), _)| *vb).collect();
    left.retain(|(vb, ..)| !saved.contains(vb));
    saved
}

/// Saves groups of batches; those that fail are saved again, up to twice.
fn go_on(run: &mut Run, rng: &mut SplitMix64, store: &Couch, groups: u64, disk: &SimDisk) {
    for _ in 0..groups {
        let mut left = run.group(rng, disk.changes());
        for tries in 1.. {
            for vb in save(store, &mut left) {
                run.saved(vb, disk.changes());
            }
            match tries {
                _ if left.is_empty() => break,
                3 => return,
                _ => {}
            }
        }
        if rng.chance(1, 5) {
            let key = DocKey::new(b"k7");
            store.get(VbId(0), key).ok();
        }
    }
}

fn run(seed: u64, batches: u64, disk: &SimDisk) -> Run {
    let mut run = Run::default();
    if let Ok(store) = open(disk) {
        go_on(&mut run, &mut SplitMix64::new(seed), &store, batches, disk);
    }
    run
}

/// What a restart finds of one vBucket.
struct Found {
    restored: Restored,
    state: VbStateDoc,
}

fn restore(store: &Couch, wrong: &mut Vec<String>) -> Result<BTreeMap<VbId, Found>, kvstore::Failure> {
    let mut all = BTreeMap::new();
    for (vb, stored) in store.states()? {
        let stored = stored?;
        let mut restored = Restored::new(stored.high_seqno);
        restored.purge_seqno = stored.purge_seqno;
        let (mut documents, mut tombstones, mut last) = (0, 0, Seqno(0));
        let mut versions = Vec::new();
        store.scan(vb, Seqno(0), kvstore::Values::Read, &mut |version| {
            versions.push(version);
            ControlFlow::Continue(())
        })?;
        for version in versions {
            let seqno = version.meta().by_seqno;
            if seqno <= last {
                wrong.push(format!("{vb}: {seqno} is visited after {last}"));
            }
            last = seqno;
            *(if version.is_deleted() { &mut tombstones } else { &mut documents }) += 1;
            restored.add(version.stored_key(), Entry::of(&version));
            let got = store.get(vb, version.key())?.map(|got| Entry::of(&got));
            if got != Some(Entry::of(&version)) {
                wrong.push(format!("{vb}: {:?} is visited, {got:?} is got", version));
            }
        }
        let counts = stored.counts;
        if (counts.documents, counts.tombstones) != (documents, tombstones) {
            wrong.push(format!("{vb}: {counts:?}, but {documents} documents and {tombstones} tombstones"));
        }
        all.insert(vb, Found { restored, state: stored.state });
    }
    Ok(all)
}

fn check_vbucket(run: &Run, vb: VbId, found: Option<&Found>, at: u64, wrong: &mut Vec<String>) {
    let none = Restored::default();
    let restored = found.map_or(&none, |found| &found.restored);
    wrong.extend(run.ledger.check(vb, restored, at).iter().map(|violation| format!("{vb}: {violation}")));
    let written = &run.vbuckets[&vb];
    let end = restored.high_seqno.0;
    if end != 0 && !written.ends.contains(&end) {
        wrong.push(format!("{vb}: {end} is inside a batch"));
    }
    let due =
        written.promised_saves.iter().rev().find(|(promised_at, _)| *promised_at <= at).map_or(0, |p| p.1);
    let saves = found.map_or(0, |found| found.state.snap_end);
    if saves < due || saves > written.saves {
        wrong.push(format!("{vb}: state {saves}, promised {due}, written {}", written.saves));
    }
    if let Some(found) = found.filter(|found| found.state.max_cas != end << 16) {
        wrong.push(format!("{vb}: the state is not that of seqno {end}: {:?}", found.state));
    }
}

fn check(run: &Run, disk: &SimDisk, at: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    match open(disk).and_then(|store| restore(&store, &mut wrong)) {
        Ok(found) => {
            for vb in run.vbuckets.keys() {
                check_vbucket(run, *vb, found.get(vb), at, &mut wrong);
            }
            let unknown = found.keys().filter(|vb| !run.vbuckets.contains_key(vb));
            wrong.extend(unknown.map(|vb| format!("{vb}: found, never written")));
        }
        Err(failure) => wrong.push(format!("does not open: {failure}")),
    }
    wrong
}

#[test]
fn power_loss_at_every_moment() {
    let mut verdict = Verdict::default();
    for seed in 0..5 {
        let (run, recording) = recorded(prepare, |disk| run(seed, 20, disk));
        verdict.add(every_crash(&CrashPlan::new(seed), &recording, |disk, at| check(&run, disk, at)));
    }
    verdict.report("kvstore, power loss");
}

#[test]
fn power_loss_after_a_fault_at_every_call() {
    every_kind_of_fault("kvstore", 0..1, prepare, |seed, disk| run(seed, 12, disk), check);
}

#[test]
fn what_a_restart_claims_is_durable() {
    let mut verdict = Verdict::default();
    for seed in 0..4 {
        let (first, recording) = recorded(prepare, |disk| run(seed, 12, disk));
        // What the restarted process finds, it reports as persisted, although it has written nothing yet.
        let restart = |disk: &SimDisk, _| {
            let mut second = first.clone();
            let found = open(disk).and_then(|store| restore(&store, &mut Vec::new()));
            second.restarted(&found.expect("only the process died"));
            second
        };
        let plan = CrashPlan::new(seed);
        verdict.add(every_kill(&plan, &recording, restart, |run, disk, _| check(run, disk, 0)));
    }
    verdict.report("kvstore, kill, then power loss");
}

#[test]
fn crash_after_crash() {
    let mut verdict = Verdict::default();
    for seed in 0..25 {
        let mut rng = SplitMix64::new(seed);
        let mut disk = SimDisk::new();
        prepare(&disk);
        let mut run = run(seed, 5, &disk);
        for generation in 0..12 {
            let at = disk.changes();
            disk = disk.crash(rng.next_u64());
            let violations = check(&run, &disk, at);
            verdict.tally(format_args!("seed {seed}, generation {generation}"), &violations);
            let Ok(store) = open(&disk) else { break };
            let Ok(found) = restore(&store, &mut Vec::new()) else { break };
            run.restarted(&found);
            disk.plan(Fault::power_off_at(rng.between(1, 40)));
            let store: Arc<Couch> = Arc::new(store);
            go_on(&mut run, &mut rng, &store, 10, &disk);
        }
    }
    verdict.report("kvstore, crash after crash");
}

/// One life of a vBucket, from its first save to its deletion.
#[derive(Default)]
struct Life {
    run: Run,
    /// When its deletion began, and when it was acknowledged.
    deletion: Option<u64>,
    deleted: Option<u64>,
}

const VB: VbId = VbId(0);

/// Saves batches and deletes the vBucket, again and again.
fn lives(seed: u64, disk: &SimDisk) -> Vec<Life> {
    let mut rng = SplitMix64::new(seed);
    let mut lives = Vec::new();
    let Ok(store) = open(disk) else { return lives };
    for _ in 0..5 {
        let mut life = Life::default();
        for _ in 0..rng.between(1, 3) {
            let run = life.run.vbuckets.entry(VB).or_default();
            let (items, state) = batch(&mut rng, run);
            for version in &items {
                life.run.ledger.wrote(VB, version.stored_key(), Entry::of(version), disk.changes());
            }
            let sorted: BTreeMap<&[u8], &Version> = items.iter().map(|v| (v.stored_key(), v)).collect();
            let items: Vec<Version> = sorted.into_values().cloned().collect();
            if store.save(VB, SaveBatch { items: &items, state: &state }).is_err() {
                lives.push(life);
                return lives;
            }
            life.run.saved(VB, disk.changes());
        }
        life.deletion = Some(disk.changes());
        let result = store.delete_vbucket(VB);
        life.deleted = result.is_ok().then(|| disk.changes());
        lives.push(life);
        if result.is_err() {
            return lives;
        }
    }
    lives
}

/// What is found must be of the life that was not over yet; or nothing, if that one had promised nothing or was ending.
fn check_lives(lives: &[Life], disk: &SimDisk, at: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let found = match open(disk).and_then(|store| restore(&store, &mut wrong)) {
        Ok(found) => found,
        Err(failure) => return vec![format!("does not open: {failure}")],
    };
    let over = |moment: Option<u64>| moment.is_some_and(|moment| moment <= at);
    let Some(life) = lives.iter().find(|life| !over(life.deleted)) else {
        wrong.extend(found.keys().map(|vb| format!("{vb} is there after it was deleted")));
        return wrong;
    };
    if found.is_empty() && over(life.deletion) {
        return wrong;
    }
    check_vbucket(&life.run, VB, found.get(&VB), at, &mut wrong);
    wrong
}

#[test]
fn a_deleted_vbucket_stays_deleted() {
    let mut verdict = Verdict::default();
    for seed in 0..4 {
        let (lives, recording) = recorded(prepare, |disk| lives(seed, disk));
        verdict.add(every_crash(&CrashPlan::new(seed), &recording, |disk, at| check_lives(&lives, disk, at)));
    }
    verdict.report("kvstore, deletion");
}

/// Three vBuckets that are there, one that is new, and a batch for each.
fn four() -> (SimDisk, Couch, Vec<VbBatch>) {
    let disk = SimDisk::new();
    prepare(&disk);
    let config = CouchConfig { max_open_files: 8, ..CouchConfig::default() };
    let store = Couch::open(env(&disk), Path::new(DIR), config).expect("no fault planned yet");
    for vb in 0..3 {
        store.save_state(VbId(vb), &VbStateDoc::default()).expect("no fault planned yet");
    }
    // once more, so that all files are open
    for vb in 0..3 {
        store.save_state(VbId(vb), &VbStateDoc::default()).expect("no fault planned yet");
    }
    let mut run = Run::default();
    let batches = (0..4).map(|vb| run.batch(&mut SplitMix64::new(1), VbId(vb), 0)).collect();
    (disk, store, batches)
}

#[test]
fn a_failed_write_fails_one_of_a_group() {
    // four times data, four headers
    for nth in 1..=8 {
        let (disk, store, mut left) = four();
        disk.plan(Fault::once(On::Kind(Call::Write), nth, Effect::DISK_FULL));
        save(&store, &mut left);
        let failed = VbId((nth - 1) as u16 % 4);
        assert_eq!(left.iter().map(|(vb, ..)| *vb).collect::<Vec<_>>(), [failed], "write {nth}");
        assert_eq!(save(&store, &mut left), [failed]);
    }
}

#[test]
fn a_failed_sync_fails_a_whole_group() {
    for nth in 1..=8 {
        let (disk, store, mut left) = four();
        disk.plan(Fault::once(On::Kind(Call::Sync), nth, Effect::IO_ERROR));
        assert!(save(&store, &mut left).is_empty(), "sync {nth}");
        assert_eq!(store.stats().failures, 4);
        assert_eq!(save(&store, &mut left).len(), 4);
    }
    let (disk, store, mut left) = four();
    disk.plan(Fault::once(On::Kind(Call::SyncDir), 1, Effect::IO_ERROR));
    assert_eq!(save(&store, &mut left).len(), 3, "the new file alone needs the folder");
    assert_eq!(save(&store, &mut left), [VbId(3)]);
}

#[test]
fn after_a_failed_sync_nothing_rests_on_what_may_be_lost() {
    let (disk, store, mut failed) = four();
    // the header of the last file
    disk.plan(Fault::once(On::Kind(Call::Sync), 8, Effect::IO_ERROR));
    save(&store, &mut failed);
    assert_eq!(failed.len(), 4);
    // a batch of other documents, which would keep nodes of the one that failed
    let mut run = Run::default();
    let mut others: Vec<_> =
        (0..4).map(|vb| run.batch(&mut SplitMix64::new(2), VbId(vb), disk.changes())).collect();
    for vb in save(&store, &mut others) {
        run.saved(vb, disk.changes());
    }
    assert!(others.is_empty());
    let after = disk.image(base::env::sim::Survival::Synced);
    let wrong = check(&run, &after, disk.changes());
    assert!(wrong.is_empty(), "{wrong:?}");
}
