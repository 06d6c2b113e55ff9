//! From records to frames.

use base::planted::{self, Bug};
use base::{Datatype, SyncWrite, VbId, Version};
use logstore::Packer;

use super::directory::{Directory, VbSet};
use super::layout::{
    COMPRESSED, FILED_BYTES, FRAME_HEAD, FrameHead, ITEM_HEAD, ITEM_SYNC_WRITE, Pen, RECORD_HEAD, SAVE_HEAD,
    TABLE_ENTRY, flag, kind, padded, seed,
};
use super::{Filed, Record, State, shared};
use crate::state::StateNumbers;

/// How far ahead of the item that is copied the next ones are asked for.
const PREFETCH_HEADS: usize = 8;
const PREFETCH_VALUES: usize = 3;

/// What was encoded of a list of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Records that are done.
    pub(super) record: usize,
    /// Items of the next one that are done.
    item: usize,
}

/// The frame that is being made, in space that is used again for the next.
#[derive(Default)]
pub(super) struct FrameBuffer {
    bytes: Vec<u8>,
    generation: u64,
    records: u32,
    /// The vBuckets of its records.
    touched: VbSet,
    /// Compresses values, if they are to be.
    packer: Option<Packer>,
}

/// Shorter values are not compressed.
const SHORTEST: usize = 128;

impl FrameBuffer {
    /// An empty frame of a segment of this generation, whose values may be compressed.
    pub(super) fn begin(&mut self, generation: u64, compresses: bool) {
        if self.packer.is_some() != compresses {
            self.packer = compresses.then(Packer::default);
        }
        self.bytes.clear();
        self.bytes.resize(FRAME_HEAD, 0);
        self.generation = generation;
        self.records = 0;
        self.touched.clear();
    }

