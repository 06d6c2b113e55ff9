//! Replicas that a client feeds over a connection which it opened: a proxy between a producer of one node and a consumer of
//! the other passes on what both say, as proxies of the original's cluster manager do; or the client is the producer.

use std::thread::JoinHandle;

use base::DurabilityLevel;
use parking_lot::Mutex;
use protocol::dcp::{Marker, Mutation, Prepare};
use protocol::feature::{Feature, Features as Agreed};
use protocol::{Durability, FrameInfos, RequestParts, Response, Status, magic, opcode, write_request};

use super::*;

/// What a node feeds another one with.
const WANTED: [Feature; 5] =
    [Feature::Xerror, Feature::Json, Feature::Snappy, Feature::Xattr, Feature::Collections];
const ADD: u32 = 1_000;
/// By which the fed node takes part in sync writes.
const FED_NAME: &str = "fed";

pub fn logged_in(node: &Node) -> TcpStream {
    logged_in_with(node, &WANTED)
}

fn logged_in_with(node: &Node, features: &[Feature]) -> TcpStream {
    let mut stream = TcpStream::connect(node.server().kv_addr()).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let login = node::fuzz::login("Administrator", "password", "default", &Agreed::of(features).encode());
    stream.write_all(&login).expect("the node reads");
    for _ in 0..3 {
        assert_eq!(status(&read(&mut stream).expect("an answer")), Status::Success);
    }
    stream
}

pub fn read(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 24];
    stream.read_exact(&mut frame).ok()?;
    let body = u32::from_be_bytes(frame[8..12].try_into().expect("four bytes")) as usize;
    frame.resize(24 + body, 0);
    stream.read_exact(&mut frame[24..]).ok()?;
    Some(frame)
}

pub fn status(frame: &[u8]) -> Status {
    Status::from_code(u16::from_be_bytes([frame[6], frame[7]])).expect("a known status")
}

fn opaque(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[12..16].try_into().expect("four bytes"))
}

pub fn value(frame: &[u8]) -> &[u8] {
    let (key, extras) = (usize::from(u16::from_be_bytes([frame[2], frame[3]])), usize::from(frame[4]));
    &frame[24 + extras + key..]
}

fn bytes(parts: &RequestParts<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(write_request(&mut out, parts));
    out
}

pub fn send(stream: &mut TcpStream, parts: &RequestParts<'_>) {
    stream.write_all(&bytes(parts)).expect("the node reads");
}

fn open(node: &Node, name: &str, flags: u32, value: &[u8]) -> TcpStream {
    open_on(logged_in(node), name, flags, value)
}

fn open_on(mut stream: TcpStream, name: &str, flags: u32, value: &[u8]) -> TcpStream {
    let extras = [[0; 4], flags.to_be_bytes()].concat();
    let datatype = if value.is_empty() { 0 } else { 1 };
    let parts = RequestParts { opcode: opcode::DCP_OPEN, key: name.as_bytes(), ..RequestParts::default() };
    send(&mut stream, &RequestParts { extras: &extras, value, datatype, ..parts });
    assert_eq!(status(&read(&mut stream).expect("an answer")), Status::Success);
    stream
}

fn consumer(node: &Node) -> TcpStream {
    open(node, "a consumer", 0, format!("{{\"consumer_name\":\"{FED_NAME}\"}}").as_bytes())
}

fn add_stream(vb: u16, flags: u32) -> Vec<u8> {
    let parts = RequestParts { opcode: opcode::DCP_ADD_STREAM, vbucket: VbId(vb), ..RequestParts::default() };
    bytes(&RequestParts { opaque: ADD + u32::from(vb), extras: &flags.to_be_bytes(), ..parts })
}

/// A proxy between two connections.
struct Bridge {
    sockets: [TcpStream; 2],
    threads: Vec<JoinHandle<()>>,
    /// Answers to requests for streams.
    added: Arc<Mutex<BTreeMap<u32, Status>>>,
}

