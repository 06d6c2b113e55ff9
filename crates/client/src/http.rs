//! Requests of HTTP/1.1 (RFC 9112) and their answers, which are taken apart as their bytes come.
//!
//! # Guarantees
//!
//! - An answer is whole, or an error: one that was cut is never taken for a short one.
//! - Neither the head of an answer nor its body takes more memory than its reader allows.

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Longer heads, and lines between chunks, are refused.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// More headers are refused.
const MOST_HEADERS: usize = 128;
/// Bytes that one read asks for.
const READ_BYTES: usize = 64 << 10;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Names and values, with `Host`; the length of the body is added.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body, which may be empty.
    pub body: &'a [u8],
}

impl Request<'_> {
    /// Its bytes up to the body.
    fn head(&self) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", self.body.len()));
        head
    }

    /// All its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head().into_bytes();
        bytes.extend_from_slice(self.body);
        bytes
    }

    /// Sends it.
    pub fn send(&self, to: &mut impl Write) -> Result<()> {
        to.write_all(self.head().as_bytes())?;
        to.write_all(self.body)?;
        to.flush()
    }
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// Names in lower case, and values.
    headers: Vec<(String, String)>,
    /// The body, put together.
    pub body: Vec<u8>,
    /// Whether another request may be sent on the same connection.
    pub is_kept: bool,
}

impl HttpAnswer {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Whether the status says success.
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body as text; what is no UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The same, without a copy if it is UTF-8.
    pub fn into_text(self) -> String {
        String::from_utf8(self.body)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

fn header<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(one, _)| one == name).map(|(_, value)| &**value)
}

/// Why there is no answer: its bytes are none of HTTP/1.1, or there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHttp {
    /// The first byte; `None` if the connection was closed before one came.
    pub first: Option<u8>,
}

impl std::fmt::Display for NoHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.first {
            Some(_) => "what answers does not speak HTTP/1.1",
            None => "the connection was closed before an answer came",
        })
    }
}

impl std::error::Error for NoHttp {}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Head,
    /// So many bytes, the last ones.
    Length(usize),
    ChunkSize,
    /// So many bytes of a chunk.
    Chunk(usize),
    ChunkEnd,
    /// Lines up to an empty one.
    Trailers,
    /// Whatever comes until the other end closes the connection.
    ToTheEnd,
    Nothing,
}

