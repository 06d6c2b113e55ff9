//! What Prometheus is told under the names of the field (`kv_...`), which stock dashboards ask for.
//!
//! The names are Couchbase's, whose counters do not end with `_total`.
//! Figures mean what they mean under Stave's own names.

use std::fmt;

use base::VbState;
use engine::{StateStats, StoreTimes};

use super::eviction::resident_percent;
use super::memory::used_bytes;
use super::metrics_more::{MORE, MORE_BY_STATE, OF_NODE_TOO, put_clocks, put_log, put_subdoc};
use super::metrics_streams;
use super::page::{Kind, Numbers, Page};
use crate::counters::Totals;
use crate::node::Node;
use crate::tally::Counted;

/// All of them.
pub(super) fn put(node: &Node, buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let totals = node.totals();
    put_node(node, &totals, page)?;
    put_subdoc(buckets, page)?;
    put_ops(buckets, page)?;
    put_buckets(buckets, page)?;
    put_by_state(buckets, page)?;
    put_clocks(buckets, page)?;
    put_log(buckets, page)?;
    metrics_streams::put(node, buckets, page)
}

pub(super) type NodeFamily = (&'static str, Kind, &'static str, fn(&Node, &Totals) -> u64);

/// Figures of the node.
pub(super) const OF_NODE: [NodeFamily; 6] = [
    ("kv_uptime_seconds", Kind::Gauge, "Seconds since the node started.", |node, _| node.uptime_s()),
    ("kv_curr_connections", Kind::Gauge, "KV connections at this moment.", |_, totals| {
        totals.connections as u64
    }),
    ("kv_total_connections", Kind::Counter, "KV connections ever accepted.", |_, totals| totals.accepted),
    ("kv_auth_errors", Kind::Counter, "Logins that failed.", |_, totals| totals.auth_errors()),
    ("kv_read_bytes", Kind::Counter, "Bytes received from KV clients.", |_, totals| totals.received_bytes),
    ("kv_written_bytes", Kind::Counter, "Bytes sent to KV clients.", |_, totals| totals.sent_bytes),
];

fn put_node(node: &Node, totals: &Totals, page: &mut Page<'_>) -> fmt::Result {
    OF_NODE
        .iter()
        .chain(&OF_NODE_TOO)
        .try_for_each(|(name, kind, help, value)| page.one(name, *kind, help, value(node, totals)))
}

/// The family of operations.
pub(super) const OPS_NAME: &str = "kv_ops";

type Operation = (&'static str, Option<&'static str>, fn(&Numbers) -> u64);

/// What is told of operations by `op` and `result`.
pub(super) const OPS: [Operation; 17] = [
    ("get", Some("hit"), |n| n.all.ops.get_hits),
    ("get", Some("miss"), |n| n.all.ops.get_misses),
    ("set", None, |n| n.all.ops.stores),
    ("delete", Some("hit"), |n| n.all.ops.deletes),
    ("delete", Some("miss"), |n| n.times.counted(Counted::DeleteMiss)),
    ("incr", Some("hit"), |n| n.times.counted(Counted::IncrementHit)),
    ("incr", Some("miss"), |n| n.times.counted(Counted::IncrementMiss)),
    ("decr", Some("hit"), |n| n.times.counted(Counted::DecrementHit)),
    ("decr", Some("miss"), |n| n.times.counted(Counted::DecrementMiss)),
    ("cas", Some("hit"), |n| n.times.counted(Counted::CasHit)),
    ("cas", Some("miss"), |n| n.times.counted(Counted::CasMiss)),
    ("cas", Some("badval"), |n| n.times.counted(Counted::CasWrong)),
    ("get_meta", None, |n| n.times.counted(Counted::GetMeta)),
    ("set_meta", None, |n| n.times.counted(Counted::SetMeta)),
    ("del_meta", None, |n| n.times.counted(Counted::DeleteMeta)),
    ("set_ret_meta", None, |n| n.times.counted(Counted::SetReturningMeta)),
    ("del_ret_meta", None, |n| n.times.counted(Counted::DeleteReturningMeta)),
];

