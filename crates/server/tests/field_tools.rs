//! What the field's tools send (`cbstats`, `mcstat`, `mctimings`), and that each answer has the shape and the unit that they
//! take apart. The tools themselves are not run here.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use protocol::{RequestParts, Status, opcode};
use serde_json::{Value, json};
use support::{Client, start, vb};

/// How a tool reads a group.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Names and values, some of them there.
    Some(&'static [&'static str]),
    /// `NAME_FROM,TO` in microseconds or use counts, and `NAME_mean`.
    Bars,
    /// JSON under one name, with these fields in the first entry of a list, or in the object.
    Json(&'static str, &'static [&'static str]),
    /// Get Command Timer's JSON under the group's name.
    Timer,
    /// Names and values, of which some names end so, whatever identity stands before that.
    Ends(&'static [&'static str]),
    /// JSON under each name, with these fields.
    EachJson(&'static [&'static str]),
    /// There is nothing to tell.
    Empty,
    /// It is refused with this status.
    Refused(Status),
}

use Shape::{Bars, EachJson, Empty, Ends, Json, Refused, Some as Has, Timer};

const COLLECTION: Shape = Ends(&[":name", ":scope_name", ":items", ":collections_mem_used", ":data_size"]);
const SCOPE: Shape = Ends(&[":name", ":collections", ":items", ":collections_mem_used", ":data_size"]);

/// What `cbstats` and `mcstat` send for each command, `VB` standing for the vBucket of a document `k`.
const SENT: &[(&str, Shape)] = &[
    ("", Has(&["curr_items", "ep_queue_size", "mem_used", "vb_active_num", "uptime"])),
    ("allocator", Has(&["process_system_used", "process_system_held"])),
    ("audit", Has(&["enabled", "dropped_events"])),
    ("checkpoint", Has(&["vb_0:open_checkpoint_id", "vb_0:num_checkpoint_items"])),
    ("checkpoint 0", Has(&["vb_0:last_closed_checkpoint_id"])),
    ("client_connection_details", EachJson(&["current", "disconnect", "last_used", "total"])),
    ("clocks", Has(&["clock_fine_overhead_ns", "clock_fine_resolution_ns"])),
    ("collections", Has(&["manifest_uid"])),
    ("collections _default._default", COLLECTION),
    ("collections-byid 0x0", COLLECTION),
    ("collections-details", Has(&["vb_0:manifest:uid"])),
    ("collections-details 0", Has(&["vb_0:manifest:uid"])),
    ("config", Has(&["ep_max_size"])),
    ("connections", Has(&["curr_connections", "max_connections", "refused_connections"])),
    (
        "dcp",
        Has(&["ep_dcp_count", "ep_dcp_producer_count", "ep_dcp_items_remaining", "ep_dcp_streams_left_out"]),
    ),
    (
        "dcpagg :",
        Has(&[":total:count", ":total:producer_count", ":total:items_sent", ":total:items_remaining"]),
    ),
    ("dcp-vbtakeover VB", Has(&["status", "estimate", "vb_items"])),
    ("disk-failures", Has(&["rw_0:failure_set", "rw_0:failure_get"])),
    ("disk-slowness 1", Has(&["pending_disk_read_num", "pending_disk_write_slow_num"])),
    ("diskinfo", Has(&["ep_db_data_size", "ep_db_file_size"])),
    ("diskinfo detail", Has(&["vb_0:data_size", "vb_0:file_size"])),
    ("dispatcher", Ends(&["flusher:state", "fetcher:state"])),
    (
        "durability-monitor VB",
        Ends(&[":state", ":num_tracked", ":high_prepared_seqno", ":high_completed_seqno"]),
    ),
    ("eviction", Bars),
    ("external-auth-timings", Empty),
    ("failovers", Has(&["vb_0:num_entries", "vb_0:0:id", "vb_0:0:seq"])),
    ("failovers 0", Has(&["vb_0:num_entries"])),
    ("frequency-counters", Bars),
    ("fusion", Refused(Status::KeyEnoent)),
    ("hash", Has(&["vb_0:size", "vb_0:counted", "max_count"])),
    ("hash detail", Has(&["vb_0:size"])),
    ("key k VB", Has(&["key_cas", "key_flags", "key_exptime", "key_is_dirty"])),
    ("key-byid k VB 0x0", Has(&["key_cas", "key_flags", "key_exptime", "key_is_dirty"])),
    ("kvstore", Has(&["rw_0:io_num_write"])),
    ("kvtimings", Bars),
    ("manifest", Has(&["manifest_uid"])),
    ("memory", Has(&["mem_used", "ep_mem_high_wat"])),
    ("no such group", Refused(Status::KeyEnoent)),
    ("prev-vbucket", Has(&["vb_0"])),
    ("range-scans", Empty),
    ("range-scans 0", Empty),
    ("range-scans none", Refused(Status::Einval)),
    ("responses", Json("responses", &["0"])),
    ("runtimes", Bars),
    ("scheduler", Bars),
    ("scopes", Has(&["manifest_uid"])),
    ("scopes _default", SCOPE),
    ("scopes-byid 0x0", SCOPE),
    ("scopes-details", Has(&["vb_0:manifest_uid", "vb_0:scopes"])),
    ("settings", Has(&["maxconns", "num_threads", "interface_kv", "interface_http"])),
    ("stat-timings", Bars),
    ("subdoc_execute", Timer),
    ("json_validate", Timer),
    ("snappy_decompress", Timer),
    ("tasks", Json("ep_tasks:tasks", &["tid", "type", "name", "state", "total_runtime_ns", "num_runs"])),
    ("tasks-all", Json("ep_tasks:tasks", &["tid", "bucket", "name", "state", "num_runs"])),
    ("threads", Has(&["num_frontend_threads_actual", "num_writer_threads_configured"])),
    ("timings", Bars),
    ("tracing", Refused(Status::KeyEnoent)),
    ("uuid", Has(&["uuid"])),
    ("vbucket", Has(&["vb_0"])),
    ("vbucket 0", Has(&["vb_0"])),
    ("vbucket-details", Has(&["vb_0:high_seqno", "vb_0:num_items", "vb_0:num_non_resident"])),
    ("vbucket-details 0", Has(&["vb_0:high_seqno"])),
    ("vbucket-durability-state", Has(&["vb_0:high_prepared_seqno"])),
    ("vbucket-durability-state 0", Has(&["vb_0:high_prepared_seqno"])),
    ("vbucket-seqno", Has(&["vb_0:high_seqno", "vb_0:uuid"])),
    ("vbucket-seqno 0", Has(&["vb_0:high_seqno"])),
    ("vkey k VB", Has(&["key_valid"])),
    ("vkey-byid k VB 0x0", Has(&["key_valid"])),
    ("warmup", Has(&["ep_warmup_thread", "ep_warmup_key_count"])),
    ("workload", Has(&["ep_workload:num_readers"])),
    ("reset", Empty),
];

