//! Runs seeds, adds up what happened in them, and tells it as a table (`cargo xtask simulate --dcp` reads it).

use std::ops::Range;
use std::panic::AssertUnwindSafe;

/// What may happen, and how often it did.
pub type Row = (&'static str, u64);

/// Between two lines of progress, in seeds.
const SAY: u64 = 100;

/// What a seed came to; a panic is a violation.
pub fn caught<T>(one: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(one)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
    })
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
