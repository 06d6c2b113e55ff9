//! Sub-document writes on the document's body.

use couchbase::collection::Collection;
use couchbase::error::ErrorKind;
use couchbase::options::kv_options::{MutateInOptions, StoreSemantics};
use couchbase::results::kv_results::MutateInResult;
use couchbase::subdoc::mutate_in_specs::{
    ArrayAppendSpecOptions, IncrementSpecOptions, InsertSpecOptions, MutateInSpec, UpsertSpecOptions,
};
use serde_json::{Value, json};

use crate::support::*;

type Spec = MutateInSpec;

fn doc() -> Value {
    json!({"name": "stave", "n": 10, "list": [1, 2, 3], "dict": {"a": 1}, "objects": [{"a": 1}]})
}

async fn mutate(collection: &Collection, key: &str, specs: &[SdkResult<Spec>]) -> SdkResult<MutateInResult> {
    let specs: Vec<Spec> = specs.iter().cloned().map(Result::unwrap).collect();
    collection.mutate_in(key, &specs, None).await
}

/// The spec changes a fresh copy of the document: one field is different afterwards.
async fn changes(spec: SdkResult<Spec>, field: &str, expected: Value) {
    let (collection, key) = (bucket().default_collection(), new_key());
    let before = collection.upsert(&key, doc(), None).await.unwrap();
    let result = mutate(&collection, &key, &[spec]).await.unwrap();
    let mut document = doc();
    document[field] = expected;
    assert_eq!(content(&collection, &key).await, document);
    assert!(result.cas() != 0 && result.cas() != before.cas());
    let token = result.mutation_token().expect("a mutation token");
    assert!(token.sequence_number() > before.mutation_token().unwrap().sequence_number());
}

/// The spec is refused and the document stays as it was.
async fn refuses(spec: SdkResult<Spec>, kind: ErrorKind) {
    let (collection, key) = (bucket().default_collection(), new_key());
    let cas = collection.upsert(&key, doc(), None).await.unwrap().cas();
    refused(mutate(&collection, &key, &[spec]).await, kind);
    assert_eq!(content(&collection, &key).await, doc());
    assert_eq!(collection.get(&key, None).await.unwrap().cas(), cas);
}

#[test]
fn upsert() {
    run(async |_, _| {
        changes(Spec::upsert("new", json!({"v": 1}), None), "new", json!({"v": 1})).await;
        changes(Spec::upsert("name", "oak", None), "name", json!("oak")).await;
        let create = UpsertSpecOptions::new().create_path(true);
        changes(Spec::upsert("p.q.r", 1, create), "p", json!({"q": {"r": 1}})).await;
    });
}

#[test]
fn upsert_errors() {
    run(async |_, _| {
        refuses(Spec::upsert("p.q.r", 1, None), ErrorKind::PathNotFound).await;
        refuses(Spec::upsert("n.x", 1, None), ErrorKind::PathMismatch).await;
        refuses(Spec::upsert("list[1]", 9, None), ErrorKind::PathInvalid).await;
        refuses(Spec::upsert("dict..a", 9, None), ErrorKind::PathInvalid).await;
        refuses(Spec::upsert(vec!["a"; 33].join("."), 1, None), ErrorKind::PathTooBig).await;
    });
}

#[test]
fn insert() {
    run(async |_, _| {
        changes(Spec::insert("new", [1], None), "new", json!([1])).await;
        let create = InsertSpecOptions::new().create_path(true);
        changes(Spec::insert("p.q", 1, create), "p", json!({"q": 1})).await;
        refuses(Spec::insert("name", 1, None), ErrorKind::PathExists).await;
    });
}

#[test]
fn replace() {
    run(async |_, _| {
        changes(Spec::replace("dict.a", "x", None), "dict", json!({"a": "x"})).await;
        changes(Spec::replace("list[1]", 9, None), "list", json!([1, 9, 3])).await;
        refuses(Spec::replace("absent", 1, None), ErrorKind::PathNotFound).await;
    });
}

