//! The messages of a stream.

use base::{Cas, RevSeqno, Seqno, VbId, VbState};

use super::end::EndReason;
use crate::frame_info::FrameInfos;
use crate::opcode;
use crate::reader::Reader;
use crate::request::Request;
use crate::{HEADER_BYTES, magic};

/// A document was stored (mutation.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mutation {
    /// Its place.
    pub by_seqno: Seqno,
    /// How often the document was changed.
    pub rev_seqno: RevSeqno,
    /// The client's flags.
    pub flags: u32,
    /// When it expires.
    pub expiry: u32,
    /// Until when it is locked, seconds.
    pub lock_time: u32,
    /// How much it is used.
    pub nru: u8,
}

/// A document was deleted, or expired (deletion.md, expiration.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Its place.
    pub by_seqno: Seqno,
    /// How often the document was changed.
    pub rev_seqno: RevSeqno,
    /// When it was deleted, seconds since 1970; only if that was agreed on.
    pub delete_time: Option<u32>,
}

/// A durable write was prepared (prepare.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepare {
    /// Like that of a document.
    pub mutation: Mutation,
    /// Whether a deletion was prepared.
    pub is_deletion: bool,
    /// The durability level on the wire.
    pub level: u8,
}

/// What a snapshot marker of version 2 says beyond the first (snapshot-marker.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkerMore {
    /// The last change that readers can see.
    pub max_visible: Seqno,
    /// The last prepare that is committed or aborted.
    pub high_completed: Seqno,
    /// Version 2.2: the last tombstone that may be forgotten, and the last prepare.
    pub purge_and_high_prepared: Option<(Seqno, Seqno)>,
}

/// A snapshot begins: what comes next, up to its end, is one consistent state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    /// Its first seqno.
    pub start: Seqno,
    /// Its last.
    pub end: Seqno,
    /// Where it comes from and what it may contain: the constants of this type.
    pub flags: u32,
    /// What version 2 says.
    pub more: Option<MarkerMore>,
}

impl Marker {
    /// It comes from memory.
    pub const MEMORY: u32 = 0x01;
    /// It comes from disk.
    pub const DISK: u32 = 0x02;
    /// A checkpoint of the producer begins.
    pub const CHECKPOINT: u32 = 0x04;
    /// The consumer shall acknowledge its end.
    pub const ACKNOWLEDGE: u32 = 0x08;
    /// It holds several versions of a key.
    pub const HISTORY: u32 = 0x10;
    /// It may hold several versions of a key.
    pub const MAY_DUPLICATE: u32 = 0x20;
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A snapshot begins.
    Marker(Marker),
    /// A document was stored.
    Mutation(Mutation),
    /// A document was deleted.
    Deletion(Deletion),
    /// A document expired.
    Expiration(Deletion),
    /// A collection or scope came or went: place, event, and version of its value.
    SystemEvent(Seqno, u32, u8),
    /// A durable write was prepared.
    Prepare(Prepare),
    /// A durable write was committed: places of the prepare and of the commit.
    Commit(Seqno, Seqno),
    /// A durable write was given up: places of the prepare and of the abort.
    Abort(Seqno, Seqno),
    /// Up to here there is nothing for this stream.
    SeqnoAdvanced(Seqno),
    /// Changes come out of order from here on (true), or do so no more.
    OutOfOrder(bool),
    /// The vBucket is to have this role.
    SetVbucketState(VbState),
    /// Nothing more comes.
    End(EndReason),
}

/// A message of a stream; key and value are borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Of which vBucket.
    pub vb: VbId,
    /// The opaque of the stream request.
    pub opaque: u32,
    /// Which of several streams of the vBucket, if that was agreed on.
    pub stream_id: Option<u16>,
    /// The document's CAS.
    pub cas: Cas,
    /// Bits that describe the value.
    pub datatype: u8,
    /// The key; with a collection prefix if that was agreed on.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// What it says.
    pub what: What,
}

