//! Extended attributes, virtual attributes, macros and deleted documents.

use couchbase::collection::Collection;
use couchbase::error::ErrorKind;
use couchbase::options::kv_options::{LookupInOptions, UpsertOptions};
use couchbase::results::kv_results::MutationResult;
use couchbase::subdoc::lookup_in_specs::{ExistsSpecOptions, GetSpecOptions, LookupInSpec};
use couchbase::subdoc::macros::{LookupInMacros, MutateInMacros};
use couchbase::subdoc::mutate_in_specs::{
    ArrayAppendSpecOptions, IncrementSpecOptions, InsertSpecOptions, MutateInSpec, RemoveSpecOptions,
    ReplaceSpecOptions, UpsertSpecOptions,
};
use serde_json::{Value, json};

use crate::support::*;

const PLAIN: &[u8] = br#"{"v":1}"#;
const JSON_FLAGS: u32 = 2 << 24;

fn get(path: impl Into<String>) -> LookupInSpec {
    LookupInSpec::get(path, GetSpecOptions::new().xattr(true))
}

fn upsert(path: &str, value: Value) -> MutateInSpec {
    MutateInSpec::upsert(path, value, UpsertSpecOptions::new().xattr(true).create_path(true)).unwrap()
}

async fn store(collection: &Collection, key: &str) -> MutationResult {
    collection.upsert_raw(key, PLAIN, JSON_FLAGS, None).await.unwrap()
}

async fn xattr(collection: &Collection, key: &str, path: impl Into<String>) -> SdkResult<Value> {
    collection.lookup_in(key, &[get(path)], None).await?.content_as(0)
}

