//! Users that are made over HTTP: they log in, their rights change under live connections, and a restart keeps them.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use base::env::Env;
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode};
use serde_json::Value;
use server::Server;
use support::{Client, http, http_as, json, start};

const USERS: &str = "[[user]]\nname = \"guard\"\npassword = \"password\"\nrole = \"security_admin\"";
const ANN: &str = "/settings/rbac/users/local/ann";

/// A client of a user, with the status of the login.
fn log_in(server: &Server, user: &str, password: &str) -> (Client, Status) {
    log_in_at(server.kv_addr(), user, password)
}

fn log_in_at(addr: SocketAddr, user: &str, password: &str) -> (Client, Status) {
    let mut client = Client::over(TcpStream::connect(addr).expect("the server listens"));
    client.send(&node::fuzz::login(user, password, "default", &Features::of(&[Feature::Xerror]).encode()));
    let mut statuses = (0..3).map(|_| client.receive().status);
    let (_hello, login, _bucket) = (statuses.next(), statuses.next(), statuses.next());
    drop(statuses);
    (client, login.expect("an answer"))
}

/// Sends a form; it is taken.
fn taken(server: &Server, method: &str, path: &str, body: &str) {
    let (code, told) = http(server, method, path, body);
    assert_eq!(code, 200, "{method} {path} {body}: {told}");
}

fn get(client: &mut Client) -> Option<Status> {
    client.get(b"k").map(|frame| frame.status)
}

#[test]
fn a_change_holds_from_the_next_request_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), USERS);
    taken(&server, "PUT", ANN, "password=password&roles=data_reader[default]&name=Ann+A");
    let (mut ann, login) = log_in(&server, "ann", "password");
    assert_eq!((login, get(&mut ann)), (Status::Success, Some(Status::KeyEnoent)));
    assert_eq!(ann.set(b"k", b"1"), Some(Status::Eaccess));

    taken(&server, "PUT", ANN, "roles=data_writer[default:_default:_default]");
    assert_eq!(ann.set(b"k", b"1"), Some(Status::Success), "what was given");
    assert_eq!(get(&mut ann), Some(Status::Eaccess), "what was taken");

    taken(&server, "PUT", "/settings/rbac/groups/readers", "roles=data_reader[*]");
    taken(&server, "PUT", ANN, "groups=readers");
    assert_eq!(get(&mut ann), Some(Status::Success));
    taken(&server, "DELETE", "/settings/rbac/groups/readers", "");
    assert_eq!(get(&mut ann), Some(Status::Eaccess), "no right in the bucket is left");
    taken(&server, "PUT", ANN, "roles=data_reader[default]");
    assert_eq!(get(&mut ann), Some(Status::Success), "on the same connection");

    taken(&server, "PUT", ANN, "roles=data_reader[default]");
    let (mut ann, _) = log_in(&server, "ann", "password");
    taken(&server, "PUT", ANN, "roles=data_reader[default]&password=another-1");
    assert!(ann.get(b"k").is_none(), "another password");
    assert_eq!(log_in(&server, "ann", "password").1, Status::AuthError);
    let (mut ann, login) = log_in(&server, "ann", "another-1");
    assert_eq!(login, Status::Success);
    taken(&server, "DELETE", ANN, "");
    assert!(ann.get(b"k").is_none(), "the user is gone");
    server.stop().expect("a clean stop");
}

