//! Memory that is charged to somebody: accounts, and the heap that document versions come from.

mod account;
mod cache_lines;
mod chunks;
mod classes;
mod heap;
mod ledger;
mod lock;
mod mapping;
mod part;
mod process;
mod shard;
mod slab;

/// The atomics of ledgers: the same source is compiled with those of a scheduler in tests.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64};

    /// Accounts that can have entries in ledgers at the same time; further ones are charged with atomic additions.
    pub(super) const ACCOUNTS: usize = 64;
}

#[cfg(test)]
mod ledger_model;

pub use account::Account;
pub use cache_lines::{CacheLine, CacheLines};
pub use heap::{ClassUsage, Heap, HeapUsage, Moving};
pub use part::{PARTS, Part, Parts};
pub use process::{ProcessMemory, settle_system, trim_system, trim_system_above, trim_system_in_time};
