//! What Prometheus is told about collections.

use std::fmt;
use std::sync::Arc;

use base::CollectionId;
use engine::CollectionTotals;
use vbucket::collections::manifest::Manifest;

use super::page::{Kind, Numbers, Page};

/// The name of a bucket, its collections, and what each of them has.
type OfBucket<'a> = (&'a str, Arc<Manifest>, Vec<(CollectionId, CollectionTotals)>);

/// What each collection holds, and what clients did with it.
pub(super) fn put(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let all: Vec<OfBucket<'_>> = buckets
        .iter()
        .map(|numbers| {
            (
                numbers.bucket.name(),
                numbers.bucket.collections().manifest(),
                numbers.bucket.collections().collection_totals(),
            )
        })
        .collect();
    let mut each = |name: &str, kind, help: &str, value: &dyn Fn(&CollectionTotals) -> u64| {
        page.head(name, kind, help)?;
        for (bucket, manifest, totals) in &all {
            for (id, totals) in totals {
                let Some(one) = manifest.collection(*id) else { continue };
                let scope = manifest.scope(one.scope).map_or("", |scope| &scope.name);
                let labels = [("bucket", *bucket), ("scope", scope), ("collection", &*one.name)];
                page.sample(name, &labels, value(totals))?;
            }
        }
        Ok(())
    };
    use Kind::{Counter, Gauge};
    each("stave_collection_items", Gauge, "Documents of a collection.", &|of| of.documents)?;
    let help = "Bytes of a collection's documents and tombstones in memory.";
    each("stave_collection_memory_bytes", Gauge, help, &|of| of.memory_bytes)?;
    let help = "Bytes of a collection in files.";
    each("stave_collection_disk_bytes", Gauge, help, &|of| of.disk_bytes)?;
    let help = "Documents of a collection that clients read, found or not.";
    each("stave_collection_gets_total", Counter, help, &|of| of.ops.gets)?;
    let help = "Documents that clients stored in a collection.";
    each("stave_collection_stores_total", Counter, help, &|of| of.ops.stores)?;
    let help = "Documents that clients deleted from a collection.";
    each("stave_collection_deletes_total", Counter, help, &|of| of.ops.deletes)?;
    // The same under the field's names.
    each("kv_collection_item_count", Gauge, "Documents of a collection.", &|of| of.documents)?;
    let help = "Bytes of a collection's documents and tombstones in memory.";
    each("kv_collection_mem_used_bytes", Gauge, help, &|of| of.memory_bytes)?;
    each("kv_collection_data_size_bytes", Gauge, "Bytes of a collection in files.", &|of| of.disk_bytes)?;
    put_ops(&all, page)
}

/// Of each collection what clients did, by what it was.
fn put_ops(all: &[OfBucket<'_>], page: &mut Page<'_>) -> fmt::Result {
    let name = "kv_collection_ops";
    page.head(name, Kind::Counter, "What clients did with documents of a collection: get, store, delete.")?;
    for (bucket, manifest, totals) in all {
        for (id, totals) in totals {
            let Some(one) = manifest.collection(*id) else { continue };
            let scope = manifest.scope(one.scope).map_or("", |scope| &scope.name);
            let ops = &totals.ops;
            for (op, count) in [("get", ops.gets), ("store", ops.stores), ("delete", ops.deletes)] {
                let labels = [("bucket", *bucket), ("scope", scope), ("collection", &*one.name), ("op", op)];
                page.sample(name, &labels, count)?;
            }
        }
    }
    Ok(())
}
