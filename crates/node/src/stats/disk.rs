//! The groups about files and the journal in front of them.

use base::VbId;
use engine::{Bucket, BucketKind};
use kvstore::{HistoryUsage, StorageBackend};

use super::Sheet;
use super::inquiry::{Inquiry, Refused};
use crate::at_rest::progress;

/// `compaction`
pub fn compaction(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let stats = inquiry.bucket.compaction().compaction_stats();
    let config = inquiry.bucket.config();
    sheet.put("ep_compaction_fragmentation_percent", config.compact_percent);
    sheet.put("ep_compaction_min_waste", config.compact_min_waste_bytes);
    sheet.put("ep_purge_age", config.purge_age_s);
    sheet.put("ep_compaction_runs", stats.runs);
    sheet.put("ep_compaction_failed", stats.failed);
    sheet.put("ep_pending_compactions", stats.waiting + stats.under_way);
    sheet.put("ep_compaction_bytes_before", stats.before_bytes);
    sheet.put("ep_compaction_bytes_after", stats.after_bytes);
    sheet.put("ep_compaction_tombstones_purged", stats.tombstones_purged);
    sheet.put("ep_expired_compactor", stats.documents_expired);
    if let Some(running) = stats.running {
        sheet.put("ep_compaction_running_vb", running.vb);
        sheet.put("ep_compaction_running_done_bytes", running.progress.done_bytes);
        sheet.put("ep_compaction_running_total_bytes", running.progress.total_bytes);
    }
    Ok(())
}

/// `diskinfo [detail]`
pub fn diskinfo(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    match args.first() {
        None => summary(inquiry, sheet),
        Some(&b"detail") => detail(inquiry, sheet),
        Some(_) => return Err(Refused::Invalid("The only argument of this stat group is `detail`")),
    }
    Ok(())
}

fn summary(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    let totals = engine::file_totals(inquiry.bucket);
    sheet.put("ep_db_data_size", totals.used_bytes);
    sheet.put("ep_db_file_size", totals.file_bytes);
    sheet.put("ep_db_prepare_size", totals.prepare_bytes);
    put_history(inquiry, sheet);
    sheet.put("ep_db_unreadable_vbuckets", totals.unreadable_vbuckets);
    let store = inquiry.bucket.store_stats();
    sheet.put("ep_db_open_files", store.open_files);
    sheet.put("ep_db_file_hits", store.file_hits);
    sheet.put("ep_db_file_misses", store.file_misses);
    sheet.put("ep_db_file_evictions", store.file_evictions);
    // Only in a log-structured store.
    let Some(log) = store.log else { return };
    sheet.put("ep_log_runs", log.runs);
    sheet.put("ep_log_run_bytes", log.run_bytes);
    sheet.put("ep_log_segments", log.segments);
    sheet.put("ep_log_segment_bytes", log.segment_bytes);
    sheet.put("ep_log_item_bytes", log.item_bytes);
    sheet.put("ep_log_live_bytes", log.live_bytes);
    sheet.put("ep_log_rollback_bytes", log.rollback_bytes);
    sheet.put("ep_log_cache_bytes", log.cache.bytes);
    sheet.put("ep_log_cache_hits", log.cache.hits);
    sheet.put("ep_log_cache_misses", log.cache.misses);
    sheet.put("ep_log_written_segments", log.written.segments);
    sheet.put("ep_log_written_runs", log.written.runs);
    sheet.put("ep_log_written_merges", log.written.merges);
    sheet.put("ep_log_written_rewrites", log.written.rewrites);
    sheet.put("ep_log_written_manifests", log.written.manifests);
}

/// What the history of changes of all vBuckets keeps, and since when; nothing where there cannot be one.
pub(super) fn history_of(bucket: &Bucket) -> HistoryUsage {
    let mut all = HistoryUsage::default();
    if bucket.backend() != StorageBackend::LogStructured {
        return all;
    }
    for of in (0..bucket.vbuckets()).map(|vb| bucket.history(VbId(vb))) {
        all.bytes += of.bytes;
        let oldest = [all.since_s, of.since_s].into_iter().filter(|since_s| *since_s > 0).min();
        all.since_s = oldest.unwrap_or(0);
    }
    all
}

fn put_history(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    let kept = history_of(inquiry.bucket);
    sheet.put("ep_db_history_file_size", kept.bytes);
    sheet.put("ep_db_history_start_timestamp", kept.since_s);
}

