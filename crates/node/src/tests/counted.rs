//! Requests that are counted by what became of them.

use std::collections::BTreeMap;

use base::VbState;

use super::*;
use crate::roles::Rights;
use crate::stats::{Question, produce};
use crate::tally::NAMES;

/// The main group of the bucket `default`.
fn stats(node: &Arc<Node>) -> BTreeMap<String, String> {
    let bucket = node.bucket("default").expect("it is served");
    let rights = Rights { whole: Privileges::all(), node: Privileges::all(), narrow: None };
    let sheet = produce(Question { node, bucket: Some(&bucket), rights, now: bucket.now() }, b"");
    let sheet = sheet.expect("there is such a group");
    sheet.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn counter(expiry: u32) -> [u8; 20] {
    let mut extras = [0; 20];
    extras[7] = 1;
    extras[16..].copy_from_slice(&expiry.to_be_bytes());
    extras
}

fn with_meta(rev: u8) -> [u8; 24] {
    let mut extras = [0; 24];
    (extras[15], extras[23]) = (rev, rev);
    extras
}

fn return_meta(mode: u8) -> [u8; 12] {
    let mut extras = [0; 12];
    extras[3] = mode;
    extras
}

#[test]
fn each_outcome_has_its_counter() {
    let node = node();
    let mut client = connect_as(&node, "admin", FULL);
    let mut send_whole = |parts: RequestParts<'_>| {
        let parts = RequestParts { vbucket: vb(parts.key), ..parts };
        let (answers, _) = feed(&mut client, &request(&parts));
        let mut cas = Cas::ANY;
        each(&answers, |answer| cas = answer.cas);
        cas.0
    };
    let before = stats(&node);
    for (opcode, value) in [(opcode::SUBDOC_GET, &b"n"[..]), (opcode::SUBDOC_DICT_UPSERT, b"n1")] {
        let (key, extras) = (&b"absent"[..], &[0, 1, 0][..]);
        send_whole(RequestParts { opcode, key, extras, value, ..RequestParts::default() });
    }
    let mut send = |opcode, key: &'static [u8], extras: &[u8], cas: u64| {
        send_whole(RequestParts { opcode, key, extras, cas: Cas(cas), ..RequestParts::default() })
    };
    let (create, leave) = (counter(0), counter(u32::MAX));
    for (key, extras) in [(&b"up"[..], create), (b"up", create), (b"up", leave), (b"none", leave)] {
        send(opcode::INCREMENT, key, &extras, 0);
    }
    send(opcode::DECREMENT, b"up", &leave, 0);
    send(opcode::DECREMENTQ, b"not there", &leave, 0);
    let cas = send(opcode::SET, b"k", &[0; 8], 0);
    send(opcode::SET, b"k", &[0; 8], cas);
    send(opcode::SET, b"k", &[0; 8], cas);
    send(opcode::REPLACE, b"absent", &[0; 8], 7);
    send(opcode::GET_LOCKED, b"k", &[], 0);
    send(opcode::SET, b"k", &[0; 8], 0);
    send(opcode::GET_LOCKED, b"k", &[], 0);
    send(opcode::GET_META, b"absent", &[], 0);
    (0..2).for_each(|_| _ = send(opcode::SET_WITH_META, b"m", &with_meta(5), 0));
    (0..2).for_each(|_| _ = send(opcode::DELETE_WITH_META, b"m", &with_meta(9), 0));
    send(opcode::RETURN_META, b"r", &return_meta(1), 0);
    send(opcode::RETURN_META, b"r", &return_meta(3), 0);
    (0..2).for_each(|_| _ = send(opcode::DELETE, b"absent", &[], 0));
    let bucket = node.bucket("default").expect("it is served");
    bucket.roles().set_vbucket_state(vb(b"k"), VbState::Dead, None).expect("any state may come");
    send(opcode::GET, b"k", &[], 0);
    let expected = [
        ("incr_hits", 3),
        ("incr_misses", 1),
        ("decr_hits", 1),
        ("decr_misses", 1),
        ("cas_hits", 1),
        ("cas_misses", 1),
        ("cas_badval", 1),
        ("lock_errors", 2),
        ("ep_num_not_my_vbuckets", 1),
        ("ep_num_ops_get_meta", 1),
        ("ep_num_ops_set_meta", 1),
        ("ep_num_ops_set_meta_res_fail", 1),
        ("ep_num_ops_del_meta", 1),
        ("ep_num_ops_del_meta_res_fail", 1),
        ("ep_num_ops_set_ret_meta", 1),
        ("ep_num_ops_del_ret_meta", 1),
        ("delete_misses", 2),
        ("cmd_subdoc_lookup", 1),
        ("cmd_subdoc_mutation", 1),
    ];
    let after = stats(&node);
    for (name, count) in expected {
        assert_eq!((&*before[name], &*after[name]), ("0", &*count.to_string()), "{name}");
    }
    assert_eq!(expected.map(|(name, _)| name), NAMES.map(|(_, name)| name), "all are tried");
}

