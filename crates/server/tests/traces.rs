//! Slow operations are told to a collector of traces, and how long a command may take is changed at run time.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/ca.rs"]
mod ca;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ca::Ca;
use protocol::{RequestParts, Status, opcode, write_request};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use server::Server;
use support::{Client, http, json as ask, start, vb};

const MS: Duration = Duration::from_millis(1);
const PATH: &str = "/node/settings/slowOperations";

/// Takes one request, answers it, and returns its first line and its body.
fn take(listener: &TcpListener, status: &str) -> (String, Value) {
    take_from(listener.accept().expect("the node comes").0, status)
}

fn take_from(stream: impl Read + Write, status: &str) -> (String, Value) {
    let mut stream = BufReader::new(stream);
    let (mut first, mut len) = (String::new(), 0);
    stream.read_line(&mut first).expect("a request");
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a header");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            len = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).expect("a body");
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
    stream.get_mut().write_all(answer.as_bytes()).expect("the node listens");
    (first, serde_json::from_slice(&body).expect("JSON"))
}

/// A durable set that waits for the disk for more than a millisecond.
fn write_slowly(server: &Server, key: &[u8]) {
    let bucket = server.node().bucket("default").expect("it is served");
    bucket.flushing().hold_flusher(true);
    let mut client = Client::connect(server, "default", &[]);
    let mut bytes = Vec::new();
    // At the level persist to majority.
    let parts = RequestParts { opcode: opcode::SET, key, extras: &[0; 8], ..RequestParts::default() };
    assert!(write_request(&mut bytes, &RequestParts { frame_infos: &[0x11, 3], vbucket: vb(key), ..parts }));
    let begun = Instant::now();
    client.send(&bytes);
    while bucket.inspect(vb(key), |vb| vb.sync_writes().prepares_in_flight()) != Some(1)
        || begun.elapsed() < MS * 3
    {
        std::thread::yield_now();
    }
    bucket.flushing().hold_flusher(false);
    assert_eq!(client.receive().status, Status::Success);
}

#[test]
fn a_collector_is_told_where_the_time_of_a_slow_write_went() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = listener.local_addr().expect("it listens");
    let folder = tempfile::tempdir().expect("a folder");
    let more = format!("trace-endpoint = \"http://{endpoint}\"\n[slow-operations]\nset = 1\n");
    let server = start(folder.path(), &more);
    // One that does not take them loses them, and is not asked again for those.
    write_slowly(&server, b"lost");
    let (first, _) = take(&listener, "503 Service Unavailable");
    assert_eq!(first.trim(), "POST /v1/traces HTTP/1.1");
    write_slowly(&server, b"secret");
    let (_, told) = take(&listener, "200 OK");
    let of = &told["resourceSpans"][0];
    assert_eq!(
        of["resource"]["attributes"][0],
        json!({"key": "service.name", "value": {"stringValue": "stave"}})
    );
    let spans = of["scopeSpans"][0]["spans"].as_array().expect("spans");
    let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["Set", "flush_queue", "flush", "answer"]);
    let ns =
        |span: &Value, name: &str| span[name].as_str().and_then(|ns| ns.parse::<u64>().ok()).expect("a time");
    let root = &spans[0];
    for span in &spans[1..] {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&root["traceId"], &root["spanId"]));
        let (from, until) = (ns(span, "startTimeUnixNano"), ns(span, "endTimeUnixNano"));
        assert!(ns(root, "startTimeUnixNano") <= from && until <= ns(root, "endTimeUnixNano"), "{span}");
    }
    assert!(!told.to_string().contains("secret"), "keys are not told");
    let metrics = http(&server, "GET", "/metrics", "").1;
    assert!(metrics.contains("stave_traces_dropped_total 1"), "{metrics}");
    server.stop().expect("a clean stop");
}

#[test]
fn a_collector_with_tls_is_told_if_its_certificate_is_of_the_ca() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ca, file) = (Ca::new(), folder.path().join("ca.pem"));
    let (certificate, key) = ca.write(folder.path(), &["127.0.0.1"]);
    std::fs::write(&file, ca.pem()).expect("written");
    let chain = vec![CertificateDer::from_pem_file(certificate).expect("PEM")];
    let key = PrivateKeyDer::from_pem_file(key).expect("PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let made = builder.expect("versions").with_no_client_auth().with_single_cert(chain, key);
    let config = Arc::new(made.expect("a certificate"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = listener.local_addr().expect("it listens");
    let accept = || {
        let session = ServerConnection::new(Arc::clone(&config)).expect("a session");
        StreamOwned::new(session, listener.accept().expect("the node comes").0)
    };
    let more = format!(
        "trace-endpoint = \"https://{endpoint}/here\"\ntrace-ca = {file:?}\n[slow-operations]\nset = 1\n"
    );
    let server = start(&folder.path().join("data"), &more);
    write_slowly(&server, b"key");
    let (first, told) = take_from(accept(), "200 OK");
    assert_eq!(first.trim(), "POST /here HTTP/1.1");
    assert!(told["resourceSpans"][0]["scopeSpans"][0]["spans"].is_array(), "{told}");
    // The file is read each time: one that another CA has signed is not spoken to.
    std::fs::write(&file, Ca::new().pem()).expect("written");
    write_slowly(&server, b"key");
    let mut refused = accept();
    assert!(refused.read(&mut [0]).is_err(), "the node ends the handshake");
    drop(refused);
    let begun = Instant::now();
    while !http(&server, "GET", "/metrics", "").1.contains("stave_traces_dropped_total 1") {
        assert!(begun.elapsed() < MS * 60_000, "what was not taken is not counted");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn limits_of_commands_are_changed_over_http_and_by_set_param() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "[slow-operations]\nget = 20\n");
    let limits = || ask(&server, PATH);
    let from_the_start = json!({
        "Get": 20, "SelectBucket": 10, "RangeScanContinue": 5_000, "SeqnoPersistence": 30_200,
        "CompactDb": 1_800_000,
    });
    assert_eq!(limits(), from_the_start);
    for (form, part) in
        [("", "COMMAND=MILLISECONDS"), ("Get=0", "from 1 to"), ("Set=5&Fetch=5", "no command")]
    {
        let (status, body) = http(&server, "POST", PATH, form);
        assert_eq!((status, body.contains(part)), (400, true), "{body}");
    }
    assert_eq!(limits(), from_the_start, "all are taken or none");
    assert_eq!(http(&server, "POST", PATH, "Get=default&set=1").0, 200);
    let mut client = Client::connect(&server, "default", &[]);
    let mut set_param = |name: &str, value: &str| {
        let (key, value) = (name.as_bytes(), value.as_bytes());
        let parts = RequestParts { opcode: opcode::SET_PARAM, key, value, ..RequestParts::default() };
        client.request(&RequestParts { extras: &[0, 0, 0, 1], ..parts }).status
    };
    assert_eq!(set_param("slow_operation_threshold:SelectBucket", "30"), Status::Success);
    assert_eq!(set_param("slow_operation_threshold:Fetch", "30"), Status::Einval);
    let (get, set, select) = (&limits()["Get"], &limits()["Set"], &limits()["SelectBucket"]);
    assert_eq!((get, set, select), (&Value::Null, &json!(1), &json!(30)));
    write_slowly(&server, b"key");
    assert_eq!(client.stat("slow-operations", "0:command"), "Set");
    assert!(client.stat("slow-operations", "0:spans").starts_with("flush_queue=0:"));
    server.stop().expect("a clean stop");
}