    /// The vBuckets of its records.
    pub(super) fn touched(&self) -> &VbSet {
        &self.touched
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds the last *filed* of every vBucket.
    pub(super) fn table(&mut self, entries: &[Filed]) {
        let start = self.bytes.len();
        self.bytes.resize(start + RECORD_HEAD, 0);
        self.bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        self.bytes.reserve(entries.len() * TABLE_ENTRY);
        for entry in entries {
            self.bytes.extend_from_slice(&entry.vb.0.to_le_bytes());
            self.bytes.extend_from_slice(&filed(entry));
        }
        self.seal(start, kind::TABLE, 0, 0, None);
    }

    /// Adds what this frame says of frames before it.
    pub(super) fn directory(&mut self, directory: &Directory) {
        let start = self.bytes.len();
        self.bytes.resize(start + RECORD_HEAD, 0);
        self.bytes.extend_from_slice(&directory.from.to_le_bytes());
        let (first, bits) = directory.vbs.encoded();
        self.bytes.extend_from_slice(&first.to_le_bytes());
        self.bytes.extend_from_slice(bits);
        self.seal(start, kind::DIRECTORY, 0, 0, None);
    }

    /// Adds records from `at` on, as long as the frame has no more than `limit` bytes. If `must` is set, one item or
    /// record goes in whatever the limit.
    pub(super) fn fill(&mut self, records: &[Record<'_>], at: &mut Position, limit: usize, mut must: bool) {
        while let Some(record) = records.get(at.record) {
            let shared = if at.item == 0 { self.shared(&records[at.record..], limit) } else { 0 };
            if shared > 0 {
                *at = Position { record: at.record + shared, item: 0 };
                must = false;
                continue;
            }
            let whole = match record {
                Record::Save { vb, state, items, is_repeat } => {
                    let repeat = if *is_repeat { flag::REPEAT } else { 0 };
                    if !self.part((vb.0, state, items, repeat), at, limit, must) {
                        return;
                    }
                    at.item == items.len()
                }
                _ if !must && self.bytes.len() + FILED_BYTES > limit => return,
                Record::Filed(filed) => self.filed(kind::FILED, filed),
                Record::RolledBack(filed) => self.filed(kind::ROLLED_BACK, filed),
                Record::Dropped(vb) => {
                    let start = self.bytes.len();
                    self.bytes.resize(start + RECORD_HEAD, 0);
                    self.seal(start, kind::DROPPED, 0, vb.0, None);
                    true
                }
            };
            if !whole {
                return;
            }
            *at = Position { record: at.record + 1, item: 0 };
            must = false;
        }
    }

    /// Adds the first saves in one record if several vBuckets save the same event; answers how many it has.
    fn shared(&mut self, records: &[Record<'_>], limit: usize) -> usize {
        let start = self.bytes.len();
        self.bytes.resize(start + RECORD_HEAD, 0);
        let vbs = shared::encode(records, &mut self.bytes, limit);
        if vbs.is_empty() || planted::is(Bug::EventsNotShared) {
            self.bytes.truncate(start);
            return 0;
        }
        self.seal(start, kind::SHARED, 0, 0, None);
        vbs.iter().for_each(|vb| self.touched.insert(*vb));
        vbs.len()
    }

    fn filed(&mut self, kind: u8, entry: &Filed) -> bool {
        let start = self.bytes.len();
        self.bytes.resize(start + RECORD_HEAD, 0);
        self.bytes.extend_from_slice(&filed(entry));
        self.seal(start, kind, 0, entry.vb.0, None);
        true
    }

    /// Adds as much of a save as fits; if it `must`, state and first item even beyond the limit. False, and nothing
    /// added, if not even one item fits.
    fn part(
        &mut self,
        (vb, state, items, repeat): (u16, &State<'_>, &[Version], u8),
        at: &mut Position,
        limit: usize,
        mut must: bool,
    ) -> bool {
        let start = self.bytes.len();
        self.bytes.resize(start + SAVE_HEAD, 0);
        let mut flags = repeat;
        if at.item == 0 {
            flags |= flag::FIRST | self.state(state);
        }
        let head_end = self.bytes.len();
        let begin = at.item;
        let seed = seed(self.generation, vb);
        if !must && head_end > limit {
            self.bytes.truncate(start);
            return false;
        }
        for (i, version) in items.iter().enumerate().skip(begin) {
            let sync_write = if version.meta().sync_write == SyncWrite::No { 0 } else { ITEM_SYNC_WRITE };
            let bytes = ITEM_HEAD + version.stored_key().len() + sync_write + version.value().len();
            if !must && self.bytes.len() + bytes > limit {
                break;
            }
            if let Some(later) = items.get(i + PREFETCH_HEADS) {
                later.prefetch();
            }
            if let Some(next) = items.get(i + PREFETCH_VALUES) {
                next.prefetch_value();
            }
            self.item(seed, version, bytes);
            at.item = i + 1;
            must = false;
        }
        if at.item == begin && begin < items.len() {
            self.bytes.truncate(start);
            return false;
        }
        if at.item == items.len() {
            flags |= flag::LAST;
        }
        let count = (at.item - begin) as u32;
        let state_bytes = (head_end - start - SAVE_HEAD) as u32;
        self.bytes[start + 12..start + 16].copy_from_slice(&count.to_le_bytes());
        self.bytes[start + 16..start + 20].copy_from_slice(&state_bytes.to_le_bytes());
        self.seal(start, kind::SAVE, flags, vb, Some(head_end));
        true
    }

    fn state(&mut self, state: &State<'_>) -> u8 {
        match state {
            State::Whole(doc) => {
                self.bytes.extend_from_slice(&doc.to_json());
                flag::WHOLE
            }
            State::Numbers(doc) => {
                self.bytes.extend_from_slice(&StateNumbers::of(doc).encode());
                flag::NUMBERS
            }
        }
    }

    #[inline]
    fn item(&mut self, seed: u32, version: &Version, bytes: usize) {
        assert!(version.is_resident(), "what is journaled has its value in memory");
        let (meta, key, value) = (version.meta(), version.stored_key(), version.value());
        let is_plain = !meta.datatype.contains(Datatype::SNAPPY);
        let packed = self
            .packer
            .as_mut()
            .filter(|_| is_plain && value.len() >= SHORTEST)
            .and_then(|packer| packer.pack(value));
        let (value, compressed) = packed.map_or((value, 0), |packed| (packed, COMPRESSED));
        let (sync_write, rest) = meta.sync_write.stored(meta.by_seqno).to_parts();
        let head: [u8; ITEM_HEAD] = Pen::new()
            .put(&[0; 4])
            .put(&(value.len() as u32 | compressed).to_le_bytes())
            .put(&[key.len() as u8, meta.kind as u8 | sync_write << 2 | meta.datatype.0 << 4])
            .put(&meta.cas.0.to_le_bytes())
            .put(&meta.by_seqno.0.to_le_bytes())
            .put(&meta.rev_seqno.0.to_le_bytes())
            .put(&meta.flags.to_le_bytes())
            .put(&meta.expiry.to_le_bytes())
            .done();
        let start = self.bytes.len();
        self.bytes.reserve(bytes);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(key);
        if sync_write != 0 {
            self.bytes.extend_from_slice(&rest.to_le_bytes());
        }
        self.bytes.extend_from_slice(value);
        let crc = crc32c::crc32c_append(seed, &self.bytes[start + 4..]);
        self.bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Completes the record that began at `start`: its checksum covers it up to `head_end`, or all of it.
    fn seal(&mut self, start: usize, kind: u8, flags: u8, vb: u16, head_end: Option<usize>) {
        let len = u32::try_from(self.bytes.len() - start).expect("a frame is far below 4 GiB");
        let record = &mut self.bytes[start..];
        record[..4].copy_from_slice(&len.to_le_bytes());
        record[8] = kind;
        record[9] = flags;
        record[10..12].copy_from_slice(&vb.to_le_bytes());
        let head = head_end.map_or(record.len(), |end| end - start);
        let crc = crc32c::crc32c_append(seed(self.generation, vb), &record[..4]);
        let crc = crc32c::crc32c_append(crc, &record[8..head]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        self.records += 1;
        if !matches!(kind, kind::TABLE | kind::DIRECTORY | kind::SHARED) {
            self.touched.insert(VbId(vb));
        }
    }

    /// The frame as it goes to disk. Length, generation and number of records in `head` are filled in.
    pub(super) fn finish(&mut self, head: FrameHead) -> &[u8] {
        let payload = u32::try_from(self.bytes.len() - FRAME_HEAD).expect("a frame is far below 4 GiB");
        let head = FrameHead { payload, generation: self.generation, records: self.records, ..head };
        self.bytes[..FRAME_HEAD].copy_from_slice(&head.encode());
        self.bytes.resize(padded(self.bytes.len()), 0);
        &self.bytes
    }

    /// Gives back what one huge item took.
    pub(super) fn shrink(&mut self, most: usize) {
        if let Some(packer) = &mut self.packer {
            packer.shrink(most);
        }
        if self.bytes.capacity() > most {
            self.bytes.clear();
            self.bytes.shrink_to(most);
        }
    }
}

fn filed(entry: &Filed) -> [u8; TABLE_ENTRY - 2] {
    Pen::new()
        .put(&entry.through.0.to_le_bytes())
        .put(&entry.revision.to_le_bytes())
        .put(&entry.header_offset.to_le_bytes())
        .put(&entry.checksum.unwrap_or(0).to_le_bytes())
        .done()
}
