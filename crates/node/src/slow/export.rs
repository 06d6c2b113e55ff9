//! What is to be told to a collector of traces: slow operations, until the task that sends them takes them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::SlowOperation;

/// Operations that wait to be sent, at most; while there are as many, later ones are dropped and counted.
const MOST_WAITING: usize = 256;

/// What became of operations that were to be told to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// A collector has taken them.
    pub sent: u64,
    /// They came faster than they could be sent, or no collector took them.
    pub dropped: u64,
}

/// Operations that wait to be sent.
#[derive(Debug, Default)]
pub struct TraceQueue {
    /// Whether anything sends them.
    is_on: AtomicBool,
    waiting: Mutex<VecDeque<SlowOperation>>,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl TraceQueue {
    /// From now on operations wait to be sent.
    pub fn enable(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether operations are sent to a collector.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, operation: &SlowOperation) {
        if !self.is_on() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST_WAITING {
            waiting.push_back(operation.clone());
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes all that wait.
    pub fn take(&self) -> Vec<SlowOperation> {
        self.waiting.lock().drain(..).collect()
    }

    /// A collector has taken so many, or they could not be sent.
    pub fn count(&self, operations: usize, is_sent: bool) {
        let counter = if is_sent { &self.sent } else { &self.dropped };
        counter.fetch_add(operations as u64, Ordering::Relaxed);
    }

    /// What became of operations so far.
    pub fn counts(&self) -> TraceCounts {
        TraceCounts { sent: self.sent.load(Ordering::Relaxed), dropped: self.dropped.load(Ordering::Relaxed) }
    }
}