impl Bridge {
    /// Has all vBuckets of `to` fed from `from`.
    fn between(from: &Node, to: &Node, flags: u32) -> Bridge {
        let produced = OpenFlags::PRODUCER
            | OpenFlags::XATTRS
            | OpenFlags::DELETE_TIMES
            | OpenFlags::DELETED_USER_XATTRS;
        let producer = open(from, "a producer", produced, b"");
        let mut consumer = consumer(to);
        for vb in 0..VBUCKETS {
            consumer.write_all(&add_stream(vb, flags)).expect("the node reads");
        }
        let added = Arc::<Mutex<BTreeMap<u32, Status>>>::default();
        let clone = |stream: &TcpStream| stream.try_clone().expect("a handle");
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let added = Arc::clone(&added);
            std::thread::spawn(move || {
                while let Some(frame) = read(&mut from) {
                    if frame[0] == magic::RESPONSE && frame[1] == opcode::DCP_ADD_STREAM {
                        added.lock().insert(opaque(&frame) - ADD, status(&frame));
                    } else if to.write_all(&frame).is_err() {
                        return;
                    }
                }
            })
        };
        let threads =
            vec![pass(clone(&producer), clone(&consumer)), pass(clone(&consumer), clone(&producer))];
        Bridge { sockets: [producer, consumer], threads, added }
    }

    fn is_up(&self) -> bool {
        let added = self.added.lock();
        added.len() == usize::from(VBUCKETS) && added.values().all(|status| *status == Status::Success)
    }

    fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.sockets.iter().for_each(|socket| drop(socket.shutdown(std::net::Shutdown::Both)));
        self.threads.drain(..).for_each(|thread| thread.join().expect("it does not panic"));
    }
}

#[test]
fn a_proxy_feeds_replicas_with_what_is_written_meanwhile() {
    let (active, replica) = (Node::start(), Node::start());
    replica.set_roles(VbState::Replica);
    (0..2_000).for_each(|at| change(&active.bucket(), at));
    let bridge = Bridge::between(&active, &replica, 0);
    eventually("all streams are there", || bridge.is_up());
    (2_000..6_000).for_each(|at| change(&active.bucket(), at));
    // More than the buffer, so that bytes are acknowledged.
    let large = vec![b'x'; 1 << 20];
    (0..40).for_each(|at| drop(set(&active.bucket(), &format!("large{at}"), &large, 0).expect("stored")));
    caught_up(&active, &replica);
    assert_same(&active, &replica);
    assert!(!bridge.is_broken());
}

#[test]
fn a_proxy_that_breaks_again_and_again_loses_and_repeats_nothing() {
    let (active, mut replica) = (Node::start(), Node::start());
    replica.set_roles(VbState::Replica);
    for round in 0..8 {
        let bridge = Bridge::between(&active, &replica, 0);
        (round * 400..(round + 1) * 400).for_each(|at| change(&active.bucket(), at));
        if round % 2 == 0 {
            eventually("all streams are there", || bridge.is_up());
        }
        drop(bridge);
        if round == 4 {
            replica.stop();
            replica.start_again();
        }
    }
    let _bridge = Bridge::between(&active, &replica, 0);
    caught_up(&active, &replica);
    assert_same(&active, &replica);
}

#[test]
fn fed_replicas_roll_back_and_go_on() {
    let (old, new) = (Node::start(), Node::start());
    new.set_roles(VbState::Replica);
    (0..1_000).for_each(|at| change(&old.bucket(), at));
    let bridge = Bridge::between(&old, &new, 0);
    caught_up(&old, &new);
    drop(bridge);
    (1_000..1_200).for_each(|at| change(&old.bucket(), at));
    new.set_roles(VbState::Active);
    (5_000..5_600).for_each(|at| change(&new.bucket(), at));
    old.set_roles(VbState::Replica);
    let bridge = Bridge::between(&new, &old, 0);
    eventually("all streams are there", || bridge.is_up());
    caught_up(&new, &old);
    assert_same(&new, &old);
}

