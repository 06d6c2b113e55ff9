//! THE table of settings: what may be changed while a bucket serves, by which name, within which bounds.
//!
//! Names and meanings are those of the field (kv_engine's configuration), so that people's scripts go on working.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::bucket::Bucket;
use crate::config::{BucketKind, EvictionPolicy};

/// Which setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Key {
    /// The most memory the bucket may use, in bytes.
    MaxSize,
    /// Eviction ends when no more than this is in use.
    LowWatermark,
    /// Eviction begins when more than this is in use.
    HighWatermark,
    /// Changes are refused when more than this is in use.
    MutationRatio,
    /// What leaves memory when it runs short.
    EvictionPolicy,
    /// Share of the quota that checkpoints may take.
    CheckpointRatio,
    /// Memory of checkpoints is recovered when more of their share than this is in use.
    CheckpointUpperMark,
    /// and down to this part of their share.
    CheckpointLowerMark,
    /// An open checkpoint is closed when it holds more bytes than this; 0 for one that adapts to the quota.
    CheckpointMaxSize,
    /// An open checkpoint is closed when it holds more changes than this.
    CheckpointMaxItems,
    /// What is left of an access frequency when frequencies decay.
    FreqDecayPercent,
    /// How quickly an access frequency stops rising with more accesses.
    FreqCounterIncrementFactor,
    /// How long the pager rests between two time slices.
    PagerVisitPause,
    /// Whether a filter spares the disk for keys that are not there, under full eviction.
    BfilterEnabled,
    /// How often the filter may be wrong.
    BfilterFpProb,
    /// Whether value eviction becomes full eviction by itself when metadata alone fill the quota.
    AutoEviction,
    /// Whether expired documents are looked for in the background.
    ExpiryPagerEnabled,
    /// Seconds between two passes of the expiry pager.
    ExpiryPagerInterval,
    /// The longest a document may live, in seconds; 0 for no limit.
    MaxTtl,
    /// off: values are held plain; passive: as they came; active: cold values are compressed in the background.
    CompressionMode,
    /// A value is held compressed only if it becomes smaller by this factor.
    MinCompressionRatio,
    /// Milliseconds between two steps of the compressor.
    CompressorInterval,
    /// Seconds after which an ephemeral bucket forgets a tombstone.
    PurgeAge,
    /// Seconds between two passes of the tombstone purger; 0 for none.
    PurgeInterval,
    /// Whether versions are moved together when the heap wastes much.
    DefragmenterEnabled,
    /// Seconds between two passes of the defragmenter.
    DefragmenterInterval,
    /// The defragmenter works when more of the heap than this is wasted.
    DefragmenterThreshold,
    /// Seconds between two comparisons of the account with the heap.
    AccountCheckInterval,
}

