//! Sub-document reads: get, exists, count, whole document, and the error of each path on its own.

use couchbase::collection::Collection;
use couchbase::error::ErrorKind;
use couchbase::results::kv_results::LookupInResult;
use couchbase::subdoc::lookup_in_specs::LookupInSpec;
use serde_json::{Value, json};

use crate::support::*;

fn doc() -> Value {
    json!({
        "name": "stave", "n": 1, "list": [10, 20, [30, 31]],
        "dict": {"a": {"b": "deep"}, "x.y": "dotted"}, "null": null, "empty": {},
    })
}

async fn lookup(collection: &Collection, key: &str, specs: &[LookupInSpec]) -> LookupInResult {
    collection.lookup_in(key, specs, None).await.unwrap()
}

fn get(path: &str) -> LookupInSpec {
    LookupInSpec::get(path, None)
}

#[test]
fn get_of_paths() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, doc(), None).await.unwrap().cas();
        let cases = [
            ("name", json!("stave")),
            ("dict.a.b", json!("deep")),
            ("dict.a", json!({"b": "deep"})),
            ("dict.`x.y`", json!("dotted")),
            ("list[0]", json!(10)),
            ("list[-1]", json!([30, 31])),
            ("list[2][1]", json!(31)),
            ("null", Value::Null),
            ("empty", json!({})),
            ("", doc()),
        ];
        for (path, expected) in cases {
            let result = lookup(&collection, &key, &[get(path)]).await;
            assert_eq!(result.content_as::<Value>(0).unwrap(), expected, "{path}");
            assert_eq!(result.cas(), cas);
        }
    });
}

#[test]
fn exists_of_paths() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let specs = ["dict.a", "null", "dict.z"].map(|path| LookupInSpec::exists(path, None));
        let result = lookup(&collection, &key, &specs).await;
        assert_eq!([0, 1, 2].map(|index| result.exists(index).unwrap()), [true, true, false]);
        assert!(!result.content_as::<bool>(2).unwrap());
    });
}

#[test]
fn count_of_paths() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let specs = ["list", "dict", "empty", "list[2]", ""].map(|path| LookupInSpec::count(path, None));
        let result = lookup(&collection, &key, &specs).await;
        let counts = [0, 1, 2, 3, 4].map(|index| result.content_as::<usize>(index).unwrap());
        assert_eq!(counts, [3, 2, 0, 2, 6]);
    });
}

#[test]
fn each_path_has_its_own_result() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let specs = [
            get("name"),
            get("absent"),
            get("name.sub"),
            get("list[0"),
            LookupInSpec::exists("n", None),
            LookupInSpec::count("name", None),
        ];
        let result = lookup(&collection, &key, &specs).await;
        assert_eq!(result.content_as::<String>(0).unwrap(), "stave");
        refused(result.content_as::<Value>(1), ErrorKind::PathNotFound);
        refused(result.content_as::<Value>(2), ErrorKind::PathMismatch);
        refused(result.content_as::<Value>(3), ErrorKind::PathInvalid);
        assert!(result.exists(4).unwrap());
        refused(result.content_as::<Value>(5), ErrorKind::PathMismatch);
    });
}

#[test]
fn path_errors() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let deep = vec!["a"; 33].join(".");
        let cases = [
            ("list[3]", ErrorKind::PathNotFound),
            ("dict.a.z", ErrorKind::PathNotFound),
            ("absent.deeper", ErrorKind::PathNotFound),
            ("list.name", ErrorKind::PathMismatch),
            ("dict[0]", ErrorKind::PathMismatch),
            ("n.sub", ErrorKind::PathMismatch),
            ("list[", ErrorKind::PathInvalid),
            ("list[x]", ErrorKind::PathInvalid),
            ("dict..a", ErrorKind::PathInvalid),
            ("list[-2]", ErrorKind::PathInvalid),
            ("quo\"te", ErrorKind::PathInvalid),
            (deep.as_str(), ErrorKind::PathTooBig),
        ];
        for (path, kind) in cases {
            let result = lookup(&collection, &key, &[get(path)]).await;
            let error = result.content_as::<Value>(0).expect_err(path);
            assert_eq!(*error.kind(), kind, "{path}");
        }
    });
}

#[test]
fn document_that_is_not_json() {
    run(async |collection, key| {
        store_raw(&collection, &key, b"\x00not json").await.unwrap();
        let specs = [get("a"), LookupInSpec::exists("a", None), LookupInSpec::count("a", None)];
        let result = lookup(&collection, &key, &specs).await;
        refused(result.content_as::<Value>(0), ErrorKind::DocumentNotJSON);
        refused(result.exists(1), ErrorKind::DocumentNotJSON);
        refused(result.content_as::<Value>(2), ErrorKind::DocumentNotJSON);
    });
}

#[test]
fn document_that_is_nested_too_deeply() {
    run(async |collection, key| {
        let document = (0..40).fold(json!(1), |inner, _| json!({"a": inner}));
        collection.upsert(&key, document, None).await.unwrap();
        let result = lookup(&collection, &key, &[get("a.a")]).await;
        refused(result.content_as::<Value>(0), ErrorKind::PathTooDeep);
    });
}

#[test]
fn missing_document() {
    run(async |collection, key| {
        refused(collection.lookup_in(&key, &[get("a")], None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn removed_document() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        collection.remove(&key, None).await.unwrap();
        refused(collection.lookup_in(&key, &[get("name")], None).await, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn sixteen_paths_and_seventeen() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let mut specs = vec![get("n"); 16];
        let result = lookup(&collection, &key, &specs).await;
        assert!((0..16).all(|index| result.content_as::<i64>(index).unwrap() == 1));
        specs.push(get("n"));
        refused_as_invalid_argument(collection.lookup_in(&key, &specs, None).await);
    });
}

#[test]
fn path_in_a_compressed_document() {
    run(async |collection, key| {
        let document = json!({"pad": "stave ".repeat(10_000), "last": 42});
        collection.upsert(&key, document, None).await.unwrap();
        let result = lookup(&collection, &key, &[get("last")]).await;
        assert_eq!(result.content_as::<i64>(0).unwrap(), 42);
    });
}
