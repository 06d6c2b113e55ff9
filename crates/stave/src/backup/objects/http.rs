//! Requests over HTTP/1.1 on one connection that is kept open.
//!
//! # Guarantees
//!
//! - Each wait for the other end has a limit, and so has each answer.
//! - A connection on which something went wrong is not used again.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::client::{Channel, Trust};

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long the other end may be silent, or not take what is sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a whole request may take.
const REQUEST_PATIENCE: Duration = Duration::from_secs(600);
const MOST_HEADER_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 64 << 10;

/// What came back.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl HttpAnswer {
    /// A header, by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(one, _)| one == name).map(|(_, value)| &**value)
    }
}

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
        send(&mut channel, request)?;
        let (answer, is_kept) = receive(&mut channel, request, until)?;
        if is_kept {
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

fn send(channel: &mut Channel, request: &HttpRequest<'_>) -> Result<()> {
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    for (name, value) in request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", request.body.len()));
    channel.write_all(head.as_bytes())?;
    channel.write_all(request.body)?;
    channel.flush()
}

/// Bytes that were read and not used yet.
struct AnswerReader<'c> {
    channel: &'c mut Channel,
    bytes: Vec<u8>,
    until: Instant,
}

impl AnswerReader<'_> {
    /// Reads more; `false` at the end of the connection.
    fn more(&mut self) -> Result<bool> {
        let before = self.bytes.len();
        self.bytes.resize(before + READ_BYTES, 0);
        let read = loop {
            if Instant::now() >= self.until {
                break Err(Error::new(ErrorKind::TimedOut, "the answer takes too long"));
            }
            match self.channel.read(&mut self.bytes[before..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    break Err(Error::new(ErrorKind::TimedOut, format!("no answer for {PATIENCE:.0?}")));
                }
                done => break done,
            }
        };
        let read = read.inspect_err(|_| self.bytes.truncate(before))?;
        self.bytes.truncate(before + read);
        Ok(read > 0)
    }

    fn must_have_more(&mut self) -> Result<()> {
        if self.more()? { Ok(()) } else { Err(cut()) }
    }

    /// A line without its end, of a limited length.
    fn line(&mut self) -> Result<String> {
        loop {
            if let Some(at) = self.bytes.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.bytes[..at]).into_owned();
                self.bytes.drain(..at + 2);
                return Ok(line);
            }
            if self.bytes.len() > MOST_HEADER_BYTES {
                return Err(wrong("a line of its answer is too long"));
            }
            self.must_have_more()?;
        }
    }

    /// So many bytes, appended to `into`.
    fn take(&mut self, count: usize, into: &mut Vec<u8>) -> Result<()> {
        let mut left = count;
        loop {
            let now = left.min(self.bytes.len());
            into.extend(self.bytes.drain(..now));
            left -= now;
            if left == 0 {
                return Ok(());
            }
            self.must_have_more()?;
        }
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the connection was cut in the middle of an answer")
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// The answer, and whether the connection can be used again.
fn receive(channel: &mut Channel, request: &HttpRequest<'_>, until: Instant) -> Result<(HttpAnswer, bool)> {
    let mut received = AnswerReader { channel, bytes: Vec::new(), until };
    let status = loop {
        let line = received.line()?;
        let status =
            line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
        let status: u16 = status.ok_or_else(|| wrong("what answers does not speak HTTP/1.1"))?;
        if status >= 200 {
            break status;
        }
        // Such as 100: the answer itself follows.
        while !received.line()?.is_empty() {}
    };
    let (mut headers, mut len) = (Vec::new(), 0);
    loop {
        let line = received.line()?;
        len += line.len();
        if line.is_empty() {
            break;
        }
        if len > MOST_HEADER_BYTES {
            return Err(wrong("the headers of its answer are too long"));
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let mut answer = HttpAnswer { status, headers, body: Vec::new() };
    let is_kept = answer.header("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close"));
    if request.method == "HEAD" || status == 204 || status == 304 {
        return Ok((answer, is_kept));
    }
    let is_measured = read_body(&mut received, &mut answer, request.most)?;
    Ok((answer, is_kept && is_measured && received.bytes.is_empty()))
}

/// Reads the body of an answer; whether it had an end of its own.
fn read_body(received: &mut AnswerReader<'_>, answer: &mut HttpAnswer, most: usize) -> Result<bool> {
    let too_long = || wrong(&format!("its answer has more than {most} bytes"));
    let is_chunked =
        answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
    let length = answer.header("content-length").map(str::parse::<usize>);
    if is_chunked {
        loop {
            let line = received.line()?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
            let size = size.map_err(|_| wrong("a chunk of its answer has no length"))?;
            if size > most - answer.body.len().min(most) {
                return Err(too_long());
            }
            received.take(size, &mut answer.body)?;
            let behind = received.line()?;
            if size == 0 {
                // Trailers, if there are any.
                let mut line = behind;
                while !line.is_empty() {
                    line = received.line()?;
                }
                break;
            }
        }
    } else if let Some(length) = length {
        let length = length.map_err(|_| wrong("the length of its answer is no number"))?;
        if length > most {
            return Err(too_long());
        }
        received.take(length, &mut answer.body)?;
    } else {
        while received.more()? {
            if received.bytes.len() > most {
                return Err(too_long());
            }
        }
        answer.body = std::mem::take(&mut received.bytes);
        return Ok(false);
    }
    Ok(true)
}
