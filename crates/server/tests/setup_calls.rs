//! The calls that set a Couchbase node up (record 189), in the order of Testcontainers' `CouchbaseContainer`: a node that is
//! what they ask for answers them, and otherwise says what it is not.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use serde_json::{Value, json};
use server::Server;
use support::{http, http_as, json, start};

/// Status code and body of an answer to a client that says nothing of who it is.
fn nameless(server: &Server, method: &str, path: &str, form: &str) -> (u16, String) {
    http_as("", server.http_addr(), method, path, form)
}

/// More than are free for one address.
const MOST_GUESSES: usize = 1_500;

fn errors(body: &str) -> Value {
    serde_json::from_str::<Value>(body).expect("JSON")["errors"].clone()
}

#[test]
fn the_calls_of_a_stock_container_are_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let port = server.http_addr().port();
    // waitUntilNodeIsOnline, initializeIsEnterprise, initializeHasTlsPorts
    let (code, body) = nameless(&server, "GET", "/pools", "");
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &told["isAdminCreds"], &told["uuid"]), (200, &json!(false), &json!("")));
    let told = json(&server, "/pools");
    assert_eq!((&told["isEnterprise"], &told["isAdminCreds"]), (&json!(false), &json!(true)));
    assert_ne!(told["uuid"], json!(""));
    assert_eq!(
        json(&server, "/pools/default/nodeServices")["nodesExt"][0]["services"]["mgmtSSL"],
        Value::Null
    );
    // renameNode, initializeServices, setMemoryQuotas, configureAdminUser
    for (path, form) in [
        ("/node/controller/rename", "hostname=127.0.0.1".to_owned()),
        ("/node/controller/setupServices", "services=kv".to_owned()),
        ("/pools/default", "memoryQuota=256".to_owned()),
        ("/settings/web", format!("username=Administrator&password=password&port={port}")),
    ] {
        let (code, body) = nameless(&server, "POST", path, &form);
        assert_eq!(code, 200, "{path}: {body}");
    }
    // configureExternalPorts
    let form = "hostname=localhost&mgmt=32003&kv=32001&capi=32002";
    assert_eq!(http(&server, "PUT", "/node/controller/setupAlternateAddresses/external", form).0, 200);
    // The wait strategy, createBuckets
    assert_eq!(json(&server, "/pools/default")["nodes"][0]["status"], "healthy");
    let form = "name=shop&ramQuotaMB=100&flushEnabled=1&replicaNumber=0";
    let (code, body) = http(&server, "POST", "/pools/default/buckets", form);
    assert_eq!(code, 202, "{body}");
    let map = json(&server, "/pools/default/b/shop");
    let services = map["nodesExt"][0]["services"].as_object().expect("services");
    assert!(services.keys().any(|name| name.starts_with("kv")), "{map}");
    server.stop().expect("a clean stop");
}

#[test]
fn what_is_not_so_is_refused_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "advertise = \"db1\"");
    for (path, form, field, what) in [
        ("/node/controller/rename", "hostname=db2", "hostname", "is called db1"),
        ("/node/controller/rename", "hostname=a%20b", "hostname", "a name or an address"),
        ("/node/controller/rename", "", "hostname", "must be supplied"),
        ("/node/controller/setupServices", "services=kv,n1ql,index", "services", "no service n1ql, index"),
        ("/node/controller/setupServices", "services=", "services", "has the service kv"),
        (
            "/node/controller/setupServices",
            "setDefaultMemQuotas=true",
            "setDefaultMemQuotas",
            "no such setting",
        ),
        ("/pools/default", "memoryQuota=99999999999", "memoryQuota", "cannot have 99999999999 MiB"),
        ("/pools/default", "memoryQuota=0", "memoryQuota", "a number of MiB"),
        ("/pools/default", "memoryQuota=256&indexMemoryQuota=256", "indexMemoryQuota", "no such setting"),
        ("/settings/web", "username=a&password=b&port=1", "port", "HTTP is at port"),
        ("/settings/web", "username=Administrator", "password", "must be supplied"),
    ] {
        let (code, body) = nameless(&server, "POST", path, form);
        let told = errors(&body)[field].as_str().unwrap_or_default().to_owned();
        assert!(code == 400 && told.contains(what), "{path} {form}: {code} {body}");
    }
    assert_eq!(nameless(&server, "POST", "/node/controller/rename", "hostname=db1").0, 200);
    let (code, body) = http(&server, "POST", "/settings/indexes", "storageMode=forestdb");
    assert!(code == 400 && body.contains("no indexes"), "{code} {body}");
    assert_eq!(nameless(&server, "POST", "/settings/indexes", "storageMode=forestdb").0, 401);
    // Of a client that has not logged in, no large body is taken.
    assert_eq!(nameless(&server, "POST", "/pools/default", &"x".repeat(5_000)).0, 413);
    server.stop().expect("a clean stop");
}

/// Nothing is set by it, and guesses count as logins that failed.
#[test]
fn the_administrator_is_not_changed_without_a_login() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = "[[user]]\nname = \"reader\"\npassword = \"password\"\nrole = \"read-only\"\n";
    let server = start(folder.path(), more);
    let port = server.http_addr().port();
    let call = |user: &str, password: &str| {
        let form = format!("username={user}&password={password}&port={port}");
        nameless(&server, "POST", "/settings/web", &form)
    };
    let (code, body) = call("reader", "password");
    assert!(code == 400 && body.contains("without the role admin"), "{code} {body}");
    let (code, body) = call("Administrator", "another");
    assert!(code == 401 && body.contains("no such user"), "{code} {body}");
    assert_eq!(http(&server, "GET", "/whoami", "").0, 200, "the password is as before");
    let refused = (0..MOST_GUESSES).map(|_| call("Administrator", "guess").0).find(|code| *code == 429);
    assert_eq!(refused, Some(429), "guesses have no limit");
    server.stop().expect("a clean stop");
}
