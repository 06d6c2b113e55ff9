//! What a consumer asks for.

use base::{Seqno, VbUuid};

use crate::reader::Reader;

/// Flags of a stream request (stream-request.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFlags(pub u32);

impl StreamFlags {
    /// The vBucket is to be handed over.
    pub const TAKEOVER: u32 = 0x01;
    /// Only what is on disk.
    pub const DISK_ONLY: u32 = 0x02;
    /// Up to the last change there is now.
    pub const TO_LATEST: u32 = 0x04;
    /// Was for streams without values.
    pub const NO_VALUE: u32 = 0x08;
    /// Only while the vBucket is active.
    pub const ACTIVE_ONLY: u32 = 0x10;
    /// The history is checked even from seqno 0 on.
    pub const STRICT_UUID: u32 = 0x20;
    /// Only what comes after the last change there is now.
    pub const FROM_LATEST: u32 = 0x40;
    /// Purged tombstones are no reason for a rollback.
    pub const IGNORE_PURGED: u32 = 0x80;
    /// What the cache holds is sent, too.
    pub const CACHE_TRANSFER: u32 = 0x100;

    /// Whether all of `flags` are set.
    pub fn has(self, flags: u32) -> bool {
        self.0 & flags == flags
    }

    /// Whether it has no flags but those that mean something here: not those of streams without values and of the cache.
    pub fn are_known(self) -> bool {
        const KNOWN: u32 = StreamFlags::TAKEOVER
            | StreamFlags::DISK_ONLY
            | StreamFlags::TO_LATEST
            | StreamFlags::ACTIVE_ONLY
            | StreamFlags::STRICT_UUID
            | StreamFlags::FROM_LATEST
            | StreamFlags::IGNORE_PURGED;
        self.0 & !KNOWN == 0
    }
}

/// The extras of a stream request: what the consumer has, and what it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamRequest {
    /// How.
    pub flags: StreamFlags,
    /// The last change it has; what follows is sent.
    pub start: Seqno,
    /// The last change it wants; all ones for "go on for ever".
    pub end: Seqno,
    /// The history that it follows.
    pub uuid: VbUuid,
    /// Where the snapshot begins that its last change is in.
    pub snapshot_start: Seqno,
    /// Where that snapshot ends.
    pub snapshot_end: Seqno,
}

impl StreamRequest {
    /// Bytes of the extras.
    pub const BYTES: usize = 48;

    /// Reads the extras.
    pub fn decode(extras: &[u8]) -> Option<StreamRequest> {
        let mut r = Reader(extras);
        let flags = StreamFlags(r.u32()?);
        let _reserved = r.u32()?;
        let request = StreamRequest {
            flags,
            start: Seqno(r.u64()?),
            end: Seqno(r.u64()?),
            uuid: VbUuid(r.u64()?),
            snapshot_start: Seqno(r.u64()?),
            snapshot_end: Seqno(r.u64()?),
        };
        r.is_empty().then_some(request)
    }

    /// Writes them.
    pub fn encode(self) -> [u8; StreamRequest::BYTES] {
        let mut out = [0; StreamRequest::BYTES];
        out[..4].copy_from_slice(&self.flags.0.to_be_bytes());
        let numbers = [self.start.0, self.end.0, self.uuid.0, self.snapshot_start.0, self.snapshot_end.0];
        for (to, number) in out[8..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_be_bytes());
        }
        out
    }
}

/// A vBucket's histories on the wire, newest first: the value of the answer to a stream request.
pub struct FailoverLog;

impl FailoverLog {
    /// Writes it.
    pub fn encode(entries: impl IntoIterator<Item = (VbUuid, Seqno)>) -> Vec<u8> {
        entries
            .into_iter()
            .flat_map(|(uuid, seqno)| [uuid.0.to_be_bytes(), seqno.0.to_be_bytes()].concat())
            .collect()
    }

    /// Reads it; nothing if it has another length than whole entries.
    pub fn decode(value: &[u8]) -> Option<Vec<(VbUuid, Seqno)>> {
        let mut r = Reader(value);
        let mut entries = Vec::with_capacity(value.len() / 16);
        while !r.is_empty() {
            entries.push((VbUuid(r.u64()?), Seqno(r.u64()?)));
        }
        Some(entries)
    }
}
