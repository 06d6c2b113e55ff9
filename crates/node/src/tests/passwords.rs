//! Passwords that take long to check: their connections wait, and no worker does.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use base::env::{Env, SimHandles};
use protocol::{RequestParts, Status, opcode};

use super::{each, feed, node_in, request, simple, statuses, user, users_with_ann};
use crate::audit::record::Ends;
use crate::config::Role;
use crate::connection::{Connection, Next};
use crate::connection_memory::Held;
use crate::node::Node;
use crate::node_login::NodeSecret;
use crate::output::Output;
use crate::sasl::client::{Exchange, MECHANISM};
use crate::user::Users;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Passwords that wait, and the one that is checked.
const MOST: usize = 257;

/// A node where a password of `ann` must be derived.
fn node() -> (Arc<Node>, SimHandles) {
    let (env, sim) = Env::sim(7);
    let users = users_with_ann(&env);
    (node_in(env, users, true), sim)
}

fn from(node: &Arc<Node>, address: IpAddr) -> Connection {
    let mut connection = super::connect(node);
    connection.set_ends(Ends { local: None, remote: Some((address, 1).into()) }, false);
    connection
}

fn plain(name: &str, password: &str) -> Vec<u8> {
    let message = format!("\0{name}\0{password}");
    let value = message.as_bytes();
    request(&RequestParts { opcode: opcode::SASL_AUTH, key: b"PLAIN", value, ..RequestParts::default() })
}

/// What a connection that waits is answered now.
fn status(connection: &mut Connection) -> Option<Status> {
    let mut out = Output::default();
    connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut out);
    statuses(&out.to_vec()).first().map(|(_, status)| *status)
}

/// A turn of a worker derives nothing: the work is counted, not the time.
#[test]
fn a_worker_derives_no_keys() {
    let (node, sim) = node();
    let lane = &node.lanes().passwords;
    let (mut right, mut wrong, mut stranger) = (from(&node, HERE), from(&node, HERE), from(&node, THERE));
    for (connection, name, password) in
        [(&mut right, "ann", "secret-1"), (&mut wrong, "ann", "secret-2"), (&mut stranger, "bob", "secret-1")]
    {
        let bytes = [plain(name, password), simple(opcode::NOOP, 9)].concat();
        let (told, next) = feed(connection, &bytes);
        assert_eq!((told.len(), next), (0, Next::Later), "{name}");
    }
    assert_eq!((lane.done(), lane.under_way()), (0, 3), "none was checked in a turn");
    assert_eq!(sim.spawn.waiting(), ["password"], "by threads that do no other long work");
    // The worker goes on with others.
    let (told, _) = feed(&mut from(&node, HERE), &plain("admin", "password"));
    assert_eq!(statuses(&told), [(0, Status::Success)]);
    assert!(sim.spawn.run_one());
    assert_eq!((lane.done(), lane.under_way()), (3, 0));
    assert_eq!(status(&mut right), Some(Status::Success));
    assert_eq!(right.session().user.as_ref().map(|user| user.name()), Some("ann"));
    for mut other in [wrong, stranger] {
        assert_eq!(status(&mut other), Some(Status::AuthError));
        assert!(!other.session().is_authenticated());
    }
    // What is known to be right costs no more.
    let (told, _) = feed(&mut from(&node, HERE), &plain("ann", "secret-1"));
    assert_eq!((statuses(&told), lane.done()), (vec![(0, Status::Success)], 3));
}

#[test]
fn one_address_does_not_keep_others_from_logging_in() {
    let (node, sim) = node();
    let mut guesses: Vec<_> = (0..=MOST).map(|_| from(&node, HERE)).collect();
    for (n, guess) in guesses.iter_mut().enumerate() {
        let (told, next) = feed(guess, &plain("ann", "guess"));
        let is_refused = statuses(&told) == [(0, Status::Etmpfail)];
        assert_eq!((is_refused, next == Next::Later), (n == MOST, n < MOST), "{n}");
    }
    let mut ann = from(&node, THERE);
    assert_eq!(feed(&mut ann, &plain("ann", "secret-1")).1, Next::Later);
    assert_eq!(status(&mut guesses[MOST - 1]), Some(Status::Etmpfail), "it gave way");
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut ann), Some(Status::Success));
    assert_eq!(node.lanes().passwords.refused(), 2);
}

