//! Redis' protocol, as far as SET and GET need it ("Redis serialization protocol specification", RESP2).

use base::limits::MAX_VALUE_BYTES;
use protocol::Status;

/// The status that stands for an error of Redis, which has a text instead of a number.
pub const ERROR: u16 = u16::MAX;
/// A line ends within so many bytes: lengths are short, and so are the texts of errors.
const MAX_LINE_BYTES: usize = 4_096;

/// The beginning of received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole answer.
    Answer {
        /// What it would be in the binary protocol.
        status_code: u16,
        /// Bytes it takes.
        len: usize,
    },
    /// The answer is not whole.
    Incomplete {
        /// How long it is; 0 if that cannot be told yet.
        need: usize,
    },
    /// No answer to what we ask.
    Bad,
}

/// Looks at the answer that `bytes` begin with.
pub fn parse(bytes: &[u8]) -> Parsed {
    let Some(end) = bytes.iter().take(MAX_LINE_BYTES).position(|byte| *byte == b'\n') else {
        return if bytes.len() < MAX_LINE_BYTES { Parsed::Incomplete { need: 0 } } else { Parsed::Bad };
    };
    let Some((kind, text)) = bytes[..end].strip_suffix(b"\r").and_then(|line| line.split_first()) else {
        return Parsed::Bad;
    };
    let line = |status_code| Parsed::Answer { status_code, len: end + 1 };
    match kind {
        b'+' | b':' => line(Status::Success.code()),
        b'-' => line(ERROR),
        b'$' if text == b"-1" => line(Status::KeyEnoent.code()),
        b'$' => match length(text) {
            Some(value) if bytes.len() < end + 1 + value + 2 => {
                Parsed::Incomplete { need: end + 1 + value + 2 }
            }
            Some(value) => Parsed::Answer { status_code: Status::Success.code(), len: end + 1 + value + 2 },
            None => Parsed::Bad,
        },
        _ => Parsed::Bad,
    }
}

fn length(text: &[u8]) -> Option<usize> {
    let length = std::str::from_utf8(text).ok()?.parse().ok()?;
    (length <= MAX_VALUE_BYTES).then_some(length)
}

/// Appends `GET key`.
#[inline]
pub fn write_get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    write_bulk(out, key);
}

/// Appends `SET key value`.
#[inline]
pub fn write_set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    write_bulk(out, key);
    write_bulk(out, value);
}

#[inline]
fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut digits = [b'0'; 20];
    let (mut rest, mut at) = (bytes.len(), digits.len());
    while rest > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.push(b'$');
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Status, len: usize) -> Parsed {
        Parsed::Answer { status_code: status.code(), len }
    }

    #[test]
    fn reads_what_redis_answers() {
        assert_eq!(parse(b"+OK\r\n+OK"), answer(Status::Success, 5));
        assert_eq!(parse(b"$-1\r\n"), answer(Status::KeyEnoent, 5));
        assert_eq!(parse(b"$3\r\na\nb\r\nrest"), answer(Status::Success, 9));
        assert_eq!(parse(b"$0\r\n\r\n"), answer(Status::Success, 6));
        assert_eq!(parse(b"-ERR no\r\n"), Parsed::Answer { status_code: ERROR, len: 9 });
    }

    #[test]
    fn waits_for_the_rest() {
        for (bytes, need) in [(&b""[..], 0), (b"+", 0), (b"+OK\r", 0), (b"$3\r\n", 9), (b"$3\r\nabc\r", 9)] {
            assert_eq!(parse(bytes), Parsed::Incomplete { need }, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn refuses_what_is_no_answer() {
        for bytes in
            [&b"\n"[..], b"\r\n", b"OK\r\n", b"$x\r\n", b"$-2\r\n", b"$99999999999\r\n", &[b'+'; 5_000]]
        {
            assert_eq!(parse(bytes), Parsed::Bad, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn writes_requests() {
        let mut out = Vec::new();
        write_get(&mut out, b"k");
        write_set(&mut out, b"key", &[b'x'; 10]);
        write_set(&mut out, b"", b"");
        let expected = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$10\r\nxxxxxxxxxx\r\n\
                        *3\r\n$3\r\nSET\r\n$0\r\n\r\n$0\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
