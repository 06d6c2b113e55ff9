//! The form in which SDKs and scripts make and change a bucket.

use std::collections::BTreeMap;

use base::DurabilityLevel;
use engine::settings::{Key, SETTINGS as ROWS};
use engine::{BucketKind, HISTORY_NEEDS_LOG, SettingError};
use kvstore::StorageBackend;

use crate::config::{BucketSpec, MOST_REPLICAS};
use crate::management::BucketChange;
use crate::naming;

/// Fields of the form that are settings here.
const SETTINGS: [(&str, Key); 10] = [
    ("ramQuota", Key::MaxSize),
    ("ramQuotaMB", Key::MaxSize),
    ("evictionPolicy", Key::EvictionPolicy),
    ("maxTTL", Key::MaxTtl),
    ("compressionMode", Key::CompressionMode),
    ("durabilityImpossibleFallback", Key::DurabilityImpossibleFallback),
    ("encryptionAtRest", Key::EncryptionAtRest),
    ("historyRetentionSeconds", Key::HistorySeconds),
    ("historyRetentionBytes", Key::HistoryBytes),
    ("historyRetentionCollectionDefault", Key::HistoryOfCollections),
];

/// The field of the form that changes a setting for good, if there is one.
pub fn field_of(key: Key) -> Option<&'static str> {
    match key {
        Key::DurabilityMinLevel => Some("durabilityMinLevel"),
        key => SETTINGS.iter().find(|(_, of)| *of == key).map(|(field, _)| *field),
    }
}

/// Fields of the form that have one value here. What the form says besides these and those that are read is ignored, as
/// the field's server ignores what it does not know.
const FIXED: [(&str, &str, &str); 1] =
    [("autoCompactionDefined", "0", "compaction is set for all buckets, in the configuration file")];

/// The fewest and the most threads that a bucket can be given.
const THREADS: std::ops::RangeInclusive<u8> = 2..=8;
/// The highest rank.
const MOST_RANK: u16 = 1000;
/// Replicas of a bucket for those who do not say, as the field has it.
const DEFAULT_REPLICAS: u8 = 1;
/// The field's words for a name that cannot be one.
const NOT_A_NAME: &str = "Bucket name can only contain characters in range A-Z, a-z, 0-9 as well as underscore, \
                          period, dash & percent. Consult the documentation.";
/// The field's words for a quota that is missing or no number.
const NO_QUOTA: &str = "The RAM Quota must be specified and must be a positive integer.";
/// The field's server says no more than that the type is invalid.
const WRONG_TYPE: &str = "invalid bucket type: it must be 'membase' (or 'couchbase' or 'couchstore'), 'magma', 'rocksdb' or 'ephemeral'";

/// What the form says, as far as it is valid.
#[derive(Default)]
pub struct BucketForm {
    fields: BTreeMap<String, String>,
    errors: Errors,
}

/// What is wrong, by field.
pub type Errors = BTreeMap<String, String>;

/// What a form comes to, or what is wrong by the field that it is wrong with.
pub type Read<T> = Result<T, Errors>;

impl BucketForm {
    /// Of these fields; of a field that is given twice the first one counts.
    pub fn new(fields: Vec<(String, String)>) -> BucketForm {
        let fields = fields.into_iter().rev().collect();
        BucketForm { fields, errors: Errors::new() }
    }

    /// Notes what is wrong with a field.
    fn wrong(&mut self, field: &str, what: impl Into<String>) {
        self.errors.insert(field.to_owned(), what.into());
    }

    fn get(&self, field: &str) -> Option<String> {
        self.fields.get(field).cloned()
    }

