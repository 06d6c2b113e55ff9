//! Bodies of fuzz targets: whatever a client sends, the connection answers, waits or closes, and never panics.

use std::sync::Arc;
use std::task::{Context, Waker};

use protocol::{RequestParts, opcode, write_request};

use crate::connection::{Connection, Next};
use crate::counters::WorkerCounters;
use crate::node::Node;
use crate::output::Output;

/// Feeds bytes to a fresh connection, then to one that has logged in and selected a bucket.
pub fn connection(node: &Arc<Node>, login: &[u8], bytes: &[u8]) {
    feed(&mut fresh(node), bytes);
    let mut connection = fresh(node);
    feed(&mut connection, login);
    feed(&mut connection, bytes);
}

fn fresh(node: &Arc<Node>) -> Connection {
    Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()))
}

/// Gives all bytes to a connection; returns what it answered and what it waits for then.
pub fn feed(connection: &mut Connection, bytes: &[u8]) -> (Vec<u8>, Next) {
    let mut out = Output::default();
    let mut answers = Vec::new();
    let mut at = 0;
    loop {
        let received = connection.receive(&bytes[at..], &mut out);
        at += received.consumed;
        answers.extend(out.to_vec());
        out.clear();
        let goes_on = match received.next {
            Next::Turn => true,
            Next::Later => {
                let ready = connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut out);
                answers.extend(out.to_vec());
                out.clear();
                ready
            }
            Next::Bytes(_) | Next::Close(_) => false,
        };
        if !goes_on {
            return (answers, received.next);
        }
    }
}

/// What a client sends to log in with PLAIN, agree on `features` and select `bucket`.
pub fn login(name: &str, password: &str, bucket: &str, features: &[u8]) -> Vec<u8> {
    let message = format!("\0{name}\0{password}");
    let requests = [
        RequestParts { opcode: opcode::HELLO, key: b"test", value: features, ..RequestParts::default() },
        RequestParts {
            opcode: opcode::SASL_AUTH,
            key: b"PLAIN",
            value: message.as_bytes(),
            ..RequestParts::default()
        },
        RequestParts { opcode: opcode::SELECT_BUCKET, key: bucket.as_bytes(), ..RequestParts::default() },
    ];
    let mut out = Vec::new();
    for request in &requests {
        assert!(write_request(&mut out, request), "these requests are short");
    }
    out
}
