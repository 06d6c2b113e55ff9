//! Two nodes: what one writes the other one has, through broken links, restarts, failovers and handovers.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::env::Env;
use base::vbucket_map::vbucket_of;
use base::{Cas, Datatype, DocKey, ItemKind, RevSeqno, Seqno, VbId, VbState, VbUuid, VersionMeta};
use dcp::{Agreement, Features, Mode, Producer};
use engine::{Bucket, Refusal, StoreMode, StoreRequest, WithMetaRequest};
use node::dcp::{DcpConnection, Owner};
use node::replication::{LinkStatus, Password, Source, Sources};
use node::{Config, Settings};
use protocol::dcp::{Message, OpenFlags, StreamFlags, StreamRequest, What};
use protocol::{Limits, Parsed, parse};
use serde_json::{Value, json};
use server::Server;

#[path = "replication/by_file.rs"]
mod by_file;
#[path = "replication/fed.rs"]
mod fed;

const VBUCKETS: u16 = 16;
/// "Administrator:password"
const ADMIN: &str = "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";
/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node in a folder of its own.
struct Node {
    server: Option<Server>,
    folder: tempfile::TempDir,
}

impl Node {
    fn start() -> Node {
        let mut node = Node { server: None, folder: tempfile::tempdir().expect("a folder") };
        node.start_again();
        node
    }

    fn start_again(&mut self) {
        let settings = format!(
            "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\n"
        );
        let settings = Settings::parse(&settings).expect("valid settings");
        let folder = self.folder.path().to_owned();
        let config = Config::new(settings, folder, 1, String::new).expect("a valid configuration");
        self.server = Some(server::serve(config, Env::real()).expect("the node starts"));
        eventually("the documents are loaded", || (0..VBUCKETS).all(|vb| self.is_loaded(VbId(vb))));
    }

    fn is_loaded(&self, vb: VbId) -> bool {
        let now = self.bucket().now();
        self.bucket().documents().peek_as_is(vb, DocKey::new(b"x"), now).err() != Some(Refusal::Loading)
    }

    fn stop(&mut self) {
        self.server.take().map(Server::stop).transpose().expect("a clean stop");
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn bucket(&self) -> Arc<Bucket> {
        self.server().node().bucket("default").expect("it is served")
    }

    fn source(&self, mode: Mode) -> Source {
        Source {
            node: self.server().kv_addr().to_string(),
            username: "Administrator".to_owned(),
            password: Password::from("password".to_owned()),
            mode,
        }
    }

    /// Has all vBuckets follow another node.
    fn follow(&self, source: &Source) {
        let sources: Sources = (0..VBUCKETS).map(|vb| (VbId(vb), source.clone())).collect();
        self.server().node().replication().want(&self.bucket(), &sources).expect("they may");
    }

    fn follow_nobody(&self) {
        self.server().node().replication().want(&self.bucket(), &Sources::new()).expect("nothing is allowed");
    }

    fn link(&self) -> LinkStatus {
        self.server().node().replication().status(Some("default")).pop().expect("there is one")
    }

    fn all_have_role(&self, role: VbState) -> bool {
        (0..VBUCKETS).all(|vb| self.bucket().state_of(VbId(vb)) == Some(role))
    }

    fn set_roles(&self, role: VbState) {
        (0..VBUCKETS).for_each(|vb| {
            self.bucket().roles().set_vbucket_state(VbId(vb), role, None).expect("there is one");
        });
    }

    fn high_seqnos(&self) -> Vec<Seqno> {
        let high = |vb| self.bucket().streams().stream_state(VbId(vb)).expect("there is one").3;
        (0..VBUCKETS).map(high).collect()
    }

    fn histories(&self) -> Vec<Vec<(VbUuid, Seqno)>> {
        let of = |vb: &vbucket::VBucket| {
            vb.failover().entries().iter().map(|entry| (entry.uuid, entry.seqno)).collect()
        };
        (0..VBUCKETS).map(|vb| self.bucket().inspect(VbId(vb), of).expect("there is one")).collect()
    }

    fn http(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.server().http_addr()).expect("the server listens");
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {ADMIN}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("the server takes it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }
}

/// Waits for what other threads bring about.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it never came about that {what}");
        std::thread::yield_now();
    }
}

