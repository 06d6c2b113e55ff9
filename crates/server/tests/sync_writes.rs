//! Sync writes over nodes: what a majority has is committed, what it has not is ambiguous, and nobody reads a prepare.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

use std::future::Future;
use std::net::TcpStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::env::Env;
use base::vbucket_map::vbucket_of;
use base::{Cas, Datatype, DocKey, DurabilityLevel, VbId, VbState};
use dcp::Mode;
use engine::{
    Bucket, Completion, Durable, Mutated, Refusal, StoreMode, StoreRequest, SyncOutcome, topology_from_json,
};
use node::replication::{Password, Source, Sources};
use node::{Config, Settings};
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode, write_request};
use serde_json::json;
use server::Server;

mod support;

use support::Client;

const VBUCKETS: u16 = 8;
/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);
const LEVELS: [DurabilityLevel; 3] = [
    DurabilityLevel::Majority,
    DurabilityLevel::MajorityAndPersistOnActive,
    DurabilityLevel::PersistToMajority,
];

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

    /// A member of a cluster, with a bucket, that nobody tells anything.
    fn start_member() -> Node {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = config(folder.path());
        config.is_member = true;
        let server = server::serve(config, Env::real()).expect("the node starts");
        let bucket = node::config::BucketSpec::parse("default").expect("a name");
        server.node().create_bucket(bucket).expect("there is none yet");
        Node { server: Some(server), folder }
    }

    fn start_again(&mut self) {
        let config = config(self.folder.path());
        self.server = Some(server::serve(config, Env::real()).expect("the node starts"));
        eventually("the documents are loaded", || {
            let loading = |vb| read(&self.bucket(), VbId(vb), "x") == Err(Refusal::Loading);
            !(0..VBUCKETS).any(loading)
        });
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

    /// The name by which it takes part in sync writes.
    fn name(&self) -> String {
        self.server().kv_addr().to_string()
    }

    /// Has all vBuckets follow another node.
    fn follow(&self, source: &Node, mode: Mode) {
        let source = Source {
            node: source.name(),
            username: "Administrator".to_owned(),
            password: Password::from("password".to_owned()),
            mode,
        };
        let sources: Sources = (0..VBUCKETS).map(|vb| (VbId(vb), source.clone())).collect();
        self.server().node().replication().want(&self.bucket(), &sources).expect("they may");
    }

    fn follow_nobody(&self) {
        self.server().node().replication().want(&self.bucket(), &Sources::new()).expect("nothing is allowed");
    }

    /// Makes all its vBuckets active with chains of these nodes, itself first.
    fn lead(&self, replicas: &[&str]) {
        let own = self.name();
        let chain: Vec<&str> = std::iter::once(&*own).chain(replicas.iter().copied()).collect();
        let topology = topology_from_json(&json!([chain])).expect("a chain");
        for vb in 0..VBUCKETS {
            let led =
                self.bucket().roles().set_vbucket_state(VbId(vb), VbState::Active, Some(topology.clone()));
            led.expect("there is one");
        }
    }
}

fn config(folder: &Path) -> Config {
    let settings = format!(
        "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\n"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    Config::new(settings, folder.to_owned(), 1, String::new).expect("a valid configuration")
}

/// Waits for what other threads bring about.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "it never came about that {what}");
        std::thread::yield_now();
    }
}

fn vb_of(key: &str) -> VbId {
    vbucket_of(key.as_bytes(), VBUCKETS)
}

fn read(bucket: &Bucket, vb: VbId, key: &str) -> Result<Vec<u8>, Refusal> {
    let found = bucket.documents().get(vb, DocKey::new(key.as_bytes()), bucket.now())?;
    engine::value::plain(&found.version).map(std::borrow::Cow::into_owned)
}

fn write(node: &Node, key: &str, value: &str, durable: Option<Durable>) -> Result<Mutated, Refusal> {
    let request = StoreRequest {
        key: DocKey::new(key.as_bytes()),
        body: value.as_bytes(),
        datatype: Datatype::RAW,
        flags: 0,
        expiry: 0,
        mode: StoreMode::Set,
        cas: Cas::ANY,
        preserve_expiry: false,
    };
    let bucket = node.bucket();
    bucket.documents().durably(durable).store(vb_of(key), &request, bucket.now())
}