    /// A bucket to be made, with `vbuckets` vBuckets like all others.
    pub fn create(mut self, vbuckets: u16) -> Read<BucketSpec> {
        let name = self.get("name");
        if let Some(what) = wrong_name(name.as_deref()) {
            self.wrong("name", what);
        }
        let kind = self.get("bucketType").map_or(Some(Default::default()), |word| naming::kind_from(&word));
        if kind.is_none() {
            self.wrong("bucketType", WRONG_TYPE);
        }
        let (kind, of_type) = kind.unwrap_or_default();
        // A word that is none is told below.
        let asked = self.get("storageBackend").filter(|_| kind == BucketKind::Persistent);
        let backend = asked.and_then(|word| naming::backend_from(&word)).unwrap_or(of_type);
        if !backend.is_built_in() {
            self.wrong("storageBackend", naming::NOT_BUILT_IN);
        }
        let quota_bytes = match self.get("ramQuota").or_else(|| self.get("ramQuotaMB")) {
            Some(text) => mebibytes(&text),
            None => Err(NO_QUOTA.to_owned()),
        };
        let quota_bytes = quota_bytes.unwrap_or_else(|what| {
            self.wrong("ramQuota", what);
            0
        });
        let change = self.read_all(&Reading { kind, backend, vbuckets, is_new: true });
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let spec = BucketSpec::made(&name.unwrap_or_default(), quota_bytes, kind, &[])
            .map_err(|error| Errors::from([("ramQuota".to_owned(), error.to_string())]))?;
        spec.keep_in(backend);
        spec.settings.set_all(kind, &change.pairs()).map_err(|errors| by_field(&errors))?;
        Ok(BucketSpec {
            backend,
            replicas: change.replicas.unwrap_or(DEFAULT_REPLICAS),
            flush_enabled: change.flush_enabled.unwrap_or(false),
            durability_min: change.durability_min.unwrap_or(None),
            hints: change.hints,
            ..spec
        })
    }

    /// What shall be different about a bucket.
    pub fn change(mut self, spec: &BucketSpec, vbuckets: u16) -> Read<BucketChange> {
        let change =
            self.read_all(&Reading { kind: spec.kind, backend: spec.backend, vbuckets, is_new: false });
        if self.errors.is_empty() { Ok(change) } else { Err(self.errors) }
    }

    fn read_all(&mut self, reading: &Reading) -> BucketChange {
        let mut change = BucketChange::default();
        for (field, value) in std::mem::take(&mut self.fields) {
            if let Err((field, what)) = reading.take(&field, &value, &mut change) {
                // What is wrong with the quota of a new bucket was told already.
                self.errors.entry(field.to_owned()).or_insert(what);
            }
        }
        change
    }
}

/// What is wrong with the name of a bucket to be made.
fn wrong_name(name: Option<&str>) -> Option<&'static str> {
    match name {
        None => Some("Bucket name needs to be specified"),
        Some("") => Some("Bucket name cannot be empty"),
        Some(name) if name.len() > 100 => Some("Bucket name cannot exceed 100 characters"),
        Some(name) if name.starts_with('.') => Some("Bucket name cannot start with dot."),
        Some(name) if !BucketSpec::is_name(name) => Some(NOT_A_NAME),
        Some(_) => None,
    }
}

/// What is wrong, with the field that it is told for.
type Wrong<'a> = (&'a str, String);

/// What the fields of a form are about.
struct Reading {
    kind: BucketKind,
    backend: StorageBackend,
    vbuckets: u16,
    is_new: bool,
}

