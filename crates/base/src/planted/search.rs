//! Looking for a mistake with one seed after the other.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Bug, Planted, reached};

/// A mistake that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub bug: Bug,
    /// The seed that found it.
    pub seed: u64,
    /// How many seeds were tried, this one included.
    pub tried: u64,
    /// The first line of what was violated.
    pub violation: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { bug, seed, tried, violation } = self;
        let bug = format!("{bug:?}");
        write!(f, "{bug:<28} seed {seed:>5} after {tried:>4}: {violation:.160}")
    }
}

/// Plants a mistake and runs seeds in order until one of them finds it: an error or a panic of `run`.
/// Otherwise says how often the mistake was made.
pub fn find(
    bug: Bug,
    seeds: Range<u64>,
    mut run: impl FnMut(u64) -> Result<(), String>,
) -> Result<Found, u64> {
    let mut made = 0;
    for (before, seed) in seeds.enumerate() {
        let planted = Planted::new(bug);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed)));
        drop(planted);
        made += reached();
        let violation = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(violation)) => violation,
            Err(panic) => match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(panic) => panic.downcast_ref::<&str>().map_or("a panic", |text| text).to_owned(),
            },
        };
        let violation = violation.lines().next().unwrap_or_default().to_owned();
        return Ok(Found { bug, seed, tried: before as u64 + 1, violation });
    }
    Err(made)
}
