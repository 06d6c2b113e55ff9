//! The steps of `test` and `ci`: each has a headline, an error in one is one failure, and all together have a limit.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use harness::child::headline;
use harness::failures;
use harness::totals::Totals;

/// Steps that have begun and not ended, and what those that ended counted.
static STEPS: Mutex<Steps> =
    Mutex::new(Steps { under_way: Vec::new(), counted: Totals { passed: 0, failed: 0 } });

struct Steps {
    under_way: Vec<String>,
    counted: Totals,
}

fn steps<T>(look: impl FnOnce(&mut Steps) -> T) -> T {
    look(&mut STEPS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a step; an error counts as one failure, so that the steps behind it still run.
pub fn step(name: &str, run: impl FnOnce() -> Result<Totals>) -> Totals {
    headline(name);
    steps(|steps| steps.under_way.push(name.to_owned()));
    let totals = run().unwrap_or_else(|error| {
        println!("FAIL {name}: {error:#}");
        failures::note(&format!("{name}: {error:#}"));
        Totals::one(false)
    });
    steps(|steps| {
        steps.under_way.retain(|other| other != name);
        steps.counted += totals;
    });
    println!("{name}: {totals}");
    totals
}

/// The closing line, alone on the last one: CI reads it.
pub fn close(totals: Totals) -> Result<bool> {
    let failed = failures::told();
    if !totals.good() && !failed.is_empty() {
        headline("what failed");
        failed.iter().for_each(|line| println!("{line}"));
    }
    headline("totals");
    println!("\n{totals}");
    Ok(totals.good())
}

/// Runs steps that together may take `limit`. After that it says which step is under way, closes with what was counted
/// and ends the process, so that what never ends has a name.
pub fn within<T>(limit: Duration, run: impl FnOnce() -> T) -> T {
    let (ended, limited) = mpsc::channel::<()>();
    thread::spawn(move || {
        if limited.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            give_up(limit);
        }
    });
    let result = run();
    // The thread that waits ends the process otherwise.
    drop(ended);
    result
}

fn give_up(limit: Duration) {
    let (under_way, counted) = steps(|steps| (steps.under_way.join(", "), steps.counted));
    let what = format!("nothing ended within {} s; under way: {under_way}", limit.as_secs());
    println!("FAIL {what}");
    failures::note(&what);
    let closed = close(Totals { failed: counted.failed + 1, ..counted });
    std::process::exit(i32::from(closed.is_err()) + 1);
}