/// A change of a password ends what is connected with the old one. So the application moves to another user first, and
/// the old one is deleted when it has.
#[test]
fn no_operation_fails_while_an_application_moves_to_another_password() {
    const MOVES: u32 = 5;
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let path = |n: u32| format!("/settings/rbac/users/local/app-{n}");
    let make = |n: u32| taken(&server, "PUT", &path(n), &format!("password=secret-{n}&roles=data_writer[*]"));
    make(0);
    let (present, is_over) = (Mutex::new(0), AtomicBool::new(false));
    let (logins, moved, operations) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let addr = server.kv_addr();
    let connect = |n: u32| {
        let (client, login) = log_in_at(addr, &format!("app-{n}"), &format!("secret-{n}"));
        assert_eq!(login, Status::Success);
        client
    };
    let work = |is_lasting: bool| {
        let now = || *present.lock().expect("no holder panics");
        let mut at = now();
        let mut client = connect(at);
        while !is_over.load(Ordering::Relaxed) {
            if !is_lasting || at != now() {
                at = now();
                client = connect(at);
            }
            assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
            operations.fetch_add(1, Ordering::Relaxed);
            if is_lasting {
                moved.store(at, Ordering::Relaxed);
            } else {
                logins.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = [true, false].map(|is_lasting| scope.spawn(move || work(is_lasting)));
        for n in 1..=MOVES {
            make(n);
            *present.lock().expect("no holder panics") = n;
            let until = logins.load(Ordering::Relaxed) + 5;
            while (logins.load(Ordering::Relaxed) < until || moved.load(Ordering::Relaxed) < n)
                && !workers.iter().any(|one| one.is_finished())
            {
                std::thread::yield_now();
            }
            taken(&server, "DELETE", &path(n - 1), "");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{operations:?} operations on {logins:?} connections while the password changed, 0 failed");
    assert_eq!(log_in(&server, "app-0", "secret-0").1, Status::AuthError);
    server.stop().expect("a clean stop");
}

/// A stream ends when its user may not have it any more, and goes on when the user may do more; its connection stays.
#[test]
fn streams_end_with_the_right_to_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "PUT", ANN, "password=password&roles=data_dcp_reader[default]");
    let (mut ann, _) = log_in(&server, "ann", "password");
    let open = RequestParts {
        opcode: opcode::DCP_OPEN,
        key: b"k",
        extras: &[0, 0, 0, 0, 0, 0, 0, 1],
        ..RequestParts::default()
    };
    assert_eq!(ann.request(&open).status, Status::Success);
    let end = [&[0; 16][..], &[0xff; 8], &[0; 24]].concat();
    let stream = RequestParts { opcode: opcode::DCP_STREAM_REQ, extras: &end, ..RequestParts::default() };
    assert_eq!(ann.request(&stream).status, Status::Success);
    taken(&server, "PUT", ANN, "roles=data_dcp_reader[default],data_writer[default]");
    assert!(ann.is_silent());
    assert_eq!(ann.set(b"k", b"1"), Some(Status::Success));
    taken(&server, "PUT", ANN, "roles=data_writer[default]");
    let told = ann.receive();
    assert_eq!(
        (told.opcode, told.extras),
        (opcode::DCP_STREAM_END, vec![0, 0, 0, 8]),
        "without another request"
    );
    assert_eq!(ann.set(b"k", b"2"), Some(Status::Success));
    assert_eq!(ann.request(&stream).status, Status::Eaccess);
    server.stop().expect("a clean stop");
}

/// An answer over HTTP to ann that does not end by itself; its head and the first bytes of its body have come.
fn endless(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.http_addr()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time limit");
    // ann:password
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YW5uOnBhc3N3b3Jk\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).expect("an answer");
    assert_eq!(&begun, b"HTTP/1.1 200", "{path}");
    stream
}

/// Reads to the last chunk of an answer.
fn ends(mut stream: TcpStream) {
    let mut all = Vec::new();
    let mut some = [0; 4096];
    while !all.ends_with(b"0\r\n\r\n") {
        let count = stream.read(&mut some).expect("it ends in time");
        assert!(count > 0, "it was cut");
        all.extend_from_slice(&some[..count]);
    }
}

/// What is streamed over HTTP ends with the right to it, too, and goes on when the user may do more.
#[test]
fn endless_answers_end_with_the_right_to_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "PUT", ANN, "password=password&roles=data_dcp_reader[default]");
    let changes = endless(&server, "/v1/buckets/default/changes");
    let map = endless(&server, "/pools/default/bs/default");
    let cluster = endless(&server, "/poolsStreaming/default");
    taken(&server, "PUT", ANN, "roles=data_dcp_reader[default],data_writer[default]");
    let goes_on = |stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        let mut some = [0; 65_536];
        let mut stream = stream;
        let end = loop {
            match stream.read(&mut some) {
                Ok(count) if count > 0 => assert!(!some[..count].ends_with(b"0\r\n\r\n"), "it ended"),
                end => break end,
            }
        };
        assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        stream.set_nonblocking(false).expect("a socket");
    };
    [&changes, &map, &cluster].into_iter().for_each(goes_on);
    taken(&server, "PUT", ANN, "roles=data_writer[default]");
    ends(changes);
    goes_on(&map);
    taken(&server, "DELETE", ANN, "");
    ends(map);
    ends(cluster);
    server.stop().expect("a clean stop");
}

