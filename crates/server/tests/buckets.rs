//! Buckets that come, change, are emptied and go while the node runs, as SDKs' bucket managers and scripts ask for it.
#![allow(clippy::disallowed_methods, reason = "what the server made of the folder is looked at from outside")]

mod support;

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::VbId;
use base::env::{Env, RealSpawn, Spawn, Task};
use protocol::Status;
use serde_json::{Value, json};
use support::{Client, Lines, ask, http, http_as, json, start};

const BUCKETS: &str = "/pools/default/buckets";

fn create(server: &server::Server, form: &str) {
    let (code, body) = http(server, "POST", BUCKETS, form);
    assert_eq!((code, body.as_str()), (202, ""), "{form}");
}

fn errors_of(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 400, "{}", answer.1);
    let told: Value = serde_json::from_str(&answer.1).expect("JSON");
    told["errors"].clone()
}

#[test]
fn a_bucket_is_made_used_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    // As the Go SDK sends it.
    create(
        &server,
        "name=orders&flushEnabled=1&replicaIndex=0&bucketType=membase&replicaNumber=2&ramQuotaMB=100\
         &evictionPolicy=fullEviction&maxTTL=50&compressionMode=active&durabilityMinLevel=majority\
         &storageBackend=couchstore&conflictResolutionType=seqno",
    );
    let told = json(&server, &format!("{BUCKETS}/orders"));
    for (field, is) in [
        ("name", json!("orders")),
        ("bucketType", json!("membase")),
        ("replicaNumber", json!(2)),
        ("evictionPolicy", json!("fullEviction")),
        ("maxTTL", json!(50)),
        ("compressionMode", json!("active")),
        ("durabilityMinLevel", json!("majority")),
        ("storageBackend", json!("couchstore")),
        (
            "controllers",
            json!({
                "flush": "/pools/default/buckets/orders/controller/doFlush",
                "compactAll": "/pools/default/buckets/orders/controller/compactBucket",
            }),
        ),
        ("quota", json!({ "ram": 100 << 20, "rawRAM": 100 << 20 })),
    ] {
        assert_eq!(told[field], is, "{field}");
    }
    assert_eq!(told["vBucketServerMap"]["vBucketMap"][3], json!([0, -1, -1]));
    let names = json(&server, "/pools/default")["bucketNames"].clone();
    assert_eq!(names.as_array().map(Vec::len), Some(2), "{names}");
    let again = errors_of(http(&server, "POST", BUCKETS, "name=orders&ramQuotaMB=100"));
    assert_eq!(again, json!({ "name": "Bucket with given name already exists" }));

    let mut client = Client::connect(&server, "orders", &[]);
    // There are no replicas that could make a majority.
    assert_eq!(client.set(b"k", b"1"), Some(Status::DurabilityImpossible));
    let path = format!("{BUCKETS}/orders");
    let set = |form: &str| assert_eq!(http(&server, "POST", &path, form), (200, String::new()), "{form}");
    set("durabilityImpossibleFallback=fallbackToActiveAck");
    assert_eq!(json(&server, &path)["durabilityImpossibleFallback"], "fallbackToActiveAck");
    assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
    set("durabilityImpossibleFallback=disabled");
    assert_eq!(client.set(b"k", b"1"), Some(Status::DurabilityImpossible));
    set("replicaNumber=0");
    assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
    let dir = folder.path().join("buckets/orders");
    assert!(dir.exists());
    assert_eq!(http(&server, "DELETE", &format!("{BUCKETS}/orders"), ""), (200, String::new()));
    assert!(!dir.exists());
    assert!(client.get(b"k").is_none(), "its connections are closed");
    for (method, path) in [
        ("GET", "/pools/default/buckets/orders"),
        ("DELETE", "/pools/default/buckets/orders"),
        ("POST", "/pools/default/buckets/orders"),
        ("POST", "/pools/default/buckets/orders/controller/doFlush"),
        ("GET", "/pools/default/b/orders"),
    ] {
        assert_eq!(http(&server, method, path, ""), (404, "Requested resource not found.\r\n".to_owned()));
    }
    assert_eq!(Client::try_connect(&server, "orders", &[]).1, Status::Eaccess);
    // Nothing of it is in a new one.
    create(&server, "name=orders&ramQuotaMB=100");
    let mut client = Client::connect(&server, "orders", &[]);
    assert_eq!(client.get(b"k").map(|answer| answer.status), Some(Status::KeyEnoent));
    server.stop().expect("a clean stop");
}

#[test]
fn a_node_alone_has_one_identity() {
    let folder = tempfile::tempdir().expect("a folder");
    let identity = || {
        let server = start(folder.path(), "");
        let told = json(&server, "/pools")["uuid"].clone();
        assert_eq!(told.as_str().map(str::len), Some(32), "{told}");
        assert_eq!(json(&server, "/pools/default/terseClusterInfo")["clusterUUID"], told);
        assert_eq!(json(&server, "/pools/default")["nodes"][0]["nodeUUID"], told);
        server.stop().expect("a clean stop");
        told
    };
    assert_eq!(identity(), identity(), "a restart does not change it");
}

