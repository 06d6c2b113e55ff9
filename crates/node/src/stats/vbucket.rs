//! Groups about vBuckets: state, details, seqnos, failover table, durable writes.

use base::{Seqno, VbId};
use engine::VbStats;
use engine::settings::Key;
use kvstore::StorageBackend;
use protocol::Status;

use super::Sheet;
use super::inquiry::{Inquiry, Refused, parse_number, parse_vbucket};

const NOT_A_VBUCKET: Refused = Refused::Invalid("The argument must be the number of a vBucket");

/// Looks at the vBucket that is asked about, or at all that there are.
pub(super) fn each(
    inquiry: &Inquiry<'_>,
    asked: Option<VbId>,
    mut put: impl FnMut(&VbStats) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let bucket = inquiry.bucket;
    if let Some(vb) = asked {
        return put(&bucket.vbucket_stats(vb).ok_or(Refused::Status(Status::NotMyVbucket))?);
    }
    (0..bucket.vbuckets()).filter_map(|id| bucket.vbucket_stats(VbId(id))).try_for_each(|vb| put(&vb))
}

/// The vBucket named by the argument, if there is an argument.
pub(super) fn asked(args: &[&[u8]]) -> Result<Option<VbId>, Refused> {
    args.first().map(|text| parse_vbucket(text).ok_or(NOT_A_VBUCKET)).transpose()
}

/// `range-scans`: where a scan is, not which keys it is about.
pub fn range_scans(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let asked = asked(args)?;
    let is_meant = |vb: VbId| asked.is_none_or(|asked| asked == vb);
    for scan in inquiry.bucket.range_scans().figures().into_iter().filter(|scan| is_meant(scan.vb)) {
        let id = u128::from_be_bytes(scan.id.0);
        let mut under = sheet.under(format_args!("vb_{}:{id:032x}", scan.vb.0));
        under.put("vbuuid", scan.uuid.0);
        under.put("age_ms", scan.age.as_millis());
        under.put("key_value", if scan.is_key_only { "key" } else { "value" });
        under.put("include_xattrs", if scan.with_xattrs { "yes" } else { "no" });
        under.put("state", if scan.is_continuing { "Continuing" } else { "Idle" });
        under.put("total_keys", scan.keys);
        under.put("continues", scan.continues);
        if !scan.name.is_empty() {
            under.put("name", scan.name);
        }
    }
    Ok(())
}

/// `snapshot-details`
pub fn file_snapshots(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    for snapshot in inquiry.bucket.file_snapshots().figures() {
        let mut under = sheet.under(format_args!("vb_{}", snapshot.vb.0));
        under.put("uuid", protocol::uuid::text(snapshot.id));
        under.put("vbuuid", snapshot.uuid.0);
        under.put("seqno", snapshot.seqno.0);
        under.put("file", snapshot.name);
        under.put("size", snapshot.len);
        under.put("read_bytes", snapshot.read_bytes);
        under.put("age_ms", snapshot.age.as_millis());
        under.put("ends_after_ms", snapshot.ends_after.as_millis());
    }
    Ok(())
}

/// `vbucket [VB]`
pub fn states(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    each(inquiry, asked(args)?, |vb| {
        sheet.put(format_args!("vb_{}", vb.id), vb.state.name());
        Ok(())
    })
}

/// `prev-vbucket`: the role with which each vBucket came into memory.
pub fn first_roles(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    for id in (0..inquiry.bucket.vbuckets()).map(VbId) {
        if let Some(role) = inquiry.bucket.inspect(id, |vb| vb.first_role()) {
            sheet.put(format_args!("vb_{id}"), role.name());
        }
    }
    Ok(())
}

/// `vbucket-durability-state [VB]`: role, and how far sync writes are.
pub fn durability_states(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    each(inquiry, asked(args)?, |vb| {
        let Some(now) = inquiry.bucket.inspect(vb.id, |vb| vb.sync_writes().sync_write_state()) else {
            return Ok(());
        };
        sheet.put(format_args!("vb_{}", vb.id), vb.state.name());
        let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
        sheet.put("high_prepared_seqno", now.high_prepared);
        sheet.put("high_completed_seqno", now.high_completed);
        sheet.put("num_tracked", now.in_flight);
        Ok(())
    })
}