fn caught_up(active: &Node, replica: &Node) {
    eventually("the replica has everything", || {
        let same = active.high_seqnos() == replica.high_seqnos();
        assert!(same || replica.server.is_some());
        same
    });
}

fn vb_of(key: &str) -> VbId {
    vbucket_of(key.as_bytes(), VBUCKETS)
}

fn set(bucket: &Bucket, key: &str, value: &[u8], expiry: u32) -> Result<engine::Mutated, Refusal> {
    let request = StoreRequest {
        key: DocKey::new(key.as_bytes()),
        body: value,
        datatype: Datatype::RAW,
        flags: 7,
        expiry,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    bucket.documents().store(vb_of(key), &request, bucket.now())
}

fn delete(bucket: &Bucket, key: &str) {
    let deleted = bucket.documents().delete(vb_of(key), DocKey::new(key.as_bytes()), Cas::ANY, bucket.now());
    assert!(matches!(deleted, Ok(_) | Err(Refusal::NotFound)), "{deleted:?}");
}

/// A document with the xattr `_a`.
fn set_with_xattr(bucket: &Bucket, key: &str, revision: u64) {
    let pair = b"_a\0{\"b\":1}\0";
    let mut value = (4 + pair.len() as u32).to_be_bytes().to_vec();
    value.extend_from_slice(&(pair.len() as u32).to_be_bytes());
    value.extend_from_slice(pair);
    value.extend_from_slice(b"{\"c\":2}");
    let meta = VersionMeta {
        cas: Cas(1_700_000_000_000_000_000 + revision),
        rev_seqno: RevSeqno(revision),
        flags: 3,
        ..VersionMeta::default()
    };
    let request = WithMetaRequest {
        key: DocKey::new(key.as_bytes()),
        value: &value,
        datatype: Datatype::JSON.with(Datatype::XATTR),
        meta,
        add: false,
        expected: Cas::ANY,
        force: true,
        regenerate_cas: false,
        late: None,
    };
    bucket.documents().apply_with_meta(vb_of(key), &request, bucket.now()).expect("it is stored");
}

/// Everything that a message says of a document, but its access frequency.
#[derive(Debug, PartialEq, Eq)]
struct Document {
    seqno: Seqno,
    revision: RevSeqno,
    cas: Cas,
    flags: u32,
    expiry: u32,
    datatype: u8,
    kind: ItemKind,
    value: Vec<u8>,
}

type Documents = BTreeMap<(VbId, Vec<u8>), Document>;

/// All documents and tombstones of a bucket, as a stream from its beginning has them.
fn documents(bucket: &Arc<Bucket>) -> Documents {
    // A replica whose disk stands inside a snapshot that has grown since would break the stream off.
    assert!(bucket.flushing().flush_all());
    let flags =
        OpenFlags::PRODUCER | OpenFlags::XATTRS | OpenFlags::DELETE_TIMES | OpenFlags::DELETED_USER_XATTRS;
    let mut agreed = Agreement::open(OpenFlags(flags), b"compare", true).expect("valid flags");
    for (key, value) in [("enable_noop", "true"), ("enable_expiry_opcode", "true")] {
        assert_eq!(agreed.control(key.as_bytes(), value.as_bytes()), protocol::Status::Success);
    }
    let features = Features { collections: true, snappy: false, json: true };
    let news = Arc::new(AtomicBool::new(true));
    let woken = Arc::clone(&news);
    let wake = move || woken.store(true, Ordering::SeqCst);
    let mut producer = Producer::new(Arc::clone(bucket), "compare".to_owned(), agreed, features, wake);
    for vb in 0..VBUCKETS {
        let request = StreamRequest {
            flags: StreamFlags(StreamFlags::TO_LATEST),
            end: Seqno(u64::MAX),
            ..StreamRequest::default()
        };
        producer.request(VbId(vb), u32::from(vb), &request, b"").expect("it may begin");
    }
    let (mut all, mut ended) = (Documents::new(), 0);
    let until = Instant::now() + PATIENCE;
    while ended < VBUCKETS {
        assert!(Instant::now() < until, "the streams never ended");
        let mut out: Vec<u8> = Vec::new();
        producer.step(&mut out, 1 << 20);
        let mut rest = &out[..];
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            let message = Message::read(&request).expect("a message of a stream");
            ended += u16::from(matches!(message.what, What::End(_)));
            if let Some(document) = document(&message) {
                all.insert((message.vb, message.key.to_vec()), document);
            }
            rest = &rest[total_len..];
        }
        std::thread::yield_now();
    }
    all
}