#[test]
fn who_guesses_from_many_addresses_leaves_places_to_others() {
    let (node, sim) = node();
    let address = |n: usize| IpAddr::V4((0x0a01_0000 + n as u32).into());
    let guess = |n: usize| {
        let mut connection = from(&node, address(n));
        let waits = feed(&mut connection, &plain("ann", "guess")).1 == Next::Later;
        (connection, waits)
    };
    let first: Vec<_> = (0..MOST).map(guess).collect();
    assert!(first.iter().all(|(_, waits)| *waits), "nothing is known of them");
    assert!(sim.spawn.run_one());
    let again: Vec<_> = (0..MOST).map(guess).collect();
    let waiting = again.iter().filter(|(_, waits)| *waits).count();
    assert_eq!(waiting, 1 + MOST / 2, "one is checked");
    let mut ann = from(&node, THERE);
    assert_eq!(feed(&mut ann, &plain("ann", "secret-1")).1, Next::Later);
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut ann), Some(Status::Success));
}

/// A user who gets another password while the old one is checked does not log in with that.
#[test]
fn a_password_that_is_replaced_while_it_is_checked_is_wrong() {
    let (node, sim) = node();
    let mut ann = from(&node, HERE);
    assert_eq!(feed(&mut ann, &plain("ann", "secret-1")).1, Next::Later);
    node.accounts().change_configured(&node, &[user("ann", Role::ReadOnly, None)]);
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut ann), Some(Status::AuthError));
}

/// The memory of a hash is that of connections: it is reserved before it is taken, and given back.
#[test]
fn a_hash_without_memory_is_a_temporary_failure() {
    let (node, sim) = node();
    let memory = node.connection_memory();
    let held = Held::new(Arc::clone(memory));
    assert!(held.reserve(memory.limit_bytes() as usize));
    let mut ann = from(&node, HERE);
    assert_eq!(feed(&mut ann, &plain("ann", "secret-1")).1, Next::Later);
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut ann), Some(Status::Etmpfail));
    drop(held);
    assert_eq!(feed(&mut ann, &plain("ann", "secret-1")).1, Next::Later);
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut ann), Some(Status::Success));
    assert_eq!((memory.used_bytes(), memory.highest_bytes() > memory.limit_bytes()), (0, false));
}

#[test]
fn a_node_that_asks_before_this_one_has_read_its_clusters_secret_is_no_failed_login() {
    let (env, _) = Env::sim(7);
    let users = Users::new(&[user("admin", Role::Admin, None)], &*env.random);
    let node = node_in(env, users, false);
    let log_in = || {
        let (told, _) = feed(&mut from(&node, HERE), &plain("@node/ab", "guess"));
        assert_eq!(statuses(&told), [(0, Status::AuthError)]);
    };
    let is_logged = || node.events().logins.admit(node.env().clock.monotonic()).is_none();
    node.fence().close();
    log_in();
    assert!(!is_logged(), "it tries again");
    node.accounts().set_node_secrets(&node, &[NodeSecret::new(&*node.env().random)]);
    log_in();
    assert!(is_logged(), "of another cluster");
}

/// Failures of an address at a user before it has to wait.
const FREE: usize = 1_000;

/// The number of failed logins of a user from an address.
fn have_failed(node: &Node, address: IpAddr, user: &str, count: usize) {
    let now = node.env().clock.monotonic();
    for _ in 0..count {
        assert!(node.logins.admit(address, user.as_bytes(), now).is_ok());
    }
}

