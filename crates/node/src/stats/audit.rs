//! Group `audit`: what the audit log has come to.

use super::Sheet;
use super::inquiry::Refused;
use crate::node::Node;

/// The group `audit`.
pub fn audit(node: &Node, _: &[&[u8]], sheet: &mut Sheet) -> Result<(), Refused> {
    let figures = node.audit.figures();
    sheet.put("enabled", figures.is_on);
    sheet.put("dropped_events", figures.dropped);
    sheet.put("written_events", figures.written);
    sheet.put("queued_events", figures.waiting);
    sheet.put("queued_bytes", figures.waiting_bytes);
    sheet.put("refused_requests", figures.refused);
    sheet.put("failures", figures.failures);
    sheet.put("is_failing", figures.is_failing);
    Ok(())
}
