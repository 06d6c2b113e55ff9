//! Clients that log in by a certificate: whom it stands for, over the binary protocol and HTTP, and who is not let in.
#![allow(clippy::disallowed_methods, reason = "these are clients, outside the server")]

#[path = "support/ca.rs"]
mod ca;
#[path = "support/full_disk.rs"]
mod full_disk;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use base::env::Env;
use ca::Ca;
use full_disk::{FullDisk, Gate};
use protocol::{RequestParts, Status, opcode, write_request};
use rcgen::{DnType, KeyPair, SanType};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use server::Server;
use support::{Client, json, start, vb};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A node that looks at the certificates of clients, and the CA that signs for both.
struct Fixture {
    folder: tempfile::TempDir,
    ca: Ca,
    server: Server,
}

impl Fixture {
    fn start(more: &str) -> Fixture {
        Fixture::start_in(Env::real(), more)
    }

    fn start_in(env: Env, more: &str) -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = Ca::new();
        let (certificate, key) = ca.write(folder.path(), &["127.0.0.1"]);
        let roots = folder.path().join("ca.pem");
        std::fs::write(&roots, ca.pem()).expect("written");
        let lines = format!("tls-cert = {certificate:?}\ntls-key = {key:?}\n{}", lines(&roots, more));
        let server = support::start_in(env, &folder.path().join("data"), &lines);
        Fixture { folder, ca, server }
    }

    /// Has the node go by another configuration, as SIGHUP does: with CAs from this file. What is refused.
    fn reload(&self, cas: &str, more: &str) -> Vec<String> {
        let path = |name: &str| self.folder.path().join(name);
        let (certificate, key) = (path("node.pem"), path("node.key"));
        let lines = format!("tls-cert = {certificate:?}\ntls-key = {key:?}\n{}", lines(&path(cas), more));
        self.server.reload(support::config(&path("data"), 2, &lines)).refused
    }

    fn kvs(&self) -> SocketAddr {
        self.server.kv_tls_addr().expect("it speaks TLS")
    }

    fn https(&self) -> SocketAddr {
        self.server.http_tls_addr().expect("it speaks TLS")
    }

    /// A client that trusts the node's CA, and shows a certificate that `issuer` signed for these names.
    fn client(&self, issuer: &Ca, common_name: &str, others: Vec<SanType>) -> Arc<ClientConfig> {
        showing(&[&self.ca], issuer, common_name, others)
    }

    fn without_certificate(&self) -> Arc<ClientConfig> {
        Arc::new(trusting(&[&self.ca]).with_no_client_auth())
    }
}

/// What is said of TLS beside certificate and key.
fn lines(cas: &std::path::Path, more: &str) -> String {
    format!("tls-ca = {cas:?}\nkv-tls = \"127.0.0.1:0\"\nhttp-tls = \"127.0.0.1:0\"\n{more}")
}

/// A client that trusts these CAs, and shows a certificate that `issuer` signed for these names.
fn showing(trusted: &[&Ca], issuer: &Ca, common_name: &str, others: Vec<SanType>) -> Arc<ClientConfig> {
    let (chain, key) = issuer.sign(|params| {
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = others;
    });
    let config = trusting(trusted).with_client_auth_cert(chain, key);
    Arc::new(config.expect("a certificate and its key"))
}

