//! Connections for streams, and how far each of their streams is.

use std::task::Waker;

use dcp::{Agreement, Features};
use protocol::dcp::{OpenFlags, StreamFlags, StreamRequest};

use super::*;
use crate::dcp::{DcpConnection, Owner};
use crate::output::Output;

fn open(world: &World, name: &[u8]) -> DcpConnection {
    let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), name, false).expect("a producer");
    DcpConnection::open(world.node.streams(), &world.bucket, name, Owner::Node, agreed, Features::default())
}

fn begin(connection: &mut DcpConnection, vb: u16) {
    let request = StreamRequest {
        flags: StreamFlags(0),
        start: base::Seqno(0),
        end: base::Seqno(u64::MAX),
        uuid: base::VbUuid(0),
        snapshot_start: base::Seqno(0),
        snapshot_end: base::Seqno(0),
    };
    let producer = connection.producer().expect("a producer");
    producer.request(VbId(vb), 7, &request, b"").expect("it is served");
}

fn has(stats: &BTreeMap<String, String>, prefix: &str, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        let told = stats.get(&format!("{prefix}{name}")).map(String::as_str);
        assert_eq!(told, Some(*value), "{prefix}{name}: {stats:#?}");
    }
}

/// What is told of a connection that has sent two changes and waits for more.
const CONNECTION: &[(&str, &str)] = &[
    ("type", "producer"),
    ("num_streams", "1"),
    ("items_sent", "2"),
    ("items_remaining", "0"),
    ("flow_control", "enabled"),
    ("max_buffer_bytes", "100000"),
    ("total_acked_bytes", "0"),
    ("noop_enabled", "true"),
    ("paused", "true"),
    ("paused_current_reason", "ReadyListEmpty"),
    ("paused_previous_ReadyListEmpty_count", "1"),
    ("unpaused_count", "0"),
    ("backfill_num_active", "0"),
    ("priority", "Medium"),
    ("synchronous_writes", "false"),
];
/// And of its stream.
const STREAM: &[(&str, &str)] = &[
    ("state", "in-memory"),
    ("opaque", "7"),
    ("end_seqno", "18446744073709551615"),
    ("last_sent_seqno", "2"),
    ("last_read_seqno", "2"),
    ("last_sent_snap_end_seqno", "2"),
    ("memory_phase", "2"),
    ("backfill_sent", "0"),
    ("items_ready", "false"),
    ("cursor_registered", "true"),
];

#[test]
fn a_producer_is_told_with_its_streams() {
    let world = World::new();
    world.set("a", 1);
    world.set("b", 1);
    world.set("c", 2);
    let mut connection = open(&world, b"xdcr:one");
    for (name, value) in [("connection_buffer_size", "100000"), ("enable_noop", "true")] {
        let producer = connection.producer().expect("a producer");
        assert_eq!(producer.control(name.as_bytes(), value.as_bytes()), Status::Success);
    }
    begin(&mut connection, 1);
    let (prefix, stream) = ("eq_dcpq:xdcr:one:", "eq_dcpq:xdcr:one:stream_1_");
    has(&world.stats("dcp"), prefix, &[("items_remaining", "2"), ("items_sent", "0")]);
    has(&world.stats("dcp"), stream, &[("state", "pending"), ("last_sent_seqno", "0")]);
    let mut out = Output::default();
    connection.step(1 << 20, Waker::noop(), &mut out).expect("it goes on");
    let stats = world.stats("dcp");
    has(&stats, prefix, CONNECTION);
    has(&stats, stream, STREAM);
    connection.producer().expect("a producer").acknowledge(10);
    world.set("d", 1);
    has(&world.stats("dcp"), prefix, &[("total_acked_bytes", "10"), ("items_remaining", "1")]);
    connection.step(1 << 20, Waker::noop(), &mut out).expect("it goes on");
    has(&world.stats("dcp"), prefix, &[("paused_count", "2"), ("unpaused_count", "1")]);
    has(&world.stats("dcpagg :"), "xdcr:", &[("count", "1"), ("items_sent", "3"), ("backoff", "0")]);
    let producer = connection.producer().expect("a producer");
    assert_eq!(producer.close_stream(VbId(1), None, &mut out), Status::Success);
    assert!(!world.stats("dcp").keys().any(|name| name.starts_with(stream)));
    let mut text = String::new();
    metrics::render(&world.node, &mut text);
    let samples = parse_metrics(&text);
    let of = |name: &str| samples[&format!("{name}{{bucket=\"travel\",connection_type=\"xdcr\"}}")];
    let names = ["kv_dcp_connection_count", "kv_dcp_items_sent", "kv_dcp_items_remaining"];
    assert_eq!(names.map(of), [1.0, 3.0, 0.0]);
    drop(connection);
    assert_eq!(world.stats("dcp")["ep_dcp_count"], "0");
}

/// A stream that reads from disk is told as one that does, and what it sends counts there.
#[test]
fn a_backfill_is_told() {
    let world = World::new();
    world.set("a", 1);
    world.set("b", 1);
    let mut connection = open(&world, b"tail");
    let request = StreamRequest {
        flags: StreamFlags(StreamFlags::DISK_ONLY),
        end: base::Seqno(u64::MAX),
        ..StreamRequest::default()
    };
    assert!(world.bucket.flushing().flush_all());
    connection.producer().expect("a producer").request(VbId(1), 1, &request, b"").expect("it is served");
    let mut out = Output::default();
    connection.step(1 << 20, Waker::noop(), &mut out).expect("it goes on");
    has(&world.stats("dcp"), "eq_dcpq:tail:", &[("backfill_num_active", "1")]);
    has(
        &world.stats("dcp"),
        "eq_dcpq:tail:stream_1_",
        &[("state", "backfilling"), ("cursor_registered", "false")],
    );
    assert_eq!(world.stats("dcp")["ep_dcp_num_running_backfills"], "1");
}

/// An answer has a most: who has more streams is told how many were left out.
#[test]
fn streams_beyond_the_most_are_counted() {
    let world = World::new();
    let connections: Vec<DcpConnection> = (0..520)
        .map(|at| {
            let mut connection = open(&world, format!("many{at:04}").as_bytes());
            (0..8).for_each(|vb| begin(&mut connection, vb));
            connection.step(1 << 10, Waker::noop(), &mut Output::default()).expect("it goes on");
            connection
        })
        .collect();
    let stats = world.stats("dcp");
    let streams = stats.keys().filter(|name| name.ends_with("_last_sent_seqno")).count();
    assert_eq!(
        (streams, &*stats["ep_dcp_streams_left_out"]),
        (4_096, "64"),
        "{} connections",
        connections.len()
    );
    assert_eq!(stats["ep_dcp_count"], "520");
    let stats = world.stats("dcp skip");
    assert!(!stats.keys().any(|name| name.contains(":stream_")));
    assert_eq!(stats["ep_dcp_streams_left_out"], "4160");
    assert_eq!(world.refusal("dcp some"), Some(Status::KeyEnoent));
}
