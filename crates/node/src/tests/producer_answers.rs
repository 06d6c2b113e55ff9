//! Each message that a client can send where changes are streamed, in each state of its connection, and what comes of it,
//! compared with the written table `producer_answers.txt`.
//!
//! Messages that have the same outcomes are listed together.
//! Every number from the first to past the last of DCP's commands is sent, as its row says it is laid out and with parts
//! of other lengths; so are answers to what a producer sends.
//! The table was compared with the original's documents (`docs/dcp/documentation/commands/*.md`; record 67): a producer
//! disconnects a client that sends what only a producer sends, answers 0x04 to what is malformed or not opened for streams,
//! 0x01 for a stream that is not there, 0x02 for one that is there, 0x8d for a stream id where there should be none and
//! the other way round.

use std::collections::BTreeMap;

use protocol::Response;

use super::roles::fitting;
use super::*;

const TABLE: &str = include_str!("producer_answers.txt");
/// From the first number of DCP's commands to the last before those of other families.
const NUMBERS: std::ops::RangeInclusive<u8> = 0x50..=0x6f;

/// What the connection is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    /// A client's, logged in.
    Plain,
    /// Opened as a producer.
    Opened,
    /// A stream is there, and has sent all there is.
    Streaming,
    /// The same, of a consumer with a name that takes part in durable writes.
    Named,
    /// The same, with an id.
    WithId,
    /// The stream was closed.
    Closed,
    /// The stream has come to its end by itself.
    Ended,
    /// The vBucket is not active any more.
    Dead,
}
use State::*;

const STATES: [State; 8] = [Plain, Opened, Streaming, Named, WithId, Closed, Ended, Dead];

fn send(connection: &mut Connection, parts: &RequestParts<'_>) {
    let (answers, _) = feed(connection, &request(parts));
    // The end of a stream may follow.
    let ParsedResponse::Response { response, .. } = parse_response(&answers, 1 << 20) else {
        panic!("no answer to {:#x}", parts.opcode);
    };
    assert_eq!(response.status(), Some(Status::Success), "{:#x}", parts.opcode);
}

fn controls(connection: &mut Connection, names: &[(&str, &str)]) {
    for (name, value) in names {
        let (key, value) = (name.as_bytes(), value.as_bytes());
        send(
            connection,
            &RequestParts { opcode: opcode::DCP_CONTROL, key, value, ..RequestParts::default() },
        );
    }
}

/// Asks for a stream of vBucket 0 up to `end`, and takes what it sends.
fn stream(connection: &mut Connection, end: u64, value: &[u8]) {
    let mut extras = [0; 48];
    extras[16..24].copy_from_slice(&end.to_be_bytes());
    let parts =
        RequestParts { opcode: opcode::DCP_STREAM_REQ, extras: &extras, value, ..RequestParts::default() };
    send(connection, &parts);
    streamed(connection);
}

/// Requests that the producer sends: commands and, of stream ends, the reason.
fn streamed(connection: &mut Connection) -> Vec<String> {
    let mut out = Output::default();
    while connection.stream(crate::dcp::STEP_BYTES, &Context::from_waker(Waker::noop()), &mut out) {}
    requests(&out.to_vec())
}

fn requests(mut bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while let protocol::Parsed::Request { request, total_len } =
        protocol::parse(bytes, protocol::Limits::AUTHENTICATED)
    {
        let name = protocol::opcode::name(request.opcode).unwrap_or("?");
        found.push(match request.opcode {
            opcode::DCP_STREAM_END => format!("{name} {}", request.extras.last().copied().unwrap_or(0xff)),
            _ => name.to_owned(),
        });
        bytes = &bytes[total_len..];
    }
    found
}

/// A node whose vBucket 0 has one document.
fn world() -> Arc<Node> {
    let (env, _) = Env::sim(7);
    let users = Users::new(&[user("admin", Role::Admin, None)], &*env.random);
    let node = node_in(env, users, false);
    let (answers, _) = feed(&mut logged_in(&node), &set_in(VbId(0)));
    assert_eq!(statuses(&answers), [(0, Status::Success)]);
    node
}

