//! Stores keep what they acknowledged and show nothing else, wherever the power goes and whichever call fails.

mod campaign;

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;
mod stuck;

use campaign::{every_bit, every_fault, every_schedule, every_state};
use sim::kv::subjects::{couch, encrypted_couch, encrypted_journaled, journaled};
use sim::kv::{Depth, crash_states};

#[test]
fn couch_after_a_power_loss() {
    every_state(&couch());
}

#[test]
fn couch_with_failing_calls() {
    every_fault(&couch());
}

#[test]
fn couch_with_rotten_bits() {
    every_bit(&couch());
}

#[test]
fn encrypted_files_after_a_power_loss() {
    every_state(&encrypted_couch());
}

#[test]
fn encrypted_files_with_failing_calls() {
    every_fault(&encrypted_couch());
}

#[test]
fn encrypted_files_with_rotten_bits() {
    every_bit(&encrypted_couch());
}

#[test]
fn encrypted_journal_after_a_power_loss() {
    every_state(&encrypted_journaled());
}

#[test]
fn encrypted_journal_with_failing_calls() {
    every_fault(&encrypted_journaled());
}

#[test]
fn encrypted_journal_with_rotten_bits() {
    every_bit(&encrypted_journaled());
}

#[test]
fn couch_with_threads_in_turns() {
    every_schedule(&couch());
}

#[test]
fn journaled_after_a_power_loss() {
    every_state(&journaled());
}

#[test]
fn journaled_with_failing_calls() {
    every_fault(&journaled());
}

#[test]
fn journaled_with_rotten_bits() {
    every_bit(&journaled());
}

#[test]
fn journaled_with_threads_in_turns() {
    every_schedule(&journaled());
}

#[test]
fn journaled_with_a_file_that_cannot_be_filed() {
    cannot_be_filed(stuck::Files::Couch);
}

#[test]
fn journaled_with_a_shard_that_cannot_be_filed() {
    cannot_be_filed(stuck::Files::Log);
}

fn cannot_be_filed(files: stuck::Files) {
    let wrong: Vec<String> = (0..40).filter_map(|seed| stuck::crashes(files, seed).err()).collect();
    assert!(wrong.is_empty(), "{} of 40: {:#?}", wrong.len(), wrong.first());
}

/// Mistakes in the product that a power loss shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::CrashStates, |seed| {
        stuck::crashes(stuck::Files::Couch, seed)?;
        let tally = crash_states(&journaled(), &Depth::default(), seed);
        if tally.holds() { Ok(()) } else { Err(tally.to_string().replace('\n', " ")) }
    });
}