#[test]
fn remove() {
    run(async |_, _| {
        changes(Ok(Spec::remove("dict.a", None)), "dict", json!({})).await;
        changes(Ok(Spec::remove("list[-1]", None)), "list", json!([1, 2])).await;
        refuses(Ok(Spec::remove("absent", None)), ErrorKind::PathNotFound).await;
    });
}

#[test]
fn whole_document() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        mutate(&collection, &key, &[Spec::replace("", json!({"all": "new"}), None)]).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!({"all": "new"}));
        mutate(&collection, &key, &[Ok(Spec::remove("", None))]).await.unwrap();
        assert!(!exists(&collection, &key).await);
    });
}

#[test]
fn array_append_and_prepend() {
    run(async |_, _| {
        changes(Spec::array_append("list", &[4], None), "list", json!([1, 2, 3, 4])).await;
        changes(Spec::array_append("list", &[4, 5], None), "list", json!([1, 2, 3, 4, 5])).await;
        changes(Spec::array_prepend("list", &[-1, 0], None), "list", json!([-1, 0, 1, 2, 3])).await;
        let create = ArrayAppendSpecOptions::new().create_path(true);
        changes(Spec::array_append("p.q", &[1], create), "p", json!({"q": [1]})).await;
    });
}

#[test]
fn array_append_errors() {
    run(async |_, _| {
        let nested = (0..40).fold(json!(1), |inner, _| json!([inner]));
        refuses(Spec::array_append("name", &[1], None), ErrorKind::PathMismatch).await;
        refuses(Spec::array_append("absent", &[1], None), ErrorKind::PathNotFound).await;
        refuses(Spec::array_append("list", &[nested], None), ErrorKind::ValueTooDeep).await;
    });
}

#[test]
fn array_insert() {
    run(async |_, _| {
        changes(Spec::array_insert("list[1]", &["x", "y"], None), "list", json!([1, "x", "y", 2, 3])).await;
        changes(Spec::array_insert("list[3]", &[4], None), "list", json!([1, 2, 3, 4])).await;
        refuses(Spec::array_insert("list[4]", &[5], None), ErrorKind::PathNotFound).await;
        refuses(Spec::array_insert("list", &[5], None), ErrorKind::PathInvalid).await;
    });
}

#[test]
fn array_add_unique() {
    run(async |_, _| {
        changes(Spec::array_add_unique("list", 4, None), "list", json!([1, 2, 3, 4])).await;
        refuses(Spec::array_add_unique("list", 2, None), ErrorKind::PathExists).await;
        refuses(Spec::array_add_unique("list", json!({"a": 1}), None), ErrorKind::ValueInvalid).await;
        refuses(Spec::array_add_unique("objects", 1, None), ErrorKind::PathMismatch).await;
    });
}

#[test]
fn counters() {
    run(async |_, _| {
        changes(Spec::increment("n", 5, None), "n", json!(15)).await;
        changes(Spec::decrement("n", 25, None), "n", json!(-15)).await;
        changes(Spec::increment("hits", 3, None), "hits", json!(3)).await;
        let create = IncrementSpecOptions::new().create_path(true);
        changes(Spec::increment("p.q", 3, create), "p", json!({"q": 3})).await;
    });
}

#[test]
fn counter_errors() {
    run(async |_, _| {
        refuses(Spec::increment("name", 1, None), ErrorKind::PathMismatch).await;
        refuses(Spec::increment("n", 0, None), ErrorKind::DeltaInvalid).await;
        refuses(Spec::increment("n", i64::MAX, None), ErrorKind::ValueInvalid).await;
    });
}

#[test]
fn results_are_at_the_index_of_their_spec() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let specs = [
            Spec::upsert("a", 1, None),
            Spec::increment("n", 1, None),
            Spec::upsert("b", 2, None),
            Spec::increment("n", 1, None),
        ];
        let result = mutate(&collection, &key, &specs).await.unwrap();
        assert_eq!(result.content_as::<i64>(1).unwrap(), 11);
        assert_eq!(result.content_as::<i64>(3).unwrap(), 12);
    });
}

