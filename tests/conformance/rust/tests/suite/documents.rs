//! Insert, upsert, replace, get, remove, exists, CAS, mutation tokens and projections.

use couchbase::error::ErrorKind;
use couchbase::options::kv_options::{GetOptions, RemoveOptions, ReplaceOptions};
use serde_json::{Value, json};

use crate::support::*;

fn doc() -> Value {
    json!({"name": "stave", "count": 3, "nested": {"list": [1, 2.5, null, true], "empty": {}}})
}

#[test]
fn upsert_then_get() {
    run(async |collection, key| {
        let written = collection.upsert(&key, doc(), None).await.unwrap();
        let got = collection.get(&key, None).await.unwrap();
        assert_eq!(got.content_as::<Value>().unwrap(), doc());
        assert_ne!(got.cas(), 0);
        assert_eq!(got.cas(), written.cas());
    });
}

#[test]
fn upsert_overwrites_and_changes_the_cas() {
    run(async |collection, key| {
        let first = collection.upsert(&key, 1, None).await.unwrap();
        let second = collection.upsert(&key, 2, None).await.unwrap();
        assert_ne!(first.cas(), second.cas());
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn cas_grows_from_write_to_write() {
    run(async |collection, key| {
        let mut last = 0;
        for n in 0..20 {
            let cas = collection.upsert(&key, n, None).await.unwrap().cas();
            assert!(cas > last);
            last = cas;
        }
    });
}

#[test]
fn get_of_a_missing_document() {
    run(async |collection, key| refused(collection.get(&key, None).await, ErrorKind::DocumentNotFound));
}

#[test]
fn insert_then_get() {
    run(async |collection, key| {
        let cas = collection.insert(&key, doc(), None).await.unwrap().cas();
        assert_eq!(collection.get(&key, None).await.unwrap().cas(), cas);
    });
}

#[test]
fn insert_of_an_existing_document() {
    run(async |collection, key| {
        collection.insert(&key, 1, None).await.unwrap();
        refused(collection.insert(&key, 2, None).await, ErrorKind::DocumentExists);
        assert_eq!(content(&collection, &key).await, json!(1));
    });
}

#[test]
fn insert_after_remove() {
    run(async |collection, key| {
        collection.insert(&key, 1, None).await.unwrap();
        collection.remove(&key, None).await.unwrap();
        collection.insert(&key, 2, None).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn replace() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        collection.replace(&key, 2, None).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn replace_of_a_missing_document() {
    run(async |collection, key| {
        refused(collection.replace(&key, 1, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn replace_with_the_right_cas() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, 1, None).await.unwrap().cas();
        collection.replace(&key, 2, ReplaceOptions::new().cas(cas)).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn replace_with_a_stale_cas() {
    run(async |collection, key| {
        let stale = collection.upsert(&key, 1, None).await.unwrap().cas();
        collection.upsert(&key, 2, None).await.unwrap();
        let result = collection.replace(&key, 3, ReplaceOptions::new().cas(stale)).await;
        refused(result, ErrorKind::CasMismatch);
        assert_eq!(content(&collection, &key).await, json!(2));
    });
}

#[test]
fn replace_with_a_cas_of_a_missing_document() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, 1, None).await.unwrap().cas();
        collection.remove(&key, None).await.unwrap();
        let result = collection.replace(&key, 2, ReplaceOptions::new().cas(cas)).await;
        refused(result, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn remove() {
    run(async |collection, key| {
        let written = collection.upsert(&key, 1, None).await.unwrap().cas();
        let removed = collection.remove(&key, None).await.unwrap().cas();
        assert!(removed != 0 && removed != written);
        refused(collection.get(&key, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn remove_of_a_missing_document() {
    run(async |collection, key| refused(collection.remove(&key, None).await, ErrorKind::DocumentNotFound));
}

#[test]
fn remove_twice() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        collection.remove(&key, None).await.unwrap();
        refused(collection.remove(&key, None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn remove_with_the_right_cas() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, 1, None).await.unwrap().cas();
        collection.remove(&key, RemoveOptions::new().cas(cas)).await.unwrap();
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn remove_with_a_stale_cas() {
    run(async |collection, key| {
        let stale = collection.upsert(&key, 1, None).await.unwrap().cas();
        collection.upsert(&key, 2, None).await.unwrap();
        let result = collection.remove(&key, RemoveOptions::new().cas(stale)).await;
        refused(result, ErrorKind::CasMismatch);
        assert!(exists(&collection, &key).await);
    });
}

#[test]
fn exists_of_a_document() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, 1, None).await.unwrap().cas();
        let result = collection.exists(&key, None).await.unwrap();
        assert!(result.exists());
        assert_eq!(result.cas(), cas);
    });
}

#[test]
fn exists_of_a_missing_document() {
    run(async |collection, key| assert!(!exists(&collection, &key).await));
}

#[test]
fn exists_of_a_removed_document() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        collection.remove(&key, None).await.unwrap();
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn every_write_returns_a_mutation_token() {
    run(async |collection, key| {
        let writes = [
            collection.insert(&key, 1, None).await.unwrap(),
            collection.upsert(&key, 2, None).await.unwrap(),
            collection.replace(&key, 3, None).await.unwrap(),
            collection.remove(&key, None).await.unwrap(),
        ];
        let mut last = 0;
        for write in writes {
            let token = write.mutation_token().expect("a mutation token");
            assert_eq!(token.bucket_name(), env("STAVE_BUCKET"));
            assert_ne!(token.partition_uuid(), 0);
            assert!(token.partition_id() < 1024);
            assert!(token.sequence_number() > last);
            last = token.sequence_number();
        }
    });
}

async fn project(collection: &couchbase::collection::Collection, key: &str, paths: &[&str]) -> Value {
    let paths = paths.iter().map(|path| path.to_string()).collect();
    collection.get(key, GetOptions::new().projections(paths)).await.unwrap().content_as().unwrap()
}

#[test]
fn projection() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let got = project(&collection, &key, &["name", "nested.list"]).await;
        assert_eq!(got, json!({"name": "stave", "nested": {"list": [1, 2.5, null, true]}}));
    });
}

#[test]
fn projection_leaves_out_a_missing_path() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        assert_eq!(project(&collection, &key, &["name", "absent"]).await, json!({"name": "stave"}));
    });
}

#[test]
fn more_projections_than_one_lookup_holds() {
    run(async |collection, key| {
        let names: Vec<String> = (0..20).map(|n| format!("field{n}")).collect();
        let mut wide: serde_json::Map<String, Value> =
            names.iter().enumerate().map(|(n, name)| (name.clone(), json!(n))).collect();
        let expected = Value::Object(wide.clone());
        wide.insert("other".into(), json!(1));
        collection.upsert(&key, wide, None).await.unwrap();
        let paths: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(project(&collection, &key, &paths).await, expected);
    });
}

#[test]
fn projection_of_a_missing_document() {
    run(async |collection, key| {
        let options = GetOptions::new().projections(vec!["name".into()]);
        refused(collection.get(&key, options).await, ErrorKind::DocumentNotFound);
    });
}
