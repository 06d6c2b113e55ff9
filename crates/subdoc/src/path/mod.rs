//! A sub-document path: dictionary keys and array indexes, parsed without copying.
//!
//! kv_engine docs/SubDocument.md, "Path": dots divide, brackets index, backticks quote, a doubled
//! backtick is one; what JSON needs escaped in a key is escaped in the path as well.

use crate::ops::PathError;

#[cfg(test)]
mod tests;

/// Longest path in bytes.
pub const MAX_PATH_BYTES: usize = 1024;
/// Most components of a path: with the root it reaches as deep as a document may nest.
pub const MAX_COMPONENTS: usize = 31;

/// A key as the path spells it: perhaps quoted with backticks, escaped as in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'p> {
    raw: &'p [u8],
    has_backtick: bool,
    has_escape: bool,
}

impl<'p> Key<'p> {
    /// The bytes of the key with the backticks resolved, still escaped as in a JSON string.
    fn escaped(self) -> impl Iterator<Item = u8> + Clone + use<'p> {
        let mut at = 0;
        let Key { raw, has_backtick, .. } = self;
        std::iter::from_fn(move || {
            while has_backtick && raw.get(at) == Some(&b'`') {
                at += 1;
                if raw.get(at) == Some(&b'`') {
                    break;
                }
            }
            let byte = *raw.get(at)?;
            at += 1;
            Some(byte)
        })
    }

    /// Whether a text that is UTF-8 stays so with this key in it.
    pub(crate) fn is_text(self) -> bool {
        std::str::from_utf8(self.raw).is_ok()
    }

    /// Length of the key as written into a JSON text, without its quotes.
    pub(crate) fn json_len(self) -> usize {
        if self.has_backtick { self.escaped().count() } else { self.raw.len() }
    }

    /// Writes the key as it stands in a JSON text, without its quotes.
    pub(crate) fn write_json(self, out: &mut Vec<u8>) {
        if self.has_backtick {
            out.extend(self.escaped());
        } else {
            out.extend_from_slice(self.raw);
        }
    }

    /// Whether this is the key that `json` (a JSON string without its quotes) spells.
    pub(crate) fn names(self, json: &[u8]) -> bool {
        if !self.has_backtick && !self.has_escape {
            if self.raw == json {
                return true;
            }
            if !json.contains(&b'\\') {
                return false;
            }
        }
        unescaped(self.escaped()).eq(unescaped(json.iter().copied()))
    }
}

/// The bytes that a JSON string spells; halves of surrogate pairs that stand alone are kept as they are.
fn unescaped(mut escaped: impl Iterator<Item = u8> + Clone) -> impl Iterator<Item = u8> {
    let mut buffer = [0u8; 4];
    let mut pending = 0..0;
    std::iter::from_fn(move || {
        if let Some(at) = pending.next() {
            return Some(buffer[at]);
        }
        let byte = escaped.next()?;
        if byte != b'\\' {
            return Some(byte);
        }
        match escaped.next()? {
            b'u' => {
                let len = encode(escaped_unit(&mut escaped), &mut buffer);
                pending = 1..len;
                Some(buffer[0])
            }
            b'b' => Some(8),
            b'f' => Some(12),
            b'n' => Some(b'\n'),
            b'r' => Some(b'\r'),
            b't' => Some(b'\t'),
            other => Some(other),
        }
    })
}

/// What follows `\u`: four digits, and for the first half of a surrogate pair `\u` and four more.
fn escaped_unit(escaped: &mut (impl Iterator<Item = u8> + Clone)) -> u32 {
    let high = hex4(escaped);
    if !(0xd800..0xdc00).contains(&high) {
        return high;
    }
    let mut ahead = escaped.clone();
    if ahead.next() != Some(b'\\') || ahead.next() != Some(b'u') {
        return high;
    }
    let low = hex4(&mut ahead);
    if !(0xdc00..0xe000).contains(&low) {
        return high;
    }
    *escaped = ahead;
    0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)
}

fn hex4(escaped: &mut impl Iterator<Item = u8>) -> u32 {
    escaped.take(4).fold(0, |unit, digit| (unit << 4) | (digit as char).to_digit(16).unwrap_or(0))
}

/// UTF-8 for any code point, surrogates too.
fn encode(unit: u32, buffer: &mut [u8; 4]) -> usize {
    let low = |shift: u32| 0x80 | ((unit >> shift) & 0x3f) as u8;
    match unit {
        0..0x80 => {
            buffer[0] = unit as u8;
            1
        }
        0x80..0x800 => {
            buffer[..2].copy_from_slice(&[0xc0 | (unit >> 6) as u8, low(0)]);
            2
        }
        0x800..0x1_0000 => {
            buffer[..3].copy_from_slice(&[0xe0 | (unit >> 12) as u8, low(6), low(0)]);
            3
        }
        _ => {
            buffer.copy_from_slice(&[0xf0 | ((unit >> 18) & 7) as u8, low(12), low(6), low(0)]);
            4
        }
    }
}

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component<'p> {
    /// The member of that name.
    Key(Key<'p>),
    /// The element at that index, from 0.
    Index(u64),
    /// `[-1]`: the last element.
    Last,
}