#[test]
fn one_failure_undoes_everything() {
    run(async |collection, key| {
        collection.upsert(&key, doc(), None).await.unwrap();
        let specs =
            [Spec::upsert("new", 1, None), Ok(Spec::remove("name", None)), Spec::replace("absent", 1, None)];
        refused(mutate(&collection, &key, &specs).await, ErrorKind::PathNotFound);
        assert_eq!(content(&collection, &key).await, doc());
    });
}

#[test]
fn document_that_is_not_json() {
    run(async |collection, key| {
        store_raw(&collection, &key, b"\x00\x01").await.unwrap();
        let result = mutate(&collection, &key, &[Spec::upsert("a", 1, None)]).await;
        refused(result, ErrorKind::DocumentNotJSON);
    });
}

#[test]
fn missing_document() {
    run(async |collection, key| {
        let result = mutate(&collection, &key, &[Spec::upsert("a", 1, None)]).await;
        refused(result, ErrorKind::DocumentNotFound);
    });
}

#[test]
fn right_cas_and_stale_cas() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, json!({}), None).await.unwrap().cas();
        let specs = [Spec::upsert("a", 1, None).unwrap()];
        collection.mutate_in(&key, &specs, MutateInOptions::new().cas(cas)).await.unwrap();
        let specs = [Spec::upsert("a", 2, None).unwrap()];
        let stale = collection.mutate_in(&key, &specs, MutateInOptions::new().cas(cas)).await;
        refused(stale, ErrorKind::CasMismatch);
        assert_eq!(content(&collection, &key).await, json!({"a": 1}));
    });
}

#[test]
fn store_semantics_upsert() {
    run(async |collection, key| {
        let options = || MutateInOptions::new().store_semantics(StoreSemantics::Upsert);
        let specs = [Spec::upsert("a", 1, None).unwrap()];
        collection.mutate_in(&key, &specs, options()).await.unwrap();
        let specs = [Spec::upsert("b", 2, None).unwrap()];
        collection.mutate_in(&key, &specs, options()).await.unwrap();
        assert_eq!(content(&collection, &key).await, json!({"a": 1, "b": 2}));
    });
}

#[test]
fn store_semantics_insert() {
    run(async |collection, key| {
        let options = || MutateInOptions::new().store_semantics(StoreSemantics::Insert);
        let specs = [Spec::insert("a", 1, None).unwrap()];
        collection.mutate_in(&key, &specs, options()).await.unwrap();
        // This SDK says "CAS mismatch" where the others say "exists": the status is the same.
        refused(collection.mutate_in(&key, &specs, options()).await, ErrorKind::CasMismatch);
        assert_eq!(content(&collection, &key).await, json!({"a": 1}));
    });
}

#[test]
fn sixteen_specs_and_seventeen() {
    run(async |collection, key| {
        collection.upsert(&key, json!({}), None).await.unwrap();
        let mut specs: Vec<Spec> = (0..16).map(|n| Spec::upsert(format!("f{n}"), n, None).unwrap()).collect();
        collection.mutate_in(&key, &specs, None).await.unwrap();
        assert_eq!(content(&collection, &key).await.as_object().unwrap().len(), 16);
        specs.push(Spec::upsert("one-more", 1, None).unwrap());
        refused_as_invalid_argument(collection.mutate_in(&key, &specs, None).await);
    });
}

#[test]
fn change_in_a_compressed_document() {
    run(async |collection, key| {
        let mut document = json!({"pad": "stave ".repeat(10_000), "n": 1});
        collection.upsert(&key, &document, None).await.unwrap();
        mutate(&collection, &key, &[Spec::increment("n", 1, None)]).await.unwrap();
        document["n"] = json!(2);
        assert_eq!(content(&collection, &key).await, document);
    });
}
