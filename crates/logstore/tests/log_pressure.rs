//! What waits to be done has a limit, memory is charged, and a manifest that is damaged or read wrong costs no more than it
//! must.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base::env::sim::{SimDisk, SimHandles};
use base::env::{Disk, Env, OpenMode};
use base::{Account, Heap};
use logstore::{Config, Failure, LogStore, Trust, Tuning};
use world::{DIR, Doc, TestBatch, config};

const KEYS: u64 = 50;

fn env(disk: &SimDisk) -> Env {
    SimHandles::new(1).with_disk(disk.clone()).env()
}

fn open(env: &Env, config: Config, trust: &Trust<'_>) -> LogStore {
    LogStore::open(env, Path::new(DIR), config, trust).expect("no fault is planned")
}

fn commit(store: &LogStore, vb: u16, items: Vec<(u64, u64)>) -> Result<u64, Failure> {
    let doc = |seqno: u64| Doc { seqno, flags: 0, value: seqno.to_le_bytes().repeat(40) };
    let mut items: Vec<(Vec<u8>, Doc)> =
        items.into_iter().map(|(key, seqno)| (format!("key{key:04}").into_bytes(), doc(seqno))).collect();
    items.sort_by(|a, b| a.0.cmp(&b.0));
    let mut batch = TestBatch { vb, items, mark: 1, count: 0 };
    let commit = store.commit(&mut [&mut batch]).remove(0)?;
    Ok(commit.number)
}

/// Commits all keys, `rounds` times.
fn overwrite(store: &LogStore, vb: u16, rounds: u64) -> u64 {
    let mut last = 0;
    for round in 0..rounds {
        let keys = (0..KEYS).map(|key| (key, round * KEYS + key + 1));
        last = commit(store, vb, keys.collect()).expect("no fault is planned");
    }
    last
}

fn bytes_on(disk: &SimDisk) -> usize {
    disk.contents().into_iter().map(|(_, bytes)| bytes.len()).sum()
}

fn manifest_of(disk: &SimDisk, shard: usize) -> Vec<u8> {
    let path = Path::new(DIR).join(format!("{shard}.manifest"));
    disk.contents().into_iter().find(|(of, _)| *of == path).expect("it is there").1
}

fn put_manifest(disk: &SimDisk, shard: usize, bytes: &[u8]) {
    let path = Path::new(DIR).join(format!("{shard}.manifest"));
    let file = disk.open(&path, OpenMode::ReadWrite).expect("it is there");
    file.set_len(0).and_then(|()| file.write_at(bytes, 0)).and_then(|()| file.sync_data()).expect("written");
}

/// No step is taken in the background: commits alone keep what is wasted, and the number of runs, in bounds.
#[test]
fn updates_that_never_pause_waste_no_more_than_a_share() {
    let disk = SimDisk::new();
    let config = Config { kept_points: 4, most_superseded: 0, manifest_bytes: 100_000, ..config() };
    let store = open(&env(&disk), config, &Trust::Last);
    let mut most = 0;
    for round in 0..400 {
        let keys = (0..KEYS).map(|key| (key, round * KEYS + key + 1));
        commit(&store, 0, keys.collect()).expect("no fault is planned");
        let stats = store.stats();
        if round > 40 {
            most = most.max(stats.item_bytes / (stats.live_bytes + stats.rollback_bytes).max(1));
            assert!(stats.runs < 40, "{stats:?}");
        }
    }
    // Four rounds are kept for rollbacks, each all of it.
    assert!(most <= 3, "{most} times what counts");
    assert!(bytes_on(&disk) < 40 * KEYS as usize * 400, "{}", bytes_on(&disk));
}

#[test]
fn what_is_known_of_vbuckets_is_charged() {
    let disk = SimDisk::new();
    let account = Account::default();
    let heap = Heap::new(account.clone());
    let env = env(&disk).with_heap(heap);
    let charged = |account: &Account| account.exact()[base::Part::Storage as usize];
    let store = open(&env, Config { cache_bytes: 0, ..config() }, &Trust::Last);
    overwrite(&store, 0, 3);
    let few = charged(&account);
    assert!(few > 500, "{few}");
    for vb in 1..5 {
        overwrite(&store, vb, 20);
    }
    let many = charged(&account);
    assert!(many > few * 3, "{many}, and {few} before");
    drop(store);
    assert_eq!(charged(&account), 0);
}

/// vBuckets 0 and 2 are in shard 0. Where the manifest is of no use, both are refused; one that is deleted and made again
/// is served at once, and after the next start.
#[test]
fn a_vbucket_is_made_again_beside_what_a_damaged_manifest_named() {
    let disk = SimDisk::new();
    let store = open(&env(&disk), config(), &Trust::Last);
    let commits: BTreeMap<u16, u64> = [0, 2].map(|vb| (vb, overwrite(&store, vb, 3))).into();
    // The other shard tells how many there are.
    overwrite(&store, 1, 1);
    drop(store);
    let mut bytes = manifest_of(&disk, 0);
    bytes[20] ^= 1;
    put_manifest(&disk, 0, &bytes);
    let missing = BTreeSet::new();
    let store = open(&env(&disk), config(), &Trust::Record { commits: &commits, missing: &missing });
    assert!([0, 2].into_iter().all(|vb| matches!(store.stored(vb), Err(Failure::Refused { .. }))));
    store.delete(0).expect("it may go");
    let last = overwrite(&store, 0, 1);
    drop(store);
    let commits = BTreeMap::from([(0, last), (2, commits[&2])]);
    let store = open(&env(&disk), config(), &Trust::Record { commits: &commits, missing: &missing });
    assert_eq!(store.stored(0).expect("it is sound").expect("it is there").high_seqno, KEYS);
    assert!(matches!(store.stored(2), Err(Failure::Refused { .. })));
}

