//! Compressed values on the wire: each client gets the form that it agreed on, and hostile blocks get nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use base::env::Env;
use base::{Datatype, DocKey, VbId, VbState};
use engine::{Bucket, BucketConfig};
use node::Node;
use node::cluster_map::NodeAddress;
use node::command::ROWS;
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::connection::Connection;
use node::counters::WorkerCounters;
use node::fuzz::{feed, login};
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};

const VB: VbId = VbId(0);

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which notes for each thread the most that it was asked for at once.
struct Noting;

// SAFETY: every call is passed on unchanged to the system's allocator; noting touches no memory of its own but a
// thread-local number that needs neither allocation nor destructor.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(new_size));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, new_size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

fn node() -> Arc<Node> {
    let (env, _) = Env::sim(1);
    let config = BucketConfig { vbuckets: 1, ..BucketConfig::new("default", "/data/default".into()) };
    let bucket = Bucket::open(config, env.clone(), Arc::new(kvstore::Memory::default()));
    let bucket = Arc::new(bucket.expect("an empty bucket opens"));
    let spec = BucketSpec::parse("default").expect("a valid name");
    let (name, password) = ("admin".to_owned(), "password".to_owned());
    let admin = UserSpec { name, password, role: Role::Admin, buckets: None };
    let users = Users::new(&[admin], &*env.random);
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 1 };
    let served = vec![Served { spec, bucket }];
    Arc::new(Node::new(env, users, served, address, version, ConnectionLimits::default(), Vec::new()))
}

/// A client that has logged in.
struct Client(Connection);

/// What it was answered.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    status: Option<Status>,
    datatype: u8,
    value: Vec<u8>,
}

const WITH: &[Feature] =
    &[Feature::Xerror, Feature::Json, Feature::Snappy, Feature::Xattr, Feature::AltRequestSupport];
const WITHOUT: &[Feature] = &[Feature::Xerror, Feature::Json, Feature::Xattr, Feature::AltRequestSupport];

impl Client {
    fn new(node: &Arc<Node>, features: &[Feature]) -> Client {
        let mut connection = Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()));
        feed(&mut connection, &login("admin", "password", "default", &Features::of(features).encode()));
        Client(connection)
    }

    /// Asks, and returns what was answered; nothing if the answer is silence.
    fn try_ask(&mut self, parts: &RequestParts<'_>) -> Option<Told> {
        let mut bytes = Vec::new();
        assert!(write_request(&mut bytes, parts), "it fits a frame");
        let (answer, _) = feed(&mut self.0, &bytes);
        let ParsedResponse::Response { response, .. } = parse_response(&answer, 64 << 20) else {
            return None;
        };
        let (status, datatype, value) = (response.status(), response.datatype, response.value.to_vec());
        Some(Told { status, datatype, value })
    }

    fn ask(&mut self, parts: &RequestParts<'_>) -> Told {
        self.try_ask(parts).expect("an answer")
    }

    fn get(&mut self, opcode: u8, key: &str) -> Told {
        let extras: &[u8] = if opcode == opcode::GAT { &[0, 0, 0, 9] } else { &[] };
        let key = if opcode == opcode::GET_RANDOM_KEY { "" } else { key };
        self.ask(&RequestParts { opcode, key: key.as_bytes(), extras, ..RequestParts::default() })
    }

    fn set(&mut self, key: &str, value: &[u8], datatype: Datatype) -> Option<Status> {
        let parts = RequestParts { opcode: opcode::SET, extras: &[0; 8], ..RequestParts::default() };
        self.ask(&RequestParts { key: key.as_bytes(), value, datatype: datatype.0, ..parts }).status
    }
}

fn pack(plain: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(plain).expect("it is short")
}

fn json() -> Vec<u8> {
    format!("{{\"text\":\"{}\",\"n\":1}}", "tomatoes ".repeat(3000)).into_bytes()
}

