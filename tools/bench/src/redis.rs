//! Redis as a child process: everything it acknowledges is in its file and synced.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::child::{is_installed, output};

use super::load::Peer;

const READY_WITHIN: Duration = Duration::from_secs(10);

/// A running Redis; killed when it is dropped.
pub struct Redis {
    child: Child,
    address: String,
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says how to get it if it is not there; its version if it is.
pub fn version() -> Result<String> {
    ensure!(
        is_installed("redis-server"),
        "redis-server is not installed: this measurement runs beside Redis 7 (`apt-get install redis-server`)"
    );
    let text = output(Command::new("redis-server").arg("--version"))?;
    let word = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(word.unwrap_or("of unknown version").to_owned())
}

impl Redis {
    /// With an append-only file in `dir`, which is made, synced before each answer.
    pub fn start(dir: &Path) -> Result<Redis> {
        // No rewriting of its file: it would take the processor while we measure.
        let durable =
            ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];
        Redis::start_with(dir, &durable)
    }

    /// With an append-only file in `dir`, which is made, synced once a second.
    pub fn start_every_second(dir: &Path) -> Result<Redis> {
        let each_second =
            ["--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"];
        Redis::start_with(dir, &each_second)
    }

    /// Without any file.
    pub fn start_in_memory(dir: &Path) -> Result<Redis> {
        Redis::start_with(dir, &["--appendonly", "no"])
    }

    /// Without any file, and with TLS at a port of its own: its certificate, key and CA are `node.pem`, `node.key` and
    /// `ca.pem` in a folder. Answers where.
    pub fn start_with_tls(dir: &Path, certificates: &Path) -> Result<(Redis, String)> {
        let tls = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let file = |name: &str| certificates.join(name).display().to_string();
        let (port, certificate, key, ca) =
            (tls.port().to_string(), file("node.pem"), file("node.key"), file("ca.pem"));
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let more = ["--appendonly", "no", "--tls-port", &port, "--tls-auth-clients", "no"];
        Ok((Redis::start_with(dir, &[&more[..], &files[..]].concat())?, tls.to_string()))
    }

    fn start_with(dir: &Path, arguments: &[&str]) -> Result<Redis> {
        fs::create_dir_all(dir)?;
        // Redis cannot choose a port and tell: let the kernel choose, and hand it over.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]).arg("--dir").arg(dir);
        command.args(["--save", "", "--maxclients", "60000"]).args(arguments);
        let log = File::create(dir.join("log"))?;
        let child = command.stdin(Stdio::null()).stdout(log).spawn().context("cannot run redis-server")?;
        let redis = Redis { child, address: address.to_string() };
        let begun = Instant::now();
        while !redis.answers() {
            ensure!(begun.elapsed() < READY_WITHIN, "redis-server does not answer");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(redis)
    }

    /// The load generator's other end.
    pub fn peer(&self, name: &'static str) -> Peer {
        Peer { name, protocol: "redis", address: self.address.clone(), pid: self.child.id(), ca: None }
    }

    fn answers(&self) -> bool {
        let ping = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(READY_WITHIN))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 7];
            stream.read_exact(&mut answer)?;
            Ok(&answer == b"+PONG\r\n")
        };
        ping().unwrap_or(false)
    }
}
