//! Whole clusters by seed: nothing is violated, everything happens, and a seed decides everything.

use simulation::{Tally, run};

const SEEDS: u64 = 40;
/// More of them, in which a replica has to roll back, and a fault strikes while it does: that is rare.
const ROLLING_BACK: [u64; 3] = [69, 84, 99];

#[test]
fn nothing_is_violated() {
    let mut sum = Tally::default();
    let mut violations = Vec::new();
    for seed in (0..SEEDS).chain(ROLLING_BACK) {
        let outcome = run(seed);
        sum.add(&outcome.tally);
        violations.extend(outcome.violation.map(|what| (seed, what)));
    }
    let seeds = SEEDS as usize + ROLLING_BACK.len();
    println!("{seeds} seeds, {:.2} simulated hours", sum.simulated_us as f64 / 3.6e9);
    println!("{}", sum.matrix.table());
    sum.rows().iter().for_each(|(name, count)| println!("{name:>24} {count}"));
    for (seed, what) in &violations {
        println!("seed {seed}: {what}");
    }
    assert!(violations.is_empty(), "{} of {seeds} seeds, the first is {:?}", violations.len(), violations[0]);
    // What never happened was not tested.
    assert_eq!(sum.matrix.unmet(), Vec::<String>::new(), "{seeds} seeds");
    assert!(sum.gone * 4 > SEEDS, "{} nodes went for good", sum.gone);
}

#[test]
fn a_seed_decides_everything() {
    for seed in [1, 2, 3] {
        let (one, other) = (run(seed), run(seed));
        assert_eq!((one.trace, one.tally), (other.trace, other.tally), "seed {seed}");
    }
}
