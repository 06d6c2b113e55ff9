//! How many passed, how many failed.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

/// Counts of verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// As they should be.
    pub passed: u64,
    /// Not.
    pub failed: u64,
}

impl Totals {
    /// One verdict.
    pub fn one(passed: bool) -> Totals {
        Totals { passed: u64::from(passed), failed: u64::from(!passed) }
    }

    /// Something was counted and nothing failed.
    pub fn good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// Reads cargo's `test result: ok. 12 passed; 0 failed; ...`.
    pub fn of_cargo_line(line: &str) -> Option<Totals> {
        let rest = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
        let count = |word: &str| -> Option<u64> {
            rest.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        };
        Some(Totals { passed: count("passed")?, failed: count("failed")? })
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Totals>>(all: I) -> Totals {
        all.fold(Totals::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_cargo_prints() {
        let line =
            "test result: ok. 12 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        assert_eq!(Totals::of_cargo_line(line), Some(Totals { passed: 12, failed: 1 }));
        assert_eq!(Totals::of_cargo_line("test a::b ... ok"), None);
    }

    #[test]
    fn the_closing_line_has_a_fixed_form() {
        assert_eq!(Totals { passed: 3, failed: 4 }.to_string(), "3 passed, 4 failed");
    }
}
