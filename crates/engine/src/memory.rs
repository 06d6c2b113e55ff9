//! How much memory a bucket uses, and whether it may use more.

use std::ops::RangeInclusive;
use std::sync::Arc;

use base::{Account, Heap};

use crate::settings::{Key, Settings};

/// Slack below such a part of the quota is in nobody's way,
const LITTLE_SLACK_ONE_IN: u64 = 64;
/// within these bounds: the heap does not tell each byte, and of a large bucket a page fault is as much work as of a
/// small one.
const LITTLE_SLACK_BYTES: RangeInclusive<u64> = 128 << 10..=1 << 20;

/// The memory account of one bucket, and its limits.
pub struct MemoryAccount {
    settings: Arc<Settings>,
    heap: Heap,
}

impl MemoryAccount {
    /// The limits of the account that `heap` charges.
    pub fn new(settings: Arc<Settings>, heap: Heap) -> MemoryAccount {
        let account = MemoryAccount { settings, heap };
        account.scale_estimate();
        account
    }

    /// Has the estimate be as good as the quota and the setting demand now.
    pub(crate) fn scale_estimate(&self) {
        // In thousandths of a percent.
        let share = u128::from(self.settings.get(Key::MergeThreshold));
        let bytes = u128::from(self.settings.get(Key::MaxSize)) * share / 100_000;
        self.account().let_deviate(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// What is charged.
    pub fn account(&self) -> &Account {
        self.heap.account()
    }

    /// About how many bytes are in use.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        self.account().estimate()
    }

    /// About how many bytes the heap holds for versions to come.
    #[inline]
    pub fn slack_bytes(&self) -> u64 {
        self.heap.slack_estimate()
    }

    /// Slack that is not worth any work.
    pub(crate) fn little_slack_bytes(&self) -> u64 {
        let part = self.quota_bytes() / LITTLE_SLACK_ONE_IN;
        part.clamp(*LITTLE_SLACK_BYTES.start(), *LITTLE_SLACK_BYTES.end())
    }

    /// About how many bytes are taken from the system: what is in use, and what the heap holds beyond. A little slack
    /// does not count: there is always some.
    #[inline]
    pub fn held_bytes(&self) -> u64 {
        self.used_bytes() + self.slack_bytes().saturating_sub(self.little_slack_bytes())
    }

    /// The most the bucket may use.
    pub fn quota_bytes(&self) -> u64 {
        self.settings.get(Key::MaxSize)
    }

    /// Whether what has been allocated may be stored while so much is held.
    pub fn admits(&self, held_bytes: u64) -> bool {
        held_bytes <= self.most_bytes()
    }

    /// Above this changes are refused.
    fn most_bytes(&self) -> u64 {
        self.quota_bytes() / 1000 * self.settings.get(Key::MutationRatio)
    }

    /// Whether so much is held that the slack in it must go: half-way from the high watermark to where changes are
    /// refused.
    pub fn is_slack_in_the_way(&self) -> bool {
        let high = self.high_watermark_bytes();
        self.held_bytes() >= high + self.most_bytes().saturating_sub(high) / 2
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
        self.used_bytes() >= self.low_watermark_bytes() || self.held_bytes() >= self.high_watermark_bytes()
    }

    /// Whether fetched values cannot stay, and others have to go.
    ///
    /// Slack counts, because it is memory like any other; but what is evicted leaves slack, so evicting because of it
    /// ends at the low watermark, and begins again only when half of the way back is used.
    pub fn is_above_high_watermark(&self) -> bool {
        let (low, high) = (self.low_watermark_bytes(), self.high_watermark_bytes());
        let used = self.used_bytes();
        used >= high || (used >= low + high.saturating_sub(low) / 2 && self.held_bytes() >= high)
    }
}

#[cfg(test)]
mod tests {
    use base::Part;

    use super::*;
    use crate::BucketKind;

    #[test]
    fn the_estimate_is_as_good_as_the_setting_says() {
        let settings = Arc::new(Settings::default());
        let memory = MemoryAccount::new(Arc::clone(&settings), Heap::default());
        memory.account().charge(Part::Other, 1);
        let quota = memory.quota_bytes();
        assert!(memory.account().deviation_bytes() <= quota / 200);
        let by_default = memory.account().deviation_bytes();
        settings
            .set(BucketKind::Persistent, "mem_used_merge_threshold_percent", "0.01")
            .expect("it may be changed");
        memory.scale_estimate();
        assert!(memory.account().deviation_bytes() <= quota / 10_000);
        assert!(memory.account().deviation_bytes() < by_default);
    }
}
