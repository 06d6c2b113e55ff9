//! Groups about the bucket as a whole: the main numbers, identity, loading after a start.

use base::limits;
use engine::{BucketKind, BucketStats, STATES, StateStats, StoreTimes, WarmupState, WarmupStats};
use vbucket::failover_table::MAX_ENTRIES;

use super::checkpoint::put_checkpoints;
use super::config::put_settings;
use super::eviction::{put_eviction, put_expiry, resident_percent};
use super::inquiry::{Inquiry, Refused};
use super::memory::put_memory;
use super::ops::put_ops;
use super::{Sheet, node};
use crate::naming::storage_backend;
use crate::tally::{self, Counted};

/// No name, or nothing but spaces: the node around the bucket, then the bucket.
pub fn everything(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let stats = inquiry.bucket.stats();
    let all = stats.all();
    node::put_node(inquiry, sheet);
    put_ops(&all.ops, sheet);
    let times = inquiry.node.times.of(inquiry.bucket);
    let since = times.baseline();
    for (counted, name) in tally::NAMES {
        let before = if counted == Counted::NotMyVbucket { since.not_my_vbuckets } else { 0 };
        sheet.put(name, times.counted(counted).saturating_sub(before));
    }
    put_identity(inquiry, sheet);
    put_settings(inquiry.bucket, sheet);
    put_memory(inquiry.bucket, &stats, &all, sheet);
    put_checkpoints(inquiry.bucket, &all, sheet);
    put_persistence(inquiry, &stats, &all, sheet);
    put_eviction(inquiry, &all, sheet);
    put_expiry(inquiry.bucket, sheet);
    put_items(&stats, &all, sheet);
    put_work(inquiry, sheet);
    Ok(())
}

/// What background tasks did, and what the disk refused them.
fn put_work(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    let bucket = inquiry.bucket;
    let moved = bucket.defragmentation().defragmenter_stats();
    sheet.put("ep_defragmenter_num_visited", moved.visited);
    sheet.put("ep_defragmenter_num_moved", moved.moved);
    let compressed = bucket.compression().compression_stats();
    sheet.put("ep_item_compressor_num_visited", compressed.visited);
    sheet.put("ep_item_compressor_num_compressed", compressed.compressed);
    put_warmup_state(&bucket.loading().warmup_stats(), sheet);
    let (saves, fetches) = (bucket.flushing().save_stats(), bucket.fetching().fetch_stats());
    sheet.put("ep_item_commit_failed", saves.failed_saves);
    sheet.put("ep_data_read_failed", fetches.failed);
    let compactions = bucket.compaction().compaction_stats();
    sheet.put("ep_data_write_failed", saves.failed_saves + compactions.failed);
    if bucket.config().kind == BucketKind::Persistent {
        let (file_bytes, used_bytes) = engine::file_usage(bucket);
        sheet.put("ep_db_file_size", file_bytes);
        sheet.put("ep_db_data_size", used_bytes);
    }
}

/// What the bucket is, what of it never changes, and whether clients may use it.
fn put_identity(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    let (bucket, config) = (inquiry.bucket, inquiry.bucket.config());
    sheet.put("ep_version", env!("CARGO_PKG_VERSION"));
    sheet.put("ep_couch_bucket", bucket.name());
    sheet.put("ep_uuid", bucket.uuid());
    match config.kind {
        BucketKind::Persistent => {
            sheet.put("ep_bucket_type", "persistent");
            sheet.put("ep_backend", storage_backend(config.kind, bucket.backend()));
        }
        BucketKind::Ephemeral => sheet.put("ep_bucket_type", "ephemeral"),
    }
    sheet.put("ep_dbname", config.dir.display());
    sheet.put("ep_xattr_enabled", true);
    let has_traffic = bucket.traffic.is_enabled();
    sheet.put("ep_data_traffic_enabled", has_traffic);
    // While documents are loaded they are served already.
    sheet.put("ep_degraded_mode", !has_traffic);
    sheet.put("ep_max_vbuckets", bucket.vbuckets());
    sheet.put("ep_max_item_size", limits::MAX_VALUE_BYTES);
    sheet.put("ep_max_item_privileged_bytes", limits::MAX_SYSTEM_XATTR_BYTES);
    sheet.put("ep_max_failover_entries", MAX_ENTRIES);
    sheet.put("ep_flusher_total_batch_limit", config.flush_batch_items);
}

/// What waits for the disk, and what got there.
fn put_persistence(inquiry: &Inquiry<'_>, stats: &BucketStats, all: &StateStats, sheet: &mut Sheet) {
    let store = inquiry.bucket.store_stats();
    sheet.put("ep_queue_size", all.unpersisted_items);
    sheet.put("ep_diskqueue_items", all.unpersisted_items);
    sheet.put("ep_diskqueue_fill", all.enqueued());
    sheet.put("ep_diskqueue_drain", all.ops.drained);
    sheet.put("ep_total_enqueued", all.enqueued());
    sheet.put("ep_total_deduplicated", all.merged_items);
    sheet.put("ep_flusher_queue_vbuckets", stats.flush_queue_vbuckets);
    sheet.put("ep_persistence_seqno_lag", all.seqno_lag);
    sheet.put("ep_total_persisted", store.items_saved);
    sheet.put("ep_storage_failures", store.failures);
    let compactions = inquiry.bucket.compaction().compaction_stats();
    sheet.put("ep_pending_compactions", compactions.waiting + compactions.under_way);
    let saves = inquiry.bucket.flushing().save_stats();
    sheet.put("ep_disk_full", saves.is_disk_full);
    sheet.put("ep_item_flush_failed", saves.failed_saves);
    sheet.put("ep_flusher_state", if saves.is_held { "paused" } else { "running" });
    sheet.put("ep_flusher_stand_ins", saves.stood_in);
    sheet.put("ep_total_deduplicated_flusher", saves.deduplicated);
    let commit = StoreTimes::of(inquiry.bucket).commit;
    sheet.put("ep_commit_num", commit.total());
    sheet.put("ep_commit_time_total", commit.sum_ns() / 1_000_000);
    sheet.put("ep_rollback_count", all.ops.rollbacks);
}

