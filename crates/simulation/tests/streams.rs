//! Two or three nodes follow each other without a cluster, and everything goes wrong (`simulation::streams`).
//!
//! `DCP_SEEDS=100000 cargo test -p simulation --test streams` tries more; with `DCP_FIRST_SEED=159 DCP_SEEDS=1
//! DCP_SHOW=1` it tells what happens in one of them.

#![allow(missing_docs, reason = "a test is read as a whole")]

#[path = "../../dcp/tests/shared/report.rs"]
mod report;

use report::Row;
use simulation::{MISTAKES, Mistake, run_streams};

const SEEDS: u64 = 250;
/// A mistake that is not found within so many seeds is not found.
const SEEDS_FOR_A_MISTAKE: u64 = 200;

#[test]
fn replicas_end_with_what_the_active_node_has() {
    let range = report::seeds(SEEDS);
    let seeds = range.end - range.start;
    let sums = report::run(range, |seed| run_streams(seed, Mistake::None).map(|counts| counts.rows()));
    let is_rare = |row: &Row| seeds >= 100 && row.1 < seeds / 20;
    let rare = sums.into_iter().flatten().find(is_rare);
    assert_eq!(rare, None, "everything happens");
}

#[test]
fn planted_mistakes_are_found() {
    for mistake in MISTAKES {
        let found = (0..SEEDS_FOR_A_MISTAKE).find_map(|seed| Some((seed, run_streams(seed, mistake).err()?)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{mistake:?} was not found"));
        println!("{mistake:?}: seed {seed}: {what}");
        assert!(run_streams(seed, Mistake::None).is_ok(), "{seed} is right without the mistake");
    }
}

#[test]
fn a_seed_decides_everything() {
    for seed in [1, 2, 3] {
        assert_eq!(run_streams(seed, Mistake::None), run_streams(seed, Mistake::None), "seed {seed}");
    }
}

#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    simulation::bugs::find_all_of_streams();
}
