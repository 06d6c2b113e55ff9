//! The audit log of a whole node: each event of a list is brought about by requests and is in the file with its fields; no
//! password and no value is.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/full_disk.rs"]
mod full_disk;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::env::Env;
use full_disk::FullDisk;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode};
use serde_json::Value;
use server::Server;
use support::{Client, http, http_as, json, start, vb};

const ANN: &str = "/settings/rbac/users/local/ann";
const SECRET: &str = "unmistakable-secret";
const OTHER: &str = "unmistakable-other-secret";
const VALUE: &str = "unmistakable-value";
const SCOPES: &str = "/pools/default/buckets/default/scopes";

fn taken(server: &Server, method: &str, path: &str, body: &str) {
    let (code, told) = http(server, method, path, body);
    assert!((200..300).contains(&code), "{method} {path} {body}: {code} {told}");
}

/// A form that a user with any password posts; the status code.
fn http_by(server: &Server, user_and_password: &str, path: &str, body: &str) -> u16 {
    use base64::Engine;
    let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
    let credentials = base64::engine::general_purpose::STANDARD.encode(user_and_password);
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {credentials}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the server takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code")
}

fn text(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("audit/audit.log")).expect("the log")
}

fn records(folder: &Path) -> Vec<Value> {
    text(folder).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn log_in(server: &Server, user: &str, password: &str) -> Client {
    let mut client = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    client.send(&node::fuzz::login(user, password, "default", &Features::of(&[Feature::Xerror]).encode()));
    (0..3).for_each(|_| drop(client.receive()));
    client
}

fn ask(client: &mut Client, opcode: u8, key: &[u8], value: &[u8], extras: &[u8]) -> Status {
    client
        .request(&RequestParts { opcode, key, value, extras, vbucket: vb(key), ..RequestParts::default() })
        .status
}

/// What users do over HTTP.
fn use_http(server: &Server) {
    taken(server, "PUT", ANN, &format!("password={SECRET}&roles=data_reader[default]&name=Ann"));
    let (eve, form) = ("/settings/rbac/users/local/eve", format!("password={SECRET}&roles=security_admin"));
    // Neither JSON nor a form that a reader of JSON would take for an object sets a user.
    let (code, told) = http(server, "PUT", eve, &format!("{{=1&{form}"));
    assert!(code == 400 && told.contains("not JSON"), "{code} {told}");
    taken(server, "PUT", eve, &form);
    taken(server, "GET", "/settings/rbac/backup", "");
    taken(server, "PUT", "/settings/rbac/groups/readers", "roles=data_reader[*]&description=All");
    taken(server, "DELETE", "/settings/rbac/groups/readers", "");
    taken(server, "POST", "/settings/passwordPolicy", "minLength=8");
    taken(server, "POST", "/settings/security", "disableUIOverHttp=false");
    taken(server, "DELETE", "/settings/security/data/tlsMinVersion", "");
    taken(server, "DELETE", "/settings/security/disableUIOverHttp", "");
    taken(server, "DELETE", "/settings/clientCertAuth", "");
    taken(server, "POST", "/node/settings/log", "level=warn");
    taken(server, "POST", "/node/settings/slowOperations", "Get=20&Set=default");
    taken(
        server,
        "PUT",
        "/settings/rbac/users/local/kurt",
        &format!("password={SECRET}&roles=data_reader[*]"),
    );
    taken(server, "PUT", "/settings/rbac/users/local/kurt", "roles=data_writer[*]");
    let alternate = "/node/controller/setupAlternateAddresses/external";
    taken(server, "PUT", alternate, "hostname=elsewhere.example&kv=31210");
    taken(server, "DELETE", alternate, "");
    taken(server, "POST", "/settings/clientCertAuth", r#"{"state":"disable","prefixes":[]}"#);
    let (code, told) = http(server, "POST", "/settings/passwordPolicy", "minLength=9&minDigits=2");
    assert!(code == 400 && told.contains("minDigits"), "what is refused is no change: {code} {told}");
    taken(server, "POST", "/pools/default/buckets", "name=b&ramQuota=100&flushEnabled=1&replicaNumber=0");
    taken(server, "POST", "/pools/default/buckets/b", "ramQuota=101");
    taken(server, "PATCH", "/v1/buckets/b/settings", "{\"mem_high_wat_percent\": \"80\"}");
    taken(server, "POST", "/pools/default/buckets/b/controller/doFlush", "");
    let source = format!(
        r#"{{"node":"127.0.0.1:1","username":"ann","password":"{SECRET}","vbuckets":"0-1","mode":"replicate"}}"#
    );
    taken(server, "PUT", "/v1/buckets/b/replication", &format!("{{\"sources\":[{source}]}}"));
    taken(server, "DELETE", "/pools/default/buckets/b", "");
    taken(server, "POST", SCOPES, "name=s");
    taken(server, "POST", &format!("{SCOPES}/s/collections"), "name=c&maxTTL=5");
    taken(server, "PATCH", &format!("{SCOPES}/s/collections/c"), "maxTTL=6");
    taken(server, "DELETE", &format!("{SCOPES}/s/collections/c"), "");
    taken(server, "DELETE", &format!("{SCOPES}/s"), "");
    let all = r#"{"scopes":[{"name":"_default","collections":[{"name":"_default"}]},{"name":"t","collections":[]}]}"#;
    taken(server, "PUT", SCOPES, all);
    assert_eq!(http_as("stranger", server.http_addr(), "GET", "/pools?key=unmistakable-secret", "").0, 401);
    assert_eq!(http_as("reader", server.http_addr(), "DELETE", ANN, "").0, 403);
}

/// The name of a snapshot.
const SNAPSHOT: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// What users do over KV.
fn use_kv(server: &Server) {
    let mut admin = Client::connect(server, "default", &[]);
    let value = VALUE.as_bytes();
    assert_eq!(ask(&mut admin, opcode::SET, b"key-1", value, &[0; 8]), Status::Success);
    assert_eq!(ask(&mut admin, opcode::GET, b"key-1", b"", &[]), Status::Success);
    assert_eq!(ask(&mut admin, opcode::GET, b"absent", b"", &[]), Status::KeyEnoent);
    assert_eq!(ask(&mut admin, opcode::GET_LOCKED, b"key-1", b"", &[]), Status::Success);
    assert_eq!(ask(&mut admin, opcode::SET, b"key-2", value, &[0; 8]), Status::Success);
    assert_eq!(ask(&mut admin, opcode::DELETE, b"key-2", b"", &[]), Status::Success);
    let param = |name: &'static [u8]| RequestParts {
        opcode: opcode::SET_PARAM,
        key: name,
        value: b"81",
        extras: &[0, 0, 0, 1],
        ..RequestParts::default()
    };
    assert_eq!(admin.request(&param(b"mem_high_wat_percent")).status, Status::Success);
    assert_eq!(
        admin.request(&RequestParts { opcode: opcode::GET, ..RequestParts::default() }).status,
        Status::Einval
    );
    assert_eq!(ask(&mut admin, opcode::GET_RANDOM_KEY, b"", b"", &[]), Status::Success);
    assert_eq!(ask(&mut admin, opcode::GET_KEYS, b"key", b"", &[]), Status::Success);
    for switch in
        [opcode::DISABLE_TRAFFIC, opcode::ENABLE_TRAFFIC, opcode::STOP_PERSISTENCE, opcode::START_PERSISTENCE]
    {
        assert_eq!(ask(&mut admin, switch, b"", b"", &[]), Status::Success);
    }
    assert_eq!(ask(&mut admin, opcode::STAT, b"reset timings", b"", &[]), Status::Success);
    let snapshot = |step: &str| {
        let value = format!("{{\"do\":\"{step}\",\"id\":\"{SNAPSHOT}\",\"most_ms\":500}}");
        let opcode = opcode::BUCKET_SNAPSHOT;
        (RequestParts { opcode, datatype: 1, ..RequestParts::default() }, value)
    };
    for step in ["hold", "look", "release"] {
        let (parts, value) = snapshot(step);
        admin.request(&RequestParts { value: value.as_bytes(), ..parts });
    }
    assert_eq!(ask(&mut admin, opcode::VERBOSITY, b"", b"", &[0, 0, 0, 1]), Status::Success);
    let mut reader = log_in(server, "ann", SECRET);
    assert_eq!(ask(&mut reader, opcode::SET, b"key-1", value, &[0; 8]), Status::Eaccess);
    drop(log_in(server, "ann", "wrong-secret"));
    let open = RequestParts {
        opcode: opcode::DCP_OPEN,
        key: b"stream-1",
        extras: &[0, 0, 0, 0, 0, 0, 0, 1],
        ..RequestParts::default()
    };
    assert_eq!(admin.request(&open).status, Status::Success);
}

/// Number, user and a field with its value: each is in the log.
const LIST: &[(u64, &str, &str, &str)] = &[
    (4096, "stave", "/auditd_enabled", "true"),
    (4097, "stave", "/id", "4097"),
    (8232, "Administrator", "/identity/user", "ann"),
    (8232, "Administrator", "/roles/0", "data_reader[default]"),
    (8232, "Administrator", "/roles/0", "security_admin"),
    (61452, "Administrator", "/id", "61452"),
    (61453, "Administrator", "/command", "StopPersistence"),
    (61454, "Administrator", "/do", "hold"),
    (61454, "Administrator", "/do", "release"),
    (61454, "Administrator", "/snapshot", SNAPSHOT),
    (61455, "Administrator", "/id", "61455"),
    (61453, "Administrator", "/command", "StartPersistence"),
    (61456, "Administrator", "/hostname", "elsewhere.example"),
    (61456, "Administrator", "/kv", "31210"),
    (61457, "Administrator", "/name", "remove alternate address"),
    (61443, "Administrator", "/sources/0/node", "127.0.0.1:1"),
    (61443, "Administrator", "/sources/0/username", "ann"),
    (61443, "Administrator", "/sources/0/vbuckets", "0-1"),
    (61443, "Administrator", "/sources/0/mode", "replicate"),
    (8236, "Administrator", "/state", "disable"),
    (8237, "Administrator", "/settings/disableUIOverHttp", "false"),
    (8237, "Administrator", "/service", "data"),
    (8237, "Administrator", "/unset", "tlsMinVersion"),
    (8244, "Administrator", "/group_name", "readers"),
    (8245, "Administrator", "/group_name", "readers"),
    (8235, "Administrator", "/min_length", "8"),
    (8201, "Administrator", "/bucket_name", "b"),
    (8201, "Administrator", "/props/ramQuota", "100"),
    (8202, "Administrator", "/props/ramQuota", "101"),
    (8202, "Administrator", "/props/mem_high_wat_percent", "80"),
    (8202, "Administrator", "/props/mem_high_wat_percent", "81"),
    (8204, "Administrator", "/bucket_name", "b"),
    (8203, "Administrator", "/bucket_name", "b"),
    (8259, "Administrator", "/scope_name", "s"),
    (8261, "Administrator", "/collection_name", "c"),
    (8270, "Administrator", "/collection_name", "c"),
    (8262, "Administrator", "/collection_name", "c"),
    (8260, "Administrator", "/new_manifest_uid", "5"),
    (8263, "Administrator", "/bucket_name", "default"),
    (8264, "stranger", "/raw_url", "/pools"),
    (8275, "reader", "/raw_url", ANN),
    (8275, "reader", "/method", "DELETE"),
    (8275, "reader", "/permissions/0", "SecurityManagement"),
    (8240, "Administrator", "/failure_policy", "count"),
    (8194, "Administrator", "/identity/user", "ann"),
    (20_480, "Administrator", "/stream_name", "stream-1"),
    (20_481, "ann", "/reason", "AUTH_ERROR"),
    (20_483, "Administrator", "/bucket", "default"),
    (20_484, "ann", "/command", "Set"),
    (20_485, "ann", "/remote/ip", "127.0.0.1"),
    (20_488, "Administrator", "/key", "key-1"),
    (20_489, "Administrator", "/key", "key-1"),
    (20_490, "Administrator", "/key", "key-2"),
    (20_491, "Administrator", "/collection_id", "0x0"),
    (20_492, "ann", "/bucket", "default"),
    (20_493, "ann", "/real_userid/domain", "local"),
    (8195, "ann", "/identity/user", "ann"),
    (61_446, "Administrator", "/command", "DisableTraffic"),
    (61_446, "Administrator", "/command", "EnableTraffic"),
    (61_447, "Administrator", "/command", "GetRandomKey"),
    (61_447, "Administrator", "/command", "GetKeys"),
    (61_458, "Administrator", "/limits/Get", "20"),
    (61_458, "Administrator", "/limits/Set", "default"),
    (8232, "Administrator", "/password_set", "true"),
    (8232, "Administrator", "/password_set", "false"),
    (61_448, "Administrator", "/log_levels", "warn"),
    (61_448, "Administrator", "/log_levels", "debug"),
];

fn is_there(records: &[Value], (id, user, field, wanted): &(u64, &str, &str, &str)) -> bool {
    records.iter().any(|record| {
        let told = record.pointer(field).map(|value| value.as_str().map_or(value.to_string(), str::to_owned));
        record["id"] == *id && record["real_userid"]["user"] == *user && told.as_deref() == Some(wanted)
    })
}

#[test]
fn each_event_of_the_list_is_recorded_and_no_secret_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let reader = "[[user]]\nname = \"reader\"\npassword = \"password\"\nrole = \"data_reader[*]\"";
    let server = start(folder.path(), reader);
    let levels = server.node().host().expect("it is hosted").config().log_levels.clone();
    levels.drive("info", |_| Ok(()));
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true&disabled=");
    use_http(&server);
    use_kv(&server);
    let changed = http_by(
        &server,
        &format!("ann:{SECRET}"),
        "/controller/changePassword",
        &format!("password={OTHER}"),
    );
    assert_eq!(changed, 200);
    taken(&server, "DELETE", ANN, "");
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    let missing: Vec<_> = LIST.iter().filter(|row| !is_there(&records, row)).collect();
    assert!(missing.is_empty(), "missing: {missing:#?}\n{}", text(folder.path()));
    let reads = records.iter().filter(|record| record["id"] == 20_488).count();
    assert_eq!(reads, 1, "what was not there was not read");
    for record in &records {
        for field in ["id", "name", "description", "timestamp", "real_userid"] {
            assert!(!record[field].is_null(), "{field}: {record}");
        }
        let is_of_node = record["real_userid"]["user"] == "stave";
        assert!(is_of_node || (record["local"]["port"] != 0 && record["remote"]["port"] != 0), "{record}");
    }
    // Neither the log nor the file of its settings, nor any other of the folder: documents are in the bucket's.
    for name in ["audit/audit.log", "audit.json", "audit.json.copy"] {
        let told = std::fs::read_to_string(folder.path().join(name)).expect("a file");
        for secret in [SECRET, OTHER, VALUE, "wrong-secret"] {
            assert!(!told.contains(secret), "{secret} in {name}");
        }
    }
}