impl Reading {
    /// Takes one field.
    fn take<'a>(&self, field: &'a str, value: &str, change: &mut BucketChange) -> Result<(), Wrong<'a>> {
        if let Some((_, key)) = SETTINGS.iter().find(|(name, _)| *name == field) {
            return self.take_setting(field, *key, value, change);
        }
        let told = |what: String| (field, what);
        match field {
            "replicaNumber" => change.replicas = Some(replicas(value).map_err(told)?),
            "flushEnabled" => change.flush_enabled = Some(switch(field, value).map_err(told)?),
            "durabilityMinLevel" => {
                let level = naming::durability_from(value).filter(|level| self.may_be(*level));
                let level =
                    level.ok_or_else(|| ("durability_min_level", self.durability_words().to_owned()))?;
                change.durability_min = Some(level);
            }
            "threadsNumber" => {
                let threads = value.parse().ok().filter(|count| THREADS.contains(count));
                change.hints.threads = Some(threads.ok_or_else(|| told(wrong_threads(value)))?);
            }
            "rank" => {
                let rank = value.parse().ok().filter(|rank| *rank <= MOST_RANK);
                let wrong = || format!("Rank must be in the range 0-{MOST_RANK}. Got '{value}' instead.");
                change.hints.rank = Some(rank.ok_or_else(|| told(wrong()))?);
            }
            _ => return self.check(field, value, change).map_err(told),
        }
        Ok(())
    }

    fn take_setting<'a>(
        &self,
        field: &'a str,
        key: Key,
        value: &str,
        change: &mut BucketChange,
    ) -> Result<(), Wrong<'a>> {
        let value = match key {
            Key::MaxSize => mebibytes(value).map_err(|what| ("ramQuota", what))?.to_string(),
            Key::EvictionPolicy => {
                let policy = naming::policy_of(value, self.kind);
                policy.ok_or_else(|| (field, self.policy_words().to_owned()))?.to_owned()
            }
            Key::CompressionMode if !["off", "passive", "active"].contains(&value) => {
                return Err((field, "compressionMode can be set to 'off', 'passive' or 'active'".to_owned()));
            }
            Key::MaxTtl if value.parse::<i32>().ok().is_none_or(|ttl| ttl < 0) => {
                return Err((field, format!("Max TTL must be an integer between 0 and {}", i32::MAX)));
            }
            Key::DurabilityImpossibleFallback => {
                let words =
                    "Durability impossible fallback must be either 'disabled' or 'fallbackToActiveAck'";
                let word = naming::fallback_of(value);
                word.ok_or_else(|| ("durability_impossible_fallback", words.to_owned()))?.to_owned()
            }
            Key::HistorySeconds | Key::HistoryBytes if value.parse::<u64>().is_err() => {
                return Err((field, format!("{field} must be a non-negative integer")));
            }
            Key::HistorySeconds | Key::HistoryBytes
                if value.parse() != Ok(0u64) && self.backend != StorageBackend::LogStructured =>
            {
                return Err((field, HISTORY_NEEDS_LOG.to_owned()));
            }
            Key::HistoryOfCollections => {
                let is_on = switch(field, value).map_err(|what| (field, what))?;
                if self.backend != StorageBackend::LogStructured {
                    let refused = is_on.then(|| (field, HISTORY_NEEDS_LOG.to_owned()));
                    return refused.map_or(Ok(()), Err);
                }
                is_on.to_string()
            }
            Key::EncryptionAtRest => switch(field, value).map_err(|what| (field, what))?.to_string(),
            _ => value.to_owned(),
        };
        change.settings.push((naming::name_of(key), value));
        Ok(())
    }

    /// Fields that a bucket has from its beginning.
    fn check(&self, field: &str, value: &str, change: &mut BucketChange) -> Result<(), String> {
        let is_disk = self.kind == BucketKind::Persistent;
        match field {
            "replicaIndex" if self.is_new && !is_disk => {
                Err("replicaIndex not supported for ephemeral buckets".to_owned())
            }
            "replicaIndex" if self.is_new => {
                change.hints.replica_index = Some(switch(field, value)?);
                Ok(())
            }
            "storageBackend" if is_disk => match naming::backend_from(value) {
                None => Err(format!("{value:?}: storage backend must be 'couchstore', 'magma' or 'rocksdb'")),
                Some(backend) if backend != self.backend => {
                    let is = naming::storage_backend(self.kind, self.backend);
                    Err(format!(
                        "Storage backend of a bucket cannot be changed here, it is {is}: stave migrate BUCKET --backend \
                         {value} moves it while it serves"
                    ))
                }
                Some(_) => Ok(()),
            },
            "conflictResolutionType" if !self.is_new => {
                Err("Conflict resolution type not allowed in update bucket".to_owned())
            }
            "conflictResolutionType" => {
                let rule = &ROWS[Key::ConflictResolution as usize];
                rule.parse(value).map_err(|_| {
                    format!("{value:?}: conflict resolution type must be one of: 'seqno' or 'lww'")
                })?;
                change.settings.push((rule.name, value.to_owned()));
                Ok(())
            }
            "numVBuckets" if value != self.vbuckets.to_string() => {
                Err(format!("Number of vbuckets must be {}, as of all buckets of this node", self.vbuckets))
            }
            _ => match FIXED.iter().find(|(name, ..)| *name == field) {
                Some((_, is, _)) if value == *is || value == "false" => Ok(()),
                Some((_, _, what)) => Err((*what).to_owned()),
                None => Ok(()),
            },
        }
    }

    /// Whether this may be the least durability of a bucket of this kind.
    fn may_be(&self, level: Option<DurabilityLevel>) -> bool {
        self.kind == BucketKind::Persistent || level.is_none_or(|level| level == DurabilityLevel::Majority)
    }

    fn durability_words(&self) -> &'static str {
        match self.kind {
            BucketKind::Persistent => {
                "Durability minimum level must be one of 'none', 'majority', 'majorityAndPersistActive', or \
                 'persistToMajority'"
            }
            BucketKind::Ephemeral => {
                "Durability minimum level must be either 'none' or 'majority' for ephemeral buckets"
            }
        }
    }

    fn policy_words(&self) -> &'static str {
        match self.kind {
            BucketKind::Persistent => {
                "Eviction policy must be either 'valueOnly' or 'fullEviction' for couchbase buckets"
            }
            BucketKind::Ephemeral => {
                "Eviction policy must be either 'noEviction' or 'nruEviction' for ephemeral buckets"
            }
        }
    }
}

