//! Who may use which address over HTTP, and what web pages of others may not.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine;
use server::http::addresses;
use support::{http, start};

/// Columns of the table: letter, user.
const COLUMNS: [(char, &str); 20] = [
    ('A', "Administrator"),
    ('B', "bucket-admin"),
    ('W', "writer"),
    ('R', "reader"),
    ('O', "admin-of-another"),
    ('c', "cluster_admin"),
    ('s', "security_admin"),
    ('o', "ro_admin"),
    ('m', "scope_admin[default]"),
    ('n', "scope_admin[default:_default]"),
    ('d', "data_dcp_reader[default]"),
    ('b', "bucket_admin[default]"),
    ('f', "bucket_full_access[default]"),
    ('r', "data_reader[default]"),
    ('w', "data_writer[default]"),
    ('k', "data_backup[default]"),
    ('q', "data_monitoring[default]"),
    ('t', "replication_target[default]"),
    ('e', "external_stats_reader"),
    ('-', ""),
];
const TABLE: &str = include_str!("http_roles.txt");
const USERS: &str = r#"
buckets = ["default:64MiB", "other:64MiB"]
[[user]]
name = "bucket-admin"
password = "password"
role = "admin"
buckets = ["default"]
[[user]]
name = "writer"
password = "password"
role = "read-write"
[[user]]
name = "reader"
password = "password"
role = "read-only"
buckets = ["default"]
[[user]]
name = "admin-of-another"
password = "password"
role = "admin"
buckets = ["other"]
"#;

/// The users of roles are called like these, with a dot for each colon, which separates names from passwords.
fn with_roles() -> String {
    let is_role = |(letter, _): &&(char, &str)| letter.is_ascii_lowercase();
    let user = |(_, role): &(char, &str)| {
        let name = role.replace(':', ".");
        format!("[[user]]\nname = \"{name}\"\npassword = \"password\"\nrole = \"{role}\"\n")
    };
    USERS.to_owned() + &COLUMNS.iter().filter(is_role).map(user).collect::<String>()
}

/// What an answer says about who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Allowed,
    /// A password is missing.
    LogIn,
    Forbidden,
    /// There is no such bucket, for this user.
    Hidden,
}

/// Sends a request with these header fields; the status code, and the body if the request was refused.
fn ask(addr: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in fields {
        write!(head, "{name}: {value}\r\n").expect("text");
    }
    let mut stream = TcpStream::connect(addr).expect("the server listens");
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).expect("the server takes it");
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line).expect("a status line");
    let code = line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    // Streams of those who are let in never end.
    let mut rest = String::new();
    if matches!(code, 401 | 403 | 404) {
        answer.read_to_string(&mut rest).expect("text");
    }
    (code, rest.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn credentials(user: &str) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:password"));
    format!("Basic {encoded}")
}

fn told(addr: SocketAddr, user: &str, method: &str, path: &str, body: &str) -> Told {
    let authorization = credentials(&user.replace(':', "."));
    let mut fields = vec![("Host", "localhost")];
    if !user.is_empty() {
        fields.push(("Authorization", &authorization));
    }
    match ask(addr, method, path, &fields, body) {
        (401, _) => Told::LogIn,
        (403, _) => Told::Forbidden,
        (404, body) if body == "Requested resource not found.\r\n" => Told::Hidden,
        _ => Told::Allowed,
    }
}

