//! Tells a collector of traces about slow operations: OTLP over HTTP, in JSON (OpenTelemetry Protocol 1.x). Each operation is
//! a trace: a span for the request, and below it one for each part of its time.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use ::node::Node;
use ::node::config::TraceEndpoint;
use ::node::slow::SlowOperation;
use base::env::{Env, Random};
use base::rate_limit::RateLimit;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use protocol::opcode;
use rustls::ClientConfig;
use tokio::sync::oneshot;

use crate::http_client::{self, Ask};
use crate::tls::{TlsError, with_ca};

/// Between two requests to the collector.
const EVERY: Duration = Duration::from_secs(2);
/// The collector has so long to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// More than this is no answer of a collector.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Sends what is slow as long as this is polled; never ends. Without a collector it does nothing.
pub(crate) async fn run(node: Arc<Node>, endpoint: Option<TraceEndpoint>) {
    let Some(endpoint) = endpoint else { return std::future::pending().await };
    let told = RateLimit::default();
    let mut next = tokio::time::interval(EVERY);
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    node.events().slow.traces.enable();
    loop {
        next.tick().await;
        let operations = node.events().slow.traces.take();
        if operations.is_empty() {
            continue;
        }
        let sent = send(&node, &endpoint, &operations).await;
        node.events().slow.traces.count(operations.len(), sent.is_ok());
        if let Err(error) = sent
            && let Some(left_out) = told.admit(node.env().clock.monotonic())
        {
            tracing::warn!(
                event = "traces_not_taken",
                endpoint = endpoint.authority,
                operations = operations.len(),
                %error,
                left_out,
                "the collector of traces did not take slow operations; they are dropped"
            );
        }
    }
}

async fn send(node: &Node, endpoint: &TraceEndpoint, operations: &[SlowOperation]) -> std::io::Result<()> {
    let body = serde_json::to_string(&request(node, operations))?;
    let (env, endpoint) = (node.env().clone(), endpoint.clone());
    let (done, outcome) = oneshot::channel();
    // The node may have stopped.
    let job = move || drop(done.send(post(&env, &endpoint, &body)));
    node.env().spawn.spawn("traces", Box::new(job))?;
    outcome.await.map_err(std::io::Error::other)?
}

/// What the collector is spoken to with: nothing if that is in clear. The file is read each time, so that another one may
/// take its place.
///
/// # Errors
///
/// The file of CAs cannot be used.
pub(crate) fn tls_of(env: &Env, endpoint: &TraceEndpoint) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    endpoint.ca.as_deref().map(|ca| with_ca(env, ca)).transpose()
}

fn post(env: &Env, endpoint: &TraceEndpoint, body: &str) -> std::io::Result<()> {
    let tls = tls_of(env, endpoint).map_err(std::io::Error::other)?;
    let TraceEndpoint { authority, path, .. } = endpoint;
    let addr = authority.to_socket_addrs()?.next();
    let ask = Ask {
        endpoint: authority,
        addr: addr.ok_or_else(|| std::io::Error::other("the name has no address"))?,
        tls: tls.as_ref(),
        path,
        token: None,
        body: Some(body),
        most_bytes: MOST_ANSWER_BYTES,
        no_word: "it ended the connection without a word",
    };
    match http_client::ask(env, ask, ANSWERED_WITHIN)?.status {
        200..=299 => Ok(()),
        status => Err(std::io::Error::other(format!("it answers with status {status}"))),
    }
}

fn request(node: &Node, operations: &[SlowOperation]) -> ExportTraceServiceRequest {
    let random = &*node.env().random;
    let resource = Resource {
        attributes: vec![
            text("service.name", "stave"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", node.uuid()),
        ],
        ..Resource::default()
    };
    let scope =
        InstrumentationScope { name: "slow operations".to_owned(), ..InstrumentationScope::default() };
    let spans = operations.iter().flat_map(|operation| spans(operation, random)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

/// The spans of an operation, the request's own first. Neither key nor value is told, and no client.
fn spans(operation: &SlowOperation, random: &dyn Random) -> Vec<Span> {
    let began_ns = operation.ended_unix_ns.saturating_sub(operation.took_ns);
    let id =
        |parts: usize| (0..parts).flat_map(|_| (random.next_u64() | 1).to_be_bytes()).collect::<Vec<u8>>();
    let (trace_id, root_id) = (id(2), id(1));
    let mut attributes = vec![
        text("db.system.name", "couchbase"),
        text("stave.spent_on", operation.spent_on.name()),
        number("stave.requests", operation.requests),
        number("stave.opaque", operation.packet.opaque.into()),
        number("stave.vbucket", operation.packet.vbucket.0.into()),
        number("stave.worker", operation.worker as u64),
    ];
    attributes.extend(operation.bucket.as_deref().map(|bucket| text("db.namespace", bucket)));
    let root = Span {
        trace_id: trace_id.clone(),
        span_id: root_id.clone(),
        name: opcode::name(operation.opcode).unwrap_or("unknown").to_owned(),
        kind: SpanKind::Server as i32,
        start_time_unix_nano: began_ns,
        end_time_unix_nano: operation.ended_unix_ns,
        attributes,
        ..Span::default()
    };
    let part = |part: &::node::slow::spans::Span| Span {
        trace_id: trace_id.clone(),
        span_id: id(1),
        parent_span_id: root_id.clone(),
        name: part.name.to_owned(),
        kind: SpanKind::Internal as i32,
        start_time_unix_nano: began_ns + part.from_ns,
        end_time_unix_nano: began_ns + part.from_ns + part.ns,
        attributes: part.node.iter().map(|node| text("stave.node", node)).collect(),
        ..Span::default()
    };
    std::iter::once(root).chain(operation.spans.iter().map(part)).collect()
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
