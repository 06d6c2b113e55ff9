//! `bench strangers`: what each request costs that a client may make without logging in, processor time and memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::child::release_build;
use harness::stave::{Start, Stave};
use harness::tree::Scratch;
use protocol::{HEADER_BYTES, RequestParts, opcode, write_request};

use super::idle::{SPARE, raise_descriptor_limit};
use super::process::{anonymous_bytes, cpu_seconds};
use super::report::Report;

/// How often.
#[derive(Args)]
pub struct StrangersOptions {
    /// Requests of each kind whose processor time is measured, each on a connection of its own.
    #[arg(long, default_value_t = 500)]
    requests: u32,
    /// Connections that have made a request and do not read the answer, whose memory is measured.
    #[arg(long, default_value_t = 400)]
    held: u32,
    /// Close with one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The most processor time of a request, its connection included.
const MOST_US: f64 = 1_000.0;
/// The most memory of a request beyond that of a connection that says nothing: 16 KiB, and what heap and pages round.
const MOST_KIB: f64 = 17.0;
/// The largest frame, and the largest head, of a client that has not logged in.
const LARGEST_BYTES: usize = 16 << 10;
/// The largest body of a client that has not logged in.
const MOST_BODY_BYTES: usize = 4 << 10;
/// Requests before those that are measured.
const WARM: u32 = 20;
const SILENCE: Duration = Duration::from_secs(10);
/// Until the server has taken the last of many requests.
const SETTLES: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Kv,
    Http,
}

/// A request that needs no user, or is refused for that.
struct Ask {
    name: &'static str,
    port: Port,
    bytes: Vec<u8>,
    /// Something is answered.
    has_answer: bool,
}

fn frame(parts: &RequestParts<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, parts), "our own requests have short parts");
    bytes
}

fn kv(name: &'static str, opcode: u8, key: &[u8], value: &[u8]) -> Ask {
    let bytes = frame(&RequestParts { opcode, key, value, ..RequestParts::default() });
    Ask { name, port: Port::Kv, bytes, has_answer: true }
}

/// `head` is more of the head.
fn http(name: &'static str, request: &str, head: &str) -> Ask {
    let bytes = format!("{request} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n").into_bytes();
    Ask { name, port: Port::Http, bytes, has_answer: true }
}

/// The first is the connection alone.
fn asks_of_kv() -> Vec<Ask> {
    let features: Vec<u8> = (1..=0x30_u16).flat_map(u16::to_be_bytes).collect();
    let agent = format!(r#"{{"a":"{}","i":"{}"}}"#, "a".repeat(200), "i".repeat(33));
    let scram = b"n,,n=nobody,r=fyko+d2lbbFgONRv9qkxdawL";
    let mut unfinished =
        kv("kv_unfinished_frame", opcode::HELLO, b"", &vec![0; LARGEST_BYTES - HEADER_BYTES]);
    unfinished.bytes.pop();
    unfinished.has_answer = false;
    vec![
        Ask { name: "kv_connection", port: Port::Kv, bytes: Vec::new(), has_answer: false },
        kv("kv_hello", opcode::HELLO, agent.as_bytes(), &features),
        kv("kv_error_map", opcode::GET_ERROR_MAP, b"", &[0, 2]),
        kv("kv_mechanisms", opcode::SASL_LIST_MECHS, b"", b""),
        kv("kv_scram_first", opcode::SASL_AUTH, b"SCRAM-SHA512", scram),
        kv("kv_refused_get", opcode::GET, b"k", b""),
        unfinished,
    ]
}

fn asks_of_http() -> Vec<Ask> {
    let unfinished = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(LARGEST_BYTES - 1_000));
    let large = format!("X: {}\r\n", "x".repeat(LARGEST_BYTES - 1_000));
    let promise = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let part = "x".repeat(MOST_BODY_BYTES - 1);
    let form = |form: &str| format!("Content-Length: {}\r\n\r\n{form}", form.len());
    let unfinished_body = format!("Content-Length: {MOST_BODY_BYTES}\r\n\r\n{part}");
    let chunked = format!("Transfer-Encoding: chunked\r\n\r\nfff\r\n{part}");
    let declared = format!("Content-Type: application/json\r\nContent-Length: 2000000\r\n\r\n{part}");
    let half = |mut ask: Ask| {
        // What `http` ends a head with would be the last bytes of the body.
        ask.bytes.truncate(ask.bytes.len() - 2);
        Ask { has_answer: false, ..ask }
    };
    vec![
        Ask { name: "http_connection", port: Port::Http, bytes: Vec::new(), has_answer: false },
        http("http_healthz", "GET /healthz", ""),
        http("http_livez", "GET /livez", ""),
        http("http_readyz", "GET /readyz", ""),
        http("http_console", "GET /ui", ""),
        http("http_console_file", "GET /ui/app.js", ""),
        http("http_promise", "POST /v1/promise", promise),
        http("http_promise_declared", "POST /v1/promise", &declared),
        http("http_setup_rename", "POST /node/controller/rename", &form("hostname=127.0.0.1")),
        http("http_setup_services", "POST /node/controller/setupServices", &form("services=kv")),
        http("http_setup_quota", "POST /pools/default", &form("memoryQuota=1")),
        // With name and password a hash of the password would be most of it.
        http("http_setup_login", "POST /settings/web", &form("port=SAME")),
        http("http_setup_chunked", "POST /settings/web", &chunked),
        half(http("http_setup_unfinished", "POST /settings/web", &unfinished_body)),
        http("http_cluster_init", "POST /clusterInit", &form("hostname=127.0.0.1")),
        http("http_not_logged_in", "GET /pools/default/buckets", ""),
        http("http_no_such_address", "GET /nothing", ""),
        http("http_large_head", "GET /healthz", &large),
        Ask {
            name: "http_unfinished_head",
            port: Port::Http,
            bytes: unfinished.into_bytes(),
            has_answer: false,
        },
    ]
}

