//! Whole runs against a fake server on a loopback port, and how the outcome is printed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the other end of the client's socket"
)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::env::{Clock, Env};
use expect_test::expect;
use protocol::Status;

use super::report::Measured;
use super::tally::Tally;
use super::*;
use crate::client::fake_server::{FakeMap, FakeServer, Habits, SharedMap};

fn plan(server: &FakeServer, protocol: Protocol) -> Plan {
    Plan {
        target: server.target(protocol.dialect()),
        protocol,
        connections: 5,
        pipeline: 4,
        threads: 2,
        collections: None,
        keys: 300,
        key_size_bytes: 12,
        value_size: "10:100".parse().unwrap(),
        value_kind: ValueKind::Random,
        compressible_percent: 0,
        set_percent: 25,
        distribution: Distribution::Zipf { theta: 0.99 },
        durability: None,
        populate: true,
        warmup_s: 0.0,
        rate: None,
        extent: Extent::Operations(2_000),
        seed: 1,
        server_pid: Some(std::process::id()),
    }
}

fn run_plan(plan: &Plan) -> anyhow::Result<Report> {
    run(&Env::real(), plan, true)
}

#[test]
fn loads_every_key_once_and_counts_every_operation() {
    for protocol in [Protocol::Couchbase, Protocol::Memcached] {
        let server = FakeServer::start(Habits::default());
        let report = run_plan(&plan(&server, protocol)).unwrap();
        assert_eq!(server.keys().len(), 300);
        assert_eq!(report.populate.as_ref().unwrap().keys, 300);
        assert_eq!((report.operations, report.misses), (2_000, 0));
        assert_eq!(report.get.count + report.set.count, 2_000);
        assert!((300..700).contains(&report.set.count), "{}", report.set.count);
        assert!(report.is_clean() && report.server_cpu_seconds.is_some());
        assert!(report.bytes_in >= 2_000 * 24 && report.bytes_out >= 2_000 * 36);
    }
}

/// Answers SET and GET on one connection as Redis does, for requests that are not split; the second SET is refused.
fn serve_resp(mut stream: std::net::TcpStream) {
    let (mut documents, mut sets) = (HashMap::new(), 0);
    let mut received = vec![0; 1 << 20];
    while let Ok(count @ 1..) = stream.read(&mut received) {
        let text = String::from_utf8_lossy(&received[..count]).into_owned();
        let mut words = text.split("\r\n").filter(|word| !word.starts_with(['*', '$']));
        let mut answers = String::new();
        while let (Some(command), Some(key)) = (words.next(), words.next()) {
            answers += &match command {
                "SET" => {
                    let value = words.next().unwrap_or_default();
                    documents.insert(key.to_owned(), value.to_owned());
                    sets += 1;
                    if sets == 2 { "-ERR no\r\n".to_owned() } else { "+OK\r\n".to_owned() }
                }
                _ => match documents.get(key) {
                    Some(value) => format!("${}\r\n{value}\r\n", value.len()),
                    None => "$-1\r\n".to_owned(),
                },
            };
        }
        stream.write_all(answers.as_bytes()).expect("the client reads");
    }
}

#[test]
fn speaks_to_redis() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve_resp));
    let server = FakeServer::start(Habits::default());
    let mut plan = plan(&server, Protocol::Redis);
    plan.target.addr = addr;
    (plan.connections, plan.threads, plan.populate) = (1, 1, false);
    plan.value_kind = ValueKind::Json;
    plan.value_size = "30:100".parse().unwrap();
    let report = run_plan(&plan).unwrap();
    assert_eq!((report.operations, report.protocol), (1_999, "redis"));
    assert_eq!(report.errors, [("error answer".to_owned(), 1)].into());
    assert!(report.misses > 0 && report.misses < report.get.count);
}

#[test]
fn the_same_seed_gives_the_same_requests() {
    let sent = || {
        let server = FakeServer::start(Habits::default());
        let mut plan = plan(&server, Protocol::Couchbase);
        (plan.threads, plan.populate) = (1, false);
        run_plan(&plan).unwrap();
        server.keys()
    };
    assert_eq!(sent(), sent());
}

