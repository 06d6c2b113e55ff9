//! A producer and a consumer, message by message: following, handovers that break off between any two messages,
//! producers that break the rules.

#![allow(missing_docs, reason = "a test is read as a whole")]

#[path = "shared/buckets.rs"]
mod buckets;
mod pair;
#[path = "shared/served.rs"]
mod served;

use std::time::Duration;

use base::{Cas, DocKey, DurabilityLevel, Seqno, VbId, VbState};
use dcp::{Consumer, Disconnect, Mode, Stage};
use engine::Durable;
use pair::{Node, VBUCKETS, Wire, config};
use protocol::dcp::{EndReason, Marker, Message, Mutation, What};
use protocol::{RequestParts, Response, Status, opcode, write_request};
use served::FEATURES;
use std::sync::Arc;

const VB: VbId = VbId(0);

fn nodes() -> (Node, Node) {
    let (from, to) = (Node::new(1), Node::new(2));
    to.set_roles(VbState::Replica);
    (from, to)
}

fn stage(consumer: &Consumer, vb: VbId) -> Option<Stage> {
    consumer.progress().find(|progress| progress.vb == vb).map(|progress| progress.stage)
}

#[test]
fn a_consumer_follows_what_is_and_what_comes() {
    let (from, to) = nodes();
    for at in 0..50 {
        from.set(VbId(at % VBUCKETS), &format!("k{at}"), "before").expect("stored");
    }
    let mut wire = Wire::connect(&from, &to);
    (0..VBUCKETS).for_each(|vb| wire.tell(|consumer, out| consumer.want(VbId(vb), Mode::Replicate, out)));
    wire.run().expect("a producer that keeps to the rules");
    for at in 0..50 {
        from.set(VbId(at % VBUCKETS), &format!("k{at}"), "later").expect("stored");
    }
    wire.run().expect("a producer that keeps to the rules");
    for at in 0..50 {
        assert_eq!(to.get(VbId(at % VBUCKETS), &format!("k{at}")), Some(b"later".to_vec()), "k{at}");
    }
    assert!((0..VBUCKETS).all(|vb| to.high(VbId(vb)) == from.high(VbId(vb))));
    assert_eq!((wire.consumer.counts().changes, wire.consumer.counts().ends), (100, 0));
    // Given up, nothing more is taken.
    from.set(VB, "k0", "too late").expect("stored");
    assert!(wire.deliver_to_producer(), "it is on its way");
    wire.tell(|consumer, out| consumer.drop(VB, out));
    wire.run().expect("what is on its way is passed over");
    assert_eq!(to.get(VB, "k0"), Some(b"later".to_vec()));
    assert!(wire.consumer.counts().strays > 0);
}

/// A handover that breaks off after so many messages, and then is tried again; whether it did break off.
fn break_off_after(messages: usize) -> bool {
    let (from, to) = nodes();
    to.set_roles(VbState::Pending);
    for at in 0..5 {
        from.set(VB, &format!("k{at}"), "value").expect("stored");
    }
    let mut wire = Wire::connect(&from, &to);
    wire.tell(|consumer, out| consumer.want(VB, Mode::TakeOver, out));
    let broke = wire.run_for(messages).expect("a producer that keeps to the rules");
    drop(wire);
    // Never two that take writes.
    let roles = (from.role(VB), to.role(VB));
    assert!(roles.0 != Some(VbState::Active) || roles.1 != Some(VbState::Active), "{messages}: {roles:?}");
    // Whoever is active takes one more write.
    let writer = [&from, &to].into_iter().find(|node| node.role(VB) == Some(VbState::Active));
    let wrote = writer.map(|node| node.set(VB, "last", "value").expect("it is active")).is_some();
    if to.role(VB) != Some(VbState::Active) {
        let mut wire = Wire::connect(&from, &to);
        wire.tell(|consumer, out| consumer.want(VB, Mode::TakeOver, out));
        wire.run().expect("a producer that keeps to the rules");
        assert_eq!(stage(&wire.consumer, VB), Some(Stage::TakenOver), "broken off after {messages}");
    }
    assert_eq!((from.role(VB), to.role(VB)), (Some(VbState::Dead), Some(VbState::Active)), "{messages}");
    for at in 0..5 {
        assert_eq!(to.get(VB, &format!("k{at}")), Some(b"value".to_vec()), "{messages}");
    }
    assert_eq!(to.get(VB, "last").is_some(), wrote, "{messages}");
    broke
}

