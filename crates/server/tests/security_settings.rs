//! Settings of security over HTTP: what they make of new connections, what they leave of others, who keeps them.
#![allow(clippy::disallowed_methods, reason = "these are clients, outside the server")]

#[path = "support/ca.rs"]
mod ca;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ::cluster::{MemoryStore, Store};
use base::env::Env;
use ca::Ca;
use node::cluster::{Cluster, ClusterConfig};
use rcgen::{DnType, SanType};
use rustls::crypto::ring::{self, cipher_suite};
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned, SupportedCipherSuite,
    SupportedProtocolVersion, version,
};
use serde_json::{Value, json};
use server::Server;
use support::{http, json, start};

const SECURITY: &str = "/settings/security";
const CERTIFICATES: &str = "/settings/clientCertAuth";
const SOON: Duration = Duration::from_secs(60);
const ONLY_1_2: &[&SupportedProtocolVersion] = &[&version::TLS12];
const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A folder for a node, and the CA that signs for it and for clients.
struct Place {
    folder: tempfile::TempDir,
    ca: Ca,
}

impl Place {
    fn new() -> Place {
        let (folder, ca) = (tempfile::tempdir().expect("a folder"), Ca::new());
        ca.write(folder.path(), &["127.0.0.1"]);
        std::fs::write(folder.path().join("ca.pem"), ca.pem()).expect("written");
        Place { folder, ca }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Lines of a node that speaks TLS, and knows no client by a certificate.
    fn lines(&self) -> String {
        format!(
            "kv-tls = \"127.0.0.1:0\"\nhttp-tls = \"127.0.0.1:0\"\ntls-cert = {:?}\ntls-key = {:?}\n",
            self.file("node.pem"),
            self.file("node.key")
        )
    }

    /// The same with a CA for clients.
    fn lines_with_ca(&self) -> String {
        format!("{}tls-ca = {:?}\n", self.lines(), self.file("ca.pem"))
    }

    fn start(&self, lines: &str) -> Server {
        start(&self.folder.path().join("data"), lines)
    }

    fn client(
        &self,
        suites: &[SupportedCipherSuite],
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        self.trusting(suites, versions).with_no_client_auth()
    }

    fn trusting(
        &self,
        suites: &[SupportedCipherSuite],
        versions: &[&'static SupportedProtocolVersion],
    ) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der()).expect("a CA");
        let mut provider = ring::default_provider();
        if !suites.is_empty() {
            provider.cipher_suites = suites.to_vec();
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(versions);
        builder.expect("versions").with_root_certificates(roots)
    }

    /// A client that shows a certificate with these names.
    fn certified(&self, common_name: &str, others: Vec<SanType>) -> ClientConfig {
        let (chain, key) = self.ca.sign(|params| {
            params.distinguished_name.push(DnType::CommonName, common_name);
            params.subject_alt_names = others;
        });
        self.trusting(&[], BOTH).with_client_auth_cert(chain, key).expect("a certificate and its key")
    }
}

fn connect(addr: SocketAddr, config: &Arc<ClientConfig>) -> Stream {
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let session = ClientConnection::new(Arc::clone(config), name).expect("a session");
    StreamOwned::new(session, TcpStream::connect(addr).expect("the server listens"))
}

/// Status code and body of an answer on a connection that may go on; `Err` if there is none.
fn ask(
    stream: &mut Stream,
    method: &str,
    path: &str,
    login: Option<&str>,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let login = login.map_or_else(String::new, |pair| format!("Authorization: Basic {pair}\r\n"));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{login}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut byte) = (Vec::new(), [0; 1]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&answer).to_lowercase();
    let field =
        |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok());
    let mut body = vec![0; field("content-length:").unwrap_or(0)];
    stream.read_exact(&mut body)?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

/// `Administrator:password`.
const ROOT: Option<&str> = Some("QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==");

/// The status code of a request on a new connection; `None` if there is no session.
fn code(addr: SocketAddr, config: &Arc<ClientConfig>, login: Option<&str>) -> Option<u16> {
    ask(&mut connect(addr, config), "GET", "/pools/default/buckets", login, "").ok().map(|(code, _)| code)
}