#[test]
fn what_is_advertised_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
    let bucket = json(&server, &format!("{BUCKETS}/default"));
    let stats = json(&server, bucket["stats"]["uri"].as_str().expect("an address"));
    assert_eq!(stats["op"]["samples"]["curr_items"], json!([1]), "{stats}");
    // What Telegraf, netdata and exporters read of a bucket and of a node.
    for name in ["opsPerSec", "diskFetches", "itemCount", "diskUsed", "dataUsed", "vbActiveNumNonResident"] {
        assert!(bucket["basicStats"][name].is_number(), "{name}: {bucket}");
    }
    for path in ["/pools/default", "/pools/nodes"] {
        let node = &json(&server, path)["nodes"][0];
        assert!(node["memoryTotal"].as_u64() >= node["memoryFree"].as_u64(), "{node}");
        assert!(node["memoryFree"].as_u64() > Some(0), "{node}");
        assert_eq!(node["interestingStats"]["curr_items"], 1, "{path}: {node}");
        let system =
            |name: &str| node["systemStats"][name].as_f64().unwrap_or_else(|| panic!("{name}: {node}"));
        assert!(system("cpu_cores_available") > 0.0 && system("swap_used") <= system("swap_total"));
        assert!(system("mem_limit") <= system("mem_total") && system("mem_free") > 0.0);
        assert!(system("allocstall") >= 0.0);
        // It is there once a time has passed that the system counts in hundredths of a second.
        let busy = node["systemStats"]["cpu_utilization_rate"].as_f64();
        assert!(busy.is_none_or(|busy| (0.0..=100.0).contains(&busy)), "{node}");
    }
    let totals = &json(&server, "/pools/default")["storageTotals"];
    let of =
        |what: &str, name: &str| totals[what][name].as_u64().unwrap_or_else(|| panic!("{name}: {totals}"));
    // What is reserved for the system's administrator is neither used nor free.
    assert!(of("hdd", "total") >= of("hdd", "used") + of("hdd", "free"), "{totals}");
    assert!(of("hdd", "quotaTotal") == of("hdd", "total") && of("hdd", "free") > 0);
    assert!(of("ram", "total") >= of("ram", "used") && of("ram", "used") > 0);
    assert_eq!(http(&server, "GET", &format!("{BUCKETS}/none/stats"), "").0, 404);
    let streaming = json(&server, "/pools")["pools"][0]["streamingUri"].clone();
    let told = Lines::of(&server, streaming.as_str().expect("an address")).next_json();
    assert_eq!(told.expect("the cluster")["bucketNames"][0]["bucketName"], "default");
    server.stop().expect("a clean stop");
}

#[test]
fn a_wrong_method_is_told_of_the_right_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    for (method, path, right) in [
        ("PUT", "/pools/default/buckets", "GET, HEAD, POST"),
        ("GET", "/controller/rebalance", "POST"),
        ("DELETE", "/healthz", "GET, HEAD"),
    ] {
        let (code, told) = http(&server, method, path, "");
        assert_eq!(code, 405, "{method} {path}");
        let told: Value = serde_json::from_str(&told).expect("JSON");
        let what = format!("there is no {method} at this address: use one of {right}");
        assert_eq!(told["errors"]["_"], what.as_str(), "{path}");
    }
    assert_eq!(http(&server, "PUT", "/nowhere", "").0, 404);
    server.stop().expect("a clean stop");
}

