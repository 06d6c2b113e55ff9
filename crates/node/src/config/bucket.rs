//! What a bucket is asked to be: in one word of the command line, or in a table of the configuration file.

use std::collections::BTreeMap;

use base::DurabilityLevel;
use engine::settings::{Key, Settings, find};
use engine::{BucketKind, EvictionPolicy, SettingError};
use kvstore::StorageBackend;
use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::naming;

/// A bucket to be opened, and made if it is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSpec {
    /// Its name.
    pub name: String,
    /// The most memory it may use when the node starts, in bytes.
    pub quota_bytes: u64,
    /// What kind of bucket.
    pub kind: BucketKind,
    /// What keeps its documents on disk; for good, from its beginning.
    pub backend: StorageBackend,
    /// What may be changed later.
    pub settings: Settings,
    /// Copies beside the active one that a cluster shall keep, 0 to 3. A node alone has none to keep.
    pub replicas: u8,
    /// Whether all documents may be removed at once, by `doFlush`.
    pub flush_enabled: bool,
    /// The durability that writes have at least, for whoever asks what the bucket is.
    pub durability_min: Option<DurabilityLevel>,
    /// What was set for others.
    pub hints: Hints,
}

/// What management tools set on a bucket and nothing here acts on: kept, so that they read what they wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hints {
    /// Whether replicas of views are indexed. There are no views.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_index: Option<bool>,
    /// Threads of the bucket's reader and writer pools, which are shared here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u8>,
    /// The bucket's turn in a rebalance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
}

impl Hints {
    /// Whether nothing was set.
    pub fn is_empty(&self) -> bool {
        *self == Hints::default()
    }

    /// These, and for what they do not say those of `older`.
    #[must_use]
    pub fn over(self, older: Hints) -> Hints {
        Hints {
            replica_index: self.replica_index.or(older.replica_index),
            threads: self.threads.or(older.threads),
            rank: self.rank.or(older.rank),
        }
    }
}

/// The most copies beside the active one.
pub const MOST_REPLICAS: u8 = 3;
/// A quota for those who do not say.
pub const DEFAULT_QUOTA_BYTES: u64 = 256 << 20;
const SMALLEST_QUOTA_BYTES: u64 = 1 << 20;

impl BucketSpec {
    /// Reads `NAME[:QUOTA[:TYPE]]`.
    pub fn parse(spec: &str) -> Result<BucketSpec, ConfigError> {
        let mut parts = spec.split(':');
        let (name, quota, kind) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(ConfigError::BucketSpec(spec.to_owned()));
        }
        BucketSpec::new(name, quota, kind)
    }

    /// A bucket whose settings are the defaults of its kind.
    fn new(name: &str, quota: Option<&str>, kind: Option<&str>) -> Result<BucketSpec, ConfigError> {
        let quota_bytes = quota.map_or(Ok(DEFAULT_QUOTA_BYTES), parse_quota)?;
        let unknown = |kind: &str| ConfigError::BucketType(kind.to_owned());
        let kind = kind.map(|kind| naming::kind_from(kind).ok_or_else(|| unknown(kind))).transpose()?;
        let (kind, backend) = kind.unwrap_or_default();
        if !BucketSpec::is_name(name) {
            return Err(ConfigError::BucketName(name.to_owned()));
        }
        let settings = Settings::default();
        settings.put(Key::MaxSize, quota_bytes);
        if kind == BucketKind::Ephemeral {
            // Documents are lost only where somebody asked for that.
            settings.put(Key::EvictionPolicy, EvictionPolicy::FailNewData as u64);
        }
        let spec = BucketSpec {
            name: name.to_owned(),
            quota_bytes,
            kind,
            backend,
            settings,
            replicas: 0,
            flush_enabled: false,
            durability_min: None,
            hints: Hints::default(),
        };
        spec.keep_in(backend);
        Ok(spec)
    }

    /// The eviction policy is the one that a bucket in such a store has unless something else is said: what may be much
    /// larger than memory does not keep all keys there.
    pub(crate) fn keep_in(&self, backend: StorageBackend) {
        if backend != StorageBackend::Couchstore {
            self.settings.put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
        }
    }

    /// Checks a name: it becomes the name of a folder, and part of addresses.
    pub fn is_name(name: &str) -> bool {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.%-".contains(&byte);
        (1..=100).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(valid)
    }

    /// A bucket of a kind with a quota in bytes and settings by name.
    pub fn made(
        name: &str,
        quota_bytes: u64,
        kind: BucketKind,
        pairs: &[(&str, &str)],
    ) -> Result<BucketSpec, ConfigError> {
        let spec = BucketSpec::new(
            name,
            Some(&quota_bytes.to_string()),
            Some(naming::type_name(kind, StorageBackend::default())),
        )?;
        spec.set_all(pairs)?;
        Ok(spec)
    }

    fn set_all(&self, pairs: &[(&str, &str)]) -> Result<(), ConfigError> {
        let failed = |error| ConfigError::Setting { bucket: self.name.clone(), error };
        match self.settings.set_all(self.kind, pairs) {
            Ok(_) => Ok(()),
            Err(errors) => errors.into_iter().next().map_or(Ok(()), |error| Err(failed(error))),
        }
    }
}

