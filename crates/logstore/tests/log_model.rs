//! Random changes of a store, compared with maps.

mod crash;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;
mod world;

use base::env::sim::{SimDisk, SplitMix64};
use world::{Open, World};

/// Enough for every kind of change to meet every other, in a few seconds.
const SEEDS: u64 = 150;

fn run(seed: u64) {
    let disk = SimDisk::new();
    let mut world = World::new(disk, SplitMix64::new(seed));
    for step in 0..120 {
        let what = world.change().unwrap_or_else(|failure| panic!("seed {seed}, step {step}: {failure}"));
        world.check_some().unwrap_or_else(|wrong| panic!("seed {seed}, step {step} ({what}): {wrong}"));
    }
    world.settle().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    world.check_all().unwrap_or_else(|wrong| panic!("seed {seed}, settled: {wrong}"));
    world.reopen(Open::Last).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    world.check_all().unwrap_or_else(|wrong| panic!("seed {seed}, opened again: {wrong}"));
}

#[test]
fn a_store_is_what_maps_are() {
    (0..SEEDS).for_each(run);
}

/// Mistakes in the product that maps or a power loss show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::LogStore, |seed| {
        run(seed);
        crash::power_losses(seed);
        Ok(())
    });
}
