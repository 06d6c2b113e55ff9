//! Stores serve what they promised before a stop, or refuse it, whatever the disk did before and whichever file was changed
//! while nothing had it open.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use sim::kv::subjects::{couch, journaled, journaled_log};
use sim::kv::{Subject, Tally, stops};

/// What an ordinary run of the tests looks at.
const RUNS: u64 = 1500;

fn many_stops(subject: &Subject<'_>) {
    let mut tally = Tally::default();
    (0..RUNS).for_each(|seed| tally.add(stops(subject, seed)));
    println!("stops of {}: {tally}", subject.name);
    assert!(tally.holds(), "stops of {}: {tally}", subject.name);
    assert!(tally.states > RUNS / 10 * 9, "{tally}");
}

#[test]
fn couch_stops() {
    many_stops(&couch());
}

#[test]
fn journaled_stops() {
    many_stops(&journaled());
}

#[test]
fn journaled_log_stops() {
    many_stops(&journaled_log());
}

/// Mistakes in the product that a stop after disk errors, or a changed file, shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Stops, |seed| {
        let tally = stops(&journaled(), seed);
        if tally.holds() { Ok(()) } else { Err(tally.to_string().replace('\n', " ")) }
    });
}