fn put_ops(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = OPS_NAME;
    page.head(name, Kind::Counter, "Operations of clients, by what they did and what came of it.")?;
    for numbers in buckets {
        for (op, result, count) in OPS {
            let labels = [("bucket", numbers.bucket.name()), ("op", op), ("result", result.unwrap_or(""))];
            // An empty label is no label.
            let used = if result.is_some() { &labels[..] } else { &labels[..2] };
            page.sample(name, used, count(numbers))?;
        }
    }
    Ok(())
}

pub(super) type Family = (&'static str, Kind, &'static str, fn(&Numbers) -> u64);

/// Figures of a bucket.
pub(super) const FAMILIES: [Family; 33] = [
    ("kv_curr_items", Kind::Gauge, "Documents of active vBuckets.", |n| {
        n.stats.of(VbState::Active).documents
    }),
    ("kv_curr_items_tot", Kind::Gauge, "Documents of all vBuckets.", |n| n.all.documents),
    ("kv_mem_used_bytes", Kind::Gauge, "Memory charged to a bucket.", |n| used_bytes(&n.bucket)),
    ("kv_ep_max_size", Kind::Gauge, "The bucket's quota, in bytes.", |n| n.stats.quota_bytes),
    ("kv_ep_mem_high_wat", Kind::Gauge, "The high watermark, in bytes.", |n| n.stats.high_watermark_bytes),
    ("kv_ep_mem_low_wat", Kind::Gauge, "The low watermark, in bytes.", |n| n.stats.low_watermark_bytes),
    ("kv_ep_key_value_size_bytes", Kind::Gauge, "Memory of documents in tables.", |n| n.all.item_bytes),
    ("kv_total_memory_overhead_bytes", Kind::Gauge, "Memory of checkpoints without the changes.", |n| {
        n.all.checkpoint_overhead_bytes
    }),
    ("kv_ep_vb_total", Kind::Gauge, "vBuckets.", |n| n.all.vbuckets),
    ("kv_ep_queue_size", Kind::Gauge, "Changes that are not on disk yet.", |n| n.all.unpersisted_items),
    ("kv_ep_diskqueue_items", Kind::Gauge, "Changes that are not on disk yet.", |n| n.all.unpersisted_items),
    ("kv_ep_diskqueue_fill", Kind::Counter, "Changes that came into the disk queue.", |n| n.all.enqueued()),
    ("kv_ep_diskqueue_drain", Kind::Counter, "Changes that left the disk queue.", |n| n.all.ops.drained),
    ("kv_ep_total_enqueued", Kind::Counter, "Changes that came into the disk queue.", |n| n.all.enqueued()),
    ("kv_ep_total_deduplicated", Kind::Counter, "Changes replaced in memory before they were saved.", |n| {
        n.all.merged_items
    }),
    ("kv_ep_total_persisted", Kind::Counter, "Items written to disk.", |n| n.store.items_saved),
    ("kv_ep_commit_num", Kind::Counter, "Commits to disk, each of a group of vBuckets.", |n| {
        StoreTimes::of(&n.bucket).commit.total()
    }),
    ("kv_ep_item_flush_failed", Kind::Counter, "Saves of a vBucket that failed.", |n| n.saves.failed_saves),
    ("kv_ep_bg_fetched", Kind::Counter, "Values read from disk for clients.", |n| n.fetches.fetched),
    ("kv_ep_num_non_resident", Kind::Gauge, "Documents whose value is not in memory.", |n| {
        n.all.without_value
    }),
    ("kv_ep_num_value_ejects", Kind::Counter, "Values and documents that left memory.", |n| {
        n.eviction.ejects()
    }),
    ("kv_ep_num_pager_runs", Kind::Counter, "Passes of the pager.", |n| n.eviction.passes),
    ("kv_ep_tmp_oom_errors", Kind::Counter, "Changes refused for memory below the quota.", |n| {
        n.eviction.refused_below_quota
    }),
    ("kv_ep_oom_errors", Kind::Counter, "Changes refused for memory at or above the quota.", |n| {
        n.eviction.refused_above_quota
    }),
    ("kv_ep_cursors_dropped", Kind::Counter, "Streams whose cursor was dropped.", |n| {
        n.checkpoints.dropped_streams
    }),
    ("kv_ep_items_rm_from_checkpoints", Kind::Counter, "Changes that left with a closed checkpoint.", |n| {
        n.checkpoints.removed_items
    }),
    ("kv_ep_checkpoint_memory_bytes", Kind::Gauge, "Memory of checkpoints with the changes.", |n| {
        n.all.checkpoint_item_bytes + n.all.checkpoint_overhead_bytes
    }),
    ("kv_ep_expired_access", Kind::Counter, "Documents that a client found expired.", |n| n.expiry.by_access),
    ("kv_ep_expired_pager", Kind::Counter, "Documents that the expiry pager found.", |n| n.expiry.by_pager),
    ("kv_ep_expired_compactor", Kind::Counter, "Expired documents that compactions found.", |n| {
        n.expiry.by_compactor
    }),
    ("kv_ep_rollback_count", Kind::Counter, "Rollbacks of vBuckets.", |n| n.all.ops.rollbacks),
    ("kv_lock_errors", Kind::Counter, "Requests refused because the document was locked.", |n| {
        n.times.counted(Counted::Locked)
    }),
    ("kv_ep_num_not_my_vbuckets", Kind::Counter, "Requests for vBuckets not active here.", |n| {
        n.times.counted(Counted::NotMyVbucket)
    }),
];

