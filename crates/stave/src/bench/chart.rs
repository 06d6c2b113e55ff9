//! A latency histogram drawn with bars.

use std::fmt::Write;

use hdrhistogram::Histogram;

use crate::units::duration;

const BAR_CELLS: f64 = 50.0;
/// Eighths of a cell.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Where rows end within a decade, in tenths.
const STEPS: [u64; 6] = [10, 15, 20, 30, 50, 70];
/// A tenth of where the first row ends: 1 us.
const FIRST_DECADE_NS: u64 = 100;
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

/// All rows up to the one of the slowest operation.
fn rows(histogram: &Histogram<u64>) -> Vec<Row> {
    let decades = std::iter::successors(Some(FIRST_DECADE_NS), |decade| decade.checked_mul(10));
    let mut ends = decades.flat_map(|decade| STEPS.map(|step| decade.saturating_mul(step)));
    let mut rows = Vec::new();
    let (mut from_ns, mut seen) = (0, 0);
    while seen < histogram.len()
        && let Some(to_ns) = ends.next()
    {
        let below = histogram.count_between(0, to_ns - 1).max(seen);
        rows.push(Row { from_ns, to_ns, count: below - seen });
        (from_ns, seen) = (to_ns, below);
    }
    rows
}

/// A bar that is this share of the longest one.
pub fn bar(share: f64) -> String {
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
        for (us, count) in [(25, 100), (40, 400), (60, 800), (80, 200), (120, 20), (900, 1)] {
            histogram.record_n(us * 1_000, count).unwrap();
        }
        expect![[r#"
            chart
             20.0 us -  30.0 us   6.57 % ██████▎
             30.0 us -  50.0 us  26.30 % █████████████████████████
             50.0 us -  70.0 us  52.60 % ██████████████████████████████████████████████████
             70.0 us -   100 us  13.15 % ████████████▌
              100 us -   150 us   1.31 % █▎
              150 us -   200 us   0.00 %
              200 us -   300 us   0.00 %
              300 us -   500 us   0.00 %
              500 us -   700 us   0.00 %
              700 us -  1.00 ms   0.07 % ▏
        "#]]
        // Without an unindented line `expect!` would take the columns' padding for indentation.
        .assert_eq(&format!("chart\n{}", draw(&histogram)));
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
