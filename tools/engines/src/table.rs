//! Medians of the rounds, for people and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::child::{Extent, Measured, Part, Phase};
use crate::run::Results;

/// Medians of one engine with one batch size.
struct Row<'a> {
    engine: &'a str,
    batch: u64,
    insert: Medians,
    replace: Medians,
    peak_bytes: f64,
}

/// Medians of a phase.
struct Medians {
    per_s: f64,
    settled_per_s: f64,
    settle_s: f64,
    calls_bytes: f64,
    pages_bytes: f64,
}

impl Medians {
    fn of(phases: &[&Phase]) -> Medians {
        let of = |figure: fn(&Phase) -> f64| median(phases.iter().map(|phase| figure(phase)).collect());
        Medians {
            per_s: of(Phase::per_s),
            settled_per_s: of(Phase::settled_per_s),
            settle_s: of(|phase| phase.settle_s),
            calls_bytes: of(|phase| phase.calls_bytes as f64 / phase.items as f64),
            pages_bytes: of(|phase| phase.pages_bytes as f64 / phase.items as f64),
        }
    }

    fn json(&self) -> Value {
        json!({
            "items_per_s": self.per_s.round(),
            "settled_items_per_s": self.settled_per_s.round(),
            "settle_s": (self.settle_s * 1e3).round() / 1e3,
            "written_bytes_per_item": self.calls_bytes.round(),
            "dirty_page_bytes_per_item": self.pages_bytes.round(),
        })
    }
}

fn rows<'a>(engines: &'a [String], results: &Results) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for engine in engines {
        let rounds = results.get(engine).map_or(&[][..], Vec::as_slice);
        let batches = rounds.first().map_or(0, Vec::len);
        for at in 0..batches {
            let measured: Vec<&Measured> = rounds.iter().map(|round| &round[at]).collect();
            let phases = |of: fn(&Measured) -> &Phase| {
                Medians::of(&measured.iter().map(|measured| of(measured)).collect::<Vec<_>>())
            };
            rows.push(Row {
                engine,
                batch: measured[0].batch,
                insert: phases(|measured| &measured.insert),
                replace: phases(|measured| &measured.replace),
                peak_bytes: median(measured.iter().map(|measured| measured.peak_bytes as f64).collect()),
            });
        }
    }
    rows.sort_by_key(|row| row.batch);
    rows
}

/// A table of one part.
pub fn draw(part: Part, extent: &Extent, engines: &[String], results: &Results) -> String {
    let rows = rows(engines, results);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = match part {
        Part::Random => draw_random(&mut out, extent, &rows),
        Part::Shape => {
            draw_beside_raw(&mut out, "One batch, one commit: keys `key<i>`, values of 1 byte.", &rows)
        }
        Part::Single => {
            let title = format!("Commits of one item each, values of {} random bytes.", extent.value_bytes);
            draw_beside_raw(&mut out, &title, &rows)
        }
    };
    out
}

