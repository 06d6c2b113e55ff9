//! One request over HTTP, no more than the tools here need.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::stave::{PASSWORD, USER};

/// A server that is silent for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);

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
    let login = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Basic {login}\r\n\
         Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has a head")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{method} {path} was answered {status}: {body}");
    Ok(body.to_owned())
}
