//! From frames to records. Nothing that comes from a file is trusted before its checksum is seen.

use base::limits::MAX_STORED_KEY_BYTES;
use base::planted::{self, Bug};
use base::version::MAX_SEQNO;
use base::{
    Cas, Datatype, DocKey, Heap, ItemKind, NewVersion, RevSeqno, Seqno, SyncWrite, VbId, Version, VersionMeta,
};

use super::directory::{Directory, VbSet};
use super::layout::{
    COMPRESSED, Cursor, EARLIER_TABLE_ENTRY, ITEM_HEAD, ITEM_SYNC_WRITE, MAX_FRAME, RECORD_HEAD, SAVE_HEAD,
    TABLE_ENTRY, flag, kind, seed,
};
use super::{Filed, Frame, ReplayedState, shared};
use crate::state::{StateNumbers, VbStateDoc};

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    /// Where in the segment.
    pub(super) offset: u64,
    /// What is wrong there.
    pub(super) what: &'static str,
    /// Whether the bytes are as they were written, only not by this program.
    pub(super) is_sound: bool,
    /// The vBucket that it is about, if it is about no other.
    pub(super) only: Option<VbId>,
}

/// A record of a frame, or one save of several in a record; of a save maybe only a part.
#[derive(Debug)]
pub(super) enum Part {
    Save(SavePart),
    Filed(Filed),
    Dropped(VbId),
    RolledBack(Filed),
    Table(Vec<Filed>),
    Directory(Directory),
    /// What a frame holds of a save that cannot be understood, though it is as it was written.
    Malformed {
        vb: VbId,
        bad: Bad,
    },
}

impl Part {
    /// The vBucket that it changes; `None` for what only repeats.
    pub(super) fn vbucket(&self) -> Option<VbId> {
        match self {
            Part::Save(save) => Some(save.vb),
            Part::Filed(filed) | Part::RolledBack(filed) => Some(filed.vb),
            Part::Dropped(vb) | Part::Malformed { vb, .. } => Some(*vb),
            Part::Table(_) | Part::Directory(_) => None,
        }
    }
}

/// What one frame holds of a save.
#[derive(Debug)]
pub(super) struct SavePart {
    pub(super) vb: VbId,
    /// With the first part only.
    pub(super) state: Option<ReplayedState>,
    pub(super) items: Vec<Version>,
    pub(super) is_last: bool,
    pub(super) is_repeat: bool,
}

/// Reads the records of a frame.
pub(super) struct Decoder<'a> {
    /// Where the versions come from.
    pub(super) heap: &'a Heap,
    /// All of them.
    pub(super) payload: &'a [u8],
    /// Where in the segment they begin.
    pub(super) offset: u64,
    pub(super) generation: u64,
}

