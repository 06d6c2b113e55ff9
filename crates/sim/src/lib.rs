//! Whole nodes in one seeded thread: what was promised, what goes wrong, and whether the promises hold.

pub mod crash;
pub mod kv;
pub mod ledger;
pub mod turns;

pub use crash::{CrashPlan, Verdict};
pub use ledger::{Fingerprint, Ledger, Restored, Violation};
