//! Settings: what may be changed while a bucket serves, by which name, and what must fit what.
//!
//! Names and meanings are those of the field (kv_engine's configuration), so that people's scripts go on working.

mod kind;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};

use kvstore::StorageBackend;
use parking_lot::Mutex;
use vbucket::{ClockLimits, ConflictRule};

use crate::config::{BucketKind, EvictionPolicy};

pub use kind::Kind;
pub use table::{Key, SETTINGS, Setting};

/// What is wrong with a history of a bucket that is not log-structured.
pub const HISTORY_NEEDS_LOG: &str =
    "History Retention can only be used with Magma: make a bucket with storageBackend=magma";

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

/// Whether a setting says how much history of changes is kept.
pub(crate) fn is_of_history(key: Key) -> bool {
    matches!(key, Key::HistorySeconds | Key::HistoryBytes)
}

/// Refuses settings that ask for a history of changes, of a bucket whose store keeps none.
pub(crate) fn refuse_history(backend: StorageBackend, pairs: &[(&str, &str)]) -> Result<(), SettingError> {
    if backend == StorageBackend::LogStructured {
        return Ok(());
    }
    for (name, value) in pairs {
        let found = find(name).ok().filter(|setting| is_of_history(setting.key));
        if let Some(setting) = found.filter(|setting| setting.parse(value).is_ok_and(|value| value > 0)) {
            let (name, value) = (setting.name, (*value).to_owned());
            return Err(SettingError::Conflict { name, value, why: HISTORY_NEEDS_LOG });
        }
    }
    Ok(())
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

    /// Which of two versions wins when a change brings its own metadata.
    pub fn conflict_rule(&self) -> ConflictRule {
        match self.get(Key::ConflictResolution) {
            0 => ConflictRule::RevisionWins,
            _ => ConflictRule::TimeWins,
        }
    }

    /// Lets the vBuckets' clocks follow and count as the settings say.
    pub(crate) fn apply_to_clocks(&self, clocks: &ClockLimits) {
        clocks.set(self.get(Key::DriftAhead), self.get(Key::DriftBehind), self.get(Key::MaxFuture));
    }

    /// Refuses to change what a bucket has from its beginning; what it is already may be said again.
    pub fn check_fixed(&self, pairs: &[(&str, &str)]) -> Result<(), Vec<SettingError>> {
        let rule = &SETTINGS[Key::ConflictResolution as usize];
        let now = self.show(rule.key);
        let is_other = |(name, value): &&(&str, &str)| *name == rule.name && *value != now;
        let Some((_, value)) = pairs.iter().find(is_other) else { return Ok(()) };
        let why = "a bucket keeps the one that it was made with: make another bucket";
        Err(vec![SettingError::Conflict { name: rule.name, value: (*value).to_owned(), why }])
    }

    /// Refuses a history of changes for a bucket whose store keeps none.
    pub fn check_history(&self, backend: StorageBackend) -> Result<(), SettingError> {
        let each = [Key::HistorySeconds, Key::HistoryBytes];
        each.iter()
            .try_for_each(|key| refuse_history(backend, &[(SETTINGS[*key as usize].name, &self.show(*key))]))
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
            Key::DurabilityMinLevel if self.get(key) > 1 && kind == BucketKind::Ephemeral => {
                Some("give none or majority for an ephemeral bucket")
            }
            _ => None,
        }
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
