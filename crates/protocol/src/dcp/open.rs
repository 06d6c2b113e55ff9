//! What a connection for changes is opened with.

use crate::reader::Reader;

/// Flags of DCP open (open-connection.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// The server produces; without it the server is to consume.
    pub const PRODUCER: u32 = 0x01;
    /// Was for notifiers; not valid any more.
    pub const NOTIFIER: u32 = 0x02;
    /// xattrs are sent, too.
    pub const XATTRS: u32 = 0x04;
    /// No values are sent.
    pub const NO_VALUE: u32 = 0x08;
    /// Deletions carry the time at which they happened.
    pub const DELETE_TIMES: u32 = 0x20;
    /// No values are sent, but the datatype that they have.
    pub const NO_VALUE_WITH_DATATYPE: u32 = 0x40;
    /// Was for point in time recovery; not valid any more.
    pub const PITR: u32 = 0x80;
    /// The user xattrs of tombstones are sent, too.
    pub const DELETED_USER_XATTRS: u32 = 0x100;
    /// Deletions are left out of the first backfill.
    pub const SKIP_DELETES: u32 = 0x200;

    /// Reads the extras: a reserved number, and the flags.
    pub fn decode(extras: &[u8]) -> Option<OpenFlags> {
        let mut reader = Reader(extras);
        let (_, flags) = (reader.u32()?, reader.u32()?);
        reader.is_empty().then_some(OpenFlags(flags))
    }

    /// Writes them.
    pub fn encode(self) -> [u8; 8] {
        let mut out = [0; 8];
        out[4..].copy_from_slice(&self.0.to_be_bytes());
        out
    }

    /// Whether all of `flags` are set.
    pub fn has(self, flags: u32) -> bool {
        self.0 & flags == flags
    }
}
