//! Virtual attributes: `$document`, `$vbucket` and `$XTOC`, computed when asked for.

use super::Document;
use crate::xattr::Xattrs;
use crate::{DATATYPE_JSON, DATATYPE_SNAPPY, DATATYPE_XATTR};
use std::io::Write;

/// How the hybrid logical clock of the vBucket runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockMode {
    /// By the wall clock.
    #[default]
    Real,
    /// Ahead of the wall clock, counting.
    Logical,
}

/// Metadata that virtual attributes show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// CAS of the version.
    pub cas: u64,
    /// Its seqno.
    pub seqno: u64,
    /// Its revision.
    pub rev_seqno: u64,
    /// UUID of the vBucket's current history.
    pub vbucket_uuid: u64,
    /// Client flags, as the number that `$document.flags` shows.
    pub flags: u32,
    /// Expiry as absolute time, 0 for none.
    pub exptime_s: u32,
    /// When the version was made.
    pub last_modified_s: u64,
    /// The time of the vBucket's hybrid logical clock.
    pub hlc_now_s: u64,
    /// How that clock runs.
    pub hlc_mode: ClockMode,
}

/// Fields of `$document`, in the order in which the whole of it lists them.
const FIELDS: [&str; 11] = [
    "CAS",
    "datatype",
    "deleted",
    "exptime",
    "flags",
    "last_modified",
    "revid",
    "seqno",
    "value_bytes",
    "value_crc32c",
    "vbucket_uuid",
];

/// Whether there is a virtual attribute `key`.
pub(super) fn is_known(key: &[u8]) -> bool {
    matches!(key, b"$document" | b"$vbucket" | b"$XTOC")
}

/// Whether `$document` has that field.
pub(super) fn is_field(name: &[u8]) -> bool {
    FIELDS.iter().any(|field| field.as_bytes() == name)
}

/// A document with its value divided, for virtual attributes to look at.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub document: Document<'a>,
    pub xattrs: Xattrs<'a>,
    pub body: &'a [u8],
    /// Whether `$XTOC` leaves system attributes out.
    pub hides_system: bool,
}

impl View<'_> {
    /// Writes the JSON text that holds what `path` (behind the key) asks of the attribute `key`.
    ///
    /// A field of `$document` asked for by name is written alone, and what is left of the path is
    /// returned: most readers want one number, not a checksum of the body.
    pub fn write<'p>(&self, key: &[u8], path: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        match key {
            b"$XTOC" => self.xattrs.write_keys(self.hides_system, out),
            b"$vbucket" => self.write_vbucket(out),
            _ => {
                let end = path.iter().position(|byte| matches!(byte, b'.' | b'[')).unwrap_or(path.len());
                if let Some(field) = FIELDS.iter().find(|field| field.as_bytes() == &path[..end]) {
                    self.write_field(field, out);
                    let rest = &path[end..];
                    return rest.strip_prefix(b".").unwrap_or(rest);
                }
                self.write_document(out);
            }
        }
        path
    }

    fn write_vbucket(&self, out: &mut Vec<u8>) {
        let mode = match self.document.metadata.hlc_mode {
            ClockMode::Real => "real",
            ClockMode::Logical => "logical",
        };
        let now = self.document.metadata.hlc_now_s;
        append(out, format_args!("{{\"HLC\":{{\"mode\":\"{mode}\",\"now\":\"{now}\"}}}}"));
    }

    fn write_document(&self, out: &mut Vec<u8>) {
        for (index, field) in FIELDS.iter().enumerate() {
            append(out, format_args!("{}\"{field}\":", if index == 0 { '{' } else { ',' }));
            self.write_field(field, out);
        }
        out.push(b'}');
    }

    /// The whole of a document that is only being made, which was not modified before.
    pub fn write_made(&self, out: &mut Vec<u8>) {
        for (index, field) in FIELDS.iter().filter(|field| **field != "last_modified").enumerate() {
            append(out, format_args!("{}\"{field}\":", if index == 0 { '{' } else { ',' }));
            self.write_field(field, out);
        }
        out.push(b'}');
    }

    fn write_field(&self, field: &str, out: &mut Vec<u8>) {
        let metadata = &self.document.metadata;
        match field {
            "CAS" => append(out, format_args!("\"{:#018x}\"", metadata.cas)),
            "datatype" => self.write_datatype(out),
            "deleted" => append(out, format_args!("{}", self.document.deleted)),
            // A tombstone keeps its deletion time in the place of the expiry; that is not shown.
            "exptime" if self.document.deleted => out.push(b'0'),
            "exptime" => append(out, format_args!("{}", metadata.exptime_s)),
            "flags" => append(out, format_args!("{}", metadata.flags)),
            "last_modified" => append(out, format_args!("\"{}\"", metadata.last_modified_s)),
            "revid" => append(out, format_args!("\"{}\"", metadata.rev_seqno)),
            "seqno" => append(out, format_args!("\"{:#018x}\"", metadata.seqno)),
            "value_bytes" => append(out, format_args!("{}", self.body.len())),
            "value_crc32c" => append(out, format_args!("\"{:#010x}\"", crc32c::crc32c(self.body))),
            _ => append(out, format_args!("\"{:#018x}\"", metadata.vbucket_uuid)),
        }
    }

    fn write_datatype(&self, out: &mut Vec<u8>) {
        let names = [(DATATYPE_JSON, "json"), (DATATYPE_SNAPPY, "snappy"), (DATATYPE_XATTR, "xattr")];
        out.push(b'[');
        let mut set = names.iter().filter(|(bit, _)| self.document.datatype & bit != 0);
        if let Some((_, name)) = set.next() {
            append(out, format_args!("\"{name}\""));
        }
        for (_, name) in set {
            append(out, format_args!(",\"{name}\""));
        }
        // No bit is no entry, except that a plain value is called raw.
        if self.document.datatype & (DATATYPE_JSON | DATATYPE_SNAPPY | DATATYPE_XATTR) == 0 {
            out.extend_from_slice(b"\"raw\"");
        }
        out.push(b']');
    }
}

/// Formatting into a vector cannot fail.
pub(super) fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}
