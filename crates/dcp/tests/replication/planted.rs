//! Mistakes in the product that nodes which replicate to each other must find (`base::planted`).

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, must_find};

use crate::mistakes::Mistake;

#[test]
fn mistakes_in_the_product_are_found() {
    must_find(Simulator::Replication, |seed| crate::run(seed, Mistake::None).map(drop));
}
