//! When files are compacted.

use super::bucket::parse_size;
use super::{ConfigError, Settings};

/// When files are compacted, and what is forgotten then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionRules {
    /// So many of a hundred bytes are not in use,
    pub percent: u8,
    /// and at least so many.
    pub min_waste_bytes: u64,
    /// Tombstones older than so many seconds are forgotten.
    pub purge_age_s: u32,
}

impl CompactionRules {
    pub(super) fn new(settings: &Settings) -> Result<CompactionRules, ConfigError> {
        let percent = settings.compaction_fragmentation_percent.unwrap_or(engine::DEFAULT_COMPACT_PERCENT);
        if !(10..=100).contains(&percent) {
            return Err(ConfigError::Fragmentation(percent));
        }
        let min_waste = settings.compaction_min_waste.as_deref().map(parse_size);
        Ok(CompactionRules {
            percent,
            min_waste_bytes: min_waste.transpose()?.unwrap_or(engine::DEFAULT_COMPACT_MIN_WASTE_BYTES),
            purge_age_s: settings.purge_age_s.unwrap_or(engine::DEFAULT_PURGE_AGE_S),
        })
    }
}
