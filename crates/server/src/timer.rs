//! Where waiting handlers get their time limits from: the runtime, or a simulation.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A source of time limits.
pub trait Timer: Send + Sync {
    /// Ready after `duration`.
    fn after(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// The timer of the runtime that polls.
pub struct RuntimeTimer;

impl Timer for RuntimeTimer {
    fn after(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(tokio::time::sleep(duration))
    }
}
