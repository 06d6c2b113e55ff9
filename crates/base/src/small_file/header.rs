//! The line in front of a small file's content: what the content is, and its checksum.
//!
//! `stave-file 1 name=NAME version=V generation=G owner=OWNER length=N crc32c=HHHHHHHH`, then the content. The checksum
//! is CRC-32C over the line up to `crc32c=`, and the content. `owner` is `-` if the file has none.

use super::Unusable;
use crate::planted::{self, Bug};

/// What a file with a header begins with: the version of the header is the last digit.
const MAGIC: &str = "stave-file 1 ";
/// What stands before the checksum in every header.
const CHECKSUM: &str = " crc32c=";
/// The longest header.
pub(super) const MAX_BYTES: usize = 1024;

/// What a header says, but for the checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) version: u16,
    pub(super) generation: u64,
    pub(super) len: u64,
}

/// A file's content with its header, or a file that has none.
pub(super) enum Sealed<'b> {
    With(Header, &'b [u8]),
    Without,
}

impl Header {
    /// The header up to its checksum.
    fn text(&self) -> String {
        let Header { name, owner, version, generation, len } = self;
        let owner = if owner.is_empty() { "-" } else { owner };
        format!(
            "{MAGIC}name={name} version={version} generation={generation} owner={owner} length={len}{CHECKSUM}"
        )
    }

    /// A file's bytes.
    pub(super) fn seal(&self, content: &[u8]) -> Vec<u8> {
        let text = self.text();
        let checksum = checksum(text.as_bytes(), content);
        let mut bytes = format!("{text}{checksum:08x}\n").into_bytes();
        bytes.extend_from_slice(content);
        bytes
    }

    fn parse(line: &str) -> Option<Header> {
        let mut words = line.strip_prefix(MAGIC)?.strip_suffix(CHECKSUM)?.split(' ');
        let mut word = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
        let header = Header {
            name: word("name")?.to_owned(),
            version: word("version")?.parse().ok()?,
            generation: word("generation")?.parse().ok()?,
            owner: word("owner").map(|owner| if owner == "-" { "" } else { owner })?.to_owned(),
            len: word("length")?.parse().ok()?,
        };
        (words.next().is_none() && header.text() == line).then_some(header)
    }
}

fn checksum(header: &[u8], content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), content)
}

/// Takes a file apart and compares it with what it must be: `expected` says the name, the owner and the newest version.
pub(super) fn unseal<'b>(bytes: &'b [u8], expected: &Header) -> Result<Sealed<'b>, Unusable> {
    if MAGIC.as_bytes().starts_with(bytes) || bytes.first() == Some(&0) {
        // What is left of a header, or of nothing: no version wrote an empty file, or one that begins with a zero, as
        // what cannot be decrypted does.
        return Err("its header is damaged".to_owned().into());
    }
    let head = &bytes[..bytes.len().min(MAX_BYTES)];
    let at = head.windows(CHECKSUM.len()).position(|window| window == CHECKSUM.as_bytes());
    if !bytes.starts_with(MAGIC.as_bytes()) && at.is_none() {
        // A changed bit of a header cannot make it unrecognisable in both places.
        return Ok(Sealed::Without);
    }
    let damaged = || "its header is damaged".to_owned();
    let (text, rest) = bytes.split_at(at.ok_or_else(damaged)? + CHECKSUM.len());
    let (digits, rest) = rest.split_at_checked(8).ok_or_else(damaged)?;
    let content = rest.strip_prefix(b"\n").ok_or_else(damaged)?;
    let said = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let is = checksum(text, content);
    if said.map(|said| format!("{said:08x}").into_bytes()).as_deref() != Some(digits) {
        return Err(damaged().into());
    }
    if said != Some(is) && !planted::is(Bug::SmallFileChecksumIgnored) {
        return Err("its checksum does not match its content".to_owned().into());
    }
    let header = std::str::from_utf8(text).ok().and_then(Header::parse).ok_or_else(damaged)?;
    header.check(expected, content)?;
    Ok(Sealed::With(header, content))
}

impl Header {
    fn check(&self, expected: &Header, content: &[u8]) -> Result<(), Unusable> {
        if self.name != expected.name {
            return Err(format!("it is another file: {}", self.name).into());
        }
        if !expected.owner.is_empty() && self.owner != expected.owner {
            return Err(format!("it belongs to {:?}, not to {:?}", self.owner, expected.owner).into());
        }
        if self.version > expected.version {
            let (is, reads) = (self.version, expected.version);
            let what =
                format!("a newer version of Stave wrote it: format {is}, and this one reads up to {reads}");
            return Err(Unusable::Newer(what));
        }
        let len = content.len() as u64;
        if self.len != len {
            return Err(format!("it has {len} bytes of content instead of {}", self.len).into());
        }
        Ok(())
    }
}
