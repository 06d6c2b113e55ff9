//! The section of extended attributes in front of a document's body.
//!
//! kv_engine docs/Document.md, "XAttr": a u32 with the length of what follows, then for every pair a
//! u32 with its length, the key, a zero byte, the value (JSON), a zero byte; all numbers big endian.

use crate::DATATYPE_XATTR;
use crate::json::is_json;

#[cfg(test)]
mod tests;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 15;

/// Bytes of a pair beside key and value: its length and two zeros.
const PAIR_OVERHEAD: usize = 6;

/// What is wrong with a section of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrError {
    /// A length points beyond the value, or leaves bytes over.
    Length,
    /// A zero byte is missing where one must be.
    Unterminated,
    /// A key is empty, too long, or of a form that is not allowed.
    Key,
    /// A key occurs twice.
    DuplicateKey,
    /// A value is not JSON.
    Value,
}

/// The kinds of attributes, told apart by the first byte of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Goes when the document is deleted.
    User,
    /// `_`: survives in the tombstone.
    System,
    /// `$`: computed, never stored.
    Virtual,
}

/// The kind of `key`, or `None` if it is no valid key (kv_engine docs/ExtendedAttributes.md).
pub fn key_kind(key: &[u8]) -> Option<KeyKind> {
    let first = *key.first()?;
    if key.len() > MAX_KEY_BYTES || key.contains(&0) || std::str::from_utf8(key).is_err() {
        return None;
    }
    match first {
        b'_' if key.len() > 1 => Some(KeyKind::System),
        b'$' if key.len() > 1 => Some(KeyKind::Virtual),
        _ if first.is_ascii_punctuation() || first.is_ascii_control() => None,
        _ => Some(KeyKind::User),
    }
}

/// Extended attributes as they lie in a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xattrs<'a> {
    /// The pairs, without the length in front of them.
    pairs: &'a [u8],
}

/// Divides a stored value (inflated) into attributes and body, as its datatype says.
///
/// Only the outer length is checked; `Xattrs::check` looks at the pairs.
pub fn split(value: &[u8], datatype: u8) -> Result<(Xattrs<'_>, &[u8]), XattrError> {
    if datatype & DATATYPE_XATTR == 0 {
        return Ok((Xattrs::default(), value));
    }
    let (length, rest) = value.split_first_chunk::<4>().ok_or(XattrError::Length)?;
    let length = u32::from_be_bytes(*length) as usize;
    let (pairs, body) = rest.split_at_checked(length).ok_or(XattrError::Length)?;
    Ok((Xattrs { pairs }, body))
}

/// Checks a value that came from outside with the xattr datatype: every length, key and value.
pub fn validate(value: &[u8]) -> Result<(), XattrError> {
    split(value, DATATYPE_XATTR)?.0.check()
}

/// A pair and what follows it.
struct Pair<'a> {
    key: &'a [u8],
    value: &'a [u8],
    rest: &'a [u8],
}

/// Takes the first pair off `pairs`.
fn next_pair(pairs: &[u8]) -> Result<Pair<'_>, XattrError> {
    let (length, rest) = pairs.split_first_chunk::<4>().ok_or(XattrError::Length)?;
    let length = u32::from_be_bytes(*length) as usize;
    let (pair, rest) = rest.split_at_checked(length).ok_or(XattrError::Length)?;
    let zero = pair.iter().position(|&byte| byte == 0).ok_or(XattrError::Unterminated)?;
    let value = pair[zero + 1..].strip_suffix(&[0]).ok_or(XattrError::Unterminated)?;
    Ok(Pair { key: &pair[..zero], value, rest })
}

