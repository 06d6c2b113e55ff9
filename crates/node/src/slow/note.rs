//! Notes operations of sessions that took long.

use super::spans::{self, WaitStep};
use super::{SlowOperation, SpentOn, Subject, Took};
use crate::node::Node;
use crate::session::Session;

/// Notes an operation of a session if it took longer than its command may.
pub(crate) fn note_if_slow(
    node: &Node,
    session: &Session,
    worker: usize,
    took: &Took,
    subject: &Subject,
    steps: &[WaitStep],
) {
    let bucket = session.bucket.as_ref().map(|bucket| &***bucket);
    if took.ns > node.events().slow.limits.limit_ns(took.opcode, bucket) {
        note(node, session, worker, took, subject, steps);
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
        _ => spans::spans(steps, took.began_ns, took.began_ns + took.ns, replica),
    };
    let operation = SlowOperation {
        ended_unix_ns: clock.unix_ns(),
        took_ns: took.ns,
        spent_on: took.spent_on,
        opcode: took.opcode,
        requests: took.requests,
        status: took.status,
        packet: subject.packet,
        key: (&*subject.key).into(),
        connection_id: session.client_id.clone(),
        bucket: session.bucket.as_ref().map(|bucket| bucket.name().to_owned()),
        peer: session.peer,
        worker,
        spans,
    };
    node.events().slow.note(operation, clock.monotonic());
}