#[test]
fn vbuckets_are_handed_over_through_a_proxy() {
    let (from, to) = (Node::start(), Node::start());
    to.set_roles(VbState::Pending);
    (0..1_000).for_each(|at| change(&from.bucket(), at));
    let bridge = Bridge::between(&from, &to, StreamFlags::TAKEOVER);
    eventually("all are taken over", || {
        assert!(!bridge.is_broken());
        to.all_have_role(VbState::Active) && from.all_have_role(VbState::Dead)
    });
    assert_eq!(documents_of_dead(&from), documents(&to.bucket()));
}

#[test]
fn durable_writes_are_committed_when_a_fed_replica_has_them() {
    let (active, replica) = (Node::start(), Node::start());
    replica.set_roles(VbState::Replica);
    let topology = engine::topology_from_json(&json!([["active", FED_NAME]])).expect("a topology");
    for vb in (0..VBUCKETS).map(VbId) {
        let set = active.bucket().roles().set_vbucket_state(vb, VbState::Active, Some(topology.clone()));
        set.expect("there is one");
    }
    let bridge = Bridge::between(&active, &replica, 0);
    eventually("all streams are there", || bridge.is_up());
    let mut client = logged_in(&active);
    for (at, level) in [DurabilityLevel::Majority, DurabilityLevel::PersistToMajority].into_iter().enumerate()
    {
        let key = format!("\0durable{at}");
        let infos =
            FrameInfos { durability: Some(Durability { level, timeout_ms: None }), ..FrameInfos::default() };
        let mut encoded = Vec::new();
        infos.encode(&mut encoded);
        let parts = RequestParts { opcode: opcode::SET, key: key.as_bytes(), ..RequestParts::default() };
        let parts = RequestParts { vbucket: vb_of(&key[1..]), extras: &[0; 8], value: b"v", ..parts };
        send(&mut client, &RequestParts { frame_infos: &encoded, ..parts });
        assert_eq!(status(&read(&mut client).expect("an answer")), Status::Success, "{level:?}");
    }
    caught_up(&active, &replica);
    assert!(!bridge.is_broken());
}

/// A client that is the producer of what it feeds a node with.
struct Script {
    stream: TcpStream,
}

const HISTORY: u64 = 0x1234_5678;

impl Script {
    fn begin(node: &Node) -> Script {
        Script { stream: consumer(node) }
    }

    /// The next message that agrees on nothing and acknowledges no bytes.
    fn next(&mut self) -> Vec<u8> {
        loop {
            let frame = read(&mut self.stream).expect("a message");
            if !matches!(frame[1], opcode::DCP_CONTROL | opcode::DCP_BUFFER_ACK) {
                return frame;
            }
        }
    }

    /// Asks to add a stream; the request for it.
    fn asked(&mut self, vb: u16) -> Vec<u8> {
        self.asked_with(vb, 0x20)
    }

    fn asked_with(&mut self, vb: u16, flags: u32) -> Vec<u8> {
        self.stream.write_all(&add_stream(vb, flags)).expect("the node reads");
        let request = self.next();
        assert_eq!((request[0], request[1]), (magic::REQUEST, opcode::DCP_STREAM_REQ));
        assert_eq!(request[24..28], flags.to_be_bytes(), "the flags are passed on");
        request
    }

    fn answer(&mut self, request: &[u8], status: Status, value: &[u8]) {
        let mut out = Vec::new();
        let (opcode, opaque) = (request[1], opaque(request));
        Response { opcode, opaque, status, value, ..Response::default() }.write(&mut out);
        self.stream.write_all(&out).expect("the node reads");
    }

    /// Begins a stream; its opaque.
    fn stream(&mut self, vb: u16) -> u32 {
        let request = self.asked(vb);
        self.begun(vb, &request)
    }

