//! The numbers about memory for Prometheus: the account, the heap, eviction, checkpoints, and the chores over them.

use std::fmt;

use base::Part;

use super::page::{Kind, Numbers, Page, seconds};

/// Everything about memory.
pub(super) fn put(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    put_memory(buckets, page)?;
    put_eviction(buckets, page)?;
    put_expiry(buckets, page)?;
    put_lists(buckets, page)?;
    put_locks(buckets, page)
}

fn put_memory(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::Gauge;
    let help = "Memory charged to the bucket.";
    page.each(buckets, "stave_memory_used_bytes", Gauge, help, |n| n.stats.used_bytes)?;
    let help = "The most memory that may be charged to the bucket.";
    page.each(buckets, "stave_memory_quota_bytes", Gauge, help, |n| n.stats.quota_bytes)?;
    let help = "Above this, memory is given up.";
    page.each(buckets, "stave_memory_high_watermark_bytes", Gauge, help, |n| n.stats.high_watermark_bytes)?;
    let help = "Down to this, memory is given up.";
    page.each(buckets, "stave_memory_low_watermark_bytes", Gauge, help, |n| n.stats.low_watermark_bytes)?;
    put_parts(buckets, page)?;
    let help = "The share of the quota that checkpoints may take.";
    page.each(buckets, "stave_checkpoint_quota_bytes", Gauge, help, |n| n.checkpoints.share_bytes)?;
    put_checkpoints(buckets, page)?;
    put_heap(buckets, page)?;
    let help = "Memory of the newest versions of documents and tombstones.";
    page.each(buckets, "stave_item_memory_bytes", Gauge, help, |n| n.all.item_bytes)?;
    let help = "Memory of the hash tables without the versions.";
    page.each(buckets, "stave_hash_table_memory_bytes", Gauge, help, |n| n.all.table_bytes)?;
    let help = "Memory of checkpoints and cursors without the versions.";
    page.each(buckets, "stave_checkpoint_overhead_bytes", Gauge, help, |n| n.all.checkpoint_overhead_bytes)?;
    let help = "Changes in checkpoints.";
    page.each(buckets, "stave_checkpoint_items", Gauge, help, |n| n.all.checkpoint_items)
}

fn put_parts(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_memory_part_bytes";
    page.head(name, Kind::Gauge, "Memory charged to the bucket, by what it is held for.")?;
    for numbers in buckets {
        for (part, bytes) in std::iter::zip(Part::ALL, numbers.account.charged) {
            page.sample(name, &[("bucket", numbers.bucket.name()), ("part", part.name())], bytes.max(0))?;
        }
    }
    Ok(())
}

fn put_checkpoints(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Memory that checkpoints count against their share, with the versions in them.";
    page.each(buckets, "stave_checkpoint_used_bytes", Gauge, help, |n| n.checkpoints.used_bytes)?;
    let help = "How close checkpoints are to their share: 0 calm, 1 hurry, 2 recover, 3 full.";
    page.each(buckets, "stave_checkpoint_pressure", Gauge, help, |n| n.checkpoints.pressure as u8)?;
    let help = "Changes that left memory with their closed checkpoint.";
    page.each(buckets, "stave_checkpoint_removed_items_total", Counter, help, |n| {
        n.checkpoints.removed_items
    })?;
    let help = "Changes that were given up before their checkpoint was done.";
    page.each(buckets, "stave_checkpoint_expelled_items_total", Counter, help, |n| {
        n.checkpoints.expelled_items
    })?;
    let help = "Streams whose cursor was dropped.";
    page.each(buckets, "stave_checkpoint_dropped_streams_total", Counter, help, |n| {
        n.checkpoints.dropped_streams
    })?;
    let help = "Changes refused because checkpoints were above their share while memory was short.";
    page.each(buckets, "stave_checkpoint_refused_total", Counter, help, |n| n.checkpoints.refused)
}

fn put_heap(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Memory of versions in use, as the heap counts it.";
    page.each(buckets, "stave_heap_used_bytes", Gauge, help, |n| n.account.heap.used_bytes)?;
    let help = "Memory that the heap of versions holds, in use or not.";
    page.each(buckets, "stave_heap_held_bytes", Gauge, help, |n| n.account.heap.held_bytes)?;
    let help = "By how much the account of documents is off.";
    page.each(buckets, "stave_account_difference_bytes", Gauge, help, |n| n.account.difference_bytes())?;
    let help = "Versions moved together because the heap wasted much.";
    page.each(buckets, "stave_defragmenter_moved_total", Counter, help, |n| n.moved.moved)
}

