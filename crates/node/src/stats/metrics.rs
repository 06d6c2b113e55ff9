//! The main numbers for Prometheus, in its text format (Prometheus documentation, Exposition formats, version 0.0.4).

use std::fmt;

use cluster::View;
use cluster::state::Status as NodeStatus;
use engine::WarmupState;
use protocol::Status;

use super::page::{Kind, Numbers, Page, seconds};
use super::{
    metrics_connections, metrics_encryption, metrics_field, metrics_replication, metrics_reporting,
    metrics_times, process,
};
use crate::cluster::serving;
use crate::node::Node;
use crate::version::SERVER_VERSION;

/// What the answer says it is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes the metrics of a node and its buckets. Looks at memory alone: vBuckets that changed since the last look are locked
/// for a moment each, twice at most, and once more if the bucket sends changes; no file is opened.
pub fn render(node: &Node, out: &mut String) {
    let buckets = node.buckets().into_iter();
    let buckets: Vec<Numbers> = buckets.map(|(_, bucket)| Numbers::of(node, bucket)).collect();
    let mut page = Page(out);
    // Writing to a string does not fail.
    let _ = put_node(node, &mut page)
        .and_then(|()| put_requests(node, &mut page))
        .and_then(|()| put_sync_writes(&buckets, &mut page))
        .and_then(|()| put_buckets(&buckets, &mut page))
        .and_then(|()| metrics_encryption::put(node, &mut page))
        .and_then(|()| metrics_times::put(&buckets, &mut page))
        .and_then(|()| metrics_field::put(node, &buckets, &mut page))
        .and_then(|()| metrics_replication::put(node, &mut page))
        .and_then(|()| metrics_reporting::put(node, &mut page));
}

/// Writes the families that the answer of a node leaves out which has no certificate, belongs to no cluster and follows no
/// other node, without samples of buckets and links: the reference names them, too.
pub fn families_left_out(out: &mut String) {
    let mut page = Page(out);
    // Writing to a string does not fail.
    let _ = metrics_connections::put_certificates([None, None], &mut page)
        .and_then(|()| put_cluster_state(&View::default(), &|_| 0, &mut page))
        .and_then(|()| put_followed(true, &mut page))
        .and_then(|()| metrics_replication::put_links(&[], &mut page));
}

/// What every node of a cluster knows of it.
fn put_cluster(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    let Some(cluster) = node.cluster() else { return Ok(()) };
    put_followed(cluster.lost().is_none(), page)?;
    let Some(view) = cluster.view() else { return Ok(()) };
    put_cluster_state(&view, &|bucket| own_unserved(node, &view, bucket), page)
}

fn put_followed(is_followed: bool, page: &mut Page<'_>) -> fmt::Result {
    let help =
        "Whether the node follows the cluster's state: 0 while the coordination store does not answer it.";
    page.one("stave_cluster_state_followed", Kind::Gauge, help, u8::from(is_followed))
}

/// `unserved_here`: vBuckets of a bucket that the state gives this node, and that it does not serve.
fn put_cluster_state(
    view: &View,
    unserved_here: &dyn Fn(&cluster::state::Bucket) -> usize,
    page: &mut Page<'_>,
) -> fmt::Result {
    let state = &view.state;
    let failed_over = state.nodes.values().filter(|node| node.status == NodeStatus::FailedOver).count();
    let help = "Nodes of the cluster that were failed over and have neither come back nor left.";
    page.one("stave_cluster_failed_over_nodes", Kind::Gauge, help, failed_over)?;
    let help = "vBuckets of the cluster with fewer copies than the next rebalance would give them.";
    page.head("stave_cluster_vbuckets_with_few_copies", Kind::Gauge, help)?;
    for (name, bucket) in &state.buckets {
        let few = state.with_few_copies(bucket);
        page.sample("stave_cluster_vbuckets_with_few_copies", &[("bucket", name)], few)?;
    }
    let help = "vBuckets of the cluster that no node serves, as far as this node knows.";
    page.head("stave_cluster_unserved_vbuckets", Kind::Gauge, help)?;
    for (name, bucket) in &state.buckets {
        let unserved = view.unserved(bucket) + unserved_here(bucket);
        page.sample("stave_cluster_unserved_vbuckets", &[("bucket", name)], unserved)?;
    }
    Ok(())
}

