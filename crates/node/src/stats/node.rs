//! Groups about the node: connections, requests, threads, background steps.

use std::sync::atomic::Ordering::Relaxed;

use base::HistogramCounts;
use engine::{OpCounts, StoreTimes, TaskKind};
use protocol::Status;
use protocol::opcode::{self, *};
use serde_json::{Value, json};

use super::inquiry::{Inquiry, Refused};
use super::timings::put_times;
use super::{Sheet, ops, process};
use crate::commands::command_timer::as_json;
use crate::config::shown;
use crate::counters::Totals;
use crate::hosting::threads_of_kind;
use crate::kept_by::KeptBy;
use crate::naming;
use crate::node::Node;
use crate::privilege::Privilege;
use crate::slow::packet::duration_text;
use crate::version::SERVER_VERSION;

const GETS: &[u8] = &[GET, GETQ, GETK, GETKQ, GET_REPLICA, GET_EX, GET_EX_REPLICA, GAT, GATQ, GET_LOCKED];
const SETS: &[u8] = &[
    SET,
    SETQ,
    ADD,
    ADDQ,
    REPLACE,
    REPLACEQ,
    APPEND,
    APPENDQ,
    PREPEND,
    PREPENDQ,
    SET_WITH_META,
    SETQ_WITH_META,
];
const OTHER_CHANGES: &[u8] = &[
    DELETE,
    DELETEQ,
    INCREMENT,
    INCREMENTQ,
    DECREMENT,
    DECREMENTQ,
    TOUCH,
    ADD_WITH_META,
    ADDQ_WITH_META,
    DELETE_WITH_META,
    DELETEQ_WITH_META,
    RETURN_META,
];
const SUBDOC_LOOKUPS: &[u8] = &[SUBDOC_GET, SUBDOC_EXISTS, SUBDOC_GET_COUNT, SUBDOC_MULTI_LOOKUP];
const SUBDOC_CHANGES: &[u8] = &[
    SUBDOC_DICT_ADD,
    SUBDOC_DICT_UPSERT,
    SUBDOC_DELETE,
    SUBDOC_REPLACE,
    SUBDOC_ARRAY_PUSH_LAST,
    SUBDOC_ARRAY_PUSH_FIRST,
    SUBDOC_ARRAY_INSERT,
    SUBDOC_ARRAY_ADD_UNIQUE,
    SUBDOC_COUNTER,
    SUBDOC_REPLACE_BODY_WITH_XATTR,
    SUBDOC_MULTI_MUTATION,
];

pub(super) fn requests(totals: &Totals, opcodes: &[u8]) -> u64 {
    opcodes.iter().map(|opcode| totals.requests[usize::from(*opcode)]).sum()
}

/// What belongs to the node around any bucket; what clients of all buckets together did is for those who may look at all
/// of them.
pub(super) fn put_node(inquiry: &Inquiry<'_>, sheet: &mut Sheet) {
    put_process(inquiry.node, sheet);
    if inquiry.counts_node() {
        put_totals(inquiry.node, &inquiry.node.totals(), sheet);
    }
}

fn put_process(node: &Node, sheet: &mut Sheet) {
    sheet.put("pid", std::process::id());
    sheet.put("uptime", node.uptime_s());
    sheet.put("time", node.env().clock.unix_s());
    sheet.put("ep_startup_time", node.started_unix_s);
    sheet.put("version", SERVER_VERSION);
    sheet.put("memcached_version", SERVER_VERSION);
    sheet.put("threads", node.workers().threads());
}

fn put_totals(node: &Node, totals: &Totals, sheet: &mut Sheet) {
    sheet.put("curr_connections", totals.connections);
    sheet.put("connection_structures", totals.connections);
    sheet.put("total_connections", totals.accepted);
    sheet.put("cut_connections", totals.cut);
    let accepting = node.workers().accepting();
    let rejected = [&accepting.kv_refused, &accepting.kv_refused_by_address].map(|count| count.load(Relaxed));
    sheet.put("rejected_conns", rejected.iter().sum::<u64>());
    sheet.put("auth_errors", totals.auth_errors());
    sheet.put("bytes_read", totals.received_bytes);
    sheet.put("bytes_written", totals.sent_bytes);
    if let Some(bytes) = process::resident_bytes(node.env()) {
        sheet.put("daemon_memory_resident", bytes);
    }
}