#[test]
fn settings_are_told_changed_and_kept() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let told = json(&server, "/settings/audit");
    assert_eq!((&told["auditdEnabled"], &told["rotateSize"]), (&false.into(), &20_971_520.into()));
    assert!(!folder.path().join("audit").exists(), "it is off");
    let (code, told) =
        http(&server, "POST", "/settings/audit", "auditdEnabled=true&logPath=/tmp&rotateSize=1");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((code, told["errors"].as_object().map(serde_json::Map::len)), (400, Some(2)));
    let off: Vec<u64> = json(&server, "/settings/audit/descriptors")
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| row["id"].as_u64().expect("a number"))
        .collect();
    assert!(off.contains(&20_488) && !off.contains(&20_481), "{off:?}");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true&disabledUsers=Administrator/local");
    Client::connect(&server, "default", &[]);
    server.stop().expect("a clean stop");
    let mode = std::fs::metadata(folder.path().join("audit/audit.log")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ids: Vec<Value> = records(folder.path()).iter().map(|record| record["id"].clone()).collect();
    assert_eq!(ids, [4096, 8240, 4097], "nothing of a user who is left out");
    let server = start(folder.path(), "");
    assert_eq!(json(&server, "/settings/audit")["auditdEnabled"], true);
    server.stop().expect("a clean stop");
}

