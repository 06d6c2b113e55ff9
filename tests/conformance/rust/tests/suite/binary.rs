//! Append, prepend and the counters of the binary collection.

use couchbase::collection::Collection;
use couchbase::error::ErrorKind;
use couchbase::options::kv_binary_options::{
    AppendOptions, DecrementOptions, IncrementOptions, PrependOptions,
};
use couchbase::results::kv_binary_results::CounterResult;
use serde_json::json;

use crate::support::*;

async fn increment(collection: &Collection, key: &str, delta: u64, initial: u64) -> CounterResult {
    let options = IncrementOptions::new().delta(delta).initial(initial);
    collection.binary().increment(key, options).await.unwrap()
}

async fn decrement(collection: &Collection, key: &str, delta: u64, initial: u64) -> CounterResult {
    let options = DecrementOptions::new().delta(delta).initial(initial);
    collection.binary().decrement(key, options).await.unwrap()
}

#[test]
fn append() {
    run(async |collection, key| {
        let before = store_raw(&collection, &key, b"middle").await.unwrap();
        let result = collection.binary().append(&key, b"-end", None).await.unwrap();
        assert!(result.cas() != 0 && result.cas() != before);
        assert!(result.mutation_token().unwrap().sequence_number() > 0);
        assert_eq!(load_raw(&collection, &key).await, b"middle-end");
    });
}

#[test]
fn prepend() {
    run(async |collection, key| {
        store_raw(&collection, &key, b"middle").await.unwrap();
        collection.binary().prepend(&key, b"begin-", None).await.unwrap();
        assert_eq!(load_raw(&collection, &key).await, b"begin-middle");
    });
}

#[test]
fn append_of_bytes_that_are_not_text() {
    run(async |collection, key| {
        store_raw(&collection, &key, b"\x00\x01").await.unwrap();
        collection.binary().append(&key, b"\xff\xfe\x00", None).await.unwrap();
        assert_eq!(load_raw(&collection, &key).await, b"\x00\x01\xff\xfe\x00");
    });
}

#[test]
fn append_to_a_missing_document() {
    run(async |collection, key| {
        refused(collection.binary().append(&key, b"x", None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn prepend_to_a_missing_document() {
    run(async |collection, key| {
        refused(collection.binary().prepend(&key, b"x", None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn append_with_the_right_cas() {
    run(async |collection, key| {
        let cas = store_raw(&collection, &key, b"a").await.unwrap();
        collection.binary().append(&key, b"b", AppendOptions::new().cas(cas)).await.unwrap();
        assert_eq!(load_raw(&collection, &key).await, b"ab");
    });
}

#[test]
fn append_with_a_stale_cas() {
    run(async |collection, key| {
        let stale = store_raw(&collection, &key, b"a").await.unwrap();
        store_raw(&collection, &key, b"b").await.unwrap();
        let result = collection.binary().append(&key, b"c", AppendOptions::new().cas(stale)).await;
        refused(result, ErrorKind::CasMismatch);
        assert_eq!(load_raw(&collection, &key).await, b"b");
    });
}

#[test]
fn prepend_with_a_stale_cas() {
    run(async |collection, key| {
        let stale = store_raw(&collection, &key, b"a").await.unwrap();
        store_raw(&collection, &key, b"b").await.unwrap();
        let result = collection.binary().prepend(&key, b"c", PrependOptions::new().cas(stale)).await;
        refused(result, ErrorKind::CasMismatch);
    });
}

#[test]
fn increment_creates_with_the_initial_value() {
    run(async |collection, key| assert_eq!(increment(&collection, &key, 5, 100).await.content(), 100));
}

#[test]
fn increment_adds_the_delta() {
    run(async |collection, key| {
        increment(&collection, &key, 1, 100).await;
        assert_eq!(increment(&collection, &key, 5, 0).await.content(), 105);
    });
}

#[test]
fn increment_without_initial_does_not_create() {
    run(async |collection, key| {
        let result = collection.binary().increment(&key, IncrementOptions::new().delta(1)).await;
        refused(result, ErrorKind::DocumentNotFound);
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn decrement_creates_with_the_initial_value() {
    run(async |collection, key| assert_eq!(decrement(&collection, &key, 5, 100).await.content(), 100));
}

#[test]
fn decrement_subtracts_the_delta() {
    run(async |collection, key| {
        increment(&collection, &key, 1, 100).await;
        assert_eq!(decrement(&collection, &key, 30, 0).await.content(), 70);
    });
}

#[test]
fn decrement_stops_at_zero() {
    run(async |collection, key| {
        increment(&collection, &key, 1, 3).await;
        assert_eq!(decrement(&collection, &key, 10, 0).await.content(), 0);
        assert_eq!(decrement(&collection, &key, 1, 0).await.content(), 0);
    });
}

#[test]
fn decrement_without_initial_does_not_create() {
    run(async |collection, key| {
        let result = collection.binary().decrement(&key, DecrementOptions::new().delta(1)).await;
        refused(result, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn counter_is_stored_as_decimal_text() {
    run(async |collection, key| {
        increment(&collection, &key, 1, 41).await;
        increment(&collection, &key, 1, 0).await;
        assert_eq!(content(&collection, &key).await, json!(42));
    });
}

#[test]
fn counter_on_a_document_written_as_a_json_number() {
    run(async |collection, key| {
        collection.upsert(&key, 7, None).await.unwrap();
        assert_eq!(increment(&collection, &key, 3, 0).await.content(), 10);
    });
}

#[test]
fn counter_beyond_32_bits() {
    run(async |collection, key| {
        increment(&collection, &key, 1, 1 << 40).await;
        assert_eq!(increment(&collection, &key, 1 << 40, 0).await.content(), 1 << 41);
    });
}

#[test]
fn counter_wraps() {
    run(async |collection, key| {
        increment(&collection, &key, 1, u64::MAX).await;
        assert_eq!(increment(&collection, &key, 2, 0).await.content(), 1);
    });
}

#[test]
fn counter_of_a_document_that_is_not_a_number() {
    run(async |collection, key| {
        collection.upsert(&key, json!({"v": 1}), None).await.unwrap();
        let result = collection.binary().increment(&key, IncrementOptions::new().delta(1)).await;
        refused(result, ErrorKind::DeltaInvalid);
        let result = collection.binary().decrement(&key, DecrementOptions::new().delta(1)).await;
        refused(result, ErrorKind::DeltaInvalid);
        assert_eq!(content(&collection, &key).await, json!({"v": 1}));
    });
}

#[test]
fn counter_returns_cas_and_mutation_token() {
    run(async |collection, key| {
        let result = increment(&collection, &key, 1, 1).await;
        assert_ne!(result.cas(), 0);
        assert_eq!(result.cas(), collection.get(&key, None).await.unwrap().cas());
        assert!(result.mutation_token().unwrap().sequence_number() > 0);
    });
}
