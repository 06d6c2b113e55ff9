//! Mistakes in the product that nodes which replicate to each other must find (`base::planted`).

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, look_for};

use crate::mistakes::Mistake;

fn are_found(share: usize) {
    let missed = look_for(Simulator::Replication, share, |seed| crate::run(seed, Mistake::None).map(drop));
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn mistakes_in_the_product_are_found() {
    are_found(0);
}

#[test]
fn mistakes_in_the_product_are_found_too() {
    const { assert!(known::SHARES == 2) };
    are_found(1);
}
