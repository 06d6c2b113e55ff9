//! Requests that have to wait for the disk: what is answered, when, and in which order.

use std::sync::Arc;
use std::task::{Context, Waker};

use base::env::Env;
use base::{Cas, Datatype, DocKey, Heap, NewVersion, Seqno, VbId, VersionMeta};
use engine::settings::Key;
use engine::{Bucket, BucketConfig, EvictionPolicy, Progress};
use kvstore::{Couch, CouchConfig, KvStore, SaveBatch};
use node::Node;
use node::cluster_map::NodeAddress;
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::connection::{Connection, Next};
use node::counters::WorkerCounters;
use node::fuzz::{feed, login};
use node::output::Output;
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};

const VBUCKETS: u16 = 4;

/// A node with one bucket, the store below it, and one client.
struct Desk {
    bucket: Arc<Bucket>,
    store: Arc<Couch>,
    connection: Connection,
    node: Arc<Node>,
}

/// Opcode, status, opaque and value of an answer.
type Told = (u8, Status, u32, String);

impl Desk {
    fn new(features: &[Feature]) -> Desk {
        Desk::open(&Env::sim(1).0, features)
    }

    /// A node on the disk of `env`, which has loaded nothing yet.
    fn open(env: &Env, features: &[Feature]) -> Desk {
        let config =
            BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("default", "/data/default".into()) };
        let store = Couch::open(env.clone(), &config.dir, CouchConfig::default());
        let store = Arc::new(store.expect("the disk works"));
        let bucket = Bucket::open_cold(config, env.clone(), store.clone()).expect("the disk works");
        let bucket = Arc::new(bucket);
        let spec = BucketSpec::parse("default").expect("a valid name");
        let admin = UserSpec {
            name: "admin".to_owned(),
            password: "password".to_owned(),
            role: Role::Admin,
            buckets: None,
        };
        let users = Users::new(&[admin], &*env.random);
        let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
        let version = ConfigVersion { epoch: 1, revision: 1 };
        let served = vec![Served { spec, bucket: bucket.clone() }];
        let limits = ConnectionLimits::default();
        let node = Arc::new(Node::new(env.clone(), users, served, address, version, limits, Vec::new()));
        let connection = client(&node, features);
        Desk { bucket, store, connection, node }
    }

    /// Sends requests; returns what is answered at once.
    fn send(&mut self, requests: &[RequestParts<'_>]) -> Vec<Told> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| assert!(write_request(&mut bytes, request)));
        let (answers, _) = feed(&mut self.connection, &bytes);
        told(&answers)
    }

    /// Polls what waits; returns what is answered.
    fn poll(&mut self) -> Vec<Told> {
        let mut out = Output::default();
        self.connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut out);
        told(&out.to_vec())
    }

    /// Does what background threads have to do, until nothing waits any more; returns what is answered meanwhile.
    fn settle(&mut self) -> Vec<Told> {
        let mut answers = Vec::new();
        while self.connection.has_later() {
            let (loaded, fetched) = (self.bucket.loading().load_step(), self.bucket.fetching().fetch_step());
            let polled = self.poll();
            let idle = (loaded, fetched) == (Progress::Idle, Progress::Idle) && polled.is_empty();
            assert!(!idle || !self.connection.has_later(), "it waits for nothing");
            answers.extend(polled);
        }
        answers
    }

    fn set_evicted(&mut self, key: &str, value: &str) {
        let answers = self.send(&[set(key, value, 0)]);
        assert_eq!(answers[0].1, Status::Success);
        assert!(self.bucket.flushing().flush_all());
        assert_eq!(self.bucket.eviction().evict_value(vb(key), DocKey::new(key.as_bytes())), Ok(true));
    }
}

fn client(node: &Arc<Node>, features: &[Feature]) -> Connection {
    let mut connection = Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()));
    feed(&mut connection, &login("admin", "password", "default", &Features::of(features).encode()));
    connection
}

