//! What clients and their management tools call kinds of buckets and policies, where the settings have other words.

use base::DurabilityLevel;
use engine::BucketKind;
use engine::settings::{Key, SETTINGS, Settings};
use kvstore::StorageBackend;

/// The words for eviction policies in REST and in the settings, in the order of the setting's choices.
const POLICIES: [(&str, &str); 4] = [
    ("valueOnly", "value_only"),
    ("fullEviction", "full_eviction"),
    ("nruEviction", "auto_delete"),
    ("noEviction", "fail_new_data"),
];

/// The kind that a configuration means, and the store of one on disk: the field has several words for those.
pub fn kind_from(text: &str) -> Option<(BucketKind, StorageBackend)> {
    match text {
        "couchstore" | "couchbase" | "membase" => Some((BucketKind::Persistent, StorageBackend::Couchstore)),
        "magma" => Some((BucketKind::Persistent, StorageBackend::LogStructured)),
        "rocksdb" => Some((BucketKind::Persistent, StorageBackend::RocksDb)),
        "ephemeral" => Some((BucketKind::Ephemeral, StorageBackend::default())),
        _ => None,
    }
}

/// The kind as cluster maps and bucket descriptions have it.
pub fn bucket_type(kind: BucketKind) -> &'static str {
    match kind {
        BucketKind::Persistent => "membase",
        BucketKind::Ephemeral => "ephemeral",
    }
}

/// The kind and the store as a configuration has them.
pub fn type_name(kind: BucketKind, backend: StorageBackend) -> &'static str {
    match kind {
        BucketKind::Persistent => backend.word(),
        BucketKind::Ephemeral => "ephemeral",
    }
}

/// What keeps the documents, as bucket descriptions have it.
pub fn storage_backend(kind: BucketKind, backend: StorageBackend) -> &'static str {
    match kind {
        BucketKind::Persistent => backend.word(),
        BucketKind::Ephemeral => "undefined",
    }
}

/// The store that a word means; nothing if it is no such word.
pub fn backend_from(text: &str) -> Option<StorageBackend> {
    StorageBackend::of_word(text)
}

/// Why a store cannot be chosen: this binary does not have it.
pub const NOT_BUILT_IN: &str = "this binary was built without RocksDB: use one that was built with `cargo build --release \
                                --features rocksdb`, or take couchstore or magma";

/// The eviction policy as bucket descriptions have it.
pub fn eviction_policy(settings: &Settings) -> &'static str {
    POLICIES.get(settings.get(Key::EvictionPolicy) as usize).map_or("", |(rest, _)| rest)
}

/// The setting's word for a policy that is written in either way; other words are left as they are.
pub fn policy_from(text: &str) -> &str {
    POLICIES.iter().find(|(rest, _)| *rest == text).map_or(text, |(_, setting)| setting)
}

/// The setting's word for a policy that a bucket of this kind can have.
pub fn policy_of(text: &str, kind: BucketKind) -> Option<&'static str> {
    let known = POLICIES.iter().find(|(rest, setting)| *rest == text || *setting == text);
    let (_, setting) = known?;
    let settings = Settings::default();
    let pairs = [(name_of(Key::EvictionPolicy), *setting)];
    settings.set_all(kind, &pairs).is_ok().then_some(setting)
}

/// The words for the least durability of a bucket's writes in REST.
const DURABILITY: [(&str, Option<DurabilityLevel>); 4] = [
    ("none", None),
    ("majority", Some(DurabilityLevel::Majority)),
    ("majorityAndPersistActive", Some(DurabilityLevel::MajorityAndPersistOnActive)),
    ("persistToMajority", Some(DurabilityLevel::PersistToMajority)),
];

/// The least durability as bucket descriptions have it.
pub fn durability(level: Option<DurabilityLevel>) -> &'static str {
    DURABILITY.iter().find(|(_, is)| *is == level).map_or("none", |(word, _)| word)
}

/// The least durability that a word means; nothing if it is no such word.
pub fn durability_from(text: &str) -> Option<Option<DurabilityLevel>> {
    DURABILITY.iter().find(|(word, _)| *word == text).map(|(_, level)| *level)
}

/// The words for what becomes of sync writes that lack replicas, in REST and in the settings.
const FALLBACKS: [(&str, &str); 2] =
    [("disabled", "disabled"), ("fallbackToActiveAck", "fallback_to_active_ack")];

/// What becomes of sync writes that lack replicas, as bucket descriptions have it.
pub fn fallback(settings: &Settings) -> &'static str {
    FALLBACKS.get(settings.get(Key::DurabilityImpossibleFallback) as usize).map_or("", |(rest, _)| rest)
}

/// The setting's word for it.
pub fn fallback_of(text: &str) -> Option<&'static str> {
    FALLBACKS.iter().find(|(rest, _)| *rest == text).map(|(_, setting)| *setting)
}

/// The name of a setting.
pub fn name_of(key: Key) -> &'static str {
    SETTINGS[key as usize].name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_stand_in_the_order_of_the_setting() {
        let policy = &SETTINGS[Key::EvictionPolicy as usize];
        for (at, (rest, word)) in POLICIES.iter().enumerate() {
            assert_eq!(policy.kind.parse(policy_from(rest)), Some(at as u64));
            assert_eq!(policy_from(word), *word);
            let settings = Settings::default();
            settings.put(Key::EvictionPolicy, at as u64);
            assert_eq!(eviction_policy(&settings), *rest);
        }
        assert_eq!(policy_from("lru"), "lru");
    }
}
