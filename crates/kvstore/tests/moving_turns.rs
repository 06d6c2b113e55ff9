//! A vBucket that is deleted, or goes back, while a move copies it: both take turns at each call to the disk, as a seed
//! decides, and what is there afterwards is what was saved last, before a start and behind it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::env::Env;
use base::env::sim::{SimHandles, SplitMix64};
use base::{Seqno, VbId, VbState, Version};
use kvstore::{
    CouchConfig, Failure, FilesConfig, HistoryRetention, Journaled, JournaledConfig, KvStore, LogConfig,
    Movable, MoveStep, SaveBatch, StorageBackend, Values, VbStateDoc,
};
use parking_lot::Mutex;
use sim::turns::{TurnsDisk, run_in_turns, take_turn};
use store_suite::version;

const DIR: &str = "/data/buckets/b";
const VBS: u16 = 3;
const VB: VbId = VbId(1);
const SEEDS: u64 = 120;
/// Documents of a vBucket before anything happens to it.
const BEFORE: u64 = 24;

/// Keys and the seqnos of what they have.
type Content = BTreeMap<Vec<u8>, u64>;

fn config(backend: StorageBackend) -> JournaledConfig {
    let files = match backend {
        StorageBackend::Couchstore => FilesConfig::Couch(CouchConfig::default()),
        StorageBackend::LogStructured => FilesConfig::Log(LogConfig {
            store: logstore::Config::default(),
            history: HistoryRetention::default(),
        }),
        StorageBackend::RocksDb => FilesConfig::Rocks(kvstore::RocksConfig::default()),
    };
    JournaledConfig { files, journal_bytes: 256 << 10, file_after: Duration::from_secs(1) }
}

fn open(env: Env, backend: StorageBackend) -> Movable {
    let open = |env, backend| {
        let store = Journaled::open(env, Path::new(DIR), config(backend))?;
        Ok(Arc::new(store) as Arc<dyn KvStore>)
    };
    Movable::open(env, Path::new(DIR), VBS, backend, Box::new(open)).expect("the bucket opens")
}

fn save(store: &Movable, vb: VbId, name: &str, seqnos: std::ops::RangeInclusive<u64>, all: &mut Content) {
    let high = *seqnos.end();
    let items: Vec<Version> =
        seqnos.map(|seqno| version(0, &format!("{name}{seqno:03}"), seqno, b"value")).collect();
    let state = VbStateDoc {
        state: VbState::Active,
        max_cas: high,
        snap_start: high,
        snap_end: high,
        ..VbStateDoc::default()
    };
    store.save(vb, SaveBatch { items: &items, state: &state }).expect("saved");
    all.extend(items.iter().map(|item| (item.stored_key().to_vec(), item.meta().by_seqno.0)));
}

fn content(store: &dyn KvStore, vb: VbId) -> Content {
    let mut all = Content::new();
    let visit = &mut |found: Version| {
        all.insert(found.stored_key().to_vec(), found.meta().by_seqno.0);
        ControlFlow::Continue(())
    };
    if let Some(snapshot) = store.snapshot(vb).expect("a snapshot") {
        snapshot.scan_all(Seqno(0), Values::Read, visit).expect("a scan");
    }
    all
}

/// What happens to the vBucket in the middle of the move.
#[derive(Clone, Copy, Debug)]
enum Change {
    Deleted,
    WentBack,
}

/// The documents that are there afterwards.
fn change(store: &Movable, change: Change, before: &Content) -> Content {
    let mut all = Content::new();
    match change {
        Change::Deleted => {
            store.delete_vbucket(VB).expect("deleted");
            save(store, VB, "new", 1..=5, &mut all);
        }
        Change::WentBack => {
            let to = match store.rollback(VB, Seqno(BEFORE / 2)) {
                Ok(back) => back.seqno.0,
                // The move keeps it from being compacted or rolled back for a moment.
                Err(Failure::CompactionRuns { .. }) => return before.clone(),
                Err(failure) => panic!("it goes back: {failure}"),
            };
            all = before
                .iter()
                .filter(|(_, seqno)| **seqno <= to)
                .map(|(key, seqno)| (key.clone(), *seqno))
                .collect();
            save(store, VB, "new", to + 1..=to + 3, &mut all);
        }
    }
    all
}

fn moved(store: &Movable, waits: impl Fn()) {
    for _ in 0..5_000 {
        match store.step().expect("the disk is well") {
            MoveStep::Moved(_) | MoveStep::Idle => return,
            MoveStep::Worked => {}
            MoveStep::Waiting => waits(),
        }
    }
    panic!("it does not end: {:?}", store.progress());
}

fn one(seed: u64, from: StorageBackend, what: Change) {
    let to = match from {
        StorageBackend::Couchstore => StorageBackend::LogStructured,
        StorageBackend::LogStructured | StorageBackend::RocksDb => StorageBackend::Couchstore,
    };
    let handles = SimHandles::new(seed);
    let env = handles.env();
    let turns = Env { disk: Arc::new(TurnsDisk(env.disk.clone())), ..env.clone() };
    let store = open(turns, from);
    let mut before = BTreeMap::new();
    for vb in 0..VBS {
        let all: &mut Content = before.entry(vb).or_default();
        // In two commits, so that there is one to go back to.
        save(&store, VbId(vb), "old", 1..=BEFORE / 2, all);
        store.counts(VbId(vb)).expect("filed");
        save(&store, VbId(vb), "old", BEFORE / 2 + 1..=BEFORE, all);
        store.counts(VbId(vb)).expect("filed");
    }
    store.begin(to).expect("it begins");
    let after = Mutex::new(Content::new());
    let mut rng = SplitMix64::new(seed);
    let pauses = rng.below(60);
    run_in_turns(
        &mut rng,
        vec![
            Box::new(|| moved(&store, take_turn)),
            Box::new(|| {
                (0..pauses).for_each(|_| take_turn());
                *after.lock() = change(&store, what, &before[&VB.0]);
            }),
        ],
    );
    before.insert(VB.0, after.into_inner());
    let check = |store: &Movable, when: &str| {
        for (vb, expected) in &before {
            let found = content(store, VbId(*vb));
            assert!(
                found == *expected,
                "seed {seed}, {what:?}, {when}, vBucket {vb}: {found:?}, not {expected:?}"
            );
        }
    };
    check(&store, "after the move");
    assert_eq!(store.backend(), to);
    drop(store);
    check(&open(env, from), "after a start");
}

#[test]
fn what_is_deleted_while_it_is_copied_stays_deleted() {
    for seed in 0..SEEDS {
        for from in [StorageBackend::Couchstore, StorageBackend::LogStructured] {
            one(seed, from, Change::Deleted);
        }
    }
}

#[test]
fn what_goes_back_while_it_is_copied_stays_there() {
    for seed in 0..SEEDS {
        for from in [StorageBackend::Couchstore, StorageBackend::LogStructured] {
            one(seed, from, Change::WentBack);
        }
    }
}
