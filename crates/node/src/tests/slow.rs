//! Operations that took long: in a turn, and behind one.

use std::task::{Context, Waker};
use std::time::Duration;

use base::env::Env;
use protocol::{RequestParts, Status, opcode};

use super::{connect_as, durable_set, feed, get, node_in, node_of, request, set, users, vb};
use crate::audit::record::Ends;
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
    assert_eq!(one.status, Some(Status::Success), "the last one's");
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

#[test]
fn a_request_that_leaves_its_turn_is_told_once() {
    let (env, handles) = Env::sim(7);
    let users = users(&env);
    let node = node_in(env, users, false);
    let mut connection = connect_as(&node, "admin", super::FULL);
    connection.turn_took(0);
    let bucket = node.bucket("default").expect("it is served");
    let after = |ms| handles.clock.advance(Duration::from_millis(ms));
    let answered = |connection: &mut crate::connection::Connection| {
        assert!(bucket.flushing().flush_all());
        connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut Output::default())
    };
    // It is answered in its turn.
    feed(&mut connection, &durable_set(b"same", 1));
    after(600);
    assert!(answered(&mut connection));
    connection.turn_took(600 * MS);
    // It is answered behind its turn; neither of both is slow.
    after(300);
    feed(&mut connection, &durable_set(b"behind", 2));
    connection.turn_took(300 * MS);
    after(400);
    assert!(answered(&mut connection));
    // It is answered in its turn, and fast then.
    after(600);
    feed(&mut connection, &durable_set(b"late", 3));
    assert!(answered(&mut connection));
    connection.turn_took(600 * MS);
    let kept = node.events().slow.of_bucket("default");
    let told = |one: &crate::slow::SlowOperation| {
        assert_eq!(one.status, if one.spent_on == SpentOn::Turn { None } else { Some(Status::Success) });
        (one.packet.opaque, one.took_ns / MS, one.spent_on, trace(&one.spans))
    };
    let told: Vec<_> = kept.iter().map(told).collect();
    let spans = |text: &str| text.to_owned();
    assert_eq!(
        told,
        [
            (1, 600, SpentOn::SyncWrite, spans("flush_queue=0:600000 flush=600000:0 answer=600000:0")),
            (
                2,
                700,
                SpentOn::SyncWrite,
                spans("turn=0:300000 flush_queue=300000:400000 flush=700000:0 answer=700000:0")
            ),
            (3, 600, SpentOn::Turn, spans("")),
        ]
    );
}

#[test]
fn a_key_is_told_with_its_collection_and_a_client_with_its_port() {
    let node = node_of(true);
    let mut connection = connect_as(&node, "admin", super::FULL);
    let remote = "[::ffff:10.1.2.3]:4000".parse().expect("an address");
    connection.set_ends(Ends { local: None, remote: Some(remote) }, false);
    feed(&mut connection, &get(b"k", 1));
    connection.turn_took(501 * MS);
    let hello = RequestParts {
        opcode: opcode::HELLO,
        key: br#"{"a":"app","i":"ann</ud>"}"#,
        value: &[0, 0x12],
        ..RequestParts::default()
    };
    feed(&mut connection, &request(&hello));
    connection.turn_took(501 * MS);
    feed(&mut connection, &get(b"\x09\x01k", 2));
    connection.turn_took(501 * MS);
    let kept = node.events().slow.of_bucket("default");
    let keys: Vec<_> = kept.iter().map(|one| (one.key_text(), one.collection.map(|id| id.0))).collect();
    let hello = r#"{\"a\":\"app\",\"i\":\"ann</ud>\"}"#;
    let expected = [("cid:0x0:k", Some(0)), (hello, None), ("cid:0x9:\\x01k", Some(9))];
    assert_eq!(keys, expected.map(|(key, collection)| (key.to_owned(), collection)));
    assert_eq!(kept[0].peer.expect("it is known").to_string(), "10.1.2.3:4000");
    assert_eq!((kept[0].cid(), kept[2].cid()), ("-/1".to_owned(), "ann</ud>/2".to_owned()));
}
