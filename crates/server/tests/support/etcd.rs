//! An etcd of the test's own, on free ports, gone with the test.
#![allow(clippy::disallowed_methods, reason = "the test runs etcd")]
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Somebody else may take a port between that it was found free and that etcd listens.
const TRIES: usize = 10;
/// What it says in its log when it answers (etcd 3.4 to 3.6).
const READY: &str = "ready to serve client requests";

/// A running etcd.
pub struct Etcd {
    child: Child,
    /// HOST:PORT for clients.
    pub addr: String,
    peer: String,
    folder: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of this machine that nobody listens at.
pub fn free_addr() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").to_string()
}

/// A process, once it answers; nothing if it ended before.
fn run(folder: &Path, addr: &str, peer: &str) -> Option<Child> {
    let (client, peer) = (format!("http://{addr}"), format!("http://{peer}"));
    let mut child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcd is installed (on Debian the package etcd-server); this test runs it");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while log.read_line(&mut line).is_ok_and(|read| read > 0) {
        if line.contains(READY) {
            // It goes on writing to its log.
            thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
            return Some(child);
        }
        line.clear();
    }
    child.wait().expect("it has ended");
    None
}

impl Etcd {
    /// Starts it.
    pub fn start() -> Etcd {
        for _ in 0..TRIES {
            let folder = tempfile::tempdir().expect("a folder");
            let (addr, peer) = (free_addr(), free_addr());
            if let Some(child) = run(folder.path(), &addr, &peer) {
                return Etcd { child, addr, peer, folder };
            }
        }
        panic!("etcd does not start");
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Starts it again where it was, with what it had.
    pub fn start_again(&mut self) {
        let child = (0..TRIES).find_map(|_| run(self.folder.path(), &self.addr, &self.peer));
        self.child = child.expect("etcd starts again");
    }
}
