//! Each message that a consumer's link can be sent, in each state of its stream, and what comes of it, compared with the
//! written table `consumer_answers.txt`.
//!
//! The original answers a message of a stream with a status where something is wrong with it, and its producer ends the
//! stream or the connection for that: 0x01 without such a stream, 0x04 for what is malformed, 0x22 for a seqno that does
//! not rise (`docs/dcp/documentation/commands/*.md`). A link sends no such answers: it passes over what may be left of
//! a stream that it has closed, and closes the connection for what no producer that keeps to the protocol sends, so that
//! nothing of it is applied and everything is asked for again.

#![allow(missing_docs, reason = "a test is read as a whole")]

#[path = "shared/buckets.rs"]
mod buckets;

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Cas, VbId, VbState};
use dcp::{Consumer, ConsumerConfig, Disconnect, Features, Mode, Stage};
use engine::Bucket;
use protocol::{
    FrameInfos, Limits, Parsed, ParsedResponse, RequestParts, Response, Status, opcode, parse,
    parse_response, write_request,
};

const VB: VbId = VbId(0);
const TABLE: &str = include_str!("consumer_answers.txt");
/// Where the stream of a world is that follows: a document at 1, a prepare of `p` at 2, in a snapshot up to 9.
const APPLIED: u64 = 2;
const SNAPSHOT_END: u64 = 9;

/// What the vBucket, its stream and the message's place are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum State {
    NoStream,
    Asked,
    OtherOpaque,
    NoVbucket,
    NoSnapshot,
    Fits,
    NotRising,
    BehindSnapshot,
    Active,
    Dead,
    Deleted,
    TakesOver,
}
use State::*;

const STATES: [State; 12] = [
    NoStream,
    Asked,
    OtherOpaque,
    NoVbucket,
    NoSnapshot,
    Fits,
    NotRising,
    BehindSnapshot,
    Active,
    Dead,
    Deleted,
    TakesOver,
];

/// A message; its seqno stands in the first eight bytes of the extras, or behind `seqno_at`.
#[derive(Clone)]
struct Sample {
    name: &'static str,
    opcode: u8,
    extras: Vec<u8>,
    seqno_at: Option<usize>,
    key: &'static [u8],
    value: Vec<u8>,
    datatype: u8,
    cas: u64,
    frame_infos: Vec<u8>,
}

fn sample(name: &'static str, opcode: u8, extras: Vec<u8>) -> Sample {
    Sample {
        name,
        opcode,
        extras,
        seqno_at: None,
        key: b"",
        value: Vec::new(),
        datatype: 0,
        cas: 0,
        frame_infos: Vec::new(),
    }
}

/// A change of a document: its seqno comes first.
fn change(name: &'static str, opcode: u8, extras: &[&[u8]]) -> Sample {
    let extras = [&[0; 8][..], &extras.concat()].concat();
    Sample { seqno_at: Some(0), key: b"\0k", cas: 5, ..sample(name, opcode, extras) }
}

fn rev() -> [u8; 8] {
    1u64.to_be_bytes()
}

fn completion(name: &'static str, opcode: u8, key: &'static [u8]) -> Sample {
    let extras = [APPLIED.to_be_bytes(), [0; 8]].concat();
    Sample { seqno_at: Some(8), key, ..sample(name, opcode, extras) }
}

fn marker(start: u64, end: u64, flags: u32) -> Vec<u8> {
    [&start.to_be_bytes()[..], &end.to_be_bytes(), &flags.to_be_bytes()].concat()
}

fn prepare(level: u8) -> Sample {
    change("prepare", opcode::DCP_PREPARE, &[&rev(), &[0; 13], &[0, level]])
}

