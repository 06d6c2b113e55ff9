//! What became of many starts, by what was done to which file.

use std::collections::BTreeMap;
use std::fmt;

use super::start::Started;

/// Violations that are told in full.
const MOST_EXAMPLES: usize = 12;

/// Counts of one kind of damage to one kind of file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Starts.
    pub starts: u64,
    /// Everything was served, and right.
    pub right: u64,
    /// The bucket was refused,
    pub buckets_refused: u64,
    /// or some of its vBuckets,
    pub vbuckets_refused: u64,
    /// or some values.
    pub values_refused: u64,
    /// What nothing vouches for was missing, under a new history: the end of the journal after a crash.
    pub ends_lost: u64,
    /// What is served is wrong, as is known of this kind of file: see `NOT_YET`.
    pub not_yet: u64,
    /// What is served is wrong, older or missing.
    pub violations: u64,
}

/// What became of many starts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By kind of damage and kind of file.
    pub rows: BTreeMap<(&'static str, &'static str), Counts>,
    /// The first violations.
    pub examples: Vec<String>,
}

impl Tally {
    pub fn judge(&mut self, seed: u64, damage: &'static str, class: &'static str, started: &Started) {
        let counts = self.rows.entry((class, damage)).or_default();
        counts.starts += 1;
        let is_refused = started.bucket_refused || started.vbuckets_refused > 0 || started.values_refused > 0;
        let count = match started {
            _ if !started.wrong.is_empty() => &mut counts.violations,
            Started { bucket_refused: true, .. } => &mut counts.buckets_refused,
            Started { ends_lost: true, .. } => &mut counts.ends_lost,
            _ if !is_refused => &mut counts.right,
            Started { vbuckets_refused: 1.., .. } => &mut counts.vbuckets_refused,
            _ => &mut counts.values_refused,
        };
        *count += 1;
        if !started.wrong.is_empty() && self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("seed {seed}: {}: {}", started.damage, started.wrong.join("; ")));
        }
    }

    /// Counts a violation that is known.
    pub fn pass_over(&mut self, damage: &'static str, class: &'static str) {
        let counts = self.rows.entry((class, damage)).or_default();
        counts.starts += 1;
        counts.not_yet += 1;
    }

    pub fn add(&mut self, other: Tally) {
        for (row, counts) in other.rows {
            let sum = self.rows.entry(row).or_default();
            sum.starts += counts.starts;
            sum.right += counts.right;
            sum.buckets_refused += counts.buckets_refused;
            sum.vbuckets_refused += counts.vbuckets_refused;
            sum.values_refused += counts.values_refused;
            sum.ends_lost += counts.ends_lost;
            sum.not_yet += counts.not_yet;
            sum.violations += counts.violations;
        }
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    pub fn starts(&self) -> u64 {
        self.rows.values().map(|counts| counts.starts).sum()
    }

    pub fn violations(&self) -> u64 {
        self.rows.values().map(|counts| counts.violations).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}",
            "file", "damage", "starts", "right", "bucket", "vbucket", "value", "end", "not yet", "wrong"
        )?;
        for ((class, damage), counts) in &self.rows {
            writeln!(
                f,
                "{class:<14} {damage:<8} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}",
                counts.starts,
                counts.right,
                counts.buckets_refused,
                counts.vbuckets_refused,
                counts.values_refused,
                counts.ends_lost,
                counts.not_yet,
                counts.violations
            )?;
        }
        for example in &self.examples {
            writeln!(f, "VIOLATION {example}")?;
        }
        Ok(())
    }
}
