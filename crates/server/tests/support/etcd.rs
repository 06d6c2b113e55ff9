//! An etcd of the test's own, on free ports, gone with the test.
#![allow(clippy::disallowed_methods, reason = "the test runs etcd")]
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Somebody else may take a port between that it was found free and that etcd listens.
const TRIES: usize = 10;
/// What it says in its log when it answers (etcd 3.4 to 3.6).
const READY: &str = "ready to serve client requests";

/// Certificates of the test's own, in files: of a CA, of etcd at 127.0.0.1, and of a client.
pub struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    /// Makes them.
    pub fn make() -> Certificates {
        use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, IsCa, KeyPair};
        let folder = tempfile::tempdir().expect("a folder");
        let key = || KeyPair::generate().expect("a key");
        let put = |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("a file");
        let mut ca = CertificateParams::new(Vec::new()).expect("no names");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, key()).expect("a CA");
        put("ca.pem", ca.pem());
        for name in ["etcd", "client"] {
            let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]);
            let (mut params, key) = (params.expect("an address"), key());
            // Where users log in, etcd refuses JSON from whoever has a CommonName: it would not be taken for the user.
            params.distinguished_name = DistinguishedName::new();
            put(&format!("{name}.pem"), params.signed_by(&key, &*ca).expect("a certificate").pem());
            put(&format!("{name}-key.pem"), key.serialize_pem());
        }
        Certificates { folder }
    }

    /// One of the files: `ca.pem`, `etcd.pem`, `etcd-key.pem`, `client.pem`, `client-key.pem`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What is in it.
    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("it was made")
    }
}

/// A running etcd.
pub struct Etcd {
    child: Child,
    certificates: Option<Certificates>,
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
fn run(folder: &Path, addr: &str, peer: &str, certificates: Option<&Certificates>) -> Option<Child> {
    let scheme = if certificates.is_some() { "https" } else { "http" };
    let (client, peer) = (format!("{scheme}://{addr}"), format!("http://{peer}"));
    let tls = certificates.into_iter().flat_map(|certificates| {
        let files =
            [("--trusted-ca-file", "ca.pem"), ("--cert-file", "etcd.pem"), ("--key-file", "etcd-key.pem")];
        let files = files.map(|(flag, name)| format!("{flag}={}", certificates.path(name).display()));
        files.into_iter().chain(["--client-cert-auth".to_owned()])
    });
    let mut child = Command::new("etcd")
        .args(tls)
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
        Etcd::start_with(None)
    }

    /// Starts it so that it speaks TLS only, and only with those who have a certificate of the same CA.
    pub fn start_with_tls() -> Etcd {
        Etcd::start_with(Some(Certificates::make()))
    }

    fn start_with(certificates: Option<Certificates>) -> Etcd {
        for _ in 0..TRIES {
            let folder = tempfile::tempdir().expect("a folder");
            let (addr, peer) = (free_addr(), free_addr());
            if let Some(child) = run(folder.path(), &addr, &peer, certificates.as_ref()) {
                return Etcd { child, certificates, addr, peer, folder };
            }
        }
        panic!("etcd does not start");
    }

    /// What it was started with, if it speaks TLS.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("it speaks TLS")
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// It stands still, connections to it included, until [`Etcd::go_on`].
    pub fn stand_still(&self) {
        self.signal("-STOP");
    }

    /// It goes on where it stood still.
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("`kill` is there").success());
    }

    /// Starts it again where it was, with what it had.
    pub fn start_again(&mut self) {
        let certificates = self.certificates.as_ref();
        let child = (0..TRIES).find_map(|_| run(self.folder.path(), &self.addr, &self.peer, certificates));
        self.child = child.expect("etcd starts again");
    }
}