/// `aggregate`: requests received of each kind, whatever became of them, and what they did in all buckets.
pub fn aggregate(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let totals = node.totals();
    put_process(node, sheet);
    put_totals(node, &totals, sheet);
    let mut ops = OpCounts::default();
    node.buckets().iter().for_each(|(_, bucket)| ops.add(&bucket.op_counts()));
    ops::put_ops(&ops, sheet);
    let lookups = requests(&totals, GETS) + requests(&totals, SUBDOC_LOOKUPS);
    let changes =
        requests(&totals, SETS) + requests(&totals, OTHER_CHANGES) + requests(&totals, SUBDOC_CHANGES);
    sheet.put("auth_cmds", requests(&totals, &[SASL_AUTH]));
    sheet.put("cmd_flush", requests(&totals, &[FLUSH, FLUSHQ]));
    sheet.put("cmd_lock", requests(&totals, &[GET_LOCKED]));
    sheet.put("cmd_subdoc_lookup", requests(&totals, SUBDOC_LOOKUPS));
    sheet.put("cmd_subdoc_mutation", requests(&totals, SUBDOC_CHANGES));
    sheet.put("cmd_lookup", lookups);
    sheet.put("cmd_mutation", changes);
    sheet.put("cmd_total_gets", lookups);
    sheet.put("cmd_total_sets", changes);
    sheet.put("cmd_total_ops", lookups + changes);
    Ok(())
}

/// `client_connection_details`: the connections of each address, as JSON under it.
pub fn client_connections(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let now = node.env().clock.monotonic();
    for (address, counts) in node.events().clients.all() {
        let numbers = json!({
            "current": counts.current,
            "total": counts.total,
            "disconnect": counts.closed_by_node,
            "last_used": format!("{} s", now.saturating_sub(counts.changed).as_secs()),
        });
        sheet.put(address, numbers);
    }
    Ok(())
}

/// `clocks`: what a look at the clock costs, and what it can tell apart; measured now.
pub fn clocks(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    const LOOKS: u64 = 1_000;
    let clock = &node.env().clock;
    let began_ns = clock.monotonic_ns();
    let (mut last_ns, mut finest_ns) = (began_ns, u64::MAX);
    for _ in 0..LOOKS {
        let now_ns = clock.monotonic_ns();
        if now_ns > last_ns {
            finest_ns = finest_ns.min(now_ns - last_ns);
        }
        last_ns = now_ns;
    }
    sheet.put("clock_fine_overhead_ns", (last_ns - began_ns) / LOOKS);
    // A clock that stood still has told nothing apart.
    if finest_ns < u64::MAX {
        sheet.put("clock_fine_resolution_ns", finest_ns);
    }
    Ok(())
}

/// `settings`: what the node was started with, but for buckets, which `config` is about, users and keys.
pub fn settings(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let limits = node.limits();
    sheet.put("maxconns", limits.connections);
    sheet.put("max_connections_per_address", limits.connections_per_address.unwrap_or(0));
    sheet.put("max_http_connections", limits.http.connections);
    sheet.put("max_http_connections_per_address", limits.http.per_address);
    sheet.put("http_idle_timeout_s", limits.http.idle_timeout_s);
    sheet.put("login_timeout_s", limits.login_timeout_s);
    sheet.put("connection_memory", node.connection_memory().limit_bytes());
    sheet.put("num_threads", node.workers().all().len());
    for (command, ms) in node.events().slow.limits.own() {
        sheet.put(format_args!("slow_operation_threshold:{command}"), ms);
    }
    let Some(config) = node.host().map(|host| host.config()) else { return Ok(()) };
    sheet.put("data", config.data_dir.display());
    sheet.put("interface_kv", shown(&config.plain_kv()));
    sheet.put("interface_http", shown(&config.plain_http()));
    sheet.put("vbuckets", config.vbuckets);
    sheet.put("max_open_files", config.max_open_files);
    sheet.put("quarantine_s", config.quarantine_s);
    sheet.put("tls", config.tls.is_some());
    sheet.put("encrypted", config.encryption.is_some());
    sheet.put("cluster", config.is_member);
    if let Some(endpoint) = &config.trace_endpoint {
        sheet.put("trace_endpoint", endpoint.url());
    }
    Ok(())
}