/// Bytes of the frame info with a stream id.
const STREAM_ID_BYTES: usize = 3;

/// Fields that are appended one after the other, each with its own few bytes: nothing is put together elsewhere first
/// and copied, which would wait for itself.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    #[inline]
    fn put<const BYTES: usize>(self, bytes: [u8; BYTES]) -> Self {
        self.0.extend_from_slice(&bytes);
        self
    }

    #[inline]
    fn u64(self, number: u64) -> Self {
        self.put(number.to_be_bytes())
    }

    #[inline]
    fn u32(self, number: u32) -> Self {
        self.put(number.to_be_bytes())
    }

    #[inline]
    fn u8(self, number: u8) -> Self {
        self.put([number])
    }
}

impl What {
    #[inline]
    fn opcode(&self) -> u8 {
        match self {
            What::Marker(_) => opcode::DCP_SNAPSHOT_MARKER,
            What::Mutation(_) => opcode::DCP_MUTATION,
            What::Deletion(_) => opcode::DCP_DELETION,
            What::Expiration(_) => opcode::DCP_EXPIRATION,
            What::SystemEvent(..) => opcode::DCP_SYSTEM_EVENT,
            What::Prepare(_) => opcode::DCP_PREPARE,
            What::Commit(..) => opcode::DCP_COMMIT,
            What::Abort(..) => opcode::DCP_ABORT,
            What::SeqnoAdvanced(_) => opcode::DCP_SEQNO_ADVANCED,
            What::OutOfOrder(_) => opcode::DCP_OSO_SNAPSHOT,
            What::SetVbucketState(_) => opcode::DCP_SET_VBUCKET_STATE,
            What::End(_) => opcode::DCP_STREAM_END,
        }
    }

    #[inline]
    fn write_extras(&self, out: &mut Vec<u8>) {
        let extras = Fields(out);
        match *self {
            What::Marker(Marker { start, end, flags, more: None }) => {
                extras.u64(start.0).u64(end.0).u32(flags)
            }
            What::Marker(Marker { more: Some(more), .. }) => {
                extras.u8(if more.purge_and_high_prepared.is_some() { 2 } else { 0 })
            }
            What::Mutation(m) => extras
                .u64(m.by_seqno.0)
                .u64(m.rev_seqno.0)
                .u32(m.flags)
                .u32(m.expiry)
                .u32(m.lock_time)
                .put([0, 0, m.nru]),
            What::Deletion(d) => {
                let extras = extras.u64(d.by_seqno.0).u64(d.rev_seqno.0);
                match d.delete_time {
                    Some(time) => extras.u32(time).u8(0),
                    None => extras.put([0, 0]),
                }
            }
            What::Expiration(d) => {
                extras.u64(d.by_seqno.0).u64(d.rev_seqno.0).u32(d.delete_time.unwrap_or(0))
            }
            What::SystemEvent(seqno, event, version) => extras.u64(seqno.0).u32(event).u8(version),
            What::Prepare(Prepare { mutation: m, is_deletion, level }) => {
                extras.u64(m.by_seqno.0).u64(m.rev_seqno.0).u32(m.flags).u32(m.expiry).u32(m.lock_time).put([
                    m.nru,
                    u8::from(is_deletion),
                    level,
                ])
            }
            What::Commit(prepared, at) | What::Abort(prepared, at) => extras.u64(prepared.0).u64(at.0),
            What::SeqnoAdvanced(seqno) => extras.u64(seqno.0),
            What::OutOfOrder(begins) => extras.u32(if begins { 1 } else { 2 }),
            What::SetVbucketState(state) => extras.u8(state as u8),
            What::End(reason) => extras.u32(reason.code()),
        };
    }

    /// Bytes of extras alone.
    #[inline]
    fn extras_bytes(&self) -> usize {
        match self {
            What::Marker(Marker { more: Some(_), .. }) => 1,
            _ => self.extras_and_own_bytes(),
        }
    }

