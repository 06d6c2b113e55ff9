//! How much memory a bucket uses, and whether it may use more.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Counters that several processors add to without meeting.
const STRIPES: usize = 16;

#[repr(align(64))]
struct Stripe(AtomicI64);

/// The memory account of one bucket.
pub struct MemoryAccount {
    quota_bytes: AtomicU64,
    stripes: [Stripe; STRIPES],
}

/// Writes are refused above this share of the quota.
const REFUSE_ABOVE_PERCENT: u64 = 93;

impl MemoryAccount {
    /// An empty account.
    pub fn new(quota_bytes: u64) -> MemoryAccount {
        MemoryAccount {
            quota_bytes: AtomicU64::new(quota_bytes),
            stripes: std::array::from_fn(|_| Stripe(AtomicI64::new(0))),
        }
    }

    /// Charges (or, negative, releases) bytes; `hint` spreads callers over the stripes.
    pub fn charge(&self, hint: usize, bytes: i64) {
        self.stripes[hint % STRIPES].0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.stripes.iter().map(|s| s.0.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    /// The most the bucket may use.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes.load(Ordering::Relaxed)
    }

    /// Whether another `bytes` may be stored.
    pub fn admits(&self, bytes: usize) -> bool {
        self.used_bytes() + bytes as u64 <= self.quota_bytes() / 100 * REFUSE_ABOVE_PERCENT
    }
}