/// How the value of a setting is written and bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes, also written as `512MiB`.
    Bytes {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Whole percent.
    Percent {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Seconds.
    Seconds {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Milliseconds.
    Milliseconds {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A number of something.
    Count {
        /// The fewest.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A decimal number, held in thousandths.
    Decimal {
        /// The smallest, in thousandths.
        least: u64,
        /// The largest, in thousandths.
        most: u64,
    },
    /// `true` or `false`.
    Switch,
    /// One of these words, held as its place in the list.
    Choice(&'static [&'static str]),
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub key: Key,
    /// Its name.
    pub name: &'static str,
    /// How it is written.
    pub kind: Kind,
    /// What it is if nobody says.
    pub default: u64,
    /// One line for the reference.
    pub doc: &'static str,
}

/// The words of [`Key::EvictionPolicy`], in the order of [`crate::EvictionPolicy`].
const POLICIES: &[&str] = &["value_only", "full_eviction", "auto_delete", "fail_new_data"];

const fn row(key: Key, name: &'static str, kind: Kind, default: u64, doc: &'static str) -> Setting {
    Setting { key, name, kind, default, doc }
}

/// All settings, in the order of [`Key`].
pub static SETTINGS: &[Setting] = &[
    row(
        Key::MaxSize,
        "max_size",
        Kind::Bytes { least: 1 << 20, most: 1 << 50 },
        256 << 20,
        "The most memory that the bucket may use",
    ),
    row(
        Key::LowWatermark,
        "mem_low_wat_percent",
        Kind::Percent { least: 1, most: 99 },
        75,
        "Eviction ends when no more of the quota than this is in use",
    ),
    row(
        Key::HighWatermark,
        "mem_high_wat_percent",
        Kind::Percent { least: 2, most: 100 },
        85,
        "Eviction begins when more of the quota than this is in use",
    ),
    row(
        Key::MutationRatio,
        "mutation_mem_ratio",
        Kind::Decimal { least: 10, most: 1000 },
        930,
        "Changes are refused with a temporary failure when more of the quota than this is in use",
    ),
    row(
        Key::EvictionPolicy,
        "item_eviction_policy",
        Kind::Choice(POLICIES),
        0,
        "What leaves memory when it runs short; auto_delete and fail_new_data are for ephemeral buckets",
    ),
    row(
        Key::CheckpointRatio,
        "checkpoint_memory_ratio",
        Kind::Decimal { least: 10, most: 1000 },
        200,
        "Share of the quota that checkpoints may take",
    ),
    row(
        Key::CheckpointUpperMark,
        "checkpoint_memory_recovery_upper_mark",
        Kind::Decimal { least: 10, most: 1000 },
        900,
        "Memory of checkpoints is recovered when more of their share than this is in use",
    ),
    row(
        Key::CheckpointLowerMark,
        "checkpoint_memory_recovery_lower_mark",
        Kind::Decimal { least: 0, most: 1000 },
        600,
        "Recovery of checkpoint memory ends at this part of their share",
    ),
    row(
        Key::CheckpointMaxSize,
        "checkpoint_max_size",
        Kind::Bytes { least: 0, most: 1 << 40 },
        0,
        "An open checkpoint is closed when it holds more bytes than this; 0 for one that adapts to the quota",
    ),
    row(
        Key::CheckpointMaxItems,
        "chk_max_items",
        Kind::Count { least: 1, most: 10_000_000 },
        10_000,
        "An open checkpoint is closed when it holds more changes than this",
    ),
    row(
        Key::FreqDecayPercent,
        "item_freq_decayer_percent",
        Kind::Percent { least: 0, most: 100 },
        50,
        "What is left of an access frequency when frequencies decay",
    ),
    row(
        Key::FreqCounterIncrementFactor,
        "freq_counter_increment_factor",
        Kind::Decimal { least: 0, most: 100_000 },
        12,
        "How quickly an access frequency stops rising with more accesses",
    ),
    row(
        Key::PagerVisitPause,
        "paging_visitor_pause_ms",
        Kind::Milliseconds { least: 0, most: 60_000 },
        0,
        "How long the pager rests between two time slices",
    ),
    row(
        Key::BfilterEnabled,
        "bfilter_enabled",
        Kind::Switch,
        1,
        "Whether a filter spares the disk for keys that are not there, under full eviction",
    ),
    row(
        Key::BfilterFpProb,
        "bfilter_fp_prob",
        Kind::Decimal { least: 1, most: 500 },
        10,
        "How often the filter may be wrong",
    ),
    row(
        Key::AutoEviction,
        "auto_eviction_policy",
        Kind::Switch,
        0,
        "Whether value eviction becomes full eviction by itself when metadata alone fill the quota",
    ),
    row(
        Key::ExpiryPagerEnabled,
        "exp_pager_enabled",
        Kind::Switch,
        1,
        "Whether expired documents are looked for in the background",
    ),
    row(
        Key::ExpiryPagerInterval,
        "exp_pager_stime",
        Kind::Seconds { least: 1, most: 30 * 24 * 3600 },
        600,
        "Seconds between two passes of the expiry pager",
    ),
    row(
        Key::MaxTtl,
        "max_ttl",
        Kind::Seconds { least: 0, most: 2_147_483_647 },
        0,
        "The longest a document may live, in seconds; 0 for no limit",
    ),
    row(
        Key::CompressionMode,
        "compression_mode",
        Kind::Choice(&["off", "passive", "active"]),
        1,
        "off: values are held plain; passive: as they came; active: cold values are compressed in the background",
    ),
    row(
        Key::MinCompressionRatio,
        "min_compression_ratio",
        Kind::Decimal { least: 1000, most: 100_000 },
        1200,
        "A value is held compressed only if it becomes smaller by this factor",
    ),
    row(
        Key::CompressorInterval,
        "item_compressor_interval",
        Kind::Milliseconds { least: 1, most: 3_600_000 },
        250,
        "Milliseconds between two steps of the compressor",
    ),
    row(
        Key::PurgeAge,
        "ephemeral_metadata_purge_age",
        Kind::Seconds { least: 0, most: 30 * 24 * 3600 },
        60,
        "Seconds after which an ephemeral bucket forgets a tombstone",
    ),
    row(
        Key::PurgeInterval,
        "ephemeral_metadata_purge_interval",
        Kind::Seconds { least: 0, most: 24 * 3600 },
        60,
        "Seconds between two passes of the tombstone purger; 0 for none",
    ),
    row(
        Key::DefragmenterEnabled,
        "defragmenter_enabled",
        Kind::Switch,
        1,
        "Whether versions are moved together when the heap wastes much",
    ),
    row(
        Key::DefragmenterInterval,
        "defragmenter_interval",
        Kind::Decimal { least: 10, most: 3_600_000 },
        10_000,
        "Seconds between two passes of the defragmenter",
    ),
    row(
        Key::DefragmenterThreshold,
        "defragmenter_threshold_percent",
        Kind::Percent { least: 1, most: 99 },
        15,
        "The defragmenter works when more of the heap than this is wasted",
    ),
    row(
        Key::AccountCheckInterval,
        "mem_used_check_interval",
        Kind::Seconds { least: 1, most: 24 * 3600 },
        60,
        "Seconds between two comparisons of the account with the heap",
    ),
];

/// Why a setting is not changed: what is wrong, and what would be right.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    /// There is no such setting.
    #[error("there is no setting {0:?}; `stave set-param --list` shows those there are")]
    Unknown(String),
    /// The value cannot be read or is out of bounds.
    #[error("{name} = {value:?}: give {wanted}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        wanted: String,
    },
    /// It does not go together with another setting or the kind of bucket.
    #[error("{name} = {value:?}: {why}")]
    Conflict {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it conflicts with.
        why: &'static str,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bytes { least, most } => {
                write!(f, "bytes from {} to {}, for example 512MiB", size(*least), size(*most))
            }
            Kind::Percent { least, most } => write!(f, "whole percent from {least} to {most}"),
            Kind::Seconds { least, most } => write!(f, "seconds from {least} to {most}"),
            Kind::Milliseconds { least, most } => write!(f, "milliseconds from {least} to {most}"),
            Kind::Count { least, most } => write!(f, "a number from {least} to {most}"),
            Kind::Decimal { least, most } => {
                write!(f, "a decimal number from {} to {}", decimal(*least), decimal(*most))
            }
            Kind::Switch => f.write_str("true or false"),
            Kind::Choice(words) => write!(f, "one of {}", words.join(", ")),
        }
    }
}