    /// Bytes of extras and of the value that only this kind of message has.
    #[inline]
    fn extras_and_own_bytes(&self) -> usize {
        match self {
            What::Marker(Marker { more: None, .. }) => 20,
            What::Marker(Marker { more: Some(more), .. }) => {
                1 + 36 + if more.purge_and_high_prepared.is_some() { 16 } else { 0 }
            }
            What::Mutation(_) | What::Prepare(_) => 31,
            What::Deletion(Deletion { delete_time: Some(_), .. }) => 21,
            What::Deletion(Deletion { delete_time: None, .. }) => 18,
            What::Expiration(_) => 20,
            What::SystemEvent(..) => 13,
            What::Commit(..) | What::Abort(..) => 16,
            What::SeqnoAdvanced(_) => 8,
            What::OutOfOrder(_) | What::End(_) => 4,
            What::SetVbucketState(_) => 1,
        }
    }

    /// The value that only this kind of message has: of a marker of version 2.
    fn write_own_value(&self, out: &mut Vec<u8>) {
        let What::Marker(Marker { start, end, flags, more: Some(more) }) = *self else { return };
        let value = Fields(out).u64(start.0).u64(end.0).u32(flags);
        let value = value.u64(more.max_visible.0).u64(more.high_completed.0);
        if let Some((purge, prepared)) = more.purge_and_high_prepared {
            value.u64(purge.0).u64(prepared.0);
        }
    }
}

impl Message<'_> {
    /// Bytes of the whole message, which is what flow control counts.
    #[inline]
    pub fn wire_bytes(&self) -> usize {
        let infos = if self.stream_id.is_some() { STREAM_ID_BYTES } else { 0 };
        HEADER_BYTES + infos + self.what.extras_and_own_bytes() + self.key.len() + self.value.len()
    }

    /// Appends the message without its value, which the caller sends behind it.
    #[inline]
    pub fn write_head(&self, out: &mut Vec<u8>) {
        let wire_bytes = self.wire_bytes();
        let body = u32::try_from(wire_bytes - HEADER_BYTES).expect("values are below 4 GiB");
        out.reserve(wire_bytes - self.value.len());
        let (magic, key_field) = match self.stream_id {
            None => (magic::REQUEST, self.key.len() as u16),
            Some(_) => {
                (magic::ALT_REQUEST, u16::from_be_bytes([STREAM_ID_BYTES as u8, self.key.len() as u8]))
            }
        };
        let first = u64::from(magic) << 56
            | u64::from(self.what.opcode()) << 48
            | u64::from(key_field) << 32
            | (self.what.extras_bytes() as u64) << 24
            | u64::from(self.datatype) << 16
            | u64::from(self.vb.0);
        Fields(out).u64(first).u32(body).u32(self.opaque).u64(self.cas.0);
        if let Some(id) = self.stream_id {
            let encoded = FrameInfos { stream_id: Some(id), ..FrameInfos::default() };
            encoded.encode(out);
        }
        self.what.write_extras(out);
        out.extend_from_slice(self.key);
        self.what.write_own_value(out);
    }

    /// Appends the message.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_head(out);
        out.extend_from_slice(self.value);
    }
}