/// `connections`
pub fn connections(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let (totals, limits, accepting) = (node.totals(), node.limits(), node.workers().accepting());
    sheet.put("curr_connections", totals.connections);
    sheet.put("max_connections", limits.connections);
    sheet.put("max_connections_per_address", limits.connections_per_address.unwrap_or(0));
    sheet.put("curr_strangers", totals.strangers);
    sheet.put("curr_http_connections", accepting.http_connections.load(Relaxed));
    let certificate_end_s = accepting.certificate_end_s.load(Relaxed);
    if certificate_end_s > 0 {
        sheet.put("tls_certificate_end_timestamp", certificate_end_s);
    }
    let ca_end_s = accepting.ca_end_s.load(Relaxed);
    if ca_end_s > 0 {
        sheet.put("tls_ca_end_timestamp", ca_end_s);
    }
    sheet.put("max_http_connections", limits.http.connections);
    sheet.put("max_http_connections_per_address", limits.http.per_address);
    sheet.put("longest_turn_us", totals.longest_turn_ns / 1000);
    for (command, ns) in crate::node::longest_turns(node) {
        sheet.put(format_args!("longest_turn_us_{command}"), ns / 1000);
    }
    sheet.put("slow_turns", totals.slow_turns);
    for (name, lane) in node.lanes().named() {
        sheet.put(format_args!("{name}_done"), lane.done());
        sheet.put(format_args!("{name}_refused"), lane.refused());
        sheet.put(format_args!("{name}_under_way"), lane.under_way());
    }
    let memory = node.connection_memory();
    sheet.put("connection_memory_used", memory.used_bytes());
    sheet.put("connection_memory_limit", memory.limit_bytes());
    sheet.put("connection_memory_highest", memory.highest_bytes());
    sheet.put("connection_memory_refused", memory.refused());
    sheet.put("connection_memory_paused", memory.paused());
    sheet.put("connection_memory_closed", memory.closed());
    for (name, counter) in [
        ("refused_connections", &accepting.kv_refused),
        ("refused_by_address_connections", &accepting.kv_refused_by_address),
        ("crowded_out_connections", &accepting.kv_crowded_out),
        ("total_http_connections", &accepting.http_accepted),
        ("refused_http_connections", &accepting.http_refused),
        ("crowded_out_http_connections", &accepting.http_crowded_out),
        ("late_http_connections", &accepting.http_late),
        ("accept_failures", &accepting.failures),
    ] {
        sheet.put(name, counter.load(Relaxed));
    }
    Ok(())
}

/// Kinds of background threads under the field's names.
const THREAD_KINDS: [(&str, TaskKind); 4] = [
    ("writer", TaskKind::Writer),
    ("reader", TaskKind::Reader),
    ("auxio", TaskKind::AuxIo),
    ("nonio", TaskKind::NonIo),
];

/// Background threads of a kind that run at the moment, of one bucket or of all.
fn running(node: &Node, bucket: Option<&str>, kind: TaskKind) -> usize {
    node.host().map_or(0, |host| host.running_threads(bucket, kind))
}

/// `threads`: clients are served by workers, and each bucket has threads of its own. Those that load end after the start.
pub fn threads(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let buckets = node.bucket_names().len();
    let mut put = |kind: &str, configured: usize, actual: usize| {
        sheet.put(format_args!("num_{kind}_threads_configured"), configured);
        sheet.put(format_args!("num_{kind}_threads_actual"), actual);
    };
    put("frontend", node.workers().threads(), node.workers().threads());
    for (name, kind) in THREAD_KINDS {
        put(name, buckets * threads_of_kind(kind), running(node, None, kind));
    }
    Ok(())
}

/// `workload`: the threads of one bucket that run at the moment.
pub fn workload(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let mut sheet = sheet.under("ep_workload");
    for (name, kind) in THREAD_KINDS {
        let plural = if name.ends_with("er") { "s" } else { "" };
        let threads = running(inquiry.node, Some(inquiry.bucket.name()), kind);
        sheet.put(format_args!("num_{name}{plural}"), threads);
    }
    Ok(())
}

/// `info`
pub fn info(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let info = json!({
        "server": "stave",
        "version": env!("CARGO_PKG_VERSION"),
        "protocol_version": SERVER_VERSION,
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "pid": std::process::id(),
        "uptime_s": inquiry.node.uptime_s(),
        "threads": inquiry.node.workers().threads(),
    });
    sheet.put("info", info);
    Ok(())
}

/// `bucket_details`
pub fn bucket_details(node: &Node, args: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let buckets = node.buckets();
    let mut buckets = buckets.iter().enumerate().map(|(index, (spec, bucket))| {
        let details = json!({
            "index": index,
            "name": bucket.name(),
            "uuid": bucket.uuid(),
            "state": "ready",
            "kept_by": KeptBy::of(node, bucket.name()).word(),
            "type": naming::type_name(spec.kind, spec.backend),
            "quota_bytes": bucket.memory().quota_bytes(),
            "vbuckets": bucket.vbuckets(),
        });
        (bucket.name().to_owned(), details)
    });
    if let Some(asked) = args.first() {
        let found = buckets.find(|(name, _)| name.as_bytes() == *asked);
        let (name, details) = found.ok_or(Refused::Status(Status::KeyEnoent))?;
        sheet.put(name, details);
        return Ok(());
    }
    let buckets: Vec<Value> = buckets.map(|(_, details)| details).collect();
    sheet.put("bucket details", json!({ "buckets": buckets }));
    Ok(())
}

