//! Macros in the values of extended attributes.

use super::Document;
use super::virtual_attributes::{View, is_field};
use crate::ops::PathError;
use crate::status;
use crate::xattr::Xattrs;

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
    /// `${$document...}`: what stands behind `$document`, be it known or not.
    Document(&'v [u8]),
}

/// The macro that `value` is, or the status for one that is none. Whether `$document` has what is asked of it is found
/// when the macro is expanded, behind the document's existence.
pub(crate) fn macro_named(value: &[u8]) -> Result<Named<'_>, u16> {
    match value {
        b"\"${Mutation.CAS}\"" => return Ok(Named::Mutation(MacroKind::Cas)),
        b"\"${Mutation.seqno}\"" => return Ok(Named::Mutation(MacroKind::Seqno)),
        b"\"${Mutation.value_crc32c}\"" => return Ok(Named::Mutation(MacroKind::ValueCrc32c)),
        _ => {}
    }
    let behind = value.strip_prefix(b"\"${$document").and_then(|rest| rest.strip_suffix(b"}\""));
    behind.map(Named::Document).ok_or(status::UNKNOWN_MACRO)
}

/// The value of a document macro: what the attribute was before the mutation. `root` is the body of a document that is
/// made, of which nothing else is known.
///
/// A macro names a whole field, and no checksum, as recorded.
pub(super) fn expand_document(
    behind: &[u8],
    view: Option<&View<'_>>,
    root: &[u8],
) -> Result<Vec<u8>, PathError> {
    let made =
        View { document: Document::default(), xattrs: Xattrs::default(), body: root, hides_system: true };
    let field = match behind {
        b"" => b"",
        _ => behind.strip_prefix(b".").ok_or(PathError::UnknownMacro)?,
    };
    let is_known = match field {
        b"" => behind.is_empty(),
        b"value_crc32c" => false,
        b"last_modified" => view.is_some(),
        field => is_field(field),
    };
    if !is_known {
        return Err(PathError::UnknownMacro);
    }
    let mut text = Vec::new();
    match view {
        Some(view) => drop(view.write(b"$document", field, &mut text)),
        None if field.is_empty() => made.write_made(&mut text),
        None => drop(made.write(b"$document", field, &mut text)),
    }
    Ok(text)
}
