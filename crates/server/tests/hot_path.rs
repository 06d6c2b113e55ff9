//! What a get, a set and a new collection may cost: allocations, locks and writes, counted while they are served.
#![cfg(debug_assertions)] // locks are counted only there

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use base::VbId;
use base::env::Env;
use engine::{Bucket, BucketConfig};
use node::Node;
use node::cluster_map::NodeAddress;
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::connection::{Connection, Next};
use node::counters::WorkerCounters;
use node::fuzz::{feed, login};
use node::output::Output;
use node::sasl::hash::Hashing;
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};

const VBUCKETS: u16 = 4;
const KEYS: usize = 200;
const VALUE: &[u8] = &[b'x'; 512];
/// Requests in one batch.
const DEPTH: usize = 50;
const ROUNDS: usize = 400;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts for each thread how often it was asked for memory.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches no memory of its own but a
// thread-local number that needs neither allocation nor destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A connection to a node of its own, logged in, and a document for each key.
struct Desk {
    node: Arc<Node>,
    connection: Connection,
    out: Output,
}

impl Desk {
    fn new(features: &[Feature]) -> Desk {
        let mut desk = Desk::at(&node(Vec::new()), "admin", features).0;
        for _ in 0..2 {
            desk.rounds(&batches(opcode::SET, b"x"), 1);
        }
        desk
    }

    /// A connection of this user; also the allocations of its login.
    fn at(node: &Arc<Node>, user: &str, features: &[Feature]) -> (Desk, u64) {
        let mut connection = Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()));
        let bytes = login(user, "password", "default", &Features::of(features).encode());
        let before = ALLOCATIONS.get();
        let (answers, _) = feed(&mut connection, &bytes);
        let took = ALLOCATIONS.get() - before;
        assert_eq!(successes(&answers), 3, "a login");
        (Desk { node: Arc::clone(node), connection, out: Output::default() }, took)
    }

    /// Serves each batch so often; returns allocations and vBucket locks taken.
    fn rounds(&mut self, batches: &[Vec<u8>], rounds: usize) -> (u64, u64) {
        let before = (ALLOCATIONS.get(), engine::locks_taken());
        for batch in batches.iter().cycle().take(batches.len() * rounds) {
            let received = self.connection.receive(batch, &mut self.out);
            assert_eq!((received.consumed, received.next), (batch.len(), Next::Bytes(24)));
            let answers = self.out.as_bytes().expect("one run of bytes: one write");
            assert_eq!(successes(answers), DEPTH);
            self.out.clear();
        }
        (ALLOCATIONS.get() - before.0, engine::locks_taken() - before.1)
    }
}

/// A node with an administrator and other users.
fn node(mut users: Vec<UserSpec>) -> Arc<Node> {
    let (env, _) = Env::sim(1);
    let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("default", "/data/default".into()) };
    let store = Arc::new(kvstore::Memory::default());
    let bucket = Bucket::open(config, env.clone(), store).expect("an empty bucket opens");
    let spec = BucketSpec::parse("default").expect("a valid name");
    users.push(user("admin".to_owned(), Role::Admin));
    // How long a hash takes is not what is counted here.
    let hashing = Hashing { scram_iterations: 1, ..Hashing::default() };
    let users = Users::hashed(&users, hashing, &*env.random);
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 1 };
    let served = vec![Served { spec, bucket: Arc::new(bucket) }];
    Arc::new(Node::new(env, users, served, address, version, ConnectionLimits::default(), Vec::new()))
}

fn user(name: String, role: Role) -> UserSpec {
    UserSpec { name, password: "password".to_owned(), role, buckets: None }
}

/// Requests of one kind for every key, in batches.
fn batches(opcode: u8, value: &[u8]) -> Vec<Vec<u8>> {
    let extras: &[u8] = if opcode == opcode::SET { &[0; 8] } else { &[] };
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key-{n:016}")).collect();
    let batch = |keys: &[String]| {
        let mut bytes = Vec::new();
        for key in keys {
            let key = key.as_bytes();
            let vbucket: VbId = base::vbucket_map::vbucket_of(key, VBUCKETS);
            let parts = RequestParts { opcode, key, value, extras, vbucket, ..RequestParts::default() };
            assert!(write_request(&mut bytes, &parts));
        }
        bytes
    };
    keys.chunks(DEPTH).map(batch).collect()
}

/// Counts answers, all of which must be a success.
fn successes(mut answers: &[u8]) -> usize {
    let mut count = 0;
    while let ParsedResponse::Response { response, total_len } = parse_response(answers, 1 << 20) {
        assert_eq!(response.status(), Some(Status::Success));
        count += 1;
        answers = &answers[total_len..];
    }
    assert!(answers.is_empty(), "half an answer");
    count
}

