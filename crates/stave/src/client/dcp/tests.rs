//! A session against a server of a few lines that sends what it is told to, byte by byte if need be.

use std::ops::ControlFlow;

use base::{Cas, RevSeqno, Seqno, VbId, VbUuid};
use protocol::dcp::{EndReason, FailoverLog, Marker, Message, Mutation, OpenFlags, StreamRequest, What};
use protocol::{Limits, Parsed, RequestParts, Response, Status, opcode, parse, write_request};

use super::*;
use crate::client::ClientError;

const VB: VbId = VbId(3);
const BUFFER_BYTES: u32 = 400;

/// The other end: what the session sent, and what it will be sent.
#[derive(Default)]
struct Fake {
    bytes: Vec<u8>,
}

/// What a session sent.
#[derive(Debug, PartialEq)]
enum Sent {
    Open(String, u32),
    Control(String, String),
    Request(u32, StreamRequest),
    Acknowledged(u32),
    NoopAnswer(u32),
    Close(u32),
}

impl Fake {
    fn sent(session: &mut Session) -> Vec<Sent> {
        let bytes = std::mem::take(session.to_send());
        let mut rest = &bytes[..];
        let mut all = Vec::new();
        while !rest.is_empty() {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let total = match parse(rest, Limits::AUTHENTICATED) {
                Parsed::Answer { answer, total_len } => {
                    assert_eq!(answer.opcode, opcode::DCP_NOOP);
                    all.push(Sent::NoopAnswer(answer.opaque));
                    total_len
                }
                Parsed::Request { request, total_len } => {
                    all.push(match request.opcode {
                        opcode::DCP_OPEN => {
                            Sent::Open(text(request.key), OpenFlags::decode(request.extras).unwrap().0)
                        }
                        opcode::DCP_CONTROL => Sent::Control(text(request.key), text(request.value)),
                        opcode::DCP_STREAM_REQ => {
                            assert_eq!(u32::from(request.vbucket.0), request.opaque);
                            Sent::Request(request.opaque, StreamRequest::decode(request.extras).unwrap())
                        }
                        opcode::DCP_CLOSE_STREAM => Sent::Close(request.vbucket.0.into()),
                        opcode::DCP_BUFFER_ACK => {
                            Sent::Acknowledged(u32::from_be_bytes(request.extras.try_into().unwrap()))
                        }
                        other => panic!("0x{other:02x}"),
                    });
                    total_len
                }
                other => panic!("{other:?}"),
            };
            rest = &rest[total..];
        }
        all
    }

    fn accepts(&mut self, vb: VbId, uuid: u64) {
        let log = FailoverLog::encode([(VbUuid(uuid), Seqno(0))]);
        let (opcode, opaque) = (opcode::DCP_STREAM_REQ, vb.0.into());
        Response { opcode, opaque, value: &log, ..Response::default() }.write(&mut self.bytes);
    }

    fn refuses(&mut self, status: Status, value: &[u8]) {
        let (opcode, opaque) = (opcode::DCP_STREAM_REQ, VB.0.into());
        Response { opcode, opaque, status, value, ..Response::default() }.write(&mut self.bytes);
    }

    fn closes(&mut self) {
        let (opcode, opaque) = (opcode::DCP_CLOSE_STREAM, 0x0200_0000 | u32::from(VB.0));
        Response { opcode, opaque, ..Response::default() }.write(&mut self.bytes);
    }

    fn sends(&mut self, what: What, key: &str) -> usize {
        let message = Message {
            vb: VB,
            opaque: VB.0.into(),
            stream_id: None,
            cas: Cas(1),
            datatype: 0,
            key: key.as_bytes(),
            value: b"",
            what,
        };
        message.write(&mut self.bytes);
        message.wire_bytes()
    }

