//! Each DCP command on a plain connection, on a producer's and on a consumer's: what the original's validators and
//! handlers say (record 67).

use super::*;
use crate::command::Row;

/// What comes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Is(Status),
    /// The connection is closed.
    Closed,
    /// No answer.
    Silent,
}
use Came::{Closed, Is, Silent};

const MARKER: [u8; 20] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1];

/// Extras whose first number of eight bytes is 1.
fn numbered<const N: usize>() -> [u8; N] {
    let mut extras = [0; N];
    extras[7] = 1;
    extras
}

fn with<const N: usize>(at: usize, byte: u8) -> [u8; N] {
    let mut extras = numbered();
    extras[at] = byte;
    extras
}

struct Case {
    opcode: u8,
    extras: Vec<u8>,
    key: &'static [u8],
    value: Vec<u8>,
    cas: u64,
    plain: Came,
    producer: Came,
    consumer: Came,
}

/// A message with these extras, and what comes of it on a producer's and a consumer's connection.
fn case(opcode: u8, extras: &[u8], key: &'static [u8], producer: Came, consumer: Came) -> Case {
    let plain = Is(Status::Einval);
    Case { opcode, extras: extras.to_vec(), key, value: Vec::new(), cas: 0, plain, producer, consumer }
}

fn well_formed() -> Vec<Case> {
    let enoent = Is(Status::KeyEnoent);
    let stream = |opcode, extras: &[u8], key| case(opcode, extras, key, Closed, enoent);
    let marker_2 = |value: usize, version| Case {
        value: vec![0; value],
        ..stream(opcode::DCP_SNAPSHOT_MARKER, &[version], b"")
    };
    vec![
        case(opcode::DCP_ADD_STREAM, &[0; 4], b"", Closed, Is(Status::NotMyVbucket)),
        case(opcode::DCP_CLOSE_STREAM, &[], b"", enoent, enoent),
        case(opcode::DCP_STREAM_REQ, &[0; 48], b"", Is(Status::NotSupported), Closed),
        case(opcode::DCP_GET_FAILOVER_LOG, &[], b"", Is(Status::Success), Closed),
        stream(opcode::DCP_STREAM_END, &[0; 4], b""),
        stream(opcode::DCP_SNAPSHOT_MARKER, &MARKER, b""),
        marker_2(36, 0),
        marker_2(52, 2),
        stream(opcode::DCP_MUTATION, &numbered::<31>(), b"k"),
        stream(opcode::DCP_DELETION, &numbered::<18>(), b"k"),
        stream(opcode::DCP_DELETION, &numbered::<21>(), b"k"),
        stream(opcode::DCP_EXPIRATION, &numbered::<20>(), b"k"),
        stream(opcode::DCP_SET_VBUCKET_STATE, &[1], b""),
        case(opcode::DCP_NOOP, &[], b"", Closed, Is(Status::Success)),
        case(opcode::DCP_BUFFER_ACK, &[0; 4], b"", Silent, Closed),
        Case {
            value: b"true".to_vec(),
            ..case(opcode::DCP_CONTROL, &[], b"enable_noop", Is(Status::Success), Closed)
        },
        stream(opcode::DCP_SYSTEM_EVENT, &numbered::<13>(), b""),
        Case { cas: 1, ..stream(opcode::DCP_PREPARE, &with::<31>(30, 1), b"k") },
        case(opcode::DCP_SEQNO_ACKNOWLEDGED, &[0; 8], b"", Is(Status::Einval), Closed),
        stream(opcode::DCP_COMMIT, &with::<16>(15, 2), b"k"),
        stream(opcode::DCP_ABORT, &with::<16>(15, 2), b"k"),
    ]
}