/// A number of bytes in the largest unit that leaves no rest.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &(u32, _)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(whole) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

fn decimal(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Kind {
    /// Reads a value; nothing if it is none, or out of bounds.
    pub fn parse(&self, text: &str) -> Option<u64> {
        let (value, least, most) = match *self {
            Kind::Bytes { least, most } => (parse_bytes(text)?, least, most),
            Kind::Percent { least, most }
            | Kind::Seconds { least, most }
            | Kind::Milliseconds { least, most }
            | Kind::Count { least, most } => (text.parse().ok()?, least, most),
            Kind::Decimal { least, most } => (parse_decimal(text)?, least, most),
            Kind::Switch => {
                return match text {
                    "true" | "on" | "1" => Some(1),
                    "false" | "off" | "0" => Some(0),
                    _ => None,
                };
            }
            Kind::Choice(words) => {
                return words.iter().position(|word| *word == text).map(|at| at as u64);
            }
        };
        (least..=most).contains(&value).then_some(value)
    }

    /// Writes a value for people, so that it can be read again.
    pub fn pretty(&self, value: u64) -> String {
        match self {
            Kind::Bytes { .. } => size(value),
            _ => self.show(value),
        }
    }

    /// Writes a value so that it can be read again.
    pub fn show(&self, value: u64) -> String {
        match self {
            Kind::Decimal { .. } => decimal(value),
            Kind::Switch => (value != 0).to_string(),
            Kind::Choice(words) => words.get(value as usize).copied().unwrap_or_default().to_owned(),
            _ => value.to_string(),
        }
    }
}

fn parse_decimal(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// The values of all settings of a bucket; reading one is a relaxed load.
#[derive(Debug)]
pub struct Settings {
    values: Box<[AtomicU64]>,
    /// Held while settings are changed, so that those that must fit each other do.
    changing: Mutex<()>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(SETTINGS.iter().map(|setting| setting.default))
    }
}

impl Clone for Settings {
    fn clone(&self) -> Settings {
        Settings::of(SETTINGS.iter().map(|setting| self.get(setting.key)))
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Settings) -> bool {
        SETTINGS.iter().all(|setting| self.get(setting.key) == other.get(setting.key))
    }
}

impl Eq for Settings {}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Which.
    pub setting: &'static Setting,
    /// Its value before, as text.
    pub old: String,
    /// Its value now, as text.
    pub new: String,
}

