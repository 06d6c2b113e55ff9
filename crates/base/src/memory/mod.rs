//! Memory that is charged to somebody: accounts, and the heap that document versions come from.

mod account;
mod chunks;
mod classes;
mod heap;
mod ledger;
mod lock;
mod part;
mod shard;
mod slab;

/// The atomics of ledgers: the same source is compiled with those of a scheduler in tests.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64};
}

#[cfg(test)]
mod ledger_model;

pub use account::Account;
pub use heap::{ClassUsage, Heap, HeapUsage};
pub use part::{PARTS, Part, Parts};
