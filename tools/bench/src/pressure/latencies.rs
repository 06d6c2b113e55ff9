//! A histogram of latencies, exact to about 3 %.

/// Steps between a power of two and the next.
const STEPS: u64 = 32;
const CELLS: usize = 64 * STEPS as usize;

/// How many requests took how long.
#[derive(Clone)]
pub struct Latencies {
    cells: Vec<u32>,
    count: u64,
    longest_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { cells: vec![0; CELLS], count: 0, longest_ns: 0 }
    }
}

fn cell(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let power = u64::from(ns.ilog2());
    let low = STEPS.ilog2();
    ((power - u64::from(low) + 1) * STEPS + (ns >> (power - u64::from(low))) - STEPS) as usize
}

/// The largest latency of a cell.
fn end_of(cell: usize) -> u64 {
    let (power, step) = (cell as u64 / STEPS, cell as u64 % STEPS);
    if power == 0 { step } else { ((STEPS + step) << (power - 1)) + ((1 << (power - 1)) - 1) }
}

impl Latencies {
    /// A request took so long.
    pub fn add(&mut self, ns: u64) {
        self.cells[cell(ns)] += 1;
        self.count += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// A request took so long, and none was sent meanwhile though one should have been each `interval_ns`: those count
    /// as if they had waited too.
    pub fn add_with_missed(&mut self, ns: u64, interval_ns: u64) {
        self.add(ns);
        let mut waited = ns.saturating_sub(interval_ns);
        while waited >= interval_ns {
            self.add(waited);
            waited -= interval_ns;
        }
    }

    /// Takes over what another one counted.
    pub fn merge(&mut self, other: &Latencies) {
        self.cells.iter_mut().zip(&other.cells).for_each(|(mine, more)| *mine += more);
        self.count += other.count;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn longest_us(&self) -> f64 {
        self.longest_ns as f64 / 1e3
    }

    /// So many of a hundred took no longer; 0 if there were none.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        let wanted = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.cells.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        });
        found.map_or(0.0, |cell| end_of(cell).min(self.longest_ns) as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_holds_what_lies_within_three_percent() {
        for ns in [0, 1, 31, 32, 33, 63, 64, 65, 1000, 123_456, 9_999_999_999, u64::MAX] {
            let end = end_of(cell(ns));
            assert!(end >= ns && (end - ns) as f64 <= ns as f64 / 32.0, "{ns} {end}");
            assert!(ns == 0 || cell(ns - 1) <= cell(ns));
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_us(99.0), 0.0);
        (1..=1000).for_each(|us| latencies.add(us * 1000));
        for percent in [50.0, 99.0, 100.0] {
            let exact = percent * 10.0;
            assert!((latencies.percentile_us(percent) / exact - 1.0).abs() < 0.04, "{percent}");
        }
        assert_eq!((latencies.count(), latencies.longest_us()), (1000, 1000.0));
    }

    #[test]
    fn requests_that_a_stall_kept_from_being_sent_waited_too() {
        let mut latencies = Latencies::default();
        latencies.add_with_missed(1_000, 10_000);
        assert_eq!(latencies.count(), 1);
        latencies.add_with_missed(100_000, 10_000);
        assert_eq!(latencies.count(), 1 + 10);
    }
}