/// `vbucket-details [VB]`
pub fn details(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let unreadable = inquiry.bucket.unreadable();
    each(inquiry, asked(args)?, |vb| {
        sheet.put(format_args!("vb_{}", vb.id), vb.state.name());
        put_details(vb, sheet);
        put_disk(inquiry, vb.id, sheet);
        put_clock(inquiry, vb, sheet);
        put_history(inquiry, vb.id, sheet);
        // Only of one whose files cannot be read.
        if let Some((_, reason)) = unreadable.iter().find(|(of, _)| *of == vb.id) {
            sheet.put(format_args!("vb_{}:unreadable", vb.id), reason);
        }
        if let Some(topology) =
            inquiry.bucket.inspect(vb.id, |vb| vb.topology().map(ToString::to_string)).flatten()
        {
            sheet.put(format_args!("vb_{}:topology", vb.id), topology);
        }
        Ok(())
    })
}

/// How large its files are, as the store knows from its last look at them: nothing is read. Nothing in memory alone.
fn put_disk(inquiry: &Inquiry<'_>, vb: VbId, sheet: &mut Sheet) {
    let Some((file_bytes, used_bytes)) = engine::file_usage_of(inquiry.bucket, vb) else { return };
    let mut sheet = sheet.under(format_args!("vb_{vb}"));
    sheet.put("db_file_size", file_bytes);
    sheet.put("db_data_size", used_bytes);
}

/// How far the history of changes reaches back, where the bucket can keep one.
fn put_history(inquiry: &Inquiry<'_>, vb: VbId, sheet: &mut Sheet) {
    if inquiry.bucket.backend() != StorageBackend::LogStructured {
        return;
    }
    let mut sheet = sheet.under(format_args!("vb_{vb}"));
    let history = inquiry.bucket.history(vb);
    sheet.put("history_start_seqno", history.start);
    sheet.put("history_versions", history.versions);
    sheet.put("history_bytes", history.bytes);
}

/// How far off the clock is what comes from elsewhere; limits in nanoseconds, sums in microseconds, as in the field.
fn put_clock(inquiry: &Inquiry<'_>, vb: &VbStats, sheet: &mut Sheet) {
    let settings = inquiry.bucket.settings();
    let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
    let seconds = vb.max_cas.0 / 1_000_000_000;
    sheet.put("max_cas_str", format_args!("{seconds}.{:09}", vb.max_cas.0 % 1_000_000_000));
    sheet.put("total_abs_drift", vb.clock.drift_us);
    sheet.put("total_abs_drift_count", vb.clock.foreign);
    sheet.put("drift_ahead_threshold", settings.get(Key::DriftAhead) * 1000);
    sheet.put("drift_ahead_threshold_exceeded", vb.clock.ahead);
    sheet.put("drift_behind_threshold", settings.get(Key::DriftBehind) * 1000);
    sheet.put("drift_behind_threshold_exceeded", vb.clock.behind);
    sheet.put("logical_clock_ticks", vb.clock.logical_ticks);
}

fn put_details(vb: &VbStats, sheet: &mut Sheet) {
    let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
    sheet.put("num_items", vb.documents);
    sheet.put("num_non_resident", vb.without_value);
    sheet.put("num_ejects", vb.ops.ejects);
    sheet
        .put("ht_num_deleted_items", vb.tombstones.saturating_sub(vb.evicted_tombstones).min(vb.table_items));
    sheet.put("ht_num_items", vb.table_items);
    sheet.put("evicted_items", vb.evicted_documents);
    sheet.put("evicted_deleted_items", vb.evicted_tombstones);
    sheet.put("bloom_filter_memory", vb.filter_bytes);
    sheet.put("bloom_filter_size", vb.filter_bytes * 8);
    sheet.put("ht_num_in_memory_items", vb.documents - vb.without_value.min(vb.documents));
    sheet.put(
        "ht_num_in_memory_non_resident_items",
        vb.without_value.saturating_sub(vb.evicted_documents).min(vb.table_items),
    );
    sheet.put("ht_item_memory", vb.item_bytes);
    sheet.put("ht_memory", vb.table_bytes);
    sheet.put("checkpoint_memory", vb.checkpoints.item_bytes + vb.checkpoints.overhead_bytes);
    sheet.put("ops_get", vb.ops.get_hits + vb.ops.get_misses);
    sheet.put("ops_store", vb.ops.stores);
    sheet.put("ops_create", vb.written.created);
    sheet.put("ops_update", vb.written.updated);
    sheet.put("ops_delete", vb.ops.deletes);
    sheet.put("ops_reject", vb.ops.conflicts);
    sheet.put("expired", vb.ops.expirations);
    sheet.put("queue_size", vb.checkpoints.unpersisted_items);
    sheet.put("queue_fill", vb.enqueued());
    sheet.put("queue_drain", vb.ops.drained);
    sheet.put("rollback_item_count", vb.ops.rolled_back);
    sheet.put("flush_queued", vb.flush_queued);
    sheet.put("high_seqno", vb.high_seqno);
    sheet.put("high_prepared_seqno", vb.prepared_seqno);
    sheet.put("high_completed_seqno", vb.completed_seqno);
    sheet.put("last_persisted_seqno", vb.persisted_seqno);
    sheet.put("purge_seqno", vb.purge_seqno);
    sheet.put("uuid", vb.uuid);
    sheet.put("max_cas", vb.max_cas);
    sheet.put("max_deleted_revid", vb.max_deleted_rev);
    sheet.put("might_contain_xattrs", vb.might_contain_xattrs);
    if let Some(list) = vb.seq_list {
        sheet.put("seqlist_count", list.items);
        sheet.put("seqlist_deleted_count", vb.tombstones);
        sheet.put("seqlist_high_seqno", vb.high_seqno);
        sheet.put("seqlist_stale_count", list.stale_items);
        sheet.put("seqlist_stale_bytes", list.stale_bytes);
        sheet.put("seqlist_bytes", list.bytes);
        sheet.put("seqlist_reads", list.reads);
        sheet.put("seqlist_read_range_begin", list.oldest_read.unwrap_or(Seqno(0)));
    }
}

