//! Guessing passwords is slow, over both protocols, and holds up no other client.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use protocol::{RequestParts, Status, opcode};
use server::Server;
use support::{Client, http, http_as, start_in, world};

/// Failures that are free, and how many come back during the test at most.
const FREE: usize = 1_000;
const COME_BACK: usize = 60;

fn log_in(client: &mut Client, password: &str) -> Status {
    let message = format!("\0Administrator\0{password}");
    let parts = RequestParts {
        opcode: opcode::SASL_AUTH,
        key: b"PLAIN",
        value: message.as_bytes(),
        ..RequestParts::default()
    };
    client.request(&parts).status
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
    let (code, told) = http(&server, "GET", "/pools", "");
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