fn vb(key: &str) -> VbId {
    base::vbucket_map::vbucket_of(key.as_bytes(), VBUCKETS)
}

fn request(opcode: u8, key: &str, opaque: u32) -> RequestParts<'_> {
    RequestParts { opcode, key: key.as_bytes(), vbucket: vb(key), opaque, ..RequestParts::default() }
}

fn get(key: &str, opaque: u32) -> RequestParts<'_> {
    request(opcode::GET, key, opaque)
}

fn set<'a>(key: &'a str, value: &'a str, opaque: u32) -> RequestParts<'a> {
    RequestParts { extras: &[0; 8], value: value.as_bytes(), ..request(opcode::SET, key, opaque) }
}

fn told(mut answers: &[u8]) -> Vec<Told> {
    let mut told = Vec::new();
    while let ParsedResponse::Response { response, total_len } = parse_response(answers, 1 << 20) {
        let value = String::from_utf8_lossy(response.value).into_owned();
        told.push((response.opcode, response.status().expect("known"), response.opaque, value));
        answers = &answers[total_len..];
    }
    assert!(answers.is_empty(), "half an answer");
    told
}

fn opaques(told: &[Told]) -> Vec<u32> {
    told.iter().map(|(_, _, opaque, _)| *opaque).collect()
}

const PLAIN: &[Feature] = &[Feature::Xerror];
const UNORDERED: &[Feature] = &[Feature::Xerror, Feature::UnorderedExecution];

#[test]
fn answers_stay_in_order_while_one_waits() {
    let mut desk = Desk::new(PLAIN);
    desk.set_evicted("cold", "old");
    let mut bytes = Vec::new();
    for request in
        [set("warm", "w", 1), get("warm", 2), get("cold", 3), get("warm", 4), set("cold", "new", 5)]
    {
        assert!(write_request(&mut bytes, &request));
    }
    let mut out = Output::default();
    let received = desk.connection.receive(&bytes, &mut out);
    assert_eq!(received.next, Next::Later);
    assert_eq!(opaques(&told(&out.to_vec())), [1, 2]);
    assert!(desk.poll().is_empty());
    assert_eq!(desk.bucket.fetching().fetch_step(), Progress::Worked);
    assert_eq!(desk.poll(), [(opcode::GET, Status::Success, 3, "old".into())]);
    let (answers, _) = feed(&mut desk.connection, &bytes[received.consumed..]);
    assert_eq!(opaques(&told(&answers)), [4, 5]);
    assert_eq!(desk.send(&[get("cold", 6)]), [(opcode::GET, Status::Success, 6, "new".into())]);
}

#[test]
fn others_overtake_where_that_was_agreed_on() {
    let mut desk = Desk::new(UNORDERED);
    desk.set_evicted("cold", "old");
    desk.send(&[set("warm", "w", 0)]);
    assert_eq!(opaques(&desk.send(&[get("cold", 1), get("warm", 2)])), [2]);
    assert_eq!(desk.settle(), [(opcode::GET, Status::Success, 1, "old".into())]);
}

