//! Tries crash states, failing calls and flipped bits in great number, on all processors: `cargo xtask crash`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this runs simulations beside each other in the real world"
)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use sim::kv::subjects;
use sim::kv::{Depth, Subject, Tally, bit_flips, crash_states, fault_points};

/// For so many crash states one workload has every call fail.
const STATES_PER_FAULT_RUN: u64 = 25_000;
/// For so many crash states one workload has every bit of its files turned over.
const STATES_PER_FLIP_RUN: u64 = 250_000;
/// Changes and reads of a workload in which every call fails once.
const FAULT_OPS: u64 = 25;
/// Changes and reads of a workload whose files are damaged.
const FLIP_OPS: u64 = 6;
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(5);

struct Options {
    states: u64,
    seed: u64,
    json: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { states: 1_000_000, seed: 1, json: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or(format!("{argument} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {value}"))
        };
        match argument.as_str() {
            "--states" => options.states = number()?,
            "--seed" => options.seed = number()?,
            "--json" => options.json = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(options)
}

/// Tries one subject until enough states were tried.
struct Trial<'a> {
    subject: &'a Subject<'a>,
    options: &'a Options,
    states: u64,
    begun: Instant,
    shown: Mutex<Instant>,
    next: AtomicU64,
    sum: Mutex<Tally>,
}

impl Trial<'_> {
    fn run(&self) {
        let threads = available_parallelism().map_or(1, |threads| threads.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work());
            }
        });
    }

    fn work(&self) {
        let fault_runs = self.states.div_ceil(STATES_PER_FAULT_RUN);
        let flip_runs = self.states.div_ceil(STATES_PER_FLIP_RUN);
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if self.sum.lock().is_ok_and(|sum| sum.states >= self.states) && number >= fault_runs {
                return;
            }
            let seed = self.options.seed + number;
            let mut tally = crash_states(self.subject, &Depth::default(), seed);
            if number < fault_runs {
                tally.add(fault_points(self.subject, FAULT_OPS, seed));
            }
            if number < flip_runs {
                tally.add(bit_flips(self.subject, FLIP_OPS, 1, seed));
            }
            self.count(tally);
        }
    }

    fn count(&self, tally: Tally) {
        let Ok(mut sum) = self.sum.lock() else { return };
        sum.add(tally);
        let Ok(mut shown) = self.shown.lock() else { return };
        if shown.elapsed() >= PROGRESS {
            *shown = Instant::now();
            let rate = sum.states as f64 / self.begun.elapsed().as_secs_f64();
            eprintln!("{}: {} of {} states, {rate:.0} a second", self.subject.name, sum.states, self.states);
        }
    }
}

fn print(subject: &Subject<'_>, tally: &Tally, seconds: f64, options: &Options) {
    if options.json {
        println!(
            "{{\"store\":\"{}\",\"seed\":{},\"runs\":{},\"states\":{},\"second_crashes\":{},\"fault_points\":{},\"bit_flips\":{},\"violations\":{},\"seconds\":{seconds:.1}}}",
            subject.name,
            options.seed,
            tally.runs,
            tally.states,
            tally.second_crashes,
            tally.fault_points,
            tally.bit_flips,
            tally.violations
        );
    } else {
        println!("store:                {}", subject.name);
        println!("workloads:            {} from seed {}", tally.runs, options.seed);
        println!("crash states:         {}", tally.states);
        println!("second crashes:       {}", tally.second_crashes);
        println!("I/O failure points:   {}", tally.fault_points);
        println!("bit flips:            {}", tally.bit_flips);
        println!("violations:           {}", tally.violations);
        println!("seconds:              {seconds:.1}");
    }
    for example in &tally.examples {
        eprintln!("VIOLATION {example}");
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::FAILURE;
        }
    };
    let subjects = subjects::all();
    let mut holds = true;
    for subject in &subjects {
        let begun = Instant::now();
        let trial = Trial {
            subject,
            options: &options,
            states: options.states.div_ceil(subjects.len() as u64),
            begun,
            shown: Mutex::new(begun),
            next: AtomicU64::new(0),
            sum: Mutex::default(),
        };
        trial.run();
        let Ok(sum) = trial.sum.into_inner() else { return ExitCode::FAILURE };
        print(subject, &sum, begun.elapsed().as_secs_f64(), &options);
        holds &= sum.holds();
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