/// `encryption`: on a node without an encryption key only that it is off.
pub fn encryption(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let found = match progress::look(inquiry.node, inquiry.bucket.name()) {
        None => {
            sheet.put("ep_encryption_enabled", false);
            return Ok(());
        }
        Some(Err(error)) => {
            sheet.put("ep_encryption_error", error);
            return Ok(());
        }
        Some(Ok(found)) => found,
    };
    sheet.put("ep_encryption_enabled", found.is_on);
    sheet.put("ep_encryption_data_keys", found.keys);
    sheet.put("ep_encryption_files", found.all.files);
    sheet.put("ep_encryption_file_bytes", found.all.bytes);
    sheet.put("ep_encryption_clear_files", found.in_clear.files);
    sheet.put("ep_encryption_clear_bytes", found.in_clear.bytes);
    sheet.put("ep_encryption_outdated_files", found.outdated.files);
    sheet.put("ep_encryption_outdated_bytes", found.outdated.bytes);
    Ok(())
}

/// `disk-failures`: operations of the store that failed, under the names of the field.
pub fn failures(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let mut sheet = sheet.under("rw_0");
    sheet.put("failure_set", inquiry.bucket.flushing().save_stats().failed_saves);
    sheet.put("failure_get", inquiry.bucket.fetching().fetch_stats().failed);
    sheet.put("failure_compaction", inquiry.bucket.compaction().compaction_stats().failed);
    sheet.put("failures", inquiry.bucket.store_stats().failures);
    Ok(())
}

/// `kvstore`: under the name of the one store that a bucket has; nothing without a disk.
pub fn kvstore(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    if inquiry.bucket.config().kind == BucketKind::Ephemeral {
        return Ok(());
    }
    let (store, fetches) = (inquiry.bucket.store_stats(), inquiry.bucket.fetching().fetch_stats());
    let mut sheet = sheet.under("rw_0");
    let kind = inquiry.bucket.config().kind;
    sheet.put("backend_type", crate::naming::storage_backend(kind, inquiry.bucket.backend()));
    sheet.put("open", store.file_misses);
    sheet.put("failure_set", inquiry.bucket.flushing().save_stats().failed_saves);
    sheet.put("failure_get", fetches.failed);
    sheet.put("failure_compaction", inquiry.bucket.compaction().compaction_stats().failed);
    sheet.put("io_bg_fetch_docs_read", fetches.fetched);
    sheet.put("io_num_write", store.items_saved);
    sheet.put("numLoadedVb", inquiry.bucket.loading().warmup_stats().vbuckets_loaded);
    let Some(log) = store.log else { return Ok(()) };
    sheet.put("block_cache_hits", log.cache.hits);
    sheet.put("block_cache_misses", log.cache.misses);
    sheet.put("io_total_write_bytes", log.written.all());
    sheet.put("io_compaction_write_bytes", log.written.merges + log.written.rewrites);
    sheet.put("log_write_amplification", format_args!("{:.3}", log.write_amplification()));
    sheet.put("log_space_amplification", format_args!("{:.3}", log.space_amplification()));
    Ok(())
}

/// `journal`: nothing but whether there is one if there is none.
pub fn journal(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let store = inquiry.bucket.store_stats();
    sheet.put("journal_enabled", store.journal.is_some());
    let Some(journal) = store.journal else { return Ok(()) };
    sheet.put("journal_unfiled_bytes", store.unfiled_bytes);
    sheet.put("journal_used_bytes", journal.used_bytes);
    sheet.put("journal_segments", journal.segments);
    sheet.put("journal_spares", journal.spares);
    sheet.put("journal_frames", journal.frames);
    sheet.put("journal_payload_bytes", journal.payload_bytes);
    sheet.put("journal_written_bytes", journal.written_bytes);
    sheet.put("journal_syncs", journal.syncs);
    sheet.put("journal_prewritten_bytes", journal.prewritten_bytes);
    sheet.put("journal_recycled_segments", journal.recycled_segments);
    sheet.put("journal_given_up_segments", journal.given_up_segments);
    Ok(())
}

fn detail(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    for id in 0..inquiry.bucket.vbuckets() {
        let counts = inquiry.bucket.filed_counts(VbId(id));
        let mut sheet = sheet.under(format_args!("vb_{id}"));
        match counts {
            Ok(counts) => {
                sheet.put("data_size", counts.used_bytes);
                sheet.put("file_size", counts.file_bytes);
                sheet.put("num_items", counts.documents);
                sheet.put("num_deleted_items", counts.tombstones);
            }
            Err(failure) => sheet.put("error", failure),
        }
    }
}
