//! Settings of buckets: from the configuration to what is told, and changed by Set Param and over HTTP.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use base::env::Env;
use engine::Bucket;
use engine::settings::{Key, SETTINGS};
use node::connection::{Connection, Next};
use node::counters::WorkerCounters;
use node::fuzz::{feed, login};
use node::{Config, Settings};
use protocol::feature::{Feature, Features};
use protocol::response::ParsedResponse;
use protocol::{RequestParts, Status, opcode, parse_response, write_request};
use serde_json::{Value, json};
use server::Server;

const CONFIG: &str = r#"
kv = "127.0.0.1:0"
http = "127.0.0.1:0"
password = "password"
vbuckets = 4
memory-quota = "400MiB"
buckets = ["default:100MiB"]

[[bucket]]
name = "sessions"
quota = "64MiB"
type = "ephemeral"
eviction-policy = "nruEviction"
max-ttl = 3600
[bucket.settings]
mem_high_wat_percent = 90

[[user]]
name = "reader"
password = "password"
role = "read-only"
"#;

/// A node with a bucket on disk and an ephemeral one.
struct Desk {
    server: Server,
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        Desk::on(tempfile::tempdir().expect("a folder"))
    }

    fn start_again(self) -> Desk {
        self.server.stop().expect("a clean stop");
        Desk::on(self.folder)
    }

    fn on(folder: tempfile::TempDir) -> Desk {
        let settings = Settings::parse(CONFIG).expect("valid settings");
        let config = Config::new(settings, folder.path().to_owned(), 1, String::new).expect("valid");
        let server = server::serve(config, Env::real()).expect("the node starts");
        Desk { server, folder }
    }

    fn bucket(&self, name: &str) -> Arc<Bucket> {
        self.server.node().bucket(name).expect("it is served")
    }

    /// Status and value of the answers to one request of a user.
    fn ask(&self, user: &str, bucket: &str, request: &RequestParts<'_>) -> Vec<(Status, String)> {
        let mut client = Connection::new(Arc::clone(self.server.node()), Arc::new(WorkerCounters::default()));
        let features = Features::of(&[Feature::Xerror, Feature::Json, Feature::AltRequestSupport]);
        feed(&mut client, &login(user, "password", bucket, &features.encode()));
        let mut bytes = Vec::new();
        assert!(write_request(&mut bytes, request));
        let (mut answers, mut next) = feed(&mut client, &bytes);
        // Some are handled on a thread for long work.
        while next == Next::Later {
            let more;
            (more, next) = feed(&mut client, &[]);
            answers.extend(more);
        }
        let (mut answers, mut told) = (&answers[..], Vec::new());
        while let ParsedResponse::Response { response, total_len } = parse_response(answers, 1 << 20) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let what = format!("{} {}", text(response.key), text(response.value));
            told.push((response.status().expect("known"), what.trim().to_owned()));
            answers = &answers[total_len..];
        }
        told
    }

    fn set_param(&self, user: &str, kind: u32, name: &str, value: &str) -> (Status, String) {
        let (opcode, extras) = (opcode::SET_PARAM, kind.to_be_bytes());
        let (key, value) = (name.as_bytes(), value.as_bytes());
        let request = RequestParts { opcode, extras: &extras, key, value, ..RequestParts::default() };
        self.ask(user, "default", &request).remove(0)
    }

    /// Status code and body of an answer over HTTP.
    fn http(&self, user: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        use base64::Engine;
        let mut stream = TcpStream::connect(self.server.http_addr()).expect("the server listens");
        let credentials = base64::engine::general_purpose::STANDARD.encode(format!("{user}:password"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {credentials}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("the server takes it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
        (code, body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (code, body) = self.http("Administrator", "GET", path, "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    fn stop(self) {
        self.server.stop().expect("a clean stop");
    }
}

const SETTINGS_OF_DEFAULT: &str = "/v1/buckets/default/settings";

#[test]
fn a_bucket_is_what_its_configuration_says() {
    let desk = Desk::new();
    let bucket = desk.bucket("sessions");
    assert_eq!(bucket.memory().quota_bytes(), 64 << 20);
    assert_eq!(bucket.settings().get(Key::HighWatermark), 90);
    for path in ["/pools/default/buckets/sessions", "/pools/default/b/sessions"] {
        let told = desk.json(path);
        assert_eq!(told["bucketType"], "ephemeral", "{path}");
    }
    let told = desk.json("/pools/default/buckets/sessions");
    assert_eq!((&told["evictionPolicy"], &told["maxTTL"]), (&json!("nruEviction"), &json!(3600)));
    assert_eq!(told["quota"]["rawRAM"], 64 << 20);
    let told = desk.json("/pools/default/buckets/default");
    assert_eq!((&told["bucketType"], &told["evictionPolicy"]), (&json!("membase"), &json!("valueOnly")));
    let stat = RequestParts { opcode: opcode::STAT, ..RequestParts::default() };
    let stats = desk.ask("Administrator", "sessions", &stat);
    for line in ["ep_bucket_type ephemeral", "ep_item_eviction_policy auto_delete", "ep_max_ttl 3600"] {
        assert!(stats.iter().any(|(_, stat)| stat == line), "{line}");
    }
    let workload = RequestParts { key: b"workload", ..stat };
    let stats = desk.ask("Administrator", "default", &workload);
    for line in ["num_writers 6", "num_readers 2", "num_nonio 1"] {
        assert!(stats.iter().any(|(_, stat)| *stat == format!("ep_workload:{line}")), "{line}: {stats:?}");
    }
    desk.stop();
}

#[test]
fn an_ephemeral_bucket_promises_nothing_of_the_disk() {
    let desk = Desk::new();
    let set = RequestParts { opcode: opcode::SET, key: b"k", extras: &[0; 8], ..RequestParts::default() };
    let set = RequestParts { vbucket: base::vbucket_map::vbucket_of(b"k", 4), ..set };
    let durable = |level: u8| {
        let infos = [0x11, level];
        desk.ask("Administrator", "sessions", &RequestParts { frame_infos: &infos, ..set })
    };
    assert_eq!(durable(1)[0].0, Status::Success);
    assert_eq!(durable(2)[0].0, Status::DurabilityInvalidLevel);
    assert_eq!(durable(3)[0].0, Status::DurabilityInvalidLevel);
    desk.stop();
}

#[test]
fn set_param_changes_a_setting_or_says_why_not() {
    let desk = Desk::new();
    let bucket = desk.bucket("default");
    for (kind, name, value, now) in [
        (1, "max_size", "209715200", "209715200"),
        (1, "mem_high_wat_percent", "90", "90"),
        (3, "chk_max_items", "500", "500"),
        (4, "mutation_mem_ratio", "0.95", "0.95"),
        (2, "exp_pager_enabled", "false", "false"),
        (1, "compression_mode", " active\n", "active"),
        (5, "hlc_drift_ahead_threshold_us", "1000", "1000"),
        (6, "max_ttl", "3600", "3600"),
    ] {
        assert_eq!(desk.set_param("Administrator", kind, name, value), (Status::Success, String::new()));
        let setting = engine::settings::find(name).expect("there is one");
        assert_eq!(bucket.settings().show(setting.key), now, "{name}");
    }
    assert_eq!(bucket.memory().quota_bytes(), 200 << 20);
    for (kind, name, value, said) in [
        (1, "max_sise", "1", "there is no setting"),
        (1, "max_size", "much", "give bytes from"),
        (1, "mem_low_wat_percent", "99", "give less than mem_high_wat_percent"),
        (1, "item_eviction_policy", "fail_new_data", "give value_only or full_eviction"),
        (5, "max_size", "1GiB", "Of a vBucket's parameters"),
        (0, "max_size", "1GiB", "no such kind"),
        (7, "max_size", "1GiB", "no such kind"),
        (1, "max_size", "", "must include value"),
        (1, "", "1", "must include key"),
    ] {
        let (status, context) = desk.set_param("Administrator", kind, name, value);
        assert_eq!(status, Status::Einval, "{name}={value}");
        assert!(context.contains(said), "{context}");
    }
    assert_eq!(desk.set_param("reader", 1, "max_size", "1GiB").0, Status::Eaccess);
    assert_eq!(bucket.memory().quota_bytes(), 200 << 20);
    desk.stop();
}

#[test]
fn settings_are_listed_with_what_they_take() {
    let desk = Desk::new();
    let told = desk.json(SETTINGS_OF_DEFAULT);
    assert_eq!((&told["bucket"], &told["type"]), (&json!("default"), &json!("couchstore")));
    let listed = told["settings"].as_array().expect("a list");
    assert_eq!(listed.len(), SETTINGS.len());
    let find = |name: &str| listed.iter().find(|setting| setting["name"] == name).expect("listed");
    for setting in SETTINGS {
        assert_eq!(find(setting.name)["doc"], setting.doc);
    }
    let size = find("max_size");
    assert_eq!((&size["value"], &size["default"]), (&json!(100 << 20), &json!(256 << 20)));
    assert_eq!((&size["unit"], &size["least"]), (&json!("bytes"), &json!(1 << 20)));
    let ratio = find("mutation_mem_ratio");
    assert_eq!((&ratio["value"], &ratio["most"]), (&json!(0.93), &json!(1.0)));
    assert_eq!(find("exp_pager_enabled")["value"], true);
    assert_eq!(find("compression_mode")["choices"], json!(["off", "passive", "active"]));
    assert_eq!(desk.http("reader", "GET", SETTINGS_OF_DEFAULT, "").0, 200);
    assert_eq!(desk.http("nobody", "GET", SETTINGS_OF_DEFAULT, "").0, 401);
    assert_eq!(desk.http("Administrator", "GET", "/v1/buckets/none/settings", "").0, 404);
    desk.stop();
}

#[test]
fn settings_are_changed_together_or_not_at_all() {
    let desk = Desk::new();
    let bucket = desk.bucket("default");
    let change = |body: &str| desk.http("Administrator", "PATCH", SETTINGS_OF_DEFAULT, body);
    let (code, body) = change(
        r#"{"mem_low_wat_percent": 90, "mem_high_wat_percent": 95, "mutation_mem_ratio": 0.99,
            "bfilter_enabled": false, "max_size": "128MiB"}"#,
    );
    assert_eq!(code, 200, "{body}");
    let told: Value = serde_json::from_str(&body).expect("JSON");
    let changed = told["changed"].as_array().expect("a list");
    assert!(changed.contains(&json!({ "name": "mem_low_wat_percent", "old": "75", "new": "90" })));
    assert!(changed.contains(&json!({ "name": "max_size", "old": "104857600", "new": "134217728" })));
    let before = bucket.settings().clone();
    let (code, body) = change(r#"{"max_ttl": 5, "max_sise": 1, "mem_high_wat_percent": 1000}"#);
    assert_eq!(code, 400);
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert!(told["errors"]["max_sise"].as_str().expect("text").contains("there is no setting"));
    assert!(told["errors"]["mem_high_wat_percent"].as_str().expect("text").contains("whole percent"));
    for body in ["", "[]", "{\"max_ttl\": [1]}", "{\"max_ttl\": null}"] {
        assert_eq!(change(body).0, 400, "{body}");
    }
    assert_eq!(*bucket.settings(), before);
    assert_eq!(desk.http("reader", "PATCH", SETTINGS_OF_DEFAULT, "{\"max_ttl\": 5}").0, 403);
    assert_eq!(desk.http("Administrator", "POST", SETTINGS_OF_DEFAULT, "{\"max_ttl\": 5}").0, 200);
    assert_eq!(bucket.settings().get(Key::MaxTtl), 5);
    desk.stop();
}

#[test]
fn a_bucket_that_was_made_over_http_keeps_what_is_changed_over_http() {
    let desk = Desk::new();
    let made = "name=made&bucketType=ephemeral&ramQuotaMB=100";
    let (code, body) = desk.http("Administrator", "POST", "/pools/default/buckets", made);
    assert_eq!(code, 202, "{body}");
    let path = "/v1/buckets/made/settings";
    let change = r#"{"mem_high_wat_percent": 90, "durability_min_level": "majority", "max_size": "90MiB"}"#;
    let (code, body) = desk.http("Administrator", "PATCH", path, change);
    assert_eq!(code, 200, "{body}");
    desk.bucket("made").set_param("max_ttl", "5").expect("what Set Param does");
    assert_eq!(desk.http("Administrator", "PATCH", SETTINGS_OF_DEFAULT, "{\"max_ttl\": 5}").0, 200);
    let desk = desk.start_again();
    let value = |bucket: &str, key| desk.bucket(bucket).settings().show(key);
    assert_eq!(value("made", Key::HighWatermark), "90");
    assert_eq!(value("made", Key::DurabilityMinLevel), "majority");
    assert_eq!(value("made", Key::MaxSize), (90 << 20).to_string());
    assert_eq!(value("made", Key::MaxTtl), "0", "Set Param holds until the node stops");
    assert_eq!(value("default", Key::MaxTtl), "0", "the configuration file has none");
    desk.stop();
}

/// 400 MiB are there for both buckets, and the other one has 64 of them.
#[test]
fn a_quota_beyond_the_node_is_refused_by_every_way_to_set_it() {
    let desk = Desk::new();
    let bucket = desk.bucket("default");
    let patch = |body: &str| desk.http("Administrator", "PATCH", SETTINGS_OF_DEFAULT, body);
    let form = |body: &str| desk.http("Administrator", "POST", "/pools/default/buckets/default", body);
    let (status, context) = desk.set_param("Administrator", 1, "max_size", "999GiB");
    assert_eq!(status, Status::Einval, "{context}");
    assert!(context.contains("other buckets have 64 MiB"), "{context}");
    let (code, body) = patch(r#"{"max_ttl": 7, "max_size": "337MiB"}"#);
    assert_eq!(code, 400, "{body}");
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert!(
        told["errors"]["max_size"].as_str().is_some_and(|why| why.contains("raise memory-quota")),
        "{body}"
    );
    assert_eq!((bucket.memory().quota_bytes(), bucket.settings().get(Key::MaxTtl)), (100 << 20, 0));
    assert_eq!(patch(r#"{"max_size": "336MiB"}"#).0, 200);
    // As much as it has is no question, and less is always taken.
    assert_eq!(desk.set_param("Administrator", 1, "max_size", "336MiB").0, Status::Success);
    assert_eq!(desk.set_param("Administrator", 1, "max_size", "10MiB").0, Status::Success);
    // What it had before is more than it has now, and another bucket may have taken it.
    assert_eq!(form("ramQuotaMB=337").0, 400);
    let sessions = "/v1/buckets/sessions/settings";
    assert_eq!(desk.http("Administrator", "PATCH", sessions, r#"{"max_size": "390MiB"}"#).0, 200);
    assert_eq!(form("ramQuotaMB=100").0, 400);
    assert_eq!(bucket.memory().quota_bytes(), 10 << 20);
    desk.stop();
}

#[test]
fn the_usual_form_updates_a_bucket() {
    let desk = Desk::new();
    let bucket = desk.bucket("default");
    let update = |user: &str, body: &str| desk.http(user, "POST", "/pools/default/buckets/default", body);
    // As SDKs send it: with everything that they have read before.
    let whole = "name=default&bucketType=couchbase&ramQuotaMB=128&evictionPolicy=valueOnly&maxTTL=60\
                 &compressionMode=active&replicaNumber=0&replicaIndex=0&flushEnabled=false\
                 &durabilityMinLevel=none&storageBackend=couchstore";
    assert_eq!(update("Administrator", whole).0, 200);
    let settings = bucket.settings();
    assert_eq!((settings.get(Key::MaxSize), settings.get(Key::MaxTtl)), (128 << 20, 60));
    let told = desk.json("/pools/default/buckets/default");
    assert_eq!((&told["maxTTL"], &told["compressionMode"]), (&json!(60), &json!("active")));
    assert_eq!(told["quota"]["rawRAM"], 128 << 20);
    let before = settings.clone();
    for (body, field) in [
        ("maxTTL=5&ramQuotaMB=x", "ramQuota"),
        ("maxTTL=5&ramQuotaMB=0", "ramQuota"),
        ("maxTTL=5&evictionPolicy=noEviction", "evictionPolicy"),
        ("maxTTL=5&compressionMode=zip", "compressionMode"),
        ("maxTTL=5&replicaNumber=4", "replicaNumber"),
        ("maxTTL=5&storageBackend=magma", "storageBackend"),
    ] {
        let (code, answer) = update("Administrator", body);
        let told: Value = serde_json::from_str(&answer).expect("JSON");
        assert!(code == 400 && told["errors"][field].is_string(), "{body}: {code} {answer}");
    }
    assert_eq!(*bucket.settings(), before);
    assert_eq!(update("reader", "maxTTL=5").0, 403);
    desk.stop();
}
