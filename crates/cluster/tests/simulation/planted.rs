//! Mistakes in the product that the simulation of clusters must find (`base::planted`).

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, must_find};

#[test]
fn mistakes_in_the_product_are_found() {
    must_find(Simulator::Logic, |seed| crate::run(seed, None).map(drop));
}