fn trusting(trusted: &[&Ca]) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = RootCertStore::empty();
    trusted.iter().for_each(|ca| roots.add(ca.der()).expect("a CA"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    builder.expect("versions").with_root_certificates(roots)
}

fn connect(addr: SocketAddr, config: Arc<ClientConfig>) -> Stream {
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let session = ClientConnection::new(config, name).expect("a session");
    StreamOwned::new(session, TcpStream::connect(addr).expect("the server listens"))
}

/// Sends requests together with the end of the handshake; the status of each answer.
fn ask(addr: SocketAddr, config: Arc<ClientConfig>, requests: &[RequestParts<'_>]) -> Vec<u16> {
    answers(addr, config, requests).into_iter().map(|(status, _)| status).collect()
}

/// The same, with what follows the header of each answer.
fn answers(addr: SocketAddr, config: Arc<ClientConfig>, requests: &[RequestParts<'_>]) -> Vec<(u16, String)> {
    answers_on(&mut connect(addr, config), requests)
}

fn answers_on(stream: &mut Stream, requests: &[RequestParts<'_>]) -> Vec<(u16, String)> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|parts| assert!(write_request(&mut bytes, parts)));
    stream.write_all(&bytes).expect("sent");
    let mut answer = || {
        let mut head = [0; 24];
        stream.read_exact(&mut head).expect("an answer");
        let mut body = vec![0; u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize];
        stream.read_exact(&mut body).expect("all of it");
        (u16::from_be_bytes([head[6], head[7]]), String::from_utf8_lossy(&body).into_owned())
    };
    requests.iter().map(|_| answer()).collect()
}

/// Selects the bucket, and writes a document.
fn writes() -> [RequestParts<'static>; 2] {
    let select = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"default", ..RequestParts::default() };
    let set = RequestParts { opcode: opcode::SET, key: b"k", value: b"1", extras: &[0; 8], ..select };
    [select, RequestParts { vbucket: vb(b"k"), ..set }]
}

/// The status line of an answer over HTTP to a request without user and password.
fn http_status(addr: SocketAddr, config: Arc<ClientConfig>) -> String {
    http_answer(addr, config).lines().next().unwrap_or_default().to_owned()
}

/// All of that answer.
fn http_answer(addr: SocketAddr, config: Arc<ClientConfig>) -> String {
    http_answer_with(addr, config, "")
}

/// The same with more lines in the head.
fn http_answer_with(addr: SocketAddr, config: Arc<ClientConfig>, lines: &str) -> String {
    let mut stream = connect(addr, config);
    let head = "GET /pools/default/buckets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    stream.write_all(format!("{head}{lines}\r\n").as_bytes()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

const DONE: u16 = Status::Success as u16;
const NO_ACCESS: u16 = Status::Eaccess as u16;

#[test]
fn a_client_is_the_user_that_its_certificate_names() {
    let fixture = Fixture::start("tls-client-auth = \"optional\"\n");
    let administrator = || fixture.client(&fixture.ca, "Administrator", Vec::new());
    assert_eq!(ask(fixture.kvs(), administrator(), &writes()), [DONE, DONE]);
    assert_eq!(http_status(fixture.https(), administrator()), "HTTP/1.1 200 OK");
    // SDKs whose users have certificates send an empty name and password over HTTP.
    for (login, expected) in
        [("Og==", "HTTP/1.1 200"), ("OnNlY3JldA==", "HTTP/1.1 401"), ("ZXZlOg==", "HTTP/1.1 401")]
    {
        let line = format!("Authorization: Basic {login}\r\n");
        let answer = http_answer_with(fixture.https(), administrator(), &line);
        assert!(answer.starts_with(expected), "{login}: {answer}");
    }
    let nobody =
        http_answer_with(fixture.https(), fixture.without_certificate(), "Authorization: Basic Og==\r\n");
    assert!(nobody.starts_with("HTTP/1.1 401"), "{nobody}");
    // One session after the other is begun with the same ticket, and has the same user.
    let again = administrator();
    for _ in 0..3 {
        assert_eq!(ask(fixture.kvs(), Arc::clone(&again), &writes()), [DONE, DONE]);
    }
    // Without a user of that name, and without a certificate, a client has no rights.
    for client in [fixture.client(&fixture.ca, "eve", Vec::new()), fixture.without_certificate()] {
        let statuses = ask(fixture.kvs(), Arc::clone(&client), &writes());
        assert!(statuses.iter().all(|status| *status == NO_ACCESS), "{statuses:?}");
        assert!(http_status(fixture.https(), client).starts_with("HTTP/1.1 401"), "no user");
    }
    // The first of them is told that its certificate names no user, the other one nothing of certificates.
    let eve = || fixture.client(&fixture.ca, "eve", Vec::new());
    let is_told = |said: &str| said.contains("certificate names user") && said.contains("eve");
    assert!(answers(fixture.kvs(), eve(), &writes()).iter().all(|(_, said)| is_told(said)), "over KV");
    assert!(is_told(&http_answer(fixture.https(), eve())), "over HTTP");
    let others = answers(fixture.kvs(), fixture.without_certificate(), &writes());
    assert!(others.iter().all(|(_, said)| said.is_empty()), "{others:?}");
    fixture.server.stop().expect("a clean stop");
}

#[test]
fn scripts_are_told_how_connections_are_protected() {
    let fixture = Fixture::start(
        "tls-client-auth = \"required\"\ntls-min-version = \"1.3\"\ncluster-encryption = \"all\"\n\
         tls-client-user = [\"san.uri prefix=urn:user: delimiters=@\", \"subject.cn\"]\n",
    );
    let security = json(&fixture.server, "/settings/security");
    assert_eq!(
        (&security["tlsMinVersion"], &security["clusterEncryptionLevel"]),
        (&"tlsv1.3".into(), &"all".into())
    );
    let rules = json(&fixture.server, "/settings/clientCertAuth");
    let wanted = r#"{"prefixes":[{"delimiter":"@","path":"san.uri","prefix":"urn:user:"},{"delimiter":"","path":"subject.cn","prefix":""}],"state":"mandatory"}"#;
    assert_eq!(rules.to_string(), wanted);
    fixture.server.stop().expect("a clean stop");
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    assert_eq!(json(&server, "/settings/security")["clusterEncryptionLevel"], "off");
    assert_eq!(json(&server, "/settings/clientCertAuth")["state"], "disable");
    server.stop().expect("a clean stop");
}

#[test]
fn the_first_rule_that_finds_a_name_counts() {
    let rules = "tls-client-auth = \"required\"\n\
                 tls-client-user = [\"san.uri prefix=urn:user: delimiters=@\", \"san.email delimiters=@\"]\n";
    let fixture = Fixture::start(rules);
    let uri = |text: &str| SanType::URI(text.try_into().expect("a URI"));
    let email = |text: &str| SanType::Rfc822Name(text.try_into().expect("an address"));
    for (others, status) in [
        (vec![uri("urn:user:Administrator@site"), email("eve@site")], DONE),
        (vec![uri("urn:other:eve"), email("Administrator@site")], DONE),
        (vec![uri("urn:user:eve"), email("Administrator@site")], NO_ACCESS),
        // The common name is no rule here.
        (Vec::new(), NO_ACCESS),
    ] {
        let client = fixture.client(&fixture.ca, "Administrator", others.clone());
        assert_eq!(ask(fixture.kvs(), client, &writes()), [status, status], "{others:?}");
    }
    // A client is told that the rules find no name in its certificate.
    let nameless = || fixture.client(&fixture.ca, "Administrator", Vec::new());
    let is_told = |said: &str| said.contains("No rule of tls-client-user");
    assert!(answers(fixture.kvs(), nameless(), &writes()).iter().all(|(_, said)| is_told(said)), "over KV");
    let answer = http_answer(fixture.https(), nameless());
    assert!(answer.starts_with("HTTP/1.1 401") && is_told(&answer), "{answer}");
    fixture.server.stop().expect("a clean stop");
}

#[test]
fn who_has_no_certificate_of_the_ca_is_not_let_in_where_one_is_required() {
    let fixture = Fixture::start("tls-client-auth = \"required\"\n");
    let impostor = fixture.client(&Ca::new(), "Administrator", Vec::new());
    for config in [fixture.without_certificate(), impostor] {
        for addr in [fixture.kvs(), fixture.https()] {
            let mut stream = connect(addr, Arc::clone(&config));
            // In TLS 1.3 a client learns of it when it reads.
            let refused =
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").and_then(|()| stream.read(&mut [0; 64]));
            let why = refused.expect_err("refused").to_string();
            // The other CA has the same name and another key.
            assert!(why.contains("CertificateRequired") || why.contains("DecryptError"), "{why}");
        }
    }
    let administrator = fixture.client(&fixture.ca, "Administrator", Vec::new());
    assert_eq!(ask(fixture.kvs(), administrator, &writes()), [DONE, DONE]);
    fixture.server.stop().expect("a clean stop");
}

/// First both sides trust both CAs, then each has a certificate of the new one, then the old one is trusted no more.
#[test]
fn no_operation_fails_while_the_ca_of_node_and_clients_changes() {
    let fixture = Fixture::start("tls-client-auth = \"required\"\n");
    let (addr, folder, old, new) = (fixture.kvs(), fixture.folder.path(), &fixture.ca, &Ca::new());
    let client = |trusted: &[&Ca], issuer: &Ca| showing(trusted, issuer, "Administrator", Vec::new());
    let before = client(&[old, new], old);
    let config = Mutex::new(client(&[old], old));
    let (is_over, logins, operations) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let now = || Arc::clone(&config.lock().expect("no holder panics"));
    let work = |is_lasting: bool| {
        let mut stream = connect(addr, now());
        while !is_over.load(Ordering::Relaxed) {
            if !is_lasting {
                stream = connect(addr, now());
            }
            assert!(answers_on(&mut stream, &writes()).iter().all(|(status, _)| *status == DONE));
            operations.fetch_add(1, Ordering::Relaxed);
            logins.fetch_add(u32::from(!is_lasting), Ordering::Relaxed);
        }
    };
    let node_trusts = |cas: &[&Ca]| {
        let pem: String = cas.iter().map(|ca| ca.pem()).collect();
        std::fs::write(folder.join("ca.pem"), pem).expect("written");
    };
    let clients_are = |next: Arc<ClientConfig>| *config.lock().expect("no holder panics") = next;
    let steps: [&dyn Fn(); 5] = [
        &|| node_trusts(&[old, new]),
        &|| clients_are(Arc::clone(&before)),
        &|| drop(new.write(folder, &["127.0.0.1"])),
        &|| clients_are(client(&[new], new)),
        &|| node_trusts(&[new]),
    ];
    std::thread::scope(|scope| {
        let workers = [true, false].map(|is_lasting| scope.spawn(move || work(is_lasting)));
        for step in steps {
            step();
            let (status, told) =
                support::http(&fixture.server, "POST", "/node/controller/reloadCertificate", "");
            assert_eq!(status, 200, "{told}");
            let seen = logins.load(Ordering::Relaxed);
            while logins.load(Ordering::Relaxed) < seen + 5 && !workers.iter().any(|one| one.is_finished()) {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{operations:?} operations on {logins:?} connections while the CA changed, 0 failed");
    // The client of the old CA comes in no more, also with a ticket of an earlier session.
    let mut stream = connect(addr, before);
    let refused = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").and_then(|()| stream.read(&mut [0; 64]));
    assert!(refused.is_err(), "{refused:?}");
    fixture.server.stop().expect("a clean stop");
}

#[test]
fn the_end_of_the_nodes_certificate_is_told() {
    let fixture = Fixture::start("");
    let page = support::http(&fixture.server, "GET", "/metrics", "").1;
    let name = "stave_tls_certificate_end_timestamp_seconds ";
    let told = page.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
    // Those of the test's CA are valid until the year 4096.
    assert!(told.parse::<f64>().expect("a number") > 4e9, "{told}");
    let mut client = Client::connect(&fixture.server, "default", &[]);
    assert_eq!(client.stat("connections", "tls_certificate_end_timestamp"), told);
    fixture.server.stop().expect("a clean stop");
}

#[test]
fn clients_of_a_ca_that_has_ended_are_refused() {
    let fixture = Fixture::start("tls-client-auth = \"required\"");
    let ended = Ca::ended();
    let pem = format!("{}{}", fixture.ca.pem(), ended.pem());
    std::fs::write(fixture.folder.path().join("ca.pem"), pem).expect("written");
    let (status, told) = support::http(&fixture.server, "POST", "/node/controller/reloadCertificate", "");
    assert_eq!(status, 200, "{told}");
    assert!(told.contains(r#""warnings":[]"#), "{told}");
    // A CA that is valid beside it goes on.
    let name = "Administrator";
    let whoami = |config| {
        let mut stream = connect(fixture.https(), config);
        let asked = stream.write_all(b"GET /whoami HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let read = asked.and_then(|()| stream.read_to_end(&mut answer));
        // The node may end the connection without the last message of TLS.
        let _ = read;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = whoami(fixture.client(&fixture.ca, name, Vec::new()));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(whoami(fixture.client(&ended, name, Vec::new())), "");
    let page = support::http(&fixture.server, "GET", "/metrics", "").1;
    let end = page.lines().find_map(|line| line.strip_prefix("stave_tls_ca_end_timestamp_seconds "));
    // The first of both: at the end of 2001.
    let end: f64 = end.expect("it is told").parse().expect("a number");
    assert!((1_009_700_000.0..1_009_900_000.0).contains(&end), "{end}");
    fixture.server.stop().expect("a clean stop");
}

#[test]
fn a_certificate_that_is_not_for_the_host_that_clients_are_told_is_warned_of() {
    let fixture = Fixture::start("advertise = \"127.0.0.1\"");
    fixture.ca.write(fixture.folder.path(), &["db1.example.org", "192.0.2.7"]);
    let (status, told) = support::http(&fixture.server, "POST", "/node/controller/reloadCertificate", "");
    assert_eq!(status, 200, "{told}");
    assert!(told.contains("clients are told that this node is 127.0.0.1"), "{told}");
    assert!(told.contains("db1.example.org, 192.0.2.7"), "{told}");
    fixture.server.stop().expect("a clean stop");
}

/// Whether a client is let in that shows a certificate; one whom the node refuses learns of it when it reads.
fn is_let_in(addr: SocketAddr, config: Arc<ClientConfig>) -> bool {
    let mut stream = connect(addr, config);
    let asked = stream.write_all(b"GET /whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    // The node may end the connection without the last message of TLS.
    let _ = asked.and_then(|()| stream.read_to_end(&mut answer));
    answer.starts_with(b"HTTP/1.1 200")
}

/// The holder of the key of a client's certificate could make one for any user.
#[test]
fn what_is_no_ca_vouches_for_no_client() {
    let optional = "tls-client-auth = \"optional\"\n";
    let fixture = Fixture::start(optional);
    let foreign = Ca::new();
    for none in [Ca::that_is_none(None), Ca::that_is_none(Some(&foreign))] {
        let file = fixture.folder.path().join("ca.pem");
        std::fs::write(&file, fixture.ca.pem() + &none.pem()).expect("written");
        assert_eq!(fixture.reload("ca.pem", optional), Vec::<String>::new());
        let by = |ca: &Ca| is_let_in(fixture.https(), fixture.client(ca, "Administrator", Vec::new()));
        assert!(by(&fixture.ca) && !by(&none) && !by(&foreign));
        // Alone it is no file of CAs.
        std::fs::write(&file, none.pem()).expect("written");
        let refused = fixture.reload("ca.pem", optional).join("\n");
        assert!(refused.contains("none of its certificates is one of a CA"), "{refused}");
    }
}

#[test]
fn a_ca_that_is_taken_out_counts_no_more_whatever_the_key_is() {
    let fixture = Fixture::start("tls-client-auth = \"optional\"\n");
    let (folder, new) = (fixture.folder.path(), Ca::new());
    let reload = || support::http(&fixture.server, "POST", "/node/controller/reloadCertificate", "");
    let of = |issuer: &Ca| fixture.client(issuer, "Administrator", Vec::new());
    let old = of(&fixture.ca);
    assert!(is_let_in(fixture.https(), Arc::clone(&old)));

    // Another CA, and a key of another certificate.
    let pair = std::fs::read(folder.join("node.key")).expect("it is there");
    std::fs::write(folder.join("ca.pem"), new.pem()).expect("written");
    std::fs::write(folder.join("node.key"), KeyPair::generate().expect("a key").serialize_pem())
        .expect("written");
    let (status, told) = reload();
    assert!(
        status == 400 && told.contains("does not belong") && told.contains("that were read with them count"),
        "{told}"
    );
    assert!(!is_let_in(fixture.https(), Arc::clone(&old)), "its CA was taken out");
    assert!(is_let_in(fixture.https(), of(&new)), "this one was put in");
    let (status, told) = reload();
    assert!(status == 400 && told.contains("does not belong"), "{told}");
    let healthz = || support::http(&fixture.server, "GET", "/healthz", "");
    assert_eq!(healthz().0, 200, "clients are served by what counts");
    std::fs::write(folder.join("node.key"), pair).expect("written");
    assert_eq!(reload().0, 200);
    assert!(!is_let_in(fixture.https(), old) && is_let_in(fixture.https(), of(&new)));
    fixture.server.stop().expect("a clean stop");
}

#[test]
fn no_certificate_counts_while_the_cas_cannot_be_read() {
    let fixture = Fixture::start("tls-client-auth = \"optional\"\n");
    let file = fixture.folder.path().join("ca.pem");
    let reload = || support::http(&fixture.server, "POST", "/node/controller/reloadCertificate", "");
    let healthz = || support::http(&fixture.server, "GET", "/healthz", "");
    let client = fixture.client(&fixture.ca, "Administrator", Vec::new());
    for spoiled in [Some("half of a file"), None] {
        match spoiled {
            Some(text) => std::fs::write(&file, text).expect("written"),
            None => std::fs::remove_file(&file).expect("removed"),
        }
        // The first look may come while the file is written; the node looks by itself, too.
        while !reload().1.contains("are refused") {}
        assert!(!is_let_in(fixture.https(), Arc::clone(&client)), "{spoiled:?}");
        let answer = http_answer(fixture.https(), fixture.without_certificate());
        assert!(answer.starts_with("HTTP/1.1 401"), "the others are served: {answer}");
        let (status, told) = healthz();
        assert!(status == 503 && told.contains("tls-ca") && !told.contains("ca.pem"), "{told}");
        std::fs::write(&file, fixture.ca.pem()).expect("written");
        assert_eq!(reload().0, 200, "{spoiled:?}");
        assert!(is_let_in(fixture.https(), Arc::clone(&client)), "{spoiled:?}");
        assert_eq!(healthz().0, 200);
    }
    fixture.server.stop().expect("a clean stop");
}

const OPTIONAL: &str = "tls-client-auth = \"optional\"\n";

/// A configuration that is refused says nothing of the CAs that count, however often it comes.
#[test]
fn a_file_of_cas_that_is_not_there_changes_nothing() {
    let fixture = Fixture::start(OPTIONAL);
    let client = fixture.client(&fixture.ca, "Administrator", Vec::new());
    for _ in 0..3 {
        let refused = fixture.reload("no-such.pem", OPTIONAL).join("; ");
        assert!(refused.contains("no-such.pem") && !refused.contains("are refused"), "{refused}");
        assert!(is_let_in(fixture.https(), Arc::clone(&client)));
        assert_eq!(support::http(&fixture.server, "GET", "/healthz", "").0, 200);
    }
    fixture.server.stop().expect("a clean stop");
}

/// Who read the files before another configuration was taken does not put back what counted before.
#[test]
fn a_slow_look_does_not_undo_what_was_taken_meanwhile() {
    let gate = Gate::default();
    let disk = Arc::new(FullDisk::gated("ca.pem", &gate));
    let fixture = Fixture::start_in(Env { disk, ..Env::real() }, OPTIONAL);
    let new = Ca::new();
    std::fs::write(fixture.folder.path().join("new-ca.pem"), new.pem()).expect("written");
    let (of_old, of_new) = (&fixture.ca, &new);
    let clients = [of_old, of_new].map(|issuer| fixture.client(issuer, "Administrator", Vec::new()));
    let reached = (fixture.server.kv_addr(), fixture.server.http_addr());
    let shut = gate.shut();
    std::thread::scope(|scope| {
        let path = "/node/controller/reloadCertificate";
        let looked = scope.spawn(move || support::http(&reached, "POST", path, ""));
        // It, and the look that the node takes by itself.
        gate.until_waiting(2);
        assert!(fixture.reload("new-ca.pem", OPTIONAL).is_empty());
        drop(shut);
        assert_eq!(looked.join().expect("an answer").0, 200);
    });
    let are_let_in = clients.map(|client| is_let_in(fixture.https(), client));
    assert_eq!(are_let_in, [false, true], "the CA was taken out");
    fixture.server.stop().expect("a clean stop");
}

/// A certificate that names no user is a login that failed, over both protocols, once the client asks for something.
#[test]
fn certificates_that_name_no_user_are_in_the_audit_log() {
    let fixture = Fixture::start(OPTIONAL);
    let (code, told) = support::http(&fixture.server, "POST", "/settings/audit", "auditdEnabled=true");
    assert_eq!(code, 200, "{told}");
    let stranger = fixture.client(&fixture.ca, "no-such-user", Vec::new());
    assert_eq!(ask(fixture.kvs(), Arc::clone(&stranger), &writes())[0], Status::Eaccess as u16);
    assert!(http_status(fixture.https(), stranger).contains("401"));
    fixture.server.stop().expect("a clean stop");
    let log = fixture.folder.path().join("data/audit/audit.log");
    let log = std::fs::read_to_string(log).expect("the log");
    let records: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let why = "the client's certificate names a user that does not exist";
    for id in [20_481, 8_264] {
        let of_stranger = |record: &&serde_json::Value| {
            record["id"] == id && record["real_userid"]["user"] == "no-such-user" && record["reason"] == why
        };
        assert!(records.iter().any(|record| of_stranger(&record)), "{id}: {log}");
    }
}