    fn marker(&mut self, start: u64, end: u64) -> usize {
        self.sends(
            What::Marker(Marker { start: Seqno(start), end: Seqno(end), flags: Marker::MEMORY, more: None }),
            "",
        )
    }

    fn mutation(&mut self, seqno: u64) -> usize {
        let mutation = Mutation { by_seqno: Seqno(seqno), rev_seqno: RevSeqno(1), ..Mutation::default() };
        self.sends(What::Mutation(mutation), &format!("k{seqno}"))
    }

    fn noop(&mut self, opaque: u32) {
        let parts = RequestParts { opcode: opcode::DCP_NOOP, opaque, ..RequestParts::default() };
        assert!(write_request(&mut self.bytes, &parts));
    }
}

fn session(starts: &[Start]) -> Session {
    let wishes = Wishes {
        name: "test".into(),
        flags: OpenFlags(OpenFlags::XATTRS),
        buffer_bytes: BUFFER_BYTES,
        noop_interval_s: 20,
        filter: Vec::new(),
        sync_writes: false,
        history: false,
    };
    Session::new(wishes, starts)
}

fn from_start(end: Seqno) -> Start {
    Start { vb: VB, position: Position::START, end }
}

/// What was seen of an event, in a word.
fn word(event: Event<'_>) -> String {
    match event {
        Event::Message(message) => match message.what {
            What::Marker(marker) => format!("[{}..{}]", marker.start, marker.end),
            What::Mutation(mutation) => mutation.by_seqno.to_string(),
            other => format!("{other:?}"),
        },
        Event::Began(vb, uuid) => format!("{vb} in {uuid:?}"),
        Event::RolledBack(vb, to) => format!("{vb} back to {to}"),
        Event::Ended(vb, reason) => format!("{vb} ended {reason:?}"),
    }
}

fn receive(session: &mut Session, fake: &mut Fake) -> Result<String, ClientError> {
    let bytes = std::mem::take(&mut fake.bytes);
    let mut seen = Vec::new();
    let received = session.receive(&bytes, &mut |event| {
        if !matches!(event, Event::Began(..)) {
            seen.push(word(event));
        }
        ControlFlow::Continue(())
    })?;
    assert_eq!((received.consumed, received.is_enough), (bytes.len(), false));
    Ok(seen.join(" "))
}

fn requests(session: &mut Session) -> Vec<StreamRequest> {
    let requests = Fake::sent(session).into_iter();
    requests
        .filter_map(|sent| if let Sent::Request(_, request) = sent { Some(request) } else { None })
        .collect()
}

#[test]
fn opens_agrees_and_asks_for_each_stream() {
    let mut session = session(&[from_start(Start::FOR_EVER)]);
    session.connected();
    let sent = Fake::sent(&mut session);
    let flags = OpenFlags::PRODUCER | OpenFlags::XATTRS;
    assert_eq!(sent[0], Sent::Open("test".into(), flags));
    assert_eq!(sent[1], Sent::Control("enable_noop".into(), "true".into()));
    assert!(sent.contains(&Sent::Control("connection_buffer_size".into(), "400".into())));
    let request = StreamRequest { end: Start::FOR_EVER, ..StreamRequest::default() };
    assert_eq!(sent.last(), Some(&Sent::Request(3, request)));
}

#[test]
fn goes_on_where_it_was_after_the_connection_broke() {
    let (mut session, mut fake) = (session(&[from_start(Start::FOR_EVER)]), Fake::default());
    session.connected();
    fake.accepts(VB, 9);
    fake.marker(0, 4);
    fake.mutation(2);
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "[0..4] 2");
    let at = |uuid, start, (from, to)| StreamRequest {
        start: Seqno(start),
        end: Start::FOR_EVER,
        uuid: VbUuid(uuid),
        snapshot_start: Seqno(from),
        snapshot_end: Seqno(to),
        ..StreamRequest::default()
    };
    // In the middle of a snapshot.
    session.to_send().clear();
    session.connected();
    assert_eq!(requests(&mut session), [at(9, 2, (0, 4))]);
    // Behind it, and behind one that was only announced.
    fake.accepts(VB, 9);
    fake.marker(0, 4);
    fake.mutation(4);
    fake.marker(5, 8);
    receive(&mut session, &mut fake).unwrap();
    session.connected();
    assert_eq!(requests(&mut session), [at(9, 4, (4, 4))]);
}

