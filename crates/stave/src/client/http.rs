//! One request over HTTP and its answer, as JSON: for what a node can be asked for there alone.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

use std::io::{Error, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use ::client::http::{NoHttp, Request, exchange};
use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use node::form::escaped;
use serde_json::Value;

use super::error::after_no_connection;
use super::{Channel, Secret, Trust, with_port};
use crate::units::duration;

/// How long a node is waited for, if the user did not say.
pub const HTTP_PATIENCE: Duration = Duration::from_secs(30);
/// Where nodes answer HTTP unless they are told otherwise, without TLS and with it.
const PORT: u16 = 8091;
const PORT_TLS: u16 = 18091;
/// The first byte of alerts of TLS: RFC 8446, section 5.1.
const TLS_ALERT: u8 = 0x15;
/// Answers that are longer are none of ours.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// An address with the usual port of HTTP, if it has none.
pub(crate) fn with_http_port(addr: &str, by_tls: bool) -> String {
    with_port(addr, if by_tls { PORT_TLS } else { PORT })
}

/// A node's HTTP address, and who asks.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    /// HOST:PORT.
    pub addr: String,
    /// Who asks.
    pub username: String,
    /// The user's password.
    pub password: Secret,
    /// How long a connection, and an answer, is waited for.
    pub patience: Duration,
    /// The CAs that are trusted; `None`: no TLS is spoken.
    pub tls: Option<Trust>,
}

impl HttpTarget {
    /// Sends a request and waits for the answer; one that is no success is an error with what the node says.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let (status, body) = self
            .exchange(method, path, body.map(Value::to_string).unwrap_or_default())
            .with_context(|| format!("{method} {}://{}{path}", self.scheme(), self.addr))?;
        self.answer(status, &body)
    }

    /// An answer's JSON; one that is no success is an error with what the node says.
    pub fn answer(&self, status: u16, body: &str) -> anyhow::Result<Value> {
        let value = serde_json::from_str::<Value>(body).ok();
        if (200..300).contains(&status) {
            return value.with_context(|| format!("the answer of {} is not JSON", self.addr));
        }
        Err(self.refusal(status, body, value.as_ref()))
    }

    fn refusal(&self, status: u16, body: &str, value: Option<&Value>) -> anyhow::Error {
        match value.and_then(said) {
            Some(what) => anyhow!("{} refuses: {what}", self.addr),
            None if status == 401 && self.is_by_certificate() => {
                anyhow!("{} has no user of the name in the certificate of --tls-cert", self.addr)
            }
            None if status == 401 => {
                anyhow!("{} does not know {}, or the password is another one", self.addr, self.username)
            }
            // What nodes answer for a bucket, in the words that SDKs compare, and for an address that they do not know.
            None if status == 404 && body.trim() == "Requested resource not found." => anyhow!(
                "{} has no such bucket, or {} may not see it (`stave bucket list` shows those that this user sees), or the \
                 node is too old to know this command",
                self.addr,
                self.username
            ),
            None => anyhow!("{} answers with status {status}: {}", self.addr, body.trim()),
        }
    }

    /// Posts the fields of a form; what comes back, if it is JSON, may be nothing at all.
    pub fn form(&self, path: &str, fields: &[(&str, &str)]) -> anyhow::Result<Value> {
        self.send("POST", path, fields)
    }

    /// The same with any method.
    pub fn send(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> anyhow::Result<Value> {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let (status, body) = self
            .exchange(method, path, fields.join("&"))
            .with_context(|| format!("{method} {}://{}{path}", self.scheme(), self.addr))?;
        let value = serde_json::from_str::<Value>(&body).unwrap_or_default();
        if (200..300).contains(&status) { Ok(value) } else { Err(self.refusal(status, &body, Some(&value))) }
    }

    /// Whether a certificate says who asks, and nothing else does.
    fn is_by_certificate(&self) -> bool {
        self.password.0.is_empty() && self.tls.as_ref().is_some_and(Trust::shows_certificate)
    }

    /// What the header says about who asks; `None` if a certificate does, or if no user asks.
    fn authorization(&self) -> Option<String> {
        let credentials = || BASE64.encode(format!("{}:{}", self.username, self.password.0));
        (!self.is_by_certificate() && !self.username.is_empty()).then(|| format!("Basic {}", credentials()))
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    pub(crate) fn exchange(&self, method: &str, path: &str, body: String) -> anyhow::Result<(u16, String)> {
        let until = Instant::now() + self.patience;
        let mut stream = self.connect(until)?;
        let authorization = self.authorization();
        let mut headers =
            vec![("Host", &*self.addr), ("Connection", "close"), ("Content-Type", "application/json")];
        headers.extend(authorization.as_deref().map(|who| ("Authorization", who)));
        let request = Request { method, target: path, headers: &headers, body: body.as_bytes() };
        let mut limit = |stream: &mut Channel| {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { stream.set_read_timeout(Some(left)) }
        };
        match exchange(&mut stream, &request, MAX_ANSWER_BYTES, &mut limit) {
            Ok(answer) => Ok((answer.status, answer.into_text())),
            Err(error) => Err(self.no_answer(error)),
        }
    }

    /// What is said if no answer came, or none that is whole.
    fn no_answer(&self, error: Error) -> anyhow::Error {
        if let Some(NoHttp { first }) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return anyhow!(self.no_http(*first));
        }
        let kind = error.kind();
        let why = anyhow::Error::new(error);
        match kind {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let waited = duration(self.patience.as_nanos() as u64);
                why.context(format!("no answer for {waited}; --timeout gives it longer"))
            }
            ErrorKind::UnexpectedEof if self.tls.is_none() => {
                why.context("the answer was broken off: try again")
            }
            _ => why,
        }
    }

    fn usual_port(&self) -> u16 {
        if self.tls.is_some() { PORT_TLS } else { PORT }
    }

    /// What is said of an answer with this first byte that is none of HTTP.
    fn no_http(&self, first: Option<u8>) -> String {
        if first == Some(TLS_ALERT) {
            return "the server speaks TLS at this port: give --tls-ca, or the address of its HTTP port without TLS"
                .to_owned();
        }
        let port = self.usual_port();
        format!(
            "what answers does not speak HTTP: give the address of its HTTP port, HOST:{port} unless it was set otherwise"
        )
    }

    fn connect(&self, until: Instant) -> anyhow::Result<Channel> {
        if !has_port(&self.addr) {
            let port = self.usual_port();
            bail!("{} has no port: write --addr HOST:PORT, for example --addr 127.0.0.1:{port}", self.addr);
        }
        let socket = self.connect_to().map_err(|error| {
            let advice = after_no_connection(&error);
            anyhow::Error::new(error).context(format!("cannot connect; {advice}"))
        })?;
        Channel::open(socket, self.tls.as_ref(), &self.addr, until).map_err(|error| {
            let is_slow = error.kind() == ErrorKind::TimedOut;
            let waited = duration(self.patience.as_nanos() as u64);
            let why = anyhow::Error::new(error);
            why.context(if is_slow {
                format!("no answer in the TLS handshake for {waited}; --timeout gives it longer")
            } else {
                "cannot speak TLS".to_owned()
            })
        })
    }

    fn connect_to(&self) -> std::io::Result<TcpStream> {
        let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
        for addr in self.addr.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, self.patience) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(self.patience))?;
                    stream.set_write_timeout(Some(self.patience))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Whether an address ends with one.
