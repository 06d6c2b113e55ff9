//! What a measurement found, against its thresholds.

use std::fmt;

use harness::child;
use serde_json::{Map, Value, json};

/// A figure with or without a threshold.
struct Figure {
    name: String,
    value: f64,
    goal: Option<Goal>,
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Goal {
    fn holds(self, value: f64) -> bool {
        match self {
            Goal::AtMost(most) => value <= most,
            Goal::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtMost(most) => write!(f, "at most {most}"),
            Goal::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

/// What one server came to in each round of one kind of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What was measured, with its unit; cells of the same make a table.
    pub table: &'static str,
    /// The work.
    pub row: String,
    /// The server.
    pub column: String,
    /// One value for each round; never none.
    pub values: Vec<f64>,
}

/// All figures of a measurement.
pub struct Report {
    bench: &'static str,
    json: bool,
    figures: Vec<Figure>,
    cells: Vec<Cell>,
    details: Map<String, Value>,
}

impl Report {
    /// An empty one; `json` makes it close with a line of JSON.
    pub fn new(bench: &'static str, json: bool) -> Report {
        Report { bench, json, figures: Vec::new(), cells: Vec::new(), details: Map::new() }
    }

    /// Adds a figure, and what it may be at most.
    pub fn add(&mut self, name: &str, value: f64, at_most: Option<f64>) {
        self.figure(name, value, at_most.map(Goal::AtMost));
    }

    /// Adds a figure, and what it should be.
    pub fn figure(&mut self, name: &str, value: f64, goal: Option<Goal>) {
        self.figures.push(Figure { name: name.to_owned(), value, goal });
    }

    /// Adds what a server came to, for the page of `bench report`; no values add nothing.
    pub fn cell(&mut self, table: &'static str, row: &str, column: &str, values: &[f64]) {
        if !values.is_empty() {
            let (row, column) = (row.to_owned(), column.to_owned());
            self.cells.push(Cell { table, row, column, values: values.to_vec() });
        }
    }

    /// What servers came to, in the order in which it was added.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Name, value, what it should be, and whether it is, of each figure.
    pub fn verdicts(&self) -> impl Iterator<Item = (&str, f64, Option<Goal>, bool)> {
        self.figures.iter().map(|figure| (figure.name.as_str(), figure.value, figure.goal, figure.holds()))
    }

    /// A figure that was added.
    #[cfg(test)]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// Adds what shows in the line of JSON only.
    pub fn detail(&mut self, name: &str, value: Value) {
        self.details.insert(name.to_owned(), value);
    }

    /// Prints figures and verdicts; whether all thresholds hold.
    pub fn close(&self) -> bool {
        println!();
        for figure in &self.figures {
            let verdict = match figure.goal {
                None => String::new(),
                Some(goal) if figure.holds() => format!("  holds: {goal}"),
                Some(goal) => format!("  FAILS: {goal}"),
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
            ratios.insert(figure.name.clone(), json!((figure.value * 1000.0).round() / 1000.0));
            if figure.goal.is_some() {
                holds.insert(figure.name.clone(), json!(figure.holds()));
            }
        }
        let mut all = self.details.clone();
        all.insert("bench".to_owned(), json!(self.bench));
        all.insert("commit".to_owned(), json!(commit));
        all.insert("ratios".to_owned(), ratios.into());
        all.insert("holds".to_owned(), holds.into());
        all.into()
    }
}

impl Figure {
    fn holds(&self) -> bool {
        self.goal.is_none_or(|goal| goal.holds(self.value))
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
        report.figure("throughput", 2.0, Some(Goal::AtLeast(1.5)));
        report.detail("rows", json!([1]));
        assert_eq!(
            report.to_json("c").to_string(),
            r#"{"bench":"x","commit":"c","holds":{"cpu":false,"throughput":true},"ratios":{"cpu":1.2,"p50":0.5,"throughput":2.0},"rows":[1]}"#
        );
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