/// Takes an answer apart.
#[derive(Debug)]
pub struct AnswerReader {
    /// Whether the answer has no body, whatever its head says.
    is_head: bool,
    most_body_bytes: usize,
    received: Vec<u8>,
    next: Next,
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl AnswerReader {
    /// Of the answer to a request with this method; a longer body is an error.
    pub fn new(method: &str, most_body_bytes: usize) -> AnswerReader {
        AnswerReader {
            is_head: method == "HEAD",
            most_body_bytes,
            received: Vec::new(),
            next: Next::Head,
            status: 0,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// The body as far as it has come.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether not one byte has come.
    pub fn is_untouched(&self) -> bool {
        self.next == Next::Head && self.status == 0 && self.received.is_empty()
    }

    /// Takes bytes that were received; whether the answer is whole.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<bool> {
        let received = std::mem::take(&mut self.received);
        let joined = [&received[..], bytes];
        // Seldom is anything left of the bytes before.
        let (kept, all) = if received.is_empty() { (Vec::new(), bytes) } else { (joined.concat(), &[][..]) };
        let all = if kept.is_empty() { all } else { &kept[..] };
        let mut rest = all;
        while self.next != Next::Nothing {
            let used = self.step(rest)?;
            if used == 0 {
                break;
            }
            rest = &rest[used..];
        }
        self.received = rest.to_vec();
        Ok(self.next == Next::Nothing)
    }

    /// Takes what comes next, if it is there; how many bytes that were.
    fn step(&mut self, rest: &[u8]) -> Result<usize> {
        match self.next {
            Next::Head => self.take_head(rest),
            Next::ChunkSize => self.take_chunk_size(rest),
            Next::Length(left) | Next::Chunk(left) => {
                let used = left.min(rest.len());
                self.body.extend_from_slice(&rest[..used]);
                self.next = match (self.next, left - used) {
                    (Next::Length(_), 0) => Next::Nothing,
                    (Next::Length(_), left) => Next::Length(left),
                    (_, 0) => Next::ChunkEnd,
                    (_, left) => Next::Chunk(left),
                };
                Ok(used)
            }
            Next::ChunkEnd => match rest {
                [b'\r', b'\n', ..] => {
                    self.next = Next::ChunkSize;
                    Ok(2)
                }
                [] | [b'\r'] => Ok(0),
                _ => Err(wrong("a chunk of its answer does not end where it says")),
            },
            Next::Trailers => {
                let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
                    return partial(rest, "a line of its answer is too long");
                };
                if end == 0 {
                    self.next = Next::Nothing;
                }
                Ok(end + 2)
            }
            Next::ToTheEnd => {
                if rest.len() > self.most_body_bytes - self.body.len() {
                    return Err(self.too_long());
                }
                self.body.extend_from_slice(rest);
                Ok(rest.len())
            }
            Next::Nothing => Ok(0),
        }
    }

    fn take_head(&mut self, rest: &[u8]) -> Result<usize> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let Ok(parsed) = head.parse(rest) else {
            return Err(Error::new(ErrorKind::InvalidData, NoHttp { first: rest.first().copied() }));
        };
        let httparse::Status::Complete(used) = parsed else {
            return partial(rest, "the headers of its answer are too long");
        };
        self.status = head.code.unwrap_or_default();
        if self.status < 200 {
            // Such as 100: the answer itself follows.
            return Ok(used);
        }
        let value = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
        self.headers =
            head.headers.iter().map(|one| (one.name.to_ascii_lowercase(), value(one.value))).collect();
        self.next = self.after_head()?;
        Ok(used)
    }

    fn after_head(&self) -> Result<Next> {
        if self.is_head || self.status == 204 || self.status == 304 {
            return Ok(Next::Nothing);
        }
        if self.header("transfer-encoding").is_some_and(|how| how.to_ascii_lowercase().contains("chunked")) {
            return Ok(Next::ChunkSize);
        }
        let Some(length) = self.header("content-length") else { return Ok(Next::ToTheEnd) };
        let length = length.parse().map_err(|_| wrong("the length of its answer is no number"))?;
        match length {
            0 => Ok(Next::Nothing),
            _ if length > self.most_body_bytes => Err(self.too_long()),
            _ => Ok(Next::Length(length)),
        }
    }

    fn take_chunk_size(&mut self, rest: &[u8]) -> Result<usize> {
        let Ok(parsed) = httparse::parse_chunk_size(rest) else {
            return Err(wrong("a chunk of its answer has no length"));
        };
        let httparse::Status::Complete((used, size)) = parsed else {
            return partial(rest, "a line of its answer is too long");
        };
        let left = self.most_body_bytes - self.body.len();
        self.next = match usize::try_from(size) {
            Ok(0) => Next::Trailers,
            Ok(size) if size <= left => Next::Chunk(size),
            _ => return Err(self.too_long()),
        };
        Ok(used)
    }

    fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    fn too_long(&self) -> Error {
        wrong(&format!("its answer has more than {} bytes", self.most_body_bytes))
    }

    /// The answer, behind which nothing more is read: it is whole, or the other end has closed the connection.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if it is not whole, with [`NoHttp`] if not one byte of it came.
    pub fn finish(self) -> Result<HttpAnswer> {
        if self.is_untouched() {
            return Err(Error::new(ErrorKind::UnexpectedEof, NoHttp { first: None }));
        }
        if !matches!(self.next, Next::Nothing | Next::ToTheEnd) {
            let what = "the connection was cut in the middle of an answer";
            return Err(Error::new(ErrorKind::UnexpectedEof, what));
        }
        let is_closed = self.header("connection").is_some_and(|how| how.eq_ignore_ascii_case("close"));
        let is_kept = self.next == Next::Nothing && self.received.is_empty() && !is_closed;
        Ok(HttpAnswer { status: self.status, headers: self.headers, body: self.body, is_kept })
    }
}

