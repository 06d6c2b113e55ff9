//! One request over HTTP, no more than the tools here need.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::stave::{PASSWORD, USER};

/// A server that is silent for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);

/// Sends a request with a JSON body to `HOST:PORT`, and gives back what is in the answer, which must say success.
pub fn request(address: &str, method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(SILENCE))?;
    let login = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Basic {login}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has a head")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{method} {path} was answered {status}: {body}");
    Ok(body.to_owned())
}
