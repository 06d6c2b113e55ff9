//! What fails again and again, for clients or in background tasks, is logged seldom.

mod common;

use std::time::Duration;

use base::VbId;
use base::env::Env;
use base::env::sim::{Call, Effect, Fault, On};
use common::lines::{Line, count, logged};
use common::stores::{files, journaled, open};
use common::{VB, Watched, doc, set};
use engine::{CompactOutcome, CompactRequest, Fetched, Progress};

const ROUNDS: usize = 50;

/// How many lines there are about saves of which each second one fails.
fn lines(effect: Effect) -> usize {
    let (env, handles) = Env::sim(1);
    let world = open(env, handles.clone(), files, |_| {});
    let lines = logged("engine::disk_state", || {
        for round in 0..ROUNDS {
            let request = set(doc("k"), if round % 2 == 0 { "even" } else { "odd" });
            world.bucket.documents().store(VbId(0), &request, world.now()).expect("there is room");
            handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, effect));
            assert_eq!(world.bucket.flushing().flush_step(), Progress::Failed, "{round}");
            handles.disk.heal();
            assert!(world.bucket.flushing().flush_all(), "{round}");
        }
    });
    assert!(world.bucket.flushing().save_stats().failed_saves >= ROUNDS as u64, "each failure is counted");
    lines.len()
}

#[test]
fn failures_that_come_and_go_are_logged_seldom() {
    assert_eq!(lines(Effect::IO_ERROR), 1);
    assert_eq!(lines(Effect::DISK_FULL), 2, "that it is full, and that there is room");
}

/// Says what was left out once the time for that has come.
fn assert_told_once(lines: &[Line], later: &[Line], message: &str) {
    assert_eq!(count(lines, message), 1, "{lines:?}");
    let left_out = later.iter().find(|line| line.message == message).and_then(|line| line.left_out);
    assert_eq!(left_out, Some(ROUNDS as u64 - 1), "{later:?}");
}

#[test]
fn reads_for_clients_that_fail() {
    let world = Watched::open_with_quota(1, 256 << 20);
    world.set_evicted("k", &"v".repeat(1000));
    world.handles.disk.plan(Fault::for_ever(On::Kind(Call::Read), 1, Effect::IO_ERROR));
    let round = || {
        let fetch = world.bucket.fetching().fetch(VB, doc("k")).expect("few wait");
        while fetch.try_take().is_none_or(|fetched| !matches!(fetched, Fetched::Failed)) {
            assert_ne!(world.bucket.fetching().fetch_step(), Progress::Idle, "the client waits");
        }
    };
    let lines = logged("engine", || (0..ROUNDS).for_each(|_| round()));
    world.handles.clock.advance(Duration::from_secs(5));
    assert_told_once(&lines, &logged("engine", round), "cannot read a document");
}

#[test]
fn compactions_that_fail() {
    let (env, handles) = Env::sim(1);
    let world = open(env, handles.clone(), files, |_| {});
    world.bucket.documents().store(VbId(0), &set(doc("k"), "v"), world.now()).expect("there is room");
    assert!(world.bucket.flushing().flush_all());
    handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::IO_ERROR));
    let round = || {
        let compacted = world
            .bucket
            .compaction()
            .compact(VbId(0), CompactRequest::default())
            .expect("it may be asked for");
        assert_eq!(world.bucket.compaction().compact_step(), Progress::Failed);
        assert_eq!(compacted.try_take(), Some(CompactOutcome::Failed));
    };
    let lines = logged("engine", || (0..ROUNDS).for_each(|_| round()));
    handles.clock.advance(Duration::from_secs(5));
    assert_told_once(&lines, &logged("engine", round), "cannot compact; the file stays as it is");
}

#[test]
fn filing_that_comes_and_goes() {
    let (env, handles) = Env::sim(1);
    let world = open(env, handles.clone(), journaled, |_| {});
    let lines = logged("engine::filer", || {
        for round in 0..ROUNDS as u64 {
            let request = set(doc("k"), "v");
            world.bucket.documents().store(VbId(0), &request, world.now()).expect("there is room");
            assert!(world.bucket.flushing().flush_all());
            // Long enough that it is filed because nothing else is saved.
            handles.clock.advance(Duration::from_millis(1_000));
            handles.disk.plan(Fault::for_ever(On::Kind(Call::Write), 1, Effect::DISK_FULL));
            assert_eq!(world.bucket.flushing().file_step(), Progress::Failed, "{round}");
            handles.disk.heal();
            while world.bucket.flushing().file_step() != Progress::Idle {}
        }
    });
    let most = ROUNDS / 5 + 1;
    for message in [
        "cannot bring the files up to date; the changes are in the journal, trying again",
        "the files are being brought up to date again",
    ] {
        assert!((1..=most).contains(&count(&lines, message)), "{message}: {lines:?}");
    }
}
