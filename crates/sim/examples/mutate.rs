//! Starts with damaged files in great number, on all processors: `cargo xtask mutate`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this runs simulations beside each other in the real world"
)]

#[path = "../tests/mutate/run/mod.rs"]
mod run;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use run::{Kind, Outcome, Tally, Trial};
use serde_json::json;

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(5);

struct Options {
    starts: u64,
    seed: u64,
    only: Option<Kind>,
    json: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { starts: 20_000, seed: 0, only: None, json: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number =
            |text: String| text.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {text}"));
        match argument.as_str() {
            "--starts" => options.starts = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--only" => {
                let name = value()?;
                let names = Kind::ALL.map(Kind::name).join(", ");
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                options.only = Some(kind.ok_or(format!("there is no damage {name}: name one of {names}"))?);
            }
            "--json" => options.json = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(options)
}

/// Repairs that were needed, and what was wrong with some.
type Repairs = (u64, Vec<String>);

/// Tries seeds from the first on until there were enough starts, and repairs the same worlds.
fn try_all(options: &Options) -> (Tally, Repairs, u64) {
    let (next, sum, shown) = (AtomicU64::new(0), Mutex::new(Tally::default()), Mutex::new(Instant::now()));
    let repairs: Mutex<Repairs> = Mutex::default();
    let trial = Trial { only: options.only };
    let work = || {
        while sum.lock().is_ok_and(|sum| sum.starts() < options.starts) {
            let seed = options.seed + next.fetch_add(1, Ordering::Relaxed);
            let (tally, repaired) = (trial.run(seed), [trial.repair(seed), trial.repair_log(seed)]);
            if let Ok(mut repairs) = repairs.lock() {
                for (repaired, wrong) in repaired {
                    repairs.0 += repaired;
                    repairs.1.extend(wrong);
                }
            }
            let (Ok(mut sum), Ok(mut shown)) = (sum.lock(), shown.lock()) else { return };
            sum.add(tally);
            if shown.elapsed() >= PROGRESS {
                *shown = Instant::now();
                eprintln!("{} of {} starts, {} violations", sum.starts(), options.starts, sum.violations());
            }
        }
    };
    let threads = available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let repairs = repairs.into_inner().unwrap_or_default();
    (sum.into_inner().unwrap_or_default(), repairs, next.into_inner())
}

fn print_json(tally: &Tally, repairs: &Repairs, options: &Options, seeds: u64, seconds: f64) {
    for ((file, damage), counts) in &tally.rows {
        let by_outcome = Outcome::ALL.map(|outcome| (outcome.name().to_owned(), counts.of(outcome).into()));
        let mut row = json!({ "file": file, "damage": damage, "starts": counts.starts() });
        row.as_object_mut().expect("it is one").extend(by_outcome);
        println!("{row}");
    }
    let sums = json!({
        "seed": options.seed,
        "seeds": seeds,
        "starts": tally.starts(),
        "violations": tally.violations(),
        "repairs": repairs.0,
        "wrong_repairs": repairs.1.len(),
        "seconds": (seconds * 10.0).round() / 10.0,
    });
    println!("{sums}");
    tally.examples.iter().for_each(|example| eprintln!("VIOLATION {example}"));
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::FAILURE;
        }
    };
    let begun = Instant::now();
    let (tally, repairs, seeds) = try_all(&options);
    let seconds = begun.elapsed().as_secs_f64();
    if options.json {
        print_json(&tally, &repairs, &options, seeds, seconds);
    } else {
        print!("{tally}");
        let last = options.seed + seeds.saturating_sub(1);
        println!(
            "{} starts with seeds {} to {last} in {seconds:.1} s, {} violations",
            tally.starts(),
            options.seed,
            tally.violations()
        );
    }
    if !options.json {
        println!("{} repairs, {} of them wrong", repairs.0, repairs.1.len());
    }
    repairs.1.iter().for_each(|wrong| eprintln!("WRONG REPAIR {wrong}"));
    if tally.violations() == 0 && repairs.1.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
