//! Requests over HTTP/1.1 on one connection that is kept open.
//!
//! # Guarantees
//!
//! - Each wait for the other end has a limit, and so has each answer.
//! - A connection on which something went wrong is not used again.

use std::io::{Error, ErrorKind, Result};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

pub(super) use ::client::http::HttpAnswer;
use ::client::http::{Request, exchange};

use crate::client::{Channel, Trust};

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long the other end may be silent, or not take what is sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a whole request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(600);

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) is_tls: bool,
    /// A name or an address, in brackets if it has colons.
    pub(super) host: String,
    pub(super) port: Option<u16>,
}

impl Endpoint {
    /// Reads `http://HOST[:PORT]` or `https://HOST[:PORT]`.
    pub(super) fn parse(text: &str) -> Option<Endpoint> {
        let (scheme, rest) = text.split_once("://")?;
        let is_tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let rest = rest.trim_end_matches('/');
        let behind_host = rest.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match rest[behind_host..].rfind(':') {
            Some(at) => (&rest[..behind_host + at], Some(rest[behind_host + at + 1..].parse().ok()?)),
            None => (rest, None),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        let is_whole = !host.is_empty() && host.bytes().all(is_name);
        is_whole.then(|| Endpoint { is_tls, host: host.to_owned(), port })
    }

    /// What the header `Host` says.
    pub(super) fn name(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }

    fn addr(&self) -> String {
        let port = self.port.unwrap_or(if self.is_tls { 443 } else { 80 });
        format!("{}:{port}", self.host)
    }
}

/// A connection to one host.
pub(super) struct HttpConnection {
    endpoint: Endpoint,
    trust: Option<Trust>,
    open: Option<Channel>,
}

/// One request.
pub(super) struct HttpRequest<'a> {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) target: &'a str,
    /// With `host`.
    pub(super) headers: &'a [(&'static str, String)],
    pub(super) body: &'a [u8],
    /// An answer with a longer body is refused.
    pub(super) most: usize,
}

impl HttpConnection {
    pub(super) fn new(endpoint: Endpoint, trust: Option<Trust>) -> HttpConnection {
        HttpConnection { endpoint, trust, open: None }
    }

    /// Sends a request and reads its answer. After an error the next request opens another connection.
    pub(super) fn exchange(&mut self, request: &HttpRequest<'_>) -> Result<HttpAnswer> {
        let until = Instant::now() + REQUEST_PATIENCE;
        let mut channel = match self.open.take() {
            Some(channel) => channel,
            None => connect(&self.endpoint, self.trust.as_ref())?,
        };
        let headers: Vec<(&str, &str)> =
            request.headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let HttpRequest { method, target, body, most, .. } = *request;
        let request = Request { method, target, headers: &headers, body };
        let mut limit = |_: &mut Channel| {
            let is_late = Instant::now() >= until;
            if is_late { Err(Error::new(ErrorKind::TimedOut, "the answer takes too long")) } else { Ok(()) }
        };
        let answer =
            exchange(&mut channel, &request, most, &mut limit).map_err(|error| match error.kind() {
                ErrorKind::WouldBlock => {
                    Error::new(ErrorKind::TimedOut, format!("no answer for {PATIENCE:.0?}"))
                }
                _ => error,
            })?;
        if answer.is_kept {
            self.open = Some(channel);
        }
        Ok(answer)
    }

    /// Whether a connection is kept, which the other end may have closed meanwhile.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

fn connect(endpoint: &Endpoint, trust: Option<&Trust>) -> Result<Channel> {
    let (addr, host) = (endpoint.addr(), &endpoint.host);
    let mut last = Error::new(ErrorKind::NotFound, format!("{host} has no address"));
    for one in addr.to_socket_addrs().map_err(|error| Error::new(error.kind(), format!("{host}: {error}")))? {
        let socket = match TcpStream::connect_timeout(&one, CONNECT_PATIENCE) {
            Ok(socket) => socket,
            Err(error) => {
                last = Error::new(error.kind(), format!("cannot connect to {host} at {one}: {error}"));
                continue;
            }
        };
        socket.set_nodelay(true)?;
        let trust = trust.filter(|_| endpoint.is_tls);
        let channel = Channel::open(socket, trust, &addr, Instant::now() + CONNECT_PATIENCE)?;
        channel.set_read_timeout(Some(PATIENCE))?;
        channel.set_write_timeout(Some(PATIENCE))?;
        return Ok(channel);
    }
    Err(last)
}
