//! Replays the fuzz body for whole connections with fixed seeds: requests of every family that fit their row of the
//! table, and the same with damage, against a node whose documents are whatever came before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::SplitMix64;
use base::env::{Env, SimHandles};
use base::{Cas, VbId, VbState};
use engine::{Bucket, BucketConfig};
use node::Node;
use node::cluster_map::NodeAddress;
use node::command::{ROWS, Row};
use node::command_rules::{CasRule, Durability, Extras, Key, ValueRule};
use node::config::{BucketSpec, ConnectionLimits, Role, UserSpec};
use node::connection::Connection;
use node::counters::WorkerCounters;
use node::fuzz::{connection, feed, login};
use node::served::Served;
use node::user::Users;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, opcode, parse_response, write_request};

const VBUCKETS: u16 = 2;

fn node(seed: u64) -> (Arc<Node>, Arc<Bucket>, SimHandles) {
    let (env, handles) = Env::sim(seed);
    let dir = "/data/default";
    let config =
        BucketConfig { vbuckets: VBUCKETS, quota_bytes: 2 << 20, ..BucketConfig::new("default", dir.into()) };
    let store = kvstore::Couch::open(env.clone(), dir.as_ref(), kvstore::CouchConfig::default());
    let bucket = Bucket::open(config, env.clone(), Arc::new(store.expect("a new disk")));
    let bucket = Arc::new(bucket.expect("an empty bucket opens"));
    let admin = UserSpec {
        name: "admin".to_owned(),
        password: "password".to_owned(),
        role: Role::Admin,
        buckets: None,
    };
    let users = Users::new(&[admin], &*env.random);
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 1 };
    let spec = BucketSpec::parse("default").expect("a valid name");
    let served = vec![Served { spec, bucket: Arc::clone(&bucket) }];
    let node = Node::new(env, users, served, address, version, ConnectionLimits::default(), Vec::new());
    (Arc::new(node), bucket, handles)
}