impl Decoder<'_> {
    fn damaged(&self, at: usize, what: &'static str) -> Bad {
        Bad { offset: self.offset + at as u64, what, is_sound: false, only: None }
    }

    fn unknown(&self, at: usize, what: &'static str) -> Bad {
        Bad { is_sound: true, ..self.damaged(at, what) }
    }

    pub(super) fn parts(&self, records: u32) -> Result<Vec<Part>, Bad> {
        let mut parts = Vec::new();
        let (mut at, mut found) = (0, 0);
        while at < self.payload.len() {
            let len = Cursor(&self.payload[at..]).u32().map_or(0, |len| len as usize);
            let end = at.checked_add(len).filter(|end| len >= RECORD_HEAD && *end <= self.payload.len());
            let end = end.ok_or_else(|| self.damaged(at, "the length of a record"))?;
            self.record(at, end, &mut parts)?;
            (at, found) = (end, found + 1);
        }
        if found != records {
            return Err(self.damaged(0, "the number of records"));
        }
        Ok(parts)
    }

    /// Adds what a record holds.
    fn record(&self, at: usize, end: usize, parts: &mut Vec<Part>) -> Result<(), Bad> {
        let record = &self.payload[at..end];
        let mut head = Cursor(&record[4..]);
        let fields = || Some((head.u32()?, head.u8()?, head.u8()?, head.u16()?));
        let (crc, kind, flags, vb) =
            { fields }().ok_or_else(|| self.damaged(at, "the length of a record"))?;
        let sealed = if kind == kind::SAVE {
            let mut more = Cursor(&record[RECORD_HEAD..]);
            let state = more.u32().and_then(|_| more.u32());
            let sealed = state.and_then(|state| SAVE_HEAD.checked_add(state as usize));
            sealed.filter(|s| *s <= record.len()).ok_or_else(|| self.damaged(at, "the length of a state"))?
        } else {
            record.len()
        };
        let found = crc32c::crc32c_append(seed(self.generation, vb), &record[..4]);
        let is_right = crc32c::crc32c_append(found, &record[8..sealed]) == crc;
        if !is_right && !planted::is(Bug::TornRecordTaken) {
            return Err(self.damaged(at, "the checksum of a record"));
        }
        let body = &record[RECORD_HEAD..];
        let vb = VbId(vb);
        let part = match kind {
            kind::SAVE => {
                // The frame's other records are whole.
                parts.push(match self.save(at, record, sealed, flags, vb) {
                    Err(bad @ Bad { only: Some(vb), .. }) => Part::Malformed { vb, bad },
                    part => part?,
                });
                return Ok(());
            }
            kind::SHARED => {
                let saves = shared::decode(self.heap, body).filter(|_| flags == 0 && vb == VbId(0));
                let saves = saves.ok_or_else(|| self.unknown(at, "a record of an unknown form"))?;
                parts.extend(saves.into_iter().map(Part::Save));
                return Ok(());
            }
            kind::FILED => filed(vb, body).map(Part::Filed),
            kind::ROLLED_BACK => filed(vb, body).map(Part::RolledBack),
            kind::DROPPED => body.is_empty().then_some(Part::Dropped(vb)),
            kind::TABLE => table(body).map(Part::Table),
            kind::DIRECTORY => directory(body).map(Part::Directory),
            _ => None,
        };
        parts.push(
            part.filter(|_| flags == 0).ok_or_else(|| self.unknown(at, "a record of an unknown form"))?,
        );
        Ok(())
    }

    fn save(&self, at: usize, record: &[u8], sealed: usize, flags: u8, vb: VbId) -> Result<Part, Bad> {
        let unknown = |what| self.unknown(at, what);
        let count = Cursor(&record[RECORD_HEAD..]).u32().unwrap_or(0) as usize;
        let is_first = flags & flag::FIRST != 0;
        let state = match (flags & !flag::ALL, flags & (flag::WHOLE | flag::NUMBERS)) {
            (0, 0) if !is_first && sealed == SAVE_HEAD => None,
            (0, flag::WHOLE) if is_first => {
                let doc = VbStateDoc::from_json(&record[SAVE_HEAD..sealed]);
                Some(ReplayedState::Whole(doc.map_err(|_| unknown("a state that cannot be understood"))?))
            }
            (0, flag::NUMBERS) if is_first => {
                let numbers = StateNumbers::decode(&record[SAVE_HEAD..sealed]);
                Some(ReplayedState::Numbers(numbers.ok_or_else(|| unknown("a state of an unknown form"))?))
            }
            _ => return Err(unknown("a save of an unknown form")),
        };
        let items = self.items(at + sealed, &record[sealed..], count, vb)?;
        let (is_last, is_repeat) = (flags & flag::LAST != 0, flags & flag::REPEAT != 0);
        Ok(Part::Save(SavePart { vb, state, items, is_last, is_repeat }))
    }

    fn items(&self, offset: usize, bytes: &[u8], count: usize, vb: VbId) -> Result<Vec<Version>, Bad> {
        if count > bytes.len() / ITEM_HEAD {
            return Err(self.unknown(offset, "more items than there is room for"));
        }
        let seed = seed(self.generation, vb.0);
        let mut items = Vec::with_capacity(count);
        let mut at = 0;
        for _ in 0..count {
            let rest = &bytes[at..];
            let (version, len) = self.item(offset + at, rest, seed)?;
            // Whoever has a prepare asks it for its document.
            if crate::change::document_key(version.key()).is_none() {
                let bad = self.unknown(offset + at, "a prepare of no document");
                return Err(Bad { only: Some(vb), ..bad });
            }
            items.push(version);
            at += len;
        }
        if at != bytes.len() {
            return Err(self.unknown(offset + at, "something behind the items of a save"));
        }
        Ok(items)
    }

    /// An item at the front of some bytes, and how many it takes.
    fn item(&self, offset: usize, bytes: &[u8], seed: u32) -> Result<(Version, usize), Bad> {
        let lengths = |mut at: Cursor<'_>| Some((at.u32()?, at.u32()? as usize, at.u8()?, at.u8()?));
        let damaged = || self.damaged(offset, "the length of an item");
        let (crc, value, key, form) = lengths(Cursor(bytes)).ok_or_else(damaged)?;
        let is_compressed = value & COMPRESSED as usize != 0;
        let value = value & !(COMPRESSED as usize);
        let key_end = ITEM_HEAD + usize::from(key);
        let value_at = key_end + if form & SYNC_WRITE == 0 { 0 } else { ITEM_SYNC_WRITE };
        let len = value_at.checked_add(value).filter(|len| *len <= bytes.len()).ok_or_else(damaged)?;
        let is_right = crc32c::crc32c_append(seed, &bytes[4..len]) == crc;
        if !is_right && !planted::is(Bug::TornRecordTaken) {
            return Err(self.damaged(offset, "the checksum of an item"));
        }
        let sync_write = Cursor(&bytes[key_end..value_at]).u64().unwrap_or(0);
        let meta = meta(Cursor(&bytes[10..ITEM_HEAD]), form, sync_write);
        let key = Some(&bytes[ITEM_HEAD..key_end]).filter(|key| key.len() <= MAX_STORED_KEY_BYTES);
        let (Some(meta), Some(key)) = (meta, key.and_then(DocKey::parse)) else {
            return Err(self.unknown(offset, "an item of an unknown form"));
        };
        let value = &bytes[value_at..len];
        let inflated = if is_compressed { Some(inflate(value)) } else { None };
        let value = match &inflated {
            None => value,
            Some(Some(inflated)) => inflated,
            Some(None) => return Err(self.unknown(offset, "a compressed value that cannot be inflated")),
        };
        Ok((NewVersion::new(self.heap, meta, key, &[value]).publish(), len))
    }
}