fn put_items(stats: &BucketStats, all: &StateStats, sheet: &mut Sheet) {
    sheet.put("curr_items", stats.of(base::VbState::Active).documents);
    sheet.put("curr_items_tot", all.documents);
    sheet.put("ep_tombstones", all.tombstones);
    sheet.put("ep_vb_total", all.vbuckets);
    for state in STATES {
        put_state(state.name(), stats.of(state), sheet);
    }
    put_clocks(stats, sheet);
}

/// How far off the clocks is what comes from elsewhere.
fn put_clocks(stats: &BucketStats, sheet: &mut Sheet) {
    let [active, replica] =
        [base::VbState::Active, base::VbState::Replica].map(|state| stats.of(state).clock);
    for (state, of) in [("active", active), ("replica", replica)] {
        sheet.put(format_args!("ep_{state}_hlc_drift"), of.drift_us);
        sheet.put(format_args!("ep_{state}_hlc_drift_count"), of.foreign);
        sheet.put(format_args!("ep_{state}_ahead_exceptions"), of.ahead);
        sheet.put(format_args!("ep_{state}_behind_exceptions"), of.behind);
    }
    sheet.put("ep_clock_cas_drift_threshold_exceeded", active.ahead + replica.ahead);
}

fn put_state(state: &str, of: &StateStats, sheet: &mut Sheet) {
    let mut put = |name: &str, value: u64| sheet.put(format_args!("vb_{state}_{name}"), value);
    put("num", of.vbuckets);
    if state == base::VbState::Dead.name() {
        return;
    }
    put("curr_items", of.documents);
    put("num_non_resident", of.without_value);
    put("num_evicted", of.evicted_documents);
    put("bloom_filter_memory", of.filter_bytes);
    put("perc_mem_resident", resident_percent(of));
    put("ht_memory", of.table_bytes);
    put("ht_item_memory", of.item_bytes);
    put("meta_data_memory", of.table_bytes);
    put("checkpoint_memory", of.checkpoint_item_bytes + of.checkpoint_overhead_bytes);
    put("checkpoint_memory_queue", of.checkpoint_item_bytes);
    put("checkpoint_memory_overhead", of.checkpoint_overhead_bytes);
    put("itm_memory", of.item_bytes);
    put("eject", of.ops.ejects);
    put("queue_size", of.unpersisted_items);
    put("queue_fill", of.enqueued());
    put("queue_drain", of.ops.drained);
    put("rollback_item_count", of.ops.rolled_back);
    put("sync_write_accepted_count", of.ops.sync_accepted);
    put("sync_write_committed_count", of.ops.sync_committed);
    put("sync_write_aborted_count", of.ops.sync_aborted);
    put("expired", of.ops.expirations);
    put("ops_get", of.ops.get_hits + of.ops.get_misses);
    put("ops_store", of.ops.stores);
    put("ops_create", of.written.created);
    put("ops_update", of.written.updated);
    put("ops_delete", of.ops.deletes);
    put("ops_reject", of.ops.conflicts);
}

/// `warmup`: how far loading is after a start. Everything is served from the beginning, so traffic waits for nothing.
pub fn warmup(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let stats = inquiry.bucket.loading().warmup_stats();
    put_warmup_state(&stats, sheet);
    let state = match stats.state {
        WarmupState::LoadingKeys => "loading keys",
        WarmupState::LoadingValues => "loading data",
        WarmupState::Done => "done",
    };
    sheet.put("ep_warmup_state", state);
    sheet.put("ep_warmup_estimated_key_count", stats.estimated_keys);
    sheet.put("ep_warmup_key_count", stats.keys);
    sheet.put("ep_warmup_estimated_value_count", stats.estimated_values);
    sheet.put("ep_warmup_value_count", stats.values);
    sheet.put("ep_warmup_vbuckets", stats.vbuckets);
    sheet.put("ep_warmup_vbuckets_loaded", stats.vbuckets_loaded);
    sheet.put("ep_warmup_vbuckets_failed", stats.vbuckets_failed);
    sheet.put("ep_warmup_at_watermark", stats.at_watermark);
    sheet.put("ep_warmup_states_time", stats.states_us);
    if let Some(keys_us) = stats.keys_us {
        sheet.put("ep_warmup_keys_time", keys_us);
    }
    Ok(())
}

/// What the main group says of it, too.
fn put_warmup_state(stats: &WarmupStats, sheet: &mut Sheet) {
    sheet.put("ep_warmup", "enabled");
    let is_done = matches!(stats.state, WarmupState::Done);
    sheet.put("ep_warmup_thread", if is_done { "complete" } else { "running" });
    sheet.put("ep_warmup_time", stats.total_us);
}

/// `uuid`
pub fn uuid(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    sheet.put("uuid", inquiry.bucket.uuid());
    Ok(())
}
