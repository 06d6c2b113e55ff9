//! Whole clusters in one thread: nodes with clocks of their own, a store, lost and late messages, crashes, freezes,
//! failovers and rebalances, decided by a seed; and checkers for what must always hold.

mod aims;
mod away;
mod bugs;
mod damage;
mod data;
mod faults;
mod forced;
#[path = "../../../simulation/src/lease.rs"]
mod lease;
mod node;
mod patience;
#[cfg(debug_assertions)]
mod planted;
mod restore;
#[path = "../../../simulation/src/store.rs"]
#[allow(dead_code, reason = "the world reads what the store holds itself")]
mod store;
mod stuck;
mod world;

use bugs::Bug;
use world::World;

/// Seeds that are run without a bug.
const SEEDS: u64 = 1_000;
/// Later ones that have found something, and are run beside them: a store that was restored while the leader had seen
/// nothing newer, so that two lines of states had the same revisions; damaged copies of nodes that were failed over.
const FOUND: [u64; 14] = [1018, 1157, 1520, 2426, 3634, 4297, 5381, 5674, 6922, 7082, 7562, 8698, 9162, 9226];
/// Seeds within which each planted bug must be found.
const SEEDS_FOR_A_BUG: u64 = 4_000;

fn run(seed: u64, bug: Option<Bug>) -> Result<world::Tally, String> {
    let mut world = World::new(seed, bug);
    world.run().map_err(|violation| format!("seed {seed}, at {} us: {violation}", world.now_us()))
}

#[test]
fn nothing_is_violated() {
    let mut sum = world::Tally::default();
    let mut violations = Vec::new();
    // Others than usual, if somebody wants that.
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let seeds = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let first = number("SIMULATION_FIRST");
    let found = if first.is_none() { &FOUND[..] } else { &[] };
    let first = first.unwrap_or(0);
    let found = found.iter().copied().filter(|seed| !(first..first + seeds).contains(seed));
    for seed in (first..first + seeds).chain(found) {
        match run(seed, None) {
            Ok(tally) => sum.add(&tally),
            Err(violation) => violations.push(violation),
        }
    }
    violations.iter().for_each(|violation| println!("{violation}"));
    assert!(violations.is_empty(), "{} of {seeds} seeds, the first is {}", violations.len(), violations[0]);
    println!("{seeds} seeds: {sum:?}");
    // What never happened was not tested.
    for (what, count) in [
        ("failovers", sum.failovers),
        ("automatic failovers", sum.automatic),
        ("rebalances", sum.rebalances),
        ("takeovers", sum.takeovers),
        ("choices", sum.choices),
        ("leaders", sum.leaders),
        ("durable writes", sum.committed),
        ("crashes", sum.crashes),
        ("cuts", sum.cuts),
        ("freezes", sum.freezes),
        ("refusals by the fence", sum.fenced),
        ("restored stores", sum.restores),
        ("damaged copies", sum.damages),
        ("damaged copies that are served on", sum.damaged_served),
        ("damaged copies set aside", sum.set_aside),
        ("stores that are away", sum.away),
        ("pairs that are cut off", 50 * sum.pairs),
        ("buckets that could not be applied", sum.stuck),
        ("vBuckets whose last copy was given up", 2 * sum.given_up),
    ] {
        assert!(count >= seeds / 10, "only {count} {what}");
    }
}

/// Within an hour of the simulated time nothing is served late, or by two nodes.
#[test]
fn the_store_may_be_away_for_an_hour() {
    for seed in 0..2 {
        let mut world = World::calm(seed, 3_600_000_000);
        let ran =
            world.run().map_err(|violation| format!("seed {seed}, at {} us: {violation}", world.now_us()));
        let tally = ran.expect("nothing is violated");
        assert!(tally.away == 1 && tally.committed > 0 && tally.choices == 0, "{tally:?}");
    }
}

#[test]
fn planted_bugs_are_found() {
    let mut not_found = Vec::new();
    for bug in Bug::ALL {
        let found = (0..SEEDS_FOR_A_BUG).find_map(|seed| run(seed, Some(*bug)).err().map(|why| (seed, why)));
        match found {
            Some((seed, why)) => println!("{bug:?}: after {} seeds: {why:.140}", seed + 1),
            None => not_found.push(*bug),
        }
    }
    assert!(not_found.is_empty(), "not found in {SEEDS_FOR_A_BUG} seeds: {not_found:?}");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..5 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}