fn replicas(value: &str) -> Result<u8, String> {
    match value.parse::<i64>() {
        Err(_) => Err("The replica number must be specified and must be a non-negative integer.".to_owned()),
        Ok(count) if count < 0 => Err("The replica number cannot be negative.".to_owned()),
        Ok(count) => u8::try_from(count)
            .ok()
            .filter(|count| *count <= MOST_REPLICAS)
            .ok_or_else(|| format!("Replica number larger than {MOST_REPLICAS} is not supported.")),
    }
}

fn wrong_threads(value: &str) -> String {
    let (least, most) = (THREADS.start(), THREADS.end());
    match value.parse::<i64>() {
        Err(_) => format!("The number of threads must be an integer between {least} and {most}, inclusive"),
        Ok(count) if count < i64::from(*least) => format!("The number of threads can't be less than {least}"),
        Ok(_) => format!("The number of threads can't be greater than {most}"),
    }
}

/// SDKs send either pair of words.
fn switch(field: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(format!("{field} can only be 1 or 0")),
    }
}

fn mebibytes(text: &str) -> Result<u64, String> {
    match text.parse::<i128>() {
        Err(_) => Err(NO_QUOTA.to_owned()),
        Ok(count) if count < 0 => Err("The RAM Quota cannot be negative.".to_owned()),
        // More than any machine has is refused where quotas are compared.
        Ok(count) => Ok(u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(1 << 20).min(1 << 50)),
    }
}

/// What is wrong with settings, by the field of the form.
pub fn by_field(errors: &[SettingError]) -> Errors {
    let field = |error: &SettingError| {
        let named = |(_, key): &&(&str, Key)| naming::name_of(*key) == name_in(error);
        let field = SETTINGS.iter().find(named).map_or(name_in(error), |(field, _)| field);
        (field.to_owned(), error.to_string())
    };
    errors.iter().map(field).collect()
}

/// What is wrong with settings, by their names.
pub fn by_setting(errors: &[SettingError]) -> Errors {
    errors.iter().map(|error| (name_in(error).to_owned(), error.to_string())).collect()
}

fn name_in(error: &SettingError) -> &str {
    match error {
        SettingError::Unknown(name) => name,
        SettingError::Value { name, .. } | SettingError::Conflict { name, .. } => name,
    }
}