    /// Accepts what was asked for.
    fn begun(&mut self, vb: u16, request: &[u8]) -> u32 {
        self.answer(request, Status::Success, &[HISTORY.to_be_bytes(), [0; 8]].concat());
        let added = self.next();
        assert_eq!((added[1], status(&added)), (opcode::DCP_ADD_STREAM, Status::Success));
        assert_eq!(opaque(&added), ADD + u32::from(vb));
        assert_eq!(added[24..28], opaque(request).to_be_bytes());
        opaque(request)
    }

    fn message(&mut self, vb: u16, opaque: u32, what: What, key: &[u8], value: &[u8], datatype: u8) {
        let frame = frame_of(vb, opaque, what, key, value, datatype);
        self.stream.write_all(&frame).expect("the node reads");
    }

    fn marker(&mut self, vb: u16, opaque: u32, start: u64, end: u64) {
        let flags = Marker::MEMORY | Marker::CHECKPOINT;
        let marker = Marker { start: Seqno(start), end: Seqno(end), flags, more: None };
        self.message(vb, opaque, What::Marker(marker), b"", b"", 0);
    }

    fn mutation(&mut self, vb: u16, opaque: u32, seqno: u64) {
        self.mutation_of(vb, opaque, seqno, b"v", 0);
    }

    fn mutation_of(&mut self, vb: u16, opaque: u32, seqno: u64, value: &[u8], datatype: u8) {
        self.message(
            vb,
            opaque,
            What::Mutation(a_mutation(seqno)),
            format!("\0k{seqno}").as_bytes(),
            value,
            datatype,
        );
    }

    /// Nothing is answered to what was sent: a sign of life is, at once.
    fn is_silent(&mut self) {
        let parts = RequestParts { opcode: opcode::DCP_NOOP, opaque: 77, ..RequestParts::default() };
        send(&mut self.stream, &parts);
        let frame = self.next();
        assert_eq!((frame[1], status(&frame), opaque(&frame)), (opcode::DCP_NOOP, Status::Success, 77));
    }

    fn refused(&mut self, opcode: u8, wanted: Status) {
        let frame = self.next();
        assert_eq!((frame[0], frame[1], status(&frame)), (magic::RESPONSE, opcode, wanted));
    }

    fn closes(&mut self, vb: u16) {
        let frame = self.next();
        assert_eq!((frame[0], frame[1]), (magic::REQUEST, opcode::DCP_CLOSE_STREAM));
        assert_eq!(frame[6..8], vb.to_be_bytes());
    }
}

fn frame_of(vb: u16, opaque: u32, what: What, key: &[u8], value: &[u8], datatype: u8) -> Vec<u8> {
    let message = Message { vb: VbId(vb), opaque, stream_id: None, cas: Cas(5), datatype, key, value, what };
    let mut out = Vec::new();
    message.write(&mut out);
    out
}

fn a_mutation(seqno: u64) -> Mutation {
    Mutation { by_seqno: Seqno(seqno), rev_seqno: RevSeqno(1), ..Mutation::default() }
}

fn value_of(node: &Node, vb: u16, key: &str) -> Option<Vec<u8>> {
    let (bucket, key) = (node.bucket(), DocKey::new(key.as_bytes()));
    let found = bucket.documents().get_replica(VbId(vb), key, bucket.now()).ok()?;
    Some(found.version.value().to_vec())
}