/// Malformed in a way that the lengths of its parts do not tell.
fn malformed() -> Vec<Case> {
    let refused =
        |opcode, extras: &[u8], key| case(opcode, extras, key, Is(Status::Einval), Is(Status::Einval));
    let marker = |value: usize, version| Case {
        value: vec![0; value],
        ..refused(opcode::DCP_SNAPSHOT_MARKER, &[version], b"")
    };
    let mut backwards = MARKER;
    backwards[7] = 9;
    vec![
        refused(opcode::DCP_ADD_STREAM, &[0, 0, 0, 8], b""),
        refused(opcode::DCP_MUTATION, &[0; 31], b"k"),
        refused(opcode::DCP_MUTATION, &with::<31>(29, 1), b"k"),
        refused(opcode::DCP_SET_VBUCKET_STATE, &[5], b""),
        refused(opcode::DCP_SYSTEM_EVENT, &with::<13>(11, 6), b""),
        refused(opcode::DCP_SYSTEM_EVENT, &with::<13>(12, 3), b""),
        refused(opcode::DCP_PREPARE, &with::<31>(30, 1), b"k"),
        Case { cas: 1, ..refused(opcode::DCP_PREPARE, &with::<31>(30, 4), b"k") },
        Case { cas: 1, ..refused(opcode::DCP_PREPARE, &[1; 0], b"k") },
        Case { cas: 1, ..refused(opcode::DCP_COMMIT, &with::<16>(15, 2), b"k") },
        Case { cas: 1, ..refused(opcode::DCP_SEQNO_ACKNOWLEDGED, &[0; 8], b"") },
        marker(36, 2),
        marker(52, 0),
        marker(44, 1),
        Case { value: vec![0; 1], ..refused(opcode::DCP_SNAPSHOT_MARKER, &MARKER, b"") },
        // Only a consumer looks into these.
        case(opcode::DCP_SNAPSHOT_MARKER, &backwards, b"", Closed, Is(Status::Einval)),
        case(opcode::DCP_DELETION, &[0; 18], b"k", Closed, Is(Status::Einval)),
        case(opcode::DCP_EXPIRATION, &[0; 20], b"k", Closed, Is(Status::Einval)),
        case(opcode::DCP_COMMIT, &[0; 16], b"k", Closed, Is(Status::Einval)),
        case(opcode::DCP_ABORT, &[0; 16], b"k", Closed, Is(Status::Einval)),
    ]
}

fn open(flags: u8, value: &[u8]) -> Vec<u8> {
    let extras = [0, 0, 0, 0, 0, 0, 0, flags];
    let datatype = if value.is_empty() { 0 } else { 1 };
    let parts =
        RequestParts { opcode: opcode::DCP_OPEN, extras: &extras, key: b"test", ..Default::default() };
    request(&RequestParts { value, datatype, ..parts })
}

fn opened(node: &Arc<Node>, flags: Option<u8>) -> Connection {
    let mut connection = connect_as(node, "admin", &[FULL, &[Feature::Collections]].concat());
    if let Some(flags) = flags {
        let (answers, _) = feed(&mut connection, &open(flags, b""));
        assert_eq!(statuses(&answers), [(0, Status::Success)]);
    }
    connection
}

fn came(connection: &mut Connection, bytes: &[u8]) -> Came {
    let (answers, next) = feed(connection, bytes);
    match (statuses(&answers).as_slice(), next) {
        ([], Next::Close(_)) => Closed,
        ([], _) => Silent,
        ([(_, status)], _) => Is(*status),
        (many, _) => panic!("{many:?}"),
    }
}

fn bytes_of(case: &Case) -> Vec<u8> {
    request(&RequestParts {
        opcode: case.opcode,
        extras: &case.extras,
        key: case.key,
        value: &case.value,
        cas: Cas(case.cas),
        opaque: 7,
        ..RequestParts::default()
    })
}

#[test]
fn dcp_commands_are_answered_by_what_the_connection_is() {
    let node = node();
    for case in well_formed().into_iter().chain(malformed()) {
        let name = find(case.opcode).map(|row| row.name);
        let about = format!("{name:?} {:?} {:?} {}", case.extras, case.value, case.cas);
        let bytes = bytes_of(&case);
        for (flags, wanted) in [(None, case.plain), (Some(1), case.producer), (Some(0), case.consumer)] {
            assert_eq!(came(&mut opened(&node, flags), &bytes), wanted, "{about}, opened with {flags:?}");
        }
    }
    // A seqno that advances is a command on fed connections alone.
    let others = [opcode::DCP_OPEN, opcode::DCP_SEQNO_ADVANCED];
    let is_asked = |row: &&Row| row.name.starts_with("Dcp") && !others.contains(&row.opcode);
    let rows: Vec<_> = ROWS.iter().filter(is_asked).collect();
    assert!(rows.len() > 15);
    for row in rows {
        assert!(well_formed().iter().any(|case| case.opcode == row.opcode), "{} is not looked at", row.name);
    }
}

#[test]
fn parts_of_wrong_lengths_are_invalid_on_every_connection() {
    let node = node();
    for case in well_formed() {
        let name = find(case.opcode).map(|row| row.name);
        let longer = Case { extras: [&case.extras[..], &[0]].concat(), ..case };
        for flags in [None, Some(1), Some(0)] {
            let came = came(&mut opened(&node, flags), &bytes_of(&longer));
            assert_eq!(came, Is(Status::Einval), "{name:?} with longer extras, {flags:?}");
        }
    }
}

#[test]
fn streams_are_not_for_connections_whose_answers_overtake_each_other() {
    let node = node();
    let mut unordered = connect_as(&node, "admin", &[FULL, &[Feature::UnorderedExecution]].concat());
    let mut all: Vec<Vec<u8>> = well_formed().iter().map(bytes_of).collect();
    all.push(open(1, b""));
    all.push(simple(opcode::GET_FAILOVER_LOG, 7));
    for bytes in all {
        assert_eq!(came(&mut unordered, &bytes), Is(Status::NotSupported), "0x{:02x}", bytes[1]);
    }
    // Who has opened one is not given it.
    let mut producer = opened(&node, Some(1));
    let asked = Features::of(&[Feature::UnorderedExecution, Feature::Xerror]).encode();
    let hello = request(&RequestParts { opcode: opcode::HELLO, value: &asked, ..RequestParts::default() });
    let (answers, _) = feed(&mut producer, &hello);
    let granted = each(&answers, |answer| answer.value.to_vec());
    assert_eq!(granted, [Features::of(&[Feature::Xerror]).encode()]);
}