fn document(message: &Message<'_>) -> Option<Document> {
    let deleted = |kind, deletion: protocol::dcp::Deletion| {
        (deletion.by_seqno, deletion.rev_seqno, 0, deletion.delete_time.unwrap_or(0), kind)
    };
    let (seqno, revision, flags, expiry, kind) = match message.what {
        What::Mutation(m) => (m.by_seqno, m.rev_seqno, m.flags, m.expiry, ItemKind::Mutation),
        What::Deletion(d) => deleted(ItemKind::Deletion, d),
        What::Expiration(d) => deleted(ItemKind::Expiration, d),
        _ => return None,
    };
    let (cas, datatype, value) = (message.cas, message.datatype, message.value.to_vec());
    Some(Document { seqno, revision, cas, flags, expiry, datatype, kind, value })
}

/// The replica is the active one, document by document.
fn assert_same(active: &Node, replica: &Node) {
    let (of_active, of_replica) = (documents(&active.bucket()), documents(&replica.bucket()));
    assert!(!of_active.is_empty());
    for (at, document) in &of_active {
        assert_eq!(of_replica.get(at), Some(document), "{at:?}");
    }
    assert_eq!(of_active.len(), of_replica.len());
    assert_eq!(active.histories(), replica.histories());
    assert_eq!(active.high_seqnos(), replica.high_seqnos());
}

/// Changes of all kinds, from a number on.
fn change(bucket: &Bucket, at: u64) {
    let key = format!("k{}", at % 150);
    match at % 11 {
        0 => delete(bucket, &key),
        1 => set_with_xattr(bucket, &format!("x{}", at % 40), at),
        // It has expired already: whoever looks finds out.
        2 => {
            let key = format!("e{}", at % 30);
            set(bucket, &key, b"gone", 1_000_000_000).map(drop).expect("stored");
            let found = bucket.documents().get(vb_of(&key), DocKey::new(key.as_bytes()), bucket.now());
            assert_eq!(found.err(), Some(Refusal::NotFound));
        }
        3 => set(bucket, &key, at.to_string().as_bytes(), 4_000_000_000).map(drop).expect("stored"),
        4 if at.is_multiple_of(7) => {
            set(bucket, &key, &vec![at as u8; 300_000], 0).map(drop).expect("stored")
        }
        _ => set(bucket, &key, format!("{{\"n\":{at}}}").as_bytes(), 0).map(drop).expect("stored"),
    }
}

#[test]
fn a_replica_has_what_is_written_meanwhile() {
    let (mut active, mut replica) = (Node::start(), Node::start());
    (0..2_000).for_each(|at| change(&active.bucket(), at));
    replica.follow(&active.source(Mode::Replicate));
    assert!(replica.all_have_role(VbState::Replica));
    (2_000..6_000).for_each(|at| change(&active.bucket(), at));
    caught_up(&active, &replica);
    assert_same(&active, &replica);
    // Nobody writes to a replica.
    assert_eq!(set(&replica.bucket(), "k", b"v", 0).err(), Some(Refusal::NotMyVbucket));
    let link = replica.link();
    assert_eq!((link.counts.rollbacks, link.counts.unsupported, link.connections), (0, 0, 1), "{link:?}");
    eventually("the source said so", || replica.link().is_caught_up());
    replica.stop();
    active.stop();
}

