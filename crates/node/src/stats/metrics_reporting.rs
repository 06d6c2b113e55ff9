//! The metrics of what leaves the node about itself: the audit log, and traces of slow operations.

use std::fmt;

use super::page::{Kind, Page};
use crate::node::Node;

pub(super) fn put(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    use Kind::{Counter, Gauge};
    let figures = node.audit.figures();
    let help = "Whether events are recorded in the audit log.";
    page.one("stave_audit_enabled", Gauge, help, u8::from(figures.is_on))?;
    let help = "Whether the audit log could not be written the last time.";
    page.one("stave_audit_failing", Gauge, help, u8::from(figures.is_failing))?;
    let help = "Records that wait to be written to the audit log.";
    page.one("stave_audit_queued_events", Gauge, help, figures.waiting)?;
    for (name, help, count) in [
        ("stave_audit_written_events_total", "Records written to the audit log.", figures.written),
        (
            "stave_audit_dropped_events_total",
            "Records left out of the audit log because it could not be written fast enough, or at all.",
            figures.dropped,
        ),
        (
            "stave_audit_refused_requests_total",
            "Requests that were refused because they could not be recorded in the audit log.",
            figures.refused,
        ),
        (
            "stave_audit_failures_total",
            "Writes, syncs, rotations and removals of audit files that failed.",
            figures.failures,
        ),
    ] {
        page.one(name, Counter, help, count)?;
    }
    put_traces(node, page)
}

fn put_traces(node: &Node, page: &mut Page<'_>) -> fmt::Result {
    let traces = node.events().slow.traces.counts();
    let help = "Slow operations that a collector of traces has taken.";
    page.one("stave_traces_sent_total", Kind::Counter, help, traces.sent)?;
    let help = "Slow operations that no collector of traces has taken, or that came too fast for it.";
    page.one("stave_traces_dropped_total", Kind::Counter, help, traces.dropped)
}