/// A parsed path.
#[derive(Clone, Debug)]
pub struct Path<'p> {
    components: [Component<'p>; MAX_COMPONENTS],
    len: usize,
    is_behind_key: bool,
}

impl<'p> Path<'p> {
    /// Parses `text`; the empty path names the root.
    pub fn parse(text: &'p [u8]) -> Result<Path<'p>, PathError> {
        Path::parse_in(text, false)
    }

    /// Parses the path of an attribute, divided behind its key, which is the first component.
    pub(crate) fn parse_attribute(key: &[u8], behind: &'p [u8]) -> Result<Path<'p>, PathError> {
        // A key may hold what a component may not, such as a quotation mark.
        match parse_key(key, 0)? {
            (_, end) if end == key.len() => Path::parse_behind_key(behind),
            _ => Err(PathError::InvalidPath),
        }
    }

    /// Parses what follows the key of an attribute, which is the first component of its path.
    pub(crate) fn parse_behind_key(text: &'p [u8]) -> Result<Path<'p>, PathError> {
        Path::parse_in(text, true)
    }

    fn parse_in(text: &'p [u8], is_behind_key: bool) -> Result<Path<'p>, PathError> {
        if text.len() > MAX_PATH_BYTES {
            return Err(PathError::PathTooBig);
        }
        let mut path = Path { components: [Component::Last; MAX_COMPONENTS], len: 0, is_behind_key };
        let most = MAX_COMPONENTS - usize::from(is_behind_key);
        let mut at = 0;
        while at < text.len() {
            let (component, end) =
                if text[at] == b'[' { parse_index(text, at + 1)? } else { parse_key(text, at)? };
            at = end;
            match path.components[..most].get_mut(path.len) {
                Some(slot) => *slot = component,
                None => return Err(PathError::PathTooBig),
            }
            path.len += 1;
            // A dot at the very end is tolerated, as recorded (`obj.` is `obj`), and one before a bracket
            // (`list.[0]` is `list[0]`).
            match text.get(at) {
                None | Some(b'[') => {}
                Some(b'.') => at += 1,
                Some(_) => return Err(PathError::InvalidPath),
            }
        }
        Ok(path)
    }

    /// The level of the value that the empty path names: an attribute lies in an object of all attributes.
    pub(crate) fn root_level(&self) -> usize {
        1 + usize::from(self.is_behind_key)
    }

    /// The steps from the root.
    pub fn components(&self) -> &[Component<'p>] {
        &self.components[..self.len]
    }
}

/// From behind `[` to behind `]`. Nothing between them is index 0, as recorded.
fn parse_index(text: &[u8], at: usize) -> Result<(Component<'_>, usize), PathError> {
    let rest = &text[at..];
    let len = rest.iter().position(|&byte| byte == b']').ok_or(PathError::InvalidPath)?;
    let end = at + len + 1;
    if &rest[..len] == b"-1" {
        return Ok((Component::Last, end));
    }
    let mut index = 0u64;
    for &digit in &rest[..len] {
        if !digit.is_ascii_digit() {
            return Err(PathError::InvalidPath);
        }
        let more = index.checked_mul(10).and_then(|ten| ten.checked_add(u64::from(digit - b'0')));
        index = more.ok_or(PathError::InvalidPath)?;
    }
    Ok((Component::Index(index), end))
}

fn parse_key(text: &[u8], start: usize) -> Result<(Component<'_>, usize), PathError> {
    let mut at = start;
    let (mut quoted, mut has_backtick, mut has_escape) = (false, false, false);
    while let Some(&byte) = text.get(at) {
        match byte {
            b'`' => {
                has_backtick = true;
                if text.get(at + 1) == Some(&b'`') {
                    at += 1;
                } else {
                    quoted = !quoted;
                }
            }
            b'.' | b'[' if !quoted => break,
            b']' if !quoted => return Err(PathError::InvalidPath),
            b'"' | 0..=0x1f => return Err(PathError::InvalidPath),
            b'\\' => {
                has_escape = true;
                at += 1;
                match text.get(at) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {}
                    _ => return Err(PathError::InvalidPath),
                }
            }
            _ => {}
        }
        at += 1;
    }
    // A quoted key of no length is as little a key as none.
    if quoted || matches!(&text[start..at], b"" | b"``") {
        return Err(PathError::InvalidPath);
    }
    Ok((Component::Key(Key { raw: &text[start..at], has_backtick, has_escape }), at))
}
