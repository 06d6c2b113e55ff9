//! The bodies by name, with what a fuzzer begins with.

use std::cell::RefCell;
use std::sync::Arc;

use base::env::SimHandles;
use engine::{Bucket, BucketConfig};
use node::Node;
use node::cluster_map::NodeAddress;
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, opcode, write_request};

/// A body, and its seeds.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What is called with any bytes.
    pub body: fn(&[u8]),
    /// Bytes that are sound.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

const fn target(name: &'static str, body: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, body, seeds }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("requests", |bytes| _ = protocol::fuzz::requests(bytes), requests),
    target("responses", |bytes| _ = protocol::fuzz::responses(bytes), Vec::new),
    target("changes", |bytes| _ = protocol::fuzz::changes(bytes), messages),
    target("connection", connection, requests),
    target("consumer", dcp::fuzz::fuzz_consumer, dcp::fuzz::consumer_seeds),
    target("filter", dcp::fuzz::fuzz_filter, || {
        texts(&[r#"{"uid":"1","collections":["8"],"sid":3}"#, r#"{"scope":"8"}"#])
    }),
    target("json", subdoc::fuzz::fuzz_is_json, || texts(&[r#"{"a":[1,-2.5e3,"\u0041",null,true]}"#])),
    target("xattrs", subdoc::fuzz::fuzz_xattrs, || vec![XATTRS.to_vec()]),
    target("subdoc", subdoc::fuzz::fuzz_requests, || {
        vec![[&[0xd1, 5, 0, XATTRS.len() as u8][..], XATTRS].concat()]
    }),
    target("paths", subdoc::fuzz::fuzz_operations, || texts(&["\u{3}a.b\u{1}1\0{\"a\":{\"b\":[1]}}"])),
    target("couchstore", couchstore::fuzz::fuzz_damaged_file, kvstore::fuzz::store_seeds),
    target("store", kvstore::fuzz::fuzz_store, kvstore::fuzz::store_seeds),
    target("journal", kvstore::journal::fuzz::fuzz_recover, Vec::new),
    target("log_segment", logstore::fuzz::fuzz_segment, logstore::fuzz::segment_seeds),
    target("log_run", logstore::fuzz::fuzz_run, logstore::fuzz::run_seeds),
    target("log_manifest", logstore::fuzz::fuzz_manifest, logstore::fuzz::manifest_seeds),
    target("catalog", kvstore::catalog::fuzz::fuzz_catalog, kvstore::catalog::fuzz::catalog_seeds),
    target("manifest", vbucket::fuzz::fuzz_manifest, vbucket::fuzz::manifest_seeds),
    target("system_event", vbucket::fuzz::fuzz_system_event, Vec::new),
    target("doc_key", base::fuzz::fuzz_doc_key, Vec::new),
    target("small_file", base::fuzz::fuzz_small_file, base::fuzz::small_file_seeds),
    target("small_files", node::fuzz::small_files, || {
        texts(&[r#"{"buckets":[{"name":"a"}]}"#, r#"{"users":{}}"#])
    }),
    target("keys", base::fuzz::fuzz_keys, base::fuzz::key_seeds),
    target("encrypted_file", base::fuzz::fuzz_encrypted_file, base::fuzz::encrypted_file_seeds),
    target("view", cluster::fuzz::fuzz_view, cluster::fuzz::view_seeds),
    target("forms", node::fuzz::forms, || texts(&["name=a&ramQuotaMB=100&roles=data_reader[a:b:c]"])),
    target("pem", server::tls::fuzz::fuzz_pem, Vec::new),
    target("records", stave::fuzz::fuzz_records, stave::fuzz::record_seeds),
    target("configuration", node::fuzz::configuration, || {
        texts(&["password = \"secret1\"\nbuckets = [\"a:1GiB\"]\n"])
    }),
    target("block", stave::fuzz::fuzz_block, stave::fuzz::block_seeds),
    target("frame", stave::fuzz::fuzz_frame, stave::fuzz::frame_seeds),
    target("line", stave::fuzz::fuzz_line, stave::fuzz::line_seeds),
    target("map", stave::fuzz::fuzz_map, stave::fuzz::map_seeds),
];

const XATTRS: &[u8] = b"\0\0\0\x1e\0\0\0\x0e_sync\0{\"a\":1}\0\0\0\0\x08user\0[]\0{\"body\":1}";

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The requests among the frames of [`dcp::fuzz::consumer_seeds`].
fn messages() -> Vec<Vec<u8>> {
    let frames = dcp::fuzz::consumer_seeds().into_iter().flat_map(|seed| {
        let mut frames = Vec::new();
        let mut rest = &seed[..];
        while let Some(header) = rest.first_chunk::<{ protocol::HEADER_BYTES }>() {
            let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
            let (frame, behind) = rest.split_at(protocol::HEADER_BYTES + body as usize);
            if frame.first() == Some(&0x80) {
                frames.push(frame.to_vec());
            }
            rest = behind;
        }
        frames
    });
    frames.collect()
}

/// Some requests of several families, one after the other.
fn requests() -> Vec<Vec<u8>> {
    let parts = |opcode, extras: &'static [u8], key: &'static [u8], value: &'static [u8]| RequestParts {
        opcode,
        extras,
        key,
        value,
        ..RequestParts::default()
    };
    let all = [
        parts(opcode::SET, &[0; 8], b"\0k", b"{\"a\":1}"),
        parts(opcode::GET, b"", b"\0k", b""),
        parts(opcode::HELLO, b"", b"c", &[0, 4]),
    ];
    let mut bytes = Vec::new();
    for request in &all {
        assert!(write_request(&mut bytes, request), "these requests are short");
    }
    vec![bytes]
}

/// Calls that one node takes: making one costs more than a call.
const CALLS_OF_A_NODE: u32 = 64;

/// A node that was made for the thread, what logs in to it, and how many calls it has taken.
type Used = (Arc<Node>, Vec<u8>, u32);

thread_local! {
    static NODE: RefCell<Option<Used>> = const { RefCell::new(None) };
}

fn connection(bytes: &[u8]) {
    NODE.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|(_, _, calls)| *calls >= CALLS_OF_A_NODE) {
            *kept = Some((new_node(), login(), 0));
        }
        if let Some((node, login, calls)) = kept {
            *calls += 1;
            node::fuzz::connection(node, login, bytes);
        }
    });
}

fn login() -> Vec<u8> {
    let features = [Feature::Xattr, Feature::Json, Feature::Snappy, Feature::Collections, Feature::Xerror];
    let codes: Vec<u8> = features.iter().flat_map(|feature| (*feature as u16).to_be_bytes()).collect();
    let known = Features::decode(&codes).expect("an even length");
    node::fuzz::login("admin", "password", "default", &known.encode())
}

fn new_node() -> Arc<Node> {
    let env = SimHandles::new(1).env();
    let dir = "/data/default";
    let config =
        BucketConfig { vbuckets: 2, quota_bytes: 2 << 20, ..BucketConfig::new("default", dir.into()) };
    let store = kvstore::Memory::default();
    let bucket = Arc::new(Bucket::open(config, env.clone(), Arc::new(store)).expect("an empty bucket opens"));
    for vb in 0..2 {
        bucket.set_vbucket_state(base::VbId(vb), base::VbState::Active, None).expect("there is one");
    }
    let admin = UserSpec {
        name: "admin".to_owned(),
        password: "password".to_owned(),
        role: Role::Admin,
        buckets: None,
    };
    let users = Users::new(&[admin], &*env.random);
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 1 };
    let served = vec![Served { spec: BucketSpec::parse("default").expect("a valid name"), bucket }];
    Arc::new(Node::new(env, users, served, address, version, ConnectionLimits::default(), Vec::new()))
}
