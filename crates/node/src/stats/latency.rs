//! How long requests of a bucket took between two moments: percentiles, from the differences of its histograms.
//!
//! Kept is what the histograms had counted at the moment before: memory does not grow with requests.
//! A kind without a measured request in between has no percentiles, not zeros.

use base::HistogramCounts;
use protocol::opcode;
use serde::{Deserialize, Serialize};

use super::timings::BucketTimes;

/// Kinds of requests: their names in the label `op`.
pub const KINDS: [&str; 3] = ["get", "set", "durable"];
/// Reads of whole documents.
const GETS: [u8; 4] = [opcode::GET, opcode::GETQ, opcode::GETK, opcode::GETKQ];
/// Stores of whole documents, sync writes among them.
const SETS: [u8; 6] =
    [opcode::SET, opcode::SETQ, opcode::ADD, opcode::ADDQ, opcode::REPLACE, opcode::REPLACEQ];

/// What the histograms of each of [`KINDS`] had counted at a moment. Of `get` and `set` one turn of a connection in
/// [`super::timings::SAMPLED_TURNS`] is measured; of sync writes (`durable`) all that were committed and not at once.
#[derive(Clone, Debug, Default)]
pub struct LatencyCounts([HistogramCounts; KINDS.len()]);

/// Percentiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Percentiles {
    /// The median.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1000 took no longer.
    pub p999_us: f64,
}

impl Percentiles {
    /// Those of what was counted; `None` if that is no time at all.
    pub fn of(counts: &HistogramCounts) -> Option<Percentiles> {
        let us = |per_mille| counts.percentile_ns(per_mille) as f64 / 1_000.0;
        (counts.total() > 0).then(|| Percentiles { p50_us: us(500), p99_us: us(990), p999_us: us(999) })
    }
}

impl LatencyCounts {
    /// What a bucket's histograms have counted until now.
    pub fn of(times: &BucketTimes) -> LatencyCounts {
        let mut counts = LatencyCounts::default();
        let LatencyCounts([gets, sets, durable]) = &mut counts;
        GETS.iter().for_each(|opcode| times.add_command_to(*opcode, gets));
        SETS.iter().for_each(|opcode| times.add_command_to(*opcode, sets));
        times.sync_writes().iter().for_each(|level| durable.add(&level.took));
        counts
    }

    /// The percentiles of each of [`KINDS`] since an earlier moment.
    pub fn since(&self, earlier: &LatencyCounts) -> [Option<Percentiles>; KINDS.len()] {
        std::array::from_fn(|at| Percentiles::of(&self.0[at].since(&earlier.0[at])))
    }
}

#[cfg(test)]
mod tests {
    use base::DurabilityLevel;
    use engine::SyncOutcome;

    use super::*;
    use crate::stats::timings::BucketTimes;

    /// Whether a percentile is that of this time: histograms tell it at most an eighth too long.
    fn is_near(us: f64, expected: f64) -> bool {
        (expected..=expected * 1.125 + 0.002).contains(&us)
    }

    #[test]
    fn percentiles_are_those_of_the_time_in_between() {
        let times = BucketTimes::new(2);
        let record = |worker, opcode, us: u64, count| {
            (0..count).for_each(|_| times.of_worker(worker).record(opcode, us * 1_000));
        };
        // What was before counts no more, however long it took.
        record(0, opcode::GET, 900_000, 500);
        let before = LatencyCounts::of(&times);
        record(0, opcode::GET, 10, 600);
        record(1, opcode::GETKQ, 10, 380);
        record(1, opcode::GET, 200, 18);
        record(1, opcode::GET, 5_000, 2);
        record(0, opcode::DELETE, 70_000, 1);
        let waited = |us: u64, outcome| {
            times.of_worker(0).sync_writes.count(DurabilityLevel::Majority, outcome, us * 1_000);
        };
        waited(3_000, SyncOutcome::Committed);
        waited(9_000_000, SyncOutcome::Aborted);
        let [get, set, durable] = LatencyCounts::of(&times).since(&before);
        let get = get.expect("1,000 reads");
        let told = [get.p50_us, get.p99_us, get.p999_us];
        let expected = [10.0, 200.0, 5_000.0];
        assert!(told.iter().zip(expected).all(|(told, expected)| is_near(*told, expected)), "{told:?}");
        assert_eq!(set, None, "none was measured: that is not 0");
        let durable = durable.expect("one was committed");
        assert!(is_near(durable.p50_us, 3_000.0) && durable.p50_us == durable.p999_us, "{durable:?}");

        let before = LatencyCounts::of(&times);
        [opcode::SET, opcode::ADDQ, opcode::REPLACE].iter().for_each(|opcode| record(0, *opcode, 30, 1));
        let [get, set, durable] = LatencyCounts::of(&times).since(&before);
        assert_eq!((get, durable), (None, None));
        assert!(is_near(set.expect("three").p99_us, 30.0), "{set:?}");
    }
}
