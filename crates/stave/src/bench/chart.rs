//! A latency histogram drawn with bars.

use std::fmt::Write;

use hdrhistogram::Histogram;

use crate::units::duration;

const BAR_CELLS: f64 = 50.0;
/// Eighths of a cell.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Two rows a doubling, from 1 us: 1, 1.5, 2, 3, 4, 6 ...
const FIRST_NS: u64 = 1_000;
/// Rows below this share of the largest one are left out at both ends.
const SLIGHT: f64 = 0.000_05;

/// Draws `histogram`; nothing if it is empty.
pub fn draw(histogram: &Histogram<u64>) -> String {
    let rows = rows(histogram);
    let total = histogram.len() as f64;
    let largest = rows.iter().map(|row| row.count).max().unwrap_or(0) as f64;
    let matters = |row: &Row| row.count as f64 > SLIGHT * total;
    let (Some(first), Some(last)) = (rows.iter().position(matters), rows.iter().rposition(matters)) else {
        return String::new();
    };
    let mut out = String::new();
    for row in &rows[first..=last] {
        let percent = row.count as f64 * 100.0 / total;
        let (from, to) = (duration(row.from_ns), duration(row.to_ns));
        let line = format!("{from:>8} - {to:>8} {percent:6.2} % {}", bar(row.count as f64 / largest));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let beyond: u64 = rows[last + 1..].iter().map(|row| row.count).sum();
    if beyond > 0 {
        let _ = writeln!(out, "{:>19} {:6.2} % ({beyond} above)", "", beyond as f64 * 100.0 / total);
    }
    out
}

struct Row {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

fn rows(histogram: &Histogram<u64>) -> Vec<Row> {
    let mut rows = Vec::new();
    let (mut from_ns, mut to_ns, mut seen) = (0, FIRST_NS, 0);
    while seen < histogram.len() && to_ns < u64::MAX / 2 {
        let below = histogram.count_between(0, to_ns - 1);
        let count = below.saturating_sub(seen);
        rows.push(Row { from_ns, to_ns, count });
        seen = seen.max(below);
        from_ns = to_ns;
        to_ns = if to_ns.is_power_of_two_of(FIRST_NS) { to_ns + to_ns / 2 } else { to_ns / 3 * 4 };
    }
    rows
}

/// Whether a number is a unit, doubled some number of times.
trait Doubling {
    fn is_power_of_two_of(self, unit: u64) -> bool;
}

impl Doubling for u64 {
    fn is_power_of_two_of(self, unit: u64) -> bool {
        self.is_multiple_of(unit) && (self / unit).is_power_of_two()
    }
}

fn bar(share: f64) -> String {
    let eighths = (share * BAR_CELLS * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.push_str(PARTS[eighths % 8]);
    bar
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::tally::Tally;
    use super::*;

    #[test]
    fn draws_bars() {
        let mut histogram = Tally::new().gets;
        for (us, count) in [(30, 100), (40, 400), (50, 800), (70, 200), (100, 20), (3_000, 1)] {
            histogram.record_n(us * 1_000, count).unwrap();
        }
        expect![[""]].assert_eq(&draw(&histogram));
    }

    #[test]
    fn draws_nothing_for_nothing() {
        assert_eq!(draw(&Tally::new().gets), "");
    }

    #[test]
    fn every_value_falls_into_a_row() {
        let mut histogram = Tally::new().gets;
        for shift in 0..36 {
            histogram.saturating_record(1 << shift);
        }
        let total: u64 = rows(&histogram).iter().map(|row| row.count).sum();
        assert_eq!(total, 36);
    }
}
