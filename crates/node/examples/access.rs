//! What a look at a user's rights costs beside a get, and what a login costs where many users have many roles.
//!
//! `cargo run --release -p node --example access`

use std::fmt::Write as _;
use std::sync::Arc;

use base::env::{Clock, Env};
use base::vbucket_map::vbucket_of;
use base::{CollectionId, DocKey};
use engine::{Bucket, BucketConfig};
use node::Node;
use node::cluster_map::NodeAddress;
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::connection::Connection;
use node::counters::WorkerCounters;
use node::fuzz::{feed, login};
use node::output::Output;
use node::privilege::{Privilege, Privileges};
use node::roles::{Permission, Rights};
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, opcode, write_request};
use vbucket::Manifest;

const VBUCKETS: u16 = 4;
const COLLECTIONS: u32 = 50;
const USERS: usize = 1_000;
/// Requests in one batch.
const DEPTH: usize = 16;
const ROUNDS: usize = 20_000;
const CHECKS: u32 = 20_000_000;
const VALUE: &[u8] = &[b'x'; 512];

/// The first collection that is made has this number.
const FIRST: u32 = 8;

fn manifest() -> Manifest {
    let one = |n: u32| format!(r#"{{"name":"c{n}","uid":"{:x}"}}"#, FIRST + n);
    let collections: Vec<String> = (0..COLLECTIONS).map(one).collect();
    let json = format!(
        r#"{{"uid":"1","scopes":[{{"name":"_default","uid":"0","collections":[{{"name":"_default","uid":"0"}},{}]}}]}}"#,
        collections.join(",")
    );
    Manifest::parse(json.as_bytes()).expect("a manifest")
}

fn user(name: String, roles: String) -> UserSpec {
    let role = Role::try_from(roles).expect("roles");
    UserSpec { name, password: "password".to_owned(), role, buckets: None }
}

/// `data_reader` in each collection.
fn scoped() -> String {
    (0..COLLECTIONS).fold(String::new(), |mut all, n| {
        let comma = if n > 0 { "," } else { "" };
        write!(all, "{comma}data_reader[default:_default:c{n}]").expect("a text takes it");
        all
    })
}

fn node() -> Arc<Node> {
    let (env, _) = Env::sim(1);
    let config = BucketConfig { vbuckets: VBUCKETS, ..BucketConfig::new("default", "/data/default".into()) };
    let bucket = Bucket::open(config, env.clone(), Arc::new(kvstore::Memory::default()));
    let bucket = bucket.expect("an empty bucket opens");
    bucket.collections().set_manifest(manifest()).expect("it is newer");
    let mut specs: Vec<UserSpec> = (0..USERS).map(|n| user(format!("user-{n}"), scoped())).collect();
    specs.push(user("admin".to_owned(), "admin".to_owned()));
    let users = Users::new(&specs, &*env.random);
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 1 };
    let spec = BucketSpec::parse("default").expect("a valid name");
    let served = vec![Served { spec, bucket: Arc::new(bucket) }];
    Arc::new(Node::new(env, users, served, address, version, ConnectionLimits::default(), Vec::new()))
}

fn connect(node: &Arc<Node>, user: &str) -> Connection {
    let mut connection = Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()));
    let features = Features::of(&[Feature::Xerror, Feature::Collections]).encode();
    feed(&mut connection, &login(user, "password", "default", &features));
    connection
}

/// One request for a key of each of some collections.
fn batch(opcode: u8, collections: std::ops::Range<u32>) -> Vec<u8> {
    let (extras, value): (&[u8], &[u8]) = if opcode == opcode::SET { (&[0; 8], VALUE) } else { (&[], &[]) };
    let mut bytes = Vec::new();
    for n in collections {
        let key = DocKey { collection: CollectionId(FIRST + n), key: b"a-key-of-20-bytes---" };
        let (prefix, len) = key.prefix();
        let key = [&prefix[..len], key.key].concat();
        let vbucket = vbucket_of(b"a-key-of-20-bytes---", VBUCKETS);
        let parts = RequestParts { opcode, key: &key, value, extras, vbucket, ..RequestParts::default() };
        assert!(write_request(&mut bytes, &parts));
    }
    bytes
}

/// Nanoseconds of a get, in the fastest of several runs.
fn get_ns(clock: &dyn Clock, connection: &mut Connection) -> f64 {
    let gets: Vec<Vec<u8>> =
        (0..3).map(|n| batch(opcode::GET, n * DEPTH as u32..(n + 1) * DEPTH as u32)).collect();
    let mut out = Output::default();
    let begun_ns = clock.monotonic_ns();
    for bytes in gets.iter().cycle().take(ROUNDS) {
        connection.receive(bytes, &mut out);
        assert!(out.len() > DEPTH * VALUE.len(), "all are found");
        out.clear();
    }
    (clock.monotonic_ns() - begun_ns) as f64 / (ROUNDS * DEPTH) as f64
}

/// Nanoseconds of a look at rights that are by collection.
fn check_ns(clock: &dyn Clock, rights: &Rights) -> f64 {
    let needed = Privileges::of(&[Privilege::Read]);
    let run = |work: &mut dyn FnMut(CollectionId) -> bool| {
        let begun_ns = clock.monotonic_ns();
        let allowed = (0..CHECKS).filter(|n| work(CollectionId(FIRST + n.wrapping_mul(7) % COLLECTIONS)));
        assert_eq!(allowed.count(), CHECKS as usize);
        (clock.monotonic_ns() - begun_ns) as f64 / f64::from(CHECKS)
    };
    let nothing = run(&mut |id| std::hint::black_box(id).0 >= FIRST);
    let check = |id| {
        rights.whole.has(Privilege::Read)
            || rights.check_collection(needed, std::hint::black_box(id)) == Permission::Allowed
    };
    run(&mut |id| check(id)) - nothing
}

fn main() {
    let clock = Env::real().clock;
    let node = node();
    let mut admin = connect(&node, "admin");
    feed(&mut admin, &batch(opcode::SET, 0..COLLECTIONS));
    let mut narrow = connect(&node, "user-500");
    let least = |a: f64, b: f64| a.min(b);
    let (mut of_admin, mut of_narrow) = (f64::MAX, f64::MAX);
    for _ in 0..7 {
        of_admin = least(of_admin, get_ns(&*clock, &mut admin));
        of_narrow = least(of_narrow, get_ns(&*clock, &mut narrow));
    }
    let manifest = Arc::new(manifest());
    let grants = node.accounts().users().get(b"user-500").expect("there").grants().to_vec();
    let rights = Rights::of(&grants, "default", &manifest, Privileges::NONE);
    let check = (0..7).map(|_| check_ns(&*clock, &rights)).fold(f64::MAX, least);
    let begun_ns = clock.monotonic_ns();
    (0..USERS).for_each(|n| drop(connect(&node, &format!("user-{n}"))));
    let login_us = (clock.monotonic_ns() - begun_ns) as f64 / 1e3 / USERS as f64;
    println!("a get in memory, without a socket: administrator    {of_admin:>8.1} ns");
    println!("the same, a user with {COLLECTIONS} scoped roles            {of_narrow:>8.1} ns");
    println!("the look at the rights alone                        {check:>8.2} ns");
    println!("hello, login and selecting the bucket, {USERS} users   {login_us:>8.1} us");
}
