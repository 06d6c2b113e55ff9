//! The head of the first request of an HTTP connection, kept until all of it is there, and with it a body that is as small
//! as a client's must be that has not logged in (records 185 and 192).
//!
//! *Guarantee:* nothing is given before head and body are there, cannot become that, or the client has ended; then all that
//! came, but for empty lines in front of it, is given once, in order. What is held is what came, and less than a kibibyte
//! more.

/// The largest body of a client that has not logged in: a form with some names and a password.
pub const MOST_OF_STRANGERS: usize = 4 << 10;

/// What is reserved at once.
const STEP_BYTES: usize = 1 << 10;
/// What the first line of a request has before its version.
const VERSION: &[u8] = b" HTTP/";

/// The head of the first request.
#[derive(Debug, Default)]
pub struct FirstHead {
    bytes: Vec<u8>,
    /// So many of them were given.
    given: usize,
    /// The first line is there.
    has_line: bool,
    /// Where the request ends: behind its body, if that is kept, too. Known once the head is there.
    end: Option<usize>,
    /// The most that head and body may have together for the body to be kept.
    most: usize,
    is_there: bool,
    /// Head and body came as the head says.
    is_whole: bool,
}

/// Where a head ends in `bytes`, of which those before `from` have no end.
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    let new = bytes.get(from..)?;
    let behind =
        |end: &[u8]| new.windows(end.len()).position(|part| part == end).map(|at| from + at + end.len());
    [behind(b"\n\n"), behind(b"\n\r\n")].into_iter().flatten().min()
}

/// How long the body is that a head announces; `None` if it does not say so, or has the client wait for leave to send it.
fn body_len(head: &[u8]) -> Option<usize> {
    let mut len = Some(0);
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("transfer-encoding") || is("expect") {
            return None;
        }
        if is("content-length") {
            let value = std::str::from_utf8(value.get(1..)?).ok()?.trim();
            len = value.parse().ok();
        }
    }
    len
}

impl FirstHead {
    /// For a connection on which head and body may have fewer than `most` bytes together.
    pub fn of(most: usize) -> FirstHead {
        FirstHead { most, ..FirstHead::default() }
    }

    /// Whether the body of the request, if it has one, was kept and is there.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether it may be given.
    pub fn is_there(&self) -> bool {
        self.is_there
    }

    /// Takes what came.
    pub fn take(&mut self, mut came: &[u8]) {
        if self.bytes.is_empty() {
            // Empty lines in front of a request are passed over (RFC 9112, section 2.2): hyper would wait behind them.
            let is_filling = |byte: &u8| matches!(byte, b'\r' | b'\n');
            came = &came[came.iter().take_while(|byte| is_filling(byte)).count()..];
            if came.is_empty() {
                return;
            }
        }
        if self.bytes.capacity() - self.bytes.len() < came.len() {
            self.bytes.reserve_exact(came.len().max(STEP_BYTES));
        }
        // An end may have begun in what came before.
        let from = self.bytes.len().saturating_sub(2);
        self.bytes.extend_from_slice(came);
        if self.end.is_none()
            && let Some(head) = end_of_head(&self.bytes, from)
        {
            let body = body_len(self.bytes.get(..head).unwrap_or_default());
            let kept =
                body.filter(|body| *body <= MOST_OF_STRANGERS && (*body == 0 || head + body < self.most));
            self.is_whole = kept.is_some();
            self.end = Some(head + kept.unwrap_or(0));
        }
        let has_end = self.end.is_some_and(|end| self.bytes.len() >= end);
        let is_line = !self.has_line && came.contains(&b'\n');
        self.has_line |= is_line;
        let is_request =
            self.bytes.first().is_some_and(u8::is_ascii_alphabetic) && !(is_line && self.has_other_line());
        self.is_there = has_end || !is_request;
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
        self.is_whole = false;
        self.is_there = true;
    }

    /// Whether the first line is not a request's, which hyper answers at once.
    fn has_other_line(&self) -> bool {
        let end = self.bytes.iter().position(|byte| *byte == b'\n').unwrap_or(self.bytes.len());
        let line = self.bytes.get(..end).unwrap_or_default();
        !line.windows(VERSION.len()).any(|part| part == VERSION)
    }

    /// At most so many of the bytes that were not given yet, which are given herewith; none behind the last one.
    pub fn give(&mut self, most: usize) -> &[u8] {
        let left = self.bytes.get(self.given..).unwrap_or_default();
        let now = left.get(..most).unwrap_or(left);
        self.given += now.len();
        now
    }