/// The row of the setting with this name.
pub fn find(name: &str) -> Result<&'static Setting, SettingError> {
    let setting = SETTINGS.iter().find(|setting| setting.name == name);
    setting.ok_or_else(|| SettingError::Unknown(name.to_owned()))
}

impl Setting {
    /// Reads a value of this setting.
    pub fn parse(&self, text: &str) -> Result<u64, SettingError> {
        self.kind.parse(text).ok_or_else(|| SettingError::Value {
            name: self.name,
            value: text.to_owned(),
            wanted: self.kind.to_string(),
        })
    }

    /// Writes a value of this setting so that it can be read again.
    pub fn show(&self, value: u64) -> String {
        self.kind.show(value)
    }
}

impl Settings {
    fn of(values: impl Iterator<Item = u64>) -> Settings {
        Settings { values: values.map(AtomicU64::new).collect(), changing: Mutex::new(()) }
    }

    /// A setting's value.
    #[inline]
    pub fn get(&self, key: Key) -> u64 {
        self.values[key as usize].load(Ordering::Relaxed)
    }

    /// Whether a switch is on.
    #[inline]
    pub fn is_on(&self, key: Key) -> bool {
        self.get(key) != 0
    }

    /// A setting's value as text.
    pub fn show(&self, key: Key) -> String {
        SETTINGS[key as usize].show(self.get(key))
    }

    /// Changes a setting without asking whether it fits the others; for those who make a bucket.
    pub fn put(&self, key: Key, value: u64) {
        self.values[key as usize].store(value, Ordering::Relaxed);
    }

    /// Gives an ephemeral bucket that was told no policy the one that loses nothing: changes are refused.
    pub(crate) fn be_ephemeral(&self) {
        if self.get(Key::EvictionPolicy) < EvictionPolicy::AutoDelete as u64 {
            self.put(Key::EvictionPolicy, EvictionPolicy::FailNewData as u64);
        }
    }

    /// Changes a setting by name, if the value can be read and goes together with the others.
    pub fn set(&self, kind: BucketKind, name: &str, text: &str) -> Result<Changed, SettingError> {
        let mut changed = self.set_all(kind, &[(name, text)]).map_err(|mut errors| errors.remove(0))?;
        Ok(changed.remove(0))
    }

    /// Changes several settings by name, all or none: each value must be readable, and all together must fit.
    /// What is wrong with any of them is told at once.
    pub fn set_all(
        &self,
        kind: BucketKind,
        pairs: &[(&str, &str)],
    ) -> Result<Vec<Changed>, Vec<SettingError>> {
        let _changing = self.changing.lock();
        let after = self.clone();
        let mut errors = Vec::new();
        let mut read = Vec::new();
        for (name, text) in pairs {
            match find(name).and_then(|setting| Ok((setting, setting.parse(text)?))) {
                Ok((setting, value)) => {
                    after.put(setting.key, value);
                    read.push((setting, value, *text));
                }
                Err(error) => errors.push(error),
            }
        }
        errors.extend(read.iter().filter_map(|(setting, _, text)| {
            let why = after.conflict(kind, setting.key)?;
            Some(SettingError::Conflict { name: setting.name, value: (*text).to_owned(), why })
        }));
        if !errors.is_empty() {
            return Err(errors);
        }
        let change = |(setting, value, _): (&'static Setting, u64, &str)| {
            let old = self.show(setting.key);
            self.put(setting.key, value);
            Changed { setting, old, new: setting.show(value) }
        };
        Ok(read.into_iter().map(change).collect())
    }

