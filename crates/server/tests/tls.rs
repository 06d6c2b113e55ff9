//! Clients that speak TLS: the binary protocol and HTTP, versions, certificates that change while the node runs, clients
//! that do not speak it, and clients that stall.
#![allow(clippy::disallowed_methods, reason = "these are clients, outside the server")]

#[path = "support/ca.rs"]
mod ca;
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::env::sim::SplitMix64;
use ca::Ca;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode, write_request};
use rcgen::KeyPair;
use rustls::crypto::cipher::OutboundPlainMessage;
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, RootCertStore,
    StreamOwned, SupportedCipherSuite, SupportedProtocolVersion, version,
};
use server::Server;
use support::{json, start, start_in, vb, world};

/// A node with TLS, its folder, and who signed its certificate.
struct Fixture {
    folder: tempfile::TempDir,
    ca: Ca,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = Ca::new();
        ca.write(folder.path(), &["127.0.0.1", "localhost"]);
        Fixture { folder, ca }
    }

    fn lines(&self) -> String {
        let of = |name: &str| self.folder.path().join(name).display().to_string();
        format!(
            "kv-tls = \"127.0.0.1:0\"\nhttp-tls = \"127.0.0.1:0\"\ntls-cert = {:?}\ntls-key = {:?}\n",
            of("node.pem"),
            of("node.key")
        )
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn start(&self, more: &str) -> Server {
        start(&self.data(), &format!("{}{more}", self.lines()))
    }

    fn versions(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        trusting(&self.ca, versions)
    }

    fn config(&self) -> Arc<ClientConfig> {
        self.versions(&[&version::TLS13, &version::TLS12])
    }
}

fn trusting(ca: &Ca, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der()).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

fn name() -> ServerName<'static> {
    ServerName::try_from("127.0.0.1").expect("a name")
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn connect(addr: SocketAddr, config: Arc<ClientConfig>) -> Stream {
    let session = ClientConnection::new(config, name()).expect("a session");
    StreamOwned::new(session, TcpStream::connect(addr).expect("the server listens"))
}

/// Why there is no session.
fn refusal(addr: SocketAddr, config: Arc<ClientConfig>) -> Option<String> {
    let mut stream = connect(addr, config);
    stream.conn.complete_io(&mut stream.sock).err().map(|error| error.to_string())
}

fn kvs(server: &Server) -> SocketAddr {
    server.kv_tls_addr().expect("it speaks TLS")
}

/// Status and value of the next answer.
fn receive(stream: &mut Stream) -> (u16, Vec<u8>) {
    receive_from(stream)
}

fn receive_from(stream: &mut impl Read) -> (u16, Vec<u8>) {
    let mut head = [0; 24];
    stream.read_exact(&mut head).expect("an answer");
    let len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
    let mut body = vec![0; len];
    stream.read_exact(&mut body).expect("all of it");
    let skip = usize::from(head[4]) + usize::from(u16::from_be_bytes([head[2], head[3]]));
    (u16::from_be_bytes([head[6], head[7]]), body.split_off(skip))
}

fn log_in(addr: SocketAddr, config: Arc<ClientConfig>) -> Stream {
    let mut stream = connect(addr, config);
    let features = Features::of(&[Feature::Xerror, Feature::Json]);
    let login = node::fuzz::login("Administrator", "password", "default", &features.encode());
    stream.write_all(&login).expect("sent");
    for _ in 0..3 {
        assert_eq!(receive(&mut stream).0, 0);
    }
    stream
}

fn request(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let extras: &[u8] = if opcode == opcode::SET { &[0; 8] } else { &[] };
    let parts = RequestParts { opcode, key, value, extras, vbucket: vb(key), ..RequestParts::default() };
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, &parts));
    bytes
}

fn ask(stream: &mut Stream, opcode: u8, key: &[u8], value: &[u8]) -> (u16, Vec<u8>) {
    stream.write_all(&request(opcode, key, value)).expect("sent");
    receive(stream)
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = support::http(server, "GET", "/metrics", "").1;
    let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).expect("a figure") as u64
}