/// What a producer sends, and what it never sends to a consumer.
fn samples() -> Vec<Sample> {
    let mutation = change("mutation", opcode::DCP_MUTATION, &[&rev(), &[0; 15]]);
    let event = [0u64.to_be_bytes().to_vec(), 9u32.to_be_bytes().to_vec(), 8u32.to_be_bytes().to_vec()];
    let named = |name, sample: &Sample| Sample { name, ..sample.clone() };
    let more = [marker(SNAPSHOT_END + 1, 20, 1), vec![0; 16]].concat();
    vec![
        sample("snapshot marker", opcode::DCP_SNAPSHOT_MARKER, marker(SNAPSHOT_END + 1, 20, 1)),
        Sample { value: more, ..sample("snapshot marker, version 2", opcode::DCP_SNAPSHOT_MARKER, vec![0]) },
        sample("snapshot marker, backwards", opcode::DCP_SNAPSHOT_MARKER, marker(20, SNAPSHOT_END + 1, 1)),
        sample("snapshot marker, not behind the last", opcode::DCP_SNAPSHOT_MARKER, marker(0, 1, 1)),
        sample("snapshot marker, of no kind", opcode::DCP_SNAPSHOT_MARKER, marker(SNAPSHOT_END + 1, 20, 0)),
        mutation.clone(),
        Sample { value: b"{}".to_vec(), datatype: 1, ..named("mutation, JSON", &mutation) },
        Sample { value: b"\xff\xff".to_vec(), datatype: 2, ..named("mutation, no Snappy", &mutation) },
        Sample { value: b"\xff\xff".to_vec(), datatype: 4, ..named("mutation, no xattrs", &mutation) },
        Sample { datatype: 0x80, ..named("mutation, unknown datatype", &mutation) },
        Sample { key: b"\xff", ..named("mutation, bad collection", &mutation) },
        Sample { key: b"\x55k", ..named("mutation, unknown collection", &mutation) },
        change("deletion", opcode::DCP_DELETION, &[&rev(), &[0; 2]]),
        change("deletion, version 2", opcode::DCP_DELETION, &[&rev(), &[0; 5]]),
        change("expiration", opcode::DCP_EXPIRATION, &[&rev(), &[0; 4]]),
        prepare(1),
        Sample { name: "prepare, unknown level", ..prepare(9) },
        completion("commit", opcode::DCP_COMMIT, b"\0p"),
        completion("commit of what is not prepared", opcode::DCP_COMMIT, b"\0other"),
        completion("abort", opcode::DCP_ABORT, b"\0p"),
        completion("abort of what is not prepared", opcode::DCP_ABORT, b"\0other"),
        Sample {
            key: b"named",
            value: event.concat(),
            ..change("system event", opcode::DCP_SYSTEM_EVENT, &[&[0, 0, 0, 0, 0]])
        },
        Sample {
            key: b"named",
            ..change("system event, unknown", opcode::DCP_SYSTEM_EVENT, &[&[0, 0, 0, 9, 0]])
        },
        Sample { seqno_at: Some(0), ..sample("seqno advanced", opcode::DCP_SEQNO_ADVANCED, vec![0; 8]) },
        sample("out of order", opcode::DCP_OSO_SNAPSHOT, vec![0, 0, 0, 1]),
        sample("set vBucket state, active", opcode::DCP_SET_VBUCKET_STATE, vec![1]),
        sample("set vBucket state, pending", opcode::DCP_SET_VBUCKET_STATE, vec![3]),
        sample("set vBucket state, dead", opcode::DCP_SET_VBUCKET_STATE, vec![4]),
        sample("set vBucket state, unknown", opcode::DCP_SET_VBUCKET_STATE, vec![9]),
        sample("stream end", opcode::DCP_STREAM_END, vec![0; 4]),
        sample("stream end, unknown reason", opcode::DCP_STREAM_END, vec![0, 0, 0, 0x7f]),
        sample("noop", opcode::DCP_NOOP, vec![]),
        sample("flush", 0x5a, vec![]),
        sample("open", opcode::DCP_OPEN, vec![0; 8]),
        sample("add stream", opcode::DCP_ADD_STREAM, vec![0; 4]),
        sample("close stream", opcode::DCP_CLOSE_STREAM, vec![]),
        sample("stream request", opcode::DCP_STREAM_REQ, vec![0; 48]),
        sample("get failover log", opcode::DCP_GET_FAILOVER_LOG, vec![]),
        sample("control", opcode::DCP_CONTROL, vec![]),
        sample("buffer acknowledgement", opcode::DCP_BUFFER_ACK, vec![0; 4]),
        sample("seqno acknowledged", opcode::DCP_SEQNO_ACKNOWLEDGED, vec![0; 8]),
        sample("get", opcode::GET, vec![]),
    ]
}

