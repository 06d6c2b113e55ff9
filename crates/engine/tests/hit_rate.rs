//! The pager keeps what is read: not worse than plain LRU where that is good, better where scans mislead it.

#[path = "../examples/hit_rate/models.rs"]
mod models;
#[path = "../examples/hit_rate/simulation.rs"]
#[allow(dead_code, reason = "the table prints more")]
mod simulation;
#[path = "../examples/hit_rate/traces.rs"]
#[allow(dead_code, reason = "the table prints more")]
mod traces;

use traces::Trace;

const DOCUMENTS: u32 = 2000;
const READS: usize = 60_000;

/// Hit rates of the pager and of LRU at each share of values in memory.
fn rates(trace: &Trace) -> Vec<(simulation::Outcome, u32)> {
    let outcomes: Vec<_> =
        [10, 30, 50].into_iter().map(|percent| (simulation::run(trace, percent), percent)).collect();
    for (outcome, percent) in &outcomes {
        let off = (outcome.resident - f64::from(*percent) / 100.0).abs();
        assert!(off < 0.03, "{percent} % were asked for, {} are in memory", outcome.resident);
        assert!(outcome.stave < outcome.optimum && outcome.lru < outcome.optimum);
    }
    outcomes
}

#[test]
fn scans_do_not_push_out_what_is_read_often() {
    for (outcome, percent) in rates(&traces::scanned_zipf(DOCUMENTS, READS, 1)) {
        assert!(outcome.stave > outcome.lru + 0.03, "{percent} %: {} and {}", outcome.stave, outcome.lru);
    }
}

#[test]
fn a_steady_popularity_is_learnt() {
    for (outcome, percent) in rates(&traces::zipf(DOCUMENTS, READS, 2)) {
        assert!(outcome.stave > outcome.lru, "{percent} %: {} and {}", outcome.stave, outcome.lru);
        let best = outcome.best_unchanging;
        assert!(outcome.stave > best * 0.93, "{percent} %: {} of {best}", outcome.stave);
    }
}

#[test]
fn what_was_popular_once_is_forgotten() {
    for (outcome, percent) in rates(&traces::moving_zipf(DOCUMENTS, READS, 3)) {
        let enough = outcome.lru - 0.02;
        assert!(outcome.stave > enough, "{percent} %: {} and {}", outcome.stave, outcome.lru);
    }
}
