//! The groups about the heap of versions, and about the items of an ephemeral bucket in their order.

use base::memory::ProcessMemory;
use engine::settings::Key;

use super::Sheet;
use super::chores::put_chore;
use super::config::put_setting;
use super::inquiry::{Inquiry, Refused};
use crate::node::Node;

/// What the bucket's heap holds beside what is charged; what the process has for all buckets is for those who may look
/// at all of them.
pub(super) fn put_heap(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    let figures = inquiry.bucket.account_check();
    sheet.put("heap_used", figures.heap.used_bytes);
    sheet.put("heap_held", figures.heap.held_bytes);
    sheet.put("heap_slack", figures.heap.slack_bytes());
    sheet.put("heap_account_difference_bytes", figures.difference_bytes());
    if inquiry.counts_node() {
        put_process(&ProcessMemory::now(), sheet);
    }
}

fn put_process(process: &ProcessMemory, sheet: &mut Sheet) {
    sheet.put("process_slabs", process.slab_bytes);
    sheet.put("process_chunks", process.chunk_bytes);
    if let (Some(used), Some(held)) = (process.system_used_bytes, process.system_held_bytes) {
        sheet.put("process_system_used", used);
        sheet.put("process_system_held", held);
    }
}

/// `allocator`: what all buckets and everything else in the process have from the system.
pub fn allocator(_: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    put_process(&ProcessMemory::now(), sheet);
    Ok(())
}

/// `heap`: slots by their size, and what moves versions together.
pub fn heap(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    put_heap(inquiry, sheet);
    for key in [Key::DefragmenterEnabled, Key::DefragmenterInterval, Key::DefragmenterThreshold] {
        put_setting(bucket, key, sheet);
    }
    let done = bucket.defragmentation().defragmenter_stats();
    sheet.put("ep_defragmenter_num_passes", done.passes);
    sheet.put("ep_defragmenter_num_visited", done.visited);
    sheet.put("ep_defragmenter_num_moved", done.moved);
    put_chore(bucket, "defragmenter", sheet);
    put_chore(bucket, "account_check", sheet);
    for class in bucket.account_check().heap.classes {
        let mut sheet = sheet.under(format_args!("slot_{}", class.slot_bytes));
        sheet.put("slots", class.slots);
        sheet.put("used", class.used);
        sheet.put("slack_bytes", (class.slots - class.used.min(class.slots)) * class.slot_bytes);
    }
    Ok(())
}

/// `ephemeral`: nothing but that it is none for a bucket with a disk.
pub fn ephemeral(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    sheet.put("ephemeral", bucket.is_ephemeral());
    if !bucket.is_ephemeral() {
        return Ok(());
    }
    let all = bucket.stats().all();
    sheet.put("seqlist_count", all.seq_list_items);
    sheet.put("seqlist_deleted_count", all.tombstones);
    sheet.put("seqlist_stale_count", all.stale_items);
    sheet.put("seqlist_stale_bytes", all.stale_bytes);
    sheet.put("seqlist_bytes", all.seq_list_bytes);
    let purged = bucket.tombstones().purge_stats();
    sheet.put("tombstone_purger_passes", purged.passes);
    sheet.put("ht_tombstone_purged_count", purged.tombstones);
    sheet.put("seqlist_purged_count", purged.stale_copies);
    sheet.put("auto_delete_count", bucket.eviction().eviction_stats().deleted_documents);
    for key in [Key::EvictionPolicy, Key::PurgeAge, Key::PurgeInterval] {
        put_setting(bucket, key, sheet);
    }
    put_chore(bucket, "tombstone_purger", sheet);
    Ok(())
}
