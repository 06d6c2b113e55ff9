//! Passwords that take long to check: their connections wait, and no worker does.

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Waker};

use base::env::{Env, SimHandles};
use protocol::{RequestParts, Status, opcode};

use super::{feed, node_in, request, simple, statuses, user, users_with_ann};
use crate::audit::record::Ends;
use crate::config::Role;
use crate::connection::{Connection, Next};
use crate::connection_memory::Held;
use crate::node::Node;
use crate::node_login::NodeSecret;
use crate::output::Output;
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
