//! What the two ends of a connection agreed on: the flags it was opened with, and the control messages since.
//!
//! Sources: `docs/dcp/documentation/commands/{open-connection,control}.md`, and the recorded answers.

use protocol::Status;
use protocol::dcp::OpenFlags;

/// The shortest name that a connection may have.
const SHORTEST_NAME: usize = 1;
/// The longest name by which a consumer takes part in durable writes: each vBucket keeps it.
const LONGEST_CONSUMER_NAME: usize = 256;
/// Flags that a producer may be opened with.
const PRODUCER_FLAGS: u32 = OpenFlags::PRODUCER
    | OpenFlags::XATTRS
    | OpenFlags::NO_VALUE
    | OpenFlags::DELETE_TIMES
    | OpenFlags::NO_VALUE_WITH_DATATYPE
    | OpenFlags::PITR
    | OpenFlags::DELETED_USER_XATTRS
    | OpenFlags::SKIP_DELETES;
/// Flags that a consumer may be opened with.
const CONSUMER_FLAGS: u32 = OpenFlags::XATTRS
    | OpenFlags::NO_VALUE
    | OpenFlags::DELETE_TIMES
    | OpenFlags::NO_VALUE_WITH_DATATYPE
    | OpenFlags::DELETED_USER_XATTRS;

/// Which end of the stream we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We send changes.
    Producer,
    /// We are sent changes.
    Consumer,
}

/// How urgent a connection is beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Less than others.
    Low,
    /// Like others.
    #[default]
    Medium,
    /// More than others.
    High,
}

/// In which order the vBuckets of a connection are read from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackfillOrder {
    /// A slice of each in turn.
    #[default]
    RoundRobin,
    /// One after the other.
    Sequential,
}

/// Whether a collection's changes may be read from disk in the order of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfOrder {
    /// They may not.
    #[default]
    No,
    /// They may.
    Yes,
    /// They may, and the consumer wants to know up to where.
    WithSeqnoAdvanced,
}

/// What was agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Which end we are.
    pub side: Side,
    /// The flags it was opened with.
    pub flags: OpenFlags,
    /// Snappy was agreed on for the connection.
    pub snappy: bool,
    /// The consumer answers noops.
    pub noop: bool,
    /// Seconds between two noops.
    pub noop_interval_s: u32,
    /// Bytes that may be on their way without being acknowledged; 0 for any number.
    pub buffer_bytes: u64,
    /// How urgent it is.
    pub priority: Priority,
    /// In which order vBuckets are read from disk.
    pub backfill_order: BackfillOrder,
    /// Whether the consumer wants expirations as such.
    pub expirations: bool,
    /// Whether several streams of a vBucket are told apart by ids.
    pub stream_ids: bool,
    /// Whether the consumer takes part in durable writes.
    pub sync_writes: bool,
    /// The name by which it does.
    pub consumer_name: Option<String>,
    /// Whether all values are sent compressed.
    pub force_compression: bool,
    /// Whether a stream that the consumer closes is ended with a message.
    pub end_on_close: bool,
    /// Whether the consumer has statuses of its own for streams that it does not know.
    pub exact_answers: bool,
    /// Whether a stream may leave memory and go back to disk.
    pub cursor_dropping: bool,
    /// Whether access frequencies are sent in full.
    pub full_frequencies: bool,
    /// Whether collections may be sent in the order of keys.
    pub out_of_order: OutOfOrder,
    /// Whether user xattrs of tombstones are sent.
    pub deleted_user_xattrs: bool,
    /// Whether markers may be of version 2.2.
    pub marker_2_2: bool,
    /// Whether system events have their stored form, which is FlatBuffers.
    pub stored_events: bool,
    /// Whether every version in the history of changes is sent.
    pub change_streams: bool,
}