#[test]
fn what_cannot_be_is_refused_by_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let reader = "[[user]]\nname = \"reader\"\npassword = \"password\"\nrole = \"read-only\"";
    let server = start(folder.path(), &format!("memory-quota = \"400MiB\"\n{reader}"));
    for (form, field, said) in [
        ("ramQuotaMB=100", "name", "needs to be specified"),
        ("name=&ramQuotaMB=100", "name", "cannot be empty"),
        ("name=a%20b&ramQuotaMB=100", "name", "can only contain"),
        ("name=..&ramQuotaMB=100", "name", "cannot start with dot"),
        (&format!("name={}&ramQuotaMB=100", "a".repeat(101)), "name", "cannot exceed 100"),
        ("name=DEFAULT&ramQuotaMB=100", "name", "already exists"),
        ("name=a", "ramQuota", "must be specified"),
        ("name=a&ramQuotaMB=0", "ramQuota", "at least 1MiB"),
        ("name=a&ramQuotaMB=-1", "ramQuota", "cannot be negative"),
        ("name=a&ramQuota=x", "ramQuota", "must be a positive integer"),
        ("name=a&ramQuotaMB=145", "ramQuota", "too large to be provisioned"),
        ("name=a&ramQuotaMB=18446744073709551616", "ramQuota", "too large to be provisioned"),
        ("name=a&ramQuotaMB=100&bucketType=memcached", "bucketType", "invalid bucket type: it must be"),
        ("name=a&ramQuotaMB=100&replicaNumber=4", "replicaNumber", "larger than 3 is not supported"),
        ("name=a&ramQuotaMB=100&replicaNumber=-1", "replicaNumber", "cannot be negative"),
        ("name=a&ramQuotaMB=100&replicaNumber=", "replicaNumber", "must be a non-negative integer"),
        ("name=a&ramQuotaMB=100&flushEnabled=2", "flushEnabled", "1 or 0"),
        ("name=a&ramQuotaMB=100&replicaIndex=2", "replicaIndex", "1 or 0"),
        ("name=a&ramQuotaMB=100&threadsNumber=1", "threadsNumber", "less than 2"),
        ("name=a&ramQuotaMB=100&threadsNumber=9", "threadsNumber", "greater than 8"),
        ("name=a&ramQuotaMB=100&threadsNumber=x", "threadsNumber", "between 2 and 8"),
        ("name=a&ramQuotaMB=100&rank=1001", "rank", "range 0-1000"),
        ("name=a&ramQuotaMB=100&storageBackend=rocks", "storageBackend", "'magma' or 'rocksdb'"),
        ("name=a&ramQuotaMB=100&storageBackend=rocksdb", "storageBackend", "--features rocksdb"),
        ("name=a&ramQuotaMB=100&evictionPolicy=noEviction", "evictionPolicy", "'valueOnly' or"),
        ("name=a&ramQuotaMB=100&compressionMode=some", "compressionMode", "'passive' or"),
        ("name=a&ramQuotaMB=100&maxTTL=2147483648", "maxTTL", "between 0 and 2147483647"),
        ("name=a&ramQuotaMB=100&conflictResolutionType=custom", "conflictResolutionType", "'lww'"),
        ("name=a&ramQuotaMB=100&durabilityMinLevel=some", "durability_min_level", "one of 'none'"),
        (
            "name=a&ramQuotaMB=100&durabilityImpossibleFallback=1",
            "durability_impossible_fallback",
            "'fallbackToActiveAck'",
        ),
        ("name=a&ramQuotaMB=100&encryptionAtRest=2", "encryptionAtRest", "1 or 0"),
        (
            "name=a&ramQuotaMB=100&bucketType=ephemeral&durabilityMinLevel=persistToMajority",
            "durability_min_level",
            "for ephemeral buckets",
        ),
        ("name=a&ramQuotaMB=100&bucketType=ephemeral&replicaIndex=0", "replicaIndex", "not supported"),
        ("name=a&ramQuotaMB=100&bucketType=ephemeral&evictionPolicy=valueOnly", "evictionPolicy", "'nruEv"),
        ("name=a&ramQuotaMB=100&numVBuckets=128", "numVBuckets", "must be 4"),
        ("name=a&ramQuotaMB=100&autoCompactionDefined=true", "autoCompactionDefined", "configuration file"),
    ] {
        let errors = errors_of(http(&server, "POST", BUCKETS, form));
        assert!(errors[field].as_str().is_some_and(|text| text.contains(said)), "{form}: {errors}");
    }
    let form = "name=a&ramQuotaMB=100";
    assert_eq!(http_as("reader", server.http_addr(), "POST", BUCKETS, form).0, 403);
    // A folder that nobody knows may be dear to somebody.
    let stray = folder.path().join("buckets/a");
    std::fs::create_dir_all(stray.join("x")).expect("a folder");
    let errors = errors_of(http(&server, "POST", BUCKETS, form));
    assert!(errors["name"].as_str().is_some_and(|text| text.contains("is in the way")), "{errors}");
    std::fs::remove_dir_all(&stray).expect("it goes");
    create(&server, form);
    assert_eq!(http_as("reader", server.http_addr(), "DELETE", &format!("{BUCKETS}/a"), "").0, 403);
    // A quota that grows is looked at as well.
    let grown = errors_of(http(&server, "POST", &format!("{BUCKETS}/a"), "ramQuotaMB=145&maxTTL=9"));
    assert!(grown["ramQuota"].is_string(), "{grown}");
    assert_eq!(json(&server, &format!("{BUCKETS}/a"))["maxTTL"], 0);
    server.stop().expect("a clean stop");
}