/// `responses`: answers by the number of their status, in hexadecimal.
pub fn responses(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let answers = node.totals().answers;
    let counts = Status::ALL.iter().map(|status| (status.code(), answers[usize::from(status.code() as u8)]));
    let seen = counts.filter(|(_, count)| *count > 0);
    let seen: serde_json::Map<String, serde_json::Value> =
        seen.map(|(code, count)| (format!("{code:x}"), count.into())).collect();
    sheet.put("responses", serde_json::Value::from(seen));
    Ok(())
}

/// `timings`: of the bucket's requests, those that were measured, and its sync writes.
pub fn timings(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.node.times.of(inquiry.bucket);
    let since = times.baseline();
    for (code, _) in times.commands() {
        if let Some(name) = opcode::name(code) {
            put_times(name, &since.command(&times, code), sheet);
        }
    }
    for (name, took) in since.sync_writes(&times) {
        put_times(name, &took, sheet);
    }
    for (name, waited) in since.queues(&times) {
        put_times(name, &waited, sheet);
    }
    let store = since.store(StoreTimes::of(inquiry.bucket));
    put_times("bg_wait", &store.fetch_wait, sheet);
    put_times("bg_load", &store.fetch, sheet);
    put_times("disk_commit", &store.commit, sheet);
    Ok(())
}

/// `subdoc_execute`: the times of all sub-document commands together, in the form of Get Command Timer.
pub fn subdoc_execute(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let times = inquiry.node.times.of(inquiry.bucket);
    let since = times.baseline();
    let (mut counts, mut requests) = (HistogramCounts::default(), 0);
    for code in SUBDOC_LOOKUPS.iter().chain(SUBDOC_CHANGES) {
        counts.add(&since.command(&times, *code));
        requests += since.requests(&times, *code);
    }
    sheet.put("subdoc_execute", as_json(&counts, requests));
    Ok(())
}

/// `json_validate`
pub fn json_validate(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    sheet.put("json_validate", as_json(&inquiry.bucket.value_times().detected(), 0));
    Ok(())
}

/// `snappy_decompress`
pub fn snappy_decompress(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    sheet.put("snappy_decompress", as_json(&inquiry.bucket.value_times().inflated(), 0));
    Ok(())
}

/// `slow-operations`: under numbers, the oldest first.
pub fn slow_operations(inquiry: &Inquiry<'_>, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let slow = inquiry.node.events().slow.of_bucket(inquiry.bucket.name());
    for (at, one) in slow.iter().enumerate() {
        let mut sheet = sheet.under(at);
        sheet.put("command", opcode::name(one.opcode).unwrap_or("unknown"));
        sheet.put("duration_us", one.took_ns / 1000);
        sheet.put("trace", one.spent_on.name());
        if !one.spans.is_empty() {
            sheet.put("spans", crate::slow::spans::trace(&one.spans));
        }
        sheet.put("requests", one.requests);
        sheet.put("ended", one.ended_unix_ns / 1_000_000_000);
        sheet.put("opaque", one.packet.opaque);
        sheet.put("vbucket", one.packet.vbucket);
        sheet.put("duration", duration_text(one.took_ns));
        sheet.put("cid", one.cid());
        if let Some(id) = &one.connection_id {
            sheet.put("connection_id", id);
        }
        if let Some(status) = one.status {
            sheet.put("status", status.name());
        }
        sheet.put("worker", one.worker);
        // The key is a row of its own, for those who may know it.
        sheet.put("packet", one.packet.as_json(one.opcode, None));
        if inquiry.rights.whole.has(Privilege::MetaRead) {
            sheet.put("key", one.key_text());
        }
        if let Some(collection) = one.collection {
            sheet.put("collection", format_args!("{:#x}", collection.0));
        }
        if let Some(peer) = one.peer.filter(|_| inquiry.rights.node.has(Privilege::NodeSupervisor)) {
            sheet.put("peer", peer);
        }
    }
    Ok(())
}

/// `worker_thread_info`
pub fn workers(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    for (at, worker) in node.workers().all().iter().enumerate() {
        let totals = Totals::of(std::iter::once(&**worker));
        let numbers = json!({
            "connections": totals.connections,
            "accepted": totals.accepted,
            "requests": totals.requests.iter().sum::<u64>(),
            "received_bytes": totals.received_bytes,
            "sent_bytes": totals.sent_bytes,
            "longest_turn_us": totals.longest_turn_ns / 1000,
            "slow_turns": totals.slow_turns,
        });
        sheet.put(at, numbers);
    }
    Ok(())
}