/// A group, or the status that it is refused with.
fn stats(client: &mut Client, group: &str) -> Result<BTreeMap<String, String>, Status> {
    let ask = RequestParts { opcode: opcode::STAT, key: group.as_bytes(), ..RequestParts::default() };
    let mut frame = client.request(&ask);
    let mut told = BTreeMap::new();
    while frame.status == Status::Success && !frame.key.is_empty() {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        told.insert(text(&frame.key), text(&frame.value));
        frame = client.receive();
    }
    if frame.status == Status::Success { Ok(told) } else { Err(frame.status) }
}

/// Names of ranges come apart, ranges follow each other, and the mean is within them.
fn are_bars(group: &str, told: &BTreeMap<String, String>) {
    let mut ranges: BTreeMap<&str, Vec<(u64, u64, u64)>> = BTreeMap::new();
    let mut means: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, value) in told {
        let (name, end) = name.rsplit_once('_').unwrap_or_else(|| panic!("{group}: {name} has no range"));
        match end.split_once(',') {
            Some((from, to)) => {
                let number =
                    |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{group}: {name} {text}"));
                ranges.entry(name).or_default().push((number(from), number(to), number(value)));
            }
            None if end == "mean" => drop(means.insert(name, value.parse().expect("a number"))),
            None => panic!("{group}: {name}_{end} is no range"),
        }
    }
    for (name, mut of) in ranges {
        of.sort_unstable();
        assert!(of.iter().all(|(from, to, count)| from < to && *count > 0), "{group} {name}: {of:?}");
        assert!(of.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{group} {name}: {of:?}");
        let mean = means.get(name).unwrap_or_else(|| panic!("{group}: {name} has no mean"));
        let within = (of[0].0 as f64)..=(of[of.len() - 1].1 as f64);
        assert!(within.contains(mean), "{group} {name}: {mean} is not within {of:?}");
    }
}

/// JSON as `mctimings` reads it: ends of buckets rise from `bucketsLow`, counts come to the total, percentages to 100; there
/// are no buckets if none of the requests was measured.
fn is_timer(what: &str, times: &Value) -> u64 {
    let total = times["total"].as_u64().unwrap_or_else(|| panic!("{what}: {times}"));
    let mut end = times["bucketsLow"].as_u64().unwrap_or_else(|| panic!("{what}: {times}"));
    let (mut counted, mut percent) = (0, 0.0);
    for bucket in times["data"].as_array().unwrap_or_else(|| panic!("{what}: {times}")) {
        let number = |at: usize| bucket[at].as_f64().unwrap_or_else(|| panic!("{what}: {bucket}"));
        assert!(number(0) > end as f64 && number(2) >= percent, "{what}: {times}");
        (end, percent) = (number(0) as u64, number(2));
        counted += number(1) as u64;
    }
    if times["data"] != json!([]) {
        assert_eq!(counted, total, "{what}: {times}");
        assert!((percent - 100.0).abs() < 1e-6, "{what}: {times}");
    }
    // More than a minute would be nanoseconds in the field of microseconds.
    assert!(end < 60_000_000, "{what}: {times}");
    total
}