/// Counts of connections are those of the node's own workers.
fn node_with_a_worker() -> Arc<Node> {
    let (env, _) = Env::sim(7);
    let spec = BucketSpec::parse("default").expect("a valid name");
    let config = BucketConfig { vbuckets: 4, ..BucketConfig::new("default", "/data/default".into()) };
    let bucket = Bucket::open(config, env.clone(), Arc::new(kvstore::Memory::default()));
    let served = vec![Served { spec, bucket: Arc::new(bucket.expect("an empty bucket opens")) }];
    let users = Users::new(&[user("admin", Role::Admin, None)], &*env.random);
    let address = NodeAddress { host: None, kv_port: 11210, http_port: 8091, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 3 };
    let workers = vec![Arc::new(WorkerCounters::default())];
    Arc::new(Node::new(env, users, served, address, version, ConnectionLimits::default(), workers))
}

#[test]
fn failed_logins_are_counted() {
    let node = node_with_a_worker();
    let worker = Arc::clone(&node.workers().all()[0]);
    let mut stranger = Connection::new(Arc::clone(&node), worker);
    let bad = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"PLAIN",
        value: b"\0admin\0x",
        ..RequestParts::default()
    };
    let (answers, _) = feed(&mut stranger, &request(&bad));
    assert_eq!(statuses(&answers), [(0, Status::AuthError)]);
    node.workers().accepting().kv_refused.fetch_add(2, std::sync::atomic::Ordering::Relaxed);
    node.workers().accepting().kv_refused_by_address.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
    let stats = stats(&node);
    assert_eq!((&*stats["auth_errors"], &*stats["rejected_conns"]), ("1", "5"));
}

/// The first turn of a worker is measured: with it a client says hello and logs in, without a bucket, and selects one.
#[test]
fn times_are_those_of_the_bucket_that_is_named() {
    let node = node();
    let mut client = connect_as(&node, "admin", FULL);
    let mut total = |of: u8, bucket: &'static [u8]| {
        let parts = RequestParts { opcode: opcode::GET_CMD_TIMER, key: bucket, ..RequestParts::default() };
        let (answers, _) = feed(&mut client, &request(&RequestParts { extras: &[of], ..parts }));
        let times = each(&answers, |answer| serde_json::from_slice::<serde_json::Value>(answer.value).ok());
        times[0].as_ref().and_then(|times| times["total"].as_u64())
    };
    for (of, bucket, expected) in [
        (opcode::SELECT_BUCKET, &b"default"[..], Some(1)),
        (opcode::SELECT_BUCKET, b"", Some(1)),
        (opcode::SELECT_BUCKET, b"other", Some(0)),
        (opcode::SELECT_BUCKET, b"@no bucket@", Some(0)),
        (opcode::SELECT_BUCKET, b"/all/", Some(1)),
        (opcode::HELLO, b"default", Some(0)),
        (opcode::HELLO, b"@no bucket@", Some(1)),
        (opcode::HELLO, b"/all/", Some(1)),
        (opcode::HELLO, b"no such bucket", None),
    ] {
        assert_eq!(total(of, bucket), expected, "{of:#x} of {}", bucket.escape_ascii());
    }
}
