//! The groups about what leaves memory or changes its form there: eviction, expiry, compression.

use std::sync::atomic::Ordering;

use base::{VbId, VbState, Version};
use engine::settings::Key;
use engine::{Bucket, BucketStats, EvictionStats, STATES, StateStats, StoreTimes};

use super::Sheet;
use super::chores::put_chore;
use super::config::put_setting;
use super::inquiry::{Inquiry, Refused};
use super::memory::put_memory;
use super::ops::put_ops;

/// How many of a hundred documents have their value in memory; all of them where there are none.
pub(super) fn resident_percent(of: &StateStats) -> u64 {
    100 - (of.without_value * 100).checked_div(of.documents).unwrap_or(0).min(100)
}

/// What the main group says about documents that left memory, and those that came back.
pub(super) fn put_eviction(inquiry: &Inquiry<'_>, all: &StateStats, sheet: &mut Sheet) {
    let (bucket, since) = (inquiry.bucket, inquiry.node.times.of(inquiry.bucket).baseline());
    let done = bucket.eviction().eviction_stats();
    sheet.put("ep_oom_errors", done.refused_above_quota);
    sheet.put("ep_tmp_oom_errors", done.refused_below_quota);
    sheet.put("ep_num_pager_runs", done.passes.saturating_sub(since.pager_runs));
    sheet.put("ep_num_freq_decayer_runs", done.decays);
    sheet.put("ep_num_value_ejects", done.ejects().saturating_sub(since.ejects));
    sheet.put("ep_num_non_resident", all.without_value);
    sheet.put("ep_num_evicted_documents", all.evicted_documents);
    sheet.put("ep_num_evicted_tombstones", all.evicted_tombstones);
    sheet.put("ep_bloom_filter_memory", all.filter_bytes);
    let fetches = bucket.fetching().fetch_stats();
    sheet.put("ep_bg_fetched", fetches.fetched);
    sheet.put("ep_bg_remaining_items", fetches.waiting);
    let StoreTimes { fetch_wait, fetch, .. } = since.store(StoreTimes::of(bucket));
    sheet.put("ep_bg_num_samples", fetch_wait.total());
    for (what, times) in [("wait", &fetch_wait), ("load", &fetch)] {
        sheet.put(format_args!("ep_bg_{what}"), times.sum_ns() / 1000);
        sheet.put(format_args!("ep_bg_{what}_avg"), times.mean_ns() / 1000);
        sheet.put(format_args!("ep_bg_min_{what}"), times.shortest_ns() / 1000);
        sheet.put(format_args!("ep_bg_max_{what}"), times.longest_ns() / 1000);
    }
}

/// What the main group says about documents that expired: noticed by somebody who asked for them, by the expiry pager,
/// or by a compaction of their file.
pub(super) fn put_expiry(bucket: &Bucket, sheet: &mut Sheet) {
    let expired = bucket.documents().expiry_stats();
    sheet.put("ep_expired_access", expired.by_access);
    sheet.put("ep_expired_pager", expired.by_pager);
    sheet.put("ep_expired_compactor", expired.by_compactor);
    sheet.put("ep_num_expiry_pager_runs", expired.passes);
}

/// `eviction`: nothing but histograms, in the form of the field.
pub fn eviction(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let [first, others] = Frequencies::of(inquiry.bucket);
    first.put("ep_active_or_pending_eviction_values_snapshot", sheet);
    others.put("ep_replica_eviction_values_snapshot", sheet);
    Ok(())
}

/// `eviction-details`
pub fn details(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    let stats = bucket.stats();
    let all = stats.all();
    put_setting(bucket, Key::EvictionPolicy, sheet);
    put_setting(bucket, Key::MaxSize, sheet);
    put_memory(bucket, &stats, &all, sheet);
    put_eviction(inquiry, &all, sheet);
    sheet.put("ep_bg_fetch_failed", bucket.fetching().fetch_stats().failed);
    sheet.put("ep_unreadable_values", bucket.fetching().fetch_stats().unreadable);
    put_residency(&stats, &all, sheet);
    put_ops(&all.ops, sheet);
    sheet.put("get_not_resident", all.ops.get_not_resident);
    put_pager(&bucket.eviction().eviction_stats(), sheet);
    for key in [Key::FreqDecayPercent, Key::FreqCounterIncrementFactor, Key::AutoEviction] {
        put_setting(bucket, key, sheet);
    }
    for key in [Key::BfilterEnabled, Key::BfilterFpProb] {
        put_setting(bucket, key, sheet);
    }
    let sampled: u64 = Frequencies::of(bucket).iter().map(Frequencies::sampled).sum();
    sheet.put("frequency_sampled", sampled);
    put_chore(bucket, "pager", sheet);
    Ok(())
}

