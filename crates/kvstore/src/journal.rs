//! The log layer (docs/adr/0014-journal.md): records are appended and synced; recovery gives back what was synced, in
//! order, or an error. The layout is in docs/journal_format.md.

mod check;
mod decode;
mod directory;
mod encode;
pub mod fuzz;
mod layout;
mod read;
mod recover;
mod salvage;
mod segment_pool;
mod shared;
#[cfg(test)]
mod tests;
mod told_seqnos;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::env::{Disk, Env};
use base::{RateLimit, VbId, Version};
use parking_lot::Mutex;

pub use check::{JournalReport, SegmentReport, check_journal};
pub(crate) use recover::Missing;
pub(crate) use salvage::{Gap, Salvaged, salvage};
pub use told_seqnos::ToldSeqnos;

use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::state::{StateNumbers, VbStateDoc};
use segment_pool::{Preparing, SegmentPool};
use writer::Writer;

/// The versions of segments. The highest one is written where values may be compressed.
pub const FORMAT: base::FormatVersions = base::FormatVersions {
    written: (layout::VERSION, layout::COMPRESSED_VERSION),
    read: (layout::OLDEST_VERSION, layout::COMPRESSED_VERSION),
};

/// Number of a frame; counts on through all segments, the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Frame(pub u64);

/// The state of a vBucket's file that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filed {
    /// Whose file.
    pub vb: VbId,
    /// Everything of the vBucket in frames up to this is in the file.
    pub through: Frame,
    /// Revision of the file; 0: there is no file.
    pub revision: u64,
    /// Where its header is.
    pub header_offset: u64,
    /// CRC32C of the header, if that is known: a commit of a log-structured store has none.
    pub checksum: Option<u32>,
}

impl Filed {
    /// This commit is durable, and everything of the vBucket in frames up to `through` is in it.
    pub(crate) fn of(vb: VbId, through: Frame, at: FileAt) -> Filed {
        let FileAt { revision, header_offset, checksum } = at;
        Filed { vb, through, revision, header_offset, checksum }
    }

    /// Where its header is; nothing if that was not known, and the last one counts.
    pub fn known_header_offset(&self) -> Option<u64> {
        Some(self.at().unmarked().header_offset).filter(|offset| *offset != FileAt::LAST)
    }

    /// What is wrong if an earlier start found the journal damaged, and changes that followed may be missing.
    pub fn misses_changes(&self) -> Option<&'static str> {
        self.at().is_lost().then_some(FileAt::MISSES_CHANGES)
    }

    /// The commit, maybe with the mark that changes that followed are missing.
    pub(crate) fn at(&self) -> FileAt {
        FileAt { revision: self.revision, header_offset: self.header_offset, checksum: self.checksum }
    }
}

/// What is appended.
#[derive(Clone, Copy)]
pub enum Record<'a> {
    /// Versions of a vBucket, all with their values, and its state.
    Save {
        /// Of which vBucket.
        vb: VbId,
        /// As of these items.
        state: State<'a>,
        /// In any order.
        items: &'a [Version],
        /// Whether it repeats saves that were journaled before, merged: it is complete only with all that follow in the
        /// same append.
        is_repeat: bool,
    },
    /// A vBucket's file is durable.
    Filed(Filed),
    /// A vBucket is gone.
    Dropped(VbId),
    /// A vBucket's file is durable, and what was saved before and lies beyond is void.
    RolledBack(Filed),
}

/// How much of a state document is written.
#[derive(Clone, Copy)]
pub enum State<'a> {
    /// The whole document.
    Whole(&'a VbStateDoc),
    /// Only its numbers changed since the last whole one that was journaled or filed.
    Numbers(&'a VbStateDoc),
}

/// How the journal uses its disk.
#[derive(Clone, Copy, Debug)]
pub struct JournalConfig {
    /// A segment is not longer, unless one item is.
    pub segment_bytes: u64,
    /// A frame is not longer, unless one item or the table of filed states is.
    pub frame_bytes: usize,
    /// How many files are kept for use.
    pub spare_segments: usize,
    /// Whether values are compressed.
    pub compresses: bool,
}

impl Default for JournalConfig {
    fn default() -> JournalConfig {
        JournalConfig { segment_bytes: 32 << 20, frame_bytes: 1 << 20, spare_segments: 2, compresses: false }
    }
}

/// What was appended once.
#[derive(Clone, Debug)]
pub enum Replayed {
    /// [`Record::Save`].
    Save {
        /// Of which vBucket.
        vb: VbId,
        /// As of these items.
        state: ReplayedState,
        /// In the order in which they were appended.
        items: Vec<Version>,
        /// Whether it repeats saves that were journaled before.
        is_repeat: bool,
        /// The frame in which it begins; it is told with the one in which it ends, and needs both.
        begun: Frame,
    },
    /// [`Record::Filed`], or an entry of a table.
    Filed(Filed),
    /// [`Record::Dropped`].
    Dropped(VbId),
    /// [`Record::RolledBack`].
    RolledBack(Filed),
}

/// [`State`] as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayedState {
    /// The whole document.
    Whole(VbStateDoc),
    /// What changed of the last one.
    Numbers(StateNumbers),
}

