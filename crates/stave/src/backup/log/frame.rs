//! Frames: what a segment of the log consists of. Each has a header and a body, and a checksum over each of them.

use base::VbId;
use base::encryption::{SealFault, Sealer};
use protocol::reader::Reader;

use super::entry::{EntryRuns, LogEntry};
use crate::backup::block::{MAX_RAW_BYTES, SEALED};

/// What a frame begins with.
const MAGIC: u32 = u32::from_be_bytes(*b"SLG1");
/// The version that stands at the end of that.
pub(crate) const FORMAT: base::FormatVersions = base::FormatVersions::since(1, 1);
/// Bytes before a frame's body.
pub(super) const HEADER_BYTES: usize = 80;
const RAW: u8 = 0;
const SNAPPY: u8 = 1;
/// What the encrypted body of a frame is bound to, with its segment and its header.
const FRAME_LABEL: &[u8] = b"stave backup frame";

/// What encrypts the bodies of a segment's frames; without a sealer they are as they are.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameSeal {
    pub(super) sealer: Option<Sealer>,
    /// The number of the segment.
    pub(super) segment: u32,
}

/// Why a body cannot be read.
#[derive(Debug)]
pub(super) enum FrameFault {
    /// It is not what was written, as behind a crash.
    Broken(String),
    /// It is encrypted, and the folder has no keys.
    NoKeys,
    /// It is what was written, and cannot be decrypted.
    Sealed(SealFault),
}

impl From<String> for FrameFault {
    fn from(what: String) -> FrameFault {
        FrameFault::Broken(what)
    }
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// Where all vBuckets are; the first frame of a segment.
    State = 1,
    /// What came of one vBucket.
    Entries = 2,
    /// A vBucket went back to a seqno: what came behind it is not part of its history.
    Rollback = 3,
    /// A vBucket is followed in a history from a seqno on.
    History = 6,
    /// The end of a group: what is in front of it counts.
    Commit = 4,
    /// The end of a segment that gets no further frame.
    Seal = 5,
}

impl FrameKind {
    fn of(number: u8) -> Option<FrameKind> {
        use FrameKind::{Commit, Entries, History, Rollback, Seal, State};
        [State, Entries, Rollback, History, Commit, Seal].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// What is known of a frame without its body. Moments are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// The number of the epoch, drawn at random.
    pub(super) epoch: u64,
    /// Frames of one group are made durable together.
    pub(super) group: u64,
    pub(super) kind: FrameKind,
    pub(super) has_events: bool,
    pub(super) vb: VbId,
    /// Entries with a seqno.
    pub(super) count: u32,
    /// The first and last seqno; of a rollback both are the seqno that it goes back to; of a history its UUID and the
    /// seqno.
    pub(super) seqnos: (u64, u64),
    /// The first and last moment.
    pub(super) moments: (u64, u64),
    form: u8,
    /// Bytes of the body, inflated.
    pub(super) raw: u32,
    pub(super) stored: u32,
    body_checksum: u32,
}

impl FrameHeader {
    pub(super) fn new(epoch: u64, group: u64, kind: FrameKind, vb: VbId) -> FrameHeader {
        FrameHeader {
            epoch,
            group,
            kind,
            has_events: false,
            vb,
            count: 0,
            seqnos: (0, 0),
            moments: (0, 0),
            form: RAW,
            raw: 0,
            stored: 0,
            body_checksum: 0,
        }
    }

    /// Appends the frame with its body to `out`.
    pub(super) fn seal(
        mut self,
        body: &[u8],
        seal: &FrameSeal,
        encoder: &mut snap::raw::Encoder,
        out: &mut Vec<u8>,
    ) {
        let begin = out.len();
        out.resize(begin + HEADER_BYTES + snap::raw::max_compress_len(body.len()), 0);
        let compressed = encoder.compress(body, &mut out[begin + HEADER_BYTES..]);
        self.form = match compressed {
            Ok(len) if len < body.len() => {
                out.truncate(begin + HEADER_BYTES + len);
                SNAPPY
            }
            _ => {
                out.truncate(begin + HEADER_BYTES);
                out.extend_from_slice(body);
                RAW
            }
        };
        self.raw = body.len() as u32;
        if let Some(sealer) = &seal.sealer {
            self.form |= SEALED;
            let body = out.split_off(begin + HEADER_BYTES);
            sealer.seal(&self.bound(seal.segment), &body, out);
        }
        self.stored = (out.len() - begin - HEADER_BYTES) as u32;
        self.body_checksum = crc32c::crc32c(&out[begin + HEADER_BYTES..]);
        let header = self.bytes();
        out[begin..begin + HEADER_BYTES].copy_from_slice(&header);
    }

