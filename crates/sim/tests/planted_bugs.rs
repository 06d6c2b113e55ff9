//! The crash tests find every bug that is planted in a toy store, and none where none is.

mod toy;

use base::env::sim::SimDisk;
use sim::crash::{FaultKind, every_crash, every_fault, recorded};
use sim::{CrashPlan, Ledger, Verdict};
use toy::{Bug, VB};

const BATCHES: u64 = 12;

fn check(bug: Bug, ledger: &Ledger, disk: &SimDisk, at: u64) -> Vec<String> {
    let violations = ledger.check(VB, &toy::restore(bug, disk), at);
    violations.iter().map(ToString::to_string).collect()
}

fn crashes(bug: Bug) -> Verdict {
    let mut verdict = Verdict::default();
    for seed in 0..8 {
        let (ledger, recording) = recorded(|_| {}, |disk| toy::run(bug, seed, BATCHES, disk));
        verdict.add(every_crash(&CrashPlan::new(seed), &recording, |d, at| check(bug, &ledger, d, at)));
    }
    verdict
}

fn faults(bug: Bug) -> Verdict {
    let mut verdict = Verdict::default();
    for kind in &FaultKind::ALL {
        let run = |disk: &SimDisk| toy::run(bug, 1, BATCHES, disk);
        let check = |ledger: &Ledger, disk: &SimDisk, at| check(bug, ledger, disk, at);
        verdict.add(every_fault(&CrashPlan::new(1), kind, |_| {}, run, check));
    }
    verdict
}

fn find(bug: Bug) {
    let (crashes, faults) = (crashes(bug), faults(bug));
    println!("{bug:?}: crashes states={} violations={}", crashes.states, crashes.violated);
    println!("{bug:?}: faults states={} violations={}", faults.states, faults.violated);
    assert!(crashes.violated + faults.violated > 0, "{bug:?} was not found");
}

#[test]
fn a_correct_store_keeps_its_promises() {
    for verdict in [crashes(Bug::None), faults(Bug::None)] {
        println!("{verdict}");
        assert!(verdict.holds(), "{verdict}");
    }
}

#[test]
fn a_missing_sync_is_found() {
    find(Bug::NoSync);
}

#[test]
fn a_promise_before_the_sync_is_found() {
    find(Bug::PromiseBeforeSync);
}

#[test]
fn a_missing_folder_sync_is_found() {
    find(Bug::NoFolderSync);
}

#[test]
fn an_unchecked_record_is_found() {
    find(Bug::NoChecksum);
}

#[test]
fn a_retried_sync_is_found() {
    find(Bug::RetriesSync);
}

#[test]
fn a_torn_write_left_in_place_is_found() {
    find(Bug::LeavesTornWrite);
}

#[test]
fn overwriting_in_place_is_found() {
    find(Bug::OverwritesInPlace);
}

#[test]
fn a_claim_beyond_what_is_held_is_found() {
    find(Bug::OverClaims);
}

#[test]
fn the_same_seed_gives_the_same_verdict() {
    assert_eq!(crashes(Bug::NoChecksum).to_string(), crashes(Bug::NoChecksum).to_string());
}
