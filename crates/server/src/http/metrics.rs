//! `GET /metrics` in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::Write;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

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

fn bucket_families(node: &Node, out: &mut String) {
    let buckets = node.buckets();
    let mut quota =
        Family::new(out, "stave_bucket_quota_bytes", "gauge", "Memory that the bucket's documents may use");
    for (spec, _) in &buckets {
        quota.labelled("bucket", &spec.name, spec.quota_bytes);
    }
    let mut vbuckets = Family::new(out, "stave_bucket_vbuckets", "gauge", "vBuckets of the bucket");
    for (spec, bucket) in &buckets {
        vbuckets.labelled("bucket", &spec.name, u64::from(bucket.vbuckets()));
    }
}
