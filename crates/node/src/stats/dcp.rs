//! Groups about connections that stream this bucket's changes: each of them with its streams, and their sums by name.
//!
//! No lock is held for longer than a part of one connection's streams takes. An answer has a limit, and counts the streams
//! that it leaves out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use base::{Seqno, VbId};
use dcp::{
    Agreement, BackfillOrder, Pause, Priority, Progress, Side, Stage, StreamFigures, StreamKey, VbProgress,
};
use engine::Bucket;
use protocol::Status;

use super::Sheet;
use super::inquiry::{Inquiry, Refused};
use crate::dcp::Handle;
use crate::node::Node;
use crate::replication::{LinkState, LinkStatus};

/// Streams in an answer, at most.
const MOST_STREAMS: usize = 4_096;
/// Streams that are listed while a connection's lock is held.
const STREAMS_A_LOOK: usize = 64;

/// What is summed of a connection.
pub(super) struct ConnectionFigures {
    /// Its name.
    pub(super) name: String,
    /// Whether this node sends on it.
    pub(super) is_producer: bool,
    /// Changes that were sent.
    pub(super) items_sent: u64,
    /// Seqnos that are not sent yet.
    pub(super) items_remaining: u64,
    /// Bytes that were sent.
    pub(super) sent_bytes: u64,
    /// Bytes on their way, or here and not acknowledged.
    pub(super) unacknowledged_bytes: u64,
    /// How often memory was too short for what came.
    pub(super) backoffs: u64,
    /// Its streams.
    pub(super) streams: u64,
    /// How often it paused, and went on.
    pub(super) paused: u64,
    pub(super) unpaused: u64,
    /// Streams that read from disk.
    pub(super) backfills: u64,
}

/// The last seqno of each vBucket, which is looked up once for all connections.
struct Highs(Vec<Seqno>);

impl Highs {
    fn of(bucket: &Bucket, handles: &[Arc<Handle>]) -> Highs {
        if !handles.iter().any(|handle| handle.side() == Side::Producer) {
            return Highs(Vec::new());
        }
        let high = |vb| bucket.inspect(VbId(vb), |vb| vb.high_seqno()).unwrap_or_default();
        Highs((0..bucket.vbuckets()).map(high).collect())
    }

    fn remaining(&self, progress: &Progress) -> u64 {
        progress.remaining(|vb| self.0.get(usize::from(vb.0)).copied().unwrap_or_default())
    }
}

/// How often a connection paused, and went on.
fn pauses(progress: &Progress) -> (u64, u64) {
    let paused: u64 = Pause::ALL.into_iter().map(|why| progress.pauses(why)).sum();
    (paused, paused.saturating_sub(u64::from(progress.pause().is_some())))
}

/// The connections of this node for changes of a bucket.
fn handles(node: &Node, bucket: &Bucket) -> Vec<Arc<Handle>> {
    let mut all = node.streams().all();
    all.retain(|handle| handle.bucket() == bucket.name());
    all.sort_by_cached_key(|handle| handle.name());
    all
}

/// What is summed of each connection, those of links to other nodes included.
pub(super) fn figures(node: &Node, bucket: &Bucket) -> Vec<ConnectionFigures> {
    let handles = handles(node, bucket);
    let highs = Highs::of(bucket, &handles);
    let of_handle = |handle: &Arc<Handle>| {
        let progress = handle.progress();
        let (paused, unpaused) = progress.map_or((0, 0), |progress| pauses(progress));
        ConnectionFigures {
            name: handle.name(),
            is_producer: handle.side() == Side::Producer,
            items_sent: progress.map_or(0, |progress| progress.changes()),
            items_remaining: progress.map_or(0, |progress| highs.remaining(progress)),
            sent_bytes: handle.sent_bytes(),
            unacknowledged_bytes: handle.unacknowledged_bytes(),
            backoffs: 0,
            streams: handle.streams() as u64,
            paused,
            unpaused,
            backfills: progress.map_or(0, |progress| progress.backfills().0),
        }
    };
    let mut all: Vec<ConnectionFigures> = handles.iter().map(of_handle).collect();
    all.extend(node.replication().status(Some(bucket.name())).into_iter().map(|link| ConnectionFigures {
        streams: link.streaming() as u64,
        name: link.name,
        is_producer: false,
        items_sent: 0,
        items_remaining: 0,
        sent_bytes: 0,
        unacknowledged_bytes: link.unacknowledged_bytes,
        backoffs: link.counts.full,
        paused: 0,
        unpaused: 0,
        backfills: 0,
    }));
    all
}

