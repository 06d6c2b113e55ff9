//! The group about memory: what is charged to the bucket, for what, and the limits it is held to.

use base::Part;
use engine::settings::Key;
use engine::{Bucket, BucketStats, STATES, StateStats};

use super::config::put_setting;
use super::heap::put_heap;
use super::inquiry::{Inquiry, Refused};
use super::{Sheet, process};

/// Bytes by part of the account, exact at this moment.
pub(super) fn parts(bucket: &Bucket) -> Vec<(&'static str, u64)> {
    let exact = bucket.memory().account().exact();
    // A part is below zero for the moment in which memory is given back between two looks.
    std::iter::zip(Part::ALL, exact).map(|(part, bytes)| (part.name(), bytes.max(0) as u64)).collect()
}

/// All of them together.
pub(super) fn used_bytes(bucket: &Bucket) -> u64 {
    parts(bucket).iter().map(|(_, bytes)| bytes).sum()
}

/// What the main group says about memory.
pub(super) fn put_memory(bucket: &Bucket, stats: &BucketStats, all: &StateStats, sheet: &mut Sheet) {
    let used = used_bytes(bucket);
    sheet.put("mem_used", used);
    sheet.put("mem_used_estimate", stats.used_bytes);
    sheet.put("bytes", used);
    sheet.put("ep_mem_low_wat", stats.low_watermark_bytes);
    sheet.put("ep_mem_high_wat", stats.high_watermark_bytes);
    sheet.put("ep_kv_size", all.item_bytes);
    sheet.put("ep_overhead", all.checkpoint_overhead_bytes);
    sheet.put("ep_ht_item_memory", all.item_bytes);
}

/// `memory`
pub fn memory(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    let stats = bucket.stats();
    put_memory(bucket, &stats, &stats.all(), sheet);
    for key in [Key::MaxSize, Key::LowWatermark, Key::HighWatermark, Key::MutationRatio] {
        put_setting(bucket, key, sheet);
    }
    for (part, bytes) in parts(bucket) {
        sheet.put(format_args!("mem_used_{part}"), bytes);
    }
    put_heap(inquiry, sheet);
    sheet.put("mem_held_estimate", bucket.memory().held_bytes());
    for state in STATES {
        sheet.put(format_args!("ht_mem_used_{}", state.name()), stats.of(state).item_bytes);
    }
    if inquiry.counts_node()
        && let Some(bytes) = process::resident_bytes(inquiry.node.env())
    {
        sheet.put("daemon_memory_resident", bytes);
    }
    Ok(())
}