fn draw_random(out: &mut String, extent: &Extent, rows: &[Row<'_>]) -> std::fmt::Result {
    writeln!(
        out,
        "{} batches of {} random keys, values of {} random bytes, each batch durable when acknowledged; then the same keys again.\n\
         settled: with what is put off until after the last acknowledgement (files behind a journal, compactions).\n\
         B/item: written through system calls, settled; in brackets pages made dirty.",
        extent.batches, extent.batch, extent.value_bytes
    )?;
    let columns = ["insert/s", "settled/s", "B/item", "replace/s", "settled/s", "B/item", "peak MiB"];
    let [a, b, c, d, e, f, g] = columns;
    writeln!(out, "{:<12} {a:>10} {b:>10} {c:>15} {d:>10} {e:>10} {f:>15} {g:>9}", "engine")?;
    for row in rows {
        write!(out, "{:<12}", row.engine)?;
        for phase in [&row.insert, &row.replace] {
            let bytes = format!("{:.0} ({:.0})", phase.calls_bytes, phase.pages_bytes);
            write!(out, " {:>10.0} {:>10.0} {bytes:>15}", phase.per_s, phase.settled_per_s)?;
        }
        writeln!(out, " {:>9.0}", row.peak_bytes / f64::from(1 << 20))?;
    }
    draw_ratios(out, rows)
}

fn draw_beside_raw(out: &mut String, title: &str, rows: &[Row<'_>]) -> std::fmt::Result {
    writeln!(out, "{title}")?;
    let columns = ["batch", "insert/s", "to raw", "replace/s", "to raw", "peak B/item"];
    let [a, b, c, d, e, f] = columns;
    writeln!(out, "{:<12} {a:>9} {b:>10} {c:>7} {d:>10} {e:>7} {f:>11}", "engine")?;
    for row in rows {
        let raw = rows.iter().find(|other| other.engine == "raw" && other.batch == row.batch);
        let to_raw =
            |own: f64, raw: Option<f64>| raw.map_or(String::new(), |raw| format!("{:.3}", own / raw));
        let insert = to_raw(row.insert.per_s, raw.map(|raw| raw.insert.per_s));
        let replace = to_raw(row.replace.per_s, raw.map(|raw| raw.replace.per_s));
        writeln!(
            out,
            "{:<12} {:>9} {:>10.0} {insert:>7} {:>10.0} {replace:>7} {:>11.0}",
            row.engine,
            row.batch,
            row.insert.per_s,
            row.replace.per_s,
            row.peak_bytes / row.batch as f64
        )?;
    }
    Ok(())
}

/// Ours to the best of the others.
fn draw_ratios(out: &mut String, rows: &[Row<'_>]) -> std::fmt::Result {
    for ours in rows.iter().filter(|row| is_ours(row.engine)) {
        let others = || rows.iter().filter(|row| !is_ours(row.engine) && row.engine != "raw");
        let best = |of: fn(&Row<'_>) -> f64| others().map(of).fold(f64::NAN, f64::max);
        let insert = ours.insert.per_s / best(|row| row.insert.per_s);
        let replace = ours.replace.per_s / best(|row| row.replace.per_s);
        if insert.is_finite() {
            writeln!(
                out,
                "{} to the best of the others: insert {insert:.2}, replace {replace:.2}",
                ours.engine
            )?;
        }
    }
    Ok(())
}

fn is_ours(engine: &str) -> bool {
    engine.starts_with("stave")
}

/// The same as JSON.
pub fn json(engines: &[String], results: &Results) -> Value {
    let row = |row: &Row<'_>| {
        json!({
            "engine": row.engine,
            "batch": row.batch,
            "insert": row.insert.json(),
            "replace": row.replace.json(),
            "peak_bytes": row.peak_bytes,
        })
    };
    rows(engines, results).iter().map(row).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "a median needs a value");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(seconds: f64) -> Phase {
        Phase { items: 1_000, seconds, settle_s: 1.0, calls_bytes: 575_000, pages_bytes: 600_000 }
    }

    fn results() -> (Vec<String>, Results) {
        let engines = ["stave-files", "fjall", "raw"].map(str::to_owned).to_vec();
        let measured = |seconds| Measured {
            batch: 10,
            insert: phase(seconds),
            replace: phase(2.0 * seconds),
            peak_bytes: 3 << 20,
        };
        let rounds = |seconds: [f64; 3]| seconds.map(|s| vec![measured(s)]).to_vec();
        let results = [([1.0, 9.0, 2.0], 0), ([4.0, 4.0, 4.0], 1), ([0.5, 0.5, 0.5], 2)]
            .map(|(seconds, at)| (engines[at].clone(), rounds(seconds)));
        (engines, results.into())
    }

    #[test]
    fn the_table_has_medians_and_ratios() {
        let (engines, results) = results();
        let extent =
            Extent { batches: 100, batch: 10, value_bytes: 512, shapes: vec![], singles: 1, seed: 1 };
        let table = draw(Part::Random, &extent, &engines, &results);
        let line = table.lines().find(|line| line.starts_with("stave-files ")).unwrap();
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        assert_eq!(words, ["stave-files", "500", "333", "575", "(600)", "250", "200", "575", "(600)", "3"]);
        assert!(table.ends_with("best of the others: insert 2.00, replace 2.00\n"), "{table}");
        let shape = draw(Part::Shape, &extent, &engines, &results);
        assert!(shape.contains("0.250"), "{shape}");
    }

    #[test]
    fn the_json_has_a_row_for_each_engine() {
        let (engines, results) = results();
        let json = json(&engines, &results);
        assert_eq!(json[1]["engine"], "fjall");
        assert_eq!(json[1]["insert"]["items_per_s"], 250.0);
    }
}