/// What is spoken on a new connection; `None` if there is no session.
fn spoken(addr: SocketAddr, config: &Arc<ClientConfig>) -> Option<(ProtocolVersion, String)> {
    let mut stream = connect(addr, config);
    stream.conn.complete_io(&mut stream.sock).ok()?;
    let suite = stream.conn.negotiated_cipher_suite()?.suite().as_str()?;
    Some((stream.conn.protocol_version()?, suite.to_owned()))
}

fn addrs(server: &Server) -> [SocketAddr; 2] {
    [server.kv_tls_addr(), server.http_tls_addr()].map(|addr| addr.expect("it speaks TLS"))
}

fn https(server: &Server) -> SocketAddr {
    addrs(server)[1]
}

fn set(server: &Server, path: &str, body: &str) {
    assert_eq!(http(server, "POST", path, body), (200, "[]".to_owned()), "{path} {body}");
}

/// What is wrong with a form, in one text.
fn refused(server: &Server, path: &str, body: &str) -> String {
    let (code, told) = http(server, "POST", path, body);
    assert_eq!(code, 400, "{body}: {told}");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    told["errors"].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

fn rules(state: &str, prefixes: &Value) -> String {
    json!({ "state": state, "prefixes": prefixes }).to_string()
}

fn by_common_name() -> Value {
    json!([{ "path": "subject.cn", "prefix": "", "delimiter": "" }])
}

#[test]
fn versions_and_suites_change_for_new_connections_and_outlive_a_restart() {
    let place = Place::new();
    let server = place.start(&place.lines());
    let (old, any) = (Arc::new(place.client(&[], ONLY_1_2)), Arc::new(place.client(&[], BOTH)));
    let mut live = connect(https(&server), &old);
    assert_eq!(ask(&mut live, "GET", "/pools", ROOT, "").expect("an answer").0, 200);
    set(&server, SECURITY, "tlsMinVersion=tlsv1.3&disableUIOverHttp=false");
    for addr in addrs(&server) {
        assert_eq!(spoken(addr, &old), None, "1.2 is not spoken any more");
        assert_eq!(spoken(addr, &any).map(|(version, _)| version), Some(ProtocolVersion::TLSv1_3));
    }
    assert_eq!(ask(&mut live, "GET", "/pools", ROOT, "").expect("it goes on").0, 200);
    // The node's order counts, if it is asked for; otherwise the client's does.
    let wants = [cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    let wants = Arc::new(place.client(&wants, BOTH));
    let suites = "cipherSuites=[\"TLS_CHACHA20_POLY1305_SHA256\",\"TLS_AES_128_GCM_SHA256\"]";
    for (honors, suite) in [("false", "TLS13_AES_128_GCM_SHA256"), ("true", "TLS13_CHACHA20_POLY1305_SHA256")]
    {
        set(&server, SECURITY, &format!("{suites}&honorCipherOrder={honors}"));
        assert_eq!(
            spoken(https(&server), &wants).map(|(_, suite)| suite).as_deref(),
            Some(suite),
            "{honors}"
        );
    }
    server.stop().expect("a clean stop");
    let server = place.start(&format!("{}tls-min-version = \"1.2\"\n", place.lines()));
    let told = json(&server, SECURITY);
    assert_eq!(told["tlsMinVersion"], "tlsv1.3", "what was set counts over the configuration");
    assert_eq!(told["cipherSuites"], json!(["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]));
    assert_eq!((&told["honorCipherOrder"], &told["disableUIOverHttp"]), (&json!(true), &json!(false)));
    assert_eq!((spoken(https(&server), &old), spoken(https(&server), &wants).is_some()), (None, true));
    set(&server, SECURITY, "tlsMinVersion=tlsv1.2&cipherSuites=[]");
    assert_eq!(spoken(https(&server), &old).map(|(version, _)| version), Some(ProtocolVersion::TLSv1_2));
    server.stop().expect("a clean stop");
}

#[test]
fn a_service_goes_by_settings_of_its_own_until_they_are_unset() {
    let place = Place::new();
    let server = place.start(&place.lines());
    let old = Arc::new(place.client(&[], ONLY_1_2));
    let [data, manager] = ["data", "clusterManager"].map(|name| format!("{SECURITY}/{name}"));
    let speak_1_2 = |server: &Server| addrs(server).map(|addr| spoken(addr, &old).is_some());
    set(&server, &data, "tlsMinVersion=tlsv1.3");
    assert_eq!(speak_1_2(&server), [false, true], "KV alone has another version");
    // What counts for all does not count over it.
    set(&server, &data, "tlsMinVersion=tlsv1.2&cipherSuites=[\"TLS_AES_128_GCM_SHA256\"]");
    assert_eq!(speak_1_2(&server), [false, true], "no suite of 1.2 is left");
    set(&server, SECURITY, "tlsMinVersion=tlsv1.3");
    set(&server, &data, "cipherSuites=[]");
    assert_eq!(speak_1_2(&server), [true, false]);
    server.stop().expect("a clean stop");
    let server = place.start(&place.lines());
    assert_eq!(speak_1_2(&server), [true, false], "it outlives a restart");
    let told = json(&server, &data);
    assert_eq!((&told["tlsMinVersion"], &told["cipherSuites"]), (&json!("tlsv1.2"), &json!([])));
    assert_eq!(told.get("honorCipherOrder"), None, "what was not set is not told");
    assert!(told["supportedCipherSuites"].as_array().is_some_and(|suites| suites.len() > 5), "{told}");
    assert_eq!(json(&server, SECURITY)["data"], told);
    for (path, body, part) in [
        (&data, "disableUIOverHttp=true", "disableUIOverHttp - Unsupported setting of a single service"),
        (&manager, "tlsMinVersion=tlsv1.1", "tlsMinVersion - Supported TLS versions"),
        (&manager, "cipherSuites=[\"NULL\"]", "cipherSuites - "),
    ] {
        let told = refused(&server, path, body);
        assert!(told.contains(part), "{body}: {told}");
    }
    assert_eq!(http(&server, "GET", "/settings/security/query", "").0, 404);
    assert_eq!(http(&server, "POST", "/settings/security/query", "tlsMinVersion=tlsv1.3").0, 404);
    assert_eq!(http(&server, "DELETE", &format!("{data}/disableUIOverHttp"), "").0, 404);
    assert_eq!(speak_1_2(&server), [true, false], "what is refused changes nothing");
    assert_eq!(http(&server, "DELETE", &format!("{data}/tlsMinVersion"), "").0, 200);
    assert_eq!(speak_1_2(&server), [false, false], "what counts for all counts again");
    server.stop().expect("a clean stop");
    let plain = tempfile::tempdir().expect("a folder");
    let server = start(plain.path(), "");
    assert!(refused(&server, &data, "tlsMinVersion=tlsv1.3").contains("--tls-cert"));
    server.stop().expect("a clean stop");
}

#[test]
fn what_a_node_cannot_do_is_refused_and_changes_nothing() {
    let place = Place::new();
    let server = place.start(&place.lines());
    let before = [json(&server, SECURITY), json(&server, CERTIFICATES)];
    for (body, part) in [
        ("tlsMinVersion=tlsv1.1", "tlsMinVersion - Supported TLS versions are tlsv1.3, tlsv1.2"),
        ("cipherSuites=[\"TLS_RSA_WITH_AES_128_CBC_SHA\"]", "cipherSuites - "),
        ("cipherSuites=[\"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"]", "the key of tls-key"),
        ("tlsMinVersion=tlsv1.3&cipherSuites=[\"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256\"]", "TLS 1.3"),
        ("clusterEncryptionLevel=all&tlsMinVersion=tlsv1.3", "--cluster-encryption"),
        ("tlsMinVersion=tlsv1.3&allowedHosts=x", "allowedHosts - Unsupported setting"),
    ] {
        let told = refused(&server, SECURITY, body);
        assert!(told.contains(part), "{body}: {told}");
    }
    for state in ["enable", "mandatory"] {
        let told = refused(&server, CERTIFICATES, &rules(state, &by_common_name()));
        assert!(told.contains("--tls-ca"), "{state}: {told}");
    }
    let told = refused(&server, CERTIFICATES, &rules("hybrid", &by_common_name()));
    assert!(told.contains("--cluster-encryption"), "{told}");
    assert_eq!([json(&server, SECURITY), json(&server, CERTIFICATES)], before);
    server.stop().expect("a clean stop");
    let plain = tempfile::tempdir().expect("a folder");
    let server = start(plain.path(), "");
    for (path, body) in
        [(SECURITY, "honorCipherOrder=true".to_owned()), (CERTIFICATES, rules("enable", &by_common_name()))]
    {
        assert!(refused(&server, path, &body).contains("--tls-cert"), "{path}");
    }
    set(&server, CERTIFICATES, &rules("disable", &json!([])));
    server.stop().expect("a clean stop");
}

#[test]
fn clients_log_in_by_certificates_as_it_is_set() {
    let place = Place::new();
    let server = place.start(&place.lines_with_ca());
    let uri = vec![SanType::URI("www.Administrator.example".try_into().expect("a URI"))];
    let [by_cn, by_uri] =
        [place.certified("Administrator", Vec::new()), place.certified("x", uri)].map(Arc::new);
    let without = Arc::new(place.client(&[], BOTH));
    let at = https(&server);
    assert_eq!(code(at, &by_cn, None), Some(401), "no one looks at certificates");
    let www = json!([
        { "path": "san.uri", "prefix": "www.", "delimiter": "." },
        { "path": "san.email", "prefix": "", "delimiter": "@" },
    ]);
    set(&server, CERTIFICATES, &rules("enable", &www));
    assert_eq!(json(&server, CERTIFICATES), json!({ "state": "enable", "prefixes": www }));
    assert_eq!([code(at, &by_uri, None), code(at, &by_cn, None)], [Some(200), Some(401)]);
    let mut live = connect(at, &without);
    assert_eq!(ask(&mut live, "GET", "/pools", ROOT, "").expect("an answer").0, 200);
    set(&server, CERTIFICATES, &rules("mandatory", &by_common_name()));
    for addr in addrs(&server) {
        // The client of an earlier session has a ticket, and does not get in by that either.
        let mut stream = connect(addr, &without);
        let _ = stream.conn.complete_io(&mut stream.sock);
        assert!(stream.write_all(b"GET / HTTP/1.1\r\n\r\n").is_err() || stream.read(&mut [0; 1]).is_err());
    }
    assert_eq!(code(at, &by_cn, None), Some(200));
    assert_eq!(ask(&mut live, "GET", "/pools", ROOT, "").expect("a live connection goes on").0, 200);
    server.stop().expect("a clean stop");
    // The way back: without TLS, or with a certificate.
    let server = place.start(&place.lines_with_ca());
    let at = https(&server);
    assert_eq!([code(at, &without, ROOT), code(at, &by_cn, None)], [None, Some(200)]);
    set(&server, CERTIFICATES, &rules("disable", &by_common_name()));
    assert_eq!([code(at, &without, ROOT), code(at, &by_cn, None)], [Some(200), Some(401)]);
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_without_the_ca_that_clients_need_lets_none_in_with_tls() {
    let place = Place::new();
    let server = place.start(&place.lines_with_ca());
    set(&server, CERTIFICATES, &rules("mandatory", &by_common_name()));
    server.stop().expect("a clean stop");
    let server = place.start(&place.lines());
    let clients = [place.client(&[], BOTH), place.certified("Administrator", Vec::new())].map(Arc::new);
    for client in &clients {
        assert_eq!(
            [code(https(&server), client, ROOT), spoken(addrs(&server)[0], client).map(|_| 0)],
            [None, None]
        );
    }
    assert_eq!(json(&server, CERTIFICATES)["state"], "mandatory");
    set(&server, CERTIFICATES, &rules("disable", &json!([])));
    assert_eq!(code(https(&server), &clients[0], ROOT), Some(200));
    server.stop().expect("a clean stop");
}

#[test]
fn who_has_no_other_way_in_shows_a_certificate_before_it_becomes_mandatory() {
    let place = Place::new();
    let mut config = support::config(&place.folder.path().join("data"), 1, &place.lines_with_ca());
    config.listening.http_is_off = true;
    let server = server::serve(config, Env::real()).expect("the node starts");
    let (at, without) = (https(&server), Arc::new(place.client(&[], BOTH)));
    let by_cn = Arc::new(place.certified("Administrator", Vec::new()));
    let post = |client, login, state: &str| {
        let body = rules(state, &by_common_name());
        ask(&mut connect(at, client), "POST", CERTIFICATES, login, &body).expect("an answer")
    };
    let (refused, why) = post(&without, ROOT, "mandatory");
    assert!(refused == 400 && why.contains("set enable first"), "{why}");
    assert_eq!(post(&without, ROOT, "enable").0, 200);
    assert_eq!(post(&without, ROOT, "mandatory").0, 400);
    // The certificate must stand for a user, and by the rules that are asked for.
    let stranger = Arc::new(place.certified("stranger", Vec::new()));
    let (refused, why) = post(&stranger, ROOT, "mandatory");
    assert!(refused == 400 && why.contains("which is no user"), "{why}");
    let by_mail = json!([{ "path": "san.email", "prefix": "zzz", "delimiter": "" }]);
    let body = rules("mandatory", &by_mail);
    let (refused, why) = ask(&mut connect(at, &by_cn), "POST", CERTIFICATES, None, &body).expect("an answer");
    assert!(refused == 400 && why.contains("by other prefixes"), "{why}");
    assert_eq!(post(&by_cn, None, "mandatory").0, 200);
    assert_eq!([code(at, &without, ROOT), code(at, &by_cn, None)], [None, Some(200)]);
    server.stop().expect("a clean stop");
}

/// To take a state back is to set that of the configuration.
#[test]
fn who_has_no_other_way_in_shows_a_certificate_before_it_becomes_mandatory_again() {
    let place = Place::new();
    let lines = format!("{}\ntls-client-auth = \"required\"\n", place.lines_with_ca());
    let mut config = support::config(&place.folder.path().join("data"), 1, &lines);
    config.listening.http_is_off = true;
    let server = server::serve(config, Env::real()).expect("the node starts");
    let (at, without) = (https(&server), Arc::new(place.client(&[], BOTH)));
    let by_cn = Arc::new(place.certified("Administrator", Vec::new()));
    let enabled = rules("enable", &by_common_name());
    let asked = |client, method, login, body| {
        ask(&mut connect(at, client), method, CERTIFICATES, login, body).expect("an answer")
    };
    assert_eq!(asked(&by_cn, "POST", None, &enabled).0, 200);
    let (refused, why) = asked(&without, "DELETE", ROOT, "");
    assert!(refused == 400 && why.contains("mandatory") && why.contains("no certificate"), "{why}");
    assert_eq!(code(at, &without, ROOT), Some(200), "it is as it was");
    assert_eq!(asked(&by_cn, "DELETE", None, "").0, 200);
    assert_eq!([code(at, &without, ROOT), code(at, &by_cn, None)], [None, Some(200)]);
    server.stop().expect("a clean stop");
}

#[test]
fn the_console_is_not_served_where_it_is_hidden() {
    let place = Place::new();
    let server = place.start(&place.lines());
    let client = Arc::new(place.client(&[], BOTH));
    let look = || {
        let tls = ask(&mut connect(https(&server), &client), "GET", "/ui", None, "").expect("an answer");
        [http(&server, "GET", "/ui", "").0, http(&server, "GET", "/ui/app.js", "").0, tls.0]
    };
    assert_eq!(look(), [200, 200, 200]);
    set(&server, SECURITY, "disableUIOverHttp=true");
    assert_eq!(look(), [404, 404, 200]);
    set(&server, SECURITY, "disableUIOverHttp=false&disableUIOverHttps=true");
    assert_eq!(look(), [200, 200, 404]);
    assert_eq!(json(&server, SECURITY)["disableUIOverHttps"], true);
    server.stop().expect("a clean stop");
}

struct Member {
    place: Place,
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    fn start(place: Place, lines: &str, store: &Arc<dyn Store>) -> Member {
        let server = support::start_member_with(&place.folder.path().join("data"), lines);
        let cluster = Cluster::join(Arc::clone(server.node()), Arc::clone(store), ClusterConfig::default());
        let cluster = cluster.expect("it joins");
        let is_in = cluster.wait_until(SOON, |view, _| view.state.node_of(cluster.uuid()).is_some());
        assert!(is_in, "it is added");
        Member { place, server, cluster }
    }

    fn stop(self) -> Place {
        assert!(self.cluster.stop(), "its threads end as they should");
        self.server.stop().expect("a clean stop");
        self.place
    }

    /// Whether something is so before long.
    fn soon(&self, is_so: impl Fn() -> bool) -> bool {
        (0..6_000).any(|_| {
            let found = is_so();
            if !found {
                self.cluster.wait_for_news(Duration::from_millis(10));
            }
            found
        })
    }
}

#[test]
fn what_is_set_on_one_node_holds_on_every_node_of_a_cluster() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real().clock));
    let start = |place: Place| {
        let lines = place.lines_with_ca();
        Member::start(place, &lines, &store)
    };
    let nodes = [start(Place::new()), start(Place::new()), start(Place::new())];
    set(&nodes[1].server, SECURITY, "tlsMinVersion=tlsv1.3");
    set(&nodes[2].server, CERTIFICATES, &rules("mandatory", &by_common_name()));
    for node in &nodes {
        let old = Arc::new(node.place.client(&[], ONLY_1_2));
        let without = Arc::new(node.place.client(&[], BOTH));
        let by_cn = Arc::new(node.place.certified("Administrator", Vec::new()));
        let at = https(&node.server);
        assert!(node.soon(|| code(at, &by_cn, None) == Some(200)), "a certificate is enough");
        assert!(node.soon(|| code(at, &without, ROOT).is_none()), "and it must be there");
        assert_eq!(spoken(at, &old), None);
        assert_eq!(json(&node.server, SECURITY)["tlsMinVersion"], "tlsv1.3");
        assert_eq!(json(&node.server, CERTIFICATES)["state"], "mandatory");
    }
    // A node that starts and has not reached the store yet goes by what it has seen last.
    let [first, second, third] = nodes;
    let seen = |member: &Member| {
        let path = member.place.folder.path().join("data/cluster-users.json");
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("mandatory"))
    };
    assert!(first.soon(|| seen(&first)), "it is noted");
    let place = first.stop();
    let server = support::start_member_with(&place.folder.path().join("data"), &place.lines_with_ca());
    assert_eq!(code(https(&server), &Arc::new(place.client(&[], BOTH)), ROOT), None);
    server.stop().expect("a clean stop");
    // So does one that was alone before, by its own settings.
    let alone = Place::new();
    let server = alone.start(&alone.lines());
    set(&server, SECURITY, "tlsMinVersion=tlsv1.3");
    server.stop().expect("a clean stop");
    let server = support::start_member_with(&alone.folder.path().join("data"), &alone.lines());
    assert_eq!(spoken(https(&server), &Arc::new(alone.client(&[], ONLY_1_2))), None);
    server.stop().expect("a clean stop");
    // A new node of the cluster takes them, too, and one that cannot lets no client in with TLS.
    let place = Place::new();
    let lines = place.lines();
    let poor = Member::start(place, &lines, &store);
    let client = Arc::new(poor.place.client(&[], BOTH));
    assert!(poor.soon(|| code(https(&poor.server), &client, ROOT).is_none()));
    set(&second.server, CERTIFICATES, &rules("disable", &json!([])));
    assert!(poor.soon(|| code(https(&poor.server), &client, ROOT) == Some(200)));
    [second, third, poor].into_iter().for_each(|member| drop(member.stop()));
}

#[test]
fn what_was_set_over_http_can_be_taken_back() {
    let place = Place::new();
    let server = place.start(&place.lines_with_ca());
    let before = [json(&server, SECURITY), json(&server, CERTIFICATES)];
    set(&server, SECURITY, "tlsMinVersion=tlsv1.3&disableUIOverHttp=true");
    set(
        &server,
        CERTIFICATES,
        r#"{"state":"enable","prefixes":[{"path":"san.email","prefix":"","delimiter":"@"}]}"#,
    );
    assert_ne!(json(&server, CERTIFICATES), before[1]);
    for path in ["tlsMinVersion", "disableUIOverHttp"].map(|field| format!("{SECURITY}/{field}")) {
        assert_eq!(http(&server, "DELETE", &path, "").0, 200);
    }
    assert_eq!(http(&server, "DELETE", CERTIFICATES, "").0, 200);
    assert_eq!([json(&server, SECURITY), json(&server, CERTIFICATES)], before);
    let (status, told) = http(&server, "DELETE", &format!("{SECURITY}/clusterEncryptionLevel"), "");
    assert!(status == 404 && told.contains("tlsMinVersion, cipherSuites"), "{status} {told}");
    server.stop().expect("a clean stop");
}