#[test]
fn a_handover_may_break_off_between_any_two_messages() {
    let messages = (0..).take_while(|messages| break_off_after(*messages)).count();
    assert!(messages > 20, "only {messages} messages were tried");
}

#[test]
fn what_waits_for_the_disk_goes_over_with_all_that_is_behind_it() {
    let (from, to) = nodes();
    to.set_roles(VbState::Pending);
    from.set(VB, "before", "value").expect("stored");
    let level = DurabilityLevel::PersistToMajority;
    let durable = Durable { level, timeout: Duration::from_secs(10) };
    let request = buckets::set(DocKey::new(b"durable"), b"value");
    from.bucket.documents().durably(Some(durable)).store(VB, &request, from.bucket.now()).expect("prepared");
    from.set(VB, "behind", "value").expect("stored");
    let mut wire = Wire::connect(&from, &to);
    wire.tell(|consumer, out| consumer.want(VB, Mode::TakeOver, out));
    wire.run().expect("a producer that keeps to the rules");
    assert_eq!((from.role(VB), to.role(VB)), (Some(VbState::Dead), Some(VbState::Pending)));
    assert_eq!((to.get(VB, "durable"), to.get(VB, "behind")), (None, None));
    assert!(from.bucket.flushing().flush_all());
    wire.run().expect("a producer that keeps to the rules");
    assert_eq!(stage(&wire.consumer, VB), Some(Stage::TakenOver));
    for key in ["before", "durable", "behind"] {
        assert_eq!(to.get(VB, key), Some(b"value".to_vec()), "{key}");
    }
}

#[test]
fn one_that_is_done_is_not_given_away_again() {
    let (from, to) = nodes();
    to.set_roles(VbState::Pending);
    from.set(VB, "k", "value").expect("stored");
    let mut wire = Wire::connect(&from, &to);
    wire.tell(|consumer, out| consumer.want(VB, Mode::TakeOver, out));
    wire.run().expect("a producer that keeps to the rules");
    let blocked = wire.consumer.progress().next().and_then(|progress| progress.blocked_for);
    assert!(blocked.is_some());
    // A third node comes too late.
    let third = Node::new(3);
    third.set_roles(VbState::Pending);
    let mut wire = Wire::connect(&from, &third);
    wire.tell(|consumer, out| consumer.want(VB, Mode::TakeOver, out));
    wire.run().expect("a refusal is no violation");
    assert_eq!((stage(&wire.consumer, VB), third.role(VB)), (Some(Stage::Pausing), Some(VbState::Pending)));
}

/// The process of the node that was active was started again: the node that takes over has more, and keeps it.
#[test]
fn a_replica_hands_nothing_over() {
    let (from, to) = nodes();
    to.set_roles(VbState::Active);
    for at in 0..3 {
        to.set(VB, &format!("k{at}"), "value").expect("stored");
    }
    to.set_roles(VbState::Pending);
    from.set_roles(VbState::Replica);
    let mut wire = Wire::connect(&from, &to);
    wire.tell(|consumer, out| consumer.want(VB, Mode::TakeOver, out));
    wire.run().expect("a refusal is no violation");
    assert_eq!((stage(&wire.consumer, VB), to.role(VB)), (Some(Stage::Pausing), Some(VbState::Pending)));
    assert_eq!(wire.consumer.counts().rollbacks, 0);
    assert!(to.high(VB) > Seqno(0), "it has all that it had");
}