fn put_buckets(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    FAMILIES
        .iter()
        .chain(&MORE)
        .try_for_each(|(name, kind, help, value)| page.each(buckets, name, *kind, help, value))
}

pub(super) type StateFamily = (&'static str, &'static str, fn(&StateStats) -> u64);

/// Figures of the vBuckets of one role.
pub(super) const BY_STATE: [StateFamily; 14] = [
    ("kv_num_vbuckets", "vBuckets.", |of| of.vbuckets),
    ("kv_vb_curr_items", "Documents.", |of| of.documents),
    ("kv_vb_num_non_resident", "Documents whose value is not in memory.", |of| of.without_value),
    ("kv_vb_queue_size", "Changes that are not on disk yet.", |of| of.unpersisted_items),
    ("kv_vb_queue_fill", "Changes that came into the disk queue.", |of| of.enqueued()),
    ("kv_vb_queue_drain", "Changes that left the disk queue.", |of| of.ops.drained),
    ("kv_vb_ops_get", "Reads.", |of| of.ops.get_hits + of.ops.get_misses),
    ("kv_vb_ops_delete", "Deletions.", |of| of.ops.deletes),
    ("kv_vb_expired", "Documents that were found expired.", |of| of.ops.expirations),
    ("kv_vb_eject", "Values and documents that left memory.", |of| of.ops.ejects),
    ("kv_vb_rollback_item_count", "Changes that were rolled back.", |of| of.ops.rolled_back),
    ("kv_vb_sync_write_accepted_count", "Sync writes that were prepared.", |of| of.ops.sync_accepted),
    ("kv_vb_sync_write_committed_count", "Sync writes that were committed.", |of| of.ops.sync_committed),
    ("kv_vb_sync_write_aborted_count", "Sync writes that were aborted.", |of| of.ops.sync_aborted),
];

fn put_by_state(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    for (name, help, value) in BY_STATE.into_iter().chain(MORE_BY_STATE) {
        page.by_state(buckets, name, help, value)?;
    }
    let name = "kv_vb_perc_mem_resident_ratio";
    page.head(name, Kind::Gauge, "The share of documents whose value is in memory.")?;
    for numbers in buckets {
        for state in engine::STATES {
            let labels = [("bucket", numbers.bucket.name()), ("state", state.name())];
            let percent = resident_percent(numbers.stats.of(state));
            page.sample(name, &labels, percent as f64 / 100.0)?;
        }
    }
    Ok(())
}
