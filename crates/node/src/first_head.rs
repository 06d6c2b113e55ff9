//! The head of the first request of an HTTP connection, kept until all of it is there (record 185).
//!
//! *Guarantee:* nothing is given before the head is there, cannot become one, or the client has ended; then all that came,
//! but for empty lines in front of it, is given once, in order. What is held is what came, and less than a kibibyte more.

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
    is_there: bool,
}

impl FirstHead {
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
        let new = self.bytes.get(from..).unwrap_or_default();
        let has_end =
            new.windows(2).any(|two| two == b"\n\n") || new.windows(3).any(|three| three == b"\n\r\n");
        let is_line = !self.has_line && came.contains(&b'\n');
        self.has_line |= is_line;
        let is_request =
            self.bytes.first().is_some_and(u8::is_ascii_alphabetic) && !(is_line && self.has_other_line());
        self.is_there = has_end || !is_request;
    }

    /// Nothing more comes.
    pub fn end(&mut self) {
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
