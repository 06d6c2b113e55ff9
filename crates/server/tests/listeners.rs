//! Where a node listens: at several addresses, and not at all without TLS.
#![allow(clippy::disallowed_methods, reason = "these are clients, outside the server")]

#[path = "support/ca.rs"]
mod ca;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use base::env::Env;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ca::Ca;
use node::{Config, Settings};
use protocol::Status;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use server::Server;
use support::{Client, http};

/// A node that listens as these lines of its configuration say.
fn start_at(folder: &Path, lines: &str) -> Server {
    let settings = format!("password = \"password\"\nvbuckets = 4\n{lines}");
    let settings = Settings::parse(&settings).expect("valid settings");
    let config = Config::new(settings, folder.to_owned(), 2, String::new).expect("a valid configuration");
    server::serve(config, Env::real()).expect("the node starts")
}

#[test]
fn clients_are_served_at_each_of_several_addresses_and_told_of_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let server =
        start_at(folder.path(), "kv = \"127.0.0.1:0,127.0.0.1:0\"\nhttp = \"127.0.0.1:0, 127.0.0.1:0\"");
    let &[kv, more_kv, web, more_web] = server.listens_at() else { panic!("{:?}", server.listens_at()) };
    assert_eq!((server.kv_addr(), server.http_addr()), (kv, web));
    for at in [(kv, web), (more_kv, more_web), (kv, more_web), (more_kv, web)] {
        let mut client = Client::connect(&at, "default", &[]);
        assert_eq!(client.set(b"key", b"value"), Some(Status::Success));
        let map: Value =
            serde_json::from_str(&http(&at, "GET", "/pools/default/nodeServices", "").1).expect("JSON");
        let services = &map["nodesExt"][0]["services"];
        assert_eq!(services, &json!({ "kv": kv.port(), "mgmt": web.port() }));
    }
    assert!(server.ready_line().starts_with(&format!("ready kv={kv} http={web} data=")));
    server.stop().expect("a clean stop");
}

#[test]
fn an_address_that_is_given_twice_is_a_wrong_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    for lines in ["kv = \"127.0.0.1:7,127.0.0.1:7\"", "kv = \"127.0.0.1:7\"\nhttp = \"0.0.0.0:7\""] {
        let settings = Settings::parse(&format!("password = \"password\"\n{lines}")).expect("valid settings");
        let config =
            Config::new(settings, folder.path().to_owned(), 2, String::new).expect("valid by itself");
        let checked = server::check(&config, &Env::real()).expect_err("a start would not succeed");
        let refused = server::serve(config, Env::real()).err().expect("it does not start");
        assert_eq!(checked.to_string(), refused.to_string());
        assert!(refused.is_configuration() && refused.to_string().contains("the same as another one"));
    }
}

/// Status and body of an answer over HTTP with TLS.
fn https(ca: &Ca, at: SocketAddr, method: &str, path: &str, more: &str) -> (u16, String) {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der()).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let mut stream = StreamOwned::new(session, TcpStream::connect(at).expect("the server listens"));
    let login = STANDARD.encode("Administrator:password");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic {login}\r\n{more}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    // The server may end the connection without the last message of TLS.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (code, body.to_owned())
}

#[test]
fn a_node_without_plain_ports_serves_with_tls_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = Ca::new();
    let (certificate, key) = ca.write(folder.path(), &["127.0.0.1", "localhost"]);
    let lines = format!(
        "kv = \"off\"\nhttp = \"off\"\nkv-tls = \"127.0.0.1:0\"\nhttp-tls = \"127.0.0.1:0\"\ntls-cert = {certificate:?}\n\
         tls-key = {key:?}\n"
    );
    let server = start_at(&folder.path().join("data"), &lines);
    let &[kvs, web] = server.listens_at() else { panic!("{:?}", server.listens_at()) };
    assert_eq!((server.kv_tls_addr(), server.http_tls_addr()), (Some(kvs), Some(web)));
    assert!(server.ready_line().starts_with(&format!("ready kv=off http=off kvs={kvs} https={web} data=")));
    let get = |path: &str| {
        let (code, body) = https(&ca, web, "GET", path, "\r\n");
        assert_eq!(code, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap_or_default()
    };
    let services = json!({ "kvSSL": kvs.port(), "mgmtSSL": web.port() });
    assert_eq!(get("/pools/default/nodeServices")["nodesExt"][0]["services"], services);
    assert_eq!(get("/pools/default/b/default")["nodesExt"][0]["services"], services);
    let nodes = get("/pools/nodes");
    assert_eq!(nodes["nodes"][0]["hostname"], web.to_string());
    assert_eq!(nodes["nodes"][0]["ports"], json!({ "directTLS": kvs.port(), "httpsMgmt": web.port() }));
    get("/readyz");
    // What the node asks itself over KV needs no port.
    let document = "/v1/buckets/default/document?key=k";
    let stored = https(&ca, web, "PUT", document, "If-None-Match: *\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
    assert_eq!(stored.0, 200, "{}", stored.1);
    assert_eq!(get(document)["text"], "{\"a\":1}");
    assert_eq!(
        get("/v1/buckets/default/stats/settings")["stats"].as_array().map(|stats| stats.is_empty()),
        Some(false)
    );
    server.stop().expect("a clean stop");
}

/// What a start with these lines, and a certificate for these names and purposes, would warn of or refuse.
fn checked(
    names: &[&str],
    purposes: &[ExtendedKeyUsagePurpose],
    is_member: bool,
    lines: &str,
) -> Result<Vec<String>, String> {
    let write = |folder: &Path| {
        let ca = Ca::new();
        ca.write_for(folder, names, purposes);
        ca.pem()
    };
    checked_with(write, is_member, lines)
}

/// The same with the certificate that `write` puts into a folder, and the CAs that it says.
fn checked_with(
    write: impl Fn(&Path) -> String,
    is_member: bool,
    lines: &str,
) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let (certificate, key, roots) = (file("node.pem"), file("node.key"), file("ca.pem"));
    std::fs::write(&roots, write(folder.path())).expect("written");
    let settings = format!(
        "password = \"password\"\ntls-cert = {certificate:?}\ntls-key = {key:?}\ntls-ca = {roots:?}\n{lines}"
    );
    let settings = Settings::parse(&settings).expect("valid settings");
    let data = folder.path().join("data");
    let config = Config::new(settings, data, 2, String::new).expect("a valid configuration");
    server::check(&Config { is_member, ..config }, &Env::real()).map_err(|error| error.to_string())
}

