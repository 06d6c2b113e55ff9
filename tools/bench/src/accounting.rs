//! `bench accounting`: the example of `base`, against its thresholds.

use anyhow::{Context, Result};
use clap::Args;
use harness::child::{cargo, output};
use serde_json::Value;

use super::Output;
use super::load::{last_json, number};
use super::report::Report;

/// How to print.
#[derive(Args)]
pub struct AccountingOptions {
    #[command(flatten)]
    output: Output,
}

/// Figures of the example that have a threshold, and the most they may be.
const MOST: [(&str, f64); 4] = [
    ("charge_ns_one_core", 0.5),
    ("charge_ns_all_cores", 0.5),
    ("estimate_ns", 1.0),
    ("worst_deviation_percent_of_quota", 0.5),
];

/// Measures.
pub fn run(options: &AccountingOptions) -> Result<Report> {
    let example = ["run", "--quiet", "--release", "--locked", "--package", "base", "--example", "accounting"];
    let text = output(&mut cargo(&[&example[..], &["--", "--json"]].concat()))?;
    print!("{text}");
    report(&last_json(&text).context("the example printed no line of JSON")?, options.output.json)
}

fn report(figures: &Value, json: bool) -> Result<Report> {
    let mut report = Report::new("accounting", json);
    for (name, most) in MOST {
        report.add(name, number(figures, &format!("/{name}"))?, Some(most));
    }
    report.detail("figures", figures.clone());
    Ok(report)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_above_its_threshold_fails() {
        let figures = |charge: f64| {
            json!({
                "charge_ns_one_core": charge,
                "charge_ns_all_cores": 0.3,
                "estimate_ns": 0.2,
                "worst_deviation_percent_of_quota": 0.3,
            })
        };
        assert!(report(&figures(0.4), false).unwrap().close());
        assert!(!report(&figures(0.6), false).unwrap().close());
        assert!(report(&json!({}), false).is_err());
    }
}