#[test]
fn each_client_gets_the_form_that_it_agreed_on() {
    let node = node();
    let bucket = node.bucket("default").expect("it is served");
    let (mut with, mut without) = (Client::new(&node, WITH), Client::new(&node, WITHOUT));
    let packed = Told { status: Some(Status::Success), datatype: 3, value: pack(&json()) };
    let plain = Told { status: Some(Status::Success), datatype: 1, value: json() };
    let part = Told { status: Some(Status::Success), datatype: 1, value: b"1".to_vec() };
    assert_eq!(with.set("by client", &pack(&json()), Datatype::SNAPPY), Some(Status::Success));
    assert_eq!(without.set("by bucket", &json(), Datatype::RAW), Some(Status::Success));
    assert!(bucket.flushing().flush_all());
    assert_eq!(bucket.compression().compress_value(VB, DocKey::new(b"by bucket")), Ok(true));
    for key in ["by client", "by bucket"] {
        for opcode in [opcode::GET, opcode::GETK, opcode::GAT, opcode::GET_RANDOM_KEY] {
            assert_eq!(with.get(opcode, key), packed, "{opcode:#x}");
            assert_eq!(without.get(opcode, key), plain, "{opcode:#x}");
        }
        // With compression switched off nobody gets anything compressed, although it is held so.
        bucket.set_param("compression_mode", "off").expect("a good value");
        assert_eq!(with.get(opcode::GET, key), plain);
        bucket.set_param("compression_mode", "passive").expect("a good value");
        bucket.roles().set_vbucket_state(VB, VbState::Replica, None).expect("set");
        assert_eq!(with.get(opcode::GET_REPLICA, key), packed);
        assert_eq!(without.get(opcode::GET_REPLICA, key), plain);
        bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("set");
        // A part of a document is never compressed.
        let look =
            RequestParts { opcode: opcode::SUBDOC_GET, key: key.as_bytes(), ..RequestParts::default() };
        let look = RequestParts { extras: &[0, 1, 0], value: b"n", ..look };
        assert_eq!(with.ask(&look), part);
        assert_eq!(without.ask(&look), part);
    }
    assert_eq!(with.get(opcode::GET_LOCKED, "by client"), packed);
    assert_eq!(without.get(opcode::GET_LOCKED, "by bucket"), plain);
}

#[test]
fn xattrs_of_a_compressed_value_do_not_travel_with_a_plain_read() {
    let node = node();
    let bucket = node.bucket("default").expect("it is served");
    let mut with = Client::new(&node, WITH);
    assert_eq!(with.set("a", &json(), Datatype::RAW), Some(Status::Success));
    let set = RequestParts { opcode: opcode::SUBDOC_DICT_UPSERT, key: b"a", ..RequestParts::default() };
    let set = RequestParts { extras: &[0, 6, 5], value: b"_sys.x42", ..set };
    assert_eq!(with.ask(&set).status, Some(Status::Success));
    assert!(bucket.flushing().flush_all());
    assert_eq!(bucket.compression().compress_value(VB, DocKey::new(b"a")), Ok(true));
    let plain = Told { status: Some(Status::Success), datatype: 1, value: json() };
    assert_eq!(with.get(opcode::GET, "a"), plain);
}

/// Blocks that claim much or are no blocks.
fn hostile() -> Vec<Vec<u8>> {
    let honest = pack(&[b'x'; 1000]);
    let two_gib = [&[0x80, 0x80, 0x80, 0x80, 0x08][..], &[0; 1000]].concat();
    vec![
        vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0, b'x'],
        two_gib,
        vec![0xff; 12],
        // 16 MiB, which would be allowed, out of three bytes
        vec![0x80, 0x80, 0x80, 0x08, 0, b'x', 0xfe],
        // 20 MiB and one byte
        vec![0x81, 0x80, 0x80, 0x0a, 0, b'x'],
        honest[..honest.len() - 1].to_vec(),
        [&[1][..], &honest[2..]].concat(),
        vec![64, 0, b'x', 0xfe, 0, 0],
        vec![60, 0xec, b'x'],
    ]
}

#[test]
fn a_hostile_block_is_refused_by_every_command_before_memory_is_taken_for_it() {
    let node = node();
    let bucket = node.bucket("default").expect("it is served");
    let mut client = Client::new(&node, WITH);
    assert_eq!(client.set("there", b"{\"n\":1}", Datatype::RAW), Some(Status::Success));
    let seqno = bucket.vbucket_stats(VB).expect("there").high_seqno;
    let takes_snappy = |bits: u8| Datatype(bits).is_snappy();
    let rows: Vec<_> = ROWS.iter().filter(|row| takes_snappy(row.datatype)).collect();
    assert!(rows.len() >= 5, "the stores, the joins, those with meta");
    LARGEST.set(0);
    for (row, block) in rows.iter().flat_map(|row| hostile().into_iter().map(move |block| (row, block))) {
        let lengths = [0, 8, 12, 24].map(|len| [0; 24][..len].to_vec());
        for (mut extras, key) in
            lengths.into_iter().flat_map(|extras| [(extras.clone(), "there"), (extras, "new")])
        {
            match extras.len() {
                // return meta: set
                12 => extras[3] = 1,
                // with meta: a revision and a CAS that would win
                24 => (extras[9], extras[17]) = (1, 1),
                _ => {}
            }
            for datatype in [2, 3, 6, 7] {
                let parts =
                    RequestParts { opcode: row.opcode, key: key.as_bytes(), ..RequestParts::default() };
                let told =
                    client.try_ask(&RequestParts { extras: &extras, value: &block, datatype, ..parts });
                let status = told.and_then(|told| told.status);
                assert_ne!(status, Some(Status::Success), "{} {datatype}", row.name);
            }
        }
    }
    assert!(LARGEST.get() < 1 << 20, "{} bytes were asked for at once", LARGEST.get());
    let stats = bucket.vbucket_stats(VB).expect("there");
    assert_eq!((stats.high_seqno, stats.documents), (seqno, 1), "nothing was stored");
}
