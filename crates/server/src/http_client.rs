//! As much of HTTP/1.1 (RFC 9112) as asking etcd and other nodes takes: a GET or POST, and an answer with a length, in
//! chunks, or to the end.

mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::env::{Clock, Env};
use rustls::ClientConfig;

use self::wire::Wire;

/// One that cannot be connected to in this time is not waited for: there may be others.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// So much is put together each time that more of it has come.
const LARGE_BYTES: usize = 64 << 10;
/// No chunk is longer.
const MAX_CHUNK_BYTES: usize = 96 << 20;
/// How chunks end, if nothing is said behind them.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
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
    loop {
        if let Some(answer) = answer(&exchange.received)? {
            return Ok(answer);
        }
        if !exchange.read()? {
            if exchange.received.is_empty() {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ask.no_word));
            }
            return whole(&exchange.received);
        }
    }
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
        let ends = exchange.received[looked_at..].contains(&b'\n');
        if ends {
            looked_at = exchange.received.len();
            let lines = lines(&exchange.received)?;
            if lines.iter().any(|line| is_news(line)) {
                return Ok(lines);
            }
        }
        match exchange.read() {
            Ok(true) => {}
            Ok(false) => return lines(&exchange.received),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return lines(&exchange.received),
            Err(error) => return Err(error),
        }
    }
}

/// A request that was sent, and what has come back so far.
struct Exchange<'a> {
    clock: &'a dyn Clock,
    wire: Wire,
    ends: Duration,
    most_bytes: usize,
    received: Vec<u8>,
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
        let mut exchange = Exchange { clock: &*env.clock, wire, ends, most_bytes, received: Vec::new() };
        let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let (method, body) = body.map_or_else(
            || ("GET", "\r\n".to_owned()),
            |json| {
                let len = json.len();
                ("POST", format!("Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{json}"))
            },
        );
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n{token}{body}");
        exchange.wire.send(request.as_bytes())?;
        Ok(exchange)
    }

    /// Takes what has come; false at the end.
    fn read(&mut self) -> io::Result<bool> {
        let mut some = [0; 16 << 10];
        let read = match self.wire.read(&mut some, self.clock, self.ends) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            read => read?,
        };
        self.received.extend_from_slice(&some[..read]);
        if self.received.len() > self.most_bytes {
            return Err(io::Error::other("the answer is too long"));
        }
        Ok(read > 0)
    }
}

fn bad() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what answers does not speak HTTP as was expected")
}

/// Status, headers and the rest, once all headers are there.
fn head(received: &[u8]) -> io::Result<Option<(u16, String, &[u8])>> {
    let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&received[..end]).map_err(|_| bad())?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
    Ok(Some((status, head.to_ascii_lowercase(), &received[end + 4..])))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let line = head.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// The chunks that are there, and whether the last one is.
fn chunks(mut rest: &[u8]) -> io::Result<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok((body, false)) };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| bad())?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size =
            usize::from_str_radix(size, 16).ok().filter(|size| *size <= MAX_CHUNK_BYTES).ok_or_else(bad)?;
        if size == 0 {
            return Ok((body, true));
        }
        let chunk = &rest[end + 2..];
        if chunk.len() < size + 2 {
            body.extend_from_slice(&chunk[..size.min(chunk.len())]);
            return Ok((body, false));
        }
        body.extend_from_slice(&chunk[..size]);
        rest = &chunk[size + 2..];
    }
}

/// The answer, if it is whole.
fn answer(received: &[u8]) -> io::Result<Option<Answer>> {
    let Some((status, head, rest)) = head(received)? else { return Ok(None) };
    if header(&head, "transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        // Putting it together takes time, and what is large comes in many pieces.
        if rest.len() > LARGE_BYTES && !received.ends_with(LAST_CHUNK) {
            return Ok(None);
        }
        let (body, is_whole) = chunks(rest)?;
        return Ok(is_whole.then_some(Answer { status, body }));
    }
    let len = header(&head, "content-length").and_then(|len| len.parse::<usize>().ok());
    Ok(len.filter(|len| rest.len() >= *len).map(|len| Answer { status, body: rest[..len].to_vec() }))
}

/// The answer of one who has closed the connection.
fn whole(received: &[u8]) -> io::Result<Answer> {
    match head(received)? {
        Some((status, head, rest)) if header(&head, "content-length").is_none() => {
            let is_chunked = header(&head, "transfer-encoding").is_some();
            let body = if is_chunked { chunks(rest)?.0 } else { rest.to_vec() };
            Ok(Answer { status, body })
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The whole lines of a body of which more is coming.
fn lines(received: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let Some((_, head, rest)) = head(received)? else { return Ok(Vec::new()) };
    let is_chunked = header(&head, "transfer-encoding").is_some();
    let body = if is_chunked { chunks(rest)?.0 } else { rest.to_vec() };
    let end = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok(body[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_put_together() {
        let text =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        for len in 0..text.len() - 2 {
            let answer = answer(&text[..len]).expect("sound so far");
            assert_eq!(answer.is_some(), len >= text.len() - 2, "{len}");
        }
        assert_eq!(answer(text).expect("sound").map(|answer| answer.body), Some(b"abcde".to_vec()));
        let text = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        let answer = answer(text).expect("sound").expect("whole");
        assert_eq!((answer.status, answer.body), (404, b"{}".to_vec()));
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [
            "x\r\n\r\n".as_bytes(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        ] {
            assert!(answer(text).is_err());
        }
        assert!(whole(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab").is_err());
    }
}
