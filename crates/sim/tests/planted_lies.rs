//! The trials of stores find each lie that a disk tells.

use std::path::Path;

use base::env::Env;
use kvstore::{Failure, KvStore};
use sim::kv::{Depth, Lie, Subject, Tally, crash_states, fault_points, subjects};

/// Workloads that are tried before a lie counts as not found.
const SEEDS: u64 = 20;

/// A lie about groups of files is seldom noticed where a journal has what they have: it is looked for from a seed on that
/// shows it soon.
const RARE: u64 = 50;

fn find(subject: &Subject<'_>, lie: Lie) -> Tally {
    let open =
        |env: Env, dir: &Path| -> Result<Box<dyn KvStore>, Failure> { (subject.open)(lie.told_to(env), dir) };
    let lied_to = Subject {
        rolls_back_exactly: subject.rolls_back_exactly,
        name: subject.name,
        open: &open,
        open_closed: subject.open_closed,
        world: subject.world,
        trusts_last_header: subject.trusts_last_header,
    };
    let depth = Depth { tries: 8, ..Depth::default() };
    let mut tally = Tally::default();
    let first = if lie == Lie::SyncsFirstOfGroup { RARE } else { 0 };
    for seed in first..first + SEEDS {
        tally.add(crash_states(&lied_to, &depth, seed));
        if tally.holds() {
            tally.add(fault_points(&lied_to, 12, seed));
        }
        if !tally.holds() {
            break;
        }
    }
    tally
}

fn find_all(subject: &Subject<'_>, lies: impl Iterator<Item = Lie>) {
    for lie in lies {
        let tally = find(subject, lie);
        let first = tally.examples.first();
        println!(
            "{lie:?} told to {}: {} states, {} failing calls: {first:?}",
            subject.name, tally.states, tally.fault_points
        );
        assert!(!tally.holds(), "{lie:?} told to {} was not found: {tally}", subject.name);
    }
}

#[test]
fn every_lie_told_to_couch_is_found() {
    find_all(&subjects::couch(), Lie::ALL.into_iter());
}

#[test]
fn every_lie_told_to_journaled_is_found() {
    // a deletion is on record in the journal: the file that it left behind does no harm
    find_all(&subjects::journaled(), Lie::ALL.into_iter().filter(|lie| *lie != Lie::HidesFailedRemoval));
}
