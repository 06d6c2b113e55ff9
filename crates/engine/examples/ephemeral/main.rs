//! An ephemeral bucket at work: its list of items alone, then under load with a reader of ranges and the purger.
//!
//! `cargo run --release -p engine --example ephemeral -- [SECONDS [KEYS [VBUCKETS]]]`
#![allow(clippy::disallowed_methods, reason = "it measures time in the real world")]

mod list;
mod load;

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"))
}

fn main() {
    let seconds = argument(1, 20);
    let keys = argument(2, 1_000_000);
    let vbuckets = u16::try_from(argument(3, 64)).expect("at most 1024");
    list::run(keys);
    load::run(seconds, keys, vbuckets);
}