#[test]
fn a_scripted_producer_is_answered_as_a_consumer_answers() {
    let node = Node::start();
    let mut script = Script::begin(&node);
    script.stream.write_all(&add_stream(0, 0)).expect("the node reads");
    script.refused(opcode::DCP_ADD_STREAM, Status::NotMyVbucket);
    node.set_roles(VbState::Replica);
    let stream = script.stream(0);
    script.stream.write_all(&add_stream(0, 0)).expect("the node reads");
    script.refused(opcode::DCP_ADD_STREAM, Status::KeyEexists);
    script.mutation(0, stream, 1);
    script.refused(opcode::DCP_MUTATION, Status::Erange);
    script.marker(0, stream, 1, 3);
    script.mutation(0, stream, 1);
    script.mutation(0, stream, 1);
    script.refused(opcode::DCP_MUTATION, Status::Erange);
    script.mutation(0, stream, 4);
    script.refused(opcode::DCP_MUTATION, Status::Erange);
    script.mutation(0, stream + 100, 2);
    script.refused(opcode::DCP_MUTATION, Status::KeyEexists);
    script.mutation(1, stream, 2);
    script.refused(opcode::DCP_MUTATION, Status::KeyEnoent);
    script.marker(0, stream, 0, 1);
    script.refused(opcode::DCP_SNAPSHOT_MARKER, Status::Erange);
    script.mutation(0, stream, 3);
    script.is_silent();
    eventually("it is applied", || value_of(&node, 0, "k3").is_some_and(|value| value == b"v"));
    assert_eq!((value_of(&node, 0, "k2"), value_of(&node, 0, "k1")), (None, Some(b"v".to_vec())));
    // Without it there would be a gap: the stream ends here, and what is on its way is passed over.
    script.marker(0, stream, 4, 9);
    script.mutation_of(0, stream, 4, b"v", 0x07);
    script.refused(opcode::DCP_MUTATION, Status::Einval);
    script.closes(0);
    script.mutation(0, stream, 5);
    script.is_silent();
    let again = script.stream(0);
    script.marker(0, again, 3, 9);
    script.message(0, again, What::SeqnoAdvanced(Seqno(9)), b"", b"", 0);
    script.message(0, again, What::OutOfOrder(true), b"", b"", 0);
    script.refused(opcode::DCP_OSO_SNAPSHOT, Status::UnknownCommand);
    script.is_silent();
    script.message(0, again, What::End(protocol::dcp::EndReason::Ok), b"", b"", 0);
    script.is_silent();
    script.mutation(0, again + 1, 10);
    script.refused(opcode::DCP_MUTATION, Status::KeyEnoent);
    let close = RequestParts { opcode: opcode::DCP_CLOSE_STREAM, ..RequestParts::default() };
    send(&mut script.stream, &close);
    script.refused(opcode::DCP_CLOSE_STREAM, Status::KeyEnoent);
    script.stream(0);
    send(&mut script.stream, &close);
    script.refused(opcode::DCP_CLOSE_STREAM, Status::Success);
    script.closes(0);
}

#[test]
fn what_a_producer_refuses_is_the_answer() {
    let node = Node::start();
    node.set_roles(VbState::Replica);
    let mut script = Script::begin(&node);
    let request = script.asked(2);
    script.answer(&request, Status::UnknownCollection, b"");
    script.refused(opcode::DCP_ADD_STREAM, Status::UnknownCollection);
    // It is asked again after a rollback, and the first answer comes then.
    let request = script.asked(2);
    script.answer(&request, Status::Rollback, &[0; 8]);
    let request = script.next();
    assert_eq!(request[1], opcode::DCP_STREAM_REQ);
    script.answer(&request, Status::Rollback, &9_u64.to_be_bytes());
    script.refused(opcode::DCP_ADD_STREAM, Status::Rollback);
    // Controls that are needed.
    let mut script = Script::begin(&node);
    let control = read(&mut script.stream).expect("a control");
    assert_eq!((control[1], value(&control)), (opcode::DCP_CONTROL, &b"true"[..]));
    script.answer(&control, Status::Einval, b"");
    while let Some(frame) = read(&mut script.stream) {
        assert_eq!(frame[1], opcode::DCP_CONTROL);
    }
}

