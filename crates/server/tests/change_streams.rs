//! A consumer of changes that says what the DCP agent of Couchbase's Go SDK (gocbcore) says, in the same order, and reads
//! markers as it does: with change streams it is sent every version.

mod support;

use std::collections::BTreeMap;

use protocol::dcp::Marker;
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, http, json, start, vb};

const BUCKETS: &str = "/pools/default/buckets";
const KEY: &[u8] = b"k";

/// What the agent asks for of what a client can have: XATTRs, duplex, collections, compression, and framing extras.
const FEATURES: [Feature; 10] = [
    Feature::Tls,
    Feature::Xattr,
    Feature::SelectBucket,
    Feature::Duplex,
    Feature::Snappy,
    Feature::SnappyEverywhere,
    Feature::Collections,
    Feature::AltRequestSupport,
    Feature::PreserveTtl,
    Feature::SyncReplication,
];

/// Producer, and times of deletions.
const OPEN_FLAGS: u32 = 0x01 | 0x20;
/// From active vBuckets only.
const ACTIVE_ONLY: u32 = 0x10;

/// What an agent has that is set up with nothing but change streams.
const PLAIN: &[(&str, &str)] = &[
    ("enable_noop", "true"),
    ("set_noop_interval", "180"),
    ("set_priority", "low"),
    ("change_streams", "true"),
    ("connection_buffer_size", "20971520"),
    ("send_stream_end_on_client_close_stream", "true"),
];

/// And one with everything that can be switched on but stream ids.
const FULL: &[(&str, &str)] = &[
    ("enable_noop", "true"),
    ("set_noop_interval", "180"),
    ("set_priority", "high"),
    ("change_streams", "true"),
    ("enable_expiry_opcode", "true"),
    ("enable_out_of_order_snapshots", "true_with_seqno_advanced"),
    ("backfill_order", "round-robin"),
    ("connection_buffer_size", "20971520"),
    ("max_marker_version", "2.2"),
    ("send_stream_end_on_client_close_stream", "true"),
];

/// A connection that has been opened for changes, before anything is agreed on.
fn opened(server: &Server, bucket: &str) -> Client {
    let mut client = Client::connect(server, bucket, &FEATURES);
    let mut extras = [0; 8];
    extras[4..].copy_from_slice(&OPEN_FLAGS.to_be_bytes());
    let (key, extras) = (&b"test-change-streams"[..], &extras[..]);
    let open = RequestParts { opcode: opcode::DCP_OPEN, key, extras, ..RequestParts::default() };
    assert_eq!(client.request(&open).status, Status::Success);
    client
}

