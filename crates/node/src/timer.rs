//! Time limits, which the program that runs the node brings.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A source of time limits for handlers that wait: the runtime, or a simulation.
pub trait Timer: Send + Sync {
    /// Ready after `duration`.
    fn after(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()>>>;
}