#[test]
fn rolls_back_and_asks_again() {
    let position =
        Position { uuid: VbUuid(7), seqno: Seqno(20), snapshot_start: Seqno(18), snapshot_end: Seqno(25) };
    let start = Start { vb: VB, position, end: Start::FOR_EVER };
    let (mut session, mut fake) = (session(&[start]), Fake::default());
    session.connected();
    session.to_send().clear();
    fake.refuses(Status::Rollback, &10_u64.to_be_bytes());
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "3 back to 10");
    let [request] = requests(&mut session)[..] else { panic!("one request") };
    assert_eq!((request.start, request.uuid), (Seqno(10), VbUuid(7)));
    assert_eq!((request.snapshot_start, request.snapshot_end), (Seqno(10), Seqno(10)));
    // To the beginning, where no history is named.
    fake.refuses(Status::Rollback, &0_u64.to_be_bytes());
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "3 back to 0");
    let [request] = requests(&mut session)[..] else { panic!("one request") };
    assert_eq!((request.start, request.uuid), (Seqno(0), VbUuid(0)));
    // A server that rolls back for ever, or forward, is not followed.
    fake.refuses(Status::Rollback, &1_u64.to_be_bytes());
    assert!(receive(&mut session, &mut fake).is_err());
}

#[test]
fn a_stream_begins_again_behind_an_earlier_seqno() {
    let (mut session, mut fake) = (session(&[from_start(Start::FOR_EVER)]), Fake::default());
    session.connected();
    fake.accepts(VB, 9);
    fake.marker(0, 5);
    fake.mutation(5);
    receive(&mut session, &mut fake).unwrap();
    session.to_send().clear();
    session.rewind(VB, Seqno(2));
    assert_eq!(Fake::sent(&mut session), [Sent::Close(3)]);
    // What was on its way is not shown, and nothing is asked for before the old stream has ended.
    fake.marker(6, 7);
    fake.mutation(6);
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "");
    session.rewind(VB, Seqno(1));
    assert_eq!(requests(&mut session), []);
    fake.closes();
    fake.accepts(VB, 9);
    fake.marker(3, 7);
    fake.mutation(4);
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "[3..7] 4");
    let [request] = requests(&mut session)[..] else { panic!("one request") };
    assert_eq!((request.start, request.uuid, request.snapshot_end), (Seqno(2), VbUuid(9), Seqno(2)));
    // The connection breaks before the old stream has ended.
    session.rewind(VB, Seqno(0));
    session.connected();
    assert_eq!(requests(&mut session).last().map(|request| request.start), Some(Seqno(0)));
    // The old stream had ended by itself.
    fake.accepts(VB, 9);
    receive(&mut session, &mut fake).unwrap();
    session.rewind(VB, Seqno(0));
    fake.sends(What::End(EndReason::TooSlow), "");
    fake.closes();
    receive(&mut session, &mut fake).unwrap();
    assert_eq!(requests(&mut session).len(), 1);
}

#[test]
fn a_stream_that_was_rolled_back_is_asked_for_again() {
    let (mut session, mut fake) = (session(&[from_start(Start::FOR_EVER)]), Fake::default());
    session.connected();
    fake.accepts(VB, 9);
    fake.marker(0, 5);
    fake.mutation(5);
    fake.sends(What::End(EndReason::Rollback), "");
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "[0..5] 5");
    assert_eq!(requests(&mut session).last().map(|request| request.start), Some(Seqno(5)));
    fake.accepts(VB, 9);
    fake.sends(What::End(EndReason::StateChanged), "");
    assert_eq!(receive(&mut session, &mut fake).unwrap(), "3 ended StateChanged");
    assert!(session.is_done());
}

