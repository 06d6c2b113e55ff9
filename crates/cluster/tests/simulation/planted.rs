//! Mistakes in the product that the simulation of clusters must find (`base::planted`).

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, look_for};

#[test]
fn mistakes_in_the_product_are_found() {
    let missed = look_for(Simulator::Logic, |seed| crate::run(seed, None).map(drop));
    assert!(missed.is_empty(), "not found: {missed:?}");
}