fn at(level: DurabilityLevel, timeout: Duration) -> Option<Durable> {
    Some(Durable { level, timeout })
}

fn prepare(
    node: &Node,
    key: &str,
    value: &str,
    level: DurabilityLevel,
    timeout: Duration,
) -> Completion<SyncOutcome> {
    let mutated = write(node, key, value, at(level, timeout)).expect("it is prepared");
    mutated.pending.expect("others must have it first")
}

/// What becomes of a sync write.
fn outcome(mut pending: Completion<SyncOutcome>) -> SyncOutcome {
    let mut outcome = None;
    eventually("it is decided", || {
        if let Poll::Ready(decided) = Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop())) {
            outcome = Some(decided.unwrap_or(SyncOutcome::GivenUp));
        }
        outcome.is_some()
    });
    outcome.expect("it was waited for")
}

fn decide(node: &Node, key: &str, value: &str, level: DurabilityLevel) -> SyncOutcome {
    outcome(prepare(node, key, value, level, PATIENCE))
}

#[test]
fn it_is_known_when_the_disk_and_each_replica_had_a_write() {
    let (active, replica) = (Node::start(), Node::start());
    active.lead(&[&replica.name()]);
    replica.follow(&active, Mode::Replicate);
    let times_of = |level| {
        let pending = prepare(&active, "k", "v", level, PATIENCE);
        eventually("it is decided", || pending.try_take() == Some(SyncOutcome::Committed));
        pending.times()
    };
    let both = times_of(DurabilityLevel::PersistToMajority);
    assert!(both.work_from_ns > 0 && both.work_from_ns <= both.work_until_ns, "{both:?}");
    assert!(both.replicas_ns[0] > 0 && both.replicas_ns[1..] == [0, 0], "{both:?}");
    assert!(times_of(DurabilityLevel::Majority).replicas_ns[0] > both.replicas_ns[0]);
}

#[test]
fn a_replica_has_what_is_committed_at_every_level() {
    let (active, replica) = (Node::start(), Node::start());
    active.lead(&[&replica.name()]);
    replica.follow(&active, Mode::Replicate);
    for (round, level) in (0..30).flat_map(|round| LEVELS.map(|level| (round, level))) {
        let (key, value) = (format!("k{}", round % 7), format!("{level:?} {round}"));
        assert_eq!(decide(&active, &key, &value, level), SyncOutcome::Committed);
        assert_eq!(read(&active.bucket(), vb_of(&key), &key), Ok(value.clone().into_bytes()));
        eventually("the replica has the commit", || {
            let bucket = replica.bucket();
            let found =
                bucket.documents().get_replica(vb_of(&key), DocKey::new(key.as_bytes()), bucket.now());
            found.is_ok_and(|found| {
                engine::value::plain(&found.version).is_ok_and(|plain| *plain == *value.as_bytes())
            })
        });
    }
}

#[test]
fn with_two_replicas_one_of_them_is_enough() {
    let (active, one, mut other) = (Node::start(), Node::start(), Node::start());
    active.lead(&[&one.name(), &other.name()]);
    one.follow(&active, Mode::Replicate);
    other.follow(&active, Mode::Replicate);
    for level in LEVELS {
        assert_eq!(decide(&active, "k", "both", level), SyncOutcome::Committed);
    }
    other.stop();
    for level in LEVELS {
        assert_eq!(decide(&active, "k", "one", level), SyncOutcome::Committed);
    }
}