impl<'a> Message<'a> {
    /// Reads a message of a stream; nothing if it is another command, or its fields have other lengths.
    pub fn read(request: &Request<'a>) -> Option<Message<'a>> {
        let stream_id = request.decode_frame_infos().ok()?.stream_id;
        let mut r = Reader(request.extras);
        let mut value = request.value;
        let what = match request.opcode {
            opcode::DCP_SNAPSHOT_MARKER => What::Marker(marker(&mut r, &mut value)?),
            opcode::DCP_MUTATION => What::Mutation(mutation(&mut r)?),
            opcode::DCP_DELETION => What::Deletion(deletion(&mut r, request.extras.len())?),
            opcode::DCP_EXPIRATION => What::Expiration(Deletion {
                by_seqno: Seqno(r.u64()?),
                rev_seqno: RevSeqno(r.u64()?),
                delete_time: Some(r.u32()?),
            }),
            opcode::DCP_SYSTEM_EVENT => What::SystemEvent(Seqno(r.u64()?), r.u32()?, r.u8()?),
            opcode::DCP_PREPARE => What::Prepare(prepare(&mut r)?),
            opcode::DCP_COMMIT => What::Commit(Seqno(r.u64()?), Seqno(r.u64()?)),
            opcode::DCP_ABORT => What::Abort(Seqno(r.u64()?), Seqno(r.u64()?)),
            opcode::DCP_SEQNO_ADVANCED => What::SeqnoAdvanced(Seqno(r.u64()?)),
            opcode::DCP_OSO_SNAPSHOT => match r.u32()? {
                1 => What::OutOfOrder(true),
                2 => What::OutOfOrder(false),
                _ => return None,
            },
            opcode::DCP_SET_VBUCKET_STATE => What::SetVbucketState(VbState::from_wire(r.u8()?)?),
            opcode::DCP_STREAM_END => What::End(EndReason::from_wire(r.u32()?)),
            _ => return None,
        };
        r.is_empty().then_some(Message {
            vb: request.vbucket,
            opaque: request.opaque,
            stream_id,
            cas: request.cas,
            datatype: request.datatype,
            key: request.key,
            value,
            what,
        })
    }
}

fn mutation(r: &mut Reader<'_>) -> Option<Mutation> {
    let mutation = Mutation {
        by_seqno: Seqno(r.u64()?),
        rev_seqno: RevSeqno(r.u64()?),
        flags: r.u32()?,
        expiry: r.u32()?,
        lock_time: r.u32()?,
        nru: 0,
    };
    // Extended metadata are not used any more: their length is 0.
    (r.u16()? == 0).then_some(())?;
    Some(Mutation { nru: r.u8()?, ..mutation })
}

fn prepare(r: &mut Reader<'_>) -> Option<Prepare> {
    let mutation = Mutation {
        by_seqno: Seqno(r.u64()?),
        rev_seqno: RevSeqno(r.u64()?),
        flags: r.u32()?,
        expiry: r.u32()?,
        lock_time: r.u32()?,
        nru: r.u8()?,
    };
    Some(Prepare { mutation, is_deletion: r.u8()? != 0, level: r.u8()? })
}

fn deletion(r: &mut Reader<'_>, len: usize) -> Option<Deletion> {
    let (by_seqno, rev_seqno) = (Seqno(r.u64()?), RevSeqno(r.u64()?));
    let delete_time = if len == 21 {
        let time = r.u32()?;
        r.u8()?;
        Some(time)
    } else {
        (r.u16()? == 0).then_some(())?;
        None
    };
    Some(Deletion { by_seqno, rev_seqno, delete_time })
}

fn marker(r: &mut Reader<'_>, value: &mut &[u8]) -> Option<Marker> {
    if value.is_empty() {
        return Some(Marker { start: Seqno(r.u64()?), end: Seqno(r.u64()?), flags: r.u32()?, more: None });
    }
    let version = r.u8()?;
    let mut v = Reader(std::mem::take(value));
    let (start, end, flags) = (Seqno(v.u64()?), Seqno(v.u64()?), v.u32()?);
    let (max_visible, high_completed) = (Seqno(v.u64()?), Seqno(v.u64()?));
    let purge_and_high_prepared = match version {
        0 => None,
        2 => Some((Seqno(v.u64()?), Seqno(v.u64()?))),
        _ => return None,
    };
    let more = Some(MarkerMore { max_visible, high_completed, purge_and_high_prepared });
    v.is_empty().then_some(Marker { start, end, flags, more })
}