#[test]
fn what_a_form_says_besides_is_ignored_and_what_it_sets_is_told_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    create(
        &server,
        "name=a&ramQuotaMB=100&replicaNumber=1&numReplicas=3&proxyPort=11211&priority=high&authType=sasl\
         &saslPassword=secret&flavour=sweet&replicaIndex=0&threadsNumber=8&rank=7&name=b&storageBackend=couchstore",
    );
    create(&server, "name=e&ramQuotaMB=100&bucketType=ephemeral&storageBackend=magma");
    create(&server, "name=d&ramQuotaMB=100&conflictResolutionType=lww");
    let change = "name=x&bucketType=ephemeral&replicaIndex=1&numVBuckets=4&flavour=sour&maxTTL=3";
    assert_eq!(http(&server, "POST", &format!("{BUCKETS}/a"), change), (200, String::new()));
    let refused = [
        ("conflictResolutionType=seqno", "conflictResolutionType"),
        ("storageBackend=magma", "storageBackend"),
        ("numVBuckets=16", "numVBuckets"),
    ];
    for (form, field) in refused {
        let errors = errors_of(http(&server, "POST", &format!("{BUCKETS}/a"), form));
        assert!(errors[field].is_string(), "{form}: {errors}");
    }
    let told = |server: &server::Server, name: &str| {
        let of = json(server, &format!("{BUCKETS}/{name}"));
        json!([of["replicaIndex"], of["threadsNumber"], of["rank"], of["replicaNumber"], of["maxTTL"]])
    };
    let rule = |server: &server::Server, name: &str| {
        json(server, &format!("{BUCKETS}/{name}"))["conflictResolutionType"].clone()
    };
    server.stop().expect("a clean stop");
    let server = start(folder.path(), "");
    assert_eq!(told(&server, "a"), json!([false, 8, 7, 1, 3]));
    assert_eq!([rule(&server, "a"), rule(&server, "d")], ["seqno", "lww"]);
    assert_eq!(told(&server, "d"), json!([true, 3, 0, 1, 0]));
    assert_eq!(told(&server, "e"), json!([null, 3, 0, 1, 0]));
    let change = "threadsNumber=3&storageBackend=couchstore";
    assert_eq!(http(&server, "POST", &format!("{BUCKETS}/a/"), change).0, 200);
    assert_eq!(told(&server, "a"), json!([false, 3, 7, 1, 3]));
    server.stop().expect("a clean stop");
}

#[test]
fn what_is_only_validated_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "memory-quota = \"400MiB\"");
    let (make, change) = (format!("{BUCKETS}?just_validate=1"), format!("{BUCKETS}/default?just_validate=1"));
    let fine = json!({ "errors": {} }).to_string();
    let form = "name=a&ramQuotaMB=100&replicaNumber=0";
    assert_eq!(http(&server, "POST", &make, form), (200, fine.clone()));
    assert_eq!(http(&server, "POST", &change, "maxTTL=7"), (202, fine.clone()));
    // As many nodes as copies there are not: a warning, which is an error unless warnings are ignored.
    for (path, form) in [(&make, "name=a&ramQuotaMB=100"), (&change, "replicaNumber=1")] {
        let errors = errors_of(http(&server, "POST", path, form));
        assert!(errors["replicaNumber"].as_str().is_some_and(|text| text.starts_with("Warning")), "{errors}");
        let ignoring = http(&server, "POST", &format!("{path}&ignore_warnings=1"), form);
        assert_eq!(ignoring.1, fine);
    }
    for (path, form, field) in [
        (&make, "name=default&ramQuotaMB=100&replicaNumber=0", "name"),
        (&make, "name=a&ramQuotaMB=300&replicaNumber=0", "ramQuota"),
        (&change, "ramQuotaMB=500", "ramQuota"),
        (&change, "maxTTL=x", "maxTTL"),
    ] {
        let errors = errors_of(http(&server, "POST", path, form));
        assert!(errors[field].is_string(), "{form}: {errors}");
    }
    assert_eq!(http(&server, "POST", &format!("{BUCKETS}/none?just_validate=1"), "maxTTL=7").0, 404);
    assert_eq!(server.node().bucket_names(), ["default"]);
    assert_eq!(json(&server, &format!("{BUCKETS}/default"))["maxTTL"], 0);
    // A bucket of the configuration is as that says after a restart, which the answer warns of.
    let (code, told) = http(&server, "POST", &format!("{BUCKETS}/default"), "maxTTL=7");
    assert!(code == 200 && told.contains("warnings") && told.contains("after a restart"), "{told}");
    let ignoring = http(&server, "POST", &format!("{BUCKETS}/default?ignore_warnings=1"), "maxTTL=8");
    assert_eq!(ignoring, (200, String::new()));
    create(&server, form);
    let path = format!("{BUCKETS}/a");
    assert_eq!(http(&server, "POST", &path, "maxTTL=7"), (200, String::new()), "kept");
    server.stop().expect("a clean stop");
}

