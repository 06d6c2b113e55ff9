//! Notes operations of sessions that took long.

use std::net::SocketAddr;

use base::{CollectionId, DocKey};
use protocol::feature::Feature;

use super::spans::{self, WaitStep};
use super::{SlowOperation, SpentOn, Subject, Took};
use crate::command::find;
use crate::command_rules::Key;
use crate::node::Node;
use crate::session::Session;

/// Notes an operation of a session if it took longer than its command may. Whether it did.
pub(crate) fn note_if_slow(
    node: &Node,
    session: &Session,
    worker: usize,
    took: &Took,
    subject: &Subject,
    steps: &[WaitStep],
) -> bool {
    let bucket = session.bucket.as_ref().map(|bucket| &***bucket);
    let is_slow = took.ns > node.events().slow.limits.limit_ns(took.opcode, bucket);
    if is_slow {
        note(node, session, worker, took, subject, steps);
    }
    is_slow
}

/// The key of a request as it is kept, with the collection of the document that it names.
fn key_of(session: &Session, opcode: u8, key: &[u8]) -> (Box<[u8]>, Option<CollectionId>) {
    let names_document = find(opcode).is_some_and(|row| row.key == Key::Document);
    let parsed = match session.has(Feature::Collections) {
        true => DocKey::parse(key),
        false => Some(DocKey::new(key)),
    };
    match parsed.filter(|_| names_document && !key.is_empty()) {
        Some(DocKey { collection, key }) => (key.into(), Some(collection)),
        None => (key.into(), None),
    }
}

#[cold]
pub(super) fn note(
    node: &Node,
    session: &Session,
    worker: usize,
    took: &Took,
    subject: &Subject,
    steps: &[WaitStep],
) {
    let clock = &node.env().clock;
    let replica = |place| {
        let bucket = session.bucket.as_ref()?;
        bucket.inspect(subject.packet.vbucket, |vb| vb.topology()?.replica(place).map(Into::into))?
    };
    let spans = match took.spent_on {
        SpentOn::Turn => spans::lock_spans(&engine::lock_waits_since(took.began_ns), took.began_ns),
        _ => spans::spans_behind_turn(steps, took.began_ns, took.in_turn_ns, took.ns, replica),
    };
    let (key, collection) = key_of(session, took.opcode, &subject.key);
    let with_port = |remote: SocketAddr| SocketAddr::new(remote.ip().to_canonical(), remote.port());
    let operation = SlowOperation {
        ended_unix_ns: clock.unix_ns(),
        took_ns: took.ns,
        spent_on: took.spent_on,
        opcode: took.opcode,
        requests: took.requests,
        status: took.status,
        packet: subject.packet,
        key,
        collection,
        connection_id: session.client_id.clone(),
        bucket: session.bucket.as_ref().map(|bucket| bucket.name().to_owned()),
        peer: session.ends.remote.map(with_port),
        worker,
        spans,
    };
    node.events().slow.note(operation, clock.monotonic());
}
