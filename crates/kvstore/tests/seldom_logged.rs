//! What the store's background work fails at again and again is logged seldom.

#[path = "../../engine/tests/common/lines.rs"]
mod lines;

use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Clock, Env, SimHandles};
use base::{VbId, VbState};
use kvstore::{
    Background, Compaction, Couch, CouchConfig, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc,
};
use lines::{Line, count, logged};
use store_suite::version;

const ROUNDS: u64 = 50;

fn save(store: &dyn KvStore, vb: VbId, seqno: u64) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let value = format!("{vb}/{seqno} ").repeat(500);
    let items = [version(0, &format!("k{seqno}"), seqno, value.as_bytes())];
    store.save(vb, SaveBatch { items: &items, state: &state }).expect("the disk works");
}

fn journaled() -> (SimHandles, Journaled) {
    let (env, handles) = Env::sim(1);
    let config = JournaledConfig { journal_bytes: 256 << 10, ..JournaledConfig::default() };
    (handles, Journaled::open(env, "/data".as_ref(), config).expect("the disk works"))
}

/// Brings the files up to date as far as they can be.
fn file(handles: &SimHandles, store: &dyn KvStore) {
    handles.clock.advance(Duration::from_secs(2));
    while matches!(store.background_step(), Ok(Background::Worked)) {}
}

fn last(lines: &[Line], message: &str) -> Option<u64> {
    lines.iter().rfind(|line| line.message == message).and_then(|line| line.left_out)
}

#[test]
fn compactions_that_fail() {
    let (env, handles) = Env::sim(1);
    let store = Couch::open(env, "/data".as_ref(), CouchConfig::default()).expect("the disk works");
    save(&store, VbId(0), 1);
    let round = || {
        handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::IO_ERROR));
        store.compact(VbId(0), &Compaction::default()).expect_err("the disk refuses");
        handles.disk.heal();
    };
    let lines = logged("kvstore::couch::compact", || (0..ROUNDS).for_each(|_| round()));
    assert_eq!(count(&lines, "the file of a vBucket cannot be compacted"), 1, "{lines:?}");
    handles.clock.advance(Duration::from_secs(5));
    let later = logged("kvstore::couch::compact", round);
    assert_eq!(last(&later, "the file of a vBucket cannot be compacted"), Some(ROUNDS - 1));
}

#[test]
fn segments_that_cannot_be_released() {
    let (handles, store) = journaled();
    let mut seqno = 0;
    let mut round = || {
        // Enough for the next segment.
        for _ in 0..4 {
            seqno += 1;
            save(&store, VbId(0), seqno);
        }
        for call in [Call::Rename, Call::Remove] {
            handles.disk.plan(Fault::for_ever(On::Kind(call), 1, Effect::IO_ERROR));
        }
        file(&handles, &store);
        handles.disk.heal();
    };
    let begun = handles.clock.monotonic();
    let lines = logged("kvstore::journaled", || (0..ROUNDS).for_each(|_| round()));
    let seconds = (handles.clock.monotonic() - begun).as_secs();
    let told = count(&lines, "cannot release a journal segment; it stays until a later try") as u64;
    assert!((1..=seconds / 5 + 1).contains(&told), "{told} lines in {seconds} seconds");
}

#[test]
fn files_that_cannot_be_brought_up_to_date() {
    let (handles, store) = journaled();
    (0..ROUNDS as u16).for_each(|vb| save(&store, VbId(vb), 1));
    handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::IO_ERROR));
    let lines = logged("kvstore::journaled", || file(&handles, &store));
    let message = "cannot bring the file up to date; the changes stay in the journal";
    assert_eq!(count(&lines, message), 1, "{lines:?}");
    handles.disk.heal();
    handles.clock.advance(Duration::from_secs(60));
    file(&handles, &store);
    assert_eq!(store.stats().unfiled_bytes, 0, "all of them are filed in the end");
}

#[test]
fn a_stop_says_how_much_is_left() {
    let (env, _handles) = Env::sim(1);
    let store = Journaled::open(env, "/data".as_ref(), JournaledConfig::default()).expect("the disk works");
    // More than are filed together.
    (0..600).for_each(|vb| save(&store, VbId(vb), 1));
    let lines = logged("kvstore::journaled", || store.close().expect("the disk works"));
    assert_eq!(count(&lines, "the files are being brought up to date"), 1, "no time has passed: {lines:?}");
}
