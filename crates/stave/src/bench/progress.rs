//! What a run says while it goes on: a line each second on standard error, rewritten in place on a terminal.

use std::io::{IsTerminal, Write};

use crate::units::thousands;

/// Where a run's progress is shown.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    in_place: bool,
    width: usize,
}

impl Progress {
    /// Shown unless `quiet`.
    pub fn new(quiet: bool) -> Progress {
        Progress { shown: !quiet, in_place: std::io::stderr().is_terminal(), width: 0 }
    }

    /// Where the phase stands: `what`, operations in all and in the last second, and the share that is done.
    pub fn show(&mut self, what: &str, operations: u64, per_second: f64, done: f64) {
        if !self.shown {
            return;
        }
        let percent = done.clamp(0.0, 1.0) * 100.0;
        let rate = thousands(per_second.max(0.0).round() as u64);
        let line = format!("{what}: {} operations, {rate}/s, {percent:3.0} %", thousands(operations));
        // A failure to write progress is no reason to stop.
        let _ = if self.in_place {
            let width = self.width;
            write!(std::io::stderr(), "\r{line:<width$}")
        } else {
            writeln!(std::io::stderr(), "{line}")
        };
        self.width = line.len();
    }

    /// Makes room for what comes next.
    pub fn finish(&mut self) {
        if self.shown && self.in_place && self.width > 0 {
            let _ = write!(std::io::stderr(), "\r{:width$}\r", "", width = self.width);
        }
        self.width = 0;
    }
}
