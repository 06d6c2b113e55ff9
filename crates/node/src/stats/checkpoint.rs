//! The group about checkpoints: their share of the quota, and those of each vBucket.

use engine::settings::Key;
use engine::{Bucket, StateStats};
use vbucket::Pressure;

use super::Sheet;
use super::chores::put_chore;
use super::config::put_setting;
use super::inquiry::{Inquiry, Refused};
use super::vbucket::{asked, each};

fn pressure_name(pressure: Pressure) -> &'static str {
    match pressure {
        Pressure::Calm => "calm",
        Pressure::Hurry => "hurry",
        Pressure::Recover => "recover",
        Pressure::Full => "full",
    }
}

/// What the main group says about checkpoints.
pub(super) fn put_checkpoints(bucket: &Bucket, all: &StateStats, sheet: &mut Sheet) {
    let share = bucket.checkpoints().checkpoint_memory();
    sheet.put("ep_num_checkpoints", all.checkpoints);
    sheet.put("ep_checkpoint_memory", all.checkpoint_item_bytes + all.checkpoint_overhead_bytes);
    sheet.put("ep_checkpoint_memory_queue", all.checkpoint_item_bytes);
    sheet.put("ep_checkpoint_memory_overhead", all.checkpoint_overhead_bytes);
    sheet.put("ep_checkpoint_memory_estimate", share.used_bytes);
    sheet.put("ep_checkpoint_memory_quota", share.share_bytes);
    sheet.put("ep_checkpoint_memory_recovery_upper_mark_bytes", share.upper_mark_bytes);
    sheet.put("ep_checkpoint_memory_recovery_lower_mark_bytes", share.lower_mark_bytes);
    sheet.put("ep_checkpoint_memory_pressure", pressure_name(share.pressure));
    sheet.put("ep_items_rm_from_checkpoints", share.removed_items);
    sheet.put("ep_items_expelled_from_checkpoints", share.expelled_items);
    sheet.put("ep_cursors_dropped", share.dropped_streams);
    sheet.put("ep_checkpoint_memory_refused", share.refused);
    sheet.put("ep_checkpoint_unfreed_items", share.unfreed_items);
    sheet.put("ep_checkpoint_limit_bytes", share.limits.max_bytes);
    sheet.put("ep_checkpoint_limit_items", share.limits.max_items);
}

/// `checkpoint [VB]`: all together first, unless one vBucket is asked about.
pub fn checkpoint(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let asked = asked(args)?;
    if asked.is_none() {
        put_share(inquiry.bucket, sheet);
    }
    each(inquiry, asked, |vb| {
        let checkpoints = &vb.checkpoints;
        let mut sheet = sheet.under(format_args!("vb_{}", vb.id));
        sheet.put("state", vb.state.name());
        sheet.put("open_checkpoint_id", checkpoints.open_id);
        sheet.put("last_closed_checkpoint_id", checkpoints.open_id - 1);
        sheet.put("num_checkpoints", checkpoints.checkpoints);
        sheet.put("num_checkpoint_items", checkpoints.items);
        sheet.put("num_open_checkpoint_items", checkpoints.open_items);
        sheet.put("num_items_for_persistence", checkpoints.unpersisted_items);
        sheet.put("num_conn_cursors", checkpoints.other_cursors);
        sheet.put("mem_usage", checkpoints.item_bytes + checkpoints.overhead_bytes);
        let cursors = inquiry.bucket.inspect(vb.id, |vb| vb.checkpoints().cursors().collect::<Vec<_>>());
        for cursor in cursors.unwrap_or_default() {
            sheet.put(format_args!("{}:cursor_seqno", cursor.name), cursor.position);
            sheet.put(format_args!("{}:num_items_for_cursor", cursor.name), cursor.items_behind);
        }
        Ok(())
    })
}

fn put_share(bucket: &Bucket, sheet: &mut Sheet) {
    let all = bucket.stats().all();
    put_checkpoints(bucket, &all, sheet);
    sheet.put("ep_checkpoint_items", all.checkpoint_items);
    for key in [
        Key::CheckpointRatio,
        Key::CheckpointUpperMark,
        Key::CheckpointLowerMark,
        Key::CheckpointMaxSize,
        Key::CheckpointMaxItems,
    ] {
        put_setting(bucket, key, sheet);
    }
    put_chore(bucket, "checkpoint_recovery", sheet);
}
