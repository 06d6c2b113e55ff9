//! `bench tls`: Stave with TLS beside Redis with TLS and Stave without, under the same client, by turns.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::{is_installed, release_build, succeeds};
use harness::client::Client;
use harness::stave::{BUCKET, Start, Stave};
use harness::tree::{self, Scratch};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::Output;
use super::idle::{SPARE, raise_descriptor_limit};
use super::load::{Peer, ensure_clean, number};
use super::process::{cpu_seconds, resident_bytes};
use super::redis::{self, Redis};
use super::report::{Goal, Report, median};

/// How long and how much.
#[derive(Args)]
pub struct TlsOptions {
    /// Seconds of each single run.
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// Rounds; each runs all servers at both depths.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Keys, of 20 bytes each.
    #[arg(long, default_value_t = 200_000)]
    keys: u32,
    /// TLS connections that do not log in; 0 leaves this part out.
    #[arg(long, default_value_t = 19_500)]
    idle: u64,
    #[command(flatten)]
    output: Output,
}

/// The most that a TLS connection may cost that does not log in.
const IDLE_GOAL_KIB: f64 = 24.0;
/// Pipeline depth, the most of Redis's CPU that an operation may cost with TLS, and the most of Stave's own without.
const DEPTHS: [(u32, f64, f64); 2] = [(1, 1.0, 1.35), (16, 1.0, 1.5)];

const CPU_TABLE: &str = "processor time of the server, µs an operation, 80 % reads";

/// Measures.
pub fn run(options: &TlsOptions) -> Result<Report> {
    let version = redis::version()?;
    ensure!(options.rounds > 0, "at least one round");
    release_build()?;
    let scratch = Scratch::new("tls")?;
    let certificates = scratch.path().join("certs");
    let mut make = Command::new(tree::release_binary());
    make.args(["certs", "init", "--out"]).arg(&certificates).stdout(Stdio::null());
    ensure!(succeeds(&mut make)?, "the certificates could not be made");
    let file = |name: &str| certificates.join(name).display().to_string();
    let (certificate, key) = (file("node.pem"), file("node.key"));
    let bucket = format!("{BUCKET}:2GiB");
    // Before the start: the server inherits the limit.
    raise_descriptor_limit(options.idle + SPARE);
    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--kv-tls", "127.0.0.1:0", "--http-tls"];
    let more = [&tls[..], &["127.0.0.1:0", "--threads", "1", "--bucket", &bucket]].concat();
    let start = |name: &str| {
        let log = scratch.path().join(format!("{name}.log"));
        Stave::start(&Start { data: &scratch.path().join(name), log, more: &more })
    };
    let server = start("data")?;
    let (redis, redis_tls) = Redis::start_with_tls(&scratch.path().join("redis"), &certificates)?;
    println!("beside Redis {version}");
    let ca = Some(certificates.join("ca.pem"));
    let kvs = server.kvs.clone().context("the server says where it speaks TLS")?;
    let peers = [
        Peer::stave("stave", &server),
        Peer { address: kvs, ca: ca.clone(), ..Peer::stave("stave tls", &server) },
        Peer { address: redis_tls, ca, ..redis.peer("redis tls") },
    ];
    for peer in &peers[1..] {
        load(peer, options, &["--populate", "--pipeline", "64", "--seconds", "1"])?;
    }
    Client::connect(&server.kv)?.await_persisted()?;
    let mut report = compare(&peers, options)?;
    aead(&mut report);
    handshakes(&peers, &certificates.join("ca.pem"), options, &mut report)?;
    server.stop()?;
    // What another load has left would hide what these take.
    let server = start("idle")?;
    let kvs = server.kvs.clone().context("the server says where it speaks TLS")?;
    idle_connections(&server, &kvs, &certificates.join("ca.pem"), options, &mut report)?;
    server.stop()?;
    Ok(report)
}

/// Server CPU of an operation, in microseconds.
fn load(peer: &Peer, options: &TlsOptions, more: &[&str]) -> Result<f64> {
    let keys = options.keys.to_string();
    let mut arguments = vec!["--connections", "50", "--threads", "1", "--keys", &keys, "--key-size", "20"];
    arguments.extend(["--value-size", "512", "--set-percent", "20", "--distribution", "zipf"]);
    arguments.extend(more);
    let result = peer.load(&arguments)?;
    ensure_clean(peer.name, &result)?;
    number(&result, "/server_cpu_us_per_operation")
}

fn compare(peers: &[Peer; 3], options: &TlsOptions) -> Result<Report> {
    let mut report = Report::new("tls", options.output.json);
    println!("{:<6} {:<6} {:<10} {:>10}", "round", "depth", "server", "CPU us/op");
    let mut ratios = DEPTHS.map(|_| [const { Vec::new() }; 2]);
    let mut cells: BTreeMap<(String, usize), Vec<f64>> = BTreeMap::new();
    for round in 0..options.rounds {
        for ((depth, ..), ratios) in DEPTHS.iter().zip(&mut ratios) {
            let mut costs = [0.0; 3];
            for at in (0..peers.len()).map(|at| (at + round) % peers.len()) {
                let (depth, seconds) = (depth.to_string(), options.seconds.to_string());
                let more = ["--pipeline", &depth, "--warmup", "1", "--seconds", &seconds];
                costs[at] = load(&peers[at], options, &more)?;
                cells.entry((depth.clone(), at)).or_default().push(costs[at]);
                println!("{:<6} {depth:<6} {:<10} {:>10.2}", round + 1, peers[at].name, costs[at]);
            }
            let [plain, stave, redis] = costs;
            ratios[0].push(stave / redis);
            ratios[1].push(stave / plain);
        }
    }
    for ((depth, at), values) in &cells {
        report.cell(CPU_TABLE, &format!("depth {depth}"), peers[*at].name, values);
    }
    println!("\nmedians of {} rounds:", options.rounds);
    for ((depth, of_redis, of_plain), [redis, plain]) in DEPTHS.iter().zip(&mut ratios) {
        report.add(&format!("cpu_of_redis_tls_depth_{depth}"), median(redis), Some(*of_redis));
        report.add(&format!("cpu_of_stave_plain_depth_{depth}"), median(plain), Some(*of_plain));
    }
    Ok(report)
}

