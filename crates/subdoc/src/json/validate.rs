//! A JSON validator without recursion: one bit a nesting level, eight bytes of a string at a time.

/// What a text may consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Exactly one value.
    Single,
    /// One value, or several divided by commas: what may stand between `[` and `]`.
    List,
    /// A value as it may stand behind a key: more `,"key":value` may follow.
    Member,
}

/// What the validator learnt about a text that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Levels of the deepest value; a scalar alone has one.
    pub levels: usize,
    /// Whether bytes outside ASCII occur; whether they are UTF-8 is not looked at.
    pub has_non_ascii: bool,
    /// Whether the (first) value is an object or array.
    pub is_container: bool,
    /// Whether it was more than one value.
    pub is_many: bool,
}

/// The kinds of the open containers, one bit each; only texts deeper than 64 allocate.
struct Stack {
    top: u64,
    len: usize,
    spilled: Vec<u64>,
}

impl Stack {
    fn push(&mut self, is_object: bool) {
        if self.len != 0 && self.len.is_multiple_of(64) {
            self.spilled.push(self.top);
        }
        self.top = (self.top << 1) | u64::from(is_object);
        self.len += 1;
    }

    fn pop(&mut self) {
        self.len -= 1;
        self.top >>= 1;
        if self.len != 0 && self.len.is_multiple_of(64) {
            self.top = self.spilled.pop().unwrap_or(0);
        }
    }

    fn in_object(&self) -> bool {
        self.top & 1 == 1
    }
}

/// Checks `text` against the grammar of RFC 8259; `None` if it does not follow it.
pub(crate) fn check(text: &[u8], shape: Shape) -> Option<Checked> {
    let mut stack = Stack { top: 0, len: 0, spilled: Vec::new() };
    let mut levels = 1;
    let mut non_ascii = 0u64;
    let mut is_many = false;
    let mut at = whitespace(text, 0);
    let is_container = matches!(text.get(at), Some(b'{' | b'['));
    loop {
        at = whitespace(text, at);
        match *text.get(at)? {
            b'"' => at = string(text, at + 1, &mut non_ascii)?,
            b'{' => {
                at = whitespace(text, at + 1);
                if text.get(at) == Some(&b'}') {
                    at += 1;
                } else {
                    stack.push(true);
                    levels = levels.max(stack.len + 1);
                    at = key(text, at, &mut non_ascii)?;
                    continue;
                }
            }
            b'[' => {
                at = whitespace(text, at + 1);
                if text.get(at) == Some(&b']') {
                    at += 1;
                } else {
                    stack.push(false);
                    levels = levels.max(stack.len + 1);
                    continue;
                }
            }
            b'-' | b'0'..=b'9' => at = number(text, at)?,
            b't' => at = literal(text, at, b"true")?,
            b'f' => at = literal(text, at, b"false")?,
            b'n' => at = literal(text, at, b"null")?,
            _ => return None,
        }
        loop {
            at = whitespace(text, at);
            let next = text.get(at);
            if stack.len == 0 {
                match (next, shape) {
                    (None, _) => {
                        let has_non_ascii = non_ascii != 0;
                        return Some(Checked { levels, has_non_ascii, is_container, is_many });
                    }
                    (Some(b','), Shape::List) => at += 1,
                    (Some(b','), Shape::Member) => {
                        at = key(text, whitespace(text, at + 1), &mut non_ascii)?;
                    }
                    _ => return None,
                }
                is_many = true;
                break;
            }
            match (*next?, stack.in_object()) {
                (b',', false) => {
                    at += 1;
                    break;
                }
                (b',', true) => {
                    at = key(text, whitespace(text, at + 1), &mut non_ascii)?;
                    break;
                }
                (b']', false) | (b'}', true) => {
                    at += 1;
                    stack.pop();
                }
                _ => return None,
            }
        }
    }
}

/// From an opening quote over key and colon.
#[inline]
fn key(text: &[u8], at: usize, non_ascii: &mut u64) -> Option<usize> {
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let at = whitespace(text, string(text, at + 1, non_ascii)?);
    if text.get(at) == Some(&b':') { Some(at + 1) } else { None }
}

#[inline]
fn whitespace(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The high bit of every byte of `word` that ends plain string text: `"`, `\` or a control character.
///
/// Bits above the lowest one set may be false (borrows), the lowest one is exact.
#[inline]
pub(crate) fn string_stops(word: u64) -> u64 {
    let quote = word ^ (ONES * u64::from(b'"'));
    let slash = word ^ (ONES * u64::from(b'\\'));
    let is_quote = quote.wrapping_sub(ONES) & !quote;
    let is_slash = slash.wrapping_sub(ONES) & !slash;
    let is_control = word.wrapping_sub(ONES * 0x20) & !word;
    (is_quote | is_slash | is_control) & HIGHS
}

/// From behind the opening quote to behind the closing one.
#[inline]
fn string(text: &[u8], mut at: usize, non_ascii: &mut u64) -> Option<usize> {
    loop {
        while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            let word = u64::from_le_bytes(*chunk);
            let stops = string_stops(word);
            if stops == 0 {
                *non_ascii |= word & HIGHS;
                at += 8;
                continue;
            }
            // Only the bytes before the stop belong to the string for certain.
            *non_ascii |= word & HIGHS & (stops & stops.wrapping_neg()).wrapping_sub(1);
            at += (stops.trailing_zeros() / 8) as usize;
            break;
        }
        match *text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at = escape(text, at + 1)?,
            0..=0x1f => return None,
            byte => {
                *non_ascii |= u64::from(byte & 0x80);
                at += 1;
            }
        }
    }
}

#[cold]
fn escape(text: &[u8], at: usize) -> Option<usize> {
    match *text.get(at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => {
            let digits = text.get(at + 1..at + 5)?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(at + 5)
        }
        _ => None,
    }
}

#[inline]
fn literal(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    (text.get(at..at + word.len()) == Some(word)).then_some(at + word.len())
}

#[inline]
fn digits(text: &[u8], at: usize) -> Option<usize> {
    let mut end = at;
    while let Some(b'0'..=b'9') = text.get(end) {
        end += 1;
    }
    (end > at).then_some(end)
}

#[inline]
fn number(text: &[u8], mut at: usize) -> Option<usize> {
    if text[at] == b'-' {
        at += 1;
    }
    at = match *text.get(at)? {
        b'0' => at + 1,
        _ => digits(text, at)?,
    };
    if text.get(at) == Some(&b'.') {
        at = digits(text, at + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = text.get(at) {
            at += 1;
        }
        at = digits(text, at)?;
    }
    Some(at)
}
