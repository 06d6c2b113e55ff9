//! Many operations at once over one connection.

use couchbase::error::ErrorKind;
use couchbase::options::kv_binary_options::IncrementOptions;
use couchbase::options::kv_options::ReplaceOptions;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::*;

const DOCUMENTS: usize = 500;
const WORKERS: u64 = 16;

#[test]
fn many_documents() {
    run(async |collection, key| {
        let mut writes = JoinSet::new();
        for n in 0..DOCUMENTS {
            let (collection, key) = (collection.clone(), format!("{key}:{n}"));
            writes.spawn(async move { collection.upsert(key, n, None).await.map(|result| result.cas()) });
        }
        writes.join_all().await.into_iter().for_each(|written| assert_ne!(written.unwrap(), 0));
        let mut reads = JoinSet::new();
        for n in 0..DOCUMENTS {
            let (collection, key) = (collection.clone(), format!("{key}:{n}"));
            reads.spawn(async move { (n, content(&collection, &key).await) });
        }
        reads.join_all().await.into_iter().for_each(|(n, value)| assert_eq!(value, json!(n)));
    });
}

#[test]
fn each_operation_of_a_batch_has_its_own_result() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        let absent = format!("{key}:absent");
        let (get, missing, insert, replace) = tokio::join!(
            collection.get(&key, None),
            collection.get(&absent, None),
            collection.insert(&key, 2, None),
            collection.replace(&absent, 2, None),
        );
        assert_eq!(get.unwrap().content_as::<i64>().unwrap(), 1);
        refused(missing, ErrorKind::DocumentNotFound);
        refused(insert, ErrorKind::DocumentExists);
        refused(replace, ErrorKind::DocumentNotFound);
    });
}

/// Every increment is counted, from however many tasks.
#[test]
fn concurrent_increments() {
    run(async |collection, key| {
        let mut tasks = JoinSet::new();
        for _ in 0..WORKERS {
            let (collection, key) = (collection.clone(), key.clone());
            tasks.spawn(async move {
                for _ in 0..50 {
                    let options = IncrementOptions::new().initial(1).delta(1);
                    collection.binary().increment(&key, options).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(content(&collection, &key).await, json!(WORKERS * 50));
    });
}

/// Of all writers with the same CAS exactly one succeeds.
#[test]
fn concurrent_replaces_with_one_cas() {
    run(async |collection, key| {
        let cas = collection.upsert(&key, -1, None).await.unwrap().cas();
        let mut tasks = JoinSet::new();
        for n in 0..WORKERS {
            let (collection, key) = (collection.clone(), key.clone());
            tasks.spawn(async move { collection.replace(key, n, ReplaceOptions::new().cas(cas)).await });
        }
        let (winners, losers): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!(winners.len(), 1);
        losers.into_iter().for_each(|lost| refused(lost, ErrorKind::CasMismatch));
    });
}
