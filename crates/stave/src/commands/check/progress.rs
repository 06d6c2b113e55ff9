//! How far a check is: a line on standard error, once it takes longer than a moment.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use base::env::Clock;

use crate::units::{bytes, thousands};

/// Who waits no longer than this needs no line.
const FIRST: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_secs(1);

/// Counts what was done, and says so from time to time.
pub(super) struct Progress {
    clock: Arc<dyn Clock>,
    next: Duration,
    file_count: usize,
    files: u64,
    documents: u64,
    bytes: u64,
    faults: u64,
    err: Box<dyn Write>,
    in_place: bool,
    /// Width of the line that stands on the terminal.
    width: usize,
}

impl Progress {
    pub(super) fn on_stderr(clock: Arc<dyn Clock>, file_count: usize) -> Progress {
        let err = std::io::stderr();
        let in_place = err.is_terminal();
        Progress::new(clock, file_count, Box::new(err), in_place)
    }

    pub(super) fn new(
        clock: Arc<dyn Clock>,
        file_count: usize,
        err: Box<dyn Write>,
        in_place: bool,
    ) -> Progress {
        let next = clock.monotonic() + FIRST;
        Progress {
            clock,
            next,
            file_count,
            files: 0,
            documents: 0,
            bytes: 0,
            faults: 0,
            err,
            in_place,
            width: 0,
        }
    }

    pub(super) fn step(&mut self, documents: u64) {
        self.documents += documents;
        let now = self.clock.monotonic();
        if now >= self.next {
            self.next = now + EACH;
            self.show();
        }
    }

    pub(super) fn file_done(&mut self, file_bytes: u64) {
        self.files += 1;
        self.bytes += file_bytes;
    }

    /// A fault is about to be printed, which may go to the same terminal.
    pub(super) fn fault(&mut self) {
        self.faults += 1;
        self.finish();
    }

    fn show(&mut self) {
        let line = format!(
            "checked {} of {} files, {} documents, {}, {} faults",
            thousands(self.files),
            thousands(self.file_count as u64),
            thousands(self.documents),
            bytes(self.bytes),
            thousands(self.faults),
        );
        // a failure to write progress is no reason to stop
        let _ = if self.in_place {
            let width = self.width;
            write!(self.err, "\r{line:<width$}")
        } else {
            writeln!(self.err, "{line}")
        };
        self.width = line.len();
    }

    /// Makes room for what comes next.
    pub(super) fn finish(&mut self) {
        if self.in_place && self.width > 0 {
            let _ = write!(self.err, "\r{:width$}\r", "", width = self.width);
        }
        self.width = 0;
    }
}