#[test]
fn a_restart_keeps_users_and_no_passwords() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "PUT", ANN, "password=canary-77&roles=data_reader[default]&name=Ann+A");
    let shown = json(&server, ANN);
    assert_eq!((shown["id"].as_str(), shown["name"].as_str()), (Some("ann"), Some("Ann A")));
    assert_eq!(shown["roles"][0]["role"], "data_reader");
    assert_eq!(shown["roles"][0]["bucket_name"], "default");
    assert_eq!(shown["roles"][0]["origins"][0]["type"], "user");
    server.stop().expect("a clean stop");
    let kept = std::fs::read_to_string(folder.path().join("users.json")).expect("a file of text");
    assert!(kept.contains("ann") && !kept.contains("canary"));
    let server = start(folder.path(), "");
    assert_eq!(json(&server, ANN), shown);
    assert_eq!(log_in(&server, "ann", "canary-77").1, Status::Success);
    assert_eq!(log_in(&server, "ann", "canary-78").1, Status::AuthError);
    server.stop().expect("a clean stop");
}

#[test]
fn what_is_refused_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), USERS);
    for (path, body, told) in [
        (
            ANN,
            "password=password&roles=nobody",
            "are unknown, malformed or role parameters are undefined: [nobody]: there is no role `nobody`",
        ),
        (
            ANN,
            "password=password&roles=data_reader[none]",
            "undefined: [data_reader[none]]: there is no bucket `none`",
        ),
        (
            ANN,
            "password=password&roles=data_reader[default:none]",
            "undefined: [data_reader[default:none]]: bucket `default` has no scope `none`",
        ),
        (
            "/settings/rbac/groups/readers",
            "roles=data_reader[default:_default:none]",
            "scope `_default` of bucket `default` has no collection `none`",
        ),
        (ANN, "password=password&roles=data_reader", "write `data_reader[*]`"),
        (ANN, "password=password&groups=none", "Groups do not exist: none"),
        (ANN, "roles=data_reader[*]", "Password is required"),
        (ANN, "password=short", "at least 6 characters"),
        ("/settings/rbac/users/local/guard", "password=password", "is a user of the node's configuration"),
    ] {
        let (code, body) = http(&server, "PUT", path, body);
        assert!(code == 400 && body.contains(told), "{code} {body}");
    }
    let (code, told) = http(&server, "DELETE", "/settings/rbac/users/local/Administrator", "");
    assert!(code == 400 && told.contains("is a user of the node's configuration"), "{told}");
    let as_guard = |body| http_as("guard", server.http_addr(), "PUT", ANN, body).0;
    assert_eq!(as_guard("password=password&roles=admin"), 403);
    assert_eq!(as_guard("password=password&roles=data_reader[*]"), 200);
    assert_eq!(http_as("ann", server.http_addr(), "GET", "/settings/rbac/users", "").0, 403);
    assert_eq!(
        http_as("ann", server.http_addr(), "POST", "/controller/changePassword", "password=another-1").0,
        200
    );
    assert_eq!(log_in(&server, "ann", "another-1").1, Status::Success);
    server.stop().expect("a clean stop");
}

