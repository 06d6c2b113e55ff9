//! A line on standard error that says how far a command is.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use base::env::Env;

/// Who waits no longer than this needs no line.
const FIRST: Duration = Duration::from_secs(2);
const EACH: Duration = Duration::from_secs(1);

/// A line on standard error, once it takes longer than a moment.
pub(super) struct StatusLine<'e> {
    env: &'e Env,
    begun: Duration,
    next: Duration,
    was_shown: bool,
}

impl<'e> StatusLine<'e> {
    pub(super) fn new(env: &'e Env) -> StatusLine<'e> {
        let now = env.clock.monotonic();
        StatusLine { env, begun: now, next: now + FIRST, was_shown: false }
    }

    /// Shows a line if it is time. `text` gets the seconds since the beginning.
    pub(super) fn show(&mut self, text: impl FnOnce(f64) -> String) {
        let now = self.env.clock.monotonic();
        if now < self.next {
            return;
        }
        self.next = now + EACH;
        self.was_shown = true;
        let line = text((now - self.begun).as_secs_f64());
        let mut err = std::io::stderr().lock();
        // a failure to write progress is no reason to stop
        let _ = if err.is_terminal() { write!(err, "\r{line:<76}") } else { writeln!(err, "{line}") };
    }

    /// Ends the line on a terminal.
    pub(super) fn end(&self) {
        if self.was_shown && std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