/// `dcp [skip]`: each connection, and behind it its streams.
pub fn connections(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let most = match args.first() {
        None => MOST_STREAMS,
        Some(&b"skip") => 0,
        Some(_) => return Err(Refused::Status(Status::KeyEnoent)),
    };
    let handles = handles(inquiry.node, inquiry.bucket);
    let links = inquiry.node.replication().status(Some(inquiry.bucket.name()));
    let highs = Highs::of(inquiry.bucket, &handles);
    let producers = handles.iter().filter(|handle| handle.side() == Side::Producer).count();
    sheet.put("ep_dcp_count", handles.len() + links.len());
    sheet.put("ep_dcp_producer_count", producers);
    sheet.put("ep_dcp_consumer_count", handles.len() - producers + links.len());
    let progress = || handles.iter().filter_map(|handle| handle.progress());
    sheet.put("ep_dcp_num_running_backfills", progress().map(|of| of.backfills().0).sum::<u64>());
    sheet.put("ep_dcp_items_sent", progress().map(|of| of.changes()).sum::<u64>());
    sheet.put("ep_dcp_items_remaining", progress().map(|of| highs.remaining(of)).sum::<u64>());
    let mut streams = Streams { left: most, left_out: 0 };
    for handle in &handles {
        put_connection(handle, &highs, sheet);
        if let Some(progress) = handle.progress() {
            streams.put_all(&handle.name(), handle.streams(), progress, sheet);
        }
    }
    for link in &links {
        put_link(link, sheet);
        for progress in &link.vbuckets {
            if streams.admits() {
                put_followed(&link.name, progress, sheet);
            }
        }
    }
    sheet.put("ep_dcp_streams_left_out", streams.left_out);
    Ok(())
}

/// How many streams the answer may still tell of.
struct Streams {
    left: usize,
    left_out: usize,
}

impl Streams {
    fn admits(&mut self) -> bool {
        let admits = self.left > 0;
        if admits {
            self.left -= 1
        } else {
            self.left_out += 1
        }
        admits
    }

    /// The streams of one connection, which has about `count`.
    fn put_all(&mut self, name: &str, count: usize, progress: &Progress, sheet: &mut Sheet) {
        let mut after: Option<StreamKey> = None;
        let mut told = 0;
        loop {
            let part = progress.streams_behind(after, STREAMS_A_LOOK.min(self.left));
            let Some(last) = part.last() else { break };
            after = Some((last.vb, last.stream_id));
            self.left -= part.len();
            told += part.len();
            part.iter().for_each(|stream| put_stream(name, stream, sheet));
        }
        if self.left == 0 {
            self.left_out += count.saturating_sub(told);
        }
    }
}

