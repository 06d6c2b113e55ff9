//! The client against a fake server on a loopback port.

use base::env::Env;
use base::{Cas, Seqno};
use protocol::RequestParts;

use super::fake_server::{FakeServer, Habits};
use super::*;

fn open(habits: Habits) -> Result<Client, ClientError> {
    Client::open(&Env::real(), &FakeServer::start(habits).target(Dialect::Couchbase))
}

fn check_error(outcome: Result<impl std::fmt::Debug, ClientError>, expected: &str) {
    let text = outcome.expect_err("an error").to_string();
    assert!(text.contains(expected), "{text}");
}

#[test]
fn reads_writes_and_deletes() {
    let server = FakeServer::start(Habits::default());
    let mut client = Client::open(&Env::real(), &server.target(Dialect::Couchbase)).unwrap();
    assert_eq!(client.vbuckets(), 64);
    assert_eq!(client.get(b"k").unwrap(), None);
    let stored = client.set(b"k", b"value", 0).unwrap();
    assert_eq!((stored.cas, stored.token.unwrap().seqno), (Cas(42), Seqno(3)));
    let document = client.get(b"k").unwrap().unwrap();
    assert_eq!((document.value.as_slice(), document.flags), (b"value".as_slice(), 7));
    assert_eq!(server.keys(), [b"\0k".to_vec()]);
    assert!(client.delete(b"k").unwrap().is_some());
    assert!(client.delete(b"k").unwrap().is_none());
}

#[test]
fn speaks_plain_memcached() {
    let server = FakeServer::start(Habits { mechanisms: "", ..Habits::default() });
    let mut client = Client::open(&Env::real(), &server.target(Dialect::Memcached)).unwrap();
    assert_eq!(client.set(b"k", b"v", 0).unwrap().token, None);
    assert_eq!(server.keys(), [b"k".to_vec()]);
    assert_eq!(client.get(b"k").unwrap().unwrap().value, b"v");
}

#[test]
fn large_values_come_through() {
    let mut client = open(Habits::default()).unwrap();
    let value: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    client.set(b"k", &value, 0).unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap().value, value);
}

#[test]
fn stats_end_with_an_empty_key() {
    let mut client = open(Habits::default()).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(client.stats("").unwrap(), [pair("curr_items", "2"), pair("version", "fake")]);
    check_error(client.stats("nonsense"), "KEY_ENOENT (The document does not exist): no such group");
}

#[test]
fn requests_of_the_server_are_passed_over() {
    let mut client = open(Habits { chatty: true, ..Habits::default() }).unwrap();
    client.set(b"k", b"v", 0).unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap().value, b"v");
}

#[test]
fn logs_in_by_what_the_server_offers() {
    for mechanisms in ["PLAIN", "SCRAM-SHA512", "SCRAM-SHA256 SCRAM-SHA512 PLAIN"] {
        open(Habits { mechanisms, ..Habits::default() }).unwrap();
    }
    check_error(open(Habits { mechanisms: "OAUTHBEARER", ..Habits::default() }), "`OAUTHBEARER`");
    let other = Habits { mechanisms: "PLAIN", password: "other", ..Habits::default() };
    check_error(open(other), "refused user `Administrator`");
    check_error(open(Habits { password: "other", ..Habits::default() }), "did not prove");
}

#[test]
fn a_node_of_the_map_is_not_sent_the_password_as_it_is() {
    let open_at = |mechanisms, is_of_map| {
        let server = FakeServer::start(Habits { mechanisms, ..Habits::default() });
        let known = server.target(Dialect::Couchbase);
        let named = Target { addr: "127.0.0.1:1".into(), ..server.target(Dialect::Couchbase) };
        let target = if is_of_map { named.at(known.addr) } else { known.at(known.addr.clone()) };
        Client::open(&Env::real(), &target)
    };
    check_error(open_at("PLAIN", true), "it was not sent");
    open_at("PLAIN", false).unwrap();
    open_at("SCRAM-SHA512 PLAIN", true).unwrap();
}

#[test]
fn a_wrong_password_is_refused() {
    let mut target = FakeServer::start(Habits::default()).target(Dialect::Couchbase);
    target.password = String::from("wrong").into();
    let node = format!("{} refused user `Administrator`", target.addr);
    check_error(Client::open(&Env::real(), &target), &node);
}

#[test]
fn an_unknown_bucket_is_named() {
    let mut target = FakeServer::start(Habits::default()).target(Dialect::Couchbase);
    target.bucket = "beers".into();
    check_error(Client::open(&Env::real(), &target), "no bucket `beers`");
}

#[test]
fn a_closed_connection_is_an_error() {
    check_error(open(Habits { close_after: Some(2), ..Habits::default() }), "closed the connection");
}

#[test]
fn a_key_that_is_too_long_is_not_sent() {
    let mut client = open(Habits::default()).unwrap();
    check_error(client.get(&[b'k'; 251]), "at most 250 bytes");
    let parts = RequestParts { key: &[b'k'; 70_000], ..RequestParts::default() };
    check_error(client.request("any", parts), "does not fit");
    assert_eq!(client.get(b"k").unwrap(), None);
}

#[test]
fn nobody_listening_is_explained() {
    // Port 1 on loopback is reserved and nobody's.
    let target = Target { addr: "127.0.0.1:1".into(), ..Target::default() };
    check_error(Client::open(&Env::real(), &target), "is the server running?");
}

#[test]
fn secrets_stay_out_of_debug_output() {
    let target = Target { password: String::from("geheim").into(), ..Target::default() };
    assert!(!format!("{target:?}").contains("geheim"));
}
