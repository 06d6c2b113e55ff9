//! A disk error comes and goes during a task, then the store is closed and opened on the disk that is well again:
//! what it served before the stop is what it serves after it, with distinct keys and whole contents.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use base::env::Env;
use base::env::sim::{Call, Effect, Fault, On, SimDisk};
use base::{Seqno, VbId, VbState};
use kvstore::{
    Compaction, Couch, CouchConfig, Failure, Journaled, JournaledConfig, KvStore, SaveBatch, Values,
    VbStateDoc,
};
use store_suite::version;

const DIR: &str = "/data";
const VBUCKETS: u16 = 3;
/// The vBucket that the task is about.
const VB: VbId = VbId(1);

type Open = fn(Env) -> Result<Box<dyn KvStore>, Failure>;
type Task = fn(&dyn KvStore, u64);

fn journaled(env: Env) -> Result<Box<dyn KvStore>, Failure> {
    let config = JournaledConfig {
        journal_bytes: 128 << 10,
        file_after: Duration::ZERO,
        ..JournaledConfig::default()
    };
    Ok(Box::new(Journaled::open(env, DIR.as_ref(), config)?))
}

fn couch(env: Env) -> Result<Box<dyn KvStore>, Failure> {
    Ok(Box::new(Couch::open(env, Path::new(DIR), CouchConfig::default())?))
}

/// Saves `count` documents of each vBucket behind `from`: half of the keys are new, the others overwrite.
fn save(store: &dyn KvStore, from: u64, count: u64) {
    for seqno in from + 1..=from + count {
        let key = if seqno.is_multiple_of(2) { format!("k{seqno}") } else { format!("k{}", seqno % 7) };
        let value = format!("value {seqno}");
        for vb in (0..VBUCKETS).map(VbId) {
            let state = VbStateDoc { state: VbState::Active, max_cas: seqno, ..VbStateDoc::default() };
            let items = [version(0, &key, seqno, value.as_bytes())];
            // what failed is saved again, as the flusher does
            let saved = (0..4).any(|_| store.save(vb, SaveBatch { items: &items, state: &state }).is_ok());
            assert!(saved, "{vb} seqno {seqno}: the disk is well");
        }
    }
}

/// Everything that a store serves: seqno and value by vBucket and key, and the highest seqno of each vBucket.
type Contents = BTreeMap<(u16, String), (u64, Vec<u8>)>;

fn contents(store: &dyn KvStore) -> Contents {
    let mut all = Contents::new();
    for vb in (0..VBUCKETS).map(VbId) {
        let Some(snapshot) = store.snapshot(vb).unwrap_or_else(|failure| panic!("{failure}")) else {
            continue;
        };
        all.insert((vb.0, "high seqno".into()), (snapshot.high_seqno().0, Vec::new()));
        let scanned = snapshot.scan(Seqno(0), Values::Read, &mut |version| {
            let key = String::from_utf8_lossy(version.key().key).into_owned();
            all.insert((vb.0, key), (version.meta().by_seqno.0, version.value().to_vec()));
            ControlFlow::Continue(())
        });
        scanned.expect("the disk is well");
    }
    all
}

fn is_task(task: Task, other: Task) -> bool {
    std::ptr::fn_addr_eq(task, other)
}

fn compact(store: &dyn KvStore, _: u64) {
    let _ = store.compact(VB, &Compaction::default());
}

fn roll_back(store: &dyn KvStore, high: u64) {
    let _ = store.rollback(VB, Seqno(high - 3));
}

fn roll_back_far(store: &dyn KvStore, high: u64) {
    let _ = store.rollback(VB, Seqno(high - 9));
}

fn roll_back_all(store: &dyn KvStore, _: u64) {
    let _ = store.rollback(VB, Seqno(0));
}

fn delete(store: &dyn KvStore, _: u64) {
    let _ = store.delete_vbucket(VB);
}

fn save_last(store: &dyn KvStore, high: u64) -> Result<(), Failure> {
    let state = VbStateDoc { state: VbState::Active, max_cas: high, ..VbStateDoc::default() };
    let items = [version(0, "last", high + 1, b"last")];
    store.save(VB, SaveBatch { items: &items, state: &state })
}

fn file(store: &dyn KvStore, high: u64) {
    let _ = save_last(store, high);
    let _ = store.background_step();
}