/// Nothing is used until more has come, of which there is a limit.
fn partial(rest: &[u8], what: &str) -> Result<usize> {
    if rest.len() > MOST_HEAD_BYTES { Err(wrong(what)) } else { Ok(0) }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

/// Sends a request and reads its answer, which has at most so many bytes of body; `before` is called before each read,
/// for example to say how long it may take.
pub fn exchange<S: Read + Write>(
    stream: &mut S,
    request: &Request<'_>,
    most_body_bytes: usize,
    before: &mut dyn FnMut(&mut S) -> Result<()>,
) -> Result<HttpAnswer> {
    request.send(stream)?;
    let mut reader = AnswerReader::new(request.method, most_body_bytes);
    let mut bytes = vec![0; READ_BYTES];
    loop {
        before(stream)?;
        match stream.read(&mut bytes) {
            Ok(0) => return reader.finish(),
            Ok(read) if reader.feed(&bytes[..read])? => return reader.finish(),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The answer in these bytes, which come in pieces of a size, and then the end.
    fn answer(text: &[u8], piece: usize, most: usize) -> Result<HttpAnswer> {
        let mut reader = AnswerReader::new("GET", most);
        for bytes in text.chunks(piece) {
            if reader.feed(bytes)? {
                break;
            }
        }
        reader.finish()
    }

    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
    const MEASURED: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nX-A:  b \r\n\r\n{}";

    #[test]
    fn answers_are_whole_however_they_come() {
        for piece in 1..=CHUNKED.len() {
            let whole = answer(CHUNKED, piece, 5).unwrap();
            assert!((whole.status, &whole.body[..], whole.is_kept) == (200, b"abcde", true), "{piece}");
            let whole = answer(MEASURED, piece, 2).unwrap();
            assert_eq!((whole.status, whole.text().as_str(), whole.header("x-a")), (404, "{}", Some("b")));
        }
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end";
        let whole = answer(text, 7, 100).unwrap();
        assert!(whole.text() == "to the end" && !whole.is_kept && whole.is_ok());
        let none = answer(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 9, 9).unwrap();
        assert!(none.body.is_empty() && none.is_kept);
        let mut reader = AnswerReader::new("HEAD", 9);
        assert!(reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap());
    }

    #[test]
    fn one_that_was_cut_is_an_error() {
        for text in [CHUNKED, MEASURED] {
            for len in 0..text.len() {
                let error = answer(&text[..len], 1, 100).expect_err("it is cut");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
            }
        }
    }

    #[test]
    fn one_that_is_wrong_or_too_long_is_an_error() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let texts = [
            "x\r\n\r\n".to_owned(),
            format!("{head}zz\r\n"),
            format!("{head}ffffffffffffffff\r\n"),
            format!("{head}ffffffffffffffffff\r\n"),
            format!("{head}1\r\nabc\r\n0\r\n\r\n"),
            format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(2 * MOST_HEAD_BYTES)),
            "HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_owned(),
            format!("HTTP/1.1 200 OK\r\n\r\n{}", "y".repeat(101)),
        ];
        for text in texts {
            let error = answer(text.as_bytes(), 1000, 100).expect_err("it is wrong");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{text}");
        }
    }

    #[test]
    fn a_request_says_how_long_its_body_is() {
        let headers = [("Host", "h:1")];
        let request = Request { method: "POST", target: "/a?b", headers: &headers, body: b"c=d" };
        assert_eq!(request.bytes(), b"POST /a?b HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\nc=d");
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(text: Vec<u8>, piece in 1..9usize) {
            for head in [&b""[..], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 \r\n"] {
                let _ = answer(&[head, &text].concat(), piece, 20);
            }
        }
    }
}
