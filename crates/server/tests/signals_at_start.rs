//! Signals that do not ask a node to stop do not end its start, and are heard when it is ready.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::process::Command;

use base::env::Env;
use server::signals::Signal;

#[test]
fn a_signal_that_comes_while_a_node_starts_is_heard_when_it_is_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = support::config(folder.path(), 1, "buckets = [\"a:64MiB\"]");
    let this = std::process::id().to_string();
    let send = |signal: &str| {
        let sent = Command::new("kill").args([signal, this.as_str()]).status();
        assert!(sent.expect("it is there").success(), "{signal}");
    };
    let server = server::serve_prepared(config, Env::real(), |_| {
        ["-USR1", "-USR2", "-HUP"].into_iter().for_each(send);
        Ok(())
    });
    let server = server.expect("the node starts");
    // Under nohup the process ignores SIGHUP, and hears the next one.
    send("-TERM");
    let heard = server.next_signal();
    assert!(matches!(heard, Signal::HangUp | Signal::Stop("SIGTERM")), "{heard:?}");
    server.stop().expect("a clean stop");
}