/// A control message that may be abbreviated: the field compares as many bytes as there are.
type Row = (&'static str, fn(&mut Agreement, &str) -> Status);

/// Answered in this order to a key that is the beginning of a name.
static ABBREVIABLE: &[Row] = &[
    ("backfill_order", Agreement::backfill_order),
    ("connection_buffer_size", Agreement::buffer_size),
    ("stream_buffer_size", |_, _| Status::NotSupported),
    ("enable_noop", |agreed, value| switch(&mut agreed.noop, value)),
    ("force_value_compression", Agreement::force_compression),
    ("supports_hifi_MFU", |agreed, value| switch(&mut agreed.full_frequencies, value)),
    ("set_noop_interval", Agreement::noop_interval),
    ("set_priority", Agreement::priority),
    ("enable_expiry_opcode", |agreed, value| switch(&mut agreed.expirations, value)),
];

/// Only with their whole name.
static EXACT: &[Row] = &[
    ("supports_cursor_dropping", |agreed, value| switch(&mut agreed.cursor_dropping, value)),
    ("supports_cursor_dropping_vulcan", |agreed, value| switch(&mut agreed.cursor_dropping, value)),
    ("send_stream_end_on_client_close_stream", |agreed, value| {
        // "false" is the default, and taken; once on it stays on.
        agreed.end_on_close |= value == "true";
        Status::Success
    }),
    ("enable_out_of_order_snapshots", Agreement::out_of_order),
    ("enable_sync_writes", Agreement::sync_writes),
    ("enable_stream_id", Agreement::stream_ids),
    ("consumer_name", |agreed, value| {
        if value.len() > LONGEST_CONSUMER_NAME {
            return Status::Einval;
        }
        agreed.consumer_name = Some(value.to_owned());
        Status::Success
    }),
    ("include_deleted_user_xattrs", Agreement::deleted_user_xattrs),
    ("v7_dcp_status_codes", |agreed, value| only_true(&mut agreed.exact_answers, value)),
    ("change_streams", |agreed, value| only_true(&mut agreed.change_streams, value)),
    ("flatbuffers_system_events", |agreed, value| only_true(&mut agreed.stored_events, value)),
    ("max_marker_version", |agreed, value| {
        agreed.marker_2_2 |= value == "2.2";
        if value == "2.2" { Status::Success } else { Status::Einval }
    }),
];

/// Any value but "true" means no.
fn switch(it: &mut bool, value: &str) -> Status {
    *it = value == "true";
    Status::Success
}

/// Once on it stays on.
fn only_true(it: &mut bool, value: &str) -> Status {
    if value != "true" {
        return Status::Einval;
    }
    *it = true;
    Status::Success
}

/// A number as the field reads it: whitespace and a plus may stand before it, and anything behind it after a whitespace.
fn number(value: &str) -> Option<u64> {
    value.trim_ascii_start().split(|at: char| at.is_ascii_whitespace()).next()?.parse().ok()
}

impl Agreement {
    /// What is agreed on by opening: the flags, the connection's name, and whether the connection has Snappy.
    pub fn open(flags: OpenFlags, name: &[u8], snappy: bool) -> Result<Agreement, Status> {
        let side = if flags.has(OpenFlags::PRODUCER) { Side::Producer } else { Side::Consumer };
        let allowed = match side {
            Side::Producer => PRODUCER_FLAGS,
            Side::Consumer => CONSUMER_FLAGS,
        };
        let one_of_two = OpenFlags::NO_VALUE | OpenFlags::NO_VALUE_WITH_DATATYPE;
        // Tombstones have user xattrs only for those who have xattrs at all.
        let needs_xattrs = flags.has(OpenFlags::DELETED_USER_XATTRS) && !flags.has(OpenFlags::XATTRS);
        if name.len() < SHORTEST_NAME || flags.0 & !allowed != 0 || flags.has(one_of_two) || needs_xattrs {
            return Err(Status::Einval);
        }
        Ok(Agreement {
            side,
            flags,
            snappy,
            noop: false,
            noop_interval_s: 120,
            buffer_bytes: 0,
            priority: Priority::default(),
            backfill_order: BackfillOrder::default(),
            expirations: false,
            stream_ids: false,
            sync_writes: false,
            consumer_name: None,
            force_compression: false,
            end_on_close: false,
            exact_answers: false,
            cursor_dropping: false,
            full_frequencies: false,
            out_of_order: OutOfOrder::default(),
            deleted_user_xattrs: flags.has(OpenFlags::DELETED_USER_XATTRS),
            marker_2_2: false,
            stored_events: false,
            change_streams: false,
        })
    }

    /// Answers a control message and takes it into account.
    pub fn control(&mut self, key: &[u8], value: &[u8]) -> Status {
        let (Ok(key), Ok(value)) = (str::from_utf8(key), str::from_utf8(value)) else {
            return Status::Einval;
        };
        let exact = ABBREVIABLE.iter().chain(EXACT).find(|(name, _)| *name == key);
        let begun = || ABBREVIABLE.iter().find(|(name, _)| name.starts_with(key));
        match exact.or_else(begun) {
            Some((_, apply)) => apply(self, value),
            None => Status::Einval,
        }
    }

    fn backfill_order(&mut self, value: &str) -> Status {
        self.backfill_order = match value {
            "round-robin" => BackfillOrder::RoundRobin,
            "sequential" => BackfillOrder::Sequential,
            _ => return Status::Einval,
        };
        Status::Success
    }

    fn buffer_size(&mut self, value: &str) -> Status {
        let Some(bytes) = number(value) else { return Status::Einval };
        self.buffer_bytes = bytes;
        Status::Success
    }

    fn noop_interval(&mut self, value: &str) -> Status {
        let Some(seconds) = number(value) else { return Status::Einval };
        // Not all the time, which 0 would mean.
        self.noop_interval_s = u32::try_from(seconds).unwrap_or(u32::MAX).max(1);
        Status::Success
    }

    fn priority(&mut self, value: &str) -> Status {
        self.priority = match value {
            "high" => Priority::High,
            "medium" => Priority::Medium,
            "low" => Priority::Low,
            _ => return Status::Einval,
        };
        Status::Success
    }

    fn force_compression(&mut self, value: &str) -> Status {
        if !self.snappy {
            return Status::Einval;
        }
        switch(&mut self.force_compression, value)
    }

    fn out_of_order(&mut self, value: &str) -> Status {
        self.out_of_order = match value {
            "true" => OutOfOrder::Yes,
            "true_with_seqno_advanced" => OutOfOrder::WithSeqnoAdvanced,
            _ => return Status::Einval,
        };
        Status::Success
    }

    fn sync_writes(&mut self, value: &str) -> Status {
        match value {
            "true" if self.stream_ids => Status::NotSupported,
            _ => only_true(&mut self.sync_writes, value),
        }
    }

    fn stream_ids(&mut self, value: &str) -> Status {
        match value {
            "true" if self.sync_writes => Status::NotSupported,
            _ => only_true(&mut self.stream_ids, value),
        }
    }

    /// Says only whether it was agreed on when the connection was opened.
    fn deleted_user_xattrs(&mut self, value: &str) -> Status {
        if value == "true" && self.deleted_user_xattrs { Status::Success } else { Status::Einval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(flags: u32) -> Result<Agreement, Status> {
        Agreement::open(OpenFlags(flags), b"name", true)
    }

    #[test]
    fn flags_are_those_that_the_recordings_accept() {
        for good in [0, 1, 4, 5, 8, 9, 32, 33, 37, 45, 64, 65, 68, 96, 97, 129, 260, 261, 269] {
            assert!(open(good).is_ok(), "{good}");
        }
        for bad in [2, 3, 16, 17, 72, 73, 76, 77, 128, 256, 257, 512, 1024, 1025, 0x8000_0001] {
            assert_eq!(open(bad).err(), Some(Status::Einval), "{bad}");
        }
        assert_eq!(Agreement::open(OpenFlags(1), b"", true).err(), Some(Status::Einval));
    }

    #[test]
    fn controls_may_be_abbreviated_where_the_field_lets_them() {
        let mut agreed = open(1).expect("a producer");
        let ok = [("c", "1"), ("set", "1"), ("e", "x"), ("enable_n", "1"), ("f", "1"), ("su", "true")];
        for (key, value) in ok {
            assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Success, "{key}={value}");
        }
        for (key, value) in
            [("b", "true"), ("c", "true"), ("set_p", "1"), ("enable_s", "true"), ("i", "true")]
        {
            assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), Status::Einval, "{key}={value}");
        }
        assert_eq!(agreed.control(b"s", b"1"), Status::NotSupported);
        assert_eq!(agreed.control(b"enable_noopx", b"true"), Status::Einval);
        for (text, bytes) in [
            (" 10", Some(10)),
            ("10 x", Some(10)),
            ("+7", Some(7)),
            ("++7", None),
            ("10x", None),
            ("-1", None),
        ] {
            let status = if bytes.is_some() { Status::Success } else { Status::Einval };
            assert_eq!(agreed.control(b"connection_buffer_size", text.as_bytes()), status, "{text}");
            assert!(bytes.is_none_or(|bytes| bytes == agreed.buffer_bytes), "{text}");
        }
        assert_eq!(agreed.control(b"set_noop_interval", b"0"), Status::Success);
        assert_eq!(agreed.noop_interval_s, 1);
        for whole in [&b"supports_cursor_d"[..], b"enable_ext_metadata", b"consumer_nam"] {
            assert_eq!(agreed.control(whole, b"true"), Status::Einval);
        }
    }

    #[test]
    fn the_end_of_a_closed_stream_is_told_once_that_was_asked_for() {
        let mut agreed = open(1).expect("a producer");
        let mut control = |value: &[u8]| {
            let status = agreed.control(b"send_stream_end_on_client_close_stream", value);
            (status, agreed.end_on_close)
        };
        assert_eq!(control(b"false"), (Status::Success, false));
        assert_eq!(control(b"1"), (Status::Success, false));
        assert_eq!(control(b"true"), (Status::Success, true));
        assert_eq!(control(b"false"), (Status::Success, true));
    }

    #[test]
    fn the_name_of_a_consumer_is_bounded() {
        let mut agreed = open(1).expect("a producer");
        assert_eq!(agreed.control(b"consumer_name", &[b'n'; LONGEST_CONSUMER_NAME + 1]), Status::Einval);
        assert_eq!(agreed.consumer_name, None);
        assert_eq!(agreed.control(b"consumer_name", &[b'n'; LONGEST_CONSUMER_NAME]), Status::Success);
    }

    #[test]
    fn stream_ids_and_durable_writes_exclude_each_other() {
        let mut agreed = open(1).expect("a producer");
        assert_eq!(agreed.control(b"enable_stream_id", b"true"), Status::Success);
        assert_eq!(agreed.control(b"enable_sync_writes", b"true"), Status::NotSupported);
        assert_eq!(agreed.control(b"enable_sync_writes", b"false"), Status::Einval);
    }
}