/// The disk reads the last record of a manifest wrong once: what it names is missed, and is there at the next start.
#[test]
fn a_manifest_that_was_read_wrong_once_costs_nothing() {
    let disk = SimDisk::new();
    let store = open(&env(&disk), config(), &Trust::Last);
    let commits = BTreeMap::from([(0, overwrite(&store, 0, 3))]);
    drop(store);
    let sound = manifest_of(&disk, 0);
    let mut torn = sound.clone();
    *torn.last_mut().expect("it has records") ^= 1;
    put_manifest(&disk, 0, &torn);
    let missing = BTreeSet::new();
    let trust = Trust::Record { commits: &commits, missing: &missing };
    let store = open(&env(&disk), config(), &trust);
    assert!(matches!(store.stored(0), Err(Failure::Refused { .. })));
    store.step().expect("no fault is planned");
    store.settle().expect("no fault is planned");
    drop(store);
    put_manifest(&disk, 0, &sound);
    let store = open(&env(&disk), config(), &trust);
    assert_eq!(store.stored(0).expect("it is sound").expect("it is there").high_seqno, 3 * KEYS);
    let view = store.view(0).expect("it is sound").expect("it is there");
    let value = view.get(b"key0007", |item| item.seqno).expect("it is read");
    assert_eq!(value, Some(2 * KEYS + 8));
}

fn tuned(store: &LogStore, waste_percent: u64, merge_runs: usize, is_paused: bool) {
    store.tune(Tuning { waste_percent, merge_runs, is_paused });
}

/// Steps until there is nothing to do.
fn settle(store: &LogStore) {
    while store.step().expect("no fault is planned") {}
}

/// While the background rests nothing is merged there, and what waits keeps its limit all the same: commits do some of it.
#[test]
fn a_pause_leaves_what_waits_to_commits() {
    let disk = SimDisk::new();
    let config = Config { kept_points: 4, most_superseded: 0, manifest_bytes: 100_000, ..config() };
    let store = open(&env(&disk), config, &Trust::Last);
    tuned(&store, 25, 3, true);
    overwrite(&store, 0, 12);
    let before = store.stats();
    settle(&store);
    assert_eq!(store.stats(), before, "a step does nothing");
    assert_eq!((before.written.merges, before.written.rewrites), (0, 0));
    assert!(before.runs >= 12, "{before:?}");
    let last = 400 * KEYS;
    for round in 12..400 {
        let keys = (0..KEYS).map(|key| (key, round * KEYS + key + 1));
        commit(&store, 0, keys.collect()).expect("no fault is planned");
        settle(&store);
    }
    let paused = store.stats();
    let needed = paused.live_bytes + paused.rollback_bytes;
    assert!(paused.runs < 40 && paused.item_bytes < 4 * needed, "{paused:?}");
    assert!(paused.written.merges > 0, "{paused:?}");
    tuned(&store, 25, 3, false);
    settle(&store);
    let after = store.stats();
    assert!(
        after.runs < paused.runs && after.item_bytes <= paused.item_bytes,
        "{after:?}, {paused:?} before"
    );
    let view = store.view(0).expect("it can be read").expect("it is there");
    assert_eq!(view.get(b"key0000", |item| item.seqno).expect("it can be read"), Some(last - KEYS + 1));
}

/// Less waste is more writing, and the two ratios tell it.
#[test]
fn amplification_follows_what_is_asked_for() {
    let amplified = |waste_percent, merge_runs| {
        let disk = SimDisk::new();
        let config = Config { kept_points: 4, most_superseded: 0, manifest_bytes: 100_000, ..config() };
        let store = open(&env(&disk), config, &Trust::Last);
        assert_eq!(store.stats().write_amplification(), 0.0, "nothing was written");
        tuned(&store, waste_percent, merge_runs, false);
        for round in 0..60 {
            // A quarter of the keys at a time: segments go bad slowly.
            let keys = (0..KEYS).filter(|key| key % 4 == round % 4).map(|key| (key, round * KEYS + key + 1));
            commit(&store, 0, keys.collect()).expect("no fault is planned");
            settle(&store);
        }
        let stats = store.stats();
        (stats.write_amplification(), stats.space_amplification(), stats.written)
    };
    let (tidy, lazy) = (amplified(5, 2), amplified(90, 8));
    assert!(tidy.0 > lazy.0 && lazy.0 >= 1.0, "written: {tidy:?}, {lazy:?}");
    assert!(tidy.1 < lazy.1 && tidy.1 >= 1.0, "on disk: {tidy:?}, {lazy:?}");
    assert!(tidy.2.merges > lazy.2.merges, "{tidy:?}, {lazy:?}");
}
