//! Pessimistic locks: get-and-lock, unlock, and what a locked document refuses.

use std::time::Duration;

use couchbase::collection::Collection;
use couchbase::error::ErrorKind;
use couchbase::options::kv_binary_options::{AppendOptions, IncrementOptions};
use couchbase::options::kv_options::{
    GetAndLockOptions, GetAndTouchOptions, MutateInOptions, RemoveOptions, ReplaceOptions, TouchOptions,
    UnlockOptions, UpsertOptions,
};
use couchbase::subdoc::mutate_in_specs::MutateInSpec;
use serde_json::json;
use tokio::time::timeout;

use crate::support::*;

const LOCK_TIME: Duration = Duration::from_secs(20);

/// Makes a document that stays locked for the length of a test; gives the CAS that unlocks it.
async fn lock(collection: &Collection, key: &str) -> u64 {
    collection.upsert(key, 1, None).await.unwrap();
    collection.get_and_lock(key, LOCK_TIME, None).await.unwrap().cas()
}

/// Unlocking is not tried again.
fn once() -> UnlockOptions {
    UnlockOptions::new().retry_strategy(fail_fast())
}

#[test]
fn get_and_lock_returns_the_document() {
    run(async |collection, key| {
        let before = collection.upsert(&key, 1, None).await.unwrap().cas();
        let got = collection.get_and_lock(&key, LOCK_TIME, None).await.unwrap();
        assert_eq!(got.content_as::<i64>().unwrap(), 1);
        assert!(got.cas() != 0 && got.cas() != before);
    });
}

#[test]
fn get_and_lock_of_a_missing_document() {
    run(async |collection, key| {
        refused(collection.get_and_lock(&key, LOCK_TIME, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn locked_document_is_readable_but_hides_its_cas() {
    run(async |collection, key| {
        let cas = lock(&collection, &key).await;
        assert_eq!(content(&collection, &key).await, json!(1));
        assert_ne!(collection.get(&key, None).await.unwrap().cas(), cas);
    });
}

#[test]
fn locked_document_refuses_a_second_lock() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = GetAndLockOptions::new().retry_strategy(fail_fast());
        refused(collection.get_and_lock(&key, LOCK_TIME, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn locked_document_refuses_upsert() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = UpsertOptions::new().retry_strategy(fail_fast());
        refused(collection.upsert(&key, 2, options).await, ErrorKind::DocumentLocked);
        assert_eq!(content(&collection, &key).await, json!(1));
    });
}

#[test]
fn locked_document_refuses_replace() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = ReplaceOptions::new().retry_strategy(fail_fast());
        refused(collection.replace(&key, 2, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn locked_document_refuses_remove() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = RemoveOptions::new().retry_strategy(fail_fast());
        refused(collection.remove(&key, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn locked_document_refuses_touch() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = TouchOptions::new().retry_strategy(fail_fast());
        refused(collection.touch(&key, HUNDRED, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn locked_document_refuses_get_and_touch() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = GetAndTouchOptions::new().retry_strategy(fail_fast());
        refused(collection.get_and_touch(&key, HUNDRED, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn locked_document_refuses_mutate_in() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let specs = [MutateInSpec::upsert("a", 1, None).unwrap()];
        let options = MutateInOptions::new().retry_strategy(fail_fast());
        refused(collection.mutate_in(&key, &specs, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn locked_document_refuses_increment_and_append() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        let options = IncrementOptions::new().delta(1).retry_strategy(fail_fast());
        refused(collection.binary().increment(&key, options).await, ErrorKind::DocumentLocked);
        let options = AppendOptions::new().retry_strategy(fail_fast());
        refused(collection.binary().append(&key, b"x", options).await, ErrorKind::DocumentLocked);
        assert_eq!(content(&collection, &key).await, json!(1));
    });
}

/// With its own retry strategy the SDK waits for the lock to end, for as long as the caller does.
#[test]
fn locked_document_is_retried() {
    run(async |collection, key| {
        lock(&collection, &key).await;
        assert!(timeout(SHORT, collection.upsert(&key, 2, None)).await.is_err());
    });
}

#[test]
fn replace_with_the_lock_cas_unlocks() {
    run(async |collection, key| {
        let cas = lock(&collection, &key).await;
        collection.replace(&key, 2, ReplaceOptions::new().cas(cas)).await.unwrap();
        let options = UpsertOptions::new().retry_strategy(fail_fast());
        collection.upsert(&key, 3, options).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(3));
    });
}

#[test]
fn remove_with_the_lock_cas() {
    run(async |collection, key| {
        let cas = lock(&collection, &key).await;
        collection.remove(&key, RemoveOptions::new().cas(cas)).await.unwrap();
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn unlock() {
    run(async |collection, key| {
        let cas = lock(&collection, &key).await;
        collection.unlock(&key, cas, None).await.unwrap();
        let options = UpsertOptions::new().retry_strategy(fail_fast());
        collection.upsert(&key, 2, options).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn unlock_with_the_wrong_cas() {
    run(async |collection, key| {
        let cas = lock(&collection, &key).await;
        refused(collection.unlock(&key, cas + 1, once()).await, ErrorKind::CasMismatch);
        let options = UpsertOptions::new().retry_strategy(fail_fast());
        refused(collection.upsert(&key, 2, options).await, ErrorKind::DocumentLocked);
    });
}

#[test]
fn unlock_of_an_unlocked_document() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, 1, None).await.unwrap().cas();
        refused(collection.unlock(&key, cas, once()).await, ErrorKind::DocumentNotLocked);
    });
}

#[test]
fn unlock_of_a_missing_document() {
    run(async |collection, key| {
        refused(collection.unlock(&key, 1, once()).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn lock_ends_by_itself() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        collection.get_and_lock(&key, Duration::from_secs(1), None).await.unwrap();
        timeout(EXPIRY_DEADLINE, collection.upsert(&key, 2, None)).await.expect("unlocked in time").unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}