/// Documents over HTTP are asked for by the administrator, for the user who asks: it is that user's deed.
#[test]
fn documents_over_http_are_recorded_of_the_user_who_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    let user =
        |name| format!("[[user]]\nname = \"{name}\"\npassword = \"password\"\nrole = \"data_reader[*]\"\n");
    let server = start(folder.path(), &(user("reader") + &user("left-out")));
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(ask(&mut client, opcode::SET, b"key-1", b"{}", &[0; 8]), Status::Success);
    let settings = "auditdEnabled=true&disabled=&disabledUsers=Administrator/local,left-out/local";
    taken(&server, "POST", "/settings/audit", settings);
    let document = "/v1/buckets/default/document?key=key-1";
    let by = |user: &str, method: &str| http_as(user, server.http_addr(), method, document, "").0;
    let mut asking = support::ask("reader", server.http_addr(), "GET", document, "", "close");
    let (from, mut told) = (asking.local_addr().expect("an address"), String::new());
    asking.read_to_string(&mut told).expect("an answer");
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert_eq!([by("left-out", "GET"), by("reader", "DELETE")], [200, 403]);
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    let readers: Vec<_> = records.iter().filter(|record| record["id"] == 20_488).collect();
    assert_eq!(readers.len(), 1, "one reading, and the administrator is left out: {readers:?}");
    assert_eq!(readers[0]["effective_userid"]["user"], "reader");
    assert_eq!(
        readers[0]["remote"]["port"],
        from.port(),
        "the client's address, not that of the node: {readers:?}"
    );
    let forbidden = (8275, "reader", "/raw_url", "/v1/buckets/default/document");
    assert!(is_there(&records, &forbidden), "{}", text(folder.path()));
}