/// A file that cannot be read is not told like one without users, and is never written over.
#[test]
fn a_damaged_file_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "PUT", ANN, "password=password&roles=data_reader[default]");
    server.stop().expect("a clean stop");
    let damaged: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("users.json")))
        .collect();
    damaged.iter().for_each(|path| std::fs::write(path, "not what was written").expect("written"));
    let server = start(folder.path(), "");
    for (method, path) in [
        ("GET", "/settings/rbac/users"),
        ("GET", ANN),
        ("PUT", ANN),
        ("DELETE", ANN),
        ("GET", "/settings/rbac/groups"),
        ("GET", "/settings/passwordPolicy"),
        ("POST", "/settings/passwordPolicy"),
    ] {
        let body = if path == ANN { "password=password" } else { "minLength=8" };
        let (code, told) = http(&server, method, path, body);
        assert!(code == 500 && told.contains("users.json") && told.contains("put back"), "{code} {told}");
    }
    assert_eq!(log_in(&server, "ann", "password").1, Status::AuthError);
    server.stop().expect("a clean stop");
    for path in damaged {
        assert_eq!(std::fs::read(&path).expect("a file"), b"not what was written", "{path:?}");
    }
}

/// Who has rights in a collection alone sees it, its scope, and no figures of the bucket.
#[test]
fn over_http_a_narrow_user_sees_what_is_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let scopes = "/pools/default/buckets/default/scopes";
    for (path, name) in [("", "s"), ("", "t"), ("/s/collections", "c"), ("/s/collections", "d")] {
        taken(&server, "POST", &format!("{scopes}{path}"), &format!("name={name}"));
    }
    taken(&server, "PUT", ANN, "password=password&roles=data_reader[default:s:c]");
    let as_ann = |path: &str| {
        let (code, told) = http_as("ann", server.http_addr(), "GET", path, "");
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        (code, told)
    };
    let names = |told: &Value| {
        let scopes = told["scopes"].as_array().expect("scopes").clone();
        let collections = |scope: &Value| scope["collections"].as_array().expect("collections").clone();
        let of = |scope: Value| {
            let told = collections(&scope);
            let names = told.iter().map(|one| format!("{}.{}", scope["name"], one["name"]).replace('"', ""));
            names.collect::<Vec<_>>()
        };
        scopes.into_iter().flat_map(of).collect::<Vec<_>>()
    };
    assert_eq!(names(&as_ann(scopes).1), ["s.c"]);
    assert_eq!(names(&json(&server, scopes)), ["_default._default", "s.c", "s.d"]);
    let bucket = "/pools/default/buckets/default";
    assert_eq!(as_ann(&format!("{bucket}/stats")).0, 403);
    assert_eq!(as_ann(bucket).1["basicStats"], Value::Null);
    assert_eq!(as_ann("/pools/default/buckets").1[0]["basicStats"], Value::Null);
    assert_eq!(as_ann("/pools/default").1["storageTotals"]["ram"]["quotaUsed"], 0);
    assert_eq!(as_ann("/pools/default").1["nodes"][0]["interestingStats"], serde_json::json!({}));

    taken(&server, "PUT", ANN, "roles=data_reader[default:s:c],data_monitoring[default]");
    assert_eq!(as_ann(&format!("{bucket}/stats")).0, 200);
    let (seen, all) = (as_ann(bucket).1["basicStats"].clone(), json(&server, bucket)["basicStats"].clone());
    assert_eq!((&seen["itemCount"], &seen["memUsed"]), (&all["itemCount"], &all["memUsed"]));
    assert!(as_ann("/pools/default").1["storageTotals"]["ram"]["quotaUsed"].as_u64() > Some(0));
    server.stop().expect("a clean stop");
}