/// Bytes that come to the server and go from it for an operation, 80 % of them reads of 512 bytes.
const RECEIVED_BYTES: usize = (8 * 44 + 2 * 564) / 10;
const SENT_BYTES: usize = (8 * 540 + 2 * 24) / 10;
/// Records that are opened and sealed for a figure.
const RECORDS: u32 = 200_000;

/// What the cipher of TLS alone costs of an operation: opening the record of the requests, and sealing that of the answers.
fn aead(report: &mut Report) {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32]).expect("it has the length of a key"));
    let nonce = |n: u32| {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        Nonce::assume_unique_for_key(bytes)
    };
    // The header of a record is bound, and its type is behind what it holds (RFC 8446, 5.2).
    let bound = || Aad::from([23, 3, 3, 0, 0]);
    for (depth, ..) in DEPTHS {
        let mut sent = vec![1; SENT_BYTES * depth as usize + 1];
        let mut record = vec![1; RECEIVED_BYTES * depth as usize + 1];
        let tag = key.seal_in_place_separate_tag(nonce(0), bound(), &mut record).expect("it is short");
        record.extend_from_slice(tag.as_ref());
        let begun = Instant::now();
        for n in 1..=RECORDS {
            let mut received = record.clone();
            key.open_in_place(nonce(0), bound(), &mut received).expect("it is whole");
            let tag = key.seal_in_place_separate_tag(nonce(n), bound(), &mut sent).expect("it is short");
            let _sealed = std::hint::black_box(tag);
        }
        let us = begun.elapsed().as_secs_f64() * 1e6 / f64::from(RECORDS) / f64::from(depth);
        report.add(&format!("aead_us_an_operation_depth_{depth}"), us, None);
    }
}

/// Full handshakes for a second of server CPU; OpenSSL is the client.
fn handshakes(peers: &[Peer; 3], ca: &Path, options: &TlsOptions, report: &mut Report) -> Result<()> {
    if !is_installed("openssl") {
        println!("handshakes: passed over, openssl is not installed (`apt-get install openssl`)");
        return Ok(());
    }
    let mut rates = Vec::new();
    for peer in &peers[1..] {
        let before = cpu_seconds(peer.pid)?;
        let mut client = Command::new("openssl");
        client.args(["s_time", "-new", "-connect", &peer.address, "-time", &options.seconds.to_string()]);
        let output =
            client.arg("-CAfile").arg(ca).stderr(Stdio::null()).output().context("cannot run openssl")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let count = made(&text).with_context(|| format!("openssl s_time says what it did: {text}"))?;
        let rate = count / (cpu_seconds(peer.pid)? - before);
        println!("{:<10} {rate:>10.0} handshakes for a second of CPU", peer.name);
        rates.push(rate);
    }
    report.figure("handshakes_per_cpu_s_of_redis", rates[0] / rates[1], Some(Goal::AtLeast(1.0)));
    Ok(())
}

/// Resident memory of the server for each connection that has agreed on encryption and says nothing more.
fn idle_connections(
    server: &Stave,
    kvs: &str,
    ca: &Path,
    options: &TlsOptions,
    report: &mut Report,
) -> Result<()> {
    let (count, allowed) = (options.idle, raise_descriptor_limit(options.idle + SPARE));
    if count == 0 || allowed < count + SPARE {
        println!("idle connections: left out, the system allows {allowed} descriptors (ulimit -Hn)");
        return Ok(());
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
    let before = resident_bytes(server.pid())?;
    let mut idle = Vec::new();
    for number in 0..count {
        let failed = || format!("idle connection {number}");
        let mut session = ClientConnection::new(Arc::clone(&config), ServerName::try_from("127.0.0.1")?)?;
        let mut stream = TcpStream::connect(kvs).with_context(failed)?;
        while session.is_handshaking() || session.wants_write() {
            session.complete_io(&mut stream).with_context(failed)?;
        }
        // Not the session: ours would take as much as the server's.
        idle.push(stream);
    }
    let after = resident_bytes(server.pid())?;
    // With few descriptors the server takes fewer connections, and lets go of those that have not logged in.
    let figures =
        Client::connect(&server.kv)?.stats("connections")?.context("the server counts connections")?;
    let held = figures.iter().find(|(name, _)| name == "curr_connections").context("and tells how many")?;
    let held: f64 = held.1.parse()?;
    println!("idle TLS connections: {count}, {held} held, resident {before} bytes before, {after} with them");
    let kib = after.saturating_sub(before) as f64 / held / 1024.0;
    report.add("idle_tls_connection_kib", kib, Some(IDLE_GOAL_KIB));
    Ok(())
}

/// Connections in what `openssl s_time` prints: `1234 connections in 1.05s; ...`.
fn made(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(" connections in "))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_openssl_prints() {
        let text = "Collecting connection statistics for 2 seconds\n\n\n2612 connections in 0.89s; 2934.83 connections/user sec, bytes read 0\n2612 connections in 3 real seconds, 0 bytes read per connection\n";
        assert_eq!(made(text), Some(2612.0));
        assert_eq!(made("nothing"), None);
    }
}