fn put_eviction(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Documents of which nothing is in memory.";
    page.by_state(buckets, "stave_evicted_items", help, |of| of.evicted_documents)?;
    let help = "Tombstones of which nothing is in memory.";
    page.by_state(buckets, "stave_evicted_tombstones", help, |of| of.evicted_tombstones)?;
    let help = "Memory of the filters of keys of which nothing is in memory.";
    page.each(buckets, "stave_filter_bytes", Gauge, help, |n| n.all.filter_bytes)?;
    let help = "Passes of the pager.";
    page.each(buckets, "stave_pager_passes_total", Counter, help, |n| n.eviction.passes)?;
    let help = "Values that left memory.";
    page.each(buckets, "stave_evicted_values_total", Counter, help, |n| n.eviction.evicted_values)?;
    let help = "Whole documents that left memory.";
    page.each(buckets, "stave_evicted_documents_total", Counter, help, |n| n.eviction.evicted_documents)?;
    let help = "Documents of ephemeral buckets that were deleted to make room.";
    page.each(buckets, "stave_auto_deleted_documents_total", Counter, help, |n| {
        n.eviction.deleted_documents
    })?;
    let help = "Memory given back by eviction.";
    page.each(buckets, "stave_evicted_bytes_total", Counter, help, |n| n.eviction.freed_bytes)?;
    let help = "Reads that found a document whose value had to come from the disk first.";
    page.each(buckets, "stave_gets_not_resident_total", Counter, help, |n| n.all.ops.get_not_resident)?;
    put_kept(buckets, page)
}

/// Why documents stayed that the pager looked at.
fn put_kept(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_pager_kept_total";
    page.head(name, Kind::Counter, "Documents that the pager looked at and that stayed, by why.")?;
    for numbers in buckets {
        let done = &numbers.eviction;
        let kept = [
            ("dirty", done.kept_dirty),
            ("held", done.kept_held),
            ("locked", done.kept_locked),
            ("hot", done.kept_hot),
            ("young", done.kept_young),
        ];
        for (why, count) in kept {
            page.sample(name, &[("bucket", numbers.bucket.name()), ("why", why)], count)?;
        }
    }
    Ok(())
}

fn put_expiry(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_expired_total";
    page.head(name, Kind::Counter, "Expired documents that became tombstones, by who noticed.")?;
    for numbers in buckets {
        let done = &numbers.expiry;
        let by = [("access", done.by_access), ("pager", done.by_pager), ("compactor", done.by_compactor)];
        for (who, count) in by {
            page.sample(name, &[("bucket", numbers.bucket.name()), ("by", who)], count)?;
        }
    }
    let help = "Values that were compressed in memory.";
    page.each(buckets, "stave_compressed_values_total", Kind::Counter, help, |n| n.compression.compressed)?;
    let help = "Memory saved when values were compressed.";
    page.each(buckets, "stave_compression_saved_bytes_total", Kind::Counter, help, |n| {
        n.compression.saved_bytes()
    })
}

/// All zero in a bucket with a disk.
fn put_lists(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Items of ephemeral buckets in their order, tombstones included.";
    page.each(buckets, "stave_seqlist_items", Gauge, help, |n| n.all.seq_list_items)?;
    let help = "Stale copies that range reads may still need.";
    page.each(buckets, "stave_seqlist_stale_items", Gauge, help, |n| n.all.stale_items)?;
    let help = "Memory of the stale copies.";
    page.each(buckets, "stave_seqlist_stale_bytes", Gauge, help, |n| n.all.stale_bytes)?;
    let help = "Memory of the lists of items, without the versions.";
    page.each(buckets, "stave_seqlist_bytes", Gauge, help, |n| n.all.seq_list_bytes)?;
    let help = "Tombstones of ephemeral buckets that were forgotten for their age.";
    page.each(buckets, "stave_ephemeral_tombstones_purged_total", Counter, help, |n| n.purged.tombstones)?;
    let help = "Stale copies that were freed.";
    page.each(buckets, "stave_seqlist_purged_total", Counter, help, |n| n.purged.stale_copies)
}

fn put_locks(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let holders = |numbers: &Numbers| -> Vec<_> {
        let times = numbers.bucket.lock_times().into_iter();
        times.map(|(holder, times)| (holder.name(), times)).collect()
    };
    let holders: Vec<_> = buckets.iter().map(holders).collect();
    let help = "Holds of vBucket locks that were timed; of the front end one in 64.";
    let head = ("stave_lock_holds_total", Counter, help);
    page.each_of(buckets, ("holder", &holders), head, |times| times.total())?;
    let head =
        ("stave_lock_hold_seconds_total", Counter, "Time of the holds of vBucket locks that were timed.");
    page.each_of(buckets, ("holder", &holders), head, |times| seconds(times.sum_ns()))?;
    let help = "The longest hold of a vBucket's lock that was timed.";
    let head = ("stave_lock_longest_hold_seconds", Gauge, help);
    page.each_of(buckets, ("holder", &holders), head, |times| seconds(times.longest_ns()))
}