/// Path and body of requests that ask for more than their address.
const SPECIAL: [(&str, &str, &str, &str); 10] = [
    ("", "GET", "/v1/buckets/{bucket}/document?key=k", ""),
    ("", "PUT", "/v1/buckets/{bucket}/document?key=k", ""),
    ("", "DELETE", "/v1/buckets/{bucket}/document?key=k", ""),
    ("", "GET", "/v1/buckets/{bucket}/documents?limit=1", ""),
    ("of the quota", "POST", "/pools/default/buckets/{bucket}", "ramQuotaMB=100"),
    ("of the replicas", "POST", "/pools/default/buckets/{bucket}", "replicaNumber=2"),
    ("with the quota as it is", "POST", "/pools/default/buckets/{bucket}", "ramQuotaMB=64&maxTTL=7"),
    ("of the quota", "PATCH", "/v1/buckets/{bucket}/settings", r#"{"max_size": 17592186044416}"#),
    ("of the quota", "POST", "/v1/buckets/{bucket}/settings", r#"{"max_size": 17592186044416}"#),
    ("of a watermark", "PATCH", "/v1/buckets/{bucket}/settings", r#"{"mem_low_wat_percent": 60}"#),
];

/// A path with something for each of its parts.
fn filled(path: &str) -> String {
    path.replace("{bucket}", "default")
        .replace("{scope}", "_default")
        .replace("{collection}", "none")
        .replace("{uid}", "0")
        .replace("{name}", "c")
        .replace("{domain}", "local")
        .replace("{user}", "none")
        .replace("{service}", "data")
        .replace("{field}", "tlsMinVersion")
        .replace("{group}", "none")
}

/// All addresses with all methods, and the requests that ask for more: name, method, path, body.
fn all_requests() -> Vec<(String, String, &'static str, &'static str)> {
    let mut asked: Vec<(String, String, &str, &str)> = addresses()
        .into_iter()
        .map(|(method, path)| (format!("{method} {path}"), method, path, ""))
        .collect();
    asked.extend(SPECIAL.map(|(what, method, path, body)| {
        (format!("{method} {path} {what}").trim_end().to_owned(), method.to_owned(), path, body)
    }));
    // What deletes the bucket comes last.
    asked
        .sort_by_key(|(_, method, path, _)| method == "DELETE" && *path == "/pools/default/buckets/{bucket}");
    asked
}

#[test]
fn each_address_is_for_the_roles_of_the_table() {
    let asked = all_requests();
    let folders: Vec<_> = COLUMNS.iter().map(|_| tempfile::tempdir().expect("a folder")).collect();
    let servers: Vec<_> = folders.iter().map(|folder| start(folder.path(), &with_roles())).collect();
    let mut found = Vec::new();
    for (name, method, path, body) in &asked {
        let path = filled(path);
        let letter = |((letter, user), server): (&(char, &str), &server::Server)| match told(
            server.http_addr(),
            user,
            method,
            &path,
            body,
        ) {
            Told::Allowed => *letter,
            Told::LogIn => '.',
            Told::Forbidden => 'x',
            Told::Hidden => '?',
        };
        let letters: String = COLUMNS.iter().zip(&servers).map(letter).collect();
        found.push(format!("{letters} {name}"));
    }
    servers.into_iter().for_each(|server| server.stop().expect("a clean stop"));
    found.sort_by(|a, b| a[COLUMNS.len() + 1..].cmp(&b[COLUMNS.len() + 1..]));
    let heading = COLUMNS.iter().fold("matrix of addresses over HTTP".to_owned(), |all, (letter, user)| {
        format!("{all} | {letter} {}", if user.is_empty() { "no user" } else { user })
    });
    println!("{heading}\n{}", found.join("\n"));
    let written: Vec<&str> =
        TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(written, found, "what is right? the table now says:\n{}", found.join("\n"));
}

/// The first of the roles that a refusal names.
fn named_role(refusal: &str) -> String {
    let told: serde_json::Value = serde_json::from_str(refusal).unwrap_or_default();
    let text = told["message"].as_str().or(told["errors"]["_"].as_str()).unwrap_or_default().to_owned();
    let roles = ["one of the roles ", "the role ", "of roles like "].iter().find_map(|intro| {
        let (_, roles) = text.split_once(intro)?;
        Some(roles.trim_end_matches(')').to_owned())
    });
    let roles = roles.unwrap_or_else(|| panic!("it names no role: {refusal}"));
    roles.split(", ").flat_map(|role| role.split(" or ")).next().expect("a role").to_owned()
}

/// A user who is refused, gets the role that the refusal names and tries again, is not refused again: over all addresses and
/// all groups of stats.
#[test]
fn the_role_that_a_refusal_names_opens_the_request() {
    let mut asked: Vec<(String, String, String)> = Vec::new();
    for group in node::stats::GROUPS.iter().filter(|group| !matches!(group.name, "" | "reset")) {
        let args = if group.args.least > 0 { "%20k%200" } else { "" };
        asked.push((
            "GET".to_owned(),
            format!("/v1/buckets/default/stats/{}{args}", group.name),
            String::new(),
        ));
    }
    asked.extend(
        all_requests().into_iter().map(|(_, method, path, body)| (method, filled(path), body.to_owned())),
    );
    let mut refusals = 0;
    for base in [
        "data_monitoring[default]",
        "data_reader[default]",
        "scope_admin[default:_default]",
        "data_writer[default:_default]",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = start(folder.path(), "buckets = [\"default:64MiB\", \"other:64MiB\"]\n");
        let mut made: Vec<String> = Vec::new();
        // A user with these roles, who is made once.
        let mut user_with = |roles: &str| -> String {
            let at = made.iter().position(|there| there == roles).unwrap_or(made.len());
            let name = format!("user-{at}");
            if at == made.len() {
                let form = format!("password=password&roles={roles}");
                let (code, told) = http(&server, "PUT", &format!("/settings/rbac/users/local/{name}"), &form);
                assert_eq!(code, 200, "{roles}: {told}");
                made.push(roles.to_owned());
            }
            name
        };
        for (method, path, body) in &asked {
            let mut answer = |roles: &str| {
                let authorization = credentials(&user_with(roles));
                let fields = [("Host", "localhost"), ("Authorization", &*authorization)];
                ask(server.http_addr(), method, path, &fields, body)
            };
            // Of a body the address knows nothing: what it asks for may be refused behind that.
            let most = if body.is_empty() { 1 } else { 2 };
            let (mut roles, mut told) = (base.to_owned(), answer(base));
            for _ in 0..most {
                if told.0 == 403 {
                    roles = format!("{roles},{}", named_role(&told.1));
                    told = answer(&roles);
                    refusals += 1;
                }
            }
            assert_ne!(told.0, 403, "{method} {path} with {roles}: {}", told.1);
        }
        server.stop().expect("a clean stop");
    }
    println!("{refusals} refusals named a role that opened the request");
    assert!(refusals > 200, "{refusals}");
}

/// A role without a column would never be compared; the full administrator is the first user.
#[test]
fn each_role_has_a_column() {
    let has_column = |role: &str| COLUMNS.iter().any(|(_, user)| user.split('[').next() == Some(role));
    for role in node::roles::ROLES.iter().filter(|role| role.name != "admin") {
        assert!(has_column(role.name), "{} is in no column of http_roles.txt", role.name);
    }
}

#[test]
fn web_pages_of_others_reach_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let addr = server.http_addr();
    let here = format!("127.0.0.1:{}", addr.port());
    let authorization = credentials("Administrator");
    let code = |method: &str, path: &str, fields: &[(&str, &str)], body: &str| {
        let fields = [&[("Authorization", authorization.as_str())], fields].concat();
        ask(addr, method, path, &fields, body).0
    };
    let form = "name=stolen&ramQuotaMB=64&replicaNumber=0";
    let buckets = "/pools/default/buckets";
    for fields in [
        &[("Host", here.as_str()), ("Origin", "http://evil.example")][..],
        &[("Host", &here), ("Origin", "null")],
        &[("Host", &here), ("Sec-Fetch-Site", "cross-site")],
        &[("Host", "evil.example")],
    ] {
        assert_eq!(code("POST", buckets, fields, form), 403, "{fields:?}");
        assert_eq!(code("GET", buckets, fields, ""), 403, "{fields:?}");
    }
    assert_eq!(http(&server, "GET", "/pools/default/buckets/stolen", "").0, 404);
    let own = format!("http://{here}");
    assert_eq!(code("GET", buckets, &[("Host", &here), ("Origin", &own)], ""), 200);
    for host in ["localhost", "[::1]:8091", "stave"] {
        assert_eq!(code("GET", buckets, &[("Host", host)], ""), 200, "{host}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn a_slash_at_the_end_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    for path in [
        "/pools/",
        "/pools/default/",
        "/pools/default/buckets/",
        "/pools/default/buckets/default/?x=/",
        "/healthz/",
    ] {
        assert_eq!(http(&server, "GET", path, "").0, 200, "{path}");
    }
    let made = http(&server, "POST", "/pools/default/buckets/default/scopes/", "name=s");
    assert_eq!(made.0, 200, "{}", made.1);
    assert_eq!(http(&server, "DELETE", "/pools/default/buckets/default/scopes/s/", "").0, 200);
    assert_eq!(http(&server, "GET", "/nothing/", "").0, 404);
    server.stop().expect("a clean stop");
}