impl Ask {
    fn connect(&self, server: &Stave) -> Result<TcpStream> {
        let address = if self.port == Port::Kv { &server.kv } else { &server.http };
        let mut stream = TcpStream::connect(address).with_context(|| self.name.to_owned())?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.write_all(&self.bytes).with_context(|| self.name.to_owned())?;
        Ok(stream)
    }

    /// Makes the request and reads the beginning of the answer.
    fn once(&self, server: &Stave) -> Result<()> {
        let mut stream = self.connect(server)?;
        if self.has_answer {
            let count = stream.read(&mut [0; 4096]).with_context(|| self.name.to_owned())?;
            ensure!(count > 0, "{}: there is no answer", self.name);
        }
        Ok(())
    }

    /// Microseconds of the server for each.
    fn cpu_us(&self, server: &Stave, requests: u32) -> Result<f64> {
        (0..WARM).try_for_each(|_| self.once(server))?;
        thread::sleep(SETTLES);
        let before = cpu_seconds(server.pid())?;
        (0..requests).try_for_each(|_| self.once(server))?;
        thread::sleep(SETTLES);
        Ok((cpu_seconds(server.pid())? - before) * 1e6 / f64::from(requests))
    }

    /// Kibibytes of a server for each connection that has made the request; none has run before.
    fn held_kib(&self, server: &Stave, held: u32) -> Result<f64> {
        (0..WARM).try_for_each(|_| self.once(server))?;
        thread::sleep(SETTLES);
        let before = anonymous_bytes(server.pid())?;
        let streams: Vec<TcpStream> = (0..held).map(|_| self.connect(server)).collect::<Result<_>>()?;
        thread::sleep(SETTLES);
        let after = anonymous_bytes(server.pid())?;
        drop(streams);
        Ok(after.saturating_sub(before) as f64 / 1024.0 / f64::from(held))
    }
}

/// Measures.
pub fn run(options: &StrangersOptions) -> Result<Report> {
    ensure!(options.requests > 0 && options.held > 0, "at least one request and one connection");
    release_build()?;
    let scratch = Scratch::new("strangers")?;
    raise_descriptor_limit(u64::from(options.held) + SPARE);
    let start = |name: &str| {
        let log = scratch.path().join(format!("{name}.log"));
        Stave::start(&Start { data: &scratch.path().join(name), log, more: &["--threads", "1"] })
    };
    let server = start("cpu")?;
    let mut report = Report::new("strangers", options.json);
    println!("{:<22} {:>10} {:>10}", "request", "CPU us", "KiB held");
    for asks in [asks_of_kv(), asks_of_http()] {
        let mut silent = None;
        for ask in &asks {
            let us = ask.cpu_us(&server, options.requests)?;
            // What earlier requests have left behind would hide what these take.
            let own = start(ask.name)?;
            let kib = ask.held_kib(&own, options.held)?;
            own.kill()?;
            println!("{:<22} {us:>10.1} {kib:>10.2}", ask.name);
            report.add(&format!("{}_us", ask.name), us, Some(MOST_US));
            match silent {
                None => silent = Some(kib),
                Some(silent) => {
                    report.add(&format!("{}_kib", ask.name), (kib - silent).max(0.0), Some(MOST_KIB))
                }
            }
        }
    }
    server.stop()?;
    Ok(report)
}
