//! The log-structured store keeps what it acknowledged and shows nothing else, wherever the power goes and whichever call
//! fails.

mod campaign;

use campaign::{every_bit, every_fault, every_schedule, every_state};
use sim::kv::subjects::{encrypted_journaled_log, journaled_log, log};

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
