//! What became of many starts, by what was done to which file.

use std::collections::BTreeMap;
use std::fmt;

use super::start::Started;

/// Violations that are told in full.
const MOST_EXAMPLES: usize = 12;

/// What became of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was served, and right.
    Right,
    /// The bucket was refused,
    BucketRefused,
    /// or some of its vBuckets,
    VbucketsRefused,
    /// or some values.
    ValuesRefused,
    /// The end of the journal after a crash was missing, for which nothing vouches, and the vBucket has a new history.
    EndLost,
    /// What is served is wrong, older or missing.
    Wrong,
}

impl Outcome {
    /// In the order of the columns.
    pub const ALL: [Outcome; 6] = [
        Outcome::Right,
        Outcome::BucketRefused,
        Outcome::VbucketsRefused,
        Outcome::ValuesRefused,
        Outcome::EndLost,
        Outcome::Wrong,
    ];

    /// Its name, in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Right => "right",
            Outcome::BucketRefused => "no_bucket",
            Outcome::VbucketsRefused => "no_vbucket",
            Outcome::ValuesRefused => "no_value",
            Outcome::EndLost => "end_lost",
            Outcome::Wrong => "wrong",
        }
    }

    fn of(started: &Started) -> Outcome {
        match started {
            _ if !started.wrong.is_empty() => Outcome::Wrong,
            Started { bucket_refused: true, .. } => Outcome::BucketRefused,
            Started { ends_lost: true, .. } => Outcome::EndLost,
            Started { vbuckets_refused: 1.., .. } => Outcome::VbucketsRefused,
            Started { values_refused: 1.., .. } => Outcome::ValuesRefused,
            _ => Outcome::Right,
        }
    }
}

/// Starts with one kind of damage to one kind of file, counted by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; Outcome::ALL.len()]);

impl Counts {
    /// Starts that ended like this.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    pub fn starts(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// What became of many starts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By kind of file and kind of damage.
    pub rows: BTreeMap<(&'static str, &'static str), Counts>,
    /// The first violations.
    pub examples: Vec<String>,
}

impl Tally {
    pub fn judge(&mut self, seed: u64, damage: &'static str, class: &'static str, started: &Started) {
        let outcome = Outcome::of(started);
        self.rows.entry((class, damage)).or_default().0[outcome as usize] += 1;
        if outcome == Outcome::Wrong && self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("seed {seed}: {}: {}", started.damage, started.wrong.join("; ")));
        }
    }

    pub fn add(&mut self, other: Tally) {
        for (row, counts) in other.rows {
            let sums = self.rows.entry(row).or_default();
            sums.0.iter_mut().zip(counts.0).for_each(|(sum, count)| *sum += count);
        }
        let room = MOST_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }

    pub fn starts(&self) -> u64 {
        self.rows.values().map(Counts::starts).sum()
    }

    pub fn violations(&self) -> u64 {
        self.rows.values().map(|counts| counts.of(Outcome::Wrong)).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<14} {:<8} {:>7}", "file", "damage", "starts")?;
        for outcome in Outcome::ALL {
            write!(f, " {:>10}", outcome.name())?;
        }
        for ((class, damage), counts) in &self.rows {
            write!(f, "\n{class:<14} {damage:<8} {:>7}", counts.starts())?;
            for outcome in Outcome::ALL {
                write!(f, " {:>10}", counts.of(outcome))?;
            }
        }
        writeln!(f)?;
        for example in &self.examples {
            writeln!(f, "VIOLATION {example}")?;
        }
        Ok(())
    }
}
