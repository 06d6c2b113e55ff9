//! What Prometheus is told about collections.

use std::fmt;

use engine::CollectionTotals;

use super::page::{Kind, Numbers, Page};

/// What each collection holds, and what clients did with it.
pub(super) fn put(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let all: Vec<_> = buckets
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
    each("stave_collection_deletes_total", Counter, help, &|of| of.ops.deletes)
}