/// A value that was compressed; `None` if it is none, or claims to be longer than a frame may be.
fn inflate(value: &[u8]) -> Option<Vec<u8>> {
    let mut inflated = Vec::new();
    couchstore::inflate(value, MAX_FRAME, &mut inflated)?;
    Some(inflated)
}

/// The bits of an item's form that say which part it plays in a sync write.
pub(super) const SYNC_WRITE: u8 = 0x0c;

/// What an item's form says of kind and datatype; `None` if there is no such datatype.
pub(super) fn form(form: u8) -> Option<(ItemKind, Datatype)> {
    let kind = match form & 3 {
        0 => ItemKind::Mutation,
        1 => ItemKind::Deletion,
        2 => ItemKind::Expiration,
        _ => ItemKind::SystemEvent,
    };
    Some((kind, Datatype::from_wire(form >> 4)?))
}

/// A number that may be a seqno.
pub(super) fn seqno(number: u64) -> Option<u64> {
    (number <= MAX_SEQNO).then_some(number)
}

fn meta(mut at: Cursor<'_>, form_bits: u8, sync_write: u64) -> Option<VersionMeta> {
    let (kind, datatype) = form(form_bits)?;
    Some(VersionMeta {
        cas: Cas(at.u64()?),
        by_seqno: Seqno(seqno(at.u64()?)?),
        rev_seqno: RevSeqno(seqno(at.u64()?)?),
        flags: at.u32()?,
        expiry: at.u32()?,
        datatype,
        kind,
        sync_write: SyncWrite::from_parts((form_bits & SYNC_WRITE) >> 2, seqno(sync_write)?)?,
    })
}

/// The state of a file; up to version 7 without the checksum of its header.
fn filed(vb: VbId, body: &[u8]) -> Option<Filed> {
    let mut at = Cursor(body);
    let (through, revision, header_offset) = (Frame(at.u64()?), at.u64()?, at.u64()?);
    let checksum = if at.0.is_empty() { 0 } else { at.u32()? };
    let filed =
        Filed { vb, through, revision, header_offset, checksum: Some(checksum).filter(|it| *it != 0) };
    at.0.is_empty().then_some(filed)
}

fn table(body: &[u8]) -> Option<Vec<Filed>> {
    let mut at = Cursor(body);
    let count = at.u32()? as usize;
    let lengths = [TABLE_ENTRY, EARLIER_TABLE_ENTRY];
    let len = lengths.into_iter().find(|len| count.checked_mul(*len) == Some(at.0.len()))?;
    let mut entry = || filed(VbId(at.u16()?), at.take(len - 2)?);
    (0..count).map(|_| entry()).collect()
}

fn directory(body: &[u8]) -> Option<Directory> {
    let mut at = Cursor(body);
    let from = at.u64()?;
    let vbs = VbSet::decoded(at.u16()?, at.0)?;
    Some(Directory { from, vbs })
}