/// A connection that a client opened.
fn put_connection(handle: &Handle, highs: &Highs, sheet: &mut Sheet) {
    let mut sheet = sheet.under(format_args!("eq_dcpq:{}", handle.name()));
    let side = if handle.side() == Side::Producer { "producer" } else { "consumer" };
    sheet.put("type", side);
    sheet.put("created", handle.created().as_secs());
    sheet.put("pending_disconnect", handle.is_replaced());
    sheet.put("num_streams", handle.streams());
    sheet.put("unacked_bytes", handle.unacknowledged_bytes());
    sheet.put("total_bytes_sent", handle.sent_bytes());
    let Some(progress) = handle.progress() else { return };
    sheet.put("items_sent", progress.changes());
    sheet.put("items_remaining", highs.remaining(progress));
    let pause = progress.pause();
    sheet.put("paused", pause.is_some());
    let (paused, unpaused) = pauses(progress);
    sheet.put("paused_count", paused);
    sheet.put("unpaused_count", unpaused);
    if let Some(pause) = pause {
        sheet.put("paused_current_reason", pause.name());
    }
    let counts = Pause::ALL.map(|why| (why, progress.pauses(why)));
    for (why, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        sheet.put(format_args!("paused_previous_{}_count", why.name()), count);
    }
    let (active, waiting) = progress.backfills();
    sheet.put("backfill_num_active", active);
    sheet.put("backfill_num_pending", waiting);
    sheet.put("noop_wait", progress.waits_for_noop());
    let agreed = progress.agreed();
    let is_bounded = agreed.buffer_bytes > 0;
    sheet.put("supports_ack", is_bounded);
    sheet.put("flow_control", if is_bounded { "enabled" } else { "disabled" });
    if is_bounded {
        sheet.put("max_buffer_bytes", agreed.buffer_bytes);
        sheet.put("total_acked_bytes", progress.acknowledged_bytes());
    }
    put_agreed(&agreed, |name, value| sheet.put(name, value));
}

/// What a producer and its consumer agreed on.
fn put_agreed(agreed: &Agreement, mut put: impl FnMut(&str, &dyn Display)) {
    put("noop_enabled", &agreed.noop);
    put("noop_tx_interval", &format_args!("{} s", agreed.noop_interval_s));
    let priority = match agreed.priority {
        Priority::Low => "Low",
        Priority::Medium => "Medium",
        Priority::High => "High",
    };
    put("priority", &priority);
    let order = match agreed.backfill_order {
        BackfillOrder::RoundRobin => "round-robin",
        BackfillOrder::Sequential => "sequential",
    };
    put("backfill_order", &order);
    put("force_value_compression", &agreed.force_compression);
    put("cursor_dropping", &agreed.cursor_dropping);
    put("send_stream_end_on_client_close_stream", &agreed.end_on_close);
    put("enable_expiry_opcode", &agreed.expirations);
    put("enable_stream_id", &agreed.stream_ids);
    put("synchronous_replication", &(agreed.sync_writes && agreed.consumer_name.is_some()));
    put("synchronous_writes", &agreed.sync_writes);
    put("max_marker_version", &if agreed.marker_2_2 { "2.2" } else { "2.0" });
    put("flatbuffers_system_events", &agreed.stored_events);
    put("change_streams_enabled", &agreed.change_streams);
}

/// A stream on which this node sends.
fn put_stream(name: &str, stream: &StreamFigures, sheet: &mut Sheet) {
    let at = stream.moment();
    let request = &stream.request;
    let vb = stream.vb;
    let prefix = match stream.stream_id {
        Some(id) => format!("eq_dcpq:{name}:stream_{vb}_sid{id}"),
        None => format!("eq_dcpq:{name}:stream_{vb}"),
    };
    let mut put = |what: &str, value: &dyn Display| sheet.put(format_args!("{prefix}_{what}"), value);
    put("flags", &request.flags.0);
    put("opaque", &stream.opaque);
    put("start_seqno", &request.start.0);
    put("end_seqno", &stream.end.0);
    put("vb_uuid", &request.uuid.0);
    put("snap_start_seqno", &request.snapshot_start.0);
    put("snap_end_seqno", &request.snapshot_end.0);
    put("state", &at.stage.name());
    put("items_ready", &(at.waiting_items > 0 || at.backfill_bytes > 0));
    put("readyQ_items", &at.waiting_items);
    put("ready_queue_memory", &at.waiting_list_bytes);
    put("backfill_sent", &stream.from_disk());
    put("backfill_buffer_bytes", &at.backfill_bytes);
    put("memory_phase", &stream.from_memory());
    put("last_sent_seqno", &at.sent.0);
    put("last_sent_snap_end_seqno", &at.snapshot_end.0);
    put("last_read_seqno", &at.read.0);
    put("cursor_registered", &at.has_cursor);
}