#[test]
fn logins_that_are_put_off_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true");
    let mut client = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    let guess = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"PLAIN",
        value: b"\0ann\0wrong-secret",
        ..RequestParts::default()
    };
    // Until the address has to wait.
    while client.request(&guess).status != Status::Etmpfail {}
    while http_by(&server, "ann:wrong-secret", "/controller/changePassword", "password=x") != 429 {}
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    for row in [
        (20_481, "ann", "/put_off", "too many logins failed from this address"),
        (20_481, "ann", "/reason", "ETMPFAIL"),
        (20_481, "ann", "/reason", "AUTH_ERROR"),
        (8_264, "ann", "/status", "429"),
    ] {
        assert!(is_there(&records, &row), "{row:?}: {}", text(folder.path()));
    }
    assert!(!text(folder.path()).contains("wrong-secret"));
}

/// A mechanism that is switched off has a reason of its own, and is no guess at a password.
#[test]
fn a_mechanism_that_is_switched_off_is_no_wrong_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "sasl-mechanisms = [\"SCRAM-SHA512\"]\n");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true");
    let mut client = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    let auth = |key: &'static [u8], value: &'static [u8]| RequestParts {
        opcode: opcode::SASL_AUTH,
        key,
        value,
        ..RequestParts::default()
    };
    let off = auth(b"PLAIN", b"\0Administrator\0password");
    let before = server.node().logins.len();
    assert_eq!(
        client.request(&auth(b"SCRAM-SHA1", b"n,,n=ann,r=fyko+d2lbbFgONRv9qkxdawL")).status,
        Status::AuthError
    );
    assert_eq!(client.request(&auth(b"GSSAPI", b"")).status, Status::AuthError);
    // More than the guesses that are free, with the right password.
    for _ in 0..1_100 {
        assert_eq!(client.request(&off).status, Status::AuthError);
    }
    assert_eq!(server.node().logins.len(), before, "no guess is counted");
    let first = client.request(&auth(b"SCRAM-SHA512", b"n,,n=Administrator,r=fyko+d2lbbFgONRv9qkxdawL"));
    assert_eq!(first.status, Status::AuthContinue);
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    let why = "the mechanism is switched off on connections without TLS";
    for row in [
        (20_481, "Administrator", "/reason", why),
        (20_481, "Administrator", "/mechanism", "PLAIN"),
        (20_481, "ann", "/reason", why),
        (20_481, "ann", "/mechanism", "SCRAM-SHA1"),
        (20_481, "", "/reason", "there is no such mechanism"),
        (20_481, "", "/mechanism", "GSSAPI"),
    ] {
        assert!(is_there(&records, &row), "{row:?}: {}", text(folder.path()));
    }
    assert!(records.iter().all(|record| record["reason"] != "AUTH_ERROR"), "none is a wrong password");
    let of_plain = records.iter().filter(|record| record["mechanism"] == "PLAIN").count();
    assert!(of_plain < 100, "{of_plain} records of one address");
    assert!(records.iter().any(|record| record["left_out"].as_u64().is_some_and(|count| count > 900)));
}