/// Does not compress, so that every byte counts.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn documents_of_any_size_are_stored_and_read_in_every_version() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    for versions in [&[&version::TLS13], &[&version::TLS12]] {
        let mut client = log_in(kvs(&server), fixture.versions(versions));
        for len in [0, 1, 1_000, 16_383, 16_384, 16_385, 65_536, 200_000, 20 << 20] {
            let value = noise(len);
            assert_eq!(ask(&mut client, opcode::SET, b"k", &value).0, 0, "{len}");
            let (status, read) = ask(&mut client, opcode::GET, b"k", b"");
            assert_eq!((status, read.len()), (0, len));
            assert!(read == value, "{len} bytes are others");
        }
    }
    server.stop().expect("a clean stop");
}

#[test]
fn requests_that_come_together_are_answered_in_order() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let mut client = log_in(kvs(&server), fixture.config());
    let keys: Vec<String> = (0..2_000).map(|n| format!("key-{n}")).collect();
    let value = |key: &str| key.repeat(1 + key.len() * 7);
    let sets: Vec<u8> =
        keys.iter().flat_map(|key| request(opcode::SET, key.as_bytes(), value(key).as_bytes())).collect();
    let gets: Vec<u8> = keys.iter().flat_map(|key| request(opcode::GET, key.as_bytes(), b"")).collect();
    // In pieces that fit no record, and no frame.
    for piece in sets.chunks(1_237).chain(gets.chunks(7_001)) {
        client.write_all(piece).expect("sent");
    }
    for _ in &keys {
        assert_eq!(receive(&mut client).0, 0);
    }
    for key in &keys {
        assert_eq!(receive(&mut client), (0, value(key).into_bytes()));
    }
    server.stop().expect("a clean stop");
}

#[test]
fn http_is_answered_and_maps_tell_the_ports() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let addr = server.http_tls_addr().expect("it speaks TLS");
    let mut stream = connect(addr, fixture.config());
    let credentials = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, "Administrator:password");
    let request = format!(
        "GET /pools/default/nodeServices HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {credentials}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer, and the end of the session told");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let map = json(&server, "/pools/default/nodeServices");
    let services = &map["nodesExt"][0]["services"];
    assert_eq!(services["kvSSL"], kvs(&server).port());
    assert_eq!(services["mgmtSSL"], addr.port());
    let nodes = json(&server, "/pools/default");
    assert_eq!(nodes["nodes"][0]["ports"]["httpsMgmt"], addr.port());
    assert_eq!(nodes["nodes"][0]["ports"]["directTLS"], kvs(&server).port());
    assert!(server.ready_line().contains(&format!(" kvs={} https={addr} ", kvs(&server))));
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_without_tls_tells_of_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let map = json(&server, "/pools/default/nodeServices");
    assert!(map["nodesExt"][0]["services"].get("kvSSL").is_none());
    assert!(!server.ready_line().contains("kvs="));
    server.stop().expect("a clean stop");
}

#[test]
fn who_trusts_another_ca_or_speaks_too_old_a_version_is_refused() {
    let fixture = Fixture::new();
    let server = fixture.start("tls-min-version = \"1.3\"\n");
    let old = refusal(kvs(&server), fixture.versions(&[&version::TLS12])).expect("refused");
    assert!(old.contains("ProtocolVersion"), "{old}");
    let stranger = refusal(kvs(&server), trusting(&Ca::new(), &[&version::TLS13])).expect("refused");
    assert!(stranger.contains("invalid peer certificate"), "{stranger}");
    // Neither has done anything to others.
    let mut client = log_in(kvs(&server), fixture.versions(&[&version::TLS13]));
    assert_eq!(ask(&mut client, opcode::SET, b"k", b"1").0, 0);
    server.stop().expect("a clean stop");
}