#[test]
fn a_link_that_breaks_again_and_again_loses_and_repeats_nothing() {
    let (active, replica) = (Node::start(), Node::start());
    replica.follow(&active.source(Mode::Replicate));
    let name = replica.link().name;
    for round in 0..12 {
        (round * 400..(round + 1) * 400).for_each(|at| change(&active.bucket(), at));
        eventually("it is connected", || replica.link().streaming() > 0);
        let connections = replica.link().connections;
        // Of two connections with one name the first is closed.
        let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), name.as_bytes(), true).expect("valid");
        let registry = active.server().node().streams();
        drop(DcpConnection::open(
            registry,
            &active.bucket(),
            name.as_bytes(),
            Owner::Node,
            agreed,
            Features::default(),
        ));
        eventually("it is connected again", || replica.link().connections > connections);
    }
    caught_up(&active, &replica);
    assert_same(&active, &replica);
    let link = replica.link();
    assert!(link.connections > 12 && link.counts.rollbacks == 0, "{link:?}");
}

#[test]
fn a_replica_that_was_stopped_goes_on_where_it_stood() {
    let (active, mut replica) = (Node::start(), Node::start());
    (0..1_500).for_each(|at| change(&active.bucket(), at));
    replica.follow(&active.source(Mode::Replicate));
    eventually("something came", || replica.link().counts.changes > 100);
    replica.stop();
    (1_500..3_000).for_each(|at| change(&active.bucket(), at));
    replica.start_again();
    assert!(replica.all_have_role(VbState::Replica));
    replica.follow(&active.source(Mode::Replicate));
    caught_up(&active, &replica);
    assert_same(&active, &replica);
    assert_eq!(replica.link().counts.rollbacks, 0);
}

#[test]
fn after_a_failover_the_old_node_rolls_back_and_follows() {
    let (old, new) = (Node::start(), Node::start());
    (0..1_000).for_each(|at| change(&old.bucket(), at));
    new.follow(&old.source(Mode::Replicate));
    caught_up(&old, &new);
    new.follow_nobody();
    // The old one takes changes that nobody else ever has; the new one goes its own way.
    (1_000..1_200).for_each(|at| change(&old.bucket(), at));
    new.set_roles(VbState::Active);
    (5_000..5_600).for_each(|at| change(&new.bucket(), at));
    old.set_roles(VbState::Dead);
    old.follow(&new.source(Mode::Replicate));
    caught_up(&new, &old);
    assert_same(&new, &old);
    assert!(old.link().counts.rollbacks > 0, "{:?}", old.link());
}

#[test]
fn active_vbuckets_with_documents_do_not_become_replicas_by_mistake() {
    let (active, other) = (Node::start(), Node::start());
    set(&other.bucket(), "mine", b"v", 0).expect("stored");
    let sources: Sources = (0..VBUCKETS).map(|vb| (VbId(vb), active.source(Mode::Replicate))).collect();
    let refused = other.server().node().replication().want(&other.bucket(), &sources);
    assert!(refused.is_err_and(|error| error.to_string().contains("1 vBuckets are active here")));
    assert!(other.all_have_role(VbState::Active));
    let beyond: Sources = [(VbId(VBUCKETS), active.source(Mode::TakeOver))].into();
    assert!(other.server().node().replication().want(&other.bucket(), &beyond).is_err());
}

#[test]
fn one_refused_vbucket_keeps_no_other_one_from_following() {
    let (active, other) = (Node::start(), Node::start());
    (0..200).for_each(|at| change(&active.bucket(), at));
    set(&other.bucket(), "mine", b"v", 0).expect("stored");
    let mine = vbucket_of(b"mine", VBUCKETS);
    let source = active.source(Mode::Replicate);
    let sources: Sources = (0..=VBUCKETS).map(|vb| (VbId(vb), source.clone())).collect();
    let refused = other.server().node().replication().want_each(&other.bucket(), &sources);
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused[0].contains(&format!("vBucket {mine} first")), "{refused:?}");
    assert!(refused[1].contains("there is no vBucket 16"), "{refused:?}");
    let role = |vb: u16| other.bucket().state_of(VbId(vb));
    assert_eq!(role(mine.0), Some(VbState::Active));
    assert_eq!((0..VBUCKETS).filter(|vb| role(*vb) == Some(VbState::Replica)).count(), 15);
    let others = || (0..VBUCKETS).filter(|vb| *vb != mine.0).map(usize::from);
    eventually("the others have what the active ones have", || {
        let (here, there) = (active.high_seqnos(), other.high_seqnos());
        others().all(|vb| here[vb] == there[vb])
    });
}

