//! Which answers of a consumer leave its connection as it is.
//!
//! Consumers answer noops, and markers and roles of a handover; an answer to another message says how it went.

use protocol::Status;
use protocol::opcode::*;

/// Messages and requests of a stream's connection that may be answered.
const ANSWERED: &[u8] = &[
    GET_ERROR_MAP,
    DCP_OPEN,
    DCP_ADD_STREAM,
    DCP_CLOSE_STREAM,
    DCP_STREAM_REQ,
    DCP_GET_FAILOVER_LOG,
    DCP_STREAM_END,
    DCP_MUTATION,
    DCP_DELETION,
    DCP_EXPIRATION,
    DCP_BUFFER_ACK,
    DCP_CONTROL,
    DCP_SYSTEM_EVENT,
    DCP_PREPARE,
    DCP_COMMIT,
    DCP_ABORT,
];

/// Whether the connection goes on after an answer that nobody waits for. What is wrong with one stream alone is the
/// consumer's business; `is_exact` if it has statuses of its own for that.
pub(super) fn is_fine(opcode: u8, status: u16, is_exact: bool) -> bool {
    let is_completion = matches!(opcode, DCP_COMMIT | DCP_ABORT);
    match Status::from_code(status) {
        // A noop that was not sent is answered.
        Some(Status::Success) => ANSWERED.contains(&opcode),
        Some(Status::NotMyVbucket | Status::StreamNotFound | Status::OpaqueNoMatch) => {
            ANSWERED.contains(&opcode) || opcode == DCP_NOOP
        }
        Some(Status::KeyEnoent) if opcode == DCP_STREAM_END => true,
        Some(Status::KeyEexists) => !is_exact && ANSWERED.contains(&opcode),
        Some(Status::KeyEnoent) => !is_exact && !is_completion && ANSWERED.contains(&opcode),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_show_a_copy_that_is_wrong_end_the_connection() {
        let fine = |opcode, status: Status| is_fine(opcode, status.code(), false);
        for status in [Status::Success, Status::NotMyVbucket, Status::StreamNotFound, Status::KeyEexists] {
            assert!(fine(DCP_MUTATION, status), "{status:?}");
        }
        for status in [Status::Einval, Status::Enomem, Status::Etmpfail, Status::Erange] {
            assert!(!fine(DCP_MUTATION, status), "{status:?}");
        }
        assert!(!is_fine(DCP_MUTATION, 0xeeee, false));
        assert!(fine(DCP_MUTATION, Status::KeyEnoent) && !fine(DCP_COMMIT, Status::KeyEnoent));
        assert!(fine(DCP_STREAM_END, Status::KeyEnoent) && !is_fine(DCP_MUTATION, 1, true));
        assert!(is_fine(DCP_STREAM_END, 1, true) && !is_fine(DCP_MUTATION, 2, true));
        assert!(!fine(DCP_NOOP, Status::Success), "one that was not sent");
        assert!(!fine(GET, Status::Success));
    }
}