    /// Gives the memory back, if all was given.
    pub fn let_go(&mut self) {
        if self.given == self.bytes.len() {
            self.bytes = Vec::new();
            self.given = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pieces: &[&str]) -> FirstHead {
        let mut head = FirstHead::default();
        for piece in pieces {
            assert!(!head.is_there(), "{pieces:?}");
            head.take(piece.as_bytes());
        }
        head
    }

    #[test]
    fn a_head_is_given_when_its_end_has_come() {
        for pieces in [
            &["GET / HTTP/1.1\r\n\r\n"][..],
            &["GET / HTTP/1.1\r\nHost: x\r\n\r\nbody"],
            &["G", "ET / HTTP/1.1\r", "\n", "\r", "\n"],
            &["GET / HTTP/1.1\n", "\n"],
            &["GET / HTTP/1.1\r\nX: y\r\n\r", "\n"],
        ] {
            assert!(after(pieces).is_there(), "{pieces:?}");
        }
        for pieces in [&["G"][..], &["GET / HTTP/1.1\r\n", "\r"], &["GET / HTTP/1.1\r\nX: a\n", "b\r\n"]] {
            assert!(!after(pieces).is_there(), "{pieces:?}");
        }
    }

    #[test]
    fn a_small_body_is_kept_with_its_head() {
        const POST: &str = "POST / HTTP/1.1\r\nHost: x\r\n";
        let taken = |pieces: &[&str]| {
            let mut head = FirstHead::of(8 << 10);
            for piece in pieces {
                assert!(!head.is_there(), "{pieces:?}");
                head.take(piece.as_bytes());
            }
            (head.is_there(), head.is_whole())
        };
        let of = |fields: &str, body: &str| {
            let head = format!("{POST}{fields}\r\n");
            taken(&[&format!("{head}{body}")])
        };
        assert_eq!(of("Content-Length: 4\r\n", "nam"), (false, true), "the rest of the body is waited for");
        assert_eq!(of("CONTENT-LENGTH:4\r\n", "name"), (true, true));
        assert_eq!(taken(&[POST, "Content-Length: 4\r\n\r", "\n", "na", "me"]), (true, true));
        let large = "x".repeat(4_096);
        assert_eq!(of("Content-Length: 4096\r\n", &large), (true, true));
        // These are answered at once: no more of them is kept.
        for fields in [
            "Content-Length: 4097\r\n",
            "Content-Length: many\r\n",
            "Content-Length: 4\r\nExpect: 100-continue\r\n",
            "Transfer-Encoding: chunked\r\n",
            &format!("X: {large}\r\nContent-Length: 4096\r\n"),
        ] {
            assert_eq!(of(fields, ""), (true, false), "{fields}");
        }
        assert_eq!(of("", ""), (true, true), "there is no body");
        let mut ended = FirstHead::of(8 << 10);
        ended.take(format!("{POST}Content-Length: 4\r\n\r\nna").as_bytes());
        ended.end();
        assert_eq!((ended.is_there(), ended.is_whole()), (true, false));
    }

    #[test]
    fn what_is_no_request_is_given_at_once() {
        for piece in ["\u{80}\u{1f}", "hello\r\n", "GET /\n", " GET / HTTP/1.1"] {
            assert!(after(&[piece]).is_there(), "{piece:?}");
        }
    }

    #[test]
    fn empty_lines_in_front_of_a_head_are_passed_over() {
        let mut head = after(&["\r\n", "\n\r\n\r\nGET / HTTP/1.1\r\n", "\r\n"]);
        assert!(head.is_there());
        assert_eq!(head.give(100), b"GET / HTTP/1.1\r\n\r\n");
        let head = after(&["\r\n", "\r\n\r\n"]);
        assert_eq!((head.is_there(), head.bytes.capacity()), (false, 0));
    }

    #[test]
    fn all_that_came_is_given_once_and_in_order() {
        let mut head = after(&["GET / HTTP/1.1\r\nX: ", &"y".repeat(5_000), "\r\n\r\nbody"]);
        assert!(head.bytes.capacity() < head.bytes.len() + STEP_BYTES);
        let mut given = Vec::new();
        loop {
            match head.give(24) {
                [] => break,
                bytes => given.extend_from_slice(bytes),
            }
            head.let_go();
        }
        assert_eq!(given.len(), 5_000 + 27);
        assert!(given.starts_with(b"GET / ") && given.ends_with(b"\r\n\r\nbody"));
        assert_eq!(head.bytes.capacity(), 0);
        let mut ended = after(&["GET"]);
        ended.end();
        assert_eq!((ended.is_there(), ended.give(9)), (true, &b"GET"[..]));
    }
}
