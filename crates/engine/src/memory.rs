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
/// Values are loaded ahead of their readers up to this share of the quota.
const LOW_WATERMARK_PERCENT: u64 = 75;
/// Values that readers wait for stay in memory up to this share of the quota.
const HIGH_WATERMARK_PERCENT: u64 = 85;

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

    /// Up to here values are loaded ahead of their readers.
    pub fn low_watermark_bytes(&self) -> u64 {
        self.quota_bytes() / 100 * LOW_WATERMARK_PERCENT
    }

    /// Up to here values that were fetched stay.
    pub fn high_watermark_bytes(&self) -> u64 {
        self.quota_bytes() / 100 * HIGH_WATERMARK_PERCENT
    }

    /// Whether there is no room for values that nobody waits for.
    pub fn is_above_low_watermark(&self) -> bool {
        self.used_bytes() >= self.low_watermark_bytes()
    }

    /// Whether fetched values cannot stay.
    pub fn is_above_high_watermark(&self) -> bool {
        self.used_bytes() >= self.high_watermark_bytes()
    }
}