/// vBuckets that are this node's by the state that it read last, and that it does not serve since it is cut off.
fn own_unserved(node: &Node, view: &View, bucket: &cluster::state::Bucket) -> usize {
    let this = view.state.nodes.iter().find(|(_, of)| of.uuid == node.uuid()).map(|(id, _)| *id);
    let Some(this) = this.filter(|this| view.alive(*this).is_some()) else { return 0 };
    if serving::why_not(node).is_none() {
        return 0;
    }
    bucket.vbuckets().filter(|vb| bucket.active(*vb) == Some(this)).count()
}

fn put_node(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let totals = node.totals();
    page.head("stave_info", Gauge, "The version, as labels.")?;
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("protocol_version", SERVER_VERSION)];
    page.sample("stave_info", &labels, 1)?;
    page.one("stave_uptime_seconds", Gauge, "Seconds since the node started.", node.uptime_s())?;
    let help = "Whether clients are served: 0 at a node that its cluster does not let.";
    page.one("stave_may_serve", Gauge, help, u8::from(serving::why_not(node).is_none()))?;
    let help = "A bucket that the node has and cannot serve; GET /pools/default says why.";
    page.head("stave_bucket_down", Gauge, help)?;
    for bucket in node.served().down().keys() {
        page.sample("stave_bucket_down", &[("bucket", bucket)], 1)?;
    }
    let help = "vBuckets whose files on this node cannot be believed; stave cluster status names them.";
    page.head("stave_damaged_vbuckets", Gauge, help)?;
    for (spec, bucket) in node.buckets() {
        page.sample("stave_damaged_vbuckets", &[("bucket", &spec.name)], bucket.damaged().len())?;
    }
    let help = "Whether the node belongs to a cluster, as far as it knows.";
    page.one("stave_cluster_member", Gauge, help, u8::from(serving::is_member(node)))?;
    put_cluster(node, page)?;
    page.one("stave_worker_threads", Gauge, "Threads that serve clients.", node.workers().threads())?;
    page.one("stave_connections", Gauge, "KV connections at this moment.", totals.connections)?;
    page.one("stave_connections_accepted_total", Counter, "KV connections ever accepted.", totals.accepted)?;
    let help = "KV connections closed because of what the client did or failed to do.";
    page.one("stave_connections_cut_total", Counter, help, totals.cut)?;
    metrics_connections::put(node, page)?;
    page.one(
        "stave_received_bytes_total",
        Counter,
        "Bytes received from KV clients.",
        totals.received_bytes,
    )?;
    page.one("stave_sent_bytes_total", Counter, "Bytes sent to KV clients.", totals.sent_bytes)?;
    put_process(node, page)
}

/// What clients of Prometheus tell of any process; what the system does not say is left out.
fn put_process(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let env = node.env();
    if let Some(bytes) = process::resident_bytes(env) {
        page.one("process_resident_memory_bytes", Gauge, "Resident memory of the process.", bytes)?;
    }
    if let Some(seconds) = process::cpu_seconds(env) {
        let help = "Processor time of the process, its own and that of the system for it.";
        page.one("process_cpu_seconds_total", Counter, help, seconds)?;
    }
    if let Some(files) = process::open_files(env) {
        page.one("process_open_fds", Gauge, "Files and sockets that the process has open.", files)?;
    }
    let help = "When the process started, in seconds since 1970.";
    page.one("process_start_time_seconds", Gauge, help, node.started_unix_s)
}

/// Requests by opcode and answers by status; those never seen are left out.
fn put_requests(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_requests_total";
    page.head(name, Kind::Counter, "Requests received, by command, whatever became of them.")?;
    let totals = node.totals();
    let mut unknown = 0;
    for (opcode, count) in (0..=u8::MAX).zip(totals.requests) {
        match protocol::opcode::name(opcode) {
            Some(command) if count > 0 => page.sample(name, &[("command", command)], count)?,
            Some(_) => {}
            None => unknown += count,
        }
    }
    if unknown > 0 {
        page.sample(name, &[("command", "unknown")], unknown)?;
    }
    let name = "stave_responses_total";
    page.head(name, Kind::Counter, "Answers sent, by status.")?;
    for status in Status::ALL {
        match totals.answers[usize::from(status.code() as u8)] {
            0 => {}
            count => page.sample(name, &[("status", status.name())], count)?,
        }
    }
    Ok(())
}