/// With `failurePolicy=refuse` what must be recorded is refused while it cannot be, over KV and HTTP, and the settings are
/// the way out.
#[test]
fn what_cannot_be_recorded_is_refused_if_the_policy_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = FullDisk { only: Some("audit.log"), ..FullDisk::default() };
    let env = Env { disk: Arc::new(disk.clone()), ..Env::real() };
    let server = support::start_in(env, folder.path(), "");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true&failurePolicy=refuse");
    let mut client = Client::connect(&server, "default", &[]);
    disk.is_full.store(true, Ordering::SeqCst);
    // It shows when the writer has tried.
    let (code, told) = loop {
        let (code, told) = http(&server, "GET", "/pools/default", "");
        let (_, _) = http_as("stranger", server.http_addr(), "GET", "/pools", "");
        if code != 200 {
            break (code, told);
        }
    };
    assert_eq!(code, 503, "{told}");
    assert!(told.contains("failurePolicy=refuse"), "{told}");
    let (code, told) = http(&server, "GET", "/healthz", "");
    assert!(code == 503 && told.contains("the audit log cannot be written"), "{code} {told}");
    let (code, told) = http(&server, "POST", "/pools/default/buckets", "name=b&ramQuota=100&replicaNumber=0");
    assert_eq!(code, 503, "{told}");
    let mut login = Client::over(TcpStream::connect(server.kv_addr()).expect("the server listens"));
    let plain = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"PLAIN",
        value: b"\0Administrator\0password",
        ..RequestParts::default()
    };
    assert_eq!(login.request(&plain).status, Status::Etmpfail);
    let port = server.http_addr().port();
    for password in ["password", "guess"] {
        let form = format!("username=Administrator&password={password}&port={port}");
        let (code, told) = http_as("", server.http_addr(), "POST", "/settings/web", &form);
        assert_eq!(code, 503, "{told}");
    }
    let select = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"default", ..RequestParts::default() };
    assert_eq!(client.request(&select).status, Status::Etmpfail, "that is recorded");
    assert_eq!(ask(&mut client, opcode::SET, b"key-1", b"v", &[0; 8]), Status::Success, "that is not");
    // The way out.
    taken(&server, "POST", "/settings/audit", "failurePolicy=count");
    assert_eq!(login.request(&plain).status, Status::Success);
    assert_eq!(client.request(&select).status, Status::Success);
    disk.is_full.store(false, Ordering::SeqCst);
    server.stop().expect("a clean stop");
}