#[test]
fn no_other_cipher_suites_are_spoken_than_those_that_are_named() {
    let fixture = Fixture::new();
    let server = fixture.start("tls-cipher-suites = [\"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384\"]\n");
    let refused = refusal(kvs(&server), fixture.versions(&[&version::TLS13])).expect("no suite of 1.3");
    assert!(refused.contains("ProtocolVersion"), "{refused}");
    let client = log_in(kvs(&server), fixture.config());
    let spoken = client.conn.negotiated_cipher_suite().expect("a session").suite();
    assert_eq!(spoken, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
    drop(client);
    server.stop().expect("a clean stop");
    let server = fixture.start("tls-cipher-suites = [\"TLS_AES_128_GCM_SHA256\"]\n");
    assert!(refusal(kvs(&server), fixture.versions(&[&version::TLS12])).is_some());
    let client = log_in(kvs(&server), fixture.config());
    let spoken = client.conn.negotiated_cipher_suite().expect("a session").suite();
    assert_eq!(spoken, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    drop(client);
    server.stop().expect("a clean stop");
    // Nothing is served with what is no suite, or fits no version.
    for (more, says) in [
        ("tls-cipher-suites = [\"TLS_RSA_WITH_RC4_128_MD5\"]\n", "there are TLS_AES_256_GCM_SHA384, "),
        (
            "tls-cipher-suites = [\"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"]\ntls-min-version = \"1.3\"\n",
            "none of them is of TLS 1.3",
        ),
    ] {
        let config = support::config(&fixture.data(), 1, &format!("{}{more}", fixture.lines()));
        let told = server::serve(config, base::env::Env::real()).err().expect("refused").to_string();
        assert!(told.contains("tls-cipher-suites") && told.contains(says), "{told}");
    }
}

#[test]
fn plain_passwords_can_be_kept_to_encrypted_connections() {
    let fixture = Fixture::new();
    let server = fixture.start("sasl-mechanisms = [\"SCRAM-SHA512\", \"SCRAM-SHA1\"]\n");
    let mut clear = TcpStream::connect(server.kv_addr()).expect("it listens");
    clear.write_all(&request(opcode::SASL_LIST_MECHS, b"", b"")).expect("sent");
    assert_eq!(receive_from(&mut clear), (0, b"SCRAM-SHA512 SCRAM-SHA1".to_vec()));
    for (name, answer) in [("PLAIN", Status::AuthError), ("SCRAM-SHA256", Status::AuthError)] {
        let login = request(opcode::SASL_AUTH, name.as_bytes(), b"\0Administrator\0password");
        clear.write_all(&login).expect("sent");
        assert_eq!(receive_from(&mut clear).0, answer.code(), "{name}");
    }
    let first = request(opcode::SASL_AUTH, b"SCRAM-SHA1", b"n,,n=Administrator,r=abc");
    clear.write_all(&first).expect("sent");
    assert_eq!(receive_from(&mut clear).0, Status::AuthContinue.code());
    // With TLS nobody reads along.
    let mut client = log_in(kvs(&server), fixture.config());
    assert_eq!(ask(&mut client, opcode::SET, b"k", b"1").0, 0);
    let offered = ask(&mut client, opcode::SASL_LIST_MECHS, b"", b"");
    assert_eq!(offered, (0, b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN".to_vec()));
    server.stop().expect("a clean stop");
}

#[test]
fn who_does_not_speak_tls_is_told_so_and_closed() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let https = server.http_tls_addr().expect("it speaks TLS");
    let http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    for bytes in [&request(opcode::GET, b"k", b"")[..], http, &noise(4_096)] {
        for addr in [kvs(&server), https] {
            let mut stream = TcpStream::connect(addr).expect("the server listens");
            stream.write_all(bytes).expect("sent");
            let mut answer = Vec::new();
            // A client that speaks HTTP where that is spoken with TLS is told so in its own words.
            if addr == https && bytes == http {
                stream.read_to_end(&mut answer).expect("an answer");
                let answer = String::from_utf8(answer).expect("text");
                let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
                assert!(
                    head.starts_with("HTTP/1.1 400 Bad Request\r\n") && body.contains("https://"),
                    "{answer}"
                );
                assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{answer}");
                continue;
            }
            match stream.read_to_end(&mut answer) {
                // An alert of TLS (RFC 8446, 5.1: content type 21).
                Ok(_) => assert_eq!(answer.first(), Some(&21)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }
    let mut client = log_in(kvs(&server), fixture.config());
    assert_eq!(ask(&mut client, opcode::SET, b"k", b"1").0, 0);
    server.stop().expect("a clean stop");
}

#[test]
fn new_connections_are_made_with_new_certificates_and_old_ones_go_on() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let reload = |server: &Server| {
        let config = support::config(&fixture.data(), 2, &fixture.lines());
        server.reload(config)
    };
    let mut before = log_in(kvs(&server), fixture.config());
    assert!(reload(&server).taken.is_empty(), "nothing has changed");
    let other = Ca::new();
    other.write(fixture.folder.path(), &["127.0.0.1"]);
    let told = reload(&server);
    assert_eq!((told.taken.len(), told.refused.len(), told.waiting.len()), (1, 0, 0), "{told}");
    let other = trusting(&other, &[&version::TLS13]);
    log_in(kvs(&server), Arc::clone(&other));
    assert!(
        refusal(kvs(&server), fixture.config()).is_some_and(|why| why.contains("invalid peer certificate"))
    );
    assert_eq!(ask(&mut before, opcode::SET, b"k", b"1").0, 0);

    // A script that has to know asks; without files that are new nothing is done.
    let ask_to_reload = || support::http(&server, "POST", "/node/controller/reloadCertificate", "");
    let (status, told) = ask_to_reload();
    assert_eq!(status, 200, "{told}");
    assert!(told.contains("\"changed\":false") && told.contains("\"validUntil\":"), "{told}");

    // A key of another certificate, half a file, no file: what there was stays.
    let key = fixture.folder.path().join("node.key");
    let kept = std::fs::read(&key).expect("it is there");
    let spoiled: [(&str, Option<Vec<u8>>); 3] = [
        ("does not belong", Some(KeyPair::generate().expect("a key").serialize_pem().into_bytes())),
        ("the key", Some(kept[..kept.len() / 2].to_vec())),
        ("cannot read", None),
    ];
    for (why, bytes) in spoiled {
        match bytes {
            Some(bytes) => std::fs::write(&key, bytes).expect("written"),
            None => std::fs::remove_file(&key).expect("removed"),
        }
        let told = reload(&server);
        assert!(told.refused.iter().any(|told| told.contains(why)), "{why}: {told}");
        let (status, told) = ask_to_reload();
        assert!(status == 400 && told.contains(why), "{why}: {status} {told}");
        log_in(kvs(&server), Arc::clone(&other));
    }
    assert_eq!(ask(&mut before, opcode::GET, b"k", b""), (0, b"1".to_vec()));
    server.stop().expect("a clean stop");
}

#[test]
fn no_operation_fails_while_certificates_rotate() {
    const ROTATIONS: u32 = 10;
    let fixture = Fixture::new();
    let server = fixture.start("");
    let addr = kvs(&server);
    let is_over = AtomicBool::new(false);
    let (logins, operations) = (AtomicU32::new(0), AtomicU32::new(0));
    let (config, folder) = (fixture.config(), fixture.folder.path());
    let (config, is_over, logins, operations) = (&config, &is_over, &logins, &operations);
    let work = |is_lasting: bool| {
        let mut stream = log_in(addr, Arc::clone(config));
        while !is_over.load(Ordering::Relaxed) {
            if !is_lasting {
                stream = log_in(addr, Arc::clone(config));
                logins.fetch_add(1, Ordering::Relaxed);
            }
            assert_eq!(ask(&mut stream, opcode::SET, b"k", b"1").0, 0);
            operations.fetch_add(1, Ordering::Relaxed);
        }
    };
    let shown = || {
        let stream = log_in(addr, Arc::clone(config));
        stream.conn.peer_certificates().expect("it has shown them")[0].to_vec()
    };
    let told: Vec<((u16, String), Vec<u8>)> = std::thread::scope(|scope| {
        let workers = [true, false].map(|is_lasting| scope.spawn(move || work(is_lasting)));
        let rotate = |rotation: u32| {
            fixture.ca.write(folder, &["127.0.0.1", "localhost"]);
            let told = support::http(&server, "POST", "/node/controller/reloadCertificate", "");
            // Some log in before the next one.
            while logins.load(Ordering::Relaxed) < 5 * rotation
                && !workers.iter().any(|one| one.is_finished())
            {
                std::thread::yield_now();
            }
            (told, shown())
        };
        let told = (1..=ROTATIONS).map(rotate).collect();
        is_over.store(true, Ordering::Relaxed);
        told
    });
    assert!(told.iter().all(|((status, _), _)| *status == 200), "{told:?}");
    assert!(
        told.windows(2).all(|pair| pair[0].1 != pair[1].1),
        "connections are made with the newest certificate"
    );
    assert!(operations.load(Ordering::Relaxed) > logins.load(Ordering::Relaxed));
    server.stop().expect("a clean stop");
}

#[test]
fn files_that_change_are_noticed() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let other = Ca::new();
    other.write(fixture.folder.path(), &["127.0.0.1"]);
    let other = trusting(&other, &[&version::TLS13]);
    // It looks every other second. Until then connections are made as before.
    while refusal(kvs(&server), Arc::clone(&other))
        .is_some_and(|why| why.contains("invalid peer certificate"))
    {}
    log_in(kvs(&server), other);
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_does_not_start_with_what_is_no_certificate() {
    let fixture = Fixture::new();
    std::fs::write(fixture.folder.path().join("node.pem"), "nothing").expect("written");
    let why =
        support::try_start(&fixture.data(), &fixture.lines()).err().expect("it does not start").to_string();
    assert!(why.contains("node.pem") && why.contains("there is no certificate in it"), "{why}");
}

/// Bytes as a text in PEM.
fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A file that is cut, and a key that TLS is not spoken with, are told in words for who has to mend them.
#[test]
fn files_that_cannot_be_used_are_told_without_what_a_parser_sees() {
    let fixture = Fixture::new();
    let why = || support::try_start(&fixture.data(), &fixture.lines()).err().expect("no start").to_string();
    let path = |name: &str| fixture.folder.path().join(name);
    let certificate = std::fs::read_to_string(path("node.pem")).expect("it is there");
    std::fs::write(path("node.pem"), &certificate[..certificate.len() / 2]).expect("written");
    let cut = why();
    assert!(cut.contains("it ends before the line -----END CERTIFICATE-----: it was cut"), "{cut}");
    std::fs::write(path("node.pem"), &certificate).expect("written");
    // A key to agree on secrets, which signs nothing.
    let signs = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key").serialize_der();
    let at = signs.windows(3).position(|bytes| bytes == [0x2b, 0x65, 0x70]).expect("its algorithm");
    let agrees = [&signs[..at + 2], &[0x6e], &signs[at + 3..]].concat();
    std::fs::write(path("node.key"), pem("PRIVATE KEY", &agrees)).expect("written");
    let other = why();
    assert!(
        other.contains("the key: it cannot be used for TLS (the key of the certificate is ECDSA"),
        "{other}"
    );
    std::fs::write(path("node.key"), "no key").expect("written");
    let none = why();
    assert!(none.contains("there is no private key in it"), "{none}");
}

/// A certificate that serves and is not for all clients, and what is no CA, are told when the files are read again; so is what
/// counts since when.
#[test]
fn who_has_the_files_read_again_is_told_what_counts_and_what_is_unfit() {
    let fixture = Fixture::new();
    let path = |name: &str| fixture.folder.path().join(name);
    let (leaf, _) =
        fixture.ca.sign(|params| params.distinguished_name.push(rcgen::DnType::CommonName, "leaf"));
    std::fs::write(path("ca.pem"), pem("CERTIFICATE", &leaf[0]) + &fixture.ca.pem()).expect("written");
    let server = fixture.start(&format!("tls-ca = {:?}\n", path("ca.pem")));
    let reload = || {
        let (status, told) = support::http(&server, "POST", "/node/controller/reloadCertificate", "");
        assert_eq!(status, 200, "{told}");
        serde_json::from_str::<serde_json::Value>(&told).expect("JSON")
    };
    let first = reload();
    assert_eq!((&first["cas"], &first["casChanged"]), (&1.into(), &false.into()), "{first}");
    assert!(first["warnings"].to_string().contains("is not one of a CA"), "{first}");
    std::fs::write(path("ca.pem"), Ca::new().pem() + &fixture.ca.pem()).expect("written");
    // Either this request or the look that the node takes by itself takes them.
    let second = reload();
    assert_eq!((&second["cas"], &second["since"]), (&2.into(), &first["since"]), "{second}");
    assert!(
        second["casSince"].as_u64() >= first["casSince"].as_u64() && second["casSince"].is_u64(),
        "{second}"
    );
    assert_eq!(second["warnings"], serde_json::json!([]));
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    fixture.ca.write_with(fixture.folder.path(), &["127.0.0.1", "localhost"], &[], &key);
    let told = reload()["warnings"].to_string();
    assert!(told.contains("Ed25519") && told.contains("ECDSA P-256 or RSA"), "{told}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_key_that_needs_a_password_is_refused_with_what_to_do() {
    let fixture = Fixture::new();
    for head in ["BEGIN ENCRYPTED PRIVATE KEY-----", "BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED"] {
        let key = format!("-----{head}\n\nAAAA\n-----END PRIVATE KEY-----\n");
        std::fs::write(fixture.folder.path().join("node.key"), key).expect("written");
        let why = support::try_start(&fixture.data(), &fixture.lines()).err().expect("no start").to_string();
        assert!(
            why.contains("the key: it is encrypted with a password") && why.contains("openssl pkey"),
            "{why}"
        );
    }
}

#[test]
fn who_stalls_before_it_speaks_is_cut_after_ten_seconds() {
    let fixture = Fixture::new();
    let (env, clock) = world();
    let server = start_in(env, &fixture.data(), &fixture.lines());
    let hello = {
        let mut session = ClientConnection::new(fixture.config(), name()).expect("a session");
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).expect("a hello");
        bytes
    };
    let parts = [&hello[..0], &hello[..hello.len() / 2], &hello[..]];
    let https = server.http_tls_addr().expect("it speaks TLS");
    for (addr, sent) in [kvs(&server), https].into_iter().flat_map(|addr| parts.map(|part| (addr, part))) {
        let mut stream = TcpStream::connect(addr).expect("the server listens");
        stream.write_all(sent).expect("sent");
        // Who has logged in meanwhile is not concerned.
        let mut client = log_in(kvs(&server), fixture.config());
        clock.advance(11);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(ask(&mut client, opcode::SET, b"k", b"1").0, 0);
    }
    server.stop().expect("a clean stop");
}

#[test]
fn damaged_records_end_their_own_connection_alone() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let mut client = log_in(kvs(&server), fixture.config());
    let hello = {
        let mut session = ClientConnection::new(fixture.config(), name()).expect("a session");
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).expect("a hello");
        bytes
    };
    let https = server.http_tls_addr().expect("it speaks TLS");
    let mut rng = SplitMix64::new(1);
    for round in 0..200 {
        let mut bytes = hello.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.extend_from_within(at..),
                _ => bytes[at] = rng.next_u64() as u8,
            }
        }
        let addr = if round % 2 == 0 { kvs(&server) } else { https };
        let mut stream = TcpStream::connect(addr).expect("the server listens");
        // It may be closed already.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
        assert_eq!(ask(&mut client, opcode::SET, b"k", b"1").0, 0);
    }
    assert_eq!(ask(&mut log_in(kvs(&server), fixture.config()), opcode::GET, b"k", b"").0, 0);
    server.stop().expect("a clean stop");
}