/// A connection on which this node is sent changes.
fn put_link(link: &LinkStatus, sheet: &mut Sheet) {
    let is_connected = link.state == LinkState::Connected;
    let mut sheet = sheet.under(format_args!("eq_dcpq:{}", link.name));
    sheet.put("type", "consumer");
    sheet.put("connected", is_connected);
    sheet.put("num_streams", link.streaming());
    sheet.put("supports_ack", true);
    if is_connected {
        sheet.put("max_buffer_bytes", link.buffer_bytes);
    }
    sheet.put("unacked_bytes", link.unacknowledged_bytes);
    sheet.put("total_acked_bytes", link.counts.acknowledged_bytes);
    sheet.put("total_bytes_received", link.counts.bytes);
    sheet.put("total_backoffs", link.counts.full);
    sheet.put("filled_by_file", link.counts.filled_by_file);
    sheet.put("filled_by_documents", link.counts.filled_by_documents);
    sheet.put("files_refused", link.files_refused);
    sheet.put("file_bytes", link.file_bytes);
}

/// A vBucket of which this node is sent the changes.
fn put_followed(name: &str, progress: &VbProgress, sheet: &mut Sheet) {
    let vb = progress.vb;
    let mut put = |what: &str, value: &dyn Display| {
        sheet.put(format_args!("eq_dcpq:{name}:stream_{vb}_{what}"), value);
    };
    // The field's three states; the stage says more.
    let state = match progress.stage {
        Stage::Asked | Stage::RollingBack | Stage::Filling => "pending",
        Stage::Streaming => "reading",
        Stage::Pausing | Stage::TakenOver => "dead",
    };
    put("state", &state);
    put("stage", &progress.stage.name());
    put("last_received_seqno", &progress.high.0);
    put("buffer_items", &progress.queued);
    let Some(asked) = &progress.asked else { return };
    put("opaque", &asked.opaque);
    put("start_seqno", &asked.start.0);
    put("vb_uuid", &asked.uuid.0);
    put("snap_start_seqno", &asked.snapshot_start.0);
    put("snap_end_seqno", &asked.snapshot_end.0);
}

/// What is summed, in the order of the sums.
const SUMS: [&str; 7] =
    ["count", "producer_count", "items_sent", "items_remaining", "total_bytes", "unacked_bytes", "backoff"];

/// `dcpagg SEPARATOR`: connections for streams, summed by what their names have before the first separator, and all of
/// them as `:total`.
pub fn by_name(inquiry: &Inquiry<'_>, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let separator = std::str::from_utf8(args[0]);
    let separator = separator.map_err(|_| Refused::Invalid("The separator must be text"))?;
    let mut sums: BTreeMap<String, [u64; SUMS.len()]> =
        BTreeMap::from([(":total".to_owned(), [0; SUMS.len()])]);
    for of in figures(inquiry.node, inquiry.bucket) {
        let figures = [
            1,
            u64::from(of.is_producer),
            of.items_sent,
            of.items_remaining,
            of.sent_bytes,
            // What others have not acknowledged, as the bytes are those that were sent.
            if of.is_producer { of.unacknowledged_bytes } else { 0 },
            of.backoffs,
        ];
        // Clients' names often begin with what kind they are, as in `eq_dcpq:replication:...`.
        let group = of.name.split(separator).next().unwrap_or_default().to_owned();
        for group in [group, ":total".to_owned()] {
            let sum = sums.entry(group).or_default();
            std::iter::zip(sum, figures).for_each(|(sum, figure)| *sum += figure);
        }
    }
    for (group, sums) in sums {
        let mut sheet = sheet.under(group);
        std::iter::zip(SUMS, sums).for_each(|(name, sum)| sheet.put(name, sum));
    }
    Ok(())
}