/// Begins a login by SCRAM: what it is answered, and the message with a wrong password that ends it.
fn scram(connection: &mut Connection, user: &str) -> (Status, Vec<u8>) {
    let first = format!("n,,n={user},r=abcdefgh");
    let parts = RequestParts { opcode: opcode::SASL_AUTH, key: b"SCRAM-SHA1", ..RequestParts::default() };
    let (told, _) = feed(connection, &request(&RequestParts { value: first.as_bytes(), ..parts }));
    let nonce = String::from_utf8_lossy(&told)
        .split_once("r=")
        .and_then(|(_, rest)| rest.split(',').next())
        .map(str::to_owned)
        .unwrap_or_default();
    let last = format!("c=biws,r={nonce},p=AAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    let parts = RequestParts { opcode: opcode::SASL_STEP, value: last.as_bytes(), ..parts };
    (statuses(&told)[0].1, request(&parts))
}

/// What a node logs in with.
fn log_in_by(connection: &mut Connection, name: &str, password: &str) -> Vec<Status> {
    let mut exchange = Exchange::new(name, "a-nonce-of-this-test");
    let parts =
        RequestParts { opcode: opcode::SASL_AUTH, key: MECHANISM.as_bytes(), ..RequestParts::default() };
    let first = exchange.first();
    let (told, _) = feed(connection, &request(&RequestParts { value: first.as_bytes(), ..parts }));
    let challenge = each(&told, |answer| String::from_utf8_lossy(answer.value).into_owned()).remove(0);
    let mut heard = vec![statuses(&told)[0].1];
    if let Ok(last) = exchange.answer(&challenge, password, &mut None) {
        let parts = RequestParts { opcode: opcode::SASL_STEP, value: last.as_bytes(), ..parts };
        heard.push(statuses(&feed(connection, &request(&parts)).0)[0].1);
    }
    heard
}

/// Strangers behind the address of another node do not keep it out of one that was just started and has seen no login; neither do
/// guesses at the nodes' secret, which keep no user out either.
#[test]
fn no_guesses_keep_another_node_out() {
    let (node, sim) = node();
    let secret = NodeSecret::new(&*node.env().random);
    node.accounts().set_node_secrets(&node, std::slice::from_ref(&secret));
    let name = secret.login_name();
    // The allowance of one name, more than once, and not one of the address.
    for _ in 0..2 * FREE {
        let guessed = log_in_by(&mut from(&node, HERE), &name, "guess");
        assert_eq!(guessed, [Status::AuthContinue, Status::AuthError]);
    }
    assert!(node.logins.is_empty(), "nothing is counted");
    (0..5).for_each(|n| have_failed(&node, HERE, &format!("user-{n}"), FREE));
    assert_eq!(scram(&mut from(&node, HERE), "admin").0, Status::Etmpfail, "the address has none left");
    let mut other = from(&node, HERE);
    let heard = log_in_by(&mut other, &name, secret.password_text());
    assert_eq!(heard, [Status::AuthContinue, Status::Success]);
    assert!(other.session().user.as_ref().is_some_and(|user| user.is_node()));
    // No password is checked as that of a node, however it comes: from an address with an allowance it is a wrong one.
    let (told, _) = feed(&mut from(&node, HERE), &plain(&name, secret.password_text()));
    assert_eq!(statuses(&told), [(0, Status::Etmpfail)]);
    let mut elsewhere = from(&node, THERE);
    assert_eq!(feed(&mut elsewhere, &plain(&name, secret.password_text())).1, Next::Later);
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut elsewhere), Some(Status::AuthError));
}

/// What was begun while one more guess was free does not all end in a guess.
#[test]
fn exchanges_under_way_share_the_guesses_that_are_free() {
    let (node, _sim) = node();
    have_failed(&node, HERE, "admin", FREE - 1);
    let begun: Vec<_> = (0..5)
        .map(|_| {
            let mut connection = from(&node, HERE);
            let (told, last) = scram(&mut connection, "admin");
            assert_eq!(told, Status::AuthContinue);
            (connection, last)
        })
        .collect();
    let ended: Vec<Status> = begun
        .into_iter()
        .map(|(mut connection, last)| statuses(&feed(&mut connection, &last).0)[0].1)
        .collect();
    assert_eq!(ended[0], Status::AuthError, "the one that was free");
    assert_eq!(ended[1..], [Status::Etmpfail; 4]);
    assert_eq!(scram(&mut from(&node, HERE), "admin").0, Status::Etmpfail, "none is begun any more");
    assert_eq!(scram(&mut from(&node, THERE), "admin").0, Status::AuthContinue);
}

/// The same of passwords that wait to be checked; what was right, and what was not looked at, does not count.
#[test]
fn passwords_under_way_share_the_guesses_that_are_free() {
    let (node, sim) = node();
    have_failed(&node, HERE, "ann", FREE - 3);
    let mut under_way: Vec<_> = (0..3).map(|_| from(&node, HERE)).collect();
    for (connection, password) in under_way.iter_mut().zip(["secret-1", "guess", "secret-1"]) {
        assert_eq!(feed(connection, &plain("ann", password)).1, Next::Later);
    }
    let refused =
        || statuses(&feed(&mut from(&node, HERE), &plain("ann", "guess")).0) == [(0, Status::Etmpfail)];
    assert!(refused(), "three are under way");
    assert!(sim.spawn.run_one());
    let ended: Vec<_> = under_way.iter_mut().map(status).collect();
    assert_eq!(ended, [Status::Success, Status::AuthError, Status::Success].map(Some));
    have_failed(&node, HERE, "ann", 2);
    // One whose hash finds no memory.
    have_failed(&node, THERE, "ann", FREE - 1);
    let held = Held::new(Arc::clone(node.connection_memory()));
    assert!(held.reserve(node.connection_memory().limit_bytes() as usize));
    let mut unchecked = from(&node, THERE);
    assert_eq!(feed(&mut unchecked, &plain("ann", "guess")).1, Next::Later);
    assert!(sim.spawn.run_one());
    assert_eq!(status(&mut unchecked), Some(Status::Etmpfail));
    have_failed(&node, THERE, "ann", 1);
}
