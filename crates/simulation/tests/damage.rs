//! Files of copies are damaged while their node is down and while it serves: nothing is lost, nothing older is served,
//! and every copy is filled again.

use simulation::{Tally, run};

const FIRST: u64 = 6;
const EVERY: usize = 8;
const SEEDS: u64 = 240;

#[test]
fn damage_costs_no_document() {
    let mut sum = Tally::default();
    let mut violations = Vec::new();
    for seed in (FIRST..SEEDS).step_by(EVERY) {
        let outcome = run(seed);
        sum.add(&outcome.tally);
        violations.extend(outcome.violation.map(|what| (seed, what)));
    }
    sum.rows().iter().for_each(|(name, count)| println!("{name:>24} {count}"));
    for (seed, what) in &violations {
        println!("seed {seed}: {what}");
    }
    assert!(violations.is_empty(), "{} seeds, the first is {:?}", violations.len(), violations[0]);
    assert!(sum.damages > 10 && sum.damages_served > 2 && sum.refills > 5, "too few: {sum:?}");
}