#[test]
fn a_replica_that_lost_its_role_follows_again_when_it_is_declared_again() {
    let (active, replica) = (Node::start(), Node::start());
    (0..200).for_each(|at| change(&active.bucket(), at));
    replica.follow(&active.source(Mode::Replicate));
    caught_up(&active, &replica);
    replica.bucket().roles().set_vbucket_state(VbId(3), VbState::Dead, None).expect("there is one");
    (200..400).for_each(|at| change(&active.bucket(), at));
    replica.follow(&active.source(Mode::Replicate));
    assert!(replica.all_have_role(VbState::Replica));
    caught_up(&active, &replica);
}

/// Keys of each writer.
const LEDGER_KEYS: u64 = 300;

fn ledger_key(writer: u64, at: u64) -> String {
    format!("w{writer}-{at}")
}

/// Writes to whichever node has the vBucket, and remembers what was acknowledged: for each key the last number and how
/// often it was written.
fn write_ledger(
    nodes: [&Bucket; 2],
    writer: u64,
    stop: &AtomicBool,
    written: &AtomicU64,
) -> BTreeMap<String, u64> {
    let mut ledger: BTreeMap<String, u64> = BTreeMap::new();
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = ledger_key(writer, at % LEDGER_KEYS);
        let number = ledger.get(&key).map_or(1, |number| number + 1);
        let until = Instant::now() + PATIENCE;
        'again: loop {
            assert!(Instant::now() < until, "nobody takes {key}");
            for node in nodes {
                match set(node, &key, number.to_string().as_bytes(), 0) {
                    Ok(_) => break 'again,
                    Err(Refusal::NotMyVbucket | Refusal::Pending) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            std::thread::yield_now();
        }
        ledger.insert(key, number);
        written.fetch_add(1, Ordering::Relaxed);
        at += 1;
    }
    ledger
}

#[test]
fn taking_over_under_writes_loses_and_doubles_nothing() {
    let (from, to) = (Node::start(), Node::start());
    // The first revision of a key is beyond the tombstones that the flusher has saved by then: here there are none.
    for key in (0..2).flat_map(|writer| (0..LEDGER_KEYS).map(move |at| ledger_key(writer, at))) {
        set(&from.bucket(), &key, b"0", 0).expect("stored");
    }
    (0..1_000).for_each(|at| change(&from.bucket(), at));
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let buckets = [from.bucket(), to.bucket()];
    let ledgers = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (stop, written, nodes) = (&stop, &written, [&*buckets[0], &*buckets[1]]);
                scope.spawn(move || write_ledger(nodes, writer, stop, written))
            })
            .collect();
        eventually("there are writes", || written.load(Ordering::Relaxed) > 500);
        to.follow(&from.source(Mode::TakeOver));
        eventually("all are taken over", || to.link().taken_over.done == u64::from(VBUCKETS));
        let then = written.load(Ordering::Relaxed);
        eventually("there are writes to the new node", || written.load(Ordering::Relaxed) > then + 500);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("it does not panic")).collect::<Vec<_>>()
    });
    assert!(to.all_have_role(VbState::Active) && from.all_have_role(VbState::Dead));
    for (key, number) in ledgers.iter().flatten() {
        let found = to
            .bucket()
            .documents()
            .get(vb_of(key), DocKey::new(key.as_bytes()), to.bucket().now())
            .expect("it is there");
        assert_eq!(found.version.value(), number.to_string().as_bytes(), "{key}");
        // Every acknowledged write once.
        assert_eq!(found.version.meta().rev_seqno, RevSeqno(number + 1), "{key}");
    }
    assert_eq!(set(&from.bucket(), "k1", b"v", 0).err(), Some(Refusal::NotMyVbucket));
    let taken = to.link().taken_over;
    assert!(
        taken.blocked_longest > Duration::ZERO && taken.blocked_total >= taken.blocked_longest,
        "{taken:?}"
    );
    println!("taken over {} vBuckets: writes blocked {taken:?}", taken.done);
    for (old, new) in from.histories().into_iter().zip(to.histories()) {
        assert_eq!(&new[1..], &old[..], "a new history begins behind the old ones");
    }
    // What is declared again and the same changes nothing: it is done.
    to.follow(&from.source(Mode::TakeOver));
    assert!(to.all_have_role(VbState::Active));
}