#[test]
fn a_time_limit_ends_the_run() {
    let server = FakeServer::start(Habits::default());
    let mut plan = plan(&server, Protocol::Couchbase);
    (plan.extent, plan.warmup_s) = (Extent::Seconds(0.05), 0.05);
    let report = run_plan(&plan).unwrap();
    assert!(report.operations > 0 && report.seconds >= 0.05);
}

#[test]
fn values_larger_than_the_buffers_come_and_go() {
    let server = FakeServer::start(Habits::default());
    let mut plan = plan(&server, Protocol::Couchbase);
    (plan.keys, plan.extent) = (4, Extent::Operations(30));
    plan.value_size = "3MiB".parse().unwrap();
    let report = run_plan(&plan).unwrap();
    assert!(report.is_clean() && report.operations == 30);
    assert!(report.bytes_in > report.get.count * (3 << 20));
}

#[test]
fn a_refusal_that_passes_is_tried_again_when_loading() {
    let server = FakeServer::start(Habits { refuse_sets: (0x86, 50), ..Habits::default() });
    let report = run_plan(&plan(&server, Protocol::Couchbase)).unwrap();
    let loaded = report.populate.unwrap();
    assert_eq!((loaded.keys, loaded.retries, server.keys().len()), (300, 50, 300));
}

#[test]
fn a_refusal_that_stays_ends_the_load() {
    let server = FakeServer::start(Habits { refuse_sets: (0x24, 1_000_000), ..Habits::default() });
    let error = run_plan(&plan(&server, Protocol::Couchbase)).unwrap_err();
    assert!(error.to_string().contains("populate: the server answered EACCESS"), "{error}");
}

#[test]
fn a_node_with_a_part_of_the_vbuckets_is_explained() {
    let server = FakeServer::start(Habits { refuse_sets: (0x07, 1_000_000), ..Habits::default() });
    let error = run_plan(&plan(&server, Protocol::Couchbase)).unwrap_err().to_string();
    assert!(
        error.contains("serves a part of the vBuckets, and its cluster map names no other node"),
        "{error}"
    );
}

fn cluster() -> (SharedMap, Vec<FakeServer>) {
    let map: SharedMap = Arc::new(Mutex::new(FakeMap { revision: 1, is_told: true, ..FakeMap::default() }));
    let habits = Habits { cluster: Some(map.clone()), ..Habits::default() };
    let servers = vec![FakeServer::start(habits.clone()), FakeServer::start(habits)];
    (map, servers)
}

#[test]
fn requests_go_to_the_node_that_has_the_vbucket() {
    let (map, servers) = cluster();
    map.lock().unwrap().active = 1;
    let report = run_plan(&plan(&servers[0], Protocol::Couchbase)).unwrap();
    assert!(report.is_clean() && report.operations == 2_000, "{:?}", report.errors);
    assert_eq!((servers[0].keys().len(), servers[1].keys().len()), (0, 300));
    let mut few = plan(&servers[0], Protocol::Couchbase);
    few.connections = 3;
    assert!(run_plan(&few).unwrap_err().to_string().contains("give 4 or more"));
}

#[test]
fn vbuckets_that_move_are_followed() {
    let (map, servers) = cluster();
    // Seven questions come with the connections, and then refusals: the load has begun.
    map.lock().unwrap().then = Some((60, 1));
    let mut plan = plan(&servers[0], Protocol::Couchbase);
    map.lock().unwrap().active = -1;
    plan.extent = Extent::Operations(500);
    let report = run_plan(&plan).unwrap();
    let loaded = report.populate.as_ref().unwrap();
    assert_eq!((loaded.keys, servers[1].keys().len()), (300, 300));
    assert!(report.is_clean() && report.operations == 500, "{:?}", report.errors);
}