#[test]
fn a_flush_empties_a_bucket_that_allows_it() {
    for kind in ["membase", "ephemeral"] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = start(folder.path(), "");
        create(&server, &format!("name=b&ramQuotaMB=100&bucketType={kind}&replicaNumber=0"));
        let mut client = Client::connect(&server, "b", &[]);
        for key in 0..100 {
            assert_eq!(client.set(format!("k{key}").as_bytes(), b"v"), Some(Status::Success));
        }
        let flush = format!("{BUCKETS}/b/controller/doFlush");
        let refused = (400, json!({ "_": "Flush is disabled for the bucket" }).to_string());
        assert_eq!(http(&server, "POST", &flush, ""), refused);
        assert_eq!(http(&server, "POST", &format!("{BUCKETS}/b"), "flushEnabled=1").0, 200);
        let bucket = server.node().bucket("b").expect("it is served");
        let history = |id| bucket.inspect(VbId(id), |vb| vb.uuid()).expect("it is there");
        let before: Vec<_> = (0..support::VBUCKETS).map(history).collect();
        let mut changes = Lines::of(&server, "/v1/buckets/b/changes");
        assert!(changes.next_json().is_some());
        assert_eq!(http(&server, "POST", &flush, ""), (200, String::new()));
        for (id, before) in (0..support::VBUCKETS).zip(before) {
            assert_ne!(history(id), before);
            assert_eq!(bucket.inspect(VbId(id), |vb| vb.high_seqno()).map(|seqno| seqno.0), Some(0));
        }
        // The connection is still good.
        assert_eq!(client.get(b"k1").map(|answer| answer.status), Some(Status::KeyEnoent));
        assert_eq!(client.set(b"new", b"v"), Some(Status::Success));
        drop((bucket, changes));
        server.stop().expect("a clean stop");
        let server = start(folder.path(), "");
        let mut client = Client::connect(&server, "b", &[]);
        assert_eq!(client.get(b"k1").map(|answer| answer.status), Some(Status::KeyEnoent));
        let kept = if kind == "membase" { Status::Success } else { Status::KeyEnoent };
        assert_eq!(client.get(b"new").map(|answer| answer.status), Some(kept));
        server.stop().expect("a clean stop");
    }
}

#[test]
fn a_restart_keeps_what_was_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    create(&server, "name=a&ramQuotaMB=100&flushEnabled=1&replicaNumber=1&maxTTL=7");
    create(&server, "name=e&ramQuotaMB=50&bucketType=ephemeral&evictionPolicy=nruEviction");
    create(&server, "name=gone&ramQuotaMB=100");
    assert_eq!(http(&server, "POST", &format!("{BUCKETS}/a"), "maxTTL=9&ramQuotaMB=120").0, 200);
    let mut client = Client::connect(&server, "a", &[]);
    assert_eq!(client.set(b"k", b"v"), Some(Status::Success));
    assert_eq!(http(&server, "DELETE", &format!("{BUCKETS}/gone"), "").0, 200);
    assert_eq!(http(&server, "DELETE", &format!("{BUCKETS}/default"), "").0, 200);
    let uuid = json(&server, &format!("{BUCKETS}/a"))["uuid"].clone();
    let revision = json(&server, "/pools/default/b/a")["rev"].as_i64().expect("a number");
    server.stop().expect("a clean stop");

    let server = start(folder.path(), "");
    // What the configuration names is made anew.
    assert_eq!(server.node().bucket_names(), ["a", "default", "e"]);
    let told = json(&server, &format!("{BUCKETS}/a"));
    assert_eq!((&told["uuid"], &told["maxTTL"], &told["replicaNumber"]), (&uuid, &json!(9), &json!(1)));
    assert_eq!(told["quota"]["rawRAM"], 120 << 20);
    assert!(told["controllers"]["flush"].is_string());
    let told = json(&server, &format!("{BUCKETS}/e"));
    assert_eq!((&told["bucketType"], &told["evictionPolicy"]), (&json!("ephemeral"), &json!("nruEviction")));
    let mut client = Client::connect(&server, "a", &[]);
    assert_eq!(client.get(b"k").map(|answer| answer.value), Some(b"v".to_vec()));
    assert!(json(&server, "/pools/default/b/a")["rev"].as_i64() > Some(revision));
    server.stop().expect("a clean stop");
}

#[test]
fn a_removal_that_was_interrupted_is_finished_at_the_next_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    create(&server, "name=a&ramQuotaMB=100");
    server.stop().expect("a clean stop");
    // As a node leaves it that is killed before the files are gone; in the form of a version that kept one file.
    std::fs::remove_file(folder.path().join("buckets.json.copy")).expect("there are two");
    std::fs::write(folder.path().join("buckets.json"), r#"{"buckets":[],"removing":["a"]}"#)
        .expect("written");
    let server = start(folder.path(), "");
    assert_eq!(server.node().bucket_names(), ["default"]);
    assert!(!folder.path().join("buckets/a").exists());
    create(&server, "name=a&ramQuotaMB=100");
    server.stop().expect("a clean stop");
}

#[test]
fn whoever_looks_at_a_bucket_ends_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    create(&server, "name=b&ramQuotaMB=100");
    let mut other = Client::connect(&server, "default", &[]);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&server, "b", &[])).collect();
    assert_eq!(clients[0].set(b"k", b"v"), Some(Status::Success));
    let mut changes = Lines::of(&server, "/v1/buckets/b/changes");
    assert!(changes.next_json().is_some());
    let mut maps = Lines::of(&server, "/pools/default/bs/b");
    assert_eq!(maps.next_json().map(|map| map["name"].clone()), Some(json!("b")));
    assert_eq!(http(&server, "DELETE", &format!("{BUCKETS}/b"), "").0, 200);
    assert!(clients.iter_mut().all(|client| client.try_receive().is_none()));
    while changes.next_json().is_some() {}
    while maps.next_json().is_some() {}
    assert_eq!(other.set(b"k", b"v"), Some(Status::Success));
    server.stop().expect("a clean stop");
}