/// What is read over HTTP needs the right in the collections that are read, and ends with it.
#[test]
fn changes_of_collections_need_the_right_in_them_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let scopes = "/pools/default/buckets/default/scopes";
    for (path, name) in [("", "s"), ("/s/collections", "c"), ("/s/collections", "d"), ("/s/collections", "e")]
    {
        taken(&server, "POST", &format!("{scopes}{path}"), &format!("name={name}"));
    }
    let roles = "roles=data_dcp_reader[default:s:c],data_reader[default:s:d]";
    taken(&server, "PUT", ANN, &format!("password=password&{roles}"));
    let changes = "/v1/buckets/default/changes?follow=false";
    let code = |query: &str| {
        let (code, told) = http_as("ann", server.http_addr(), "GET", &format!("{changes}{query}"), "");
        (code, told)
    };
    let collection = |name: &str| {
        let told = json(&server, scopes);
        let s = told["scopes"].as_array().expect("scopes").iter().find(|one| one["name"] == "s").cloned();
        let s = s.expect("it was made");
        let found = s["collections"].as_array().expect("collections").iter().find(|one| one["name"] == name);
        found.expect("it was made")["uid"].as_str().expect("a number").to_owned()
    };
    let (c, d, e) = (collection("c"), collection("d"), collection("e"));
    assert_eq!(code("&collections=s.c").0, 200);
    assert_eq!(code(&format!("&collections=0x{c}")).0, 200);
    for query in [String::new(), "&collections=s.c,s.d".to_owned(), format!("&collections=0x{d}")] {
        assert_eq!(code(&query).0, 403, "{query}");
    }
    // Hidden and missing ones are told in the same words.
    assert_eq!(code("&collections=s.e"), (400, code("&collections=s.no").1.replace("s.no", "s.e")));
    assert_eq!(code(&format!("&collections=0x{e}")), code("&collections=0xfff"));
    assert_eq!(http_as("ann", server.http_addr(), "GET", "/v1/buckets/default/cursors", "").0, 403);

    let reads = endless(&server, "/v1/buckets/default/changes?collections=s.c");
    taken(&server, "PUT", ANN, "roles=data_dcp_reader[default:s:d]");
    ends(reads);
    server.stop().expect("a clean stop");
}

/// The file of an earlier version has no hashes: a login adds one, to the file and to nothing else.
#[test]
fn a_login_adds_the_hash_that_an_earlier_version_did_not_keep() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    taken(&server, "PUT", ANN, "password=password&roles=admin");
    server.stop().expect("a clean stop");
    let (env, file) = (Env::real(), node::kept_users::file(folder.path()));
    let content = || {
        let read = |bytes: &[u8], _| serde_json::from_slice(bytes).map_err(|error| error.to_string());
        file.open::<Value>(&*env.disk, read, |fault| panic!("{fault}")).expect("sound").expect("there")
    };
    let mut users = content();
    let hash = users["users"]["ann"].as_object_mut().expect("a user").remove("hash");
    assert_eq!(hash.expect("a hash")["algorithm"], "argon2id");
    file.write(&*env.disk, &serde_json::to_vec(&users).expect("JSON")).expect("written");

    let server = start(folder.path(), "argon2id-memory = \"1MiB\"\nargon2id-time = 1");
    assert_eq!(log_in(&server, "ann", "passw0rd").1, Status::AuthError);
    assert_eq!(http_as("ann", server.http_addr(), "GET", "/whoami", "").0, 200);
    // A stop waits for what is under way.
    server.stop().expect("a clean stop");
    let users = content();
    let hash = &users["users"]["ann"]["hash"];
    assert_eq!((&hash["memory_kib"], &hash["passes"]), (&1024.into(), &1.into()));
    let server = start(folder.path(), "");
    assert_eq!(log_in(&server, "ann", "password").1, Status::Success);
    assert_eq!(log_in(&server, "ann", "passw0rd").1, Status::AuthError);
    server.stop().expect("a clean stop");
}

