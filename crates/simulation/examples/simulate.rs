//! `cargo xtask simulate`: runs the clusters of many seeds, and says what happened.

use std::io::Write as _;
use std::process::ExitCode;

use simulation::jobs::{FAULTS, Matrix};
use simulation::{Tally, run};

/// With so many seeds every fault meets every job.
const SEEDS_FOR_ALL: u64 = 400;

/// What was asked for.
struct Wanted {
    first: u64,
    seeds: u64,
    json: bool,
}

fn wanted() -> Result<Wanted, String> {
    let mut wanted = Wanted { first: 0, seeds: 200, json: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = |name: &str| {
            let text = args.next().ok_or_else(|| format!("{name} needs a number"))?;
            text.parse::<u64>().map_err(|error| format!("{name} {text}: {error}"))
        };
        match arg.as_str() {
            "--seeds" => wanted.seeds = number("--seeds")?,
            "--first" => wanted.first = number("--first")?,
            "--json" => wanted.json = true,
            other => return Err(format!("what is {other}? There are --seeds N, --first S and --json")),
        }
    }
    Ok(wanted)
}

fn print(tally: &Tally, seeds: u64, violations: &[(u64, String)], json: bool) {
    let hours = tally.simulated_us as f64 / 3.6e9;
    let faults = FAULTS.iter().map(|fault| (format!("{fault:?}"), tally.faults[*fault as usize]));
    if json {
        let faults: serde_json::Map<String, serde_json::Value> =
            faults.map(|(name, count)| (name, count.into())).collect();
        let rows: serde_json::Map<String, serde_json::Value> =
            tally.rows().into_iter().map(|(name, count)| (name.replace(' ', "_"), count.into())).collect();
        let violations: Vec<_> =
            violations.iter().map(|(seed, what)| serde_json::json!({ "seed": seed, "what": what })).collect();
        let all = serde_json::json!({
            "seeds": seeds, "simulated_hours": hours, "faults": faults, "counts": rows,
            "matrix": tally.matrix.0, "empty": empty(&tally.matrix), "violations": violations,
        });
        println!("{all}");
        return;
    }
    println!("{:>24} {seeds}\n{:>24} {hours:.2}", "seeds", "simulated hours");
    faults.for_each(|(name, count)| println!("{name:>24} {count}"));
    tally.rows().into_iter().for_each(|(name, count)| println!("{name:>24} {count}"));
    println!("{:>24} {}", "violations", violations.len());
    println!("{}", tally.matrix.table());
    println!("{:>24} {}", "faults without a job", empty(&tally.matrix).join(", "));
}

/// Which fault never met which job.
fn empty(matrix: &Matrix) -> Vec<String> {
    matrix.empty_cells().map(|(fault, job)| format!("{fault:?} {job:?}")).collect()
}

fn main() -> ExitCode {
    let wanted = match wanted() {
        Ok(wanted) => wanted,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    let mut tally = Tally::default();
    let mut violations = Vec::new();
    for at in 0..wanted.seeds {
        let outcome = run(wanted.first + at);
        tally.add(&outcome.tally);
        if let Some(what) = outcome.violation {
            eprintln!("\rseed {}: {what}", outcome.seed);
            violations.push((outcome.seed, what));
        }
        eprint!("\r{} of {} seeds, {} violations ", at + 1, wanted.seeds, violations.len());
        // Nobody needs to see it.
        let _ = std::io::stderr().flush();
    }
    eprintln!();
    print(&tally, wanted.seeds, &violations, wanted.json);
    let is_full = wanted.seeds < SEEDS_FOR_ALL || tally.matrix.empty_cells().next().is_none();
    if !is_full {
        eprintln!("{} seeds must try every fault during every job", wanted.seeds);
    }
    if violations.is_empty() && is_full { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