#[test]
fn a_node_that_comes_back_is_used_again() {
    let map: SharedMap = Arc::new(Mutex::new(FakeMap { revision: 1, is_told: true, ..FakeMap::default() }));
    let habits = Habits { cluster: Some(map.clone()), ..Habits::default() };
    let first = FakeServer::start(habits.clone());
    // It ends each connection after a while, and takes others.
    let _second = FakeServer::start(Habits { close_after: Some(200), ..habits });
    map.lock().unwrap().active = 1;
    let mut plan = plan(&first, Protocol::Couchbase);
    (plan.connections, plan.populate, plan.rate) = (4, false, Some(1_000.0));
    plan.extent = Extent::Operations(1_500);
    let report = run_plan(&plan).unwrap();
    assert!(report.operations > 500, "{} of two connections to the second node alone", report.operations);
}

#[test]
fn a_rate_is_kept_and_what_waits_counts_as_slow() {
    let server = FakeServer::start(Habits::default());
    let mut plan = plan(&server, Protocol::Couchbase);
    (plan.rate, plan.extent) = (Some(4_000.0), Extent::Operations(800));
    let report = run_plan(&plan).unwrap();
    assert_eq!((report.operations, report.not_begun), (800, Some(0)));
    assert!(report.seconds >= 0.15, "{}", report.seconds);
    // All are meant to begin at once, and one follows the other: the last has waited for all.
    (plan.rate, plan.connections, plan.threads, plan.pipeline) = (Some(1e9), 1, 1, 1);
    plan.set_percent = 0;
    let report = run_plan(&plan).unwrap();
    assert!(report.get.max_us >= report.seconds * 1e6 * 0.8, "{} {}", report.get.max_us, report.seconds);
    assert!(report.table().contains("meant: 1,000,000,000 operations/s"), "{}", report.table());
    plan.rate = Some(0.0);
    assert!(plan.check().unwrap_err().contains("--rate 0"));
}

/// Makes each look at it a tenth of a second later than the one before.
struct HastyClock(AtomicU64);

impl Clock for HastyClock {
    fn unix_ns(&self) -> u64 {
        self.monotonic_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(100_000_000, Ordering::Relaxed)
    }
}

#[test]
fn a_load_that_stands_still_is_given_up() {
    let server = FakeServer::start(Habits { refuse_sets: (0x82, u32::MAX), ..Habits::default() });
    let env = Env { clock: Arc::new(HastyClock(AtomicU64::new(0))), ..Env::real() };
    let error = run(&env, &plan(&server, Protocol::Couchbase), true).unwrap_err().to_string();
    assert!(error.contains("nothing was stored for 10 s (refusals: ENOMEM"), "{error}");
    assert!(error.contains("quota"), "{error}");
}

#[test]
fn refusals_are_counted_by_name() {
    let server = FakeServer::start(Habits { refuse_sets: (0x86, 7), ..Habits::default() });
    let mut plan = plan(&server, Protocol::Couchbase);
    plan.populate = false;
    let report = run_plan(&plan).unwrap();
    assert_eq!(report.errors.get("ETMPFAIL"), Some(&7));
    assert_eq!(report.operations, 1_993);
    assert!(report.misses > 0);
}

#[test]
fn lost_connections_end_the_run() {
    let server = FakeServer::start(Habits { close_after: Some(50), ..Habits::default() });
    let error = run_plan(&plan(&server, Protocol::Couchbase)).unwrap_err();
    assert!(format!("{error:#}").contains("lost"), "{error:#}");
}

#[test]
fn requests_of_the_server_are_passed_over() {
    let server = FakeServer::start(Habits { chatty: true, ..Habits::default() });
    assert!(run_plan(&plan(&server, Protocol::Couchbase)).unwrap().is_clean());
}

#[test]
fn impossible_plans_are_explained() {
    let server = FakeServer::start(Habits::default());
    let check = |change: fn(&mut Plan), expected: &str| {
        let mut plan = plan(&server, Protocol::Memcached);
        change(&mut plan);
        let why = plan.check().expect_err(expected);
        assert!(why.contains(expected), "{why}");
    };
    check(|p| p.keys = 0, "--keys 0");
    check(|p| p.threads = 9, "give at most 5");
    check(|p| p.pipeline = 0, "--pipeline 0");
    check(|p| p.connections = 70_000, "--connections");
    check(|p| p.set_percent = 101, "--set-percent 101");
    check(|p| p.key_size_bytes = 2, "give 3 to 250");
    check(|p| p.extent = Extent::Seconds(0.0), "--seconds 0");
    check(|p| p.warmup_s = -1.0, "--warmup -1");
    check(|p| p.durability = Some(protocol::DurabilityLevel::Majority), "cannot ask for durability");
    check(|p| p.value_kind = ValueKind::Json, "too small for JSON");
}

