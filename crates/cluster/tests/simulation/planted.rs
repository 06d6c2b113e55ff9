//! Mistakes in the product that the simulation of clusters must find (`base::planted`).

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, look_for};

fn are_found(share: usize) {
    let missed = look_for(Simulator::Logic, share, |seed| crate::run(seed, None).map(drop));
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