/// A bucket in the configuration file that needs more than a word.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct BucketTable {
    name: String,
    quota: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    eviction_policy: Option<String>,
    max_ttl: Option<Plain>,
    compression_mode: Option<String>,
    #[serde(default)]
    flush_enabled: bool,
    #[serde(default)]
    settings: BTreeMap<String, Plain>,
}

/// The value of a setting, however TOML has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Plain {
    Text(String),
    Switch(bool),
    Whole(i64),
    Decimal(f64),
}

impl Plain {
    fn text(&self) -> String {
        match self {
            Plain::Text(text) => text.clone(),
            Plain::Switch(on) => on.to_string(),
            Plain::Whole(number) => number.to_string(),
            Plain::Decimal(number) => number.to_string(),
        }
    }
}

/// Settings that have a key of their own beside the bucket's name.
const OWN_KEYS: [(Key, &str); 4] = [
    (Key::MaxSize, "quota"),
    (Key::EvictionPolicy, "eviction-policy"),
    (Key::MaxTtl, "max-ttl"),
    (Key::CompressionMode, "compression-mode"),
];

impl BucketTable {
    /// What a setting is called beside the bucket's name, if it does not belong under `[bucket.settings]`.
    pub fn own_key(key: Key) -> Option<&'static str> {
        OWN_KEYS.iter().find(|(of, _)| *of == key).map(|(_, own)| *own)
    }

    /// What the table asks for.
    pub fn spec(&self) -> Result<BucketSpec, ConfigError> {
        let spec = BucketSpec::new(&self.name, self.quota.as_deref(), self.kind.as_deref())?;
        let spec = BucketSpec { flush_enabled: self.flush_enabled, ..spec };
        let policy = self.eviction_policy.as_deref().map(|policy| naming::policy_from(policy).to_owned());
        let own = [
            (Key::EvictionPolicy, policy),
            (Key::MaxTtl, self.max_ttl.as_ref().map(Plain::text)),
            (Key::CompressionMode, self.compression_mode.clone()),
        ];
        let own = own.into_iter().filter_map(|(key, value)| Some((naming::name_of(key), value?)));
        let mut pairs: Vec<(&str, String)> = own.collect();
        for (name, value) in &self.settings {
            self.check_place(name)?;
            pairs.push((name, value.text()));
        }
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        spec.set_all(&pairs)?;
        Ok(spec)
    }

    /// Whether a setting stands where it belongs.
    fn check_place(&self, name: &str) -> Result<(), ConfigError> {
        let failed = |error: SettingError| ConfigError::Setting { bucket: self.name.clone(), error };
        let setting = find(name).map_err(failed)?;
        match OWN_KEYS.iter().find(|(key, _)| *key == setting.key) {
            None => Ok(()),
            Some((_, key)) => {
                Err(ConfigError::SettingElsewhere { bucket: self.name.clone(), setting: setting.name, key })
            }
        }
    }
}

fn parse_quota(text: &str) -> Result<u64, ConfigError> {
    let refused = || ConfigError::Quota(text.to_owned());
    parse_size(text).ok().filter(|bytes| *bytes >= SMALLEST_QUOTA_BYTES).ok_or_else(refused)
}

/// Reads a number of bytes with its unit.
pub(super) fn parse_size(text: &str) -> Result<u64, ConfigError> {
    base::size::parse_bytes(text).ok_or_else(|| ConfigError::Size(text.to_owned()))
}
