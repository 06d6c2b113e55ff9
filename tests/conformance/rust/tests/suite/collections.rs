//! Scopes and collections that are not there.

use couchbase::collection::Collection;
use couchbase::error::ErrorKind;
use serde_json::json;
use tokio::time::timeout;

use crate::support::*;

#[test]
fn default_collection_by_name() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        let named = bucket().scope("_default").collection("_default");
        assert_eq!(content(&named, &key).await, json!(1));
    });
}

/// The SDK asks for the collection's id again and again, in case it is just being created.
async fn assert_unknown(absent: Collection, key: &str, kind: ErrorKind) {
    match timeout(SHORT, absent.get(key, None)).await {
        Err(_elapsed) => {}
        Ok(result) => refused(result, kind.clone()),
    }
    match timeout(SHORT, absent.upsert(key, 1, None)).await {
        Err(_elapsed) => {}
        Ok(result) => refused(result, kind),
    }
}

#[test]
fn unknown_collection() {
    run(async |collection, key| {
        let absent = bucket().scope("_default").collection("absent");
        assert_unknown(absent, &key, ErrorKind::CollectionNotFound).await;
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn unknown_scope() {
    run(async |collection, key| {
        let absent = bucket().scope("absent").collection("absent");
        assert_unknown(absent, &key, ErrorKind::ScopeNotFound).await;
        assert!(!exists(&collection, &key).await);
    });
}
