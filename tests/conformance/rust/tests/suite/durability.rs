//! Durable writes are honoured truthfully or refused by the documented error; which of the two is printed.

use couchbase::durability_level::DurabilityLevel;
use couchbase::error::ErrorKind;
use couchbase::options::kv_binary_options::{AppendOptions, IncrementOptions};
use couchbase::options::kv_options::{
    InsertOptions, MutateInOptions, RemoveOptions, ReplaceOptions, UpsertOptions,
};
use couchbase::subdoc::mutate_in_specs::MutateInSpec;
use serde_json::json;

use crate::support::*;

const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::MAJORITY,
    DurabilityLevel::MAJORITY_AND_PERSIST_ACTIVE,
    DurabilityLevel::PERSIST_TO_MAJORITY,
];

/// True if the write was done, false if it was refused as impossible; anything else fails the test.
fn honoured(level: &DurabilityLevel, cas: SdkResult<u64>) -> bool {
    match cas {
        Ok(cas) => {
            assert_ne!(cas, 0);
            println!("durability {level}: honoured");
            true
        }
        Err(error) => {
            assert_eq!(*error.kind(), ErrorKind::DurabilityImpossible, "{error}");
            println!("durability {level}: refused");
            false
        }
    }
}

#[test]
fn upsert() {
    run(async |collection, _| {
        for level in LEVELS {
            let key = new_key();
            let options = UpsertOptions::new().durability_level(level.clone());
            let result = collection.upsert(&key, 1, options).await.map(|result| result.cas());
            assert_eq!(exists(&collection, &key).await, honoured(&level, result));
        }
    });
}

#[test]
fn insert() {
    run(async |collection, _| {
        for level in LEVELS {
            let key = new_key();
            let options = InsertOptions::new().durability_level(level.clone());
            let result = collection.insert(&key, 1, options).await.map(|result| result.cas());
            assert_eq!(exists(&collection, &key).await, honoured(&level, result));
        }
    });
}

#[test]
fn replace() {
    run(async |collection, key| {
        for level in LEVELS {
            collection.upsert(&key, 1, None).await.unwrap();
            let options = ReplaceOptions::new().durability_level(level.clone());
            let result = collection.replace(&key, 2, options).await.map(|result| result.cas());
            let replaced = content(&collection, &key).await == json!(2);
            assert_eq!(replaced, honoured(&level, result));
        }
    });
}

#[test]
fn remove() {
    run(async |collection, key| {
        for level in LEVELS {
            collection.upsert(&key, 1, None).await.unwrap();
            let options = RemoveOptions::new().durability_level(level.clone());
            let result = collection.remove(&key, options).await.map(|result| result.cas());
            assert_eq!(!exists(&collection, &key).await, honoured(&level, result));
        }
    });
}

#[test]
fn mutate_in() {
    run(async |collection, key| {
        for level in LEVELS {
            collection.upsert(&key, json!({"v": 1}), None).await.unwrap();
            let specs = [MutateInSpec::upsert("v", 2, None).unwrap()];
            let options = MutateInOptions::new().durability_level(level.clone());
            let result = collection.mutate_in(&key, &specs, options).await.map(|result| result.cas());
            let changed = content(&collection, &key).await == json!({"v": 2});
            assert_eq!(changed, honoured(&level, result));
        }
    });
}

#[test]
fn increment() {
    run(async |collection, _| {
        for level in LEVELS {
            let key = new_key();
            let options = IncrementOptions::new().initial(7).delta(1).durability_level(level.clone());
            let result = collection.binary().increment(&key, options).await.map(|result| result.cas());
            assert_eq!(exists(&collection, &key).await, honoured(&level, result));
        }
    });
}

#[test]
fn append() {
    run(async |collection, key| {
        for level in LEVELS {
            store_raw(&collection, &key, b"a").await.unwrap();
            let options = AppendOptions::new().durability_level(level.clone());
            let result = collection.binary().append(&key, b"b", options).await.map(|result| result.cas());
            assert_eq!(load_raw(&collection, &key).await == b"ab", honoured(&level, result));
        }
    });
}

#[test]
fn durable_replace_of_a_missing_document() {
    run(async |collection, key| {
        let options = ReplaceOptions::new().durability_level(DurabilityLevel::MAJORITY);
        refused(collection.replace(&key, 1, options).await, ErrorKind::DocumentNotFound);
    });
}
