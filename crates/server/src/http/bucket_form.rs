//! The form in which SDKs and scripts make and change a bucket.

use std::collections::BTreeMap;

use base::DurabilityLevel;
use engine::settings::Key;
use engine::{BucketKind, SettingError};

use super::settings::{Errors, name_in};
use crate::config::{BucketSpec, MOST_REPLICAS};
use crate::naming;
use crate::node_buckets::BucketChange;

/// Fields of the form that are settings here.
const SETTINGS: [(&str, Key); 5] = [
    ("ramQuota", Key::MaxSize),
    ("ramQuotaMB", Key::MaxSize),
    ("evictionPolicy", Key::EvictionPolicy),
    ("maxTTL", Key::MaxTtl),
    ("compressionMode", Key::CompressionMode),
];

/// Fields of the form that are the same for all buckets: SDKs send them with what they read before.
const FIXED: [(&str, &str); 8] = [
    ("threadsNumber", "3"),
    ("conflictResolutionType", "seqno"),
    ("authType", "sasl"),
    ("saslPassword", ""),
    ("autoCompactionDefined", "0"),
    ("historyRetentionCollectionDefault", "0"),
    ("historyRetentionBytes", "0"),
    ("historyRetentionSeconds", "0"),
];

/// Replicas of a bucket for those who do not say, as the field has it.
const DEFAULT_REPLICAS: u8 = 1;
/// The field's words for a name that cannot be one.
const NOT_A_NAME: &str = "Bucket name can only contain characters in range A-Z, a-z, 0-9 as well as underscore, \
                          period, dash & percent. Consult the documentation.";

/// What the form says, as far as it is valid.
#[derive(Default)]
pub(super) struct BucketForm {
    fields: BTreeMap<String, String>,
    errors: Errors,
}

/// What a form comes to, or what is wrong by the field that it is wrong with.
pub(super) type Read<T> = Result<T, Errors>;

impl BucketForm {
    /// Of these fields; of a field that is given twice the last one counts.
    pub(super) fn new(fields: Vec<(String, String)>) -> BucketForm {
        BucketForm { fields: fields.into_iter().collect(), errors: Errors::new() }
    }

    /// Notes what is wrong with a field.
    fn wrong(&mut self, field: &str, what: impl Into<String>) {
        self.errors.insert(field.to_owned(), what.into());
    }

    fn get(&self, field: &str) -> Option<String> {
        self.fields.get(field).cloned()
    }

    /// A bucket to be made, with `vbuckets` vBuckets like all others.
    pub(super) fn create(mut self, vbuckets: u16) -> Read<BucketSpec> {
        let name = self.get("name").unwrap_or_default();
        if name.is_empty() {
            self.wrong("name", "Bucket name needs to be specified");
        } else if !BucketSpec::is_name(&name) {
            self.wrong("name", NOT_A_NAME);
        }
        let kind = match self.get("bucketType") {
            None => Some(BucketKind::Persistent),
            Some(word) => naming::kind_from(&word),
        };
        if kind.is_none() {
            self.wrong("bucketType", "give membase (also called couchbase) or ephemeral");
        }
        let kind = kind.unwrap_or_default();
        let quota_field = if self.fields.contains_key("ramQuota") { "ramQuota" } else { "ramQuotaMB" };
        let quota_bytes = match self.get(quota_field).map(|text| mebibytes(&text)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(what)) => {
                self.wrong(quota_field, what);
                0
            }
            None => {
                self.wrong("ramQuota", "The RAM Quota must be specified and must be a positive integer.");
                0
            }
        };
        let change = self.change_of(kind, &name, vbuckets);
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let spec = BucketSpec::made(&name, quota_bytes, kind, &[])
            .map_err(|error| Errors::from([(quota_field.to_owned(), error.to_string())]))?;
        let pairs: Vec<(&str, &str)> =
            change.settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        spec.settings.set_all(kind, &pairs).map_err(|errors| by_field(&errors))?;
        Ok(BucketSpec {
            replicas: change.replicas.unwrap_or(DEFAULT_REPLICAS),
            flush_enabled: change.flush_enabled.unwrap_or(false),
            durability_min: change.durability_min.unwrap_or(None),
            ..spec
        })
    }

    /// What shall be different about a bucket.
    pub(super) fn change(mut self, spec: &BucketSpec, vbuckets: u16) -> Read<BucketChange> {
        let change = self.change_of(spec.kind, &spec.name, vbuckets);
        if self.errors.is_empty() { Ok(change) } else { Err(self.errors) }
    }

    fn change_of(&mut self, kind: BucketKind, name: &str, vbuckets: u16) -> BucketChange {
        let mut change = BucketChange::default();
        for (field, value) in std::mem::take(&mut self.fields) {
            if let Err(what) = read(&field, &value, kind, name, vbuckets, &mut change) {
                self.wrong(&field, what);
            }
        }
        let level = change.durability_min.flatten();
        if kind == BucketKind::Ephemeral && level.is_some_and(|level| level != DurabilityLevel::Majority) {
            self.wrong("durabilityMinLevel", "an ephemeral bucket has no disk: give none or majority");
        }
        change
    }
}

