//! Guessing passwords is slow, over both protocols, and holds up no other client.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

#[path = "support/log.rs"]
mod log;
mod support;

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use log::Log;
use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, http, http_as, start_in, world};

/// Failures that are free, and how many come back during the test at most.
const FREE: usize = 1_000;
const COME_BACK: usize = 60;

fn log_in(client: &mut Client, password: &str) -> Status {
    log_in_as(client, "Administrator", password)
}

fn log_in_as(client: &mut Client, user: &str, password: &str) -> Status {
    let message = format!("\0{user}\0{password}");
    let parts = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"PLAIN",
        value: message.as_bytes(),
        ..RequestParts::default()
    };
    client.request(&parts).status
}

/// A client that comes from an address of this machine, and has said nothing.
fn stranger_from(address: [u8; 4], server: &Server) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((address, 0)).into()).expect("an address of this machine");
    socket.connect(&server.kv_addr().into()).expect("the server listens");
    Client::over(socket.into())
}

fn node(folder: &std::path::Path) -> (Server, std::sync::Arc<support::Moved>) {
    let (env, clock) = world();
    let user = "[[user]]\nname = \"ada\"\npassword = \"password\"\nrole = \"admin\"";
    (start_in(env, folder, user), clock)
}

#[test]
fn after_some_failures_a_right_password_has_to_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, clock) = node(folder.path());
    let mut client = Client::connect(&server, "default", &[]);
    for _ in 0..FREE {
        assert_eq!(log_in(&mut client, "guess"), Status::AuthError);
    }
    let mut more = (0..COME_BACK).map(|_| log_in(&mut client, "guess"));
    assert!(more.any(|status| status == Status::Etmpfail), "guesses go on");
    drop(more);
    // The user has logged in from here before: some right passwords pass, at a bounded rate.
    let refused = (0..COME_BACK).map(|_| http(&server, "GET", "/pools", "")).find(|(code, _)| *code != 200);
    let (code, told) = refused.expect("not all of them pass");
    assert!(code == 429 && told.contains("try again in"), "{code} {told}");
    // Another user of the same address is not held up.
    assert_eq!(http_as("ada", server.http_addr(), "GET", "/pools", "").0, 200);
    clock.advance(3);
    assert_eq!(log_in(&mut client, "password"), Status::Success);
    clock.advance(60);
    for _ in 0..FREE {
        assert_eq!(http_as("nobody", server.http_addr(), "GET", "/pools", "").0, 401);
    }
    let mut more = (0..COME_BACK).map(|_| http_as("nobody", server.http_addr(), "GET", "/pools", "").0);
    assert!(more.any(|code| code == 429), "guesses go on");
    assert_eq!(http(&server, "GET", "/pools", "").0, 200);
    server.stop().expect("a clean stop");
}

#[test]
fn guesses_from_one_address_hold_up_no_other_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, _clock) = node(folder.path());
    let mut guesser = stranger_from([127, 0, 0, 2], &server);
    let mut guesses = (0..FREE + COME_BACK).map(|_| log_in(&mut guesser, "guess"));
    assert!(guesses.any(|status| status == Status::Etmpfail), "guesses go on");
    drop(guesses);
    for _ in 0..COME_BACK {
        let mut client = stranger_from([127, 0, 0, 1], &server);
        assert_eq!(log_in(&mut client, "password"), Status::Success);
        assert_eq!(http(&server, "GET", "/pools", "").0, 200);
    }
    server.stop().expect("a clean stop");
}

/// Requests whose passwords are checked at the same time share the guesses that are free.
#[test]
fn http_logins_under_way_share_the_guesses_that_are_free() {
    const LEFT: usize = 5;
    const AT_ONCE: usize = 20;
    let folder = tempfile::tempdir().expect("a folder");
    let (server, _clock) = node(folder.path());
    let (code, told) =
        http(&server, "PUT", "/settings/rbac/users/local/ann", "password=secret-1&roles=ro_admin");
    assert_eq!(code, 200, "{told}");
    let begun = Instant::now();
    let (logins, now) = (&server.node().logins, server.node().env().clock.monotonic());
    for _ in 0..FREE - LEFT {
        assert!(logins.admit([127, 0, 0, 1].into(), b"ann", now).is_ok());
    }
    // The password of `http_as` is another one.
    let addr = server.http_addr();
    let codes: Vec<u16> = thread::scope(|scope| {
        let all: Vec<_> =
            (0..AT_ONCE).map(|_| scope.spawn(move || http_as("ann", addr, "GET", "/pools", "").0)).collect();
        all.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    let checked = codes.iter().filter(|code| **code == 401).count();
    // One comes back in two seconds.
    let come_back = begun.elapsed().as_secs() as usize / 2 + 1;
    assert!((1..=LEFT + come_back).contains(&checked), "{codes:?}");
    assert!(codes.iter().all(|code| [401, 429].contains(code)), "{codes:?}");
    server.stop().expect("a clean stop");
}

#[test]
fn the_log_says_which_node_refused_which_user() {
    let log = Log::listen();
    let folder = tempfile::tempdir().expect("a folder");
    let (server, clock) = node(folder.path());
    let mut client = stranger_from([127, 0, 0, 3], &server);
    assert_eq!(log_in_as(&mut client, "eve", "guess"), Status::AuthError);
    let kv = format!("node=\"{}\"", server.kv_addr());
    let parts = ["a login failed", "user=<ud>eve</ud>", "peer=<ud>127.0.0.3:", &kv, "reference="];
    assert!(log.has_line(&parts), "{parts:?}");
    // Seldom enough for another line.
    clock.advance(60);
    assert_eq!(http_as("mallory", server.http_addr(), "GET", "/pools", "").0, 401);
    let http = format!("node=\"{}\"", server.http_addr());
    let parts = ["a login failed", "user=<ud>mallory</ud>", "status=\"401\"", &http];
    assert!(log.has_line(&parts), "{parts:?}");
    server.stop().expect("a clean stop");
}

#[test]
fn the_log_says_that_a_mechanism_is_switched_off() {
    let log = Log::listen();
    let folder = tempfile::tempdir().expect("a folder");
    let (env, _clock) = world();
    let server = start_in(env, folder.path(), "sasl-mechanisms = [\"SCRAM-SHA512\"]");
    let mut client = stranger_from([127, 0, 0, 4], &server);
    assert_eq!(log_in_as(&mut client, "trudy", "password"), Status::AuthError);
    let why = "reason=\"the mechanism is switched off on connections without TLS\"";
    let parts = ["a login failed", "user=<ud>trudy</ud>", why, "mechanism=\"PLAIN\"", "reference="];
    assert!(log.has_line(&parts), "{parts:?}");
    server.stop().expect("a clean stop");
}