impl<'a> Xattrs<'a> {
    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.pairs.is_empty()
    }

    /// Checks every pair.
    pub fn check(self) -> Result<(), XattrError> {
        let mut rest = self.pairs;
        let mut keys = Vec::new();
        while !rest.is_empty() {
            let Pair { key, value, rest: after } = next_pair(rest)?;
            if !matches!(key_kind(key), Some(KeyKind::User | KeyKind::System)) {
                return Err(XattrError::Key);
            }
            if !is_json(value) {
                return Err(XattrError::Value);
            }
            keys.push(key);
            rest = after;
        }
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(XattrError::DuplicateKey);
        }
        Ok(())
    }

    /// Key and value of every pair, in the order of storage; ends at the first fault.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.pairs;
        std::iter::from_fn(move || {
            let Pair { key, value, rest: after } = next_pair(rest).ok()?;
            rest = after;
            Some((key, value))
        })
    }

    /// The value of `key`.
    pub fn get(self, key: &[u8]) -> Option<&'a [u8]> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The keys as a JSON list: the virtual attribute `$XTOC`. System attributes can be left out.
    pub fn write_keys(self, hides_system: bool, out: &mut Vec<u8>) {
        let is_shown = |key: &[u8]| !hides_system || key_kind(key) != Some(KeyKind::System);
        out.push(b'[');
        for (index, (key, _)) in self.iter().filter(|(key, _)| is_shown(key)).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.push(b'"');
            for &byte in key {
                match byte {
                    b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                    0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                    _ => out.push(byte),
                }
            }
            out.push(b'"');
        }
        out.push(b']');
    }

    /// Bytes of the system attributes, as their own quota counts them.
    pub fn system_bytes(self) -> usize {
        self.iter()
            .filter(|(key, _)| key_kind(key) == Some(KeyKind::System))
            .map(|(key, value)| key.len() + value.len() + PAIR_OVERHEAD)
            .sum()
    }

    /// The section as stored, length in front; empty if there is no attribute.
    pub fn write_section(self, out: &mut Vec<u8>) {
        let section = Section::start(out);
        section.out.extend_from_slice(self.pairs);
        section.finish();
    }

    /// The section with only the system attributes: what a tombstone keeps.
    pub fn system_section(self) -> Vec<u8> {
        self.section_of(|key| key_kind(key) == Some(KeyKind::System))
    }

    /// The section without the system attributes: what readers get who may not read those.
    pub fn user_section(self) -> Vec<u8> {
        self.section_of(|key| key_kind(key) != Some(KeyKind::System))
    }

    fn section_of(self, is_kept: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut section = Section::start(&mut out);
        for (key, value) in self.iter().filter(|(key, _)| is_kept(key)) {
            section.pair(key, value);
        }
        section.finish();
        out
    }

    /// The section with `key` set to `value`, in its old place or behind the others; `None` removes it.
    pub fn section_with(self, key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.pairs.len() + key.len() + value.map_or(0, <[u8]>::len) + 10);
        let mut section = Section::start(&mut out);
        let mut pending = value;
        for (name, old) in self.iter() {
            if name != key {
                section.pair(name, old);
            } else if let Some(value) = pending.take() {
                section.pair(name, value);
            }
        }
        if let Some(value) = pending {
            section.pair(key, value);
        }
        section.finish();
        out
    }
}

/// Writes a section pair by pair at the end of a vector.
pub(crate) struct Section<'v> {
    pub(crate) out: &'v mut Vec<u8>,
    start: usize,
}

impl<'v> Section<'v> {
    pub(crate) fn start(out: &'v mut Vec<u8>) -> Section<'v> {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        Section { out, start }
    }

    /// Appends a pair; returns where its value starts in the vector.
    pub(crate) fn pair(&mut self, key: &[u8], value: &[u8]) -> usize {
        let length = (key.len() + value.len() + 2) as u32;
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(key);
        self.out.push(0);
        let value_at = self.out.len();
        self.out.extend_from_slice(value);
        self.out.push(0);
        value_at
    }

    /// Fills in the length, or takes the section away if it stayed empty; says whether it is there.
    pub(crate) fn finish(self) -> bool {
        let length = self.out.len() - self.start - 4;
        if length == 0 {
            self.out.truncate(self.start);
            return false;
        }
        self.out[self.start..self.start + 4].copy_from_slice(&(length as u32).to_be_bytes());
        true
    }
}