const PLAIN: &[Feature] = &[Feature::Xerror];
const LIKE_AN_SDK: &[Feature] = &[
    Feature::Xerror,
    Feature::Json,
    Feature::Snappy,
    Feature::Xattr,
    Feature::MutationSeqno,
    Feature::Tracing,
    Feature::AltRequestSupport,
    Feature::UnorderedExecution,
    Feature::PreserveTtl,
];

#[test]
fn a_get_allocates_nothing_and_takes_one_lock() {
    for features in [PLAIN, LIKE_AN_SDK] {
        let mut desk = Desk::new(features);
        desk.rounds(&batches(opcode::SET, VALUE), 1);
        let gets = batches(opcode::GET, b"");
        // Timings are sampled: until the first sample there is no histogram.
        desk.rounds(&gets, 20);
        let served = (KEYS * ROUNDS) as u64;
        assert_eq!(desk.rounds(&gets, ROUNDS), (0, served), "{features:?}");
    }
}

#[test]
fn a_set_takes_one_version_from_the_heap_and_one_lock() {
    for features in [PLAIN, LIKE_AN_SDK] {
        let mut desk = Desk::new(features);
        let sets = batches(opcode::SET, VALUE);
        desk.rounds(&sets, 20);
        let served = (KEYS * ROUNDS) as u64;
        let (allocations, locks) = desk.rounds(&sets, ROUNDS);
        // The versions come from the bucket's heap; the chunks of the checkpoints hold 256 changes.
        assert!(allocations <= served / 64, "{allocations} for {served} sets");
        assert_eq!(locks, served);
    }
}

#[test]
fn locked_documents_make_nothing_dearer_for_others() {
    let mut desk = Desk::new(PLAIN);
    desk.rounds(&batches(opcode::SET, VALUE), 1);
    let bucket = desk.node.bucket("default").expect("it is served");
    for n in 0..20u32 {
        let key = format!("locked-{n}");
        let (key, vb) =
            (base::DocKey::new(key.as_bytes()), base::vbucket_map::vbucket_of(key.as_bytes(), VBUCKETS));
        let request = engine::StoreRequest {
            key,
            body: VALUE,
            datatype: base::Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: engine::StoreMode::Set,
            cas: base::Cas::ANY,
            preserve_expiry: false,
        };
        bucket.documents().store(vb, &request, bucket.now()).expect("stored");
        bucket.documents().get_and_lock(vb, key, 30, bucket.now()).expect("locked");
    }
    let gets = batches(opcode::GET, b"");
    desk.rounds(&gets, 20);
    assert_eq!(desk.rounds(&gets, ROUNDS), (0, (KEYS * ROUNDS) as u64));
    let sets = batches(opcode::SET, VALUE);
    desk.rounds(&sets, 20);
    let (allocations, _) = desk.rounds(&sets, ROUNDS);
    let served = (KEYS * ROUNDS) as u64;
    assert!(allocations <= served / 64, "{allocations} for {served} sets");
}

const SCOPED: u32 = 50;
/// The first collection that is made has this number.
const FIRST: u32 = 8;

/// Users with a role in each of the first collections of the bucket.
fn scoped_users(count: u32, roles: u32) -> Vec<UserSpec> {
    let roles: Vec<String> = (0..roles).map(|n| format!("data_reader[default:_default:c{n}]")).collect();
    let one = |n| user(format!("user-{n}"), Role::try_from(roles.join(",")).expect("roles"));
    (0..count).map(one).collect()
}

