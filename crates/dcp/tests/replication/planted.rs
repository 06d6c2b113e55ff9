//! Mistakes in the product that nodes which replicate to each other must find (`base::planted`).

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, look_for};

use crate::mistakes::Mistake;

#[test]
fn mistakes_in_the_product_are_found() {
    let missed = look_for(Simulator::Replication, |seed| crate::run(seed, Mistake::None).map(drop));
    assert!(missed.is_empty(), "not found: {missed:?}");
}
