//! More figures under the field's names (`kv_...`), which are told to Prometheus and not kept over time.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use engine::StoreTimes;
use kvstore::LogStats;

use super::memory::used_bytes;
use super::metrics_field::{Family, NodeFamily, StateFamily};
use super::node::requests;
use super::page::{Kind, Numbers, Page};
use super::process;
use crate::counters::Totals;
use crate::node::Node;
use crate::tally::Counted;

/// Figures of the node.
pub(super) const OF_NODE_TOO: [NodeFamily; 9] = [
    (
        "kv_rejected_connections",
        Kind::Counter,
        "KV connections refused because there were too many.",
        |node, _| {
            let accepting = node.workers().accepting();
            accepting.kv_refused.load(Relaxed) + accepting.kv_refused_by_address.load(Relaxed)
        },
    ),
    ("kv_daemon_memory_resident_bytes", Kind::Gauge, "Resident memory of the process.", |node, _| {
        process::resident_bytes(node.env()).unwrap_or(0)
    }),
    ("kv_boot_timestamp_seconds", Kind::Gauge, "When the node started, in seconds since 1970.", started_s),
    ("kv_auth_cmds", Kind::Counter, "Logins that were begun.", |_, totals| {
        requests(totals, &[protocol::opcode::SASL_AUTH])
    }),
    ("kv_audit_enabled", Kind::Gauge, "Whether events are recorded in the audit log.", |node, _| {
        u64::from(node.audit.figures().is_on)
    }),
    ("kv_audit_dropped_events", Kind::Counter, "Records left out of the audit log.", |node, _| {
        node.audit.figures().dropped
    }),
    ("kv_connection_structures", Kind::Gauge, "KV connections.", |_, totals| totals.connections as u64),
    ("kv_time_seconds", Kind::Gauge, "The node's clock, in seconds since 1970.", |node, _| {
        node.env().clock.unix_s().into()
    }),
    ("kv_ep_startup_time_seconds", Kind::Gauge, "When the node started, in seconds since 1970.", started_s),
];

fn started_s(node: &Node, _: &Totals) -> u64 {
    node.started_unix_s.into()
}