/// More than is taken at once comes behind what ends a session: it keeps no thread busy.
#[test]
fn what_follows_the_end_of_a_session_is_left_unread() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let https = server.http_tls_addr().expect("it speaks TLS");
    let credentials = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, "Administrator:password");
    for versions in [&version::TLS13, &version::TLS12] {
        let config = fixture.versions(&[versions]);
        // From who has logged in more is taken at once.
        let over_kv = log_in(kvs(&server), Arc::clone(&config));
        let mut over_http = connect(https, Arc::clone(&config));
        let request = format!("GET /pools HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {credentials}\r\n\r\n");
        over_http.write_all(request.as_bytes()).expect("sent");
        over_http.read_exact(&mut [0; 12]).expect("an answer");
        let mut stranger = connect(kvs(&server), config);
        stranger.conn.complete_io(&mut stranger.sock).expect("a session");
        for mut stream in [over_kv, over_http, stranger] {
            stream.conn.send_close_notify();
            let mut bytes = Vec::new();
            stream.conn.write_tls(&mut bytes).expect("the end");
            bytes.extend(noise(60_000));
            // It may be closed before it has taken all.
            let _ = stream.sock.write_all(&bytes).and_then(|()| stream.sock.shutdown(Shutdown::Write));
            let _ = stream.sock.read_to_end(&mut Vec::new());
        }
    }
    // Each thread of the node still serves.
    for _ in 0..4 {
        assert_eq!(ask(&mut log_in(kvs(&server), fixture.config()), opcode::SET, b"k", b"1").0, 0);
    }
    server.stop().expect("a clean stop");
}