/// A consumer that streams vBucket 0, and the opaque of its stream; its producer is played by the test.
fn streaming(to: &Node, mode: Mode) -> (Consumer, u32) {
    let mut consumer = Consumer::new(Arc::clone(&to.bucket), config());
    let mut out = Vec::new();
    consumer.want(VB, mode, &mut out);
    let log = protocol::dcp::FailoverLog::encode([(base::VbUuid(7), Seqno(0))]);
    let mut answer = Vec::new();
    Response { opcode: opcode::DCP_STREAM_REQ, value: &log, ..Response::default() }.write(&mut answer);
    consumer.receive(&answer, &mut out).expect("an acceptance");
    consumer.settle(&mut out).expect("an acceptance");
    assert_eq!(stage(&consumer, VB), Some(Stage::Streaming));
    (consumer, 0)
}

fn message(what: What) -> Message<'static> {
    Message { vb: VB, opaque: 0, stream_id: None, cas: Cas(1), datatype: 0, key: b"\0k", value: b"v", what }
}

fn marker(start: u64, end: u64, flags: u32) -> Message<'static> {
    let marker = Marker { start: Seqno(start), end: Seqno(end), flags, more: None };
    Message { key: b"", value: b"", ..message(What::Marker(marker)) }
}

fn mutation(seqno: u64) -> Message<'static> {
    message(What::Mutation(Mutation {
        by_seqno: Seqno(seqno),
        rev_seqno: base::RevSeqno(1),
        ..Mutation::default()
    }))
}