/// Figures of a bucket.
pub(super) const MORE: [Family; 36] = [
    ("kv_total_memory_used_bytes", Kind::Gauge, "Memory charged to a bucket.", |n| used_bytes(&n.bucket)),
    ("kv_ep_ht_item_memory_bytes", Kind::Gauge, "Memory of documents in tables.", |n| n.all.item_bytes),
    ("kv_ep_meta_data_memory_bytes", Kind::Gauge, "Memory of the tables without the documents.", |n| {
        n.all.table_bytes
    }),
    ("kv_ep_checkpoint_memory_quota_bytes", Kind::Gauge, "The memory that checkpoints may take.", |n| {
        n.checkpoints.share_bytes
    }),
    (
        "kv_ep_checkpoint_memory_recovery_upper_mark_bytes",
        Kind::Gauge,
        "Above this, checkpoints give memory up.",
        |n| n.checkpoints.upper_mark_bytes,
    ),
    (
        "kv_ep_checkpoint_memory_recovery_lower_mark_bytes",
        Kind::Gauge,
        "Down to this, checkpoints give memory up.",
        |n| n.checkpoints.lower_mark_bytes,
    ),
    ("kv_ep_num_checkpoints", Kind::Gauge, "Checkpoints in memory.", |n| n.all.checkpoints),
    (
        "kv_ep_items_expelled_from_checkpoints",
        Kind::Counter,
        "Changes that left before their checkpoint did.",
        |n| n.checkpoints.expelled_items,
    ),
    ("kv_ep_item_commit_failed", Kind::Counter, "Saves of a vBucket that failed.", |n| n.saves.failed_saves),
    ("kv_ep_data_read_failed", Kind::Counter, "Values that could not be read for clients.", |n| {
        n.fetches.failed
    }),
    ("kv_ep_data_write_failed", Kind::Counter, "Saves and compactions that failed.", |n| {
        n.saves.failed_saves + n.compactions.failed
    }),
    (
        "kv_ep_total_deduplicated_flusher",
        Kind::Counter,
        "Changes that the flusher left out for later ones.",
        |n| n.saves.deduplicated,
    ),
    ("kv_ep_db_file_size_bytes", Kind::Gauge, "Bytes of the bucket's files.", |n| n.files.0),
    ("kv_ep_db_data_size_bytes", Kind::Gauge, "Bytes of the bucket's files that are in use.", |n| n.files.1),
    ("kv_ep_pending_compactions", Kind::Gauge, "Compactions that wait or are under way.", |n| {
        n.compactions.waiting + n.compactions.under_way
    }),
    ("kv_ep_compaction_failed", Kind::Counter, "Compactions that failed.", |n| n.compactions.failed),
    ("kv_ep_num_expiry_pager_runs", Kind::Counter, "Passes of the expiry pager.", |n| n.expiry.passes),
    ("kv_ep_defragmenter_num_visited", Kind::Counter, "Versions that the defragmenter looked at.", |n| {
        n.moved.visited
    }),
    ("kv_ep_defragmenter_num_moved", Kind::Counter, "Versions that the defragmenter moved.", |n| {
        n.moved.moved
    }),
    ("kv_ep_item_compressor_num_visited", Kind::Counter, "Values that the compressor looked at.", |n| {
        n.compression.visited
    }),
    ("kv_ep_item_compressor_num_compressed", Kind::Counter, "Values that were compressed in memory.", |n| {
        n.compression.compressed
    }),
    ("kv_ep_warmup_key_count", Kind::Gauge, "Documents whose metadata were loaded since the start.", |n| {
        n.warmup.keys
    }),
    ("kv_ep_warmup_value_count", Kind::Gauge, "Values that were loaded since the start.", |n| {
        n.warmup.values
    }),
    ("kv_ep_warmup_estimated_key_count", Kind::Gauge, "Documents that were on disk at the start.", |n| {
        n.warmup.estimated_keys
    }),
    (
        "kv_ep_warmup_estimated_value_count",
        Kind::Gauge,
        "Values that are to be loaded after the start.",
        |n| n.warmup.estimated_values,
    ),
    ("kv_ep_degraded_mode", Kind::Gauge, "Whether clients are refused until traffic is enabled.", |n| {
        u64::from(!n.bucket.traffic.is_enabled())
    }),
    ("kv_ep_bg_num_samples", Kind::Counter, "Reads from disk for clients that were timed.", |n| {
        StoreTimes::of(&n.bucket).fetch.total()
    }),
    (
        "kv_conflicts_resolved",
        Kind::Counter,
        "Changes with metadata that lost against what was there.",
        |n| n.times.counted(Counted::SetMetaLost) + n.times.counted(Counted::DeleteMetaLost),
    ),
    ("kv_cmd_lookup", Kind::Counter, "Documents that clients read, found or not.", |n| {
        n.all.ops.get_hits + n.all.ops.get_misses
    }),
    ("kv_cmd_mutation", Kind::Counter, "Documents that clients stored or deleted.", |n| {
        n.all.ops.stores + n.all.ops.deletes
    }),
    (
        "kv_ep_clock_cas_drift_threshold_exceeded",
        Kind::Gauge,
        "Changes whose CAS was far ahead of the clock.",
        |n| n.all.clock.ahead,
    ),
    ("kv_mem_used_estimate_bytes", Kind::Gauge, "Memory charged to a bucket, as its parts know it.", |n| {
        n.stats.used_bytes
    }),
    ("kv_ep_bg_remaining_items", Kind::Gauge, "Keys that wait to be read from disk.", |n| n.fetches.waiting),
    ("kv_ep_num_freq_decayer_runs", Kind::Counter, "Times that uses of documents were halved.", |n| {
        n.eviction.decays
    }),
    (
        "kv_ep_db_history_file_size_bytes",
        Kind::Gauge,
        "Bytes of replaced versions that the history of changes keeps.",
        |n| n.history.bytes,
    ),
    (
        "kv_ep_db_history_start_timestamp_seconds",
        Kind::Gauge,
        "Since when it keeps them, in seconds since 1970; 0 if there is none.",
        |n| n.history.since_s,
    ),
];

/// Figures of the vBuckets of one role.
pub(super) const MORE_BY_STATE: [StateFamily; 13] = [
    ("kv_vb_ops_create", "Changes that brought new documents.", |of| of.written.created),
    ("kv_vb_ops_update", "Changes that brought documents that were there.", |of| of.written.updated),
    ("kv_vb_ops_reject", "Changes refused for another CAS or a lock.", |of| of.ops.conflicts),
    ("kv_vb_ht_memory_bytes", "Memory of the tables without the documents.", |of| of.table_bytes),
    ("kv_vb_ht_item_memory_bytes", "Memory of documents in tables.", |of| of.item_bytes),
    ("kv_vb_meta_data_memory_bytes", "Memory of the tables without the documents.", |of| of.table_bytes),
    ("kv_vb_checkpoint_memory_bytes", "Memory of checkpoints with the changes.", |of| {
        of.checkpoint_item_bytes + of.checkpoint_overhead_bytes
    }),
    ("kv_vb_checkpoint_memory_queue_bytes", "Memory of the changes in checkpoints.", |of| {
        of.checkpoint_item_bytes
    }),
    ("kv_vb_checkpoint_memory_overhead_bytes", "Memory of checkpoints without the changes.", |of| {
        of.checkpoint_overhead_bytes
    }),
    ("kv_vb_bloom_filter_memory_bytes", "Memory of the filters of keys.", |of| of.filter_bytes),
    ("kv_vb_seqlist_count", "Items in the lists of an ephemeral bucket.", |of| of.seq_list_items),
    ("kv_vb_seqlist_stale_count", "Stale copies in these lists.", |of| of.stale_items),
    ("kv_vb_seqlist_stale_value_bytes", "Memory of the stale copies.", |of| of.stale_bytes),
];