fn put_sync_writes(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_sync_writes_total";
    page.head(name, Kind::Counter, "Sync writes that were answered, by level and what became of them.")?;
    for numbers in buckets {
        for level in numbers.times.sync_writes() {
            let outcomes =
                [("committed", level.committed), ("aborted", level.aborted), ("given_up", level.given_up)];
            for (outcome, count) in outcomes {
                let labels =
                    [("bucket", numbers.bucket.name()), ("level", level.level), ("outcome", outcome)];
                page.sample(name, &labels, count)?;
            }
        }
    }
    Ok(())
}

fn put_buckets(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    put_items(buckets, page)?;
    put_ops(buckets, page)?;
    put_persistence(buckets, page)?;
    put_compactions(buckets, page)?;
    super::metrics_memory::put(buckets, page)?;
    super::metrics_collections::put(buckets, page)?;
    put_chores(buckets, page)?;
    put_loading(buckets, page)
}

fn put_compactions(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Compactions that were finished.";
    page.each(buckets, "stave_compactions_total", Counter, help, |n| n.compactions.runs)?;
    let help = "Compactions that failed.";
    page.each(buckets, "stave_compaction_failures_total", Counter, help, |n| n.compactions.failed)?;
    let help = "Compactions that wait or are under way.";
    page.each(buckets, "stave_compactions_pending", Gauge, help, |n| {
        n.compactions.waiting + n.compactions.under_way
    })?;
    let help = "Bytes of files before they were compacted.";
    page.each(buckets, "stave_compaction_before_bytes_total", Counter, help, |n| n.compactions.before_bytes)?;
    let help = "Bytes of files after they were compacted.";
    page.each(buckets, "stave_compaction_after_bytes_total", Counter, help, |n| n.compactions.after_bytes)?;
    let help = "Tombstones forgotten for their age.";
    page.each(buckets, "stave_tombstones_purged_total", Counter, help, |n| n.compactions.tombstones_purged)?;
    let help = "Whether the disk is full, so that changes are refused.";
    page.each(buckets, "stave_disk_full", Gauge, help, |n| u8::from(n.saves.is_disk_full))?;
    let help = "Saves of a vBucket that failed and were tried again.";
    page.each(buckets, "stave_failed_saves_total", Counter, help, |n| n.saves.failed_saves)?;
    let help = "Seconds for which a call of the disk has not ended, from 10 on; 0 while each ends.";
    let disk_s = |n: &Numbers| n.blocked.iter().filter(|one| one.call.is_some()).map(|one| one.for_s).max();
    page.each(buckets, "stave_disk_blocked_seconds", Gauge, help, |n| disk_s(n).unwrap_or(0))?;
    let help = "Threads that have not gone on with a step for two minutes (ten, while others of the bucket do) and are in no call of the disk.";
    let threads = |n: &Numbers| n.blocked.iter().filter(|one| one.call.is_none()).count();
    page.each(buckets, "stave_blocked_threads", Gauge, help, threads)
}

/// What comes from the disk: values that were waited for, and all that is loaded after a start.
fn put_loading(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "Values read from disk because a client waited for them.";
    page.each(buckets, "stave_fetches_total", Counter, help, |n| n.fetches.fetched)?;
    let help = "Values that a client waited for and that could not be read.";
    page.each(buckets, "stave_fetch_failures_total", Counter, help, |n| n.fetches.failed)?;
    let help = "Times that a stored value was not what its datatype says, so that it was refused.";
    page.each(buckets, "stave_unreadable_values_total", Counter, help, |n| n.fetches.unreadable)?;
    let help = "Batches of values read.";
    page.each(buckets, "stave_fetch_batches_total", Counter, help, |n| n.fetches.batches)?;
    let help = "Requests that wait for a value.";
    page.each(buckets, "stave_fetch_waiting", Gauge, help, |n| n.fetches.waiting)?;
    let help = "Documents and tombstones whose metadata were loaded since the start.";
    page.each(buckets, "stave_warmup_keys", Gauge, help, |n| n.warmup.keys)?;
    let help = "Documents and tombstones that were on disk at the start.";
    page.each(buckets, "stave_warmup_estimated_keys", Gauge, help, |n| n.warmup.estimated_keys)?;
    let help = "Values loaded ahead of their readers since the start.";
    page.each(buckets, "stave_warmup_values", Gauge, help, |n| n.warmup.values)?;
    let help = "Whether loading after the start is done.";
    page.each(buckets, "stave_warmup_done", Gauge, help, |n| u8::from(n.warmup.state == WarmupState::Done))?;
    let help = "vBuckets that could not be loaded.";
    page.each(buckets, "stave_warmup_failed_vbuckets", Gauge, help, |n| n.warmup.vbuckets_failed)
}

