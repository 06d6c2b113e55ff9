//! A client that reads late: what it asked for is sent to its end although nothing else happens on the connection.

mod support;

use base::{Seqno, VbId};
use protocol::dcp::{OpenFlags, StreamFlags, StreamRequest};
use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, start};

const DOCUMENTS: u64 = 160;
/// All documents together are more than a socket takes unread, and a step of a stream is several of them: for some number
/// of documents the socket takes only a part of the last step.
const DOCUMENT_BYTES: usize = 48 << 10;

fn open(client: &mut Client, name: &str) {
    let extras = OpenFlags(OpenFlags::PRODUCER).encode();
    let parts = RequestParts {
        opcode: opcode::DCP_OPEN,
        key: name.as_bytes(),
        extras: &extras,
        ..RequestParts::default()
    };
    assert_eq!(client.request(&parts).status, Status::Success);
}

/// Asks for what vBucket 0 has, and reads nothing but the answer.
fn stream(client: &mut Client, changes: u64) {
    let request = StreamRequest {
        flags: StreamFlags(0),
        start: Seqno(0),
        end: Seqno(changes),
        uuid: base::VbUuid(0),
        snapshot_start: Seqno(0),
        snapshot_end: Seqno(0),
    };
    let extras = request.encode();
    let parts = RequestParts {
        opcode: opcode::DCP_STREAM_REQ,
        vbucket: VbId(0),
        extras: &extras,
        ..RequestParts::default()
    };
    assert_eq!(client.request(&parts).status, Status::Success);
}

/// Waits until the server has made the whole stream, or does no more without the client: others are answered many times
/// meanwhile.
fn wait_until_made(server: &Server, name: &str, other: &mut Client) {
    let mut before = 0;
    let mut answers = 0;
    while answers < 100 {
        let all = server.node().streams().all();
        let handle = all.iter().find(|handle| handle.name() == name).expect("it is open");
        if handle.sent_bytes() > 0 && handle.streams() == 0 {
            return;
        }
        answers = if handle.sent_bytes() > before { 0 } else { answers + 1 };
        before = handle.sent_bytes();
        other.get(b"nothing").expect("an answer");
    }
}

#[test]
fn the_end_of_a_stream_arrives_however_late_the_client_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let mut writer = Client::connect(&server, "default", &[]);
    let value: Vec<u8> =
        (0..DOCUMENT_BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let keys = (0..).map(|n| format!("k{n}")).filter(|key| support::vb(key.as_bytes()) == VbId(0));
    for (changes, key) in (1..=DOCUMENTS).zip(keys) {
        assert_eq!(writer.set(key.as_bytes(), &value), Some(Status::Success));
        let name = format!("up to {changes}");
        let mut client = Client::connect(&server, "default", &[]);
        open(&mut client, &name);
        stream(&mut client, changes);
        wait_until_made(&server, &name, &mut writer);
        let mut seen = 0;
        loop {
            let message = client.receive();
            match message.opcode {
                opcode::DCP_MUTATION => seen += 1,
                opcode::DCP_STREAM_END => break,
                _ => {}
            }
        }
        assert_eq!(seen, changes);
    }
}
