//! What a producer must answer to a request for a stream (BinaryProtocol.md, DCP stream request).

use protocol::dcp::StreamRequest;
use vbucket::FailoverEntry;

/// To where a consumer that asks for this must roll back; `None` if the stream may begin.
pub fn rollback(asked: &StreamRequest, log: &[FailoverEntry], high: u64, purge: u64) -> Option<u64> {
    let (start, first, last) = (asked.start.0, asked.snapshot_start.0, asked.snapshot_end.0);
    if start == 0 {
        return None;
    }
    if start < purge {
        return Some(0);
    }
    // Newest first: the history before an entry ends where the entry begins.
    let mut shared = high;
    for entry in log {
        if entry.uuid == asked.uuid {
            let (first, last) = if start == last || start == first { (start, start) } else { (first, last) };
            return (last > shared).then_some(shared.min(first));
        }
        shared = entry.seqno.0.min(high);
    }
    Some(0)
}