fn report() -> Report {
    let server = FakeServer::start(Habits::default());
    let mut plan = plan(&server, Protocol::Couchbase);
    plan.target.addr = "127.0.0.1:11210".into();
    let mut tally = Tally::new();
    for us in 0..800 {
        tally.gets.record(30_000 + us * 100).unwrap();
    }
    for us in 0..200 {
        tally.sets.record(40_000 + us * 1_000).unwrap();
    }
    (tally.misses, tally.cut, tally.bytes_in, tally.bytes_out) = (3, 1, 500_000, 120_000);
    tally.refused(Status::Etmpfail.code());
    let loaded = Measured { tally: tally.clone(), seconds: 0.5, server_cpu_s: Some(0.25), client_cpu_s: 0.1 };
    let measured = Measured { tally, seconds: 2.0, server_cpu_s: Some(0.01), client_cpu_s: 0.005 };
    Report::new(&plan, 1, Some(&loaded), measured)
}

#[test]
fn prints_tables_and_bars() {
    expect![[r#"
        127.0.0.1:11210 (couchbase): 5 connections, pipeline 4, 2 threads
        300 keys of 12 B, values of 10 to 100 B, 25 % set, zipf 0.99
        populate: 1,000 keys in 0.50 s, 2,000 keys/s, 250.00 us of server CPU each, 2 refused for a time and tried again
        1,000 operations in 2.00 s: 500 operations/s
        server CPU 0.01 s: 10.00 us an operation
        sent 117 KiB, received 488 KiB, client CPU 5.00 us an operation

        latency         count       min      mean       p50       p90       p99     p99.9       max
        get               800   30.0 us   70.0 us   70.0 us    102 us    109 us    110 us    110 us
        set               200   40.0 us    140 us    139 us    219 us    237 us    239 us    239 us

         20.0 us -  30.0 us   0.10 % ▏
         30.0 us -  50.0 us  21.10 % ████████████████████████████████
         50.0 us -  70.0 us  22.00 % █████████████████████████████████▍
         70.0 us -   100 us  33.00 % ██████████████████████████████████████████████████
          100 us -   150 us  14.90 % ██████████████████████▋
          150 us -   200 us   5.00 % ███████▋
          200 us -   300 us   3.90 % █████▉

                    3 gets of documents that are not there
                    1 ETMPFAIL
                    1 connection lost
    "#]].assert_eq(&report().table());
}

#[test]
fn prints_one_line_of_json() {
    let json = report().json();
    assert!(!json.contains('\n'));
    expect![[r#"{"name":"stave bench","addr":"127.0.0.1:11210","protocol":"couchbase","connections":5,"pipeline":4,"threads":2,"keys":300,"collections":1,"key_size":12,"value_size":"10 to 100","set_percent":25,"distribution":"zipf 0.99","populate":{"keys":1000,"seconds":0.5,"keys_per_second":2000.0,"retries":2,"server_cpu_us_per_operation":250.0},"seconds":2.0,"operations":1000,"operations_per_second":500.0,"get":{"count":800,"min_us":30.0,"mean_us":70.0,"p50_us":70.0,"p90_us":102.0,"p99_us":109.1,"p999_us":110.0,"max_us":110.0},"set":{"count":200,"min_us":40.0,"mean_us":139.5,"p50_us":139.0,"p90_us":219.0,"p99_us":237.1,"p999_us":239.1,"max_us":239.1},"misses":3,"errors":{"ETMPFAIL":1,"connection lost":1},"bytes_in":500000,"bytes_out":120000,"server_cpu_seconds":0.01,"server_cpu_us_per_operation":10.0,"client_cpu_us_per_operation":5.0}"#]].assert_eq(&json);
}
