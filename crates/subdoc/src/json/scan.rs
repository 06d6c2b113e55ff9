//! Walking over the members and elements of a JSON text without building anything.
//!
//! The text was found to be JSON when it was stored, or another node said so: a text that is not
//! gives `NotJson`, never a panic, but not every fault is found.

use super::validate::string_stops;
use crate::ops::PathError;

/// Deepest level at which a value may lie for the sub-document commands; the root lies at level 1.
pub(crate) const MAX_LEVELS: usize = 32;

/// Kinds of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// `{}`
    Object,
    /// `[]`
    Array,
}

impl Container {
    fn close(self) -> u8 {
        match self {
            Container::Object => b'}',
            Container::Array => b']',
        }
    }

    /// The container that opens with `byte`.
    pub fn of(byte: u8) -> Option<Container> {
        match byte {
            b'{' => Some(Container::Object),
            b'[' => Some(Container::Array),
            _ => None,
        }
    }
}

/// The first position at or behind `at` that is not whitespace.
pub(crate) fn skip_whitespace(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

/// From the opening quote of a string to behind the closing one.
pub(crate) fn skip_string(text: &[u8], at: usize) -> Result<usize, PathError> {
    let mut at = at + 1;
    loop {
        while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            let stops = string_stops(u64::from_le_bytes(*chunk));
            at += if stops == 0 { 8 } else { (stops.trailing_zeros() / 8) as usize };
            if stops != 0 {
                break;
            }
        }
        match text.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return Err(PathError::NotJson),
        }
    }
}

fn skip_scalar(text: &[u8], at: usize) -> Result<usize, PathError> {
    let mut end = at;
    while let Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'+' | b'.') = text.get(end) {
        end += 1;
    }
    if end == at { Err(PathError::NotJson) } else { Ok(end) }
}

/// From the first byte of a value that lies at `level` to behind its last one.
pub(crate) fn skip_value(text: &[u8], at: usize, level: usize) -> Result<usize, PathError> {
    if level > MAX_LEVELS {
        return Err(PathError::DocumentTooDeep);
    }
    match text.get(at) {
        Some(b'"') => skip_string(text, at),
        Some(b'{' | b'[') => skip_container(text, at, level),
        Some(_) => skip_scalar(text, at),
        None => Err(PathError::NotJson),
    }
}

fn skip_container(text: &[u8], mut at: usize, mut level: usize) -> Result<usize, PathError> {
    // One bit an open container, set for objects; levels are bounded, so a word is enough.
    let mut open = 0u64;
    let outside = level - 1;
    level = outside;
    loop {
        let byte = *text.get(at).ok_or(PathError::NotJson)?;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' => at += 1,
            b'}' | b']' => {
                if (open & 1 == 1) != (byte == b'}') {
                    return Err(PathError::NotJson);
                }
                open >>= 1;
                level -= 1;
                at += 1;
                if level == outside {
                    return Ok(at);
                }
            }
            _ if level >= MAX_LEVELS => return Err(PathError::DocumentTooDeep),
            b'{' | b'[' => {
                open = (open << 1) | u64::from(byte == b'{');
                level += 1;
                at += 1;
            }
            b'"' => at = skip_string(text, at)?,
            _ => at = skip_scalar(text, at)?,
        }
    }
}

/// One member of an object or element of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// First byte: of the key in objects (its quote), of the value in arrays.
    pub start: usize,
    /// The key with its quotes ends here (arrays: equal to `start`).
    pub key_end: usize,
    /// First byte of the value.
    pub value: usize,
    /// The comma before this entry, if it is not the first.
    pub comma: Option<usize>,
}

/// Goes from entry to entry of the container at a position.
///
/// The caller says where each value ends, so that nothing is scanned twice.
pub(crate) struct Walk<'t> {
    text: &'t [u8],
    kind: Container,
    at: usize,
    first: bool,
}

impl<'t> Walk<'t> {
    /// Starts at the opening bracket at `open`; `None` if the value there is no container.
    pub fn new(text: &'t [u8], open: usize) -> Option<Walk<'t>> {
        let kind = Container::of(*text.get(open)?)?;
        Some(Walk { text, kind, at: open + 1, first: true })
    }

    /// Object or array.
    pub fn kind(&self) -> Container {
        self.kind
    }

    /// Where the walk stands: at the closing bracket once `next` has given `None`.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The next entry, or `None` at the closing bracket.
    pub fn next(&mut self) -> Result<Option<Entry>, PathError> {
        let text = self.text;
        let mut at = skip_whitespace(text, self.at);
        let mut comma = None;
        let byte = *text.get(at).ok_or(PathError::NotJson)?;
        if byte == self.kind.close() {
            self.at = at;
            return Ok(None);
        }
        if !self.first {
            if byte != b',' {
                return Err(PathError::NotJson);
            }
            comma = Some(at);
            at = skip_whitespace(text, at + 1);
        }
        self.first = false;
        let start = at;
        let mut key_end = at;
        if self.kind == Container::Object {
            if text.get(at) != Some(&b'"') {
                return Err(PathError::NotJson);
            }
            key_end = skip_string(text, at)?;
            at = skip_whitespace(text, key_end);
            if text.get(at) != Some(&b':') {
                return Err(PathError::NotJson);
            }
            at = skip_whitespace(text, at + 1);
        }
        self.at = at;
        Ok(Some(Entry { start, key_end, value: at, comma }))
    }

    /// Moves on to the end of the value of the last entry.
    pub fn value_ends(&mut self, at: usize) {
        self.at = at;
    }
}