    /// What is wrong with a setting beside the others.
    fn conflict(&self, kind: BucketKind, key: Key) -> Option<&'static str> {
        let is_crossed = |lower, upper| self.get(lower) >= self.get(upper);
        match key {
            Key::LowWatermark if is_crossed(Key::LowWatermark, Key::HighWatermark) => {
                Some("give less than mem_high_wat_percent")
            }
            Key::HighWatermark if is_crossed(Key::LowWatermark, Key::HighWatermark) => {
                Some("give more than mem_low_wat_percent")
            }
            Key::CheckpointLowerMark if is_crossed(Key::CheckpointLowerMark, Key::CheckpointUpperMark) => {
                Some("give less than checkpoint_memory_recovery_upper_mark")
            }
            Key::CheckpointUpperMark if is_crossed(Key::CheckpointLowerMark, Key::CheckpointUpperMark) => {
                Some("give more than checkpoint_memory_recovery_lower_mark")
            }
            Key::EvictionPolicy if (self.get(key) < 2) != (kind == BucketKind::Persistent) => Some(
                "give value_only or full_eviction for a bucket on disk, auto_delete or fail_new_data for an ephemeral one",
            ),
            _ => None,
        }
    }
}

impl Bucket {
    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes a setting by name while the bucket serves.
    pub fn set_param(&self, name: &str, value: &str) -> Result<Changed, SettingError> {
        let mut changed = self.set_params(&[(name, value)]).map_err(|mut errors| errors.remove(0))?;
        Ok(changed.remove(0))
    }

    /// Changes several settings by name while the bucket serves, all or none.
    pub fn set_params(&self, pairs: &[(&str, &str)]) -> Result<Vec<Changed>, Vec<SettingError>> {
        let changed = self.settings.set_all(self.config.kind, pairs)?;
        self.follow_filter_settings();
        self.keeper.wake_all();
        for Changed { setting, old, new } in &changed {
            tracing::info!(bucket = self.name(), setting = setting.name, old, new, "a setting was changed");
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_their_keys_and_defaults_are_within_bounds() {
        for (at, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.key as usize, at);
            let shown = setting.kind.show(setting.default);
            assert_eq!(setting.kind.parse(&shown), Some(setting.default), "{}", setting.name);
            let pretty = setting.kind.pretty(setting.default);
            assert_eq!(setting.kind.parse(&pretty), Some(setting.default), "{}", setting.name);
        }
    }

    #[test]
    fn a_value_is_checked_before_it_is_taken() {
        let settings = Settings::default();
        let set = |name, value| settings.set(BucketKind::Persistent, name, value);
        let changed = set("mem_high_wat_percent", "90").expect("it fits");
        assert_eq!((changed.old.as_str(), changed.new.as_str()), ("85", "90"));
        assert_eq!(settings.get(Key::HighWatermark), 90);
        assert!(set("mutation_mem_ratio", "0.95").is_ok());
        assert_eq!(
            (settings.get(Key::MutationRatio), settings.show(Key::MutationRatio)),
            (950, "0.95".into())
        );
        assert!(set("max_size", "512MiB").is_ok());
        for (name, value) in [
            ("max_sise", "1"),
            ("max_size", "12 apples"),
            ("max_size", "0"),
            ("mem_low_wat_percent", "95"),
            ("item_eviction_policy", "auto_delete"),
            ("mutation_mem_ratio", "0.9999"),
            ("checkpoint_memory_recovery_lower_mark", "0.9"),
        ] {
            assert!(set(name, value).is_err(), "{name} {value}");
        }
    }

    #[test]
    fn several_are_changed_together_or_not_at_all() {
        let settings = Settings::default();
        let set = |pairs: &[_]| settings.set_all(BucketKind::Ephemeral, pairs);
        // Neither watermark could go first.
        let both = [("mem_low_wat_percent", "90"), ("mem_high_wat_percent", "95")];
        assert_eq!(set(&both).map(|changed| changed.len()), Ok(2));
        let before = settings.clone();
        let errors = set(&[
            ("max_ttl", "5"),
            ("max_sise", "1"),
            ("bfilter_enabled", "maybe"),
            ("item_eviction_policy", "value_only"),
        ])
        .expect_err("three are wrong");
        assert!(matches!(
            &errors[..],
            [SettingError::Unknown(_), SettingError::Value { .. }, SettingError::Conflict { .. }]
        ));
        assert_eq!(settings, before);
    }
}