/// Takes one field.
fn read(
    field: &str,
    value: &str,
    kind: BucketKind,
    name: &str,
    vbuckets: u16,
    change: &mut BucketChange,
) -> Result<(), String> {
    if let Some((_, key)) = SETTINGS.iter().find(|(name, _)| *name == field) {
        let value = match key {
            Key::MaxSize => mebibytes(value)?.to_string(),
            Key::EvictionPolicy => naming::policy_from(value).to_owned(),
            _ => value.to_owned(),
        };
        change.settings.push((naming::name_of(*key), value));
        return Ok(());
    }
    match field {
        "replicaNumber" => {
            let replicas: Option<u8> = value.parse().ok().filter(|count| *count <= MOST_REPLICAS);
            change.replicas = Some(replicas.ok_or(format!("give a number from 0 to {MOST_REPLICAS}"))?);
            Ok(())
        }
        "flushEnabled" => {
            let enabled = match value {
                "0" | "false" => false,
                "1" | "true" => true,
                _ => return Err("flushEnabled can only be 1 or 0".to_owned()),
            };
            change.flush_enabled = Some(enabled);
            Ok(())
        }
        // About views, which there are not: SDKs send either.
        "replicaIndex" if ["0", "1", "false", "true"].contains(&value) => Ok(()),
        "replicaIndex" => Err("replicaIndex can only be 1 or 0".to_owned()),
        "durabilityMinLevel" => {
            let words = "give none, majority, majorityAndPersistActive or persistToMajority";
            change.durability_min = Some(naming::durability_from(value).ok_or(words)?);
            Ok(())
        }
        "name" => same(name, value),
        "bucketType" if naming::kind_from(value) == Some(kind) => Ok(()),
        "bucketType" => same(naming::bucket_type(kind), value),
        // Nothing is stored of an ephemeral bucket, whatever its clients call that.
        "storageBackend" if kind == BucketKind::Ephemeral && value == "couchstore" => Ok(()),
        "storageBackend" => same(naming::storage_backend(kind), value),
        "numVBuckets" => same(&vbuckets.to_string(), value),
        _ => match FIXED.iter().find(|(name, _)| *name == field) {
            Some((_, is)) => same(is, value),
            None => Err("there is no such field, or it cannot be changed".to_owned()),
        },
    }
}

/// Whether a field says what is so already.
fn same(is: &str, value: &str) -> Result<(), String> {
    let means_is = value == is || (is == "0" && value == "false");
    if means_is { Ok(()) } else { Err(format!("{value:?}: it is {is:?} and cannot be changed")) }
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let count: Option<u64> = text.parse().ok();
    let bytes = count.and_then(|count| count.checked_mul(1 << 20));
    bytes.ok_or_else(|| format!("{text:?}: give a number of MiB"))
}

/// What is wrong with settings, by the field of the form.
pub(super) fn by_field(errors: &[SettingError]) -> Errors {
    let field = |error: &SettingError| {
        let named = |(_, key): &&(&str, Key)| naming::name_of(*key) == name_in(error);
        let field = SETTINGS.iter().rev().find(named).map_or(name_in(error), |(field, _)| field);
        (field.to_owned(), error.to_string())
    };
    errors.iter().map(field).collect()
}