#[test]
fn a_check_warns_of_a_host_that_is_not_in_the_certificate() {
    let names = ["db1.example.org", "localhost"];
    let told = |lines: &str| checked(&names, &[], false, lines).expect("a start would succeed").join("\n");
    let warned = told("");
    assert!(warned.contains("clients are told that this node is 127.0.0.1"), "{warned}");
    assert!(warned.contains("db1.example.org, localhost") && warned.contains("--advertise"), "{warned}");
    assert_eq!(told("advertise = \"db1.example.org\""), "");
    // Each client is told what it came to.
    assert_eq!(told("kv = \"0.0.0.0:11210\"\nhttp = \"0.0.0.0:8091\""), "");
}

#[test]
fn a_certificate_that_other_nodes_would_refuse_is_refused() {
    let names = ["127.0.0.1"];
    let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
    let lines = "tls-client-auth = \"optional\"\ncluster-encryption = \"all\"";
    let refused = checked(&names, std::slice::from_ref(&server), true, lines).expect_err("no start");
    assert!(refused.contains("node.pem: its extended key usage has no clientAuth"), "{refused}");
    let both = [server.clone(), client.clone()];
    for (purposes, is_member, lines) in [
        (&both[..], true, lines),
        (&[], true, lines),
        (&both[..1], false, lines),
        (&both[..1], true, "cluster-encryption = \"all\""),
    ] {
        assert_eq!(checked(&names, purposes, is_member, lines), Ok(Vec::new()));
    }
    let warned = checked(&names, &both[1..], false, "").expect("a start would succeed").join("\n");
    assert!(warned.contains("has no serverAuth"), "{warned}");
    let all = "cluster-encryption = \"all\"";
    let refused = checked(&names, &both[1..], true, all).expect_err("no start");
    assert!(
        refused.contains("has no serverAuth") && refused.contains("nothing would be replicated"),
        "{refused}"
    );
    // What is encrypted over HTTP alone goes on without.
    let warned = checked(&names, &both[1..], true, "cluster-encryption = \"control\"").expect("a start");
    assert!(warned.join("\n").contains("\"control\" other nodes refuse"), "{warned:?}");
    assert_eq!(
        checked(&names, &both[1..], true, "").map(|warned| warned.len()),
        Ok(1),
        "clients are warned of"
    );
}

#[test]
fn a_member_whose_certificate_no_node_knows_does_not_start() {
    let all = "cluster-encryption = \"all\"";
    let with_clients = "cluster-encryption = \"all\"\ntls-client-auth = \"optional\"";
    let names = ["127.0.0.1"];
    let of_another = |folder: &Path| {
        Ca::new().write(folder, &names);
        Ca::new().pem()
    };
    let refused = checked_with(of_another, true, all).expect_err("no start");
    assert!(refused.contains("no CA of tls-ca has signed it"), "{refused}");
    assert_eq!(checked_with(of_another, false, all), Ok(Vec::new()), "a node alone is shown to none");
    let of_a_ca = |folder: &Path| {
        let ca = Ca::new();
        ca.write_own(folder);
        ca.pem()
    };
    let refused = checked_with(of_a_ca, true, all).expect_err("no start");
    assert!(refused.contains("it is one of a CA"), "{refused}");
    let warned = checked_with(of_a_ca, false, all).expect("a start would succeed").join("\n");
    assert!(warned.contains("is one of a CA"), "{warned}");
    // A server is known by a certificate that it signed itself, a client is not.
    let of_itself = |folder: &Path| {
        let own = Ca::that_is_none(None);
        own.write_own(folder);
        own.pem()
    };
    let warned = checked_with(of_itself, true, all).expect("a start would succeed").join("\n");
    assert!(warned.contains("of nodes only the one that has it"), "{warned}");
    assert!(checked_with(of_itself, true, with_clients).is_err());
}
