//! One request over HTTP and its answer, as JSON: for what a node can be asked for there alone.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::Secret;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Answers that are longer are none of ours.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// A node's HTTP address, and who asks.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    /// HOST:PORT.
    pub addr: String,
    /// Who asks.
    pub username: String,
    /// The user's password.
    pub password: Secret,
}

impl HttpTarget {
    /// Sends a request and waits for the answer; one that is no success is an error with what the node says.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let (status, body) = self
            .exchange(method, path, body.map(Value::to_string).unwrap_or_default())
            .with_context(|| format!("{method} http://{}{path}", self.addr))?;
        let value = serde_json::from_str::<Value>(&body).ok();
        if (200..300).contains(&status) {
            return value.with_context(|| format!("the answer of {} is not JSON", self.addr));
        }
        match value.as_ref().and_then(said) {
            Some(what) => bail!("{} refuses: {what}", self.addr),
            None if status == 401 => {
                bail!("{} does not know {}, or the password is another one", self.addr, self.username)
            }
            None => bail!("{} answers with status {status}: {}", self.addr, body.trim()),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: String) -> anyhow::Result<(u16, String)> {
        let mut stream = self.connect()?;
        let credentials = BASE64.encode(format!("{}:{}", self.username, self.password.0));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Basic {credentials}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.addr,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        match (status, answer.split_once("\r\n\r\n")) {
            (Some(status), Some((_, body))) => Ok((status, body.to_owned())),
            _ => bail!("what answers does not speak HTTP"),
        }
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
        for addr in self.addr.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// What a node says about a refusal.
fn said(body: &Value) -> Option<String> {
    let errors = body.get("errors").and_then(Value::as_object);
    let text = errors.and_then(|errors| errors.values().find_map(Value::as_str));
    text.or_else(|| body.get("message")?.as_str()).map(str::to_owned)
}