    /// What its encrypted body is bound to: all that is not of its stored form.
    fn bound(&self, segment: u32) -> Vec<u8> {
        let head = FrameHeader { stored: 0, body_checksum: 0, ..*self }.bytes();
        [FRAME_LABEL, &segment.to_be_bytes(), &head].concat()
    }

    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&self.epoch.to_be_bytes());
        bytes.extend_from_slice(&self.group.to_be_bytes());
        bytes.extend_from_slice(&[self.kind as u8, self.form]);
        bytes.extend_from_slice(&self.vb.0.to_be_bytes());
        bytes.extend_from_slice(&u32::from(self.has_events).to_be_bytes());
        bytes.extend_from_slice(&self.count.to_be_bytes());
        for number in [self.seqnos.0, self.seqnos.1, self.moments.0, self.moments.1] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        for number in [self.raw, self.stored, self.body_checksum] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        bytes.try_into().expect("the fields fill the header")
    }

    /// Reads a header; `None` if these bytes are none, or not as they were written.
    pub(super) fn read(bytes: &[u8]) -> Option<FrameHeader> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let mut reader = Reader(bytes);
        if reader.u32()? != MAGIC {
            return None;
        }
        let (epoch, group) = (reader.u64()?, reader.u64()?);
        let [kind, form] = reader.u16()?.to_be_bytes();
        let header = FrameHeader {
            epoch,
            group,
            kind: FrameKind::of(kind)?,
            form,
            vb: VbId(reader.u16()?),
            has_events: reader.u32()? != 0,
            count: reader.u32()?,
            seqnos: (reader.u64()?, reader.u64()?),
            moments: (reader.u64()?, reader.u64()?),
            raw: reader.u32()?,
            stored: reader.u32()?,
            body_checksum: reader.u32()?,
        };
        (reader.u32()? == crc32c::crc32c(&bytes[..HEADER_BYTES - 4])).then_some(header)
    }

    /// Bytes of the frame with its header.
    pub(super) fn len(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.stored)
    }

    /// Whether its body is encrypted.
    pub(super) fn is_sealed(&self) -> bool {
        self.form & SEALED != 0
    }

    /// Decrypts and inflates the body into `raw`. The error says what is wrong with it.
    pub(super) fn open(&self, body: &[u8], seal: &FrameSeal, raw: &mut Vec<u8>) -> Result<(), FrameFault> {
        if crc32c::crc32c(body) != self.body_checksum {
            return Err("the checksum of a frame is wrong".to_owned().into());
        }
        if !self.is_sealed() {
            return Ok(self.inflate(body, raw)?);
        }
        let sealer = seal.sealer.as_ref().ok_or(FrameFault::NoKeys)?;
        let body = sealer.open(&self.bound(seal.segment), body).map_err(FrameFault::Sealed)?;
        Ok(self.inflate(&body, raw)?)
    }

    fn inflate(&self, body: &[u8], raw: &mut Vec<u8>) -> Result<(), String> {
        if self.raw > MAX_RAW_BYTES {
            return Err(format!("a frame of {} bytes is longer than any", self.raw));
        }
        raw.clear();
        match self.form & !SEALED {
            RAW => raw.extend_from_slice(body),
            SNAPPY => {
                raw.resize(self.raw as usize, 0);
                let inflated = snap::raw::Decoder::new().decompress(body, raw);
                let len = inflated.map_err(|error| format!("a frame cannot be inflated: {error}"))?;
                raw.truncate(len);
            }
            _ => {
                let form = self.form;
                return Err(format!("a frame has the form {form}, which a newer version may know"));
            }
        }
        if raw.len() == self.raw as usize {
            Ok(())
        } else {
            Err("a frame has another length when it is inflated".to_owned())
        }
    }

    /// Where the entries of an inflated body begin. The error says what is wrong with them.
    pub(super) fn find_entries(&self, raw: &[u8], begins: &mut Vec<u32>) -> Result<(), String> {
        begins.clear();
        let (mut count, mut first, mut last) = (0, None, 0);
        let mut runs = EntryRuns(raw, 0);
        while let Some((begin, entry)) = runs.next_entry()? {
            begins.push(begin as u32);
            let LogEntry::Seqno { seqno, .. } = entry else { continue };
            if first.is_some() && seqno <= last {
                return Err("entries are not in order".to_owned());
            }
            (count, first, last) = (count + 1, first.or(Some(seqno)), seqno);
        }
        let expected = (self.count > 0).then_some(self.seqnos.0);
        if count == self.count && first == expected && (count == 0 || last == self.seqnos.1) {
            Ok(())
        } else {
            Err("a frame holds other entries than it says".to_owned())
        }
    }
}