#[test]
fn a_fed_stream_ends_with_the_role_and_with_the_bucket() {
    let node = Node::start();
    node.set_roles(VbState::Replica);
    let mut script = Script::begin(&node);
    script.stream(0);
    let one = script.stream(1);
    node.bucket().roles().set_vbucket_state(VbId(0), VbState::Dead, None).expect("there is one");
    script.closes(0);
    script.marker(1, one, 1, 1);
    script.mutation(1, one, 1);
    eventually("it is applied", || value_of(&node, 1, "k1").is_some());
    // A link of this node has it.
    let other = Node::start();
    let sources: Sources = [(VbId(3), other.source(Mode::Replicate))].into();
    node.server().node().replication().want(&node.bucket(), &sources).expect("it may");
    script.stream.write_all(&add_stream(3, 0)).expect("the node reads");
    script.refused(opcode::DCP_ADD_STREAM, Status::KeyEexists);
    assert_eq!(node.http("DELETE", "/pools/default/buckets/default", &Value::Null).0, 200);
    assert!(read(&mut script.stream).is_none(), "the bucket is gone");
}

#[test]
fn what_is_fed_waits_in_the_socket_for_room_in_memory() {
    const LARGE: usize = 1 << 20;
    const CHANGES: u64 = 160;
    const QUOTA: u64 = 100 << 20;
    let mut node = Node { server: None, folder: tempfile::tempdir().expect("a folder") };
    let settings = format!(
        "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\n\
         buckets = [\"default:100MiB\"]\n"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    let config =
        Config::new(settings, node.folder.path().to_owned(), 1, String::new).expect("a configuration");
    node.server = Some(server::serve(config, Env::real()).expect("the node starts"));
    node.set_roles(VbState::Replica);
    let mut client = logged_in(&node);
    let mut persistence = |opcode| {
        send(&mut client, &RequestParts { opcode, ..RequestParts::default() });
        assert_eq!(status(&read(&mut client).expect("an answer")), Status::Success);
    };
    // What is not on disk cannot leave memory.
    persistence(opcode::STOP_PERSISTENCE);
    let mut script = Script::begin(&node);
    let stream = script.stream(0);
    let mut writer = Script { stream: script.stream.try_clone().expect("a handle") };
    let written = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&written);
    let thread = std::thread::spawn(move || {
        writer.marker(0, stream, 1, CHANGES);
        for seqno in 1..=CHANGES {
            writer.mutation_of(0, stream, seqno, &vec![seqno as u8; LARGE], 0);
            counted.store(seqno, Ordering::Relaxed);
        }
    });
    let high = || node.high_seqnos()[0].0;
    let mut still = (Instant::now(), 0);
    eventually("nothing more is taken", || {
        if high() > still.1 {
            still = (Instant::now(), high());
        }
        still.0.elapsed() >= Duration::from_millis(1_500)
    });
    let held = node.bucket().memory().held_bytes();
    assert!(high() < CHANGES && written.load(Ordering::Relaxed) < CHANGES, "{held} bytes held");
    assert!(held < QUOTA + (8 << 20), "{held} bytes held");
    persistence(opcode::START_PERSISTENCE);
    eventually("all is applied", || high() == CHANGES);
    thread.join().expect("it does not panic");
    script.is_silent();
}

#[test]
fn what_a_valid_producer_sends_is_taken_whatever_the_client_agreed_on() {
    let node = Node::start();
    node.set_roles(VbState::Replica);
    let client = logged_in_with(&node, &[Feature::Collections]);
    let mut script = Script { stream: open_on(client, "a consumer", 0, b"") };
    let stream = script.stream(0);
    script.marker(0, stream, 1, 4);
    let longest = [&b"\0"[..], &[b'k'; 250]].concat();
    script.message(0, stream, What::Mutation(a_mutation(1)), &longest, b"v", 0);
    script.mutation_of(0, stream, 2, b"{}", 1);
    // One byte, of a literal.
    script.mutation_of(0, stream, 3, &[1, 0, b'v'], 2);
    let prepare = Prepare { mutation: a_mutation(4), is_deletion: false, level: 1 };
    script.message(0, stream, What::Prepare(prepare), &longest, b"w", 0);
    script.is_silent();
    eventually("all is applied", || node.high_seqnos()[0] == Seqno(4));
    for key in ["k2", "k3", &"k".repeat(250)] {
        assert!(value_of(&node, 0, key).is_some(), "{key}");
    }
}