#[test]
fn acknowledges_half_a_buffer_and_answers_noops() {
    let (mut session, mut fake) = (session(&[from_start(Start::FOR_EVER)]), Fake::default());
    session.connected();
    session.to_send().clear();
    fake.accepts(VB, 9);
    let mut bytes = fake.marker(0, 100);
    let mut seqno = 0;
    while bytes < BUFFER_BYTES as usize / 2 {
        seqno += 1;
        bytes += fake.mutation(seqno);
    }
    fake.noop(77);
    receive(&mut session, &mut fake).unwrap();
    assert_eq!(Fake::sent(&mut session), [Sent::Acknowledged(bytes as u32), Sent::NoopAnswer(77)]);
    // What was not acknowledged on a connection that broke does not count on the next one.
    fake.mutation(90);
    receive(&mut session, &mut fake).unwrap();
    session.connected();
    assert!(!Fake::sent(&mut session).iter().any(|sent| matches!(sent, Sent::Acknowledged(_))));
}

#[test]
fn bytes_may_come_one_by_one() {
    let (mut session, mut fake) = (session(&[from_start(Seqno(2))]), Fake::default());
    session.connected();
    fake.accepts(VB, 9);
    fake.marker(0, 2);
    fake.mutation(1);
    fake.mutation(2);
    fake.sends(What::End(EndReason::Ok), "");
    let (mut seen, mut pending) = (Vec::new(), Vec::new());
    for byte in fake.bytes {
        pending.push(byte);
        let received = session.receive(&pending, &mut |event| {
            seen.push(word(event));
            ControlFlow::Continue(())
        });
        pending.drain(..received.unwrap().consumed);
    }
    assert_eq!(seen, ["3 in VbUuid(9)", "[0..2]", "1", "2", "3 ended Ok"]);
    assert!(session.is_done() && pending.is_empty());
}

#[test]
fn whoever_has_seen_enough_stops_behind_that_message() {
    let (mut session, mut fake) = (session(&[from_start(Start::FOR_EVER)]), Fake::default());
    session.connected();
    fake.accepts(VB, 9);
    fake.marker(0, 2);
    let first = fake.bytes.len() + fake.mutation(1);
    fake.mutation(2);
    let received = session.receive(&fake.bytes, &mut |event| match event {
        Event::Message(Message { what: What::Mutation(_), .. }) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(received.unwrap(), Received { consumed: first, is_enough: true });
    assert_eq!(session.position(VB).map(|position| position.seqno), Some(Seqno(1)));
}

#[test]
fn nonsense_is_an_error() {
    let refuse = |prepare: fn(&mut Fake)| {
        let (mut session, mut fake) = (session(&[from_start(Start::FOR_EVER)]), Fake::default());
        session.connected();
        prepare(&mut fake);
        receive(&mut session, &mut fake).expect_err("nonsense").to_string()
    };
    let unknown = refuse(|fake| fake.accepts(VbId(9), 1));
    assert!(unknown.contains("not asked for"), "{unknown}");
    let early = refuse(|fake| {
        fake.mutation(1);
    });
    assert!(early.contains("belongs to no stream"), "{early}");
    let back = refuse(|fake| {
        fake.accepts(VB, 1);
        fake.marker(0, 5);
        fake.mutation(5);
        fake.mutation(4);
    });
    assert!(back.contains("back in history"), "{back}");
    let bytes = refuse(|fake| fake.bytes.extend([0x13; 24]));
    assert!(bytes.contains("0x13"), "{bytes}");
    let closed = refuse(|fake| fake.refuses(Status::Eaccess, b""));
    assert!(closed.contains("EACCESS"), "{closed}");
}
