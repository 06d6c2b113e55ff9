//! What every store must stand in an ordinary run of the tests.

use sim::kv::{Depth, Flips, Subject, Tally, bit_flips, crash_states, fault_points, interleave};

/// What an ordinary run of the tests looks at; `cargo xtask crash` looks at far more.
const STATES: u64 = 10_000;

/// Shows what a campaign found, which must be nothing.
pub fn report(what: &str, subject: &Subject<'_>, tally: &Tally) {
    println!("{what} of {}: {tally}", subject.name);
    assert!(tally.holds(), "{what} of {}: {tally}", subject.name);
}

/// Crash states of a store.
pub fn every_state(subject: &Subject<'_>) {
    let mut tally = Tally::default();
    for seed in 0.. {
        tally.add(crash_states(subject, &Depth::default(), seed));
        if tally.states >= STATES {
            break;
        }
    }
    report("crash states", subject, &tally);
    assert!(tally.second_crashes > STATES / 10);
}

/// Calls that fail once and for good.
pub fn every_fault(subject: &Subject<'_>) {
    report("fault points", subject, &fault_points(subject, 12, 1));
}

/// Bits that flip.
pub fn every_bit(subject: &Subject<'_>) {
    report("bit flips", subject, &bit_flips(subject, Flips::Every(11), 1));
    report("random bit flips", subject, &bit_flips(subject, Flips::Random(500), 1));
}

/// Threads in turns.
pub fn every_schedule(subject: &Subject<'_>) {
    let mut tally = Tally::default();
    (0..20).for_each(|seed| tally.add(interleave(subject, seed)));
    report("interleavings", subject, &tally);
}