/// What of the shape is not so.
fn differs(client: &mut Client, group: &str, shape: Shape) -> Option<String> {
    let told = stats(client, group);
    if let Refused(status) = shape {
        return (told != Err(status)).then(|| format!("{group} is not refused with {status:?}: {told:?}"));
    }
    let told = match told {
        Ok(told) => told,
        Err(status) => return Some(format!("{group} is refused with {status:?}")),
    };
    match shape {
        Refused(_) => {}
        Empty => return (!told.is_empty()).then(|| format!("{group} is not empty: {told:?}")),
        Ends(ends) => {
            let is_missing = |end: &&&str| !told.keys().any(|name| name.ends_with(**end));
            let missing: Vec<_> = ends.iter().filter(is_missing).collect();
            return (!missing.is_empty()).then(|| format!("{group} has no {missing:?}: {told:?}"));
        }
        EachJson(fields) => {
            let is_so = |text: &String| {
                let of: Value = serde_json::from_str(text).expect("JSON");
                fields.iter().all(|field| of.get(field).is_some())
            };
            let is_told = !told.is_empty() && told.values().all(is_so);
            return (!is_told).then(|| format!("{group} has not all of {fields:?}: {told:?}"));
        }
        Has(names) => {
            let missing: Vec<_> = names.iter().filter(|name| !told.contains_key(**name)).collect();
            return (!missing.is_empty()).then(|| format!("{group} has no {missing:?}: {told:?}"));
        }
        Bars => are_bars(group, &told),
        Timer => {
            is_timer(group, &serde_json::from_str(&told[group]).expect("JSON"));
        }
        Json(name, fields) => {
            let all: Value = serde_json::from_str(&told[name]).expect("JSON");
            let one = all.get(0).unwrap_or(&all);
            let is_so = fields.iter().all(|field| one.get(field).is_some());
            return (!is_so).then(|| format!("{group} has not all of {fields:?}: {one}"));
        }
    }
    None
}

#[test]
fn what_the_fields_tools_send_is_answered_in_their_shape() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    // One turn in 64 of each connection is timed: its first ones are among them.
    for _ in 0..200 {
        assert_eq!(client.set(b"k", b"{\"a\":1}"), Some(Status::Success));
        assert_eq!(client.get(b"k").map(|frame| frame.status), Some(Status::Success));
    }
    let mut of = |(group, shape): &(&str, Shape)| {
        differs(&mut client, &group.replace("VB", &vb(b"k").to_string()), *shape)
    };
    let wrong: Vec<String> = SENT.iter().filter_map(&mut of).collect();
    assert_eq!(wrong, Vec::<String>::new());
    server.stop().expect("a clean stop");
}

#[test]
fn times_are_answered_as_mctimings_reads_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut client = Client::connect(&server, "default", &[]);
    for _ in 0..200 {
        assert_eq!(client.set(b"k", b"1"), Some(Status::Success));
    }
    let mut ask = |code: u8, bucket: &[u8]| {
        let (opcode, extras) = (opcode::GET_CMD_TIMER, [code]);
        let parts = RequestParts { opcode, extras: &extras, key: bucket, ..RequestParts::default() };
        let frame = client.request(&parts);
        (frame.status, frame.value)
    };
    let mut timed = BTreeMap::new();
    for bucket in ["default", "/all/", "@no bucket@", ""] {
        for code in 0..=u8::MAX {
            let (status, value) = ask(code, bucket.as_bytes());
            assert_eq!(status, Status::Success, "{code:#x} of {bucket:?}");
            let times: Value = serde_json::from_slice(&value).expect("JSON");
            *timed.entry((bucket, code)).or_insert(0) +=
                is_timer(&format!("{code:#x} of {bucket:?}"), &times);
        }
    }
    // All operations, though one turn in 64 is measured.
    assert_eq!((timed[&("default", opcode::SET)], timed[&("/all/", opcode::SET)]), (200, 200));
    assert_eq!(timed[&("@no bucket@", opcode::SET)], 0);
    assert_eq!(ask(opcode::SET, b"no such bucket").0, Status::Eaccess);
    let mut of = |code: u8| {
        let (_, value) = ask(code, b"default");
        serde_json::from_slice::<Value>(&value).expect("JSON")
    };
    assert_eq!(of(0x60), json!({ "total": 0, "data": [], "bucketsLow": 0 }));
    let buckets = of(opcode::SET)["data"].as_array().map_or(0, Vec::len);
    assert!(buckets > 0, "of 200 turns some are measured");
    stats(&mut client, "reset").expect("it begins again");
    let value = client.request(&RequestParts {
        opcode: opcode::GET_CMD_TIMER,
        extras: &[opcode::SET],
        ..RequestParts::default()
    });
    assert_eq!(is_timer("after a reset", &serde_json::from_slice(&value.value).expect("JSON")), 0);
    server.stop().expect("a clean stop");
}
