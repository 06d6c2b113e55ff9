//! One request over HTTP, no more than the tools here need.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::http::Request;

use crate::stave::{PASSWORD, USER};

/// A server that is silent for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// Larger than any answer.
const MOST_ANSWER_BYTES: usize = 1 << 30;

/// Sends a request with a JSON body to `HOST:PORT`, and gives back what is in the answer, which must say success.
pub fn request(address: &str, method: &str, path: &str, body: &str) -> Result<String> {
    send(address, (method, path), ("application/json", body), SILENCE)
}

/// Sends a form, empty or not, to one who may not answer.
pub fn form(address: &str, method: &str, path: &str, form: &str, within: Duration) -> Result<String> {
    send(address, (method, path), ("application/x-www-form-urlencoded", form), within)
}

fn send(
    address: &str,
    (method, path): (&str, &str),
    (kind, body): (&str, &str),
    silence: Duration,
) -> Result<String> {
    let to = address.to_socket_addrs()?.next().context("the name has no address")?;
    let connected = TcpStream::connect_timeout(&to, silence);
    let mut stream = connected.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(silence))?;
    let login = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    let headers =
        [("Host", address), ("Authorization", &login), ("Content-Type", kind), ("Connection", "close")];
    let request = Request { method, target: path, headers: &headers, body: body.as_bytes() };
    let answer = client::http::exchange(&mut stream, &request, MOST_ANSWER_BYTES, &mut |_| Ok(()))
        .with_context(|| format!("{method} {path} at {address}"))?;
    let body = answer.text();
    ensure!(answer.is_ok(), "{method} {path} was answered {}: {body}", answer.status);
    Ok(body)
}