#[test]
fn buckets_come_and_go_under_load() {
    const ROUNDS: u64 = 8;
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let node = (server.kv_addr(), server.http_addr());
    let (is_over, round, written) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let write = || {
        while !is_over.load(Ordering::Relaxed) {
            let (mut client, selected) = Client::try_connect(&node, "b", &[]);
            if selected != Status::Success {
                continue;
            }
            // A value of an earlier round may be written into a later bucket, never the other way round.
            for key in 0u64.. {
                let now = round.load(Ordering::SeqCst).to_string();
                match client.set(format!("k{}", key % 1000).as_bytes(), now.as_bytes()) {
                    Some(status) => assert!(
                        matches!(status, Status::Success | Status::Etmpfail | Status::NotMyVbucket),
                        "{status:?}"
                    ),
                    None => break,
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3).map(|_| scope.spawn(write)).collect();
        for at in 1..=ROUNDS {
            round.store(at, Ordering::SeqCst);
            create(&server, "name=b&ramQuotaMB=100&flushEnabled=1");
            let goal = written.load(Ordering::Relaxed) + 2000;
            while written.load(Ordering::Relaxed) < goal {
                assert!(writers.iter().all(|writer| !writer.is_finished()), "a writer failed");
                std::thread::yield_now();
            }
            if at % 2 == 0 {
                assert_eq!(http(&server, "POST", &format!("{BUCKETS}/b/controller/doFlush"), "").0, 200);
            }
            if at < ROUNDS {
                assert_eq!(http(&server, "DELETE", &format!("{BUCKETS}/b"), ""), (200, String::new()));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        // The writers hang on to the last one.
        let _ = http(&server, "DELETE", &format!("{BUCKETS}/b"), "");
    });
    assert!(!folder.path().join("buckets/b").exists());
    server.stop().expect("a clean stop");
}

#[test]
fn a_history_that_cannot_be_is_refused_by_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default\"]");
    for (form, field, said) in [
        ("name=a&ramQuotaMB=100&historyRetentionSeconds=9", "historyRetentionSeconds", "with Magma"),
        (
            "name=a&ramQuotaMB=100&bucketType=ephemeral&historyRetentionBytes=9",
            "historyRetentionBytes",
            "with Magma",
        ),
        ("name=a&ramQuotaMB=100&historyRetentionBytes=x", "historyRetentionBytes", "non-negative"),
        (
            "name=a&ramQuotaMB=100&historyRetentionCollectionDefault=true",
            "historyRetentionCollectionDefault",
            "with Magma",
        ),
        (
            "name=a&ramQuotaMB=100&storageBackend=magma&historyRetentionCollectionDefault=2",
            "historyRetentionCollectionDefault",
            "can only be 1 or 0",
        ),
    ] {
        let errors = errors_of(http(&server, "POST", BUCKETS, form));
        assert!(errors[field].as_str().is_some_and(|text| text.contains(said)), "{form}: {errors}");
    }
    server.stop().expect("a clean stop");
}

/// Every version of a document is kept for as long as the bucket says, which is told back and stays.
#[test]
fn a_bucket_keeps_the_history_that_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default\"]");
    create(
        &server,
        "name=log&ramQuotaMB=100&storageBackend=magma&historyRetentionSeconds=600\
         &historyRetentionCollectionDefault=true",
    );
    let told = |server: &server::Server, name: &str| {
        let of = json(server, &format!("{BUCKETS}/{name}"));
        json!([
            of["historyRetentionSeconds"],
            of["historyRetentionBytes"],
            of["historyRetentionCollectionDefault"]
        ])
    };
    assert_eq!(told(&server, "default"), json!([null, null, null]));
    assert_eq!(told(&server, "log"), json!([600, 0, true]));
    let mut client = Client::connect(&server, "log", &[]);
    (0..3).for_each(|_| assert_eq!(client.set(b"a", b"1"), Some(Status::Success)));
    let change = |fields: &str| http(&server, "POST", &format!("{BUCKETS}/log"), fields).0;
    assert_eq!(change("historyRetentionSeconds=900&historyRetentionBytes=1073741824"), 200);
    let scopes = format!("{BUCKETS}/log/scopes");
    assert_eq!(json(&server, &scopes)["scopes"][0]["collections"][0]["history"], true);
    let collections = format!("{scopes}/_default/collections");
    let add = |form: &str| http(&server, "POST", &collections, form);
    assert_eq!(add("name=c&history=true").0, 200);
    let (code, why) = add("name=d&history=perhaps");
    assert!(code == 400 && why.contains("true or false"), "{code} {why}");
    server.stop().expect("a clean stop");
    let server = start(folder.path(), "buckets = [\"default\"]");
    assert_eq!(told(&server, "log"), json!([900, 1 << 30, true]));
    let bucket = server.node().bucket("log").expect("it is served");
    let history: Vec<_> = (0..bucket.vbuckets()).map(|vb| bucket.history(base::VbId(vb))).collect();
    let versions: u64 = history.iter().map(|one| one.versions).sum();
    assert!(history.iter().any(|one| one.start == 1) && versions == 2, "{history:?}");
    assert_eq!(
        http(&server, "POST", &format!("{BUCKETS}/log"), "historyRetentionSeconds=0&historyRetentionBytes=0")
            .0,
        200
    );
    assert_eq!(told(&server, "log"), json!([0, 0, true]));
    assert!((0..bucket.vbuckets()).all(|vb| bucket.history(base::VbId(vb)).start == 0));
    // What a collection says does not depend on whether the bucket keeps a history now.
    assert_eq!(json(&server, &scopes)["scopes"][0]["collections"][0]["history"], true);
    server.stop().expect("a clean stop");
}