#[test]
fn nobody_reads_what_only_one_of_two_nodes_has() {
    let (active, mut replica) = (Node::start(), Node::start());
    active.lead(&[&replica.name()]);
    replica.follow(&active, Mode::Replicate);
    assert_eq!(decide(&active, "k", "before", DurabilityLevel::Majority), SyncOutcome::Committed);
    replica.stop();
    for level in LEVELS {
        let pending = prepare(&active, "k", "never", level, Duration::from_millis(200));
        assert_eq!(read(&active.bucket(), vb_of("k"), "k"), Ok(b"before".to_vec()));
        assert_eq!(write(&active, "k", "x", None).err(), Some(Refusal::SyncWriteInProgress));
        assert_eq!(outcome(pending), SyncOutcome::Aborted);
        assert_eq!(read(&active.bucket(), vb_of("k"), "k"), Ok(b"before".to_vec()));
    }
    // The replica comes back, under another address, and follows again.
    replica.start_again();
    active.lead(&[&replica.name()]);
    replica.follow(&active, Mode::Replicate);
    for level in LEVELS {
        assert_eq!(decide(&active, "k", "after", level), SyncOutcome::Committed);
    }
    assert_eq!(read(&active.bucket(), vb_of("k"), "k"), Ok(b"after".to_vec()));
}

#[test]
fn who_becomes_active_commits_what_it_finds_prepared() {
    let (mut active, replica, absent) = (Node::start(), Node::start(), "absent:1");
    // Three nodes, one of which is never there: both others must have each write.
    active.lead(&[&replica.name(), absent]);
    replica.follow(&active, Mode::Replicate);
    assert_eq!(decide(&active, "k", "committed", DurabilityLevel::Majority), SyncOutcome::Committed);
    // With four nodes two are no majority.
    active.lead(&[&replica.name(), absent, "absent:2"]);
    let pending = prepare(&active, "k", "prepared", DurabilityLevel::Majority, PATIENCE);
    let in_flight =
        |node: &Node| node.bucket().inspect(vb_of("k"), |vb| vb.sync_writes().prepares_in_flight());
    eventually("the replica has the prepare", || in_flight(&replica) == Some(1));
    active.stop();
    assert_eq!(outcome(pending), SyncOutcome::GivenUp);
    replica.follow_nobody();
    replica.lead(&[absent]);
    let undecided = read(&replica.bucket(), vb_of("k"), "k");
    assert_eq!(undecided, Err(Refusal::ReCommitInProgress), "it may have been committed before");
    assert_eq!(write(&replica, "k", "x", None).err(), Some(Refusal::ReCommitInProgress));
    replica.lead(&[]);
    eventually("it is committed again", || in_flight(&replica) == Some(0));
    assert_eq!(read(&replica.bucket(), vb_of("k"), "k"), Ok(b"prepared".to_vec()));
    write(&replica, "k", "x", None).expect("nothing is in the way any more");
}

#[test]
fn a_member_of_a_cluster_that_took_over_is_no_majority_alone() {
    let (source, member) = (Node::start(), Node::start_member());
    let names = |nodes: &[&str]| topology_from_json(&json!([nodes])).expect("a chain");
    source.lead(&[]);
    assert_eq!(decide(&source, "k", "committed", DurabilityLevel::PersistToMajority), SyncOutcome::Committed);
    // What only the source has when it gives the vBucket away.
    source.lead(&["absent:1"]);
    let pending = prepare(&source, "k", "prepared", DurabilityLevel::Majority, PATIENCE);
    member.follow(&source, Mode::TakeOver);
    eventually("it took over", || {
        (0..VBUCKETS).all(|vb| member.bucket().state_of(VbId(vb)) == Some(VbState::Active))
    });
    assert_eq!(outcome(pending), SyncOutcome::GivenUp);
    let in_flight = || member.bucket().inspect(vb_of("k"), |vb| vb.sync_writes().prepares_in_flight());
    for level in LEVELS {
        let refused = write(&member, "other", "x", at(level, PATIENCE)).err();
        assert_eq!(refused, Some(Refusal::DurabilityImpossible));
    }
    assert_eq!(in_flight(), Some(1), "it is not committed by one node");
    assert_eq!(
        read(&member.bucket(), vb_of("k"), "k"),
        Err(Refusal::ReCommitInProgress),
        "the source may have committed it"
    );
    // Now it is told that it is alone.
    let alone = names(&[&member.name()]);
    for vb in 0..VBUCKETS {
        let led = member.bucket().roles().set_vbucket_state(VbId(vb), VbState::Active, Some(alone.clone()));
        led.expect("there is one");
    }
    eventually("it is committed", || in_flight() == Some(0));
    assert_eq!(read(&member.bucket(), vb_of("k"), "k"), Ok(b"prepared".to_vec()));
}

