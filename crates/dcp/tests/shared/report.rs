//! Runs seeds, adds up what happened in them, and tells it as a table (`cargo xtask simulate --dcp` reads it).

use std::ops::Range;

/// What may happen, and how often it did.
pub type Row = (&'static str, u64);

/// Between two lines of progress, in seeds.
const SAY: u64 = 100;

/// The first seed and how many are tried, `most` of them unless somebody wants others.
pub fn seeds(most: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("DCP_FIRST_SEED").unwrap_or(0);
    first..first + number("DCP_SEEDS").unwrap_or(most)
}

/// Runs all seeds, prints the table, and fails if there was a violation. The sums.
pub fn run<const N: usize>(
    seeds: Range<u64>,
    one: impl Fn(u64) -> Result<[Row; N], String>,
) -> Option<[Row; N]> {
    let most = seeds.end - seeds.start;
    let mut sums: Option<[Row; N]> = None;
    let mut violations = Vec::new();
    for (at, seed) in (1..).zip(seeds) {
        match (one(seed), &mut sums) {
            (Ok(rows), None) => sums = Some(rows),
            (Ok(rows), Some(sums)) => sums.iter_mut().zip(rows).for_each(|(sum, row)| sum.1 += row.1),
            (Err(what), _) => violations.push((seed, what)),
        }
        if at % SAY == 0 && at < most {
            println!("{at} of {most} seeds, violations so far: {}", violations.len());
        }
    }
    println!("{:>40} {most}", "seeds");
    sums.iter().flatten().for_each(|(name, count)| println!("{name:>40} {count}"));
    println!("{:>40} {}", "violations", violations.len());
    violations.iter().for_each(|(seed, what)| println!("seed {seed}: {what}"));
    assert!(violations.is_empty(), "{} of {most} seeds, the first is {:?}", violations.len(), violations[0]);
    sums
}
