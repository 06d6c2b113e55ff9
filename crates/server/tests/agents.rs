//! What monitoring agents read over REST: each field that one of them reads (`agents.txt`) is there, arrays have one length,
//! and the main figures move when something is done that moves them.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeSet;

use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};
use server::Server;
use support::{Client, VBUCKETS, http, http_as, start, vb};

const AGENTS: &str = include_str!("agents.txt");
const BUCKET: &str = "/pools/default/buckets/default";

/// Agents, with where they read, and what: names behind a minus are not told.
fn agents() -> Vec<(String, &'static str, Vec<&'static str>)> {
    let mut all: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for line in AGENTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
            Some((place, agent)) => all.push((agent.to_owned(), place, Vec::new())),
            None => {
                let (_, _, fields) = all.last_mut().expect("names stand behind an agent");
                fields.extend(line.split_ascii_whitespace());
            }
        }
    }
    assert!(all.iter().all(|(.., fields)| !fields.is_empty()));
    all
}

fn get(server: &Server, path: &str) -> Value {
    let (code, told) = http(server, "GET", path, "");
    assert_eq!(code, 200, "{path}: {told}");
    serde_json::from_str(&told).expect("JSON")
}

/// The address of this node's own figures, as the list of the bucket's nodes has it.
fn own_stats(server: &Server) -> String {
    let nodes = get(server, &format!("{BUCKET}/nodes"));
    let uri = nodes["servers"][0]["stats"]["uri"].as_str().expect("an address").to_owned();
    assert!(uri.starts_with(&format!("{BUCKET}/nodes/")) && uri.ends_with("/stats"), "{uri}");
    uri
}

/// Whether a field is told in these samples: as an array of numbers with one for each time.
fn is_told(samples: &Value, field: &str) -> bool {
    let times = samples["timestamp"].as_array().map_or(0, Vec::len);
    samples[field]
        .as_array()
        .is_some_and(|values| times > 0 && values.len() == times && values.iter().all(Value::is_number))
}

