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
use sim::kv::{Depth, Flips, Subject, Tally, bit_flips, crash_states, fault_points, interleave};

/// For so many crash states one run has a call fail.
const STATES_PER_FAULT_POINT: u64 = 20;
/// For so many crash states one bit is turned over.
const STATES_PER_BIT_FLIP: u64 = 2;
/// For so many crash states threads use a store in turns once.
const STATES_PER_INTERLEAVING: u64 = 2000;
/// Changes and reads of a workload in which every call fails once.
const FAULT_OPS: u64 = 25;
/// Bits that are turned over in large files for each small bucket that has all of its bits turned over.
const RANDOM_FLIPS: u64 = 3_000;
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(5);

struct Options {
    states: u64,
    seed: u64,
    json: bool,
    /// Only this store.
    store: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { states: 1_000_000, seed: 1, json: false, store: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or(format!("{argument} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {value}"))
        };
        match argument.as_str() {
            "--states" => options.states = number()?,
            "--seed" => options.seed = number()?,
            "--store" => options.store = arguments.next(),
            "--json" => options.json = true,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(options)
}

/// One kind of trial of one subject.
struct Phase<'a> {
    name: &'static str,
    /// What is tried with the seeds from the first on, beside each other.
    trial: &'a (dyn Fn(u64) -> Tally + Sync),
    /// What is counted, and how much of it is enough.
    count: fn(&Tally) -> u64,
    enough: u64,
}

/// A phase under way.
struct Work<'a> {
    phase: &'a Phase<'a>,
    first_seed: u64,
    next: AtomicU64,
    begun: Instant,
    shown: Mutex<Instant>,
    sum: Mutex<Tally>,
}

impl Phase<'_> {
    /// Runs it on all processors.
    fn run(&self, subject: &Subject<'_>, first_seed: u64) -> Tally {
        let begun = Instant::now();
        let work = Work {
            phase: self,
            first_seed,
            next: AtomicU64::new(0),
            begun,
            shown: Mutex::new(begun),
            sum: Mutex::default(),
        };
        let threads = available_parallelism().map_or(1, |threads| threads.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| work.go_on(subject));
            }
        });
        work.sum.into_inner().unwrap_or_default()
    }
}

impl Work<'_> {
    fn go_on(&self, subject: &Subject<'_>) {
        while self.sum.lock().is_ok_and(|sum| (self.phase.count)(&sum) < self.phase.enough) {
            let seed = self.first_seed + self.next.fetch_add(1, Ordering::Relaxed);
            let tally = (self.phase.trial)(seed);
            let Ok(mut sum) = self.sum.lock() else { return };
            sum.add(tally);
            let Ok(mut shown) = self.shown.lock() else { return };
            if shown.elapsed() >= PROGRESS {
                *shown = Instant::now();
                let count = (self.phase.count)(&sum);
                let rate = count as f64 / self.begun.elapsed().as_secs_f64();
                eprintln!(
                    "{}: {count} of {} {}, {rate:.0} a second",
                    subject.name, self.phase.enough, self.phase.name
                );
            }
        }
    }
}

fn try_all(subject: &Subject<'_>, states: u64, seed: u64) -> Tally {
    let phases = [
        Phase {
            name: "crash states",
            trial: &|seed| crash_states(subject, &Depth::default(), seed),
            count: |tally| tally.states,
            enough: states,
        },
        Phase {
            name: "failing calls",
            trial: &|seed| fault_points(subject, FAULT_OPS, seed),
            count: |tally| tally.fault_points,
            enough: states / STATES_PER_FAULT_POINT,
        },
        Phase {
            name: "bit flips",
            trial: &|seed| {
                let mut tally = bit_flips(subject, Flips::Every(1), seed);
                tally.add(bit_flips(subject, Flips::Random(RANDOM_FLIPS), seed));
                tally
            },
            count: |tally| tally.bit_flips,
            enough: states / STATES_PER_BIT_FLIP,
        },
        Phase {
            name: "interleavings",
            trial: &|seed| interleave(subject, seed),
            count: |tally| tally.interleavings,
            enough: states / STATES_PER_INTERLEAVING,
        },
    ];
    let mut sum = Tally::default();
    phases.iter().for_each(|phase| sum.add(phase.run(subject, seed)));
    sum
}

fn print(subject: &Subject<'_>, tally: &Tally, seconds: f64, options: &Options) {
    if options.json {
        println!(
            "{{\"store\":\"{}\",\"seed\":{},\"runs\":{},\"states\":{},\"second_crashes\":{},\"fault_points\":{},\"bit_flips\":{},\"interleavings\":{},\"violations\":{},\"seconds\":{seconds:.1}}}",
            subject.name,
            options.seed,
            tally.runs,
            tally.states,
            tally.second_crashes,
            tally.fault_points,
            tally.bit_flips,
            tally.interleavings,
            tally.violations
        );
    } else {
        println!("store:                {}", subject.name);
        println!("workloads:            {} from seed {}", tally.runs, options.seed);
        println!("crash states:         {}", tally.states);
        println!("second crashes:       {}", tally.second_crashes);
        println!("I/O failure points:   {}", tally.fault_points);
        for (kind, count) in &tally.by_kind {
            println!("  {kind}: {count}");
        }
        println!("bit flips:            {}", tally.bit_flips);
        println!("interleavings:        {}", tally.interleavings);
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
    let mut subjects = subjects::all();
    subjects.retain(|subject| options.store.as_ref().is_none_or(|name| name == subject.name));
    if subjects.is_empty() {
        eprintln!("error: there is no such store");
        return ExitCode::FAILURE;
    }
    let mut holds = true;
    for subject in &subjects {
        let begun = Instant::now();
        let states = options.states.div_ceil(subjects.len() as u64);
        let sum = try_all(subject, states, options.seed);
        print(subject, &sum, begun.elapsed().as_secs_f64(), &options);
        holds &= sum.holds();
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
