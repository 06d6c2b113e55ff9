//! Appending frames.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::VbId;
use base::env::{File, OpenMode};
use base::planted::{self, Bug};

use super::directory::Recent;
use super::encode::{FrameBuffer, Position};
use super::layout::{
    BLOCK, COMPRESSED_VERSION, FRAME_HEAD, FrameHead, SegmentHead, VERSION, padded, segment_path, spare_path,
};
use super::{Filed, Frame, Journal, Record, count, on_disk};
use crate::failure::Failure;

/// Commits that write less than this on average gain from blocks that are written in advance.
const SMALL_COMMIT_BYTES: u64 = 16 << 10;
/// The buffer is not kept larger than this beyond a frame.
const SPARE_BUFFER_BYTES: usize = 1 << 20;

/// What only one thread at a time may do.
#[derive(Default)]
pub(super) struct Writer {
    /// None after a failure.
    current: Option<Current>,
    /// A segment that a failed call began, and to which no frame was written: the next one uses it, so that a full disk
    /// does not get another file with each attempt. It was never synced, and the catalog does not name it.
    begun: Option<Current>,
    /// The last frame that is durable.
    pub(super) durable: u64,
    /// What the next frames say of those before.
    pub(super) recent: Recent,
    buffer: FrameBuffer,
}

/// The segment that is appended to.
struct Current {
    file: Arc<dyn File>,
    path: PathBuf,
    head: SegmentHead,
    /// Where the next frame goes.
    offset: u64,
    /// Its frames that were written.
    frames: u64,
    /// Its tables that were written.
    tables: u64,
    /// Whether its header is durable.
    is_established: bool,
    /// Whether it was written before, so that its blocks are there.
    is_prewritten: bool,
}

/// Writes the records of one call.
struct Call<'a> {
    journal: &'a Journal,
    writer: &'a mut Writer,
    records: &'a [Record<'a>],
    filed: &'a dyn Fn() -> Vec<Filed>,
    is_recovery: bool,
    at: Position,
    /// Number of the first frame.
    first: u64,
    /// Number of the next frame.
    number: u64,
    /// What the last frame says is needed.
    said: u64,
    is_unsynced: bool,
}