/// `vbucket-seqno [VB]`: a number that no vBucket could have is answered like one that no vBucket has.
pub fn seqnos(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let asked = match args.first() {
        Some(text) => {
            let number: u64 = parse_number(text).ok_or(NOT_A_VBUCKET)?;
            Some(u16::try_from(number).map(VbId).map_err(|_| Refused::Status(Status::NotMyVbucket))?)
        }
        None => None,
    };
    each(inquiry, asked, |vb| {
        let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
        sheet.put("abs_high_seqno", vb.high_seqno);
        sheet.put("high_seqno", vb.high_seqno);
        sheet.put("max_visible_seqno", vb.visible_seqno);
        sheet.put("high_prepared_seqno", vb.prepared_seqno);
        sheet.put("high_completed_seqno", vb.completed_seqno);
        sheet.put("last_persisted_seqno", vb.persisted_seqno);
        // What is on disk is one consistent snapshot that ends there: a batch is written whole or not at all.
        sheet.put("last_persisted_snap_start", vb.persisted_seqno);
        sheet.put("last_persisted_snap_end", vb.persisted_seqno);
        sheet.put("purge_seqno", vb.purge_seqno);
        sheet.put("uuid", vb.uuid);
        Ok(())
    })
}

/// `failovers [VB]`
pub fn failovers(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    each(inquiry, asked(args)?, |vb| {
        let entries = inquiry.bucket.inspect(vb.id, |vb| vb.failover().to_entries()).unwrap_or_default();
        let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
        sheet.put("num_entries", entries.len());
        // A table that is not in order is replaced as a whole when it is read; single entries are never erased.
        sheet.put("num_erroneous_entries_erased", 0);
        for (at, entry) in entries.iter().enumerate() {
            sheet.put(format_args!("{at}:id"), entry.uuid);
            sheet.put(format_args!("{at}:seq"), entry.seqno);
        }
        Ok(())
    })
}

/// `durability-monitor VB`: how sync writes stand, and what nodes of the chains have acknowledged.
pub fn durability_monitor(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    each(inquiry, asked(args)?, |vb| {
        let looked =
            inquiry.bucket.inspect(vb.id, |vb| (vb.sync_writes().sync_write_state(), vb.topology().cloned()));
        let Some((now, topology)) = looked else { return Ok(()) };
        let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
        sheet.put("state", vb.state.name());
        sheet.put("num_tracked", now.in_flight);
        sheet.put("dm_mem_used", now.in_flight_bytes);
        sheet.put("high_prepared_seqno", now.high_prepared);
        sheet.put("high_completed_seqno", now.high_completed);
        sheet.put("last_tracked_seqno", now.last_prepared);
        sheet.put("last_committed_seqno", now.last_committed);
        sheet.put("last_aborted_seqno", now.last_aborted);
        let Some(topology) = topology else { return Ok(()) };
        for (chain, name) in topology.chains().zip(["First", "Second"]) {
            sheet.put(format_args!("replication_chain_{name}:size"), chain.members().count());
            for node in chain.members().flatten() {
                let said = now.acknowledged.iter().find(|(other, _)| other == node).map(|(_, seqno)| *seqno);
                // The active node acknowledges nothing: what it has is what it has.
                let has =
                    if node == topology.active() { now.high_prepared } else { said.unwrap_or_default() };
                sheet.put(format_args!("replication_chain_{name}:{node}:last_ack_seqno"), has);
                let written = now.last_prepared;
                sheet.put(format_args!("replication_chain_{name}:{node}:last_write_seqno"), written);
            }
        }
        Ok(())
    })
}