#[test]
fn every_kind_of_reader_gets_its_value() {
    let mut desk = Desk::new(PLAIN);
    let touched = RequestParts { extras: &[0, 0, 0, 90], ..request(opcode::GAT, "k", 0) };
    let counted = [[0; 7].as_slice(), &[1], &[0; 12]].concat();
    let counter = RequestParts { extras: &counted, ..request(opcode::INCREMENT, "k", 0) };
    let path = RequestParts { extras: &[0, 0, 0], ..request(opcode::SUBDOC_GET, "k", 0) };
    let path = RequestParts { extras: &[0, 1, 0], value: b"a", ..path };
    let append = RequestParts { value: b"5", ..request(opcode::APPEND, "k", 0) };
    let cases = [
        (request(opcode::GETK, "k", 0), "41", "41"),
        (touched, "41", "41"),
        (request(opcode::GET_LOCKED, "k", 0), "41", "41"),
        (counter, "41", "\0\0\0\0\0\0\0*"),
        (path, r#"{"a": 7}"#, "7"),
        (append, "41", ""),
    ];
    for (request, stored, expected) in cases {
        let key = format!("k{}", request.opcode);
        desk.set_evicted(&key, stored);
        let request = RequestParts { key: key.as_bytes(), vbucket: vb(&key), ..request };
        assert_eq!(desk.send(&[request]), []);
        let answers = desk.settle();
        assert_eq!((answers[0].1, &answers[0].3[..]), (Status::Success, expected), "{:#x}", answers[0].0);
    }
    let answers = desk.send(&[get(&format!("k{}", opcode::APPEND), 0)]);
    assert_eq!(answers[0].3, "415");
}

#[test]
fn a_value_that_cannot_be_read_is_told_to_its_reader_alone() {
    let mut desk = Desk::new(UNORDERED);
    desk.set_evicted("lost", "x");
    let other = (0..).map(|n| format!("k{n}")).find(|key| vb(key) != vb("lost")).expect("there are others");
    desk.set_evicted(&other, "there");
    desk.store.delete_vbucket(vb("lost")).expect("the disk works");
    assert_eq!(desk.send(&[get("lost", 1), get(&other, 2)]), []);
    let mut answers = desk.settle();
    answers.sort_by_key(|(_, _, opaque, _)| *opaque);
    assert_eq!(answers[0].1, Status::Einternal);
    assert_eq!((answers[1].1, &answers[1].3[..]), (Status::Success, "there"));
}

#[test]
fn a_value_that_is_no_block_is_an_error_to_every_client() {
    for features in [&[Feature::Xerror, Feature::Snappy][..], PLAIN] {
        let (env, _) = Env::sim(3);
        let mut desk = Desk::open(&env, features);
        desk.set_evicted("bad", "x");
        let meta = VersionMeta {
            cas: Cas(9),
            by_seqno: Seqno(2),
            datatype: Datatype::SNAPPY,
            ..VersionMeta::default()
        };
        let bad = NewVersion::new(Heap::shared(), meta, DocKey::new(b"bad"), &[b"no block"]).publish();
        let state = desk.store.snapshot(vb("bad")).expect("readable").expect("there").state().expect("there");
        desk.store.save(vb("bad"), SaveBatch { items: &[bad], state: &state }).expect("the disk works");
        desk.bucket.close().expect("the disk works");

        let mut desk = Desk::open(&env, features);
        assert_eq!(desk.send(&[get("bad", 1)]), []);
        let answers = desk.settle();
        assert_eq!(answers, [(opcode::GET, Status::Einternal, 1, String::new())], "{features:?}");
        assert_eq!(desk.bucket.fetching().fetch_stats().failed, 1);
    }
}

#[test]
fn who_waits_when_the_node_stops_is_told_to_try_again() {
    let mut desk = Desk::new(PLAIN);
    desk.set_evicted("k", "v");
    assert_eq!(desk.send(&[get("k", 1)]), []);
    desk.bucket.fetching().stop_fetchers();
    assert_eq!(desk.poll(), [(opcode::GET, Status::Etmpfail, 1, String::new())]);
    assert_eq!(desk.send(&[get("k", 2)])[0].1, Status::Etmpfail);
}

#[test]
fn evict_key_takes_out_what_is_on_disk() {
    let mut desk = Desk::new(PLAIN);
    desk.send(&[set("k", "v", 0)]);
    assert_eq!(desk.send(&[request(opcode::EVICT_KEY, "none", 0)])[0].1, Status::KeyEnoent);
    assert_eq!(desk.send(&[request(opcode::EVICT_KEY, "k", 0)])[0].1, Status::KeyEexists);
    assert!(desk.bucket.flushing().flush_all());
    assert_eq!(desk.send(&[request(opcode::EVICT_KEY, "k", 0)])[0].1, Status::Success);
    assert_eq!(desk.bucket.stats().all().without_value, 1);
}

/// A node that has stopped with some documents and was started again.
fn restarted(features: &[Feature]) -> Desk {
    let (env, _) = Env::sim(2);
    let mut desk = Desk::open(&env, PLAIN);
    for n in 0..20 {
        desk.send(&[set(&format!("k{n}"), &format!("v{n}"), 0)]);
    }
    desk.bucket.close().expect("the disk works");
    Desk::open(&env, features)
}

#[test]
fn a_vbucket_that_is_being_loaded_is_waited_for() {
    let mut desk = restarted(UNORDERED);
    assert_eq!(desk.send(&[get("k1", 1), set("k2", "new", 2), get("none", 3)]), []);
    assert_eq!(desk.bucket.loading().load_step(), Progress::Worked);
    let mut answers = desk.settle();
    answers.sort_by_key(|(_, _, opaque, _)| *opaque);
    let statuses: Vec<Status> = answers.iter().map(|(_, status, ..)| *status).collect();
    assert_eq!(statuses, [Status::Success, Status::Success, Status::KeyEnoent]);
    assert_eq!(answers[0].3, "v1");
    assert_eq!(desk.send(&[get("k2", 4)])[0].3, "new");
}

#[test]
fn a_client_cannot_park_more_than_its_share() {
    let mut desk = restarted(UNORDERED);
    let value = "x".repeat(300_000);
    let sets: Vec<_> = (0..10).map(|n| set("k2", &value, n)).collect();
    let mut bytes = Vec::new();
    sets.iter().for_each(|request| assert!(write_request(&mut bytes, request)));
    let mut out = Output::default();
    let received = desk.connection.receive(&bytes, &mut out);
    assert_eq!(received.next, Next::Later);
    assert!(received.consumed < 1_300_000 && out.is_empty());
    assert_eq!(opaques(&desk.settle()), [0, 1, 2, 3]);
    let (answers, _) = feed(&mut desk.connection, &bytes[received.consumed..]);
    assert_eq!(opaques(&told(&answers)), [4, 5, 6, 7, 8, 9]);
}

#[test]
fn what_names_no_key_works_while_loading() {
    let mut desk = restarted(PLAIN);
    let random = RequestParts { opcode: opcode::GET_RANDOM_KEY, ..RequestParts::default() };
    assert_eq!(desk.send(&[random]), []);
    let answers = desk.settle();
    assert_eq!(answers[0].1, Status::Success);
    assert!(answers[0].3.starts_with('v'), "{answers:?}");
    let mut desk = restarted(PLAIN);
    let stat = format!("key k3 {}", vb("k3").0);
    let stat = RequestParts { opcode: opcode::STAT, key: stat.as_bytes(), ..RequestParts::default() };
    assert_eq!(desk.send(&[stat]), []);
    let answers = desk.settle();
    assert!(answers.len() > 3 && answers.iter().all(|(_, status, ..)| *status == Status::Success));
    let mut desk = restarted(PLAIN);
    let observed = [&vb("k4").0.to_be_bytes()[..], &[0, 2], b"k4"].concat();
    let observe = RequestParts { opcode: opcode::OBSERVE, value: &observed, ..RequestParts::default() };
    assert_eq!(desk.send(&[observe]), []);
    assert_eq!(desk.settle()[0].1, Status::Success);
    let mut desk = restarted(PLAIN);
    let stat = RequestParts { opcode: opcode::STAT, key: b"warmup", ..RequestParts::default() };
    let answers = desk.send(&[stat]);
    assert!(answers.iter().any(|(.., value)| value == "loading keys"));
    while desk.bucket.loading().load_step() != Progress::Idle {}
    while desk.bucket.loading().warm_step() != Progress::Idle {}
    let stat = RequestParts { opcode: opcode::STAT, key: b"warmup", ..RequestParts::default() };
    let answers = desk.send(&[stat]);
    assert!(answers.iter().any(|(.., value)| value == "done"));
    assert_eq!(desk.node.buckets().len(), 1);
}

#[test]
fn what_is_on_disk_alone_is_answered_as_if_it_were_not() {
    let mut desk = Desk::new(PLAIN);
    desk.bucket.settings().put(Key::EvictionPolicy, EvictionPolicy::Full as u64);
    let names: Vec<String> = (0..30).map(|n| format!("k{n}")).collect();
    names.iter().for_each(|name| desk.set_evicted(name, "v"));
    assert_eq!(desk.bucket.stats().all().evicted_documents, 30);
    let random = RequestParts { opcode: opcode::GET_RANDOM_KEY, ..RequestParts::default() };
    assert_eq!(desk.send(&[random]), []);
    assert_eq!(desk.settle()[0].3, "v");
    let key = |name: &str| [&vb(name).0.to_be_bytes()[..], &[0, name.len() as u8], name.as_bytes()].concat();
    let mut observed: Vec<u8> = names.iter().flat_map(|name| key(name)).collect();
    observed.extend(key("none"));
    let observe = RequestParts { opcode: opcode::OBSERVE, value: &observed, ..RequestParts::default() };
    assert_eq!(desk.send(&[observe]), [], "more keys than a request may look for one after the other");
    let answers = desk.settle();
    assert_eq!(answers[0].1, Status::Success);
    assert_eq!(desk.bucket.stats().all().evicted_documents, 0);
    for (name, opcode, expected) in [
        ("k1", opcode::ADD, Status::KeyEexists),
        ("k2", opcode::DELETE, Status::Success),
        ("k3", opcode::UNLOCK_KEY, Status::NotLocked),
        ("k4", opcode::GET_META, Status::Success),
        ("k5", opcode::EVICT_KEY, Status::Success),
        ("k6", opcode::REPLACE, Status::Success),
    ] {
        assert!(desk.bucket.flushing().flush_all());
        desk.bucket.eviction().evict_whole(vb(name), DocKey::new(name.as_bytes())).expect("it is there");
        let extras: &[u8] = if matches!(opcode, opcode::ADD | opcode::REPLACE) { &[0; 8] } else { &[] };
        let cas = if opcode == opcode::UNLOCK_KEY { base::Cas(1) } else { base::Cas::ANY };
        assert_eq!(desk.send(&[RequestParts { extras, cas, ..request(opcode, name, 0) }]), [], "{name}");
        assert_eq!(desk.settle()[0].1, expected, "{name}");
    }
}

#[test]
fn a_compaction_is_answered_when_it_is_done() {
    let mut desk = Desk::new(PLAIN);
    desk.send(&[set("k", "v", 0), request(opcode::DELETE, "k", 0), set("k2", "v", 0)]);
    assert!(desk.bucket.flushing().flush_all());
    let all = [[0; 16].as_slice(), &[1], &[0; 7]].concat();
    let compact = RequestParts { opcode: opcode::COMPACT_DB, vbucket: vb("k"), ..RequestParts::default() };
    let compact = RequestParts { extras: &all, opaque: 7, ..compact };
    assert_eq!(desk.send(&[compact]), []);
    let mut other = client(&desk.node, PLAIN);
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, &compact));
    let (answers, _) = feed(&mut other, &bytes);
    assert_eq!(told(&answers)[0].1, Status::Etmpfail, "it is under way already");
    assert!(desk.poll().is_empty());
    assert_eq!(desk.bucket.compaction().compact_step(), Progress::Worked);
    assert_eq!(desk.poll(), [(opcode::COMPACT_DB, Status::Success, 7, String::new())]);
    assert_eq!(desk.bucket.compaction().compaction_stats().runs, 1);
    let wrong = [[0; 16].as_slice(), &[2], &[0; 7]].concat();
    let answers = desk.send(&[RequestParts { extras: &wrong, ..compact }]);
    assert_eq!(answers[0].1, Status::Einval);
    let nowhere = RequestParts { vbucket: VbId(VBUCKETS), ..compact };
    assert_eq!(desk.send(&[nowhere])[0].1, Status::NotMyVbucket);
}