#[test]
fn each_field_that_an_agent_reads_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let own = own_stats(&server);
    let samples: Vec<Value> = [
        format!("{BUCKET}/stats"),
        format!("{BUCKET}/stats?zoom=minute&resampleForUI=1&haveTStamp=0"),
        format!("{BUCKET}/stats?zoom=hour"),
        own.clone(),
        format!("{own}?zoom=minute"),
        // One agent puts the address behind a slash.
        format!("/{own}"),
    ]
    .iter()
    .map(|path| get(&server, path)["op"]["samples"].clone())
    .collect();
    let (cluster, this) = (get(&server, "/pools/default"), get(&server, "/nodes/self"));
    let nodes = [cluster["nodes"][0].clone(), get(&server, "/pools/nodes")["nodes"][0].clone(), this.clone()];
    let totals = |what: &str| [&cluster, &this].map(|told| told["storageTotals"][what].clone());
    let mut wrong = Vec::new();
    for (agent, place, fields) in agents() {
        let told: Vec<Value> = match place {
            "samples" => samples.clone(),
            "basicStats" => vec![get(&server, BUCKET)["basicStats"].clone()],
            "interestingStats" | "systemStats" => nodes.iter().map(|node| node[place].clone()).collect(),
            "ram" | "hdd" => totals(place).into(),
            other => panic!("{other} is no place of fields"),
        };
        for (field, told) in fields.iter().flat_map(|field| told.iter().map(move |told| (*field, told))) {
            let is_there =
                |field| if place == "samples" { is_told(told, field) } else { told[field].is_number() };
            let is_right = match field.strip_prefix('-') {
                Some(field) => told[field].is_null(),
                None => is_there(field),
            };
            if !is_right {
                wrong.push(format!("{agent}: {place}: {field}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    for name in ["mcdMemoryReserved", "mcdMemoryAllocated", "memoryQuota"] {
        assert!(this[name].as_u64() > Some(0), "{name}: {this}");
    }
    server.stop().expect("a clean stop");
}

#[test]
fn samples_have_one_length() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let op = |query: &str| get(&server, &format!("{BUCKET}/stats?{query}"))["op"].clone();
    let told = op("zoom=minute");
    let count = told["samplesCount"].as_u64().expect("a number");
    let samples = told["samples"].as_object().expect("an object");
    assert!(samples.len() > 200, "{}", samples.len());
    for (name, values) in samples {
        assert_eq!(values.as_array().map(|values| values.len() as u64), Some(count), "{name}");
    }
    assert_eq!((&told["isPersistent"], &told["interval"]), (&json!(true), &json!(5_000)));
    let last = told["lastTStamp"].as_u64().expect("milliseconds");
    assert_eq!(op(&format!("zoom=minute&haveTStamp={}", last + 600_000))["samplesCount"], 1, "those of now");
    for (path, code) in [
        (format!("{BUCKET}/stats?zoom=decade"), 400),
        (format!("{BUCKET}/stats?haveTStamp=x"), 400),
        (format!("{BUCKET}/nodes/nobody:8091/stats"), 404),
        ("/pools/default/buckets/none/nodes/x/stats".to_owned(), 404),
    ] {
        assert_eq!(http(&server, "GET", &path, "").0, code, "{path}");
    }
    server.stop().expect("a clean stop");
}

/// A figure of now.
fn figure(server: &Server, name: &str) -> f64 {
    let told = get(server, &format!("{BUCKET}/stats"));
    told["op"]["samples"][name][0].as_f64().unwrap_or_else(|| panic!("{name}: {told}"))
}

/// Something is done that moves these rates. They are those of the last seconds: on a machine that stands still between the
/// two it is done again.
fn moves(server: &Server, names: &[&str], mut act: impl FnMut()) {
    for name in names {
        let has_moved = (0..100).any(|_| {
            act();
            figure(server, name) > 0.0
        });
        assert!(has_moved, "{name}");
    }
}

#[test]
fn figures_move_with_what_is_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let bucket = server.node().bucket("default").expect("it is served");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(figure(&server, "vb_active_num"), f64::from(VBUCKETS));
    assert_eq!((figure(&server, "curr_items"), figure(&server, "ops")), (0.0, 0.0));
    let empty = figure(&server, "mem_used");

    bucket.flushing().hold_flusher(true);
    for at in 0..20 {
        assert_eq!(client.set(format!("k{at}").as_bytes(), &[b'x'; 1_000]), Some(Status::Success));
    }
    (0..5).for_each(|_| assert_eq!(client.set(b"k0", b"again"), Some(Status::Success)));
    for name in ["disk_write_queue", "ep_queue_size", "ep_diskqueue_items", "vb_active_queue_size"] {
        assert_eq!(figure(&server, name), 20.0, "{name}");
    }
    assert!(figure(&server, "vb_active_queue_age") >= 0.0);
    assert_eq!((figure(&server, "curr_items"), figure(&server, "curr_items_tot")), (20.0, 20.0));
    assert!(figure(&server, "mem_used") >= empty + 19_000.0);
    assert!(figure(&server, "ep_kv_size") >= 19_000.0);
    bucket.flushing().hold_flusher(false);

    let store = |client: &mut Client, key: &[u8]| assert_eq!(client.set(key, b"v"), Some(Status::Success));
    moves(&server, &["cmd_set", "ops", "ep_ops_update", "vb_active_ops_update"], || {
        store(&mut client, b"k0")
    });
    let is_saved = || (0..10_000).any(|_| figure(&server, "disk_write_queue") == 0.0);
    let saves = ["ep_diskqueue_fill", "ep_diskqueue_drain", "disk_commit_count", "avg_disk_commit_time"];
    moves(&server, &saves, || {
        store(&mut client, b"k0");
        assert!(is_saved(), "the flusher runs");
    });

    let evict =
        RequestParts { opcode: opcode::EVICT_KEY, key: b"k1", vbucket: vb(b"k1"), ..RequestParts::default() };
    assert_eq!(client.request(&evict).status, Status::Success);
    assert_eq!(figure(&server, "vb_active_num_non_resident"), 1.0);
    assert_eq!(figure(&server, "vb_active_resident_items_ratio"), 95.0);
    let status = |client: &mut Client, key: &[u8]| client.get(key).expect("an answer").status;
    let fetches =
        ["cmd_get", "get_hits", "ep_bg_fetched", "bg_wait_count", "ep_cache_miss_rate", "hit_ratio"];
    moves(&server, &fetches, || {
        assert_eq!(client.request(&evict).status, Status::Success);
        assert_eq!(status(&mut client, b"k1"), Status::Success);
    });
    moves(&server, &["get_misses", "misses"], || {
        assert_eq!(status(&mut client, b"absent"), Status::KeyEnoent)
    });
    let ratio = figure(&server, "hit_ratio");
    assert!((0.0..100.0).contains(&ratio), "{ratio}");
    let delete =
        RequestParts { opcode: opcode::DELETE, key: b"k2", vbucket: vb(b"k2"), ..RequestParts::default() };
    moves(&server, &["delete_hits", "delete_misses", "ep_ops_create", "vb_active_ops_create"], || {
        store(&mut client, b"k2");
        assert_eq!(client.request(&delete).status, Status::Success);
        assert_eq!(client.request(&delete).status, Status::KeyEnoent);
    });
    moves(&server, &["bytes_read", "bytes_written", "rest_requests"], || store(&mut client, b"k0"));
    assert!(figure(&server, "curr_connections") >= 1.0);
    assert_eq!(figure(&server, "curr_items"), 19.0);
    server.stop().expect("a clean stop");
}

/// What is the node's tells about buckets that a user may not see.
#[test]
fn who_sees_one_bucket_alone_is_told_nothing_of_the_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let user = "buckets = [\"default:64MiB\", \"other:64MiB\"]\n[[user]]\nname = \"one\"\npassword = \"password\"\n\
                role = \"data_monitoring[default]\"\n";
    let server = start(folder.path(), user);
    let (code, told) = http_as("one", server.http_addr(), "GET", &format!("{BUCKET}/stats"), "");
    assert_eq!(code, 200, "{told}");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let names = |told: &Value| -> BTreeSet<String> {
        told["op"]["samples"].as_object().expect("an object").keys().cloned().collect()
    };
    let all = names(&get(&server, &format!("{BUCKET}/stats")));
    let hidden: Vec<&str> = [
        "allocstall",
        "bytes_read",
        "bytes_written",
        "cpu_cores_available",
        "cpu_idle_ms",
        "cpu_irq_rate",
        "cpu_local_ms",
        "cpu_stolen_rate",
        "cpu_sys_rate",
        "cpu_user_rate",
        "cpu_utilization_rate",
        "curr_connections",
        "mem_actual_free",
        "mem_actual_used",
        "mem_free",
        "mem_limit",
        "mem_total",
        "mem_used_sys",
        "rest_requests",
        "swap_total",
        "swap_used",
    ]
    .into();
    let missing: Vec<String> = all.difference(&names(&told)).cloned().collect();
    assert_eq!(missing, hidden);
    server.stop().expect("a clean stop");
}