#[test]
fn the_table_of_the_configuration_holds_from_each_start_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = "[audit]\nenabled = true\nprune-age-min = 7\ndisabled-users = [\"later\"]\n";
    let told = |server: &Server| {
        let told = json(server, "/settings/audit");
        (told["auditdEnabled"].clone(), told["pruneAge"].clone(), told["rotateSize"].clone())
    };
    let server = start(folder.path(), table);
    assert_eq!(told(&server), (true.into(), 7.into(), 20_971_520.into()));
    // What the table does not name is kept, what it names holds again after a start.
    taken(&server, "POST", "/settings/audit", "pruneAge=9&rotateSize=1048576");
    assert_eq!(told(&server), (true.into(), 9.into(), 1_048_576.into()));
    server.stop().expect("a clean stop");
    let server = start(folder.path(), table);
    assert_eq!(told(&server), (true.into(), 7.into(), 1_048_576.into()));
    // Read again.
    let other = support::config(folder.path(), 2, "[audit]\nenabled = true\nprune-age-min = 8\n");
    let reloaded = server.reload(other);
    assert!(reloaded.taken.iter().any(|taken| taken == "the table [audit]"), "{reloaded}");
    assert_eq!(told(&server), (true.into(), 8.into(), 1_048_576.into()));
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    let is_told = |record: &&Value| record["id"] == 61_445 && record["taken"][0] == "the table [audit]";
    assert_eq!(records.iter().filter(is_told).count(), 1, "{}", text(folder.path()));
    let changes = records.iter().filter(|record| record["id"] == 8_240).count();
    assert_eq!(changes, 4, "a start that finds all as the table says changes nothing");
}