/// What the journal holds, and what was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Bytes of the segments that are needed, as far as they are written.
    pub used_bytes: u64,
    /// Those segments.
    pub segments: u64,
    /// Files that are kept for use.
    pub spares: u64,
    /// Frames appended.
    pub frames: u64,
    /// Bytes of their records.
    pub payload_bytes: u64,
    /// Bytes written: frames with their padding, and headers.
    pub written_bytes: u64,
    /// Syncs of segments for what was appended.
    pub syncs: u64,
    /// Bytes that were filled with zeros in advance.
    pub prewritten_bytes: u64,
    /// Segments that began in a file that was there.
    pub recycled_segments: u64,
    /// Segments given up after a failed write or sync.
    pub given_up_segments: u64,
}

/// Counts without a lock.
#[derive(Default)]
struct Counters {
    frames: AtomicU64,
    payload_bytes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
    prewritten_bytes: AtomicU64,
    recycled_segments: AtomicU64,
    given_up_segments: AtomicU64,
    /// What one call of append writes on average.
    average_bytes: AtomicU64,
}

fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// What stands beside the journal and vouches for it.
pub(crate) struct Anchor {
    /// Generations up to this one are not used again.
    pub(crate) generations: u64,
    /// Generation and salt of a segment that must be there, with its first frame.
    pub(crate) segment: Option<(u64, u64)>,
    /// Whether all segments are void when the journal is removed, so that none needs to say so itself.
    pub(crate) makes_void: bool,
    /// Is told of each new segment when its first frame is durable, before anything in it is acknowledged: generation
    /// and salt. If this fails, the segment is given up.
    pub(crate) begun: Box<Begun>,
}

type Begun = dyn Fn(u64, u64) -> Result<(), Failure> + Send + Sync;

impl Default for Anchor {
    fn default() -> Anchor {
        Anchor { generations: 0, segment: None, makes_void: false, begun: Box::new(|_, _| Ok(())) }
    }
}

/// Removes segments that are void: the catalog said that the files are believed after they were written.
pub(crate) fn remove_void(env: &Env, dir: &Path, generations: u64) -> Result<(), Failure> {
    read::remove_void(&*env.disk, dir, generations)
}

/// Whether the segment that a catalog names is there: generation and salt.
pub(crate) fn check_promised(disk: &dyn Disk, dir: &Path, promised: (u64, u64)) -> Result<(), Failure> {
    recover::must_have(dir, &read::find(disk, dir)?.segments, promised)
}

/// A bucket's journal.
///
/// Locks, in the order in which they are taken: `releasing` or `preparing`, `writer`, `pool`. Only `pool` is never
/// held during disk operations.
pub struct Journal {
    env: Env,
    dir: PathBuf,
    config: JournalConfig,
    anchor: Anchor,
    writer: Mutex<Writer>,
    pool: Mutex<SegmentPool>,
    releasing: Mutex<segment_pool::Releasing>,
    preparing: Mutex<Option<Preparing>>,
    /// The changes of keys as of which all spares were looked at ([`base::env::Disk::key_changes`]).
    spares_as_of: AtomicU64,
    /// The next frame, while nothing is being appended.
    next: AtomicU64,
    /// What [`Journal::release`] was told.
    needed: AtomicU64,
    counters: Counters,
    given_up: RateLimit,
    /// Whether frames were missing when it was opened.
    has_gaps: bool,
    /// Bytes of the segments of before that stay, whatever is needed, while what is missing in them may be there again
    /// at the next start; 0 if segments go as usual.
    pinned_bytes: AtomicU64,
}

impl Journal {
    /// Looks whether a folder has a journal: one that has told its table, or is damaged. What a first append that was
    /// never acknowledged left is none: it vouches for nothing, and knows of no file.
    pub fn exists(env: &Env, dir: &Path) -> Result<bool, Failure> {
        Journal::exists_behind(env, dir, 0)
    }

    /// The same, segments up to a generation being void.
    pub(crate) fn exists_behind(env: &Env, dir: &Path, generations: u64) -> Result<bool, Failure> {
        read::is_any_begun(&*env.disk, dir, generations)
    }

    /// The highest generation that was used.
    pub(crate) fn generations(&self) -> u64 {
        self.pool.lock().last_generation()
    }

    /// The frame that the next append begins with.
    pub fn next_frame(&self) -> Frame {
        Frame(self.next.load(Ordering::Acquire))
    }

    /// What the journal holds, and what was done so far.
    pub fn stats(&self) -> JournalStats {
        let counters = &self.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let pool = self.pool.lock();
        JournalStats {
            used_bytes: pool.used_bytes(),
            segments: pool.kept() as u64,
            spares: pool.spares() as u64,
            frames: count(&counters.frames),
            payload_bytes: count(&counters.payload_bytes),
            written_bytes: count(&counters.written_bytes),
            syncs: count(&counters.syncs),
            prewritten_bytes: count(&counters.prewritten_bytes),
            recycled_segments: count(&counters.recycled_segments),
            given_up_segments: count(&counters.given_up_segments),
        }
    }
}

fn on_disk<T>(operation: &'static str, path: &Path, result: io::Result<T>) -> Result<T, Failure> {
    result.map_err(|source| Failure::Disk { operation, path: path.to_owned(), source })
}