#[test]
fn a_connection_of_streams_keeps_its_user() {
    let node = node();
    let login = |opcode, key, value| request(&RequestParts { opcode, key, value, ..RequestParts::default() });
    for flags in [Some(1), Some(0)] {
        let mut connection = opened(&node, flags);
        for (what, bytes) in [
            ("mechanisms", login(opcode::SASL_LIST_MECHS, b"", b"")),
            ("a wrong password", login(opcode::SASL_AUTH, b"PLAIN", b"\0admin\0wrong")),
            ("another user", login(opcode::SASL_AUTH, b"PLAIN", b"\0reader\0reader")),
            ("an exchange", login(opcode::SASL_AUTH, b"SCRAM-SHA1", b"n,,n=admin,r=abc")),
            ("a step", login(opcode::SASL_STEP, b"SCRAM-SHA1", b"c=biws,r=abc,p=AAAA")),
        ] {
            assert_eq!(came(&mut connection, &bytes), Is(Status::NotSupported), "{what}, {flags:?}");
            assert_eq!(came(&mut connection, &simple(opcode::NOOP, 7)), Is(Status::Success), "{what}");
        }
    }
}

#[test]
fn what_is_said_when_a_connection_is_opened_is_known() {
    let node = node();
    for (flags, value, wanted) in [
        (1, &b"{}"[..], Is(Status::Success)),
        (0, br#"{"consumer_name":"n"}"#, Is(Status::Success)),
        (0, b"{}", Closed),
        (1, br#"{"consumer_name":"n"}"#, Is(Status::Einval)),
        (0, br#"{"consumer_name":"n","other":1}"#, Is(Status::Einval)),
        (0, br#"{"consumer_name":1}"#, Is(Status::Einval)),
        (1, br#"{"other":1}"#, Is(Status::Einval)),
        (1, b"[]", Is(Status::Einval)),
        (1, b"{", Is(Status::Einval)),
    ] {
        let about = String::from_utf8_lossy(value).into_owned();
        assert_eq!(came(&mut opened(&node, None), &open(flags, value)), wanted, "{flags} {about}");
    }
}

#[test]
fn streams_are_asked_for_with_known_flags_only() {
    let node = node();
    for bit in 0..32 {
        let flags = 1u32 << bit;
        let mut extras = [0; 48];
        extras[..4].copy_from_slice(&flags.to_be_bytes());
        let mut producer = opened(&node, Some(1));
        let noop = request(&RequestParts {
            opcode: opcode::DCP_CONTROL,
            key: b"enable_noop",
            value: b"true",
            ..RequestParts::default()
        });
        assert_eq!(came(&mut producer, &noop), Is(Status::Success));
        let parts =
            RequestParts { opcode: opcode::DCP_STREAM_REQ, extras: &extras, ..RequestParts::default() };
        let is_known = [0x01, 0x02, 0x04, 0x10, 0x20, 0x40, 0x80].contains(&flags);
        let (answers, _) = feed(&mut producer, &request(&parts));
        let first = each(&answers, |answer| answer.status()).first().copied().flatten();
        let wanted = if is_known { Status::Success } else { Status::Einval };
        assert_eq!(first, Some(wanted), "0x{flags:x}");
    }
}

#[test]
fn prepares_of_a_vbucket_that_is_not_here_end_no_connection() {
    let node = node();
    let acknowledge = |vbucket| {
        let parts =
            RequestParts { opcode: opcode::DCP_SEQNO_ACKNOWLEDGED, vbucket, ..RequestParts::default() };
        request(&RequestParts { extras: &[0; 8], ..parts })
    };
    let mut producer = opened(&node, Some(1));
    for (key, value) in [("enable_noop", "true"), ("enable_sync_writes", "true"), ("consumer_name", "n")] {
        let parts =
            RequestParts { opcode: opcode::DCP_CONTROL, key: key.as_bytes(), ..RequestParts::default() };
        let bytes = request(&RequestParts { value: value.as_bytes(), ..parts });
        assert_eq!(came(&mut producer, &bytes), Is(Status::Success), "{key}");
    }
    assert_eq!(came(&mut producer, &acknowledge(VbId(99))), Is(Status::NotMyVbucket));
    // One that is here and was never streamed cannot have been acknowledged.
    assert_eq!(came(&mut producer, &acknowledge(VbId(1))), Closed);
}
