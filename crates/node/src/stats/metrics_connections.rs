//! The metrics of clients that wanted to connect, and of HTTP connections.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::page::{Kind, Page};
use crate::node::Node;

/// When certificate and CAs end, in seconds of Unix time; the families alone if there is none.
pub(super) fn put_certificates([end_s, ca_end_s]: [Option<u64>; 2], page: &mut Page<'_>) -> fmt::Result {
    let name = "stave_tls_certificate_end_timestamp_seconds";
    let help = "When the certificate that the node shows is not valid any more, in seconds of Unix time.";
    page.head(name, Kind::Gauge, help)?;
    end_s.map_or(Ok(()), |end_s| page.sample(name, &[], end_s))?;
    let name = "stave_tls_ca_end_timestamp_seconds";
    let help = "When the first of the CAs in tls-ca is not valid any more, in seconds of Unix time.";
    page.head(name, Kind::Gauge, help)?;
    ca_end_s.map_or(Ok(()), |end_s| page.sample(name, &[], end_s))
}

pub(super) fn put(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let (accepting, limits) = (node.workers().accepting(), node.limits());
    page.one("stave_connections_limit", Gauge, "The most KV connections.", limits.connections)?;
    let help = "HTTP connections at this moment.";
    page.one("stave_http_connections", Gauge, help, accepting.http_connections.load(Relaxed))?;
    page.one("stave_http_connections_limit", Gauge, "The most HTTP connections.", limits.http.connections)?;
    let ends = [&accepting.certificate_end_s, &accepting.ca_end_s];
    let ends = ends.map(|end_s| Some(end_s.load(Relaxed)).filter(|end_s| *end_s > 0));
    if ends[0].is_some() {
        put_certificates(ends, page)?;
    }
    put_turns(node, page)?;
    put_memory(node, page)?;
    for (name, help, counter) in [
        (
            "stave_connections_refused_total",
            "KV clients that were closed because all places were taken.",
            &accepting.kv_refused,
        ),
        (
            "stave_connections_refused_by_address_total",
            "KV clients that were closed because their address had as many connections as it may have.",
            &accepting.kv_refused_by_address,
        ),
        (
            "stave_connections_crowded_out_total",
            "KV connections that had not logged in, and were closed for another client.",
            &accepting.kv_crowded_out,
        ),
        (
            "stave_http_connections_accepted_total",
            "HTTP connections ever accepted.",
            &accepting.http_accepted,
        ),
        (
            "stave_http_connections_refused_total",
            "HTTP clients that were refused because all places were taken.",
            &accepting.http_refused,
        ),
        (
            "stave_http_connections_crowded_out_total",
            "HTTP connections without a request that were closed for another client.",
            &accepting.http_crowded_out,
        ),
        (
            "stave_http_connections_late_total",
            "HTTP connections that were closed because their clients took too long.",
            &accepting.http_late,
        ),
        (
            "stave_accept_failures_total",
            "Clients that the system had no descriptor for, and other errors of accepting.",
            &accepting.failures,
        ),
    ] {
        page.one(name, Counter, help, counter.load(Relaxed))?;
    }
    Ok(())
}

/// How long connections had a worker thread, and what left it.
fn put_turns(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let totals = node.totals();
    let help = "The longest that a connection had a worker thread, in seconds.";
    page.one("stave_longest_turn_seconds", Gauge, help, totals.longest_turn_ns as f64 / 1e9)?;
    let name = "stave_longest_turn_by_command_seconds";
    page.head(
        name,
        Gauge,
        "The longest such turn that ended with a command, from a millisecond on, in seconds.",
    )?;
    for (command, ns) in crate::node::longest_turns(node) {
        page.sample(name, &[("command", command)], ns as f64 / 1e9)?;
    }
    let help = "Turns of connections at a worker thread that took 50 milliseconds or more.";
    page.one("stave_slow_turns_total", Counter, help, totals.slow_turns)?;
    let lanes = node.lanes();
    for (name, help, lane) in [
        (
            "stave_long_work_done_total",
            "Requests that took so long that they left their worker thread.",
            &lanes.long_work,
        ),
        (
            "stave_overviews_done_total",
            "Requests about all vBuckets that left their worker thread.",
            &lanes.overviews,
        ),
        (
            "stave_passwords_done_total",
            "Passwords of which keys were derived to check them.",
            &lanes.passwords,
        ),
    ] {
        page.one(name, Counter, help, lane.done())?;
    }
    let help = "Logins over HTTP that failed; kv_auth_errors has those over KV.";
    let failed = node.events().http_logins_failed.load(Relaxed);
    page.one("stave_http_logins_failed_total", Counter, help, failed)?;
    for (name, lane) in [
        ("stave_long_work_refused_total", &lanes.long_work),
        ("stave_overviews_refused_total", &lanes.overviews),
        ("stave_passwords_refused_total", &lanes.passwords),
    ] {
        let help = "Such requests that were refused with a temporary failure because too many waited.";
        page.one(name, Counter, help, lane.refused())?;
    }
    Ok(())
}

/// What connections hold.
fn put_memory(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let memory = node.connection_memory();
    let help = "Bytes that connections hold: unfinished frames and bodies, answers that are not taken.";
    page.one("stave_connection_memory_bytes", Gauge, help, memory.used_bytes())?;
    let help = "The most bytes that connections may hold.";
    page.one("stave_connection_memory_limit_bytes", Gauge, help, memory.limit_bytes())?;
    let help = "The most bytes that connections ever held.";
    page.one("stave_connection_memory_highest_bytes", Gauge, help, memory.highest_bytes())?;
    let help = "Answers refused with a temporary failure because connections held too much.";
    page.one("stave_connection_memory_refused_total", Counter, help, memory.refused())?;
    let help = "Times that a connection was not read because connections held too much.";
    page.one("stave_connection_memory_paused_total", Counter, help, memory.paused())?;
    let help = "Connections closed because they held most while memory for connections was short, and those of clients without a \
                login that held more than their share.";
    page.one("stave_connection_memory_closed_total", Counter, help, memory.closed())
}