/// An administrator's connection; a certificate, because passwords take long.
fn logged_in(node: &Arc<Node>) -> Connection {
    let mut connection = connect(node);
    connection.certified("admin");
    let features = Features::of(&[FULL, &[Feature::Collections]].concat()).encode();
    send(
        &mut connection,
        &RequestParts { opcode: opcode::HELLO, value: &features, ..RequestParts::default() },
    );
    let default = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"default", ..RequestParts::default() };
    send(&mut connection, &default);
    connection
}

fn become_one(node: &Node, state: base::VbState) {
    let bucket = node.bucket("default").expect("there is one");
    bucket.roles().set_vbucket_state(VbId(0), state, None).expect("there is one");
}

fn in_state(node: &Arc<Node>, state: State) -> Connection {
    let mut connection = logged_in(node);
    if state == Plain {
        return connection;
    }
    let open = RequestParts {
        opcode: opcode::DCP_OPEN,
        extras: &[0, 0, 0, 0, 0, 0, 0, 1],
        ..RequestParts::default()
    };
    send(&mut connection, &RequestParts { key: b"producer", ..open });
    controls(&mut connection, &[("enable_noop", "true")]);
    match state {
        Plain | Opened => return connection,
        Named => controls(&mut connection, &[("enable_sync_writes", "true"), ("consumer_name", "there")]),
        WithId => controls(&mut connection, &[("enable_stream_id", "true")]),
        Closed => controls(&mut connection, &[("send_stream_end_on_client_close_stream", "true")]),
        _ => {}
    }
    let end = if state == Ended { 1 } else { u64::MAX };
    stream(&mut connection, end, if state == WithId { br#"{"sid":1}"# } else { b"" });
    match state {
        Closed => send(
            &mut connection,
            &RequestParts { opcode: opcode::DCP_CLOSE_STREAM, ..RequestParts::default() },
        ),
        Dead => become_one(node, base::VbState::Dead),
        _ => {}
    }
    streamed(&mut connection);
    connection
}

/// A message of the client.
#[derive(Clone)]
struct Sample {
    name: String,
    bytes: Vec<u8>,
}

/// What a row says its command is laid out as, and other layouts.
fn of_number(number: u8) -> Vec<Sample> {
    let name = protocol::opcode::name(number)
        .map_or(format!("0x{number:02x}"), |name| format!("0x{number:02x} {name}"));
    let row = find(number);
    let fits = row.map_or(RequestParts { opcode: number, ..RequestParts::default() }, fitting);
    let extras = extras_of(number, fits.extras.len());
    let key: &[u8] = if number == opcode::DCP_CONTROL { b"enable_noop" } else { fits.key };
    let value: &[u8] = if number == opcode::DCP_CONTROL { b"true" } else { fits.value };
    let fits = RequestParts { extras: &extras, key, value, ..fits };
    let long = [&extras[..], &[0]].concat();
    let short = extras.split_last().map_or(&b""[..], |(_, rest)| rest);
    let other_key: &[u8] = if fits.key.is_empty() { b"key" } else { b"" };
    let other_value: &[u8] = if fits.value.is_empty() { b"value" } else { b"" };
    let mut with_id = Vec::new();
    FrameInfos { stream_id: Some(1), ..FrameInfos::default() }.encode(&mut with_id);
    let mut samples = vec![
        ("", fits),
        (", of another vBucket", RequestParts { vbucket: VbId(1), ..fits }),
        (", of no vBucket", RequestParts { vbucket: VbId(99), ..fits }),
        (", with a stream id", RequestParts { frame_infos: &with_id, ..fits }),
        (", longer extras", RequestParts { extras: &long, ..fits }),
        (
            if other_key.is_empty() { ", without its key" } else { ", with a key" },
            RequestParts { key: other_key, ..fits },
        ),
        (
            if other_value.is_empty() { ", without its value" } else { ", with a value" },
            RequestParts { value: other_value, ..fits },
        ),
        (", with a CAS", RequestParts { cas: Cas(9), ..fits }),
        (", with a datatype", RequestParts { datatype: 0x40, ..fits }),
    ];
    if !extras.is_empty() {
        samples.push((", shorter extras", RequestParts { extras: short, ..fits }));
    }
    samples
        .into_iter()
        .map(|(what, parts)| Sample { name: format!("{name}{what}"), bytes: request(&parts) })
        .collect()
}

/// Extras of which no producer or consumer says that their numbers are wrong.
fn extras_of(number: u8, len: usize) -> Vec<u8> {
    let mut extras = vec![0; len];
    match number {
        opcode::DCP_OPEN => extras[7] = 1,
        // From the beginning, for ever.
        opcode::DCP_STREAM_REQ => extras[16..24].fill(0xff),
        opcode::DCP_SNAPSHOT_MARKER => extras = vec![0; 20],
        opcode::DCP_SET_VBUCKET_STATE => extras[0] = 1,
        opcode::DCP_MUTATION | opcode::DCP_DELETION | opcode::DCP_EXPIRATION | opcode::DCP_SYSTEM_EVENT => {
            extras[7] = 1;
        }
        opcode::DCP_PREPARE => (extras[7], extras[30]) = (1, 1),
        opcode::DCP_COMMIT | opcode::DCP_ABORT => extras[15] = 1,
        _ => {}
    }
    extras
}

fn ask(name: &str, parts: RequestParts<'_>) -> Sample {
    Sample { name: name.to_owned(), bytes: request(&parts) }
}

/// Streams that a client may ask for, and ask for wrongly.
fn wanted() -> Vec<Sample> {
    let mut extras = [0; 48];
    extras[16..24].fill(0xff);
    let wanted = |name: &str, change: &dyn Fn(&mut [u8; 48]), value: &[u8]| {
        let mut extras = extras;
        change(&mut extras);
        ask(
            name,
            RequestParts {
                opcode: opcode::DCP_STREAM_REQ,
                extras: &extras,
                value,
                ..RequestParts::default()
            },
        )
    };
    vec![
        wanted("stream request, with an id", &|_| {}, br#"{"sid":1}"#),
        wanted("stream request, with another id", &|_| {}, br#"{"sid":2}"#),
        wanted("stream request, id 0", &|_| {}, br#"{"sid":0}"#),
        wanted("stream request, of a collection", &|_| {}, br#"{"collections":["0"]}"#),
        wanted("stream request, of an unknown collection", &|_| {}, br#"{"collections":["99"]}"#),
        wanted("stream request, of an unknown scope", &|_| {}, br#"{"scope":"99"}"#),
        wanted(
            "stream request, start behind the end",
            &|extras| {
                extras[15] = 9;
                extras[16..24].copy_from_slice(&8u64.to_be_bytes());
            },
            b"",
        ),
        wanted(
            "stream request, start behind what there is",
            &|extras| {
                for at in [15, 39, 47] {
                    extras[at] = 99;
                }
            },
            b"",
        ),
        wanted("stream request, start outside of the snapshot", &|extras| extras[39] = 9, b""),
        wanted("stream request, unknown flags", &|extras| extras[0] = 0x80, b""),
        wanted(
            "stream request, unknown history",
            &|extras| {
                for at in [15, 31, 39, 47] {
                    extras[at] = 1;
                }
            },
            b"",
        ),
    ]
}

/// What a client may ask for beside streams.
fn others() -> Vec<Sample> {
    let control = |name: &str, key: &[u8], value: &[u8]| {
        ask(name, RequestParts { opcode: opcode::DCP_CONTROL, key, value, ..RequestParts::default() })
    };
    vec![
        control("control, unknown", b"no_such_thing", b"true"),
        control("control, wrong value", b"enable_noop", b"maybe"),
        control("control, buffer of another size", b"connection_buffer_size", b"1024"),
        ask("get failover log", RequestParts { opcode: opcode::GET_FAILOVER_LOG, ..RequestParts::default() }),
        ask(
            "get",
            RequestParts { opcode: opcode::GET, key: b"\0k", vbucket: vb(b"k"), ..RequestParts::default() },
        ),
        ask("no such command", RequestParts { opcode: 0xee, ..RequestParts::default() }),
        ask(
            "select bucket",
            RequestParts { opcode: opcode::SELECT_BUCKET, key: b"other", ..RequestParts::default() },
        ),
        ask("quit", RequestParts { opcode: opcode::QUIT, ..RequestParts::default() }),
    ]
}

/// Answers to messages that a producer sends, or could have sent.
fn answers() -> Vec<Sample> {
    let mut samples = Vec::new();
    for number in NUMBERS {
        let Some(name) = protocol::opcode::name(number) else { continue };
        for status in [
            Status::Success,
            Status::KeyEnoent,
            Status::KeyEexists,
            Status::Einval,
            Status::NotMyVbucket,
            Status::Etmpfail,
            Status::StreamNotFound,
            Status::OpaqueNoMatch,
        ] {
            let mut bytes = Vec::new();
            Response { opcode: number, status, opaque: 7, ..Response::default() }.write(&mut bytes);
            samples.push(Sample { name: format!("answer to {name}: {}", status.name()), bytes });
        }
    }
    samples
}

/// What comes of a message.
fn outcome(node: &Arc<Node>, sample: &Sample, state: State) -> String {
    let mut connection = in_state(node, state);
    let (answers, next) = feed(&mut connection, &sample.bytes);
    let mut told = Vec::new();
    let mut rest = &answers[..];
    while let ParsedResponse::Response { response, total_len } = parse_response(rest, 64 << 20) {
        told.push(response.status().map_or("?", |status| status.name()).to_owned());
        rest = &rest[total_len..];
    }
    told.extend(requests(rest));
    if let Next::Close(reason) = next {
        told.push(format!("closes: {reason}"));
    } else {
        told.extend(streamed(&mut connection));
        if let Some(reason) = connection.closing() {
            told.push(format!("closes: {reason}"));
        }
    }
    if state == Dead {
        become_one(node, base::VbState::Active);
    }
    if told.is_empty() { "no answer".to_owned() } else { told.join(", ") }
}

/// Stores the one document of a vBucket.
fn set_in(vbucket: VbId) -> Vec<u8> {
    let key =
        (0..).map(|n: u32| format!("k{n}")).find(|key| vb(key.as_bytes()) == vbucket).expect("one of many");
    let key = [b"\0", key.as_bytes()].concat();
    let parts = RequestParts {
        opcode: opcode::SET,
        key: &key,
        value: b"1",
        extras: &[0; 8],
        ..RequestParts::default()
    };
    request(&RequestParts { vbucket, ..parts })
}

/// What comes of a message in all states, a line for each outcome.
fn outcomes(node: &Arc<Node>, sample: &Sample) -> String {
    let mut by_outcome = BTreeMap::<String, Vec<String>>::new();
    for state in STATES {
        by_outcome.entry(outcome(node, sample, state)).or_default().push(format!("{state:?}"));
    }
    let lines = by_outcome.iter().map(|(outcome, states)| format!("  {}: {outcome}\n", states.join(" ")));
    lines.collect()
}

#[test]
fn each_message_of_a_client_has_the_outcome_of_the_table() {
    let node = world();
    let mut table = String::new();
    for samples in NUMBERS.map(of_number).chain([[wanted(), others()].concat(), answers()]) {
        // In the order in which they come first.
        let mut alike: Vec<(String, Vec<String>)> = Vec::new();
        for sample in samples {
            let outcomes = outcomes(&node, &sample);
            match alike.iter_mut().find(|(known, _)| *known == outcomes) {
                Some((_, names)) => names.push(sample.name),
                None => alike.push((outcomes, vec![sample.name])),
            }
        }
        for (outcomes, names) in alike {
            table.push_str(&format!("{}\n{outcomes}", names.join("\n")));
        }
    }
    assert!(table == TABLE, "what is right? the table now says:\n{table}");
}

/// A command of streams that is added later is in the range.
#[test]
fn all_commands_of_streams_are_in_the_range() {
    let outside: Vec<_> =
        ROWS.iter().filter(|row| row.name.starts_with("Dcp") && !NUMBERS.contains(&row.opcode)).collect();
    assert!(outside.is_empty(), "{}", outside[0].name);
}
