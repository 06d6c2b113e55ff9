//! Where histories part, told from the changes themselves, and what a producer must answer (BinaryProtocol.md, DCP
//! stream request).

use protocol::dcp::StreamRequest;
use vbucket::FailoverEntry;

use crate::copy::Branch;

/// Whether two histories have the same changes up to `until`.
pub fn agree(one: &Branch, other: &Branch, until: u64) -> bool {
    let changes = |branch: &Branch| -> Vec<(u64, u64)> {
        let all = branch.iter().map(|(_, record)| (record.seqno, record.cas));
        all.filter(|(seqno, _)| *seqno <= until).collect()
    };
    changes(one) == changes(other)
}

/// To where whoever asks for this must roll back; nothing if the stream may begin.
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