fn put_pager(done: &EvictionStats, sheet: &mut Sheet) {
    sheet.put("pager_passes", done.passes);
    sheet.put("pager_visited", done.visited);
    sheet.put("pager_evicted_values", done.evicted_values);
    sheet.put("pager_evicted_documents", done.evicted_documents);
    sheet.put("pager_deleted_documents", done.deleted_documents);
    sheet.put("pager_freed_bytes", done.freed_bytes);
    sheet.put("pager_kept_dirty", done.kept_dirty);
    sheet.put("pager_kept_held", done.kept_held);
    sheet.put("pager_kept_locked", done.kept_locked);
    sheet.put("pager_kept_hot", done.kept_hot);
    sheet.put("pager_kept_young", done.kept_young);
    sheet.put("pager_decays", done.decays);
    sheet.put("pager_active_threshold", done.active_threshold);
    sheet.put("pager_replica_threshold", done.replica_threshold);
    sheet.put("pager_longest_hold_ns", done.longest_hold_ns);
}

/// Documents of all vBuckets together whose frequency is looked at; where they stand depends on hashes alone, so they
/// stand for all.
const SAMPLED_DOCUMENTS: usize = 16_384;
/// under one lock at most so many.
const SAMPLED_AT_ONCE: usize = 256;
/// Frequencies of 0, of 1, and those between a power of two and the next.
const BINS: usize = 9;

/// How often some of the documents in memory are used.
#[derive(Default)]
struct Frequencies {
    bins: [u64; BINS],
    sum: u64,
}

impl Frequencies {
    /// Of active and pending vBuckets, and of the others.
    fn of(bucket: &Bucket) -> [Frequencies; 2] {
        let mut counts = [Frequencies::default(), Frequencies::default()];
        let share = SAMPLED_DOCUMENTS / usize::from(bucket.vbuckets().max(1));
        for vb in (0..bucket.vbuckets()).map(VbId) {
            bucket.inspect(vb, |vb| {
                let counts = &mut counts[usize::from(matches!(vb.state(), VbState::Replica | VbState::Dead))];
                vb.table().visit(0, share.clamp(1, SAMPLED_AT_ONCE), |version| counts.enter(version));
            });
        }
        counts
    }

    fn enter(&mut self, version: &Version) {
        if !version.is_deleted() && version.is_resident() {
            let frequency = version.frequency().load(Ordering::Relaxed);
            self.bins[(u8::BITS - frequency.leading_zeros()) as usize] += 1;
            self.sum += u64::from(frequency);
        }
    }

    fn sampled(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// As `NAME_FROM,TO`, where `TO` is not in the bin; only bins that have any. The field's tools make up a mean from
    /// the bins' widths if they are sent none, and that is below the first bin.
    fn put(&self, name: &str, sheet: &mut Sheet) {
        for (bin, count) in self.bins.iter().enumerate().filter(|(_, count)| **count > 0) {
            let from = if bin == 0 { 0 } else { 1 << (bin - 1) };
            sheet.put(format_args!("{name}_{from},{}", 1 << bin), count);
        }
        put_mean_frequency(name, self.sum, self.sampled(), sheet);
    }
}

/// The mean of frequencies as `NAME_mean`, with the decimals of other histograms; absent if there are none.
pub(super) fn put_mean_frequency(name: &str, sum: u64, count: u64, sheet: &mut Sheet) {
    if count > 0 {
        sheet.put(format_args!("{name}_mean"), format_args!("{:.3}", sum as f64 / count as f64));
    }
}

fn put_residency(stats: &BucketStats, all: &StateStats, sheet: &mut Sheet) {
    sheet.put("curr_items_tot", all.documents);
    sheet.put("perc_mem_resident", resident_percent(all));
    for state in STATES.into_iter().filter(|state| *state != VbState::Dead) {
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
    let done = bucket.compression().compression_stats();
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