#[test]
fn a_bucket_is_compacted_when_an_operator_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let bucket = server.node().bucket("default").expect("it is served");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"k", b"v"), Some(Status::Success));
    let controller = |act: &str| http(&server, "POST", &format!("{BUCKET}/controller/{act}"), "");
    // Of a file that is not there nothing is compacted, which counts as a step all the same.
    let steps = || {
        let tasks = engine::task_stats(&bucket);
        tasks.iter().filter(|task| task.name == "compactor").map(|task| task.run.total()).sum::<u64>()
    };
    let before = steps();
    let compact = get(&server, BUCKET)["controllers"]["compactAll"].as_str().expect("an address").to_owned();
    assert_eq!(compact, format!("{BUCKET}/controller/compactBucket"));
    assert_eq!(controller("compactBucket"), (200, String::new()));
    let idle = || {
        let stats = bucket.compaction().compaction_stats();
        stats.waiting + stats.under_way == 0
    };
    assert!((0..10_000).any(|_| http(&server, "GET", "/livez", "").0 == 200
        && idle()
        && steps() >= before + u64::from(VBUCKETS)));
    assert_eq!(controller("cancelBucketCompaction"), (200, String::new()));
    let tasks = get(&server, "/pools/default/tasks");
    assert_eq!(tasks.as_array().map(Vec::len), Some(1), "no vBucket waits any more: {tasks}");

    let (code, told) =
        http(&server, "POST", "/pools/default/buckets", "name=e&ramQuotaMB=100&bucketType=ephemeral");
    assert_eq!(code, 202, "{told}");
    let (code, told) = http(&server, "POST", "/pools/default/buckets/e/controller/compactBucket", "");
    assert!(code == 400 && told.contains("ephemeral"), "{code} {told}");
    assert_eq!(http(&server, "POST", "/pools/default/buckets/none/controller/compactBucket", "").0, 404);
    server.stop().expect("a clean stop");
}
