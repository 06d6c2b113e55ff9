//! The log-structured store keeps what it acknowledged and shows nothing else, wherever the power goes and whichever call
//! fails.

use sim::kv::subjects::{encrypted_journaled_log, journaled_log, log};
use sim::kv::{Depth, Flips, Subject, Tally, bit_flips, crash_states, fault_points, interleave};

/// What an ordinary run of the tests looks at; `cargo xtask crash` looks at far more.
const STATES: u64 = 10_000;

fn report(what: &str, subject: &Subject<'_>, tally: &Tally) {
    println!("{what} of {}: {tally}", subject.name);
    assert!(tally.holds(), "{what} of {}: {tally}", subject.name);
}

fn every_state(subject: &Subject<'_>) {
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

fn every_fault(subject: &Subject<'_>) {
    report("fault points", subject, &fault_points(subject, 12, 1));
}

fn every_bit(subject: &Subject<'_>) {
    report("bit flips", subject, &bit_flips(subject, Flips::Every(11), 1));
    report("random bit flips", subject, &bit_flips(subject, Flips::Random(500), 1));
}

fn every_schedule(subject: &Subject<'_>) {
    let mut tally = Tally::default();
    (0..20).for_each(|seed| tally.add(interleave(subject, seed)));
    report("interleavings", subject, &tally);
}

#[test]
fn alone_after_a_power_loss() {
    every_state(&log());
}

#[test]
fn alone_with_failing_calls() {
    every_fault(&log());
}

#[test]
fn alone_with_rotten_bits() {
    every_bit(&log());
}

#[test]
fn alone_with_threads_in_turns() {
    every_schedule(&log());
}

#[test]
fn behind_a_journal_after_a_power_loss() {
    every_state(&journaled_log());
}

#[test]
fn behind_a_journal_with_failing_calls() {
    every_fault(&journaled_log());
}

#[test]
fn behind_a_journal_with_rotten_bits() {
    every_bit(&journaled_log());
}

#[test]
fn behind_a_journal_with_threads_in_turns() {
    every_schedule(&journaled_log());
}

#[test]
fn encrypted_after_a_power_loss() {
    every_state(&encrypted_journaled_log());
}

#[test]
fn encrypted_with_rotten_bits() {
    every_bit(&encrypted_journaled_log());
}
