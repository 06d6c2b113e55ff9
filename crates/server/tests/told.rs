//! What a node tells operators of its clients and of itself.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use support::{Client, start};

#[test]
fn it_is_told_where_clients_come_from_and_what_the_node_was_started_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "login-timeout-s = 7\n");
    let mut client = Client::connect(&server, "default", &[]);
    let mut stranger = Client::silent(&server);
    stranger.send(b"this is no frame of the protocol");
    // Behind what it is told of that.
    while !stranger.is_closed() {}
    let mut told = || -> serde_json::Value {
        serde_json::from_str(&client.stat("client_connection_details", "127.0.0.1")).expect("JSON")
    };
    // The worker lets go of a connection after the client has seen its end.
    while told()["current"] != 1 {
        std::thread::yield_now();
    }
    let counts = told();
    assert_eq!((&counts["total"], &counts["disconnect"]), (&2.into(), &1.into()), "{counts}");
    assert_eq!(client.stat("settings", "login_timeout_s"), "7");
    assert_eq!(client.stat("settings", "data"), folder.path().display().to_string());
    let overhead: u64 = client.stat("clocks", "clock_fine_overhead_ns").parse().expect("a number");
    assert!(overhead < 100_000, "{overhead}");
    server.stop().expect("a clean stop");
}
