//! What a node asks etcd and other nodes over HTTP/1.1: a GET or POST, and its answer, whole or line by line.

mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::env::{Clock, Env};
use client::http::{AnswerReader, Request};
use rustls::ClientConfig;

use self::wire::Wire;

/// One that cannot be connected to in this time is not waited for: there may be others.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that one read asks for.
const READ_BYTES: usize = 16 << 10;

/// An answer.
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The body, put together.
    pub(crate) body: Vec<u8>,
}

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Who is asked, `HOST:PORT`, and where that is.
    pub(crate) endpoint: &'a str,
    pub(crate) addr: SocketAddr,
    /// What the connection is encrypted with; nothing if it is not.
    pub(crate) tls: Option<&'a Arc<ClientConfig>>,
    pub(crate) path: &'a str,
    /// What shows who asks, if anybody wants to know.
    pub(crate) token: Option<&'a str>,
    /// JSON that is sent with POST; without it, the request is a GET.
    pub(crate) body: Option<&'a str>,
    /// A longer answer is refused.
    pub(crate) most_bytes: usize,
    /// What it means if the connection ends without an answer.
    pub(crate) no_word: &'a str,
}

/// Asks, and waits for the whole answer.
pub(crate) fn ask(env: &Env, ask: Ask<'_>, timeout: Duration) -> io::Result<Answer> {
    let mut exchange = Exchange::begin(env, ask, timeout)?;
    while exchange.read()? {}
    if exchange.reader.is_untouched() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ask.no_word));
    }
    let answer = exchange.reader.finish()?;
    Ok(Answer { status: answer.status, body: answer.body })
}

/// Asks for a stream of lines, and reads until one of them `is_news`, the other end has nothing more to say, or
/// `at_most` has passed since it was asked. Returns the lines that have come.
///
/// # Errors
///
/// Also if the connection is not made, and the question not sent, in the time of `timeout`: that end does not answer,
/// however long or short the watch is to be.
pub(crate) fn watch(
    env: &Env,
    ask: Ask<'_>,
    timeout: Duration,
    at_most: Duration,
    is_news: &dyn Fn(&[u8]) -> bool,
) -> io::Result<Vec<Vec<u8>>> {
    let mut exchange = Exchange::begin(env, ask, timeout)?;
    exchange.ends = env.clock.monotonic() + at_most;
    let mut looked_at = 0;
    loop {
        // A line may be long: it is looked at when it has come to its end.
        let body = exchange.reader.body();
        if body[looked_at..].contains(&b'\n') {
            looked_at = body.len();
            let whole = lines(body);
            if whole.iter().any(|line| is_news(line)) {
                return Ok(whole);
            }
        }
        match exchange.read() {
            Ok(true) => {}
            Ok(false) => return Ok(lines(exchange.reader.body())),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Ok(lines(exchange.reader.body()));
            }
            Err(error) => return Err(error),
        }
    }
}

/// A request that was sent, and what has come back so far.
struct Exchange<'a> {
    clock: &'a dyn Clock,
    wire: Wire,
    ends: Duration,
    reader: AnswerReader,
}

impl Exchange<'_> {
    fn begin<'a>(env: &'a Env, ask: Ask<'_>, timeout: Duration) -> io::Result<Exchange<'a>> {
        let Ask { endpoint, addr, tls, path, token, body, most_bytes, .. } = ask;
        let ends = env.clock.monotonic() + timeout;
        let stream = env.network.connect_within(addr, CONNECT_TIMEOUT.min(timeout))?.into_std();
        let stream = stream.ok_or_else(|| io::Error::other("a network without sockets"))?;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        let wire = Wire::new(stream, endpoint, tls, &*env.clock, ends)?;
        let method = if body.is_some() { "POST" } else { "GET" };
        let reader = AnswerReader::new(method, most_bytes);
        let mut exchange = Exchange { clock: &*env.clock, wire, ends, reader };
        let mut headers = vec![("Host", endpoint), ("Connection", "close")];
        headers.extend(token.map(|token| ("Authorization", token)));
        headers.extend(body.map(|_| ("Content-Type", "application/json")));
        let body = body.unwrap_or_default().as_bytes();
        exchange.wire.send(&Request { method, target: path, headers: &headers, body }.bytes())?;
        Ok(exchange)
    }

    /// Takes what has come; false at the end of the answer, or of the connection.
    fn read(&mut self) -> io::Result<bool> {
        let mut some = [0; READ_BYTES];
        match self.wire.read(&mut some, self.clock, self.ends) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Ok(0) => Ok(false),
            read => Ok(!self.reader.feed(&some[..read?])?),
        }
    }
}

/// The whole lines of a body of which more is coming.
fn lines(body: &[u8]) -> Vec<Vec<u8>> {
    let end = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    body[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}
