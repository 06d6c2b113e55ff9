//! Errors and warnings that a start logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts what is logged while it is in use.
#[derive(Clone, Default)]
pub struct Log {
    told: Arc<AtomicUsize>,
    spans: Arc<AtomicU64>,
}

impl Log {
    /// Runs with it; answers how often something was told that an operator has to know.
    pub fn listen<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let log = Log::default();
        let done = tracing::subscriber::with_default(log.clone(), work);
        (done, log.told.load(Ordering::Relaxed))
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