/// A message of the handshake that says it is longer than a session keeps, behind the handshake: it never becomes whole.
#[test]
fn a_message_behind_the_handshake_that_is_too_long_ends_the_session() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let mut config = ClientConfig::clone(&fixture.versions(&[&version::TLS13]));
    config.enable_secret_extraction = true;
    let config = Arc::new(config);
    // More of them than the node has threads.
    for _ in 0..4 {
        let mut stranger = connect(kvs(&server), Arc::clone(&config));
        stranger.conn.complete_io(&mut stranger.sock).expect("a session");
        let Some(SupportedCipherSuite::Tls13(suite)) = stranger.conn.negotiated_cipher_suite() else {
            panic!("it is TLS 1.3")
        };
        let (conn, mut sock) = (stranger.conn, stranger.sock);
        let (first, secrets) = conn.dangerous_extract_secrets().expect("they may be taken").tx;
        let (key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
            _ => panic!("another cipher"),
        };
        let mut encrypter = suite.aead_alg.encrypter(key, iv);
        // A key update (RFC 8446, 4): its type, and a length of 24 bits.
        let message = [&[24, 0, 0xff, 0xff][..], &[0; 80_000]].concat();
        let mut bytes = Vec::new();
        for (seq, payload) in (first..).zip(message.chunks(16_000)) {
            let (typ, version) = (ContentType::Handshake, ProtocolVersion::TLSv1_2);
            let plain = OutboundPlainMessage { typ, version, payload: payload.into() };
            bytes.extend(encrypter.encrypt(plain, seq).expect("encrypted").encode());
        }
        let _ = sock.write_all(&bytes);
        sock.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a limit");
        let ended = sock.read_to_end(&mut Vec::new());
        let is_late =
            |error: &std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!ended.as_ref().is_err_and(is_late), "it is closed: {ended:?}");
    }
    for _ in 0..4 {
        assert_eq!(ask(&mut log_in(kvs(&server), fixture.config()), opcode::SET, b"k", b"1").0, 0);
    }
    server.stop().expect("a clean stop");
}

