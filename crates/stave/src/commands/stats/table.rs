//! Figures as a table: a line each, or a line for each of several things that have the same figures.

use crate::units;

/// A name and its value.
type Figure = (String, String);

/// Wider than this, a line for each figure is easier to read.
const MOST_COLUMNS: usize = 120;

/// Names to the left; what stands before a colon in several names with the same rest becomes a line, the rest columns.
pub(super) fn render(figures: &[Figure]) -> String {
    let mut out = String::new();
    // Where the figures begin that are to be listed, and how far it has looked.
    let (mut listed, mut at) = (0, 0);
    while at < figures.len() {
        let rows = take_rows(&figures[at..]);
        let end = at + rows.iter().map(|row| row.len()).sum::<usize>().max(1);
        if let Some(grid) = grid(&rows) {
            out.push_str(&list(&figures[listed..at]));
            out.push_str(&grid);
            listed = end;
        }
        at = end;
    }
    out.push_str(&list(&figures[listed..]));
    out
}

fn row_of(figure: &Figure) -> Option<&str> {
    figure.0.split_once(':').map(|(row, _)| row)
}

fn columns(row: &[Figure]) -> Vec<&str> {
    row.iter().filter_map(|(name, _)| Some(name.split_once(':')?.1)).collect()
}

/// The things at the beginning that have the same figures, each with its own; none if the first figure has no colon.
fn take_rows(figures: &[Figure]) -> Vec<&[Figure]> {
    let mut rows: Vec<&[Figure]> = Vec::new();
    let mut rest = figures;
    while let Some(row) = rest.first().and_then(row_of) {
        let end = rest.iter().position(|figure| row_of(figure) != Some(row)).unwrap_or(rest.len());
        let (this, behind) = rest.split_at(end);
        if rows.first().is_some_and(|first| columns(first) != columns(this)) {
            break;
        }
        rows.push(this);
        rest = behind;
    }
    rows
}

/// A line for each thing, if there are several with several figures and the lines are not too wide.
fn grid(rows: &[&[Figure]]) -> Option<String> {
    let columns = columns(rows.first()?);
    if rows.len() < 2 || columns.len() < 2 {
        return None;
    }
    let head = std::iter::once("").chain(columns).map(str::to_owned).collect();
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(|row| cells(row))).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let fits = widths.iter().map(|width| width + 2).sum::<usize>() <= MOST_COLUMNS;
    fits.then(|| lines.iter().map(|line| grid_line(line, &widths)).collect())
}

fn cells(row: &[Figure]) -> Vec<String> {
    let head = row.first().and_then(row_of).unwrap_or_default().to_owned();
    let values = row.iter().map(|(name, value)| human(name, value).unwrap_or_else(|| value.clone()));
    std::iter::once(head).chain(values).collect()
}

fn grid_line(row: &[String], widths: &[usize]) -> String {
    let mut line = format!("{:<width$}", row[0], width = widths[0]);
    for (cell, width) in row.iter().zip(widths).skip(1) {
        line.push_str(&format!("  {cell:>width$}"));
    }
    line.push('\n');
    line
}

/// Names to the left; numbers end in one column, texts begin in it; behind large numbers what they mean.
fn list(figures: &[Figure]) -> String {
    let is_number = |value: &str| value.parse::<f64>().is_ok();
    let name_width = figures.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let numbers = figures.iter().filter(|(_, value)| is_number(value));
    let value_width = numbers.map(|(_, value)| value.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in figures {
        if is_number(value) {
            let human = human(name, value).map(|human| format!("  {human}")).unwrap_or_default();
            out.push_str(&format!("{name:<name_width$}  {value:>value_width$}{human}\n"));
        } else {
            out.push_str(format!("{name:<name_width$}  {value}").trim_end());
            out.push('\n');
        }
    }
    out
}

/// A size or a time in its best unit; nothing if the number is as good.
fn human(name: &str, value: &str) -> Option<String> {
    let number: u64 = value.parse().ok()?;
    let name = name.rsplit(':').next().unwrap_or(name);
    if is_size(name) {
        (number >= 1024).then(|| units::bytes(number))
    } else if name.ends_with("_us") {
        (number >= 1000).then(|| units::duration(number.saturating_mul(1000)))
    } else if name.ends_with("_ns") {
        (number >= 1000).then(|| units::duration(number))
    } else {
        None
    }
}

/// What names of sizes end with; stats carry no units.
const SIZES: [&str; 31] = [
    "_held",
    "_slack",
    "bytes",
    "bytes_after",
    "bytes_before",
    "bytes_read",
    "bytes_written",
    "checkpoint_max_size",
    "checkpoint_memory_estimate",
    "data_size",
    "ep_max_size",
    "file_size",
    "filter_memory",
    "heap_used",
    "item_size",
    "kv_size",
    "mem_size",
    "mem_usage",
    "memory",
    "memory_overhead",
    "memory_queue",
    "memory_quota",
    "memory_resident",
    "min_waste",
    "overhead",
    "prepare_size",
    "process_chunks",
    "process_slabs",
    "process_system_used",
    "seqlist_stale_bytes",
    "_wat",
];

fn is_size(name: &str) -> bool {
    name.contains("mem_used") || SIZES.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn figures(pairs: &[(&str, &str)]) -> Vec<Figure> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_line_for_each_figure() {
        let pairs = [("pid", "17"), ("uptime", "1200345"), ("version", "0.1.0"), ("say \"hi\"", "")];
        expect![[r#"
            pid            17
            uptime    1200345
            version   0.1.0
            say "hi"
        "#]]
        .assert_eq(&render(&figures(&pairs)));
        assert_eq!(render(&[]), "");
    }

    #[test]
    fn sizes_and_times_are_told_in_their_units() {
        let pairs = [
            ("mem_used", "1342177280"),
            ("mem_used_documents", "512"),
            ("ep_mem_high_wat", "228170137"),
            ("ep_mem_high_wat_percent", "85000"),
            ("pager:longest_us", "12345"),
            ("curr_items", "1000000"),
        ];
        expect![[r#"
            mem_used                 1342177280  1.25 GiB
            mem_used_documents              512
            ep_mem_high_wat           228170137  218 MiB
            ep_mem_high_wat_percent       85000
            pager:longest_us              12345  12.3 ms
            curr_items                  1000000
        "#]]
        .assert_eq(&render(&figures(&pairs)));
    }

    #[test]
    fn things_with_the_same_figures_stand_below_each_other() {
        let pairs = [
            ("time_slice_us", "25000"),
            ("pager:steps", "3"),
            ("pager:total_us", "4500"),
            ("compressor:steps", "12"),
            ("compressor:total_us", "7"),
            ("vb_0:state", "active"),
            ("vb_0:size", "1"),
            ("end", "1"),
        ];
        expect![[r#"
            time_slice_us  25000  25.0 ms
                        steps  total_us
            pager           3   4.50 ms
            compressor     12         7
            vb_0:state  active
            vb_0:size   1
            end         1
        "#]]
        .assert_eq(&render(&figures(&pairs)));
    }

    #[test]
    fn a_table_that_is_too_wide_becomes_a_list() {
        let names = (0..40).flat_map(|row| (0..20).map(move |column| format!("vb_{row}:column_{column}")));
        let figures: Vec<Figure> = names.map(|name| (name, "1".to_owned())).collect();
        assert_eq!(render(&figures).lines().count(), figures.len());
    }
}
