//! `GET /metrics` in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::Write;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use engine::Bucket;

use super::Shared;
use crate::node::Node;

pub(super) async fn metrics(State(shared): State<Shared>) -> Response {
    let text = text(&shared.node);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// Writes one family: its help, its type, and its samples.
struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    fn new(out: &'a mut String, name: &'static str, kind: &str, help: &str) -> Family<'a> {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { out, name }
    }

    fn sample(&mut self, value: u64) {
        let _ = writeln!(self.out, "{} {value}", self.name);
    }

    fn labelled(&mut self, label: &str, label_value: &str, value: u64) {
        // Names of buckets and commands need no escaping: the configuration and the command table see to that.
        let _ = writeln!(self.out, "{}{{{label}=\"{label_value}\"}} {value}", self.name);
    }
}

fn text(node: &Node) -> String {
    let totals = node.totals();
    let mut out = String::new();
    Family::new(&mut out, "stave_uptime_seconds", "gauge", "Time since the node started")
        .sample(node.uptime_s());
    Family::new(&mut out, "stave_connections", "gauge", "KV connections").sample(totals.connections as u64);
    Family::new(&mut out, "stave_connections_accepted_total", "counter", "KV connections ever accepted")
        .sample(totals.accepted);
    Family::new(
        &mut out,
        "stave_connections_cut_total",
        "counter",
        "KV connections closed for what the client did",
    )
    .sample(totals.cut);
    Family::new(&mut out, "stave_received_bytes_total", "counter", "Bytes from KV clients")
        .sample(totals.received_bytes);
    Family::new(&mut out, "stave_sent_bytes_total", "counter", "Bytes to KV clients")
        .sample(totals.sent_bytes);
    let mut requests = Family::new(&mut out, "stave_requests_total", "counter", "Requests by command");
    let (mut unknown, mut known) = (0, Vec::new());
    for (opcode, count) in totals.requests.iter().enumerate().filter(|(_, count)| **count > 0) {
        match protocol::opcode::name(opcode as u8) {
            Some(name) => known.push((name, *count)),
            None => unknown += count,
        }
    }
    for (name, count) in known {
        requests.labelled("command", name, count);
    }
    requests.labelled("command", "unknown", unknown);
    bucket_families(node, &mut out);
    out
}

/// A figure of a bucket.
type Figure = fn(&Bucket) -> u64;

/// Name, type, help and source of each family with a sample per bucket.
const BUCKET_FAMILIES: [(&str, &str, &str, Figure); 9] = [
    ("stave_bucket_quota_bytes", "gauge", "Memory that documents may use", |b| b.memory().quota_bytes()),
    ("stave_bucket_used_bytes", "gauge", "Memory that documents use", |b| b.memory().used_bytes()),
    ("stave_bucket_vbuckets", "gauge", "vBuckets", |b| u64::from(b.vbuckets())),
    ("stave_bucket_get_hits_total", "counter", "Reads that found a document", |b| b.op_counts().get_hits),
    ("stave_bucket_get_misses_total", "counter", "Reads that found none", |b| b.op_counts().get_misses),
    ("stave_bucket_stores_total", "counter", "Documents stored", |b| b.op_counts().stores),
    ("stave_bucket_deletes_total", "counter", "Documents deleted", |b| b.op_counts().deletes),
    ("stave_bucket_expirations_total", "counter", "Documents found expired", |b| b.op_counts().expirations),
    ("stave_bucket_conflicts_total", "counter", "Changes refused for CAS or existence", |b| {
        b.op_counts().conflicts
    }),
];

fn bucket_families(node: &Node, out: &mut String) {
    let buckets = node.buckets();
    for (name, kind, help, figure) in BUCKET_FAMILIES {
        let mut family = Family::new(out, name, kind, help);
        for (spec, bucket) in &buckets {
            family.labelled("bucket", &spec.name, figure(bucket));
        }
    }
}