fn control(client: &mut Client, name: &str, value: &str) -> Status {
    let (key, value) = (name.as_bytes(), value.as_bytes());
    client
        .request(&RequestParts { opcode: opcode::DCP_CONTROL, key, value, ..RequestParts::default() })
        .status
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// First and last seqno of a marker, and its flags, in any of the versions that the agent reads.
fn read_marker(extras: &[u8], value: &[u8]) -> (u64, u64, u32) {
    let fields = match (extras.len(), extras.first()) {
        (20, _) => extras,
        (1, Some(0)) if value.len() >= 36 => value,
        (1, Some(2)) if value.len() >= 52 => value,
        _ => panic!("no marker: {extras:?} {value:?}"),
    };
    let flags = u32::from_be_bytes(fields[16..20].try_into().expect("four bytes"));
    (number(fields, 0), number(fields, 8), flags)
}

/// Everything that a vBucket has, and what follows, up to a seqno: values by seqno. Every snapshot is history.
fn follow(client: &mut Client, filter: &[u8], to: u64) -> BTreeMap<u64, Vec<u8>> {
    let mut extras = [0; 48];
    extras[..4].copy_from_slice(&ACTIVE_ONLY.to_be_bytes());
    extras[16..24].copy_from_slice(&u64::MAX.to_be_bytes());
    let (opcode, extras, vbucket) = (opcode::DCP_STREAM_REQ, &extras[..], vb(KEY));
    let answer =
        client.request(&RequestParts { opcode, extras, vbucket, value: filter, ..RequestParts::default() });
    assert_eq!((answer.opcode, answer.status), (opcode, Status::Success));
    assert_eq!((answer.value.len() % 16, answer.value.is_empty()), (0, false), "a failover log");
    let (mut told, mut snapshot) = (BTreeMap::new(), None);
    while told.last_key_value().is_none_or(|(last, _)| *last < to) {
        let frame = client.receive();
        match frame.opcode {
            opcode::DCP_SNAPSHOT_MARKER => {
                let (start, end, flags) = read_marker(&frame.extras, &frame.value);
                assert_ne!(flags & Marker::HISTORY, 0, "{start} to {end}: {flags:#x}");
                snapshot = Some(start..=end);
            }
            opcode::DCP_MUTATION => {
                let seqno = number(&frame.extras, 0);
                assert!(snapshot.as_ref().is_some_and(|bounds| bounds.contains(&seqno)), "{seqno}");
                // The default collection's number is before the key.
                assert_eq!((&frame.key[1..], frame.extras.len()), (KEY, 31));
                assert!(told.insert(seqno, frame.value).is_none(), "{seqno} came twice");
            }
            opcode::DCP_SEQNO_ADVANCED => {}
            other => panic!("{other:#x}"),
        }
    }
    told
}

fn made(folder: &std::path::Path) -> Server {
    let server = start(folder, "buckets = [\"default\"]");
    let form = "name=log&ramQuotaMB=100&storageBackend=magma&historyRetentionSeconds=600";
    assert_eq!(http(&server, "POST", BUCKETS, form).0, 202);
    server
}

#[test]
fn the_go_sdks_agent_is_sent_every_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = made(folder.path());
    let capabilities = json(&server, &format!("{BUCKETS}/log"))["bucketCapabilities"].clone();
    let has = |name: &str| capabilities.as_array().is_some_and(|all| all.iter().any(|one| one == name));
    assert!(has("collections") && has("nonDedupedHistory"), "{capabilities}");
    let mut writer = Client::connect(&server, "log", &[]);
    let mut expected = BTreeMap::new();
    for round in 0..3_u64 {
        for at in 1..=4 {
            let seqno = 4 * round + at;
            let value = format!("v{seqno}").into_bytes();
            assert_eq!(writer.set(KEY, &value), Some(Status::Success));
            expected.insert(seqno, value);
        }
        for controls in [PLAIN, FULL] {
            for filter in [&b""[..], br#"{"collections":["0"]}"#, br#"{"scope":"0"}"#] {
                let mut client = opened(&server, "log");
                for (name, value) in controls {
                    assert_eq!(control(&mut client, name, value), Status::Success, "{name}={value}");
                }
                assert_eq!(follow(&mut client, filter, 4 * round + 4), expected);
            }
        }
    }
    server.stop().expect("a clean stop");
}

/// The agent ends its connection then, as with the original.
#[test]
fn a_bucket_that_can_keep_none_refuses_change_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = made(folder.path());
    let mut client = opened(&server, "default");
    assert_eq!(control(&mut client, "change_streams", "true"), Status::NotSupported);
    assert_eq!(control(&mut client, "enable_noop", "true"), Status::Success);
    let mut client = opened(&server, "log");
    assert_eq!(control(&mut client, "change_streams", "false"), Status::Einval);
    server.stop().expect("a clean stop");
}

/// Names of stats have the names of connections in them, which have bytes that grow when they are told as text.
#[test]
fn names_of_connections_have_an_end_and_stats_tell_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let extras = OPEN_FLAGS.to_be_bytes();
    let extras = [&[0; 4][..], &extras].concat();
    let open = |name: &[u8]| {
        let mut client = Client::connect(&server, "default", &FEATURES);
        let parts =
            RequestParts { opcode: opcode::DCP_OPEN, key: name, extras: &extras, ..Default::default() };
        let status = client.request(&parts).status;
        (client, status)
    };
    assert_eq!(open(&[b'x'; 251]).1, Status::Einval);
    let (_open, status) = open(&[0xff; 250]);
    assert_eq!(status, Status::Success);
    let mut client = Client::connect(&server, "default", &[]);
    let name = format!("eq_dcpq:{}:type", "\u{fffd}".repeat(250));
    assert_eq!(client.stat("dcp", &name), "producer");
    for group in ["dcpagg _", "checkpoint", "durability-monitor 0"] {
        client.stat(group, "");
    }
    server.stop().expect("a clean stop");
}
