//! Mistakes in the product that the simulation of clusters must find, and from which seed on it does (`base::planted`).

use base::planted::{Bug, look_for};

const KNOWN: &[(Bug, u64)] = &[
    (Bug::FenceSkipped, 0),
    (Bug::NoLeaseMargin, 0),
    (Bug::FirstIsChosen, 0),
    (Bug::ChosenTooEarly, 0),
    (Bug::MovedTooEarly, 0),
    (Bug::NotSettled, 0),
    (Bug::HandedOverComesBack, 0),
    (Bug::LossesIgnored, 0),
    (Bug::ChosenByFew, 0),
    (Bug::BlindWrite, 0),
    (Bug::ReportWithoutPrepares, 0),
    (Bug::StreamBeforeAdmission, 0),
    (Bug::HeldCopyFollows, 0),
    (Bug::SilentStaysInChain, 0),
];

#[test]
fn mistakes_in_the_product_are_found() {
    let missed = look_for("clusters", KNOWN, |seed| crate::run(seed, None).map(drop));
    assert!(missed.is_empty(), "not found: {missed:?}");
}
