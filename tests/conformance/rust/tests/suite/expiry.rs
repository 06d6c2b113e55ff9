//! Expiry: set, read back, kept, cleared, and documents that go when it comes.

use std::time::Duration;

use couchbase::error::ErrorKind;
use couchbase::options::kv_binary_options::IncrementOptions;
use couchbase::options::kv_options::{InsertOptions, MutateInOptions, ReplaceOptions, UpsertOptions};
use couchbase::subdoc::mutate_in_specs::MutateInSpec;
use serde_json::json;

use crate::support::*;

const SECOND: Duration = Duration::from_secs(1);
const SIXTY_DAYS: Duration = Duration::from_secs(60 * 24 * 60 * 60);

#[test]
fn document_without_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        assert_eq!(stored_expiry(&collection, &key).await, 0);
    });
}

#[test]
fn upsert_with_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(HUNDRED)).await.unwrap();
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn insert_with_expiry() {
    run(async |collection, key| {
        collection.insert(&key, 1, InsertOptions::new().expiry(HUNDRED)).await.unwrap();
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn replace_with_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        collection.replace(&key, 2, ReplaceOptions::new().expiry(HUNDRED)).await.unwrap();
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

/// From 30 days on the SDK sends a point in time instead of a number of seconds.
#[test]
fn expiry_beyond_thirty_days() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(SIXTY_DAYS)).await.unwrap();
        assert_expires_in(&collection, &key, SIXTY_DAYS).await;
    });
}

#[test]
fn upserted_document_expires() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(SECOND)).await.unwrap();
        wait_until_gone(&collection, &key).await;
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn expired_document_may_be_inserted_again() {
    run(async |collection, key| {
        collection.insert(&key, 1, InsertOptions::new().expiry(SECOND)).await.unwrap();
        wait_until_gone(&collection, &key).await;
        collection.insert(&key, 2, None).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn replace_of_an_expired_document() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(SECOND)).await.unwrap();
        wait_until_gone(&collection, &key).await;
        refused(collection.replace(&key, 2, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn touched_document_expires() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        collection.touch(&key, SECOND, None).await.unwrap();
        wait_until_gone(&collection, &key).await;
    });
}

#[test]
fn touch_sets_an_expiry() {
    run(async |collection, key| {
        let before = collection.upsert(&key, 1, None).await.unwrap().cas();
        let touched = collection.touch(&key, HUNDRED, None).await.unwrap().cas();
        assert!(touched != 0 && touched != before);
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn touch_of_a_missing_document() {
    run(async |collection, key| {
        refused(collection.touch(&key, HUNDRED, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn get_and_touch() {
    run(async |collection, key| {
        collection.upsert(&key, 7, None).await.unwrap();
        let got = collection.get_and_touch(&key, HUNDRED, None).await.unwrap();
        assert_eq!(got.content_as::<i64>().unwrap(), 7);
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn get_and_touch_of_a_missing_document() {
    run(async |collection, key| {
        refused(collection.get_and_touch(&key, HUNDRED, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn upsert_clears_the_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(HUNDRED)).await.unwrap();
        collection.upsert(&key, 2, None).await.unwrap();
        assert_eq!(stored_expiry(&collection, &key).await, 0);
    });
}

#[test]
fn upsert_preserves_the_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(HUNDRED)).await.unwrap();
        collection.upsert(&key, 2, UpsertOptions::new().preserve_expiry(true)).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn replace_preserves_the_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, 1, UpsertOptions::new().expiry(HUNDRED)).await.unwrap();
        collection.replace(&key, 2, ReplaceOptions::new().preserve_expiry(true)).await.unwrap();
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn mutate_in_preserves_the_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, json!({}), UpsertOptions::new().expiry(HUNDRED)).await.unwrap();
        let specs = [MutateInSpec::upsert("w", 2, None).unwrap()];
        collection.mutate_in(&key, &specs, MutateInOptions::new().preserve_expiry(true)).await.unwrap();
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn mutate_in_with_expiry() {
    run(async |collection, key| {
        collection.upsert(&key, json!({}), None).await.unwrap();
        let specs = [MutateInSpec::upsert("w", 2, None).unwrap()];
        collection.mutate_in(&key, &specs, MutateInOptions::new().expiry(HUNDRED)).await.unwrap();
        assert_expires_in(&collection, &key, HUNDRED).await;
    });
}

#[test]
fn counter_created_with_expiry_expires() {
    run(async |collection, key| {
        let options = IncrementOptions::new().initial(5).delta(1).expiry(SECOND);
        collection.binary().increment(&key, options).await.unwrap();
        wait_until_gone(&collection, &key).await;
    });
}