/// Collections say whether they have a part in the history of their bucket, and else get the bucket's default.
#[test]
fn collections_have_a_history_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default\"]");
    create(
        &server,
        "name=log&ramQuotaMB=100&storageBackend=magma&historyRetentionSeconds=600\
         &historyRetentionCollectionDefault=false",
    );
    let ask = |method: &str, path: &str, body: &str| {
        let (code, answer) = http(&server, method, &format!("{BUCKETS}/{path}"), body);
        assert_eq!(code, 200, "{method} {path} {body}: {answer}");
        answer
    };
    let told = |bucket: &str| -> Vec<(String, bool)> {
        let scopes = json(&server, &format!("{BUCKETS}/{bucket}/scopes"));
        let all = scopes["scopes"].as_array().expect("a list").iter();
        let all = all.flat_map(|scope| scope["collections"].as_array().expect("a list"));
        let name = |one: &serde_json::Value| one["name"].as_str().expect("a name").to_owned();
        let mut told: Vec<_> =
            all.map(|one| (name(one), one["history"].as_bool().expect("true or false"))).collect();
        told.sort();
        told
    };
    let is = |expected: &[(&str, bool)]| {
        let expected: Vec<_> =
            expected.iter().map(|(name, history)| ((*name).to_owned(), *history)).collect();
        assert_eq!(told("log"), expected);
    };
    assert_eq!(json(&server, &format!("{BUCKETS}/log"))["historyRetentionCollectionDefault"], false);
    let collections = "log/scopes/_default/collections";
    ask("POST", collections, "name=a");
    ask("POST", collections, "name=b&history=true");
    ask("POST", "log", "historyRetentionCollectionDefault=true");
    ask("POST", collections, "name=c&maxTTL=5");
    ask("POST", collections, "name=d&history=0");
    is(&[("_default", true), ("a", false), ("b", true), ("c", true), ("d", false)]);
    ask("PATCH", &format!("{collections}/a"), "history=true");
    ask("PATCH", &format!("{collections}/b"), "history=false&maxTTL=7");
    ask("PATCH", &format!("{collections}/c"), "maxTTL=6");
    is(&[("_default", true), ("a", true), ("b", false), ("c", true), ("d", false)]);
    // Without a change the manifest stays.
    let uid = ask("PATCH", &format!("{collections}/c"), "");
    assert_eq!(ask("PATCH", &format!("{collections}/c"), "history=true"), uid);
    let all = r#"{"scopes":[{"name":"_default","collections":[{"name":"_default"},{"name":"a","history":false},
        {"name":"b"},{"name":"e"}]}]}"#;
    ask("PUT", "log/scopes", all);
    is(&[("_default", true), ("a", false), ("b", false), ("e", true)]);
    // A bucket in other files has none.
    ask("POST", "default/scopes/_default/collections", "name=x&history=false");
    assert_eq!(told("default"), [("_default".to_owned(), false), ("x".to_owned(), false)]);
    let refused = |form: &str, said: &str| {
        let path = format!("{BUCKETS}/default/scopes/_default/collections");
        let (code, why) = http(&server, "POST", &path, form);
        assert!(code == 400 && why.contains(said), "{form}: {code} {why}");
    };
    refused("name=y&history=true", "with Magma");
    refused("name=y&history=on", "true or false");
    server.stop().expect("a clean stop");
}