fn has_port(addr: &str) -> bool {
    addr.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'))
    })
}

/// What a node says about a refusal.
fn said(body: &Value) -> Option<String> {
    let errors = body.get("errors").and_then(Value::as_object);
    let text = errors.and_then(|errors| errors.values().find_map(Value::as_str));
    text.or_else(|| body.get("message")?.as_str()).or_else(|| body.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use ::client::http::AnswerReader;

    use super::*;

    #[test]
    fn an_address_gets_the_port_of_http() {
        let of = |addr| (with_http_port(addr, false), with_http_port(addr, true));
        assert_eq!(of("localhost"), ("localhost:8091".to_owned(), "localhost:18091".to_owned()));
        assert_eq!(of("[::1]"), ("[::1]:8091".to_owned(), "[::1]:18091".to_owned()));
        assert_eq!(of("h:1"), ("h:1".to_owned(), "h:1".to_owned()));
    }

    #[test]
    fn a_port_that_speaks_something_else_is_told_with_what_to_give() {
        let target = HttpTarget {
            addr: "127.0.0.1:1".to_owned(),
            username: String::new(),
            password: Secret::default(),
            patience: HTTP_PATIENCE,
            tls: None,
        };
        // A KV port closes the connection; one for TLS sends an alert.
        for (answer, told) in [(&b""[..], "its HTTP port, HOST:8091"), (&[0x15, 3, 3][..], "give --tls-ca")] {
            let mut reader = AnswerReader::new("GET", 9);
            let error = reader.feed(answer).and_then(|_| reader.finish()).expect_err("no answer");
            let why = target.no_answer(error).to_string();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        let why = |addr: &str| {
            let (addr, patience) = (addr.to_owned(), HTTP_PATIENCE);
            let (username, password, tls) = (String::new(), Secret::default(), None);
            let target = HttpTarget { addr, username, password, patience, tls };
            format!("{:#}", target.request("GET", "/", None).expect_err("nobody is there"))
        };
        for addr in ["127.0.0.1", "::1", "[::1]", "h:"] {
            assert!(why(addr).contains("has no port: write --addr HOST:PORT"), "{}", why(addr));
        }
        // Port 0 cannot be listened at.
        assert!(why("127.0.0.1:0").contains("--addr HOST:PORT names another"), "{}", why("127.0.0.1:0"));
    }
}
