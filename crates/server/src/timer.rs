//! Time limits of handlers that wait, by the runtime that polls.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ::node::doors::Timer;

/// The timer of the runtime that polls.
pub struct RuntimeTimer;

impl Timer for RuntimeTimer {
    fn after(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(tokio::time::sleep(duration))
    }
}