#[test]
fn a_message_that_is_refused_leaves_no_gap() {
    let node = Node::start();
    node.set_roles(VbState::Replica);
    let mut script = Script::begin(&node);
    let mutation = || What::Mutation(a_mutation(2));
    let prepare = || What::Prepare(Prepare { mutation: a_mutation(2), is_deletion: false, level: 1 });
    let longer = [&b"\0"[..], &[b'k'; 251]].concat();
    for vb in 0..7 {
        let stream = script.stream(vb);
        let frame = |what, key: &[u8], datatype| frame_of(vb, stream, what, key, b"v", datatype);
        let mut wrong = match vb {
            0..3 => frame(mutation(), b"\0k2", 0),
            3 => frame(mutation(), b"\0k2", 8),
            4 => frame(mutation(), &longer, 0),
            5 => frame(prepare(), b"\0k2", 0),
            _ => frame_of(vb, stream, What::SystemEvent(Seqno(2), 99, 0), b"name", b"", 0),
        };
        match vb {
            // Extended metadata.
            0 => wrong[24 + 29] = 1,
            // An extra byte belongs to the key.
            1 => (wrong[3], wrong[4]) = (4, 30),
            // No mutation has seqno 0.
            2 => wrong[24..32].fill(0),
            // A prepare without CAS.
            5 => wrong[16..24].fill(0),
            _ => {}
        }
        script.marker(vb, stream, 1, 3);
        script.mutation(vb, stream, 1);
        script.stream.write_all(&wrong).expect("the node reads");
        script.refused(wrong[1], Status::Einval);
        script.closes(vb);
        script.mutation(vb, stream, 3);
        script.is_silent();
        let high = node.high_seqnos()[usize::from(vb)];
        assert!(high <= Seqno(1) && value_of(&node, vb, "k3").is_none(), "{vb}: {high}");
        // It is followed again from where it stands.
        script.stream(vb);
    }
}

#[test]
fn a_void_stream_hands_nothing_over() {
    let node = Node::start();
    node.set_roles(VbState::Pending);
    let mut script = Script::begin(&node);
    for vb in 0..2 {
        let request = script.asked_with(vb, StreamFlags::TAKEOVER);
        let stream = script.begun(vb, &request);
        let (bucket, vb_id) = (node.bucket(), VbId(vb));
        bucket.roles().set_vbucket_state(vb_id, VbState::Dead, None).expect("there is one");
        if vb == 1 {
            bucket.roles().delete_vbucket(vb_id).expect("it is dead").expect("the disk works");
        }
        script.message(vb, stream, What::SetVbucketState(VbState::Active), b"", b"", 0);
        script.closes(vb);
        script.is_silent();
        assert_eq!(bucket.state_of(vb_id), [Some(VbState::Dead), None][usize::from(vb)]);
    }
}

#[test]
fn a_void_stream_acknowledges_no_prepares_of_another() {
    let node = Node::start();
    node.set_roles(VbState::Replica);
    let mut first = Script::begin(&node);
    first.stream(0);
    let name = format!("{{\"consumer_name\":\"{FED_NAME}\"}}");
    let mut second = Script { stream: open(&node, "another consumer", 0, name.as_bytes()) };
    let stream = second.stream(0);
    second.marker(0, stream, 1, 1);
    // It is acknowledged when it is on disk, which both connections hear of.
    let prepare = Prepare { mutation: a_mutation(1), is_deletion: false, level: 3 };
    second.message(0, stream, What::Prepare(prepare), b"\0k1", b"v", 0);
    let frame = second.next();
    assert_eq!((frame[1], opaque(&frame)), (opcode::DCP_SEQNO_ACKNOWLEDGED, stream));
    first.closes(0);
    first.is_silent();
}