fn put_items(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    page.by_state(buckets, "stave_vbuckets", "vBuckets.", |of| of.vbuckets)?;
    page.by_state(buckets, "stave_items", "Documents.", |of| of.documents)?;
    let help = "Documents whose value is not in memory.";
    page.by_state(buckets, "stave_non_resident_items", help, |of| of.without_value)?;
    page.by_state(buckets, "stave_tombstones", "Tombstones, in memory or not.", |of| of.tombstones)
}

/// The housekeeper's chores.
fn put_chores(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let chores = |numbers: &Numbers| -> Vec<_> {
        numbers.bucket.maintenance().chore_stats().into_iter().map(|chore| (chore.name, chore)).collect()
    };
    let chores: Vec<_> = buckets.iter().map(chores).collect();
    let head = ("stave_chore_steps_total", Counter, "Steps that a background chore ran.");
    page.each_of(buckets, ("chore", &chores), head, |chore| chore.steps)?;
    let head = ("stave_chore_seconds_total", Counter, "Time that a background chore took.");
    page.each_of(buckets, ("chore", &chores), head, |chore| seconds(chore.total_ns))?;
    let head = ("stave_chore_longest_step_seconds", Gauge, "The longest step of a background chore.");
    page.each_of(buckets, ("chore", &chores), head, |chore| seconds(chore.longest_ns))
}

fn put_ops(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_ops_total";
    page.head(name, Kind::Counter, "What clients did with documents.")?;
    for numbers in buckets {
        let ops = &numbers.all.ops;
        let kinds = [
            ("get_hit", ops.get_hits),
            ("get_miss", ops.get_misses),
            ("store", ops.stores),
            ("delete", ops.deletes),
            ("expire", ops.expirations),
            ("conflict", ops.conflicts),
        ];
        for (kind, count) in kinds {
            page.sample(name, &[("bucket", numbers.bucket.name()), ("op", kind)], count)?;
        }
    }
    Ok(())
}

fn put_persistence(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let help = "vBuckets that wait for the flusher.";
    page.each(buckets, "stave_flush_queue_vbuckets", Gauge, help, |n| n.stats.flush_queue_vbuckets)?;
    let help = "Groups of vBuckets that a connection wrote itself, as it was alone to wait for them.";
    page.each(buckets, "stave_flush_stand_ins_total", Counter, help, |n| n.saves.stood_in)?;
    let help = "Changes that are not on disk yet.";
    page.each(buckets, "stave_dirty_items", Gauge, help, |n| n.all.unpersisted_items)?;
    let help = "High seqno less persisted seqno, summed over all vBuckets.";
    page.each(buckets, "stave_persistence_lag_seqnos", Gauge, help, |n| n.all.seqno_lag)?;
    page.each(
        buckets,
        "stave_disk_commits_total",
        Counter,
        "Batches of one vBucket each that were saved.",
        |n| n.store.saves,
    )?;
    page.each(buckets, "stave_disk_items_total", Counter, "Items written to disk.", |n| n.store.items_saved)?;
    page.each(buckets, "stave_disk_failures_total", Counter, "Disk operations that failed.", |n| {
        n.store.failures
    })?;
    put_files(buckets, page)?;
    put_log(buckets, page)?;
    put_journal(buckets, page)
}