#[test]
fn who_stops_streams_until_the_sync_writes_that_clients_wait_for_are_decided() {
    let (mut active, replica) = (Node::start(), Node::start());
    active.lead(&[&replica.name()]);
    replica.follow(&active, Mode::Replicate);
    assert_eq!(decide(&active, "k", "before", DurabilityLevel::PersistToMajority), SyncOutcome::Committed);
    replica.bucket().flushing().hold_flusher(true);
    let mut client = Client::connect(active.server(), "default", &[]);
    let mut idle = Client::connect(active.server(), "default", &[]);
    let persist_to_majority = [0x11, 0x03];
    let mut request = Vec::new();
    let parts = RequestParts {
        opcode: opcode::SET,
        frame_infos: &persist_to_majority,
        extras: &[0; 8],
        key: b"k",
        value: b"after",
        vbucket: vb_of("k"),
        ..RequestParts::default()
    };
    assert!(write_request(&mut request, &parts));
    client.send(&request);
    let in_flight =
        |node: &Node| node.bucket().inspect(vb_of("k"), |vb| vb.sync_writes().prepares_in_flight());
    eventually("the replica has the prepare", || in_flight(&replica) == Some(1));
    std::thread::scope(|scope| {
        scope.spawn(|| active.stop());
        assert!(idle.try_receive().is_none(), "whoever waits for nothing is closed at once");
        replica.bucket().flushing().hold_flusher(false);
        assert_eq!(client.receive().status, Status::Success);
        assert!(client.try_receive().is_none());
    });
    eventually("the replica has the commit", || in_flight(&replica) == Some(0));
}

#[test]
fn nothing_that_was_committed_is_lost_when_nodes_change_places() {
    let (mut one, mut other) = (Node::start(), Node::start());
    let mut ledger = std::collections::BTreeMap::new();
    for round in 0..6_u32 {
        one.lead(&[&other.name()]);
        other.follow(&one, Mode::Replicate);
        for n in 0..60_u32 {
            let (key, level) = (format!("k{}", (round * 7 + n) % 50), LEVELS[n as usize % 3]);
            let value = format!("{round}.{n}");
            assert_eq!(decide(&one, &key, &value, level), SyncOutcome::Committed);
            ledger.insert(key, value);
        }
        // The active one goes away without a word, the other one takes its place.
        one.stop();
        other.follow_nobody();
        std::mem::swap(&mut one, &mut other);
        one.lead(&[]);
        for (key, value) in &ledger {
            eventually("prepares are committed again", || {
                one.bucket().inspect(vb_of(key), |vb| vb.sync_writes().prepares_in_flight()) == Some(0)
            });
            assert_eq!(read(&one.bucket(), vb_of(key), key), Ok(value.clone().into_bytes()), "{key}");
        }
        other.start_again();
        (0..VBUCKETS).for_each(|vb| {
            other.bucket().roles().set_vbucket_state(VbId(vb), VbState::Replica, None).expect("there is one");
        });
    }
}

/// The client has agreed to another order of answers, and to no statuses that were added later.
#[test]
fn a_connection_that_an_answer_would_mislead_is_closed_without_another_byte() {
    let node = Node::start();
    node.lead(&["another:1"]);
    let stream = TcpStream::connect(node.server().kv_addr()).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut client = Client::over(stream);
    let features = [Feature::AltRequestSupport, Feature::SyncReplication, Feature::UnorderedExecution];
    client.send(&node::fuzz::login(
        "Administrator",
        "password",
        "default",
        &Features::of(&features).encode(),
    ));
    for _ in 0..3 {
        assert_eq!(client.receive().status, Status::Success);
    }
    // Majority, within 1,500 ms.
    let frame_infos = [0x13, 1, 0x05, 0xdc];
    let set = RequestParts { opcode: opcode::SET, key: b"k", extras: &[0; 8], ..RequestParts::default() };
    let began = Instant::now();
    let vbucket = vbucket_of(b"k", VBUCKETS);
    assert_eq!(
        client.try_request(&RequestParts { frame_infos: &frame_infos, vbucket, ..set }).map(|_| ()),
        None
    );
    assert!(began.elapsed() < PATIENCE, "it was not closed");
}
