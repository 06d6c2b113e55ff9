//! What a consumer does in one turn: the other connections of its thread wait for that.

#![allow(missing_docs, reason = "a test is read as a whole")]

#[path = "shared/buckets.rs"]
mod buckets;

use std::sync::Arc;
use std::time::Duration;

use base::{Cas, Seqno, VbId, VbState};
use dcp::{Consumer, ConsumerConfig, Features, Mode, Settled, TURN_BYTES, TURN_MESSAGES};
use engine::Bucket;
use protocol::{Limits, Parsed, RequestParts, Response, opcode, parse, write_request};

const MANY: usize = 100_000;
/// A marker and the answer to a request for a stream come before the changes.
const BEFORE: usize = 8;

struct World {
    bucket: Arc<Bucket>,
    consumer: Consumer,
    /// Of the streams of the vBuckets.
    opaques: Vec<u32>,
}

impl World {
    /// A link that follows vBuckets, each in a snapshot for as many changes as there are.
    fn following(vbuckets: u16) -> World {
        let (_, _, bucket) = buckets::simulated(3, vbuckets, false);
        let config = ConsumerConfig {
            name: "link".to_owned(),
            consumer_name: None,
            buffer_bytes: 64 << 20,
            noop_interval_s: 1,
            features: Features { collections: true, snappy: true, json: true },
            takes_files: false,
            change_streams: false,
        };
        let consumer = Consumer::new(Arc::clone(&bucket), config);
        let mut world = World { bucket, consumer, opaques: Vec::new() };
        for vb in (0..vbuckets).map(VbId) {
            world.bucket.roles().set_vbucket_state(vb, VbState::Replica, None).expect("there is one");
            let mut out = Vec::new();
            world.consumer.want(vb, Mode::Replicate, &mut out);
            let Parsed::Request { request, .. } = parse(&out, Limits::AUTHENTICATED) else {
                panic!("a stream is asked for")
            };
            let opaque = request.opaque;
            world.opaques.push(opaque);
            let log = [9u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
            let mut bytes = Vec::new();
            let opcode = opcode::DCP_STREAM_REQ;
            Response { opcode, opaque, value: &log, ..Response::default() }.write(&mut bytes);
            let extras =
                [&0u64.to_be_bytes()[..], &(MANY as u64).to_be_bytes(), &1u32.to_be_bytes()].concat();
            let parts = RequestParts { opcode: opcode::DCP_SNAPSHOT_MARKER, ..RequestParts::default() };
            world.write(&mut bytes, vb, &RequestParts { extras: &extras, ..parts });
            let settled = world.turn(&mut &bytes[..]);
            assert!(!settled.has_more);
        }
        world
    }

    fn write(&self, bytes: &mut Vec<u8>, vb: VbId, parts: &RequestParts<'_>) {
        let opaque = self.opaques[usize::from(vb.0)];
        assert!(write_request(bytes, &RequestParts { vbucket: vb, opaque, ..*parts }));
    }

    fn mutations(&self, vb: VbId, many: usize, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for seqno in 1..=many as u64 {
            let extras = [&seqno.to_be_bytes()[..], &1u64.to_be_bytes(), &[0; 15]].concat();
            let key = format!("\0{seqno}");
            let parts = RequestParts { opcode: opcode::DCP_MUTATION, cas: Cas(seqno), ..Default::default() };
            self.write(
                &mut bytes,
                vb,
                &RequestParts { extras: &extras, key: key.as_bytes(), value, ..parts },
            );
        }
        bytes
    }

    /// One turn with what came; it goes on behind what is done with.
    fn turn(&mut self, bytes: &mut &[u8]) -> Settled {
        let mut out = Vec::new();
        let consumed = self.consumer.receive(bytes, &mut out).expect("the protocol is kept to");
        *bytes = &bytes[consumed..];
        self.consumer.settle(&mut out).expect("the protocol is kept to")
    }

    fn high(&self, vb: VbId) -> Seqno {
        self.bucket.streams().stream_state(vb).expect("there is one").3
    }
}

#[test]
fn a_hundred_thousand_changes_in_one_read_are_taken_in_turns() {
    let mut world = World::following(1);
    let bytes = world.mutations(VbId(0), MANY, b"");
    let (mut rest, mut turns) = (&bytes[..], 0);
    loop {
        let (before, left) = (world.high(VbId(0)), rest.len());
        let settled = world.turn(&mut rest);
        let applied = world.high(VbId(0)).0 - before.0;
        assert!(applied <= TURN_MESSAGES as u64, "{applied} changes in one turn");
        turns += 1;
        if !settled.has_more {
            break;
        }
        assert!(rest.len() < left, "each turn gets on");
    }
    assert_eq!((rest.len(), world.high(VbId(0))), (0, Seqno(MANY as u64)));
    assert!(turns >= MANY / TURN_MESSAGES, "{turns} turns");
}

#[test]
fn what_a_quiet_producer_sent_is_acknowledged_in_the_end() {
    let mut world = World::following(1);
    let bytes = world.mutations(VbId(0), 10, b"");
    world.turn(&mut &bytes[..]);
    let (held, start) = (world.consumer.unacknowledged_bytes(), world.bucket.env().clock.monotonic());
    assert!(held >= bytes.len() as u64, "far less than a fifth of the buffer");
    let mut after = |ms| {
        world.consumer.heard();
        let next = world.consumer.tick(start + Duration::from_millis(ms), &mut Vec::new());
        next.expect("the producer lives");
        (world.consumer.unacknowledged_bytes(), world.consumer.counts().acknowledged_bytes)
    };
    assert_eq!(after(4_999), (held, 0));
    assert_eq!(after(5_000), (0, held));
}

#[test]
fn large_changes_end_a_turn_by_their_bytes() {
    let mut world = World::following(1);
    let value = vec![b'x'; TURN_BYTES as usize / 4];
    let bytes = world.mutations(VbId(0), 20, &value);
    let mut rest = &bytes[..];
    let mut by_turn = Vec::new();
    while by_turn.last() != Some(&0) {
        let before = world.high(VbId(0)).0;
        world.turn(&mut rest);
        by_turn.push(world.high(VbId(0)).0 - before);
    }
    assert_eq!(by_turn, [4, 4, 4, 4, 4, 0]);
}

#[test]
fn messages_that_bring_no_change_end_a_turn_too() {
    let mut world = World::following(1);
    let mut noop = Vec::new();
    write_request(&mut noop, &RequestParts { opcode: opcode::DCP_NOOP, ..RequestParts::default() });
    let mut answer = Vec::new();
    Response { opcode: opcode::DCP_BUFFER_ACK, ..Response::default() }.write(&mut answer);
    let mut stray = Vec::new();
    world.opaques.push(u32::MAX / 2);
    world.write(
        &mut stray,
        VbId(1),
        &RequestParts { opcode: opcode::DCP_SEQNO_ADVANCED, extras: &[0; 8], ..RequestParts::default() },
    );
    for message in [noop, answer, stray] {
        let bytes = message.repeat(MANY);
        let (mut rest, mut turns) = (&bytes[..], 0);
        while !rest.is_empty() {
            let before = rest.len();
            assert!(world.turn(&mut rest).has_more || rest.is_empty());
            assert!(before - rest.len() <= TURN_MESSAGES * message.len(), "{} bytes", before - rest.len());
            turns += 1;
        }
        assert!(turns >= MANY / TURN_MESSAGES, "{turns} turns");
    }
}

#[test]
fn what_piled_up_for_one_vbucket_leaves_turns_to_the_others() {
    let mut world = World::following(4);
    let mut out = Vec::new();
    // Received and not applied, as when the memory was short.
    for vb in (0..3).map(VbId) {
        let bytes = world.mutations(vb, if vb == VbId(0) { MANY / 4 } else { BEFORE }, b"");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let consumed = world.consumer.receive(rest, &mut out).expect("the protocol is kept to");
            rest = &rest[consumed..];
        }
    }
    let highs = |world: &World| [0, 1, 2].map(|vb| world.high(VbId(vb)).0);
    let mut turns = 0;
    let all = loop {
        let before: u64 = highs(&world).iter().sum();
        let settled = world.turn(&mut &b""[..]);
        turns += 1;
        let after = highs(&world);
        let applied = after.iter().sum::<u64>() - before;
        assert!(applied < 2 * TURN_MESSAGES as u64, "{applied} changes in one turn");
        if turns == 2 {
            assert_eq!(after[1..], [BEFORE as u64; 2], "they come before the rest of the first: {after:?}");
            assert!(after[0] < (MANY / 4) as u64);
        }
        if !settled.has_more {
            break after;
        }
    };
    assert_eq!(all, [(MANY / 4) as u64, BEFORE as u64, BEFORE as u64]);
    assert!(turns >= MANY / 4 / TURN_MESSAGES / 2, "{turns} turns");
}