/// All zero in a bucket that is not in a log-structured store.
fn put_log(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let of = |n: &Numbers| n.store.log.unwrap_or_default();
    let help = "Runs of the key index of a log-structured store.";
    page.each(buckets, "stave_log_runs", Gauge, help, |n| of(n).runs)?;
    page.each(buckets, "stave_log_run_bytes", Gauge, "Bytes of the runs.", |n| of(n).run_bytes)?;
    let help = "Segments of a log-structured store.";
    page.each(buckets, "stave_log_segments", Gauge, help, |n| of(n).segments)?;
    page.each(buckets, "stave_log_segment_bytes", Gauge, "Bytes of the segments.", |n| of(n).segment_bytes)?;
    let help = "Bytes of the items in segments, before compression.";
    page.each(buckets, "stave_log_item_bytes", Gauge, help, |n| of(n).item_bytes)?;
    let help = "Bytes of those that count.";
    page.each(buckets, "stave_log_live_bytes", Gauge, help, |n| of(n).live_bytes)?;
    let help = "Bytes of replaced versions that are kept for rollbacks alone.";
    page.each(buckets, "stave_log_rollback_bytes", Gauge, help, |n| of(n).rollback_bytes)?;
    let help = "Bytes that a log-structured store wrote for each byte that commits wrote into segments.";
    let ratio = |n: &Numbers| of(n).write_amplification();
    page.each(buckets, "stave_log_write_amplification_ratio", Gauge, help, ratio)?;
    let help =
        "Bytes of a log-structured store's files for each byte of items that count, compressed like all.";
    let ratio = |n: &Numbers| of(n).space_amplification();
    page.each(buckets, "stave_log_space_amplification_ratio", Gauge, help, ratio)?;
    let help = "Memory of blocks that were read from files of a log-structured store.";
    page.each(buckets, "stave_log_cache_bytes", Gauge, help, |n| of(n).cache.bytes)?;
    let help = "Reads that found their block in memory.";
    page.each(buckets, "stave_log_cache_hits_total", Counter, help, |n| of(n).cache.hits)?;
    let help = "Reads that had to read their block.";
    page.each(buckets, "stave_log_cache_misses_total", Counter, help, |n| of(n).cache.misses)?;
    let written = |n: &Numbers| {
        let written = of(n).written;
        vec![
            ("segments", written.segments),
            ("runs", written.runs),
            ("merges", written.merges),
            ("rewrites", written.rewrites),
            ("manifests", written.manifests),
        ]
    };
    let written: Vec<_> = buckets.iter().map(written).collect();
    let help = "Bytes that a log-structured store wrote, by what for.";
    let head = ("stave_log_written_bytes_total", Counter, help);
    page.each_of(buckets, ("what", &written), head, |bytes| *bytes)
}

fn put_files(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    page.each(buckets, "stave_disk_open_files", Gauge, "Files that are open.", |n| n.store.open_files)?;
    let help = "Operations that found their file open.";
    page.each(buckets, "stave_disk_file_hits_total", Counter, help, |n| n.store.file_hits)?;
    let help = "Operations that had to open their file.";
    page.each(buckets, "stave_disk_file_misses_total", Counter, help, |n| n.store.file_misses)?;
    let help = "Files closed to make room for others.";
    page.each(buckets, "stave_disk_file_evictions_total", Counter, help, |n| n.store.file_evictions)
}

/// All zero in a bucket without a journal.
fn put_journal(buckets: &[Numbers], page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let of = |n: &Numbers| n.store.journal.unwrap_or_default();
    let help = "Memory of versions that are in the journal and not in the files yet.";
    page.each(buckets, "stave_journal_unfiled_bytes", Gauge, help, |n| n.store.unfiled_bytes)?;
    let help = "Bytes of the segments that are needed.";
    page.each(buckets, "stave_journal_used_bytes", Gauge, help, |n| of(n).used_bytes)?;
    page.each(buckets, "stave_journal_segments", Gauge, "Segments that are needed.", |n| of(n).segments)?;
    page.each(buckets, "stave_journal_spares", Gauge, "Files that are kept for use.", |n| of(n).spares)?;
    page.each(buckets, "stave_journal_frames_total", Counter, "Frames appended.", |n| of(n).frames)?;
    let help = "Bytes of the records appended.";
    page.each(buckets, "stave_journal_payload_bytes_total", Counter, help, |n| of(n).payload_bytes)?;
    let help = "Bytes written for them, with padding and headers.";
    page.each(buckets, "stave_journal_written_bytes_total", Counter, help, |n| of(n).written_bytes)?;
    page.each(buckets, "stave_journal_syncs_total", Counter, "Syncs of segments.", |n| of(n).syncs)?;
    let help = "Bytes filled with zeros in advance.";
    page.each(buckets, "stave_journal_prewritten_bytes_total", Counter, help, |n| of(n).prewritten_bytes)?;
    let help = "Segments that began in a file that was there.";
    page.each(buckets, "stave_journal_recycled_segments_total", Counter, help, |n| of(n).recycled_segments)?;
    let help = "Segments given up after a failed write or sync.";
    page.each(buckets, "stave_journal_given_up_segments_total", Counter, help, |n| of(n).given_up_segments)
}
