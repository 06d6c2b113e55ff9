//! etcd as a child process, on free ports, with its data in a folder of the run.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::child::is_installed;

/// How long it may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A running etcd, which ends with this value.
pub(super) struct Etcd {
    child: Child,
    /// HOST:PORT for clients.
    pub(super) address: String,
}

fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

impl Etcd {
    /// Starts it and waits until it answers.
    pub(super) fn start(folder: &Path) -> Result<Etcd> {
        ensure!(is_installed("etcd"), "etcd is missing: install it (on Debian the package etcd-server)");
        let (address, peer) = (free_address()?, free_address()?);
        let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
        let log = File::create(folder.join("etcd.log"))?;
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot run etcd")?;
        let etcd = Etcd { child, address };
        let begun = Instant::now();
        // It says so itself (etcd documentation, "Monitoring etcd": /health).
        while !harness::http::request(&etcd.address, "GET", "/health", "")
            .is_ok_and(|told| told.contains("true"))
        {
            if begun.elapsed() > READY_WITHIN {
                bail!("etcd does not answer; its log is in {}", folder.display());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
