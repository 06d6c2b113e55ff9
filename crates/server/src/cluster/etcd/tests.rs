//! The store against a real etcd, where there is one.
#![allow(clippy::disallowed_methods, reason = "the test runs etcd")]

use std::process::{Child, Command, Stdio};

use super::*;

/// An etcd of the test's own.
struct Etcd {
    child: Child,
    addr: String,
    _folder: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").port()
}

/// Nothing if etcd is not installed.
fn etcd() -> Option<Etcd> {
    let folder = tempfile::tempdir().expect("a folder");
    let (client, peer) = (free_port(), free_port());
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.path())
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = child else {
        eprintln!("SKIPPED: etcd is not installed (Debian package etcd-server), its store is not tested");
        return None;
    };
    let addr = client.trim_start_matches("http://").to_owned();
    Some(Etcd { child, addr, _folder: folder })
}

#[test]
fn does_what_a_store_must() {
    let Some(etcd) = etcd() else { return };
    let address = EtcdAddress::parse(&format!("etcd://127.0.0.1:1,{}/test", etcd.addr)).expect("an address");
    let store = EtcdStore::new(Env::real(), &address);
    // Until it listens and has a leader: each try is a request that is answered or refused.
    let is_up = (0..2_000).any(|_| {
        let asked = store.read().is_ok();
        if !asked {
            // Nothing changes there: this waits for a moment, or until it is refused.
            let _ = store.wait(Version(u64::from(u32::MAX)), Duration::from_millis(50));
            std::thread::yield_now();
        }
        asked
    });
    assert!(is_up, "etcd does not answer");
    let env = Env::real();
    let pass = |by: Duration| {
        // Its leases go by real time: this waits for a change that nobody makes.
        let end = env.clock.monotonic() + by;
        while env.clock.monotonic() < end {
            let left = end.saturating_sub(env.clock.monotonic());
            store.wait(Version(u64::from(u32::MAX)), left).expect("it answers");
        }
    };
    ::cluster::store::suite::run(&store, &pass);
}

#[test]
fn nobody_there_is_a_failure() {
    let address = EtcdAddress::parse(&format!("etcd://127.0.0.1:{}/test", free_port())).expect("an address");
    let store = EtcdStore::new(Env::real(), &address);
    assert!(store.read().is_err() && store.grant(Duration::from_secs(1)).is_err());
}

#[test]
fn addresses() {
    let address = EtcdAddress::parse("etcd://a:1,b:2/prod").expect("valid");
    assert_eq!((address.endpoints.len(), address.cluster.as_str()), (2, "prod"));
    for wrong in ["a:1/prod", "etcd://a/prod", "etcd://a:1", "etcd://a:1/", "etcd://:1/x", "etcd://a:1/x/y"] {
        assert!(EtcdAddress::parse(wrong).is_err(), "{wrong}");
    }
}