#[test]
fn a_hello_that_does_not_end_is_not_kept() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    // A handshake message of 60,000 bytes in records of 16,000 (RFC 8446, 4 and 5.1).
    let record = |payload: &[u8]| {
        let len = u16::try_from(payload.len()).expect("it fits").to_be_bytes();
        [&[22, 3, 1, len[0], len[1]], payload].concat()
    };
    let message = [&[1, 0, 0xea, 0x60][..], &noise(31_996)].concat();
    let bytes = [record(&message[..16_000]), record(&message[16_000..])].concat();
    for addr in [kvs(&server), server.http_tls_addr().expect("it speaks TLS")] {
        let mut stream = TcpStream::connect(addr).expect("the server listens");
        stream.write_all(&bytes).expect("sent");
        // It is closed without the rest.
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
    server.stop().expect("a clean stop");
}

#[test]
fn who_quits_gets_all_answers_and_is_told_of_the_end() {
    let fixture = Fixture::new();
    let server = fixture.start("");
    let mut client = log_in(kvs(&server), fixture.config());
    assert_eq!(ask(&mut client, opcode::SET, b"k", &noise(60_000)).0, 0);
    for _ in 0..400 {
        client.write_all(&request(opcode::GET, b"k", b"")).expect("sent");
    }
    client.write_all(&request(opcode::QUITQ, b"", b"")).expect("sent");
    for _ in 0..400 {
        assert_eq!(receive(&mut client).0, 0);
    }
    assert_eq!(client.read(&mut [0]).expect("the session is ended, not cut"), 0);
    server.stop().expect("a clean stop");
}