/// A consumer of a bucket, and its stream.
struct World {
    bucket: Arc<Bucket>,
    consumer: Consumer,
    opaque: u32,
}

/// Requests that a consumer has sent: opcode and opaque.
fn requests(mut bytes: &[u8]) -> Vec<(u8, u32)> {
    let mut found = Vec::new();
    while let Parsed::Request { request, total_len } = parse(bytes, Limits::AUTHENTICATED) {
        found.push((request.opcode, request.opaque));
        bytes = &bytes[total_len..];
    }
    found
}

impl World {
    fn new(state: State) -> World {
        let (_, _, bucket) = buckets::simulated(3, 2, false);
        bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("there is one");
        let config = ConsumerConfig {
            name: "link".to_owned(),
            consumer_name: Some("to".to_owned()),
            buffer_bytes: 1 << 20,
            noop_interval_s: 1,
            features: Features { collections: true, snappy: true, json: true },
            takes_files: false,
            change_streams: false,
        };
        let consumer = Consumer::new(Arc::clone(&bucket), config);
        let mut world = World { bucket, consumer, opaque: 0 };
        if state == NoStream {
            return world;
        }
        let mut out = Vec::new();
        let mode = if state == TakesOver { Mode::TakeOver } else { Mode::Replicate };
        world.consumer.want(VB, mode, &mut out);
        let asked = requests(&out);
        let is_request = |(opcode, _): &&(u8, u32)| *opcode == opcode::DCP_STREAM_REQ;
        world.opaque = asked.iter().find(is_request).expect("it is asked for").1;
        if state == Asked {
            return world;
        }
        let log = [9u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
        let mut answer = Vec::new();
        let (opcode, opaque) = (opcode::DCP_STREAM_REQ, world.opaque);
        Response { opcode, opaque, value: &log, ..Response::default() }.write(&mut answer);
        world.take(&answer).expect("an answer");
        if state != NoSnapshot {
            world.begin(state);
        }
        world
    }

    /// A snapshot, a document and a prepare; then the vBucket is given its state.
    fn begin(&mut self, state: State) {
        let snapshot = sample("", opcode::DCP_SNAPSHOT_MARKER, marker(0, SNAPSHOT_END, 1));
        let document = change("", opcode::DCP_MUTATION, &[&rev(), &[0; 15]]);
        let prepared = Sample { key: b"\0p", ..prepare(1) };
        for (sample, seqno) in [(snapshot, 0), (document, 1), (prepared, APPLIED)] {
            let bytes = self.bytes(&sample, self.opaque, VB, seqno);
            self.take(&bytes).expect("it is well formed");
        }
        let become_one =
            |state| self.bucket.roles().set_vbucket_state(VB, state, None).expect("there is one");
        match state {
            Active => become_one(VbState::Active),
            Dead => become_one(VbState::Dead),
            TakesOver => become_one(VbState::Pending),
            Deleted => {
                become_one(VbState::Dead);
                self.bucket.roles().delete_vbucket(VB).expect("it may go").expect("the disk works");
            }
            _ => {}
        }
    }

    fn bytes(&self, sample: &Sample, opaque: u32, vbucket: VbId, seqno: u64) -> Vec<u8> {
        let mut extras = sample.extras.clone();
        if let Some(place) = sample.seqno_at.and_then(|at| extras.get_mut(at..at + 8)) {
            place.copy_from_slice(&seqno.to_be_bytes());
        }
        let mut bytes = Vec::new();
        let parts = RequestParts {
            opcode: sample.opcode,
            datatype: sample.datatype,
            vbucket,
            opaque,
            cas: Cas(sample.cas),
            frame_infos: &sample.frame_infos,
            extras: &extras,
            key: sample.key,
            value: &sample.value,
        };
        assert!(write_request(&mut bytes, &parts));
        bytes
    }

    /// Receives bytes and applies them; what the consumer sends for it.
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Disconnect> {
        let mut out = Vec::new();
        assert_eq!(self.consumer.receive(bytes, &mut out)?, bytes.len());
        self.consumer.settle(&mut out)?;
        Ok(out)
    }

    /// What comes of a message.
    fn outcome(&mut self, sample: &Sample, state: State) -> String {
        let opaque = if state == OtherOpaque { self.opaque + 1 } else { self.opaque };
        let vbucket = if state == NoVbucket { VbId(7) } else { VB };
        let seqno = match state {
            NoSnapshot => 1,
            NotRising => APPLIED,
            BehindSnapshot => SNAPSHOT_END + 1,
            _ => APPLIED + 1,
        };
        let before = self.consumer.counts();
        let bytes = self.bytes(sample, opaque, vbucket, seqno);
        let out = match self.take(&bytes) {
            Ok(out) => out,
            Err(Disconnect::Violation(_, what)) => return format!("closes: {what}"),
            Err(disconnect) => return format!("closes: {disconnect}"),
        };
        let after = self.consumer.counts();
        let progress = self.consumer.progress().next();
        if after.strays > before.strays {
            return "is passed over".to_owned();
        }
        if let Some(trouble) = progress.filter(|it| it.stage == Stage::Pausing).and_then(|it| it.trouble) {
            return format!("ends the stream: {trouble}");
        }
        if let ParsedResponse::Response { response, .. } = parse_response(&out, 1 << 20) {
            assert_eq!((response.opcode, response.status()), (sample.opcode, Some(Status::Success)));
            return "is answered with success".to_owned();
        }
        let is_applied = after.changes > before.changes;
        if is_applied { "is applied".to_owned() } else { "is taken".to_owned() }
    }
}

/// A message whose parts have other lengths than they should, or with a part that it never has.
fn malformed(sample: &Sample) -> Vec<(&'static str, Sample)> {
    let mut all =
        vec![("LongExtras", Sample { extras: [&sample.extras[..], &[0]].concat(), ..sample.clone() })];
    if let Some((_, shorter)) = sample.extras.split_last() {
        all.push(("ShortExtras", Sample { extras: shorter.to_vec(), ..sample.clone() }));
    }
    let key = if sample.key.is_empty() { &b"\0k"[..] } else { b"" };
    all.push((if key.is_empty() { "NoKey" } else { "AKey" }, Sample { key, ..sample.clone() }));
    let value = if sample.value.is_empty() { b"value".to_vec() } else { Vec::new() };
    all.push((if value.is_empty() { "NoValue" } else { "AValue" }, Sample { value, ..sample.clone() }));
    let mut frame_infos = Vec::new();
    FrameInfos { stream_id: Some(1), ..FrameInfos::default() }.encode(&mut frame_infos);
    all.push(("AStreamId", Sample { frame_infos, ..sample.clone() }));
    all
}

#[test]
fn each_message_has_the_outcome_of_the_table() {
    let mut table = String::new();
    for sample in samples() {
        let mut by_outcome = BTreeMap::<String, Vec<String>>::new();
        let mut note = |outcome, state: String| by_outcome.entry(outcome).or_default().push(state);
        for state in STATES {
            note(World::new(state).outcome(&sample, state), format!("{state:?}"));
        }
        for (name, malformed) in malformed(&sample) {
            note(World::new(Fits).outcome(&malformed, Fits), name.to_owned());
        }
        table.push_str(&format!("{}\n", sample.name));
        for (outcome, states) in by_outcome {
            table.push_str(&format!("  {}\n    {outcome}\n", states.join(" ")));
        }
    }
    assert!(table == TABLE, "what is right? the table now says:\n{table}");
}
