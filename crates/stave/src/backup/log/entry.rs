//! Entries: what came of one vBucket, one behind the other, each with its moment.

use protocol::reader::Reader;

use crate::backup::block::{Version, read_version, write_version};

const VERSION: u8 = 0;
const EVENT: u8 = 1;
const ADVANCED: u8 = 2;
const MARKER: u8 = 3;
/// Bytes of an entry before what its kind brings.
const FIXED_BYTES: usize = 9;

/// What an entry says.
pub(super) enum LogEntry<'a> {
    /// Something with a place in the vBucket, at a moment.
    Seqno { seqno: u64, moment: u64, what: LoggedChange<'a> },
    /// A snapshot begins: its first and last seqno, and the flags of its marker.
    Marker { start: u64, end: u64, flags: u32 },
}

/// What has a place in a vBucket.
pub(crate) enum LoggedChange<'a> {
    Version(Version<'a>),
    /// An event of collections: its number, the version of its value, key and value.
    Event {
        event: u32,
        version: u8,
        key: &'a [u8],
        value: &'a [u8],
    },
    /// There is nothing for this stream up to here.
    Advanced,
    /// A prepare, or the abort of what was prepared at this seqno: no document has changed. Read as [`LoggedChange::Advanced`].
    Hidden {
        prepared: u64,
    },
}

/// Appends an entry.
pub(super) fn write_entry(raw: &mut Vec<u8>, entry: &LogEntry<'_>) {
    let mut begin = |moment: u64, kind: u8| {
        raw.extend_from_slice(&moment.to_be_bytes());
        raw.push(kind);
    };
    match entry {
        LogEntry::Seqno { seqno, moment, what } => match what {
            LoggedChange::Version(version) => {
                begin(*moment, VERSION);
                write_version(raw, version);
            }
            LoggedChange::Event { event, version, key, value } => {
                begin(*moment, EVENT);
                raw.extend_from_slice(&seqno.to_be_bytes());
                raw.extend_from_slice(&event.to_be_bytes());
                raw.push(*version);
                raw.extend_from_slice(&(key.len() as u32).to_be_bytes());
                raw.extend_from_slice(&(value.len() as u32).to_be_bytes());
                raw.extend_from_slice(key);
                raw.extend_from_slice(value);
            }
            LoggedChange::Advanced | LoggedChange::Hidden { .. } => {
                begin(*moment, ADVANCED);
                raw.extend_from_slice(&seqno.to_be_bytes());
            }
        },
        LogEntry::Marker { start, end, flags } => {
            begin(0, MARKER);
            raw.extend_from_slice(&start.to_be_bytes());
            raw.extend_from_slice(&end.to_be_bytes());
            raw.extend_from_slice(&flags.to_be_bytes());
        }
    }
}

/// An entry and the bytes that it takes.
pub(super) fn read_entry(bytes: &[u8]) -> Option<(LogEntry<'_>, usize)> {
    let moment = Reader(bytes).u64()?;
    let (kind, rest) = bytes.get(FIXED_BYTES - 1..)?.split_first()?;
    let mut reader = Reader(rest);
    let (entry, len) = match *kind {
        VERSION => {
            let (version, len) = read_version(rest)?;
            (LogEntry::Seqno { seqno: version.seqno, moment, what: LoggedChange::Version(version) }, len)
        }
        EVENT => {
            const BEFORE_KEY: usize = 21;
            let (seqno, event) = (reader.u64()?, reader.u32()?);
            let version = *rest.get(12)?;
            let mut reader = Reader(rest.get(13..)?);
            let (key_len, value_len) = (reader.u32()? as usize, reader.u32()? as usize);
            let (key, behind) = rest.get(BEFORE_KEY..)?.split_at_checked(key_len)?;
            let value = behind.get(..value_len)?;
            let what = LoggedChange::Event { event, version, key, value };
            (LogEntry::Seqno { seqno, moment, what }, BEFORE_KEY + key_len + value_len)
        }
        ADVANCED => {
            let seqno = reader.u64()?;
            (LogEntry::Seqno { seqno, moment, what: LoggedChange::Advanced }, 8)
        }
        MARKER => (LogEntry::Marker { start: reader.u64()?, end: reader.u64()?, flags: reader.u32()? }, 20),
        _ => return None,
    };
    Some((entry, FIXED_BYTES + len))
}

/// The entries of a body, and where the next one begins.
pub(super) struct EntryRuns<'a>(pub(super) &'a [u8], pub(super) usize);

impl<'a> EntryRuns<'a> {
    /// The next entry with its place; the error says that it cannot be read.
    pub(super) fn next_entry(&mut self) -> Result<Option<(usize, LogEntry<'a>)>, String> {
        let (bytes, begin) = (self.0, self.1);
        if begin == bytes.len() {
            return Ok(None);
        }
        let (entry, len) = bytes.get(begin..).and_then(read_entry).ok_or("an entry cannot be read")?;
        self.1 += len;
        Ok(Some((begin, entry)))
    }
}
