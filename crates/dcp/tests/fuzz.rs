//! Replays the fuzz body of messages of changes with fixed seeds.

use protocol::HEADER_BYTES;

/// The requests among the frames that a producer sends; its answers are left out.
fn messages(mut bytes: &[u8]) -> Vec<u8> {
    let mut messages = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let (frame, rest) = bytes.split_at(HEADER_BYTES + body as usize);
        if header[0] == 0x80 {
            messages.extend_from_slice(frame);
        }
        bytes = rest;
    }
    messages
}

#[test]
fn messages_are_read_again_as_they_are_written() {
    let seeds: Vec<Vec<u8>> = dcp::fuzz::consumer_seeds().iter().map(|seed| messages(seed)).collect();
    assert_eq!(protocol::fuzz::changes(&seeds[0]), 40, "the seeds are sound");
    base::fuzz::replay(1, 10_000, &seeds, |bytes| _ = protocol::fuzz::changes(bytes));
}
