//! Longest keys, largest values, and what is over the line.

use couchbase::error::ErrorKind;
use serde_json::json;

use crate::support::*;

const VALUE_LIMIT: usize = 20 * MIB;

fn padded(key: &str, length: usize) -> String {
    format!("{key}{}", "x".repeat(length - key.len()))
}

#[test]
fn key_of_one_byte() {
    run(async |collection, _| {
        collection.upsert("r", 1, None).await.unwrap();
        assert_eq!(content(&collection, "r").await, json!(1));
    });
}

#[test]
fn key_of_250_bytes() {
    run(async |collection, key| {
        let key = padded(&key, 250);
        collection.upsert(&key, 1, None).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(1));
    });
}

#[test]
fn key_of_251_bytes() {
    run(async |collection, key| {
        refused_as_invalid_argument(collection.upsert(padded(&key, 251), 1, None).await);
        refused_as_invalid_argument(collection.get(padded(&key, 251), None).await);
    });
}

#[test]
fn key_length_is_counted_in_bytes() {
    run(async |collection, _| {
        refused_as_invalid_argument(collection.upsert("é".repeat(126), 1, None).await);
    });
}

#[test]
fn empty_value() {
    run(async |collection, key| {
        store_raw(&collection, &key, b"").await.unwrap();
        assert_eq!(load_raw(&collection, &key).await, b"");
    });
}

#[test]
fn value_of_20_mib() {
    run(async |collection, key| {
        let value = incompressible(VALUE_LIMIT);
        store_raw(&collection, &key, &value).await.unwrap();
        assert!(load_raw(&collection, &key).await == value);
        collection.remove(&key, None).await.unwrap();
    });
}

#[test]
fn value_of_20_mib_and_a_byte() {
    run(async |collection, key| {
        let value = incompressible(VALUE_LIMIT + 1);
        refused(store_raw(&collection, &key, &value).await, ErrorKind::ValueTooLarge);
        assert!(!exists(&collection, &key).await);
    });
}

/// The SDK sends this as about 1 MiB of Snappy.
#[test]
fn value_that_is_too_large_only_when_inflated() {
    run(async |collection, key| {
        let value = vec![b'a'; VALUE_LIMIT + 1];
        refused(store_raw(&collection, &key, &value).await, ErrorKind::ValueTooLarge);
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn append_beyond_20_mib() {
    run(async |collection, key| {
        store_raw(&collection, &key, &vec![b'a'; VALUE_LIMIT]).await.unwrap();
        refused(collection.binary().append(&key, b"!", None).await, ErrorKind::ValueTooLarge);
        collection.remove(&key, None).await.unwrap();
    });
}

#[test]
fn connection_works_after_a_value_that_is_too_large() {
    run(async |collection, key| {
        let value = incompressible(VALUE_LIMIT + 1);
        refused(store_raw(&collection, &key, &value).await, ErrorKind::ValueTooLarge);
        collection.upsert(&key, "small", None).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!("small"));
    });
}
