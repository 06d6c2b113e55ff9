//! What a measurement found, against its thresholds.

use serde_json::{Map, Value, json};

use crate::child;

/// A figure with or without a threshold.
struct Figure {
    name: &'static str,
    value: f64,
    at_most: Option<f64>,
}

/// All figures of a measurement.
pub struct Report {
    bench: &'static str,
    json: bool,
    figures: Vec<Figure>,
}

impl Report {
    /// An empty one; `json` makes it close with a line of JSON.
    pub fn new(bench: &'static str, json: bool) -> Report {
        Report { bench, json, figures: Vec::new() }
    }

    /// Adds a figure, and what it may be at most.
    pub fn add(&mut self, name: &'static str, value: f64, at_most: Option<f64>) {
        self.figures.push(Figure { name, value, at_most });
    }

    /// Prints figures and verdicts; whether all thresholds hold.
    pub fn close(&self) -> bool {
        println!();
        for figure in &self.figures {
            let verdict = match figure.at_most {
                None => String::new(),
                Some(most) if figure.value <= most => format!("  holds: at most {most}"),
                Some(most) => format!("  FAILS: at most {most}"),
            };
            println!("{:<38} {:>10.3}{verdict}", figure.name, figure.value);
        }
        if self.json {
            println!("{}", self.to_json(&child::commit()));
        }
        self.figures.iter().all(Figure::holds)
    }

    fn to_json(&self, commit: &str) -> Value {
        let mut ratios = Map::new();
        let mut holds = Map::new();
        for figure in &self.figures {
            ratios.insert(figure.name.to_owned(), json!((figure.value * 1000.0).round() / 1000.0));
            if figure.at_most.is_some() {
                holds.insert(figure.name.to_owned(), json!(figure.holds()));
            }
        }
        json!({ "bench": self.bench, "commit": commit, "ratios": ratios, "holds": holds })
    }
}

impl Figure {
    fn holds(&self) -> bool {
        self.at_most.is_none_or(|most| self.value <= most)
    }
}

/// The middle of the values.
pub fn median(values: &mut [f64]) -> f64 {
    assert!(!values.is_empty(), "a median needs a value");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_json_names_ratios_and_verdicts() {
        let mut report = Report::new("x", true);
        report.add("cpu", 1.2, Some(1.15));
        report.add("p50", 0.5, None);
        assert_eq!(
            report.to_json("c").to_string(),
            r#"{"bench":"x","commit":"c","holds":{"cpu":false},"ratios":{"cpu":1.2,"p50":0.5}}"#
        );
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