fn one_of<T: Copy>(rng: &mut SplitMix64, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

/// Numbers at which arithmetic goes wrong.
fn number(rng: &mut SplitMix64) -> u64 {
    let edges =
        [0, 1, 2, 0x7fff_ffff, 0xffff_ffff, (1 << 48) - 1, 1 << 48, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    if rng.chance(1, 2) { one_of(rng, &edges) } else { rng.next_u64() >> rng.below(64) }
}

fn bytes(rng: &mut SplitMix64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        let number = number(rng).to_be_bytes();
        bytes.extend_from_slice(if len - bytes.len() < 8 { &number[4..] } else { &number });
    }
    bytes.truncate(len);
    bytes
}

fn extras(rng: &mut SplitMix64, row: &Row) -> Vec<u8> {
    let len = match row.extras {
        Extras::None => 0,
        Extras::Exactly(len) => len,
        Extras::OneOf(lens) => one_of(rng, lens),
        Extras::Any => one_of(rng, &[0, 1, 2, 4, 5, 8, 12, 20]),
    };
    bytes(rng, usize::from(len))
}

const PATHS: [&str; 12] =
    ["", "a", "a.b", "l", "l[0]", "l[-1]", "l[4294967295]", "_s", "_s.x", "u.y", "$document", "$XTOC"];
const VALUES: [&str; 8] =
    ["", "1", "-9223372036854775808", "\"${Mutation.CAS}\"", "{\"b\":[1]}", "[]", "not JSON", "null"];

/// Sub-document operations of a multi-path request (SubDocument.md): opcode, flags, lengths, path, value.
fn paths(rng: &mut SplitMix64, mutate: bool) -> Vec<u8> {
    let mut value = Vec::new();
    for _ in 0..rng.between(0, 17) {
        let (path, new) = (one_of(rng, &PATHS), one_of(rng, &VALUES));
        let codes: &[u8] = if mutate {
            &[0x01, 0x04, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf]
        } else {
            &[0x00, 0xc5, 0xc6, 0xd2]
        };
        value.extend_from_slice(&[one_of(rng, codes), one_of(rng, &[0, 0, 1, 4, 5, 0x14, 0x15])]);
        value.extend_from_slice(&(path.len() as u16).to_be_bytes());
        if mutate {
            value.extend_from_slice(&(new.len() as u32).to_be_bytes());
        }
        value.extend_from_slice(path.as_bytes());
        if mutate {
            value.extend_from_slice(new.as_bytes());
        }
    }
    value
}

/// A value with a section of xattrs in front.
fn with_xattrs(rng: &mut SplitMix64) -> Vec<u8> {
    let mut pairs = Vec::new();
    for key in ["_s", "u", "_sync"].into_iter().take(rng.between(0, 3) as usize) {
        let pair = [key.as_bytes(), b"\0{\"x\":1}\0"].concat();
        pairs.extend_from_slice(&(pair.len() as u32).to_be_bytes());
        pairs.extend_from_slice(&pair);
    }
    [&(pairs.len() as u32).to_be_bytes(), &pairs[..], b"{\"a\":1}"].concat()
}

fn compressed(value: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(value).expect("small values are compressed")
}

/// A value that fits the command, with the datatype to send it with.
fn value(rng: &mut SplitMix64, row: &Row) -> (Vec<u8>, u8) {
    match row.value {
        ValueRule::Forbidden => return (Vec::new(), 0),
        ValueRule::Exactly(len) => return (bytes(rng, usize::from(len)), 0),
        ValueRule::Optional | ValueRule::Required | ValueRule::InsteadOfKey => {}
    }
    match row.opcode {
        opcode::SUBDOC_MULTI_LOOKUP => return (paths(rng, false), 0),
        opcode::SUBDOC_MULTI_MUTATION => return (paths(rng, true), 0),
        _ => {}
    }
    let plain = match rng.below(6) {
        0 => b"{\"a\":{\"b\":1},\"l\":[1,2,3]}".to_vec(),
        1 => number(rng).to_string().into_bytes(),
        2 => vec![b'x'; rng.below(3000) as usize],
        3 => b"{\"topology\":[[\"a\",null]]}".to_vec(),
        4 => return (with_xattrs(rng), one_of(rng, &[0, 4, 5])),
        _ => {
            let len = rng.below(60) as usize;
            bytes(rng, len)
        }
    };
    if rng.chance(1, 3) { (compressed(&plain), 2) } else { (plain, one_of(rng, &[0, 0, 1])) }
}

fn key(rng: &mut SplitMix64, row: &Row) -> Vec<u8> {
    match row.key {
        Key::Forbidden => Vec::new(),
        // The leading zero is the default collection.
        Key::Document => [&[0u8][..], one_of(rng, &["a", "b", "c", "counter"]).as_bytes()].concat(),
        Key::Optional | Key::Required => {
            let keys = [
                "",
                "PLAIN",
                "SCRAM-SHA512",
                "default",
                "@no bucket@",
                "key a 0",
                "vbucket-details 1",
                "reset",
                "Read",
                "{\"a\":\"x\"}",
            ];
            one_of(rng, &keys).as_bytes().to_vec()
        }
    }
}

fn frame_infos(rng: &mut SplitMix64, row: &Row) -> Vec<u8> {
    let all: [&[u8]; 6] = [&[], &[], &[0x00], &[0x10 | 1, 1], &[0x10 | 3, 3, 0, 9], &[0x50]];
    let infos = one_of(rng, &all).to_vec();
    if rng.chance(1, 10) {
        bytes(rng, 3)
    } else if row.durability == Durability::Carried || infos.len() < 2 {
        infos
    } else {
        Vec::new()
    }
}

/// A request that fits its row, mostly.
fn request(rng: &mut SplitMix64, row: &Row, out: &mut Vec<u8>) {
    let ((mut value, datatype), mut extras) = (value(rng, row), extras(rng, row));
    if (0xc5..=0xd2).contains(&row.opcode) && !extras.is_empty() {
        let path = one_of(rng, &PATHS);
        value = [path.as_bytes(), one_of(rng, &VALUES).as_bytes()].concat();
        let flags = one_of(rng, &[0, 0, 1, 4, 5]);
        extras.splice(..extras.len().min(3), [0, path.len() as u8, flags]);
    }
    let cas = match row.cas {
        CasRule::Forbidden => 0,
        CasRule::Optional => one_of(rng, &[0, 0, 0, 1]),
        CasRule::Required => number(rng),
    };
    let parts = RequestParts {
        opcode: row.opcode,
        datatype: datatype & row.datatype,
        vbucket: VbId(if row.is_vbucket_zero { 0 } else { (rng.below(20) / 9) as u16 }),
        cas: Cas(cas),
        frame_infos: &frame_infos(rng, row),
        extras: &extras,
        key: &key(rng, row),
        value: &value,
        ..RequestParts::default()
    };
    assert!(write_request(out, &parts), "these requests are short");
}

/// Counts the answers by status.
fn count(node: &Arc<Node>, login: &[u8], bytes: &[u8], answers: &mut BTreeMap<&'static str, usize>) {
    let mut connection = Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()));
    feed(&mut connection, login);
    let (received, _) = feed(&mut connection, bytes);
    let mut rest = &received[..];
    while let ParsedResponse::Response { response, total_len } = parse_response(rest, 64 << 20) {
        *answers.entry(response.status().expect("a known status").name()).or_default() += 1;
        rest = &rest[total_len..];
    }
}