fn told(consumer: &mut Consumer, messages: &[Message<'_>]) -> Result<(), Disconnect> {
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    messages.iter().for_each(|message| message.write(&mut bytes));
    consumer.receive(&bytes, &mut out)?;
    consumer.settle(&mut out).map(drop)
}

#[test]
fn a_producer_that_breaks_the_rules_is_left_and_nothing_of_it_is_applied() {
    let memory = Marker::MEMORY;
    let wrong: Vec<(&str, Vec<Message<'static>>)> = vec![
        ("without a snapshot", vec![mutation(1)]),
        ("does not rise", vec![marker(0, 9, memory), mutation(3), mutation(3)]),
        ("outside of its snapshot", vec![marker(0, 2, memory), mutation(3)]),
        ("neither from memory nor from disk", vec![marker(0, 2, 0)]),
        ("cannot be", vec![marker(5, 2, memory)]),
        (
            "not asked for",
            vec![Message { key: b"", value: b"", ..message(What::SetVbucketState(VbState::Active)) }],
        ),
        ("out of order", vec![Message { key: b"", value: b"", ..message(What::OutOfOrder(true)) }]),
        ("not for documents", vec![marker(0, 9, memory), Message { key: b"\x01k", ..mutation(1) }]),
        ("a length that no", vec![marker(0, 9, memory), Message { key: b"\0", ..mutation(1) }]),
        ("datatype", vec![marker(0, 9, memory), Message { datatype: 0x40, ..mutation(1) }]),
        ("no document has", vec![marker(0, 9, memory), Message { datatype: 2, ..mutation(1) }]),
        ("no document has", vec![marker(0, 9, memory), Message { cas: Cas(0), ..mutation(1) }]),
        ("stream id", vec![Message { stream_id: Some(3), ..mutation(1) }]),
        ("makes no sense", vec![marker(0, 9, memory), message(What::SystemEvent(Seqno(1), 99, 0))]),
    ];
    for (what, messages) in wrong {
        let (_, to) = nodes();
        let (mut consumer, _) = streaming(&to, Mode::Replicate);
        let error = told(&mut consumer, &messages).expect_err(what);
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert!(to.high(VB) <= Seqno(3), "{what}");
    }
}

#[test]
fn an_ended_stream_is_asked_for_again_after_a_pause_and_a_silent_producer_is_dead() {
    let (_, to) = nodes();
    let (mut consumer, _) = streaming(&to, Mode::Replicate);
    let end = Message { key: b"", value: b"", ..message(What::End(EndReason::TooSlow)) };
    told(&mut consumer, &[end]).expect("it may end");
    assert_eq!(stage(&consumer, VB), Some(Stage::Pausing));
    let mut out = Vec::new();
    let now = to.env.clock.monotonic();
    let next = consumer.tick(now, &mut out).expect("it was heard");
    assert!(next > now, "not at once");
    to.advance(Duration::from_millis(500));
    out.clear();
    consumer.tick(to.env.clock.monotonic(), &mut out).expect("not silent for long");
    assert_eq!(stage(&consumer, VB), Some(Stage::Asked));
    assert_eq!(out[1], opcode::DCP_STREAM_REQ);
    to.advance(Duration::from_secs(2));
    assert_eq!(consumer.tick(to.env.clock.monotonic(), &mut out), Err(Disconnect::Silent));
}

#[test]
fn a_producer_without_end_to_its_rollbacks_is_asked_later() {
    let (_, to) = nodes();
    let mut consumer = Consumer::new(Arc::clone(&to.bucket), config());
    let mut out = Vec::new();
    consumer.want(VB, Mode::Replicate, &mut out);
    let rollback = |opaque, to: u64| {
        let (mut answer, value) = (Vec::new(), to.to_be_bytes());
        let (opcode, status) = (opcode::DCP_STREAM_REQ, Status::Rollback);
        Response { opcode, opaque, status, value: &value, ..Response::default() }.write(&mut answer);
        answer
    };
    // To where it never was.
    consumer.receive(&rollback(0, 5), &mut out).expect("an answer");
    assert_eq!(stage(&consumer, VB), Some(Stage::Pausing));
    consumer.want(VB, Mode::Replicate, &mut out);
    for opaque in 1.. {
        consumer.receive(&rollback(opaque, 0), &mut out).expect("an answer");
        let settled = consumer.settle(&mut out).expect("an answer");
        if settled.rollbacks.is_empty() {
            assert!(opaque > 10, "{opaque}");
            break;
        }
        assert_eq!(stage(&consumer, VB), Some(Stage::RollingBack));
        consumer.rolled_back(VB, Ok(Seqno(0)), &mut out);
    }
    assert_eq!(stage(&consumer, VB), Some(Stage::Pausing));
}

#[test]
fn a_producer_that_ignores_the_buffer_is_left() {
    let (_, to) = nodes();
    let (mut consumer, _) = streaming(&to, Mode::Replicate);
    let value = vec![0; 1 << 20];
    let mut outcome = Ok(());
    // Nothing is settled, so nothing is acknowledged.
    for seqno in 1..100 {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        marker(seqno, seqno, Marker::MEMORY).write(&mut bytes);
        Message { value: &value, ..mutation(seqno) }.write(&mut bytes);
        outcome = consumer.receive(&bytes, &mut out).map(drop);
        if outcome.is_err() {
            break;
        }
    }
    assert_eq!(outcome, Err(Disconnect::Overrun));
}

/// Whatever a producer sends, the consumer takes it or leaves, and never panics.
#[test]
fn any_bytes_are_taken_or_refused() {
    let mut seed = 7_u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for _ in 0..3_000 {
        let (_, to) = nodes();
        let mode = if next() % 2 == 0 { Mode::Replicate } else { Mode::TakeOver };
        let (mut consumer, _) = streaming(&to, mode);
        let mut bytes = Vec::new();
        for at in 1..=next() % 8 {
            let valid = [
                marker(at, at + next() % 4, [Marker::MEMORY, Marker::DISK, 0xf][next() as usize % 3]),
                mutation(at),
                Message { key: b"", value: b"", ..message(What::SetVbucketState(VbState::Pending)) },
                Message { value: b"", ..message(What::Commit(Seqno(at), Seqno(at + 1))) },
                Message { key: b"", value: b"", ..message(What::SeqnoAdvanced(Seqno(at))) },
            ];
            valid[next() as usize % valid.len()].write(&mut bytes);
            let parts = RequestParts { opcode: 0x50 + (next() % 0x18) as u8, ..RequestParts::default() };
            if next() % 6 == 0 {
                assert!(write_request(&mut bytes, &parts));
            }
        }
        for _ in 0..next() % 3 {
            if !bytes.is_empty() {
                let at = next() as usize % bytes.len();
                bytes[at] = next() as u8;
            }
        }
        let mut out = Vec::new();
        if consumer.receive(&bytes, &mut out).is_ok() {
            let _ = consumer.settle(&mut out);
        }
        assert!(FEATURES.collections && consumer.unacknowledged_bytes() <= bytes.len() as u64);
    }
}