impl Journal {
    /// Appends records and makes them durable with one sync (several only if they cross segments).
    /// Answers the last frame used; records of one call are in frames (last call's frame, this].
    /// A save is never half visible. `filed` is asked for the whole table when a new segment begins.
    /// After an error some of the records may be there after a restart; to be told, they must be appended again.
    pub fn append(&self, records: &[Record<'_>], filed: &dyn Fn() -> Vec<Filed>) -> Result<Frame, Failure> {
        if records.is_empty() {
            return Ok(Frame(self.writer.lock().durable));
        }
        self.write(records, filed, false)
    }

    /// Appends what was the last group of an older segment, so that it is surely durable: in a segment of its own,
    /// which counts only once all of it is there.
    pub(super) fn append_again(&self, records: &[Record<'_>], table: &[Filed]) -> Result<Frame, Failure> {
        self.write(records, &|| table.to_vec(), true)
    }

    fn write(
        &self,
        records: &[Record<'_>],
        filed: &dyn Fn() -> Vec<Filed>,
        is_recovery: bool,
    ) -> Result<Frame, Failure> {
        let mut writer = self.writer.lock();
        let before = self.counters.written_bytes.load(Ordering::Relaxed);
        let written = Call::new(self, &mut writer, records, filed, is_recovery).run();
        self.after(&mut writer, written)?;
        writer.buffer.shrink(self.config.frame_bytes.saturating_add(SPARE_BUFFER_BYTES));
        let bytes = self.counters.written_bytes.load(Ordering::Relaxed) - before;
        let average = self.counters.average_bytes.load(Ordering::Relaxed);
        self.counters.average_bytes.store((average * 7 + bytes) / 8, Ordering::Relaxed);
        Ok(Frame(writer.durable))
    }

    /// Makes durable what is needed now, so that older segments may go: with an empty frame, unless one said so.
    /// `all` says that not even this frame is needed. False if there is no segment for it: the next append says it.
    pub(super) fn mark(&self, needed: u64, all: bool) -> Result<bool, Failure> {
        let mut writer = self.writer.lock();
        if !all && self.pool.lock().vouched() >= needed {
            return Ok(true);
        }
        if writer.current.as_ref().is_none_or(|current| !current.is_established) {
            return Ok(false);
        }
        let needed = if all { writer.durable + 2 } else { needed };
        let written = Call::new(self, &mut writer, &[], &Vec::new, false).mark(needed);
        self.after(&mut writer, written)?;
        Ok(true)
    }

    /// A segment is given up after any failure: what of it is on the disk is not known. One without frames goes on as the
    /// next one: its header is written again, with another salt, before any frame is.
    fn after(&self, writer: &mut Writer, written: Result<(), Failure>) -> Result<(), Failure> {
        self.next.store(writer.durable + 1, Ordering::Release);
        written.inspect_err(|failure| {
            if let Some(left_out) = self.given_up.admit(self.env.clock.monotonic()) {
                tracing::warn!(
                    event = "journal_segment_given_up", %failure, left_out,
                    "the journal cannot be written: the segment is given up, and the next write begins another one"
                );
            }
            writer.begun = writer.current.take().filter(|current| current.frames == 0);
            writer.recent.go_on_with(writer.durable + 1);
            self.pool.lock().give_up(writer.durable + 1);
            count(&self.counters.given_up_segments, u64::from(writer.begun.is_none()));
        })
    }

    /// The next append begins a segment: what is on disk now is about to be void.
    pub(super) fn end_segment(&self) {
        let mut writer = self.writer.lock();
        (writer.current, writer.begun) = (None, None);
        self.pool.lock().give_up(writer.durable + 1);
    }

    pub(super) fn is_small(&self) -> bool {
        self.counters.average_bytes.load(Ordering::Relaxed) < SMALL_COMMIT_BYTES
    }

    /// The last frame that is durable.
    pub(super) fn durable(&self) -> u64 {
        self.writer.lock().durable
    }

    /// Sets where a recovered journal goes on.
    pub(super) fn go_on_after(&self, durable: u64, recent: Recent) {
        let mut writer = self.writer.lock();
        (writer.durable, writer.recent) = (durable, recent);
        self.next.store(durable + 1, Ordering::Release);
    }

    /// Begins a new segment, and writes its header unless that comes last.
    fn begin(
        &self,
        writer: &mut Writer,
        first: u64,
        is_within_call: bool,
        is_recovery: bool,
    ) -> Result<(), Failure> {
        let again = writer.begun.take().filter(|begun| {
            let is_same = begun.head.first == first && !is_within_call && !is_recovery;
            is_same && self.pool.lock().begin_again(begun.head.generation)
        });
        let current = match again {
            Some(begun) => begun,
            None => self.open(first, is_within_call)?,
        };
        // It is there from now on, whatever fails.
        let current = writer.current.insert(current);
        // One that was encrypted otherwise, or not at all, begins again as a new file.
        if !current.file.is_current() {
            current.is_prewritten = false;
            on_disk("cut", &current.path, current.file.set_len(0))?;
        }
        // before anything is written: else a crash may leave a spare with a header of a generation to come
        on_disk("sync folder", &self.dir, self.env.disk.sync_dir(&self.dir))?;
        // What an earlier attempt has written of a frame does not count: it has another salt.
        let salt = self.pool.lock().salt(self.env.random.next_u64());
        (current.head.salt, current.tables) = (salt, 0);
        if !is_recovery {
            self.write_head(current)?;
        }
        Ok(())
    }

    /// Opens a file for a new segment.
    fn open(&self, first: u64, is_within_call: bool) -> Result<Current, Failure> {
        let disk = &*self.env.disk;
        let (generation, spare) = self.pool.lock().begin(first, is_within_call);
        let path = segment_path(&self.dir, generation);
        let is_prewritten = spare.is_some_and(|spare| spare.len >= self.config.segment_bytes);
        let mode = match spare {
            Some(spare) => {
                let spare = spare_path(&self.dir, spare.number);
                on_disk("rename", &spare, disk.rename(&spare, &path))?;
                count(&self.counters.recycled_segments, 1);
                OpenMode::ReadWrite
            }
            None => OpenMode::CreateNew,
        };
        let file = on_disk("open", &path, disk.open(&path, mode))?;
        let version = if self.config.compresses { COMPRESSED_VERSION } else { VERSION };
        let head = SegmentHead { version, generation, first, salt: 0 };
        let (offset, frames, tables, is_established) = (BLOCK as u64, 0, 0, false);
        Ok(Current { file, path, head, offset, frames, tables, is_established, is_prewritten })
    }

    fn write_head(&self, current: &Current) -> Result<(), Failure> {
        let block = current.head.encode();
        on_disk("write", &current.path, current.file.write_at(&block, 0))?;
        count(&self.counters.written_bytes, BLOCK as u64);
        Ok(())
    }
}

impl<'a> Call<'a> {
    fn new(
        journal: &'a Journal,
        writer: &'a mut Writer,
        records: &'a [Record<'a>],
        filed: &'a dyn Fn() -> Vec<Filed>,
        is_recovery: bool,
    ) -> Call<'a> {
        let (first, at) = (writer.durable + 1, Position::default());
        let (number, said, is_unsynced) = (first, 0, false);
        Call { journal, writer, records, filed, is_recovery, at, first, number, said, is_unsynced }
    }

    fn run(mut self) -> Result<(), Failure> {
        if self.is_better_elsewhere() {
            self.begin()?;
        }
        while self.at.record < self.records.len() {
            if !self.frame_here()? {
                self.begin()?;
            }
        }
        if self.is_recovery && self.records.is_empty() {
            self.begin()?;
        }
        self.sync()?;
        self.journal.pool.lock().called(self.number);
        Ok(())
    }

    /// Whether a segment with prewritten blocks waits while the current one grows with every commit, or the current one
    /// is not encrypted as a new one would be.
    fn is_better_elsewhere(&self) -> bool {
        if self.writer.current.as_ref().is_some_and(|current| !current.file.is_current()) {
            return true;
        }
        let is_growing = |current: &Current| current.is_established && !current.is_prewritten;
        self.writer.current.as_ref().is_some_and(is_growing)
            && self.journal.is_small()
            && self.journal.pool.lock().is_ready(self.journal.config.segment_bytes)
    }

    /// Writes a frame into the current segment; false if there is no room.
    fn frame_here(&mut self) -> Result<bool, Failure> {
        let config = &self.journal.config;
        let Some(current) = &self.writer.current else { return Ok(false) };
        let room =
            if self.is_recovery { u64::MAX } else { config.segment_bytes.saturating_sub(current.offset) };
        let room = usize::try_from(room / BLOCK as u64 * BLOCK as u64).unwrap_or(usize::MAX);
        // Once more, in case the first frame is damaged.
        let table = (current.tables < 2).then(|| self.table());
        let before = self.at;
        let buffer = self.begin_frame(table.as_deref());
        let limit = config.frame_bytes.saturating_add(buffer.len() - FRAME_HEAD).min(room);
        let Writer { buffer, .. } = &mut *self.writer;
        buffer.fill(self.records, &mut self.at, limit, false);
        if self.at == before {
            // larger than a frame should be; still better here than in another segment
            buffer.fill(self.records, &mut self.at, limit, true);
            if padded(buffer.len()) > room {
                self.at = before;
                return Ok(false);
            }
        }
        self.write_frame(self.journal.needed.load(Ordering::Relaxed))?;
        Ok(true)
    }

    /// Makes what is written durable, and begins a segment with the table and what else its first frame has room for.
    fn begin(&mut self) -> Result<(), Failure> {
        self.sync()?;
        self.writer.current = None;
        let is_within_call = self.number > self.first;
        self.journal.begin(self.writer, self.number, is_within_call, self.is_recovery)?;
        self.writer.recent.begin_segment(self.number);
        let table = self.table();
        self.begin_frame(Some(&table));
        let Writer { buffer, .. } = &mut *self.writer;
        let limit = self.journal.config.frame_bytes.saturating_add(buffer.len() - FRAME_HEAD);
        buffer.fill(self.records, &mut self.at, limit, true);
        self.write_frame(self.journal.needed.load(Ordering::Relaxed))
    }

    /// Begins a frame of the current segment: with a table, and with what it says of the frames before it.
    fn begin_frame(&mut self, table: Option<&[Filed]>) -> &FrameBuffer {
        let Writer { current: Some(current), buffer, recent, .. } = &mut *self.writer else {
            unreachable!("callers have a segment")
        };
        buffer.begin(current.head.generation, current.head.version == COMPRESSED_VERSION);
        if let Some(table) = table {
            buffer.table(table);
            current.tables += 1;
        }
        recent.tell(self.number, current.frames == 0, |directory| buffer.directory(directory));
        buffer
    }

    /// The caller's table does not know yet what this call has written.
    fn table(&self) -> Vec<Filed> {
        let mut table: BTreeMap<VbId, Filed> =
            (self.filed)().into_iter().map(|filed| (filed.vb, filed)).collect();
        for record in &self.records[..self.at.record] {
            match record {
                Record::Filed(filed) | Record::RolledBack(filed) => {
                    table.insert(filed.vb, *filed);
                }
                Record::Dropped(vb) => {
                    table.remove(vb);
                }
                Record::Save { .. } => {}
            }
        }
        table.into_values().collect()
    }

    /// Writes the frame that is in the buffer.
    fn write_frame(&mut self, needed: u64) -> Result<(), Failure> {
        let counters = &self.journal.counters;
        let durable = self.writer.durable;
        let Writer { current: Some(current), buffer, recent, .. } = &mut *self.writer else {
            unreachable!("callers have a segment")
        };
        let payload = buffer.len() - FRAME_HEAD;
        let bytes = buffer.finish(FrameHead {
            payload: 0,
            generation: 0,
            number: self.number,
            durable,
            needed,
            salt: current.head.salt,
            records: 0,
        });
        self.is_unsynced = true;
        self.said = needed;
        on_disk("write", &current.path, current.file.write_at(bytes, current.offset))?;
        let written = bytes.len() as u64;
        current.offset += written;
        current.frames += 1;
        recent.note(self.number, buffer.touched());
        self.number += 1;
        count(&counters.frames, 1);
        count(&counters.payload_bytes, payload as u64);
        count(&counters.written_bytes, written);
        Ok(())
    }

    /// Makes durable what was written since the last time; of a new segment also its name.
    fn sync(&mut self) -> Result<(), Failure> {
        if !self.is_unsynced {
            return Ok(());
        }
        let journal = self.journal;
        let Some(current) = &mut self.writer.current else { unreachable!("written to since the last sync") };
        if !planted::is(Bug::JournalNotSynced) {
            on_disk("sync", &current.path, current.file.sync_data())?;
        }
        count(&journal.counters.syncs, 1);
        if self.is_recovery {
            journal.write_head(current)?;
            on_disk("sync", &current.path, current.file.sync_data())?;
        }
        if !current.is_established {
            (journal.anchor.begun)(current.head.generation, current.head.salt)?;
        }
        current.is_established = true;
        self.is_unsynced = false;
        let (offset, last) = (current.offset, self.number - 1);
        self.writer.durable = last;
        journal.pool.lock().synced(offset, self.said);
        Ok(())
    }

    fn mark(mut self, needed: u64) -> Result<(), Failure> {
        self.begin_frame(None);
        self.write_frame(needed)?;
        self.sync()
    }
}