/// Runs `task` while the `nth` call of a kind fails, once or until the disk heals, then stops cleanly and starts.
/// Says whether there was such a call.
fn trial(open: Open, task: Task, fault: Fault, saves_after: u64, is_filed: bool) -> bool {
    let (env, handles) = Env::sim(1);
    let disk: SimDisk = handles.disk.clone();
    let what = format!("{fault:?}, {saves_after} saves after, filed: {is_filed}");
    let store = open(env.clone()).expect("the disk is well");
    for from in [0, 4, 8] {
        save(&*store, from, 4);
        // a commit for each, so that there is one to go back to
        while store.background_step().expect("the disk is well") == kvstore::Background::Worked {}
    }
    let store = if is_filed {
        store.close().expect("the disk is well");
        drop(store);
        open(env.clone()).expect("the disk is well")
    } else {
        store
    };
    save(&*store, 12, 4);
    let high = 16;
    disk.plan(fault);
    task(&*store, high);
    disk.heal();
    let was_struck = disk.was_struck();
    if is_task(task, file) {
        // what failed may be there after a restart, so it is saved again, as the flusher does
        assert!((0..4).any(|_| save_last(&*store, high).is_ok()), "{what}: the disk is well");
    }
    let from = high + u64::from(is_task(task, file));
    // what is rolled back goes on from where it is now
    save(&*store, from, saves_after);
    let before = contents(&*store);
    let closed = store.close();
    drop(store);
    let store = open(env.clone()).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    assert_eq!(contents(&*store), before, "{what}: after a stop that ended with {closed:?}");
    // and once more: a start takes nothing away either
    save(&*store, from + saves_after, 2);
    let before = contents(&*store);
    store.close().unwrap_or_else(|failure| panic!("{what}: {failure}"));
    drop(store);
    let store = open(env).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    assert_eq!(contents(&*store), before, "{what}: after the second stop");
    was_struck
}

fn every_fault(open: Open, task: Task) {
    let calls =
        [Call::Write, Call::Sync, Call::SyncDir, Call::Rename, Call::Open, Call::Remove, Call::SetLen];
    let mut struck = 0;
    for (call, for_ever) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        for nth in 1.. {
            let effect = if nth % 2 == 0 { Effect::DISK_FULL } else { Effect::IO_ERROR };
            let fault = Fault { on: On::Kind(call), nth, for_ever, effect };
            let mut any = false;
            for saves_after in [0, 6] {
                for is_filed in [false, true] {
                    any |= trial(open, task, fault, saves_after, is_filed);
                }
            }
            if !any {
                break;
            }
            struck += 1;
        }
    }
    assert!(struck > 3, "{struck} faults");
}

macro_rules! crossed {
    ($($name:ident: $store:ident, $task:ident;)+) => {$(
        #[test]
        fn $name() {
            every_fault($store, $task);
        }
    )+};
}

crossed! {
    journaled_compaction: journaled, compact;
    journaled_rollback: journaled, roll_back;
    journaled_far_rollback: journaled, roll_back_far;
    journaled_rollback_to_nothing: journaled, roll_back_all;
    journaled_delete: journaled, delete;
    journaled_filing: journaled, file;
    couch_compaction: couch, compact;
    couch_rollback: couch, roll_back;
    couch_far_rollback: couch, roll_back_far;
    couch_rollback_to_nothing: couch, roll_back_all;
    couch_delete: couch, delete;
    couch_filing: couch, file;
}

/// After a clean stop a start believes what is listed: it makes nothing durable again, and looks at each file once.
#[test]
fn a_start_after_a_clean_stop_costs_no_sync() {
    const MANY: u16 = 64;
    let (env, handles) = Env::sim(2);
    let disk: SimDisk = handles.disk.clone();
    let store = journaled(env.clone()).expect("the disk is well");
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    for vb in (0..MANY).map(VbId) {
        let items = [version(0, "k", 1, b"value")];
        store.save(vb, SaveBatch { items: &items, state: &state }).expect("the disk is well");
    }
    store.close().expect("the disk is well");
    drop(store);
    for open in [journaled, couch] {
        let before = [Call::Sync, Call::Open, Call::Read].map(|call| disk.calls(On::Kind(call)));
        let store = open(env.clone()).expect("the disk is well");
        assert!(store.states().expect("the disk is well").iter().all(|(_, stored)| stored.is_ok()));
        let after = [Call::Sync, Call::Open, Call::Read].map(|call| disk.calls(On::Kind(call)));
        let [syncs, opens, reads] = std::array::from_fn(|i| after[i] - before[i]);
        println!("{syncs} syncs, {opens} opens and {reads} reads for {MANY} files");
        assert_eq!(syncs, 0);
        assert!(opens <= u64::from(MANY) + 8, "{opens} opens");
        // the header, its roots, and the local documents
        assert!(reads <= u64::from(MANY) * 16 + 8, "{reads} reads");
    }
}