#[test]
fn a_handover_that_breaks_off_is_brought_to_its_end() {
    let (from, to) = (Node::start(), Node::start());
    (0..3_000).for_each(|at| change(&from.bucket(), at));
    to.follow(&from.source(Mode::TakeOver));
    let name = to.link().name;
    while to.link().taken_over.done < u64::from(VBUCKETS) {
        let agreed = Agreement::open(OpenFlags(OpenFlags::PRODUCER), name.as_bytes(), true).expect("valid");
        let registry = from.server().node().streams();
        let (connections, done) = (to.link().connections, to.link().taken_over.done);
        drop(DcpConnection::open(
            registry,
            &from.bucket(),
            name.as_bytes(),
            Owner::Node,
            agreed,
            Features::default(),
        ));
        eventually("it goes on", || {
            let link = to.link();
            link.taken_over.done > done || link.connections > connections
        });
    }
    assert!(to.all_have_role(VbState::Active) && from.all_have_role(VbState::Dead));
    let (of_old, of_new) = (documents_of_dead(&from), documents(&to.bucket()));
    assert_eq!(of_old, of_new);
}

/// The documents of vBuckets that were given away.
fn documents_of_dead(node: &Node) -> Documents {
    node.set_roles(VbState::Replica);
    documents(&node.bucket())
}

#[test]
fn over_http_it_is_declared_and_looked_at() {
    let (active, replica) = (Node::start(), Node::start());
    (0..200).for_each(|at| change(&active.bucket(), at));
    let path = "/v1/buckets/default/replication";
    let source = |vbuckets: &str, password: &str| {
        json!({ "sources": [{ "node": active.server().kv_addr().to_string(), "username": "Administrator",
            "password": password, "vbuckets": vbuckets }] })
    };
    assert_eq!(replica.http("GET", path, &Value::Null).1, json!({ "bucket": "default", "links": [] }));
    let (status, said) = replica.http("PUT", path, &source("0-15", "wrong-secret"));
    assert_eq!((status, &said["links"][0]["vbuckets"]), (200, &"0-15".into()), "{said}");
    eventually("it is not let in", || {
        let (_, said) = replica.http("GET", path, &Value::Null);
        assert!(!said.to_string().contains("wrong-secret"));
        said["links"][0]["last_error"].as_str().is_some_and(|error| error.contains("password is another one"))
    });
    assert_eq!(replica.http("PUT", path, &source("0-15", "password")).0, 200);
    eventually("it has caught up", || {
        replica.http("GET", path, &Value::Null).1["links"][0]["caught_up"] == true
    });
    let (_, said) = replica.http("GET", &format!("{path}?detail=true"), &Value::Null);
    let each = said["links"][0]["each"].as_array().expect("one for each vBucket");
    assert_eq!(
        (each.len(), &each[3]["lag"], &each[3]["stage"]),
        (16, &0.into(), &"streaming".into()),
        "{said}"
    );
    for wrong in [json!({}), source("16", "password"), source("0-", "password"), json!({ "sources": [7] })] {
        let (status, said) = replica.http("PUT", path, &wrong);
        assert_eq!(status, 400, "{said}");
        assert!(!said.to_string().contains("\"password\":\"password\""));
    }
    assert_eq!(replica.http("PUT", path, &json!({ "sources": [] })).0, 200);
    assert_eq!(replica.http("GET", path, &Value::Null).1["links"], json!([]));
    // An empty bucket would follow itself, and be served no more.
    let (own, path) = (Node::start(), "/v1/buckets/default/replication");
    let source = json!({ "node": own.server().kv_addr().to_string(), "username": "Administrator",
        "password": "password", "vbuckets": "0-15" });
    let (status, said) = own.http("PUT", path, &json!({ "sources": [source] }));
    assert!(status == 400 && said["errors"]["_"].to_string().contains("is this node itself"), "{said}");
    assert!(own.all_have_role(VbState::Active), "nothing has changed");
}
