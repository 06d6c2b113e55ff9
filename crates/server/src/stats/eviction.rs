//! The groups about what leaves memory or changes its form there: eviction, expiry, compression.

use engine::settings::Key;
use engine::{Bucket, BucketStats, STATES, StateStats};

use super::bucket::put_ops;
use super::chores::put_chore;
use super::config::put_setting;
use super::memory::put_memory;
use super::{Inquiry, Refused, Sheet};

/// How many of a hundred documents have their value in memory; all of them where there are none.
pub(super) fn resident_percent(of: &StateStats) -> u64 {
    100 - (of.without_value * 100).checked_div(of.documents).unwrap_or(0).min(100)
}

/// What the main group says about documents that left memory, and those that came back.
pub(super) fn put_eviction(bucket: &Bucket, all: &StateStats, sheet: &mut Sheet) {
    sheet.put("ep_num_non_resident", all.without_value);
    let fetches = bucket.fetch_stats();
    sheet.put("ep_bg_fetched", fetches.fetched);
    sheet.put("ep_bg_num_samples", fetches.batches);
    sheet.put("ep_bg_remaining_items", fetches.waiting);
}

/// What the main group says about documents that expired: noticed by somebody who asked for them, by the expiry pager,
/// or by a compaction of their file.
pub(super) fn put_expiry(bucket: &Bucket, sheet: &mut Sheet) {
    let expired = bucket.expiry_stats();
    sheet.put("ep_expired_access", expired.by_access);
    sheet.put("ep_expired_pager", expired.by_pager);
    sheet.put("ep_expired_compactor", expired.by_compactor);
    sheet.put("ep_num_expiry_pager_runs", expired.passes);
}

/// `eviction`
pub fn eviction(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    let stats = bucket.stats();
    let all = stats.all();
    put_setting(bucket, Key::EvictionPolicy, sheet);
    put_setting(bucket, Key::MaxSize, sheet);
    put_memory(bucket, &stats, &all, sheet);
    put_eviction(bucket, &all, sheet);
    sheet.put("ep_bg_fetch_failed", bucket.fetch_stats().failed);
    put_residency(&stats, &all, sheet);
    put_ops(&all.ops, sheet);
    put_chore(bucket, "pager", sheet);
    Ok(())
}

fn put_residency(stats: &BucketStats, all: &StateStats, sheet: &mut Sheet) {
    sheet.put("curr_items_tot", all.documents);
    sheet.put("perc_mem_resident", resident_percent(all));
    for state in STATES.into_iter().filter(|state| *state != base::VbState::Dead) {
        let percent = resident_percent(stats.of(state));
        sheet.put(format_args!("vb_{}_perc_mem_resident", state.name()), percent);
    }
}

/// `expiry`
pub fn expiry(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    for key in [Key::ExpiryPagerEnabled, Key::ExpiryPagerInterval, Key::MaxTtl] {
        put_setting(bucket, key, sheet);
    }
    put_expiry(bucket, sheet);
    put_chore(bucket, "expiry_pager", sheet);
    Ok(())
}

/// `compression`
pub fn compression(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    for key in [Key::CompressionMode, Key::MinCompressionRatio, Key::CompressorInterval] {
        put_setting(bucket, key, sheet);
    }
    let done = bucket.compression_stats();
    sheet.put("ep_compressor_num_visited", done.visited);
    sheet.put("ep_compressor_num_compressed", done.compressed);
    sheet.put("ep_compressor_before_bytes", done.before_bytes);
    sheet.put("ep_compressor_after_bytes", done.after_bytes);
    sheet.put("ep_compressor_saved_bytes", done.saved_bytes());
    sheet.put("ep_compressor_gained_little", done.gained_little);
    sheet.put("ep_compressor_overtaken", done.overtaken);
    sheet.put("ep_compressor_num_rounds", done.rounds);
    put_chore(bucket, "compressor", sheet);
    Ok(())
}
