//! Operations that took long: in a turn, and behind one.

use std::task::{Context, Waker};
use std::time::Duration;

use base::env::Env;
use protocol::{RequestParts, Status, opcode};

use super::{connect_as, durable_set, feed, get, node_in, node_of, request, set, users, vb};
use crate::output::Output;
use crate::slow::SpentOn;
use crate::slow::spans::trace;

const MS: u64 = 1_000_000;

#[test]
fn a_turn_that_took_long_is_kept_with_its_last_command() {
    let node = node_of(true);
    let mut connection = connect_as(&node, "admin", super::FULL);
    connection.turn_took(MS);
    feed(&mut connection, &[set(b"k", b"v", 1), get(b"k", 2)].concat());
    connection.turn_took(499 * MS);
    assert_eq!(node.events().slow.of_bucket("default").len(), 0, "it may take so long");
    feed(&mut connection, &[set(b"k", b"v", 1), get(b"k", 2)].concat());
    connection.turn_took(501 * MS);
    connection.turn_took(900 * MS);
    let kept = node.events().slow.of_bucket("default");
    let [one] = &kept[..] else { panic!("a turn without requests is none: {kept:?}") };
    assert_eq!((one.opcode, one.requests, one.took_ns), (opcode::GET, 2, 501 * MS));
    assert_eq!(one.spent_on, SpentOn::Turn);
    assert_eq!(
        (&*one.key, one.packet.vbucket, one.packet.opaque),
        (&b"k"[..], vb(b"k"), 2),
        "the last request"
    );
    let (_, bucket) = &node.buckets()[0];
    bucket.set_param("slow_operation_threshold", "100").expect("a valid value");
    feed(&mut connection, &get(b"k", 3));
    connection.turn_took(101 * MS);
    assert_eq!(node.events().slow.of_bucket("default").len(), 2);
    let select = RequestParts { opcode: opcode::SELECT_BUCKET, key: b"default", ..RequestParts::default() };
    feed(&mut connection, &request(&select));
    connection.turn_took(11 * MS);
    assert_eq!(node.events().slow.of_bucket("default").len(), 3, "it has a limit of its own");
}

#[test]
fn a_write_that_waited_long_is_kept_with_its_key() {
    let (env, handles) = Env::sim(7);
    let users = users(&env);
    let node = node_in(env, users, false);
    let mut connection = connect_as(&node, "admin", super::FULL);
    let bucket = node.bucket("default").expect("it is served");
    let mut write = |key: &[u8], opaque, ms| {
        feed(&mut connection, &durable_set(key, opaque));
        handles.clock.advance(Duration::from_millis(ms));
        assert!(bucket.flushing().flush_all());
        let mut out = Output::default();
        assert!(connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut out));
    };
    write(b"fast", 1, 400);
    write(b"slow", 2, 600);
    let kept = node.events().slow.of_bucket("default");
    let [one] = &kept[..] else { panic!("one took longer than half a second: {kept:?}") };
    assert_eq!((one.opcode, one.packet.opaque, one.took_ns), (opcode::SET, 2, 600 * MS));
    assert_eq!(
        (&*one.key, one.packet.vbucket, one.spent_on),
        (&b"slow"[..], vb(b"slow"), SpentOn::SyncWrite)
    );
    let told = (one.status, one.packet.extras_len, one.cid());
    assert_eq!(told, (Some(Status::Success), 8, "-/2".to_owned()));
    assert_eq!(trace(&one.spans), "flush_queue=0:600000 flush=600000:0 answer=600000:0");
}