fn number(text: &Value) -> u64 {
    u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn upsert_and_get() {
    run(async |collection, key| {
        store(&collection, &key).await;
        collection.mutate_in(&key, &[upsert("meta", json!({"a": 1}))], None).await.unwrap();
        assert_eq!(xattr(&collection, &key, "meta").await.unwrap(), json!({"a": 1}));
        assert_eq!(xattr(&collection, &key, "meta.a").await.unwrap(), json!(1));
        assert_eq!(content(&collection, &key).await, json!({"v": 1}));
    });
}

#[test]
fn missing_xattr() {
    run(async |collection, key| {
        store(&collection, &key).await;
        refused(xattr(&collection, &key, "meta").await, ErrorKind::PathNotFound);
        let specs = [LookupInSpec::exists("meta", ExistsSpecOptions::new().xattr(true))];
        assert!(!collection.lookup_in(&key, &specs, None).await.unwrap().exists(0).unwrap());
    });
}

#[test]
fn insert_of_an_existing_xattr() {
    run(async |collection, key| {
        store(&collection, &key).await;
        let specs = [MutateInSpec::insert("meta", 1, InsertSpecOptions::new().xattr(true)).unwrap()];
        collection.mutate_in(&key, &specs, None).await.unwrap();
        refused(collection.mutate_in(&key, &specs, None).await, ErrorKind::PathExists);
    });
}

#[test]
fn every_operation() {
    run(async |collection, key| {
        store(&collection, &key).await;
        let first = json!({"a": 1, "b": 2, "l": [1], "n": 1});
        collection.mutate_in(&key, &[upsert("meta", first)], None).await.unwrap();
        let specs = [
            MutateInSpec::replace("meta.a", 9, ReplaceSpecOptions::new().xattr(true)).unwrap(),
            MutateInSpec::remove("meta.b", RemoveSpecOptions::new().xattr(true)),
            MutateInSpec::array_append("meta.l", &[2], ArrayAppendSpecOptions::new().xattr(true)).unwrap(),
            MutateInSpec::increment("meta.n", 4, IncrementSpecOptions::new().xattr(true)).unwrap(),
            upsert("meta.p.q", json!(7)),
        ];
        collection.mutate_in(&key, &specs, None).await.unwrap();
        let expected = json!({"a": 9, "l": [1, 2], "n": 5, "p": {"q": 7}});
        assert_eq!(xattr(&collection, &key, "meta").await.unwrap(), expected);
    });
}

#[test]
fn xattr_and_body_in_any_order() {
    run(async |collection, key| {
        store(&collection, &key).await;
        let specs = [MutateInSpec::upsert("v", 2, None).unwrap(), upsert("meta", json!("x"))];
        collection.mutate_in(&key, &specs, None).await.unwrap();
        let specs = [LookupInSpec::get("v", None), get("meta")];
        let result = collection.lookup_in(&key, &specs, None).await.unwrap();
        assert_eq!(result.content_as::<i64>(0).unwrap(), 2);
        assert_eq!(result.content_as::<String>(1).unwrap(), "x");
    });
}

#[test]
fn two_xattr_keys_in_one_call() {
    run(async |collection, key| {
        store(&collection, &key).await;
        let specs = [upsert("one", json!(1)), upsert("two", json!(2))];
        refused(collection.mutate_in(&key, &specs, None).await, ErrorKind::XattrInvalidKeyCombo);
    });
}

#[test]
fn xattrs_survive_upsert_and_replace() {
    run(async |collection, key| {
        store(&collection, &key).await;
        collection.mutate_in(&key, &[upsert("meta", json!(1))], None).await.unwrap();
        collection.upsert(&key, 2, None).await.unwrap();
        collection.replace(&key, 3, None).await.unwrap();
        assert_eq!(xattr(&collection, &key, "meta").await.unwrap(), json!(1));
    });
}

#[test]
fn macros() {
    run(async |collection, key| {
        store(&collection, &key).await;
        let create = UpsertSpecOptions::new().xattr(true).create_path(true);
        let specs = [
            MutateInSpec::upsert("meta.cas", MutateInMacros::CAS, create).unwrap(),
            MutateInSpec::upsert("meta.seqno", MutateInMacros::SeqNo, create).unwrap(),
            MutateInSpec::upsert("meta.crc", MutateInMacros::ValueCrc32c, create).unwrap(),
        ];
        let result = collection.mutate_in(&key, &specs, None).await.unwrap();
        let meta = xattr(&collection, &key, "meta").await.unwrap();
        // The bytes of this one macro are in the opposite order.
        assert_eq!(number(&meta["cas"]).swap_bytes(), result.cas());
        assert_eq!(number(&meta["seqno"]), result.mutation_token().unwrap().sequence_number());
        assert_eq!(number(&meta["crc"]), crc32c(PLAIN));
    });
}

#[test]
fn document_attributes() {
    run(async |collection, key| {
        let options = UpsertOptions::new().expiry(HUNDRED);
        let written = collection.upsert_raw(&key, PLAIN, JSON_FLAGS, options).await.unwrap();
        let token = written.mutation_token().unwrap();
        let document = xattr(&collection, &key, LookupInMacros::Document).await.unwrap();
        assert_eq!(number(&document["CAS"]), written.cas());
        assert_eq!(number(&document["seqno"]), token.sequence_number());
        assert_eq!(number(&document["vbucket_uuid"]), token.partition_uuid());
        assert_eq!(number(&document["value_crc32c"]), crc32c(PLAIN));
        assert_eq!(document["value_bytes"], json!(PLAIN.len()));
        assert_eq!(document["flags"], json!(JSON_FLAGS));
        assert_eq!(document["deleted"], json!(false));
        assert_eq!(document["exptime"].as_i64().unwrap(), stored_expiry(&collection, &key).await);
        assert!(document["datatype"].as_array().unwrap().contains(&json!("json")));
    });
}

#[test]
fn document_attributes_one_by_one() {
    run(async |collection, key| {
        let written = store(&collection, &key).await;
        let specs = [
            LookupInMacros::CAS,
            LookupInMacros::SeqNo,
            LookupInMacros::IsDeleted,
            LookupInMacros::ValueSizeBytes,
            LookupInMacros::ExpiryTime,
            LookupInMacros::RevId,
            LookupInMacros::LastModified,
        ]
        .map(get);
        let result = collection.lookup_in(&key, &specs, None).await.unwrap();
        let values: Vec<Value> = (0..specs.len()).map(|index| result.content_as(index).unwrap()).collect();
        assert_eq!(number(&values[0]), written.cas());
        assert_eq!(number(&values[1]), written.mutation_token().unwrap().sequence_number());
        assert_eq!(values[2..5], [json!(false), json!(PLAIN.len()), json!(0)]);
        assert!(values[5].as_str().unwrap().parse::<u64>().unwrap() > 0);
        assert!(values[6].as_str().unwrap().parse::<u64>().unwrap() > 0);
    });
}

#[test]
fn virtual_attribute_is_read_only() {
    run(async |collection, key| {
        store(&collection, &key).await;
        let result = collection.mutate_in(&key, &[upsert("$document.x", json!(1))], None).await;
        refused(result, ErrorKind::XattrCannotModifyVirtualAttribute);
    });
}

#[test]
fn xattrs_of_a_removed_document() {
    run(async |collection, key| {
        store(&collection, &key).await;
        collection.mutate_in(&key, &[upsert("meta", json!("lost"))], None).await.unwrap();
        collection.mutate_in(&key, &[upsert("_sys", json!("kept"))], None).await.unwrap();
        collection.remove(&key, None).await.unwrap();
        refused(xattr(&collection, &key, "_sys").await, ErrorKind::DocumentNotFound);
        let deleted = || LookupInOptions::new().access_deleted(true);
        let system = collection.lookup_in(&key, &[get("_sys")], deleted()).await.unwrap();
        assert_eq!(system.content_as::<String>(0).unwrap(), "kept");
        let user = collection.lookup_in(&key, &[get("meta")], deleted()).await.unwrap();
        refused(user.content_as::<Value>(0), ErrorKind::PathNotFound);
    });
}