/// The store of a bucket is chosen when it is made, and stays.
#[test]
fn a_bucket_is_kept_in_the_store_that_was_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "buckets = [\"default\", \"of-config:100MiB:magma\"]");
    create(&server, "name=log&ramQuotaMB=100&storageBackend=magma");
    create(&server, "name=values&ramQuotaMB=100&storageBackend=magma&evictionPolicy=valueOnly");
    let told = |server: &server::Server, name: &str| {
        let of = json(server, &format!("{BUCKETS}/{name}"));
        let map = json(server, &format!("/pools/default/b/{name}"));
        assert_eq!(of["storageBackend"], map["storageBackend"], "{name}");
        json!([of["bucketType"], of["storageBackend"], of["evictionPolicy"]])
    };
    let are = |server: &server::Server| {
        assert_eq!(told(server, "default"), json!(["membase", "couchstore", "valueOnly"]));
        assert_eq!(told(server, "of-config"), json!(["membase", "magma", "fullEviction"]));
        assert_eq!(told(server, "log"), json!(["membase", "magma", "fullEviction"]));
        assert_eq!(told(server, "values"), json!(["membase", "magma", "valueOnly"]));
    };
    are(&server);
    for bucket in ["log", "of-config"] {
        let mut client = Client::connect(&server, bucket, &[]);
        for key in [b"a", b"b"] {
            assert_eq!(client.set(key, b"1"), Some(Status::Success));
        }
    }
    server.stop().expect("a clean stop");
    let names: Vec<String> = std::fs::read_dir(folder.path().join("buckets/log"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().all(|name| !name.contains(".couch.")), "{names:?}");
    let server = start(folder.path(), "buckets = [\"default\", \"of-config:100MiB:magma\"]");
    are(&server);
    let mut client = Client::connect(&server, "log", &[]);
    for key in [b"a", b"b"] {
        assert_eq!(client.get(key).map(|answer| answer.value), Some(b"1".to_vec()));
    }
    server.stop().expect("a clean stop");
    // The files of another store are not taken for the bucket's, and nothing of them is lost.
    let other = "buckets = [\"default\", \"of-config:100MiB:couchstore\"]";
    let server = start(folder.path(), other);
    assert_eq!(http(&server, "GET", "/healthz", "").0, 503);
    let (code, told) = http(&server, "GET", &format!("{BUCKETS}/of-config"), "");
    assert!(code == 503 && told.contains("of-config") && told.contains("magma"), "{code} {told}");
    server.stop().expect("a clean stop");
    let server = start(folder.path(), "buckets = [\"default\", \"of-config:100MiB:magma\"]");
    are(&server);
    assert_eq!(http(&server, "DELETE", &format!("{BUCKETS}/log"), "").0, 200);
    server.stop().expect("a clean stop");
}

/// However many clients ask for flushes and go or stay, few wait for their turn, and a stop waits for none of them.
#[test]
fn a_stop_waits_for_no_line_of_flushes() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    create(&server, "name=b&ramQuotaMB=100&replicaNumber=0&flushEnabled=1");
    assert_eq!(Client::connect(&server, "b", &[]).set(b"k", b"v"), Some(Status::Success));
    let (node, addr) = (Arc::clone(server.node()), server.http_addr());
    let turn = node.changing.begin().expect("the node does not stop");
    let flush =
        || ask("Administrator", addr, "POST", &format!("{BUCKETS}/b/controller/doFlush"), "", "close");
    for _ in 0..20 {
        drop(flush());
    }
    // More than may wait, beside those that have begun.
    let (told, answers) = mpsc::channel();
    for _ in 0..37 {
        let (mut stream, told) = (flush(), told.clone());
        std::thread::spawn(move || {
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            let _ = told.send(answer);
        });
    }
    drop(told);
    let first = answers.recv_timeout(Duration::from_secs(60)).expect("not all of them wait");
    assert!(first.starts_with("HTTP/1.1 503 ") && first.contains("too many requests"), "{first}");
    // What does not wait for changes of buckets goes on.
    assert_eq!(http(&server, "GET", "/settings/rbac/users", "").0, 200);
    let stopping = std::thread::spawn(move || server.stop());
    while !node.changing.is_stopping() {
        std::thread::yield_now();
    }
    drop(turn);
    stopping.join().expect("it does not panic").expect("a clean stop");
    for answer in answers {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    let bucket = node.bucket("b").expect("it stays");
    let mut seqnos = (0..support::VBUCKETS).map(|vb| bucket.inspect(VbId(vb), |vb| vb.high_seqno().0));
    assert!(seqnos.any(|seqno| seqno == Some(1)), "no flush has begun");
}

/// The first thread that is to move a bucket cannot be started.
#[derive(Default)]
struct NoFirstMover(AtomicBool);

impl Spawn for NoFirstMover {
    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        let is_first = name.starts_with("move-") && !self.0.swap(true, Ordering::SeqCst);
        if is_first { Err(io::ErrorKind::OutOfMemory.into()) } else { RealSpawn.spawn(name, job) }
    }
}

/// A move that is on disk, and whose thread could not be started, goes on when it is asked for again.
#[test]
fn a_move_whose_thread_could_not_be_started_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let env = Env { spawn: Arc::new(NoFirstMover::default()), ..Env::real() };
    let server = support::start_in(env, folder.path(), "");
    let path = "/v1/buckets/default/migration";
    let store = || json(&server, path)["storageBackend"].as_str().expect("a store").to_owned();
    let other = if store() == "magma" { "couchstore" } else { "magma" };
    let form = format!("storageBackend={other}");
    let (code, told) = http(&server, "POST", path, &form);
    assert!(code >= 500 && told.contains("thread"), "{code} {told}");
    let (code, told) = http(&server, "POST", path, &form);
    assert_eq!(code, 202, "{told}");
    let is_over = || {
        let begun = std::time::Instant::now();
        while json(&server, path)["state"] != "none" {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it stands still");
            std::thread::yield_now();
        }
    };
    is_over();
    assert_eq!(store(), other);
    server.stop().expect("a clean stop");
}
