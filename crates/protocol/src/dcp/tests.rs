//! What is written can be read, and has the lengths that the documents say.

use base::{Cas, RevSeqno, Seqno, VbId, VbState, VbUuid};
use proptest::prelude::*;

use super::*;
use crate::{Limits, Parsed, parse};

fn message(what: What) -> Message<'static> {
    Message {
        vb: VbId(3),
        opaque: 0xdead_beef,
        stream_id: None,
        cas: Cas(9),
        datatype: 1,
        key: b"key",
        value: b"value",
        what,
    }
}

fn bare(what: What) -> Message<'static> {
    Message { key: b"", value: b"", datatype: 0, cas: Cas(0), ..message(what) }
}

fn round(message: &Message<'_>) -> usize {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    assert_eq!(bytes.len(), message.wire_bytes());
    let Parsed::Request { request, total_len } = parse(&bytes, Limits::AUTHENTICATED) else {
        panic!("a whole request: {message:?}");
    };
    assert_eq!(total_len, bytes.len());
    assert_eq!(Message::read(&request).as_ref(), Some(message));
    request.extras.len()
}

const MUTATION: Mutation =
    Mutation { by_seqno: Seqno(1), rev_seqno: RevSeqno(2), flags: 3, expiry: 4, lock_time: 5, nru: 6 };

#[test]
fn every_message_has_its_extras() {
    let deletion = Deletion { by_seqno: Seqno(1), rev_seqno: RevSeqno(2), delete_time: None };
    let timed = Deletion { delete_time: Some(7), ..deletion };
    let marker = Marker { start: Seqno(1), end: Seqno(9), flags: Marker::MEMORY, more: None };
    let more = MarkerMore { max_visible: Seqno(8), high_completed: Seqno(7), purge_and_high_prepared: None };
    let most = MarkerMore { purge_and_high_prepared: Some((Seqno(1), Seqno(2))), ..more };
    let sizes = [
        (message(What::Mutation(MUTATION)), 31),
        (message(What::Deletion(deletion)), 18),
        (message(What::Deletion(timed)), 21),
        (message(What::Expiration(timed)), 20),
        (message(What::SystemEvent(Seqno(5), 0, 1)), 13),
        (message(What::Prepare(Prepare { mutation: MUTATION, is_deletion: true, level: 3 })), 31),
        (message(What::Commit(Seqno(4), Seqno(5))), 16),
        (message(What::Abort(Seqno(4), Seqno(5))), 16),
        (bare(What::SeqnoAdvanced(Seqno(5))), 8),
        (bare(What::OutOfOrder(true)), 4),
        (bare(What::SetVbucketState(VbState::Active)), 1),
        (bare(What::End(EndReason::TooSlow)), 4),
        (bare(What::Marker(marker)), 20),
        (bare(What::Marker(Marker { more: Some(more), ..marker })), 1),
        (bare(What::Marker(Marker { more: Some(most), ..marker })), 1),
    ];
    for (message, extras) in sizes {
        assert_eq!(round(&message), extras, "{message:?}");
        assert_eq!(round(&Message { stream_id: Some(5), ..message }), extras);
    }
    let value = |more| {
        let marker = bare(What::Marker(Marker { more: Some(more), ..marker }));
        marker.wire_bytes() - crate::HEADER_BYTES - 1
    };
    assert_eq!((value(more), value(most)), (36, 52));
}

#[test]
fn requests_and_logs_are_read_as_written() {
    let request = StreamRequest {
        flags: StreamFlags(StreamFlags::TO_LATEST | StreamFlags::ACTIVE_ONLY),
        start: Seqno(1),
        end: Seqno(u64::MAX),
        uuid: VbUuid(2),
        snapshot_start: Seqno(0),
        snapshot_end: Seqno(5),
    };
    assert_eq!(StreamRequest::decode(&request.encode()), Some(request));
    assert_eq!(StreamRequest::decode(&request.encode()[1..]), None);
    let open = OpenFlags(OpenFlags::PRODUCER | OpenFlags::XATTRS);
    assert_eq!(OpenFlags::decode(&open.encode()), Some(open));
    let log = vec![(VbUuid(5), Seqno(9)), (VbUuid(4), Seqno(0))];
    assert_eq!(FailoverLog::decode(&FailoverLog::encode(log.clone())), Some(log));
    assert_eq!(FailoverLog::decode(&[0; 17]), None);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_none(
        opcode in 0x50u8..0x70,
        extras in proptest::collection::vec(any::<u8>(), 0..40),
        value in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let parts = crate::RequestParts { opcode, extras: &extras, value: &value, ..Default::default() };
        let mut bytes = Vec::new();
        prop_assert!(crate::write_request(&mut bytes, &parts));
        if let Parsed::Request { request, .. } = parse(&bytes, Limits::AUTHENTICATED)
            && let Some(message) = Message::read(&request)
        {
            let mut again = Vec::new();
            message.write(&mut again);
            let Parsed::Request { request, .. } = parse(&again, Limits::AUTHENTICATED) else {
                return Err(TestCaseError::fail("not a request"));
            };
            prop_assert_eq!(Message::read(&request), Some(message));
        }
    }
}
