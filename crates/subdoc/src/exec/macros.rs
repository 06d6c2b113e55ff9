//! Macros in the values of extended attributes.

use super::virtual_attributes::{View, append, is_field};
use crate::ops;
use crate::path::Path;
use crate::status;

/// What is known only when the mutation is committed, or only when the whole value is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacroKind {
    /// The CAS of the mutation, its bytes in little-endian order.
    Cas,
    /// The seqno of the mutation.
    Seqno,
    /// CRC32C of the new body.
    ValueCrc32c,
}

impl MacroKind {
    /// Hexadecimal digits of the result.
    pub fn digits(self) -> usize {
        match self {
            MacroKind::Cas | MacroKind::Seqno => 16,
            MacroKind::ValueCrc32c => 8,
        }
    }

    /// The JSON text with zeros for digits.
    pub(super) fn placeholder(self) -> &'static [u8] {
        match self {
            MacroKind::Cas | MacroKind::Seqno => b"\"0x0000000000000000\"",
            MacroKind::ValueCrc32c => b"\"0x00000000\"",
        }
    }

    /// How far into the placeholder the digits start.
    pub(super) const DIGITS_AT: usize = 3;
}

/// A place in a new value where digits are to be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placeholder {
    /// Offset of the first digit.
    pub offset: usize,
    /// What goes there.
    pub kind: MacroKind,
}

impl Placeholder {
    /// Writes `number` as hexadecimal digits of fixed width into `value`.
    pub(super) fn fill(self, value: &mut [u8], number: u64) {
        let digits = self.kind.digits();
        for (index, slot) in value[self.offset..self.offset + digits].iter_mut().enumerate() {
            let nibble = (number >> (4 * (digits - 1 - index))) & 0xf;
            *slot = b"0123456789abcdef"[nibble as usize];
        }
    }
}

/// A macro as a value names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named<'v> {
    /// One of `${Mutation.*}`.
    Mutation(MacroKind),
    /// `${$document...}`: the path behind `$document`, without its dot.
    Document(&'v [u8]),
}

/// The macro that `value` is, or the status for one that is none.
pub(crate) fn macro_named(value: &[u8]) -> Result<Named<'_>, u16> {
    match value {
        b"\"${Mutation.CAS}\"" => return Ok(Named::Mutation(MacroKind::Cas)),
        b"\"${Mutation.seqno}\"" => return Ok(Named::Mutation(MacroKind::Seqno)),
        b"\"${Mutation.value_crc32c}\"" => return Ok(Named::Mutation(MacroKind::ValueCrc32c)),
        _ => {}
    }
    let name = value.strip_prefix(b"\"${$").and_then(|rest| rest.strip_suffix(b"}\""));
    let name = name.ok_or(status::UNKNOWN_MACRO)?;
    let path = match name.strip_prefix(b"document") {
        Some(b"") => return Ok(Named::Document(b"")),
        Some(path) => path.strip_prefix(b".").ok_or(status::UNKNOWN_VIRTUAL_MACRO)?,
        None => return Err(status::UNKNOWN_VIRTUAL_MACRO),
    };
    let end = path.iter().position(|byte| matches!(byte, b'.' | b'[')).unwrap_or(path.len());
    if is_field(&path[..end]) { Ok(Named::Document(path)) } else { Err(status::UNKNOWN_VIRTUAL_MACRO) }
}

/// The value of a document macro: what the attribute was before the mutation.
pub(super) fn expand_document(path: &[u8], view: Option<&View<'_>>) -> Result<Vec<u8>, u16> {
    let mut text = Vec::new();
    let Some(view) = view else {
        append(&mut text, format_args!("null"));
        return Ok(text);
    };
    let rest = view.write(b"$document", path, &mut text);
    if rest.is_empty() {
        return Ok(text);
    }
    let range = Path::parse_behind_key(rest)
        .and_then(|rest| ops::get(&text, &rest))
        .map_err(|_| status::UNKNOWN_VIRTUAL_MACRO)?;
    Ok(text[range].to_vec())
}
