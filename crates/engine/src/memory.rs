//! How much memory a bucket uses, and whether it may use more.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Account;

/// The memory account of one bucket, and its limits.
pub struct MemoryAccount {
    quota_bytes: AtomicU64,
    account: Account,
}

/// Writes are refused above this share of the quota.
const REFUSE_ABOVE_PERCENT: u64 = 93;
/// Values are loaded ahead of their readers up to this share of the quota.
const LOW_WATERMARK_PERCENT: u64 = 75;
/// Values that readers wait for stay in memory up to this share of the quota.
const HIGH_WATERMARK_PERCENT: u64 = 85;

impl MemoryAccount {
    /// The limits of `account`.
    pub fn new(quota_bytes: u64, account: Account) -> MemoryAccount {
        MemoryAccount { quota_bytes: AtomicU64::new(quota_bytes), account }
    }

    /// What is charged.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// About how many bytes are in use.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        self.account.estimate()
    }

    /// The most the bucket may use.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes.load(Ordering::Relaxed)
    }

    /// Whether what has been allocated may be stored.
    pub fn admits(&self) -> bool {
        self.used_bytes() <= self.quota_bytes() / 100 * REFUSE_ABOVE_PERCENT
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