#[test]
fn who_does_not_read_holds_no_more_than_its_share() {
    let fixture = Fixture::new();
    let (env, clock) = world();
    let server = start_in(env, &fixture.data(), &fixture.lines());
    let mut client = log_in(kvs(&server), fixture.config());
    assert_eq!(ask(&mut client, opcode::SET, b"big", &noise(8 << 20)).0, 0);
    for _ in 0..64 {
        client.write_all(&request(opcode::GET, b"big", b"")).expect("sent");
    }
    client.flush().expect("sent");
    let mut other = log_in(kvs(&server), fixture.config());
    assert_eq!(ask(&mut other, opcode::SET, b"k", b"1").0, 0);
    let held = metric(&server, "stave_connection_memory_bytes");
    assert!(held < 32 << 20, "{held} bytes are held for one client that does not read");
    // It takes nothing for longer than it may.
    clock.advance(61);
    while server.node().totals().cut == 0 {
        assert_eq!(ask(&mut other, opcode::GET, b"k", b""), (0, b"1".to_vec()));
    }
    let mut all = Vec::new();
    let ended = client.sock.read_to_end(&mut all);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    assert!(all.len() < 64 * (8 << 20), "it got everything: the node waited for it for ever");
    assert_eq!(ask(&mut other, opcode::GET, b"k", b""), (0, b"1".to_vec()));
    server.stop().expect("a clean stop");
}
