//! A node with an ephemeral bucket, as a client sees it over its socket: from the first write to the restart.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use base::env::Env;
use base::{Seqno, VbId};
use node::{Config, Settings};
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};
use server::Server;

const VBUCKETS: u16 = 4;
/// Of a durable write: number and length of the frame info, and the level.
const MAJORITY: [u8; 2] = [0x11, 1];
const MAJORITY_AND_PERSIST: [u8; 2] = [0x11, 2];
const PERSIST_TO_MAJORITY: [u8; 2] = [0x11, 3];

fn start(folder: &Path) -> Server {
    let settings = format!(
        "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = {VBUCKETS}\n\
         buckets = [\"cache:64MiB:ephemeral\"]\n"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    let config = Config::new(settings, folder.to_owned(), 2, String::new).expect("a valid configuration");
    server::serve(config, Env::real()).expect("the node starts")
}

/// Status, extras and value of an answer.
type Told = (Status, Vec<u8>, Vec<u8>);

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    fn connect(server: &Server) -> Client {
        let stream = TcpStream::connect(server.kv_addr()).expect("the server listens");
        let mut client = Client { stream, received: Vec::new() };
        let features = Features::of(&[Feature::Xerror, Feature::MutationSeqno, Feature::AltRequestSupport]);
        let login = node::fuzz::login("Administrator", "password", "cache", &features.encode());
        client.stream.write_all(&login).expect("the server takes it");
        for _ in 0..3 {
            assert_eq!(client.receive().1.0, Status::Success);
        }
        client
    }

    /// The next answer with its key.
    fn receive(&mut self) -> (Vec<u8>, Told) {
        loop {
            if let ParsedResponse::Response { response, total_len } = parse_response(&self.received, 1 << 20)
            {
                let status = response.status().expect("a known status");
                let told = (status, response.extras.to_vec(), response.value.to_vec());
                let key = response.key.to_vec();
                self.received.drain(..total_len);
                return (key, told);
            }
            let mut chunk = vec![0; 1 << 16];
            let read = self.stream.read(&mut chunk).expect("the connection lives");
            assert!(read > 0, "the server closed the connection");
            self.received.extend_from_slice(&chunk[..read]);
        }
    }

    fn send(&mut self, request: &RequestParts<'_>) {
        let mut bytes = Vec::new();
        assert!(write_request(&mut bytes, request));
        self.stream.write_all(&bytes).expect("the server takes it");
    }

    fn ask(&mut self, request: &RequestParts<'_>) -> Told {
        self.send(request);
        self.receive().1
    }

    fn get(&mut self, key: &str) -> (Status, String) {
        let (status, _, value) = self.ask(&about(opcode::GET, key));
        (status, if status == Status::Success { text(&value) } else { String::new() })
    }

    /// The seqno of the write.
    fn set(&mut self, key: &str, value: &str) -> Seqno {
        let (status, extras, _) = self.ask(&set(key, value));
        assert_eq!(status, Status::Success);
        Seqno(number(&extras[8..16]))
    }

    fn stats(&mut self, group: &str) -> BTreeMap<String, String> {
        self.send(&RequestParts { opcode: opcode::STAT, key: group.as_bytes(), ..RequestParts::default() });
        let mut stats = BTreeMap::new();
        loop {
            let (key, (status, _, value)) = self.receive();
            assert_eq!(status, Status::Success, "{group}");
            if key.is_empty() {
                return stats;
            }
            stats.insert(text(&key), text(&value));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

fn vbucket(key: &str) -> VbId {
    base::vbucket_map::vbucket_of(key.as_bytes(), VBUCKETS)
}

fn about(opcode: u8, key: &str) -> RequestParts<'_> {
    RequestParts { opcode, key: key.as_bytes(), vbucket: vbucket(key), ..RequestParts::default() }
}

fn set<'a>(key: &'a str, value: &'a str) -> RequestParts<'a> {
    RequestParts { extras: &[0; 8], value: value.as_bytes(), ..about(opcode::SET, key) }
}

#[test]
fn documents_live_until_the_node_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let mut client = Client::connect(&server);
    for n in 0..100 {
        client.set(&format!("k{n}"), "some value");
    }
    assert_eq!(client.get("k1"), (Status::Success, "some value".to_owned()));
    assert_eq!(client.ask(&about(opcode::DELETE, "k2")).0, Status::Success);
    assert_eq!(client.get("k2").0, Status::KeyEnoent);
    let stats = client.stats("ephemeral");
    for (name, value) in [("ephemeral", "true"), ("seqlist_count", "100"), ("seqlist_deleted_count", "1")] {
        assert_eq!(stats[name], value, "{name}");
    }
    assert_eq!(client.stats("")["curr_items"], "99");
    server.stop().expect("a clean stop");

    let server = start(folder.path());
    let mut client = Client::connect(&server);
    assert_eq!(client.get("k1").0, Status::KeyEnoent);
    assert_eq!(client.stats("")["curr_items"], "0");
    client.set("k1", "anew");
    assert_eq!(client.get("k1"), (Status::Success, "anew".to_owned()));
    server.stop().expect("a clean stop");
}

#[test]
fn nothing_is_promised_of_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let mut client = Client::connect(&server);
    let durable = |infos| RequestParts { frame_infos: infos, ..set("k", "v") };
    assert_eq!(client.ask(&durable(&MAJORITY)).0, Status::Success);
    for level in [&MAJORITY_AND_PERSIST, &PERSIST_TO_MAJORITY] {
        assert_eq!(client.ask(&durable(level)).0, Status::DurabilityInvalidLevel);
    }
    let seqno = client.set("k", "w");
    let key = [&vbucket("k").0.to_be_bytes()[..], &[0, 1], b"k"].concat();
    let observe = RequestParts { opcode: opcode::OBSERVE, value: &key, ..RequestParts::default() };
    let (status, _, observed) = client.ask(&observe);
    // Behind vBucket, length and key stands the state: in memory and not persisted.
    assert_eq!((status, observed[5]), (Status::Success, 0));
    let of_vbucket = RequestParts { key: &[], ..about(opcode::GET_FAILOVER_LOG, "k") };
    let (status, _, log) = client.ask(&of_vbucket);
    assert_eq!((status, log.len()), (Status::Success, 16));
    let ask = RequestParts { opcode: opcode::OBSERVE_SEQNO, value: &log[..8], ..of_vbucket };
    let (status, _, observed) = client.ask(&ask);
    assert_eq!(status, Status::Success);
    assert_eq!(number(&observed[19..27]), seqno.0, "what is in memory is told");
    assert_eq!(number(&observed[11..19]), 0, "nothing is on disk");
    server.stop().expect("a clean stop");
}