/// What must hold whatever clients sent: the counts are those of what is there.
fn check(bucket: &Bucket) {
    let mut used = 0;
    bucket.each_vbucket(|vb| {
        let bytes = vb.table().iter().map(|version| version.allocated_bytes() as u64).sum::<u64>();
        assert_eq!((vb.table().len() as u64, bytes), {
            let counts = vb.counts();
            (counts.documents + counts.tombstones, counts.bytes)
        });
        used += bytes;
    });
    assert!(bucket.memory().used_bytes() >= used, "what is in the tables is charged");
}

#[test]
fn requests_of_every_family() {
    let wanted = |feature: &Feature| *feature != Feature::TcpDelay;
    let features: Vec<Feature> = (0..=0xffu16).filter_map(Feature::from_code).filter(wanted).collect();
    let login = login("admin", "password", "default", &Features::of(&features).encode());
    let all: Vec<&Row> = ROWS.iter().collect();
    let documents: Vec<&Row> = ROWS.iter().filter(|row| row.key == Key::Document).collect();
    let (mut requests, mut answers) = (0, BTreeMap::new());
    for seed in 0..6 {
        let (node, bucket, handles) = node(seed);
        let mut rng = SplitMix64::new(seed);
        for round in 0..4000 {
            let mut bytes = Vec::new();
            for _ in 0..rng.between(1, 8) {
                // Mostly documents, so that requests meet what others left.
                let rows = if rng.chance(3, 4) { &documents } else { &all };
                let row = one_of(&mut rng, rows);
                request(&mut rng, row, &mut bytes);
                requests += 1;
            }
            for _ in 0..if rng.chance(1, 4) { rng.between(1, 3) } else { 0 } {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            connection(&node, &login, &bytes);
            if round % 10 == 0 {
                count(&node, &login, &bytes, &mut answers);
            }
            handles.clock.advance(Duration::from_millis(rng.below(2000)));
            if rng.chance(1, 20) {
                assert!(bucket.flushing().flush_all(), "the disk works");
            }
            if round % 10 == 9 {
                check(&bucket);
                for vb in (0..VBUCKETS).map(VbId) {
                    bucket.roles().set_vbucket_state(vb, VbState::Active, None).expect("there are so many");
                }
            }
        }
        assert!(bucket.flushing().flush_all(), "the disk works");
        check(&bucket);
    }
    println!("{requests} requests; of a tenth of them: {answers:?}");
    assert!(answers.len() > 15, "the requests get far enough to be answered in many ways");
}
