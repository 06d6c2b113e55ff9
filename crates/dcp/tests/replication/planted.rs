//! Mistakes in the product that nodes which replicate to each other must find, and from which seed on they do
//! (`base::planted`).

use base::planted::{Bug, look_for};

use crate::mistakes::Mistake;

const KNOWN: &[(Bug, u64)] = &[
    (Bug::JournalNotSynced, 2),
    (Bug::FilesNotSynced, 1),
    (Bug::ReplayStopsEarly, 2),
    (Bug::NoHistoryAfterCrash, 0),
    (Bug::PurgeNotTold, 0),
    (Bug::RollbackLeavesMemory, 0),
    (Bug::RollbackTooShort, 0),
    (Bug::NoHistoryAtPromotion, 0),
    (Bug::KeepFailoverTable, 0),
    (Bug::StreamSkipsDisk, 0),
    (Bug::SwitchRepeatsOne, 0),
    (Bug::ExpirationsNotSent, 0),
    (Bug::TakeoverLeavesActive, 0),
    (Bug::StateNotSaved, 0),
    (Bug::CasForgottenAtRestart, 0),
    (Bug::SnapshotForgottenAtRestart, 0),
    (Bug::SwitchSkips, 0),
    (Bug::PromotedInsideSnapshot, 0),
    (Bug::TakeoverForgetsRest, 0),
    (Bug::FailedSaveCounts, 0),
];

#[test]
fn mistakes_in_the_product_are_found() {
    let missed = look_for("replication", KNOWN, |seed| crate::run(seed, Mistake::None).map(drop));
    assert!(missed.is_empty(), "not found: {missed:?}");
}
