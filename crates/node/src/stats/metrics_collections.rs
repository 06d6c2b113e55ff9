//! What Prometheus is told about collections.

use std::fmt;

use engine::CollectionTotals;

use super::page::{Kind, Numbers, Page, labels_text};

/// The labels of a collection as text, made once for all families, and what it has.
type OfCollection = (String, CollectionTotals);

/// What each collection holds, and what clients did with it.
pub(super) fn put(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let all: Vec<OfCollection> = buckets.iter().flat_map(of_bucket).collect();
    let mut each = |name: &str, kind, help: &str, value: &dyn Fn(&CollectionTotals) -> u64| {
        page.head(name, kind, help)?;
        all.iter().try_for_each(|(labels, totals)| page.sample_of(name, labels, value(totals)))
    };
    use Kind::{Counter, Gauge};
    // Each under two names: that of the field is the second.
    for name in ["stave_collection_items", "kv_collection_item_count"] {
        each(name, Gauge, "Documents of a collection.", &|of| of.documents)?;
    }
    let help = "Bytes of a collection's documents and tombstones in memory.";
    for name in ["stave_collection_memory_bytes", "kv_collection_mem_used_bytes"] {
        each(name, Gauge, help, &|of| of.memory_bytes)?;
    }
    let help =
        "Bytes of a collection in files; the event that made it counts in each vBucket, with about 94 bytes.";
    for name in ["stave_collection_disk_bytes", "kv_collection_data_size_bytes"] {
        each(name, Gauge, help, &|of| of.disk_bytes)?;
    }
    let help = "Documents of a collection that clients read, found or not.";
    each("stave_collection_gets_total", Counter, help, &|of| of.ops.gets)?;
    let help = "Documents that clients stored in a collection.";
    each("stave_collection_stores_total", Counter, help, &|of| of.ops.stores)?;
    let help = "Documents that clients deleted from a collection.";
    each("stave_collection_deletes_total", Counter, help, &|of| of.ops.deletes)?;
    put_ops(&all, page)
}

fn of_bucket(numbers: &Numbers) -> Vec<OfCollection> {
    let collections = numbers.bucket.collections();
    let (manifest, totals) = (collections.manifest(), collections.collection_totals());
    let told = totals.into_iter().filter_map(|(id, totals)| {
        let one = manifest.collection(id)?;
        let scope = manifest.scope(one.scope).map_or("", |scope| &scope.name);
        let labels = [("bucket", numbers.bucket.name()), ("scope", scope), ("collection", &*one.name)];
        Some((labels_text(&labels), totals))
    });
    told.collect()
}

/// Of each collection what clients did, by what it was.
fn put_ops(all: &[OfCollection], page: &mut Page<'_>) -> fmt::Result {
    let name = "kv_collection_ops";
    page.head(name, Kind::Counter, "What clients did with documents of a collection: get, store, delete.")?;
    for (labels, totals) in all {
        let ops = &totals.ops;
        for (op, count) in [("get", ops.gets), ("store", ops.stores), ("delete", ops.deletes)] {
            page.sample_of(name, &format!("{labels},op=\"{op}\""), count)?;
        }
    }
    Ok(())
}
