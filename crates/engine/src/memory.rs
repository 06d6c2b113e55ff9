//! How much memory a bucket uses, and whether it may use more.

use std::sync::Arc;

use base::Account;

use crate::settings::{Key, Settings};

/// The memory account of one bucket, and its limits.
pub struct MemoryAccount {
    settings: Arc<Settings>,
    account: Account,
}

impl MemoryAccount {
    /// The limits of `account`.
    pub fn new(settings: Arc<Settings>, account: Account) -> MemoryAccount {
        account.scale_to(settings.get(Key::MaxSize));
        MemoryAccount { settings, account }
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
        self.settings.get(Key::MaxSize)
    }

    /// Whether what has been allocated may be stored while so much is in use.
    pub fn admits(&self, used_bytes: u64) -> bool {
        used_bytes <= self.quota_bytes() / 1000 * self.settings.get(Key::MutationRatio)
    }

    /// Up to here values are loaded ahead of their readers.
    pub fn low_watermark_bytes(&self) -> u64 {
        self.quota_bytes() / 100 * self.settings.get(Key::LowWatermark)
    }

    /// Up to here values that were fetched stay.
    pub fn high_watermark_bytes(&self) -> u64 {
        self.quota_bytes() / 100 * self.settings.get(Key::HighWatermark)
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