/// A node with these users and 50 collections, each of which has a document.
fn scoped_node(users: Vec<UserSpec>) -> Arc<Node> {
    let node = node(users);
    let one = |n: u32| format!(r#"{{"name":"c{n}","uid":"{:x}"}}"#, FIRST + n);
    let collections: Vec<String> = (0..SCOPED).map(one).collect();
    let json = format!(
        r#"{{"uid":"1","scopes":[{{"name":"_default","uid":"0","collections":[{{"name":"_default","uid":"0"}},{}]}}]}}"#,
        collections.join(",")
    );
    let manifest = vbucket::Manifest::parse(json.as_bytes()).expect("a manifest");
    node.bucket("default").expect("it is served").collections().set_manifest(manifest).expect("it is newer");
    let (mut admin, _) = Desk::at(&node, "admin", IN_COLLECTIONS);
    admin.rounds(&[in_collections(opcode::SET, b"x")], 1);
    node
}

const IN_COLLECTIONS: &[Feature] = &[Feature::Xerror, Feature::Collections];

/// A request for each of the collections.
fn in_collections(opcode: u8, value: &[u8]) -> Vec<u8> {
    let extras: &[u8] = if opcode == opcode::SET { &[0; 8] } else { &[] };
    let mut bytes = Vec::new();
    for n in 0..SCOPED {
        let key = base::DocKey { collection: base::CollectionId(FIRST + n), key: b"key" };
        let (prefix, len) = key.prefix();
        let key = [&prefix[..len], key.key].concat();
        let vbucket = base::vbucket_map::vbucket_of(b"key", VBUCKETS);
        let parts = RequestParts { opcode, key: &key, value, extras, vbucket, ..RequestParts::default() };
        assert!(write_request(&mut bytes, &parts));
    }
    bytes
}

/// What a login and a get do is counted, since time is not the same twice: a login does nothing for other users, and
/// reads its own roles once; a get does what it does for an administrator.
#[test]
fn a_thousand_users_with_fifty_roles_make_no_login_and_no_get_dearer() {
    let gets = in_collections(opcode::GET, b"");
    let cost = |users: u32, roles: u32| {
        let node = scoped_node(scoped_users(users, roles));
        let (_, login) = Desk::at(&node, "user-0", IN_COLLECTIONS);
        login
    };
    let (one, alone) = (cost(1, 1), cost(1, SCOPED));
    let node = scoped_node(scoped_users(1_000, SCOPED));
    let (mut desk, among) = Desk::at(&node, "user-500", IN_COLLECTIONS);
    println!("allocations of a login: {one} with one role, {alone} with {SCOPED}, {among} among 1,000 users");
    assert!(among <= alone + 2, "{among} among 1,000 users, {alone} alone");
    assert!(alone <= one + 8 * u64::from(SCOPED), "{alone} with {SCOPED} roles, {one} with one");
    // Timings are sampled, as above.
    desk.rounds(std::slice::from_ref(&gets), 80);
    let served = u64::from(SCOPED) * ROUNDS as u64;
    assert_eq!(desk.rounds(&[gets], ROUNDS), (0, served));
}

/// Makes collections one after the other.
struct Maker {
    bucket: Bucket,
    clock: base::env::SimHandles,
    made: u32,
}

impl Maker {
    const VBUCKETS: u16 = 64;

    /// Makes a collection, and says how many allocations that took.
    fn make(&mut self) -> u64 {
        self.made += 1;
        let before = ALLOCATIONS.get();
        let changed = self.bucket.collections().change_manifest(|present, next| {
            let mut new = present.successor();
            let (id, scope, name) = (next.collection, base::ScopeId(0), format!("c{}", self.made));
            let one = vbucket::Collection { id, scope, name, max_ttl_s: None, history: None };
            new.add_collection(one).expect("it is valid");
            Ok::<_, engine::ManifestRefusal>(new)
        });
        let took = ALLOCATIONS.get() - before;
        changed.expect("there is room");
        if self.made.is_multiple_of(20) {
            // What waits to be written would fill the share of the checkpoints.
            assert!(self.bucket.flushing().flush_all());
            self.clock.clock.advance(std::time::Duration::from_secs(2));
            while self.bucket.maintenance().keep_step() {}
        }
        took
    }

    /// The least that one of the next ten takes once there are as many as this.
    fn least_beside(&mut self, collections: u32) -> u64 {
        while self.made < collections {
            self.make();
        }
        (0..10).map(|_| self.make()).min().expect("ten")
    }
}

#[test]
fn a_collection_costs_little_more_however_many_there_are() {
    let (env, clock) = Env::sim(1);
    let config = BucketConfig::new("test", "/data/test".into());
    let config = BucketConfig { vbuckets: Maker::VBUCKETS, ..config };
    let store = Arc::new(kvstore::Memory::default());
    let bucket = Bucket::open(config, env, store).expect("an empty bucket opens");
    let mut maker = Maker { bucket, clock, made: 0 };
    let (few, many) = (maker.least_beside(90), maker.least_beside(1150));
    println!("{few} allocations beside 90 collections, {many} beside 1,150");
    assert!(few <= 8 * u64::from(Maker::VBUCKETS), "{few} for {} vBuckets", Maker::VBUCKETS);
    // What grows are the nodes of the manifest's three trees, which have at least five entries each.
    assert!(many - few < 1150 * 3 / 5, "{few} beside 90 collections, {many} beside 1,150");
}
