//! What is logged while a test runs something.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// One line: what it says, and how many others were left out before it, if it says that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub message: String,
    pub left_out: Option<u64>,
}

/// The lines of one crate, as of levels that operators see.
struct Lines {
    of: &'static str,
    lines: Arc<Mutex<Vec<Line>>>,
}

/// Runs something; what is logged meanwhile by this thread under targets that begin with `of`.
pub fn logged(of: &'static str, run: impl FnOnce()) -> Vec<Line> {
    let lines = Arc::default();
    tracing::subscriber::with_default(Lines { of, lines: Arc::clone(&lines) }, run);
    std::mem::take(&mut *lines.lock().expect("no thread panicked while it held the lock"))
}

/// How many of the lines say this.
pub fn count(lines: &[Line], message: &str) -> usize {
    lines.iter().filter(|line| line.message == message).count()
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "left_out" {
            self.left_out = Some(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with(self.of)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.lines.lock().expect("no thread panicked while it held the lock").push(line);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