/// Deletes whose commands do not say so by their numbers.
fn delete_otherwise(client: &mut Client) {
    let keys: [&[u8]; 3] = [b"with-meta", b"return-meta", b"multi"];
    for key in keys {
        assert_eq!(ask(client, opcode::SET, key, b"v", &[0; 8]), Status::Success);
    }
    let meta = br#"{"command":"delete","cas":"0xffffffffffff","rev_seqno":"9"}"#;
    let meta_len = (meta.len() as u32).to_be_bytes();
    assert_eq!(ask(client, opcode::MUTATE_WITH_META, keys[0], meta, &meta_len), Status::Success);
    let mode = [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(ask(client, opcode::RETURN_META, keys[1], b"", &mode), Status::Success);
    let change = [opcode::DELETE, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(ask(client, opcode::SUBDOC_MULTI_MUTATION, keys[2], &change, &[]), Status::Success);
}

#[test]
fn deletes_are_recorded_as_what_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true&disabled=");
    delete_otherwise(&mut Client::connect(&server, "default", &[]));
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    for key in ["with-meta", "return-meta", "multi"] {
        let row = (20_491, "Administrator", "/key", key);
        assert!(is_there(&records, &row), "{row:?}: {}", text(folder.path()));
        let changes = records.iter().filter(|record| record["id"] == 20_490 && record["key"] == key).count();
        assert_eq!(changes, 1, "it was written once: {key}");
    }
}

/// What is answered later is recorded then, with how it went.
#[test]
fn what_is_answered_later_is_recorded_with_its_outcome() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true&disabled=");
    let mut client = Client::connect(&server, "default", &[]);
    let durable = RequestParts {
        opcode: opcode::SET,
        key: b"durable",
        value: b"v",
        extras: &[0; 8],
        vbucket: vb(b"durable"),
        frame_infos: &[0x11, 0x03],
        ..RequestParts::default()
    };
    assert_eq!(client.request(&durable).status, Status::Success);
    assert_eq!(ask(&mut client, opcode::COMPACT_DB, b"", b"", &[0; 24]), Status::Success);
    server.stop().expect("a clean stop");
    let records = records(folder.path());
    for (id, field, of) in [(20_490, "key", "durable"), (61_444, "command", "CompactDb")] {
        let of_it: Vec<_> = records.iter().filter(|one| one["id"] == id && one[field] == of).collect();
        assert!(matches!(of_it[..], [one] if one["status"] == "SUCCESS"), "{of}: {}", text(folder.path()));
    }
}

#[test]
fn a_configuration_that_is_not_valid_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "POST", "/settings/audit", "auditdEnabled=true");
    server.reload_refused();
    server.stop().expect("a clean stop");
    let row = (61_445, "stave", "/refused/0", "all of it: the node's log says why");
    assert!(is_there(&records(folder.path()), &row), "{}", text(folder.path()));
}