type ClockFamily = (&'static str, Kind, &'static str, fn(&vbucket::ClockCounts) -> f64);

const CLOCKS: [ClockFamily; 4] = [
    (
        "kv_ep_hlc_drift_seconds",
        Kind::Gauge,
        "How far clocks of changes from elsewhere were off, summed.",
        |of| of.drift_us as f64 / 1e6,
    ),
    ("kv_ep_hlc_drift_count", Kind::Gauge, "Changes from elsewhere whose clock was looked at.", |of| {
        of.foreign as f64
    }),
    ("kv_ep_ahead_exceptions", Kind::Gauge, "Those far ahead of this node's clock.", |of| of.ahead as f64),
    ("kv_ep_behind_exceptions", Kind::Gauge, "Those far behind this node's clock.", |of| of.behind as f64),
];

/// What the clocks of active and replica vBuckets have seen, and what compactions left out.
pub(super) fn put_clocks(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    for (name, kind, help, value) in CLOCKS {
        page.head(name, kind, help)?;
        for numbers in buckets {
            for state in [base::VbState::Active, base::VbState::Replica] {
                let labels = [("bucket", numbers.bucket.name()), ("state", state.name())];
                page.sample(name, &labels, value(&numbers.stats.of(state).clock))?;
            }
        }
    }
    let head =
        ("kv_memory_used_bytes", Kind::Gauge, "Memory of documents: metadata, key and value are one piece.");
    let used: Vec<_> = buckets.iter().map(|n| vec![("storedvalues", n.all.item_bytes)]).collect();
    page.each_of(buckets, ("for", &used), head, |bytes| *bytes)?;
    let head = ("kv_ep_compaction_purged", Kind::Counter, "What compactions left out for good.");
    let purged = |n: &Numbers| vec![("tombstones", n.compactions.tombstones_purged)];
    let purged: Vec<_> = buckets.iter().map(purged).collect();
    page.each_of(buckets, ("for", &purged), head, |count| *count)
}

type LogFamily = (&'static str, Kind, &'static str, fn(&LogStats) -> u64);

const OF_LOG: [LogFamily; 5] = [
    ("kv_ep_io_total_write_bytes_bytes", Kind::Counter, "Bytes that a log-structured store wrote.", |of| {
        of.written.all()
    }),
    (
        "kv_ep_io_compaction_write_bytes_bytes",
        Kind::Counter,
        "Bytes of these that merges and rewrites wrote.",
        |of| of.written.merges + of.written.rewrites,
    ),
    ("kv_ep_magma_block_cache_hits", Kind::Counter, "Blocks found in the store's cache.", |of| of.cache.hits),
    ("kv_ep_magma_block_cache_misses", Kind::Counter, "Blocks that were not in it and were read.", |of| {
        of.cache.misses
    }),
    ("kv_ep_magma_block_cache_mem_used_bytes", Kind::Gauge, "Memory of this cache.", |of| of.cache.bytes),
];

/// What only buckets in a log-structured store have.
pub(super) fn put_log(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    for (name, kind, help, value) in OF_LOG {
        page.head(name, kind, help)?;
        for numbers in buckets {
            if let Some(log) = &numbers.store.log {
                page.sample(name, &[("bucket", numbers.bucket.name())], value(log))?;
            }
        }
    }
    Ok(())
}

/// Commands on paths of documents.
pub(super) fn put_subdoc(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "kv_subdoc_ops";
    page.head(name, Kind::Counter, "Sub-document commands, whatever became of them.")?;
    for numbers in buckets {
        for (op, counted) in [("lookup", Counted::SubdocLookup), ("mutation", Counted::SubdocMutation)] {
            let labels = [("bucket", numbers.bucket.name()), ("op", op)];
            page.sample(name, &labels, numbers.times.counted(counted))?;
        }
    }
    Ok(())
}