/// A user of the configuration hides one of its name that was made before: that one can be deleted, and is told when it counts
/// again.
#[test]
fn a_hidden_user_is_told_and_can_be_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), USERS);
    let configured = format!(
        "{USERS}\n[[user]]\nname = \"ann\"\npassword = \"password-2\"\nrole = \"data_reader[default]\""
    );
    let reload = |lines: &str| server.reload(support::config(folder.path(), 2, lines)).taken;
    let login = |password| log_in(&server, "ann", password).1;
    taken(&server, "PUT", ANN, "password=password-1&roles=admin");

    let told = reload(&configured);
    assert!(told.len() == 1 && told[0].contains("hides the one of that name"), "{told:?}");
    assert_eq!((login("password-1"), login("password-2")), (Status::AuthError, Status::Success));
    // It counts again when the other one goes.
    let told = reload(USERS);
    assert!(told.len() == 1 && told[0].contains("counts again"), "{told:?}");
    assert_eq!((login("password-1"), login("password-2")), (Status::Success, Status::AuthError));

    reload(&configured);
    let as_guard = || http_as("guard", server.http_addr(), "DELETE", ANN, "").0;
    assert_eq!(as_guard(), 403, "it is an administrator");
    taken(&server, "DELETE", ANN, "");
    assert_eq!(login("password-2"), Status::Success, "the user of the configuration stays");
    let (code, told) = http(&server, "DELETE", ANN, "");
    assert!(code == 400 && told.contains("is a user of the node's configuration"), "{told}");
    assert_eq!(reload(USERS), ["user \"ann\" was removed"]);
    assert_eq!((login("password-1"), login("password-2")), (Status::AuthError, Status::AuthError));
    server.stop().expect("a clean stop");
}

/// What frameworks and SDKs read of an answer beside its status, and what they would lose by a misspelt name.
#[test]
fn changes_are_answered_as_the_field_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let empty = || (200, "\"\"".to_owned());
    assert_eq!(http(&server, "PUT", ANN, "password=password&roles=data_reader[*]"), empty());
    for (wrong, told) in [
        ("role=admin", "\"role\":\"Unsupported key\""),
        ("{\"roles\":\"admin\"}", "not JSON"),
        ("roles=admin,", "no role"),
    ] {
        let (code, said) = http(&server, "PUT", ANN, wrong);
        assert!(code == 400 && said.contains(told), "{code} {said}");
    }
    assert_eq!(json(&server, ANN)["roles"][0]["role"], "data_reader", "she keeps her roles");
    // A percent sign that begins no code is a part of no name.
    let (code, said) = http(&server, "PUT", "/settings/rbac/users/local/%zz", "password=password");
    assert!(code == 400 && said.contains("write %25"), "{code} {said}");
    let policy = "minLength=101&enforceDigits=perhaps&minDigits=2";
    let (code, said) = http(&server, "POST", "/settings/passwordPolicy", policy);
    assert_eq!(code, 400, "{said}");
    for what in
        ["range from 0 to 100", "\"enforceDigits\":\"The value must be true or false\"", "\"minDigits\":"]
    {
        assert!(said.contains(what), "{said}");
    }
    let group = "/settings/rbac/groups/readers";
    assert_eq!(http(&server, "PUT", group, "roles=data_reader[*]"), empty());
    assert_eq!(http(&server, "DELETE", group, ""), empty());
    assert_eq!(http(&server, "DELETE", ANN, ""), empty());
    let external = "/settings/rbac/users/external";
    assert_eq!(json(&server, external), serde_json::json!([]));
    assert_eq!(json(&server, &format!("{external}?pageSize=10"))["users"], serde_json::json!([]));
    let (code, said) = http(&server, "PUT", &format!("{external}/ann"), "roles=admin");
    assert!(code == 400 && said.contains("local alone"), "{code} {said}");
}
