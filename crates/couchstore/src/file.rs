//! A file that is written: opened at its last valid header, appended to, committed.

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, File, OpenMode};

use crate::chunk::{Checksum, Source};
use crate::encrypted::{Encryption, OriginalKeys};
use crate::failure::Failure;
use crate::header::{Header, VERSION};
use crate::node::NodeKind;
use crate::scratch::Scratch;
use crate::snapshot::Snapshot;
use crate::writer::Writer;

/// Choices about the shape of what is written; the defaults were measured (docs/adr/0015-node-sizes.md).
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Inflated size above which a leaf is divided; twice as much where a large batch changes most of a tree.
    pub leaf_bytes: usize,
    /// Inflated size above which an interior node is divided; less where a batch changes little of a tree.
    pub interior_bytes: usize,
    /// Whether nodes are always really compressed, or mostly stored as a Snappy block of one literal.
    pub compress_nodes: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { leaf_bytes: 512, interior_bytes: 2048, compress_nodes: false }
    }
}

/// Batches of fewer edits do not count as large.
const LARGE_BATCH: u64 = 1024;
/// A large batch is dense if it is at least one of so many of the records.
const DENSE: u64 = 4;
/// From so many bytes of a body on nodes are compressed in dense batches.
const LARGE_BODY: u64 = 128;
/// A batch is sparse if it is less than one of so many of the records.
const SPARSE: u64 = 32;

impl Tuning {
    /// The shape for `edits` edits of a tree of `records`: what is changed as a whole is cheaper in large nodes, and
    /// where each edit changes a node of its own it writes less in small ones.
    /// Beside large bodies compressing what is changed as a whole costs little, and saves half of what nodes take.
    pub(crate) fn fit(self, edits: u64, records: u64, body_bytes: u64) -> Tuning {
        if edits >= LARGE_BATCH && edits.saturating_mul(DENSE) >= records {
            let compress_nodes = self.compress_nodes || body_bytes >= LARGE_BODY;
            let factor = if compress_nodes { 4 } else { 2 };
            Tuning { leaf_bytes: self.leaf_bytes * factor, compress_nodes, ..self }
        } else if edits.saturating_mul(SPARSE) < records {
            let interior_bytes = self.interior_bytes.min(self.leaf_bytes + self.leaf_bytes / 4);
            Tuning { interior_bytes, ..self }
        } else {
            self
        }
    }

    pub(crate) fn node_bytes(&self, kind: NodeKind) -> usize {
        match kind {
            NodeKind::Leaf => self.leaf_bytes,
            NodeKind::Interior => self.interior_bytes,
        }
    }
}

/// A file open for writing. One writer at a time; readers hold [`Snapshot`]s.
///
/// After a failed write or sync every call fails: the file must be opened again, at its last good header.
pub struct CouchFile {
    pub(crate) writer: Writer,
    /// What the next commit writes.
    pub(crate) header: Header,
    committed: Arc<Header>,
    is_committed: bool,
    pub(crate) tuning: Tuning,
    /// What a body of the batch that is saved takes on average.
    pub(crate) body_bytes: u64,
    /// Whether nodes of the local tree may still be in the write buffer.
    pub(crate) locals_unwritten: bool,
    pub(crate) scratch: Scratch,
    stage: Stage,
}

/// A commit that is known to be durable; see [`CouchFile::open_at`].
#[derive(Clone)]
pub struct Commit(Arc<Header>);

impl Commit {
    /// The highest seqno saved.
    pub fn update_seqno(&self) -> u64 {
        self.0.update_seqno
    }

    /// Where its header is.
    pub fn header_offset(&self) -> u64 {
        self.0.offset
    }

    /// CRC32C of its header.
    pub fn header_checksum(&self) -> u32 {
        self.0.checksum()
    }
}

/// How far a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Saving,
    DataWritten,
    HeaderWritten,
}

impl CouchFile {
    /// Makes a new file, which must not exist. It is no valid file before its first commit, and its name is durable
    /// only after a sync of the folder.
    pub fn create(disk: &dyn Disk, path: &Path) -> Result<CouchFile, Failure> {
        let source = open_source(disk, path, OpenMode::CreateNew)?;
        Ok(CouchFile { is_committed: false, ..CouchFile::at(source, Header::new(), 0) })
    }

    /// Makes a new file of another version than the usual one.
    #[cfg(test)]
    pub(crate) fn create_of_version(disk: &dyn Disk, path: &Path, version: u8) -> Result<CouchFile, Failure> {
        let mut source = open_source(disk, path, OpenMode::CreateNew)?;
        source.checksum = Checksum::of_version(version);
        let header = Header { version, ..Header::new() };
        Ok(CouchFile { is_committed: false, ..CouchFile::at(source, header, 0) })
    }

    /// Opens a file at its last valid header. Whatever comes after that header is left alone.
    ///
    /// The file is synced first: what a killed process wrote may be in memory only, and is not to be built upon.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<CouchFile, Failure> {
        let source = open_source(disk, path, OpenMode::ReadWrite)?;
        source.file.sync_data().map_err(|e| Failure::Io {
            operation: "sync",
            path: source.path.clone(),
            offset: 0,
            source: e,
        })?;
        CouchFile::open_last(source)
    }

    /// The same for a file that the caller has synced since the process started.
    pub fn open_synced(disk: &dyn Disk, path: &Path) -> Result<CouchFile, Failure> {
        CouchFile::open_last(open_source(disk, path, OpenMode::ReadWrite)?)
    }

    fn open_last(mut source: Source) -> Result<CouchFile, Failure> {
        let end = file_len(&source)?;
        let header = Header::find_last(&mut source, end)?;
        Ok(CouchFile::at(source, header, end))
    }

    /// Opens a file at a commit that is known to be durable; what stands behind it is cut off.
    ///
    /// After a failed sync this is the only right way: the last header that can be read may be in memory only, and no
    /// later sync need write it. Nor may it stay between those that follow, where a rollback would find it.
    pub fn open_at(disk: &dyn Disk, path: &Path, commit: &Commit) -> Result<CouchFile, Failure> {
        let (source, end) = open_commit(disk, path, commit)?;
        let committed_end = commit.0.end();
        if end > committed_end {
            source.file.set_len(committed_end).map_err(|e| Failure::Io {
                operation: "cut",
                path: source.path.clone(),
                offset: committed_end,
                source: e,
            })?;
        }
        Ok(CouchFile::at(source, (*commit.0).clone(), end.min(committed_end)))
    }

    /// Opens a file at a commit that is known to be durable, and appends behind whatever stands there.
    pub fn open_behind(disk: &dyn Disk, path: &Path, commit: &Commit) -> Result<CouchFile, Failure> {
        let (source, end) = open_commit(disk, path, commit)?;
        Ok(CouchFile::at(source, (*commit.0).clone(), end))
    }

    /// Opens a file at the header at `offset`, if `accept` finds no fault with what is there, and durably cuts off what
    /// stands behind that. For whoever keeps a record of the headers that are durable: later ones may point to data that
    /// never reached the disk. If `accept` refuses, the file stays as it is.
    pub fn open_cut<E: From<Failure>>(
        disk: &dyn Disk,
        path: &Path,
        offset: u64,
        accept: impl FnOnce(&Snapshot) -> Result<(), E>,
    ) -> Result<CouchFile, E> {
        let mut source = open_source(disk, path, OpenMode::ReadWrite)?;
        let (header, end) = Header::read_at(&mut source, offset)?;
        let len = file_len(&source)?;
        accept(&Snapshot::new(source.clone(), Arc::new(header.clone()), len))?;
        if len > end {
            let failed = |operation| {
                let path = source.path.clone();
                move |source| Failure::Io { operation, path, offset: end, source }
            };
            source.file.set_len(end).map_err(failed("cut"))?;
            source.file.sync_data().map_err(failed("sync"))?;
        }
        Ok(CouchFile::at(source, header, end))
    }

    /// Whether bytes stand behind the last commit that belong to none.
    pub fn has_tail(&self) -> bool {
        self.writer.written_end() > self.committed.end()
    }

    /// Opens a file for reading, at its last valid header.
    pub fn open_read(disk: &dyn Disk, path: &Path) -> Result<Snapshot, Failure> {
        CouchFile::open_read_with(disk, path, &OriginalKeys::default())
    }

    /// The same of a file that may be encrypted with one of the keys, as only those of the original are.
    pub fn open_read_with(disk: &dyn Disk, path: &Path, keys: &OriginalKeys) -> Result<Snapshot, Failure> {
        let mut source = open_source(disk, path, OpenMode::Read)?;
        source.encryption = Encryption::with(keys);
        let end = file_len(&source)?;
        let header = Header::find_last(&mut source, end)?;
        Ok(Snapshot::new(source, Arc::new(header), end))
    }

    /// Opens a file for reading, at the header at `offset`, as if nothing stood behind it.
    pub fn open_read_at(disk: &dyn Disk, path: &Path, offset: u64) -> Result<Snapshot, Failure> {
        let mut source = open_source(disk, path, OpenMode::Read)?;
        let (header, end) = Header::read_at(&mut source, offset)?;
        Ok(Snapshot::new(source, Arc::new(header), end))
    }

    fn at(source: Source, header: Header, end: u64) -> CouchFile {
        CouchFile {
            writer: Writer::new(source, end),
            committed: Arc::new(header.clone()),
            is_committed: true,
            header,
            tuning: Tuning::default(),
            body_bytes: 0,
            locals_unwritten: false,
            scratch: Scratch::default(),
            stage: Stage::Saving,
        }
    }

    /// Chooses the shape of the nodes written from now on.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
    }

    /// Sets the seqno up to which tombstones were purged.
    pub fn set_purge_seqno(&mut self, seqno: u64) {
        self.header.purge_seqno = seqno;
    }

    /// The state as of the last commit. It stays valid and readable whatever is written afterwards.
    pub fn snapshot(&self) -> Snapshot {
        let source = self.writer.source().clone();
        Snapshot::new(source, self.committed.clone(), self.writer.written_end())
    }

    /// Makes everything saved durable: data, sync, header, sync. `timestamp_ns` is kept in the header.
    ///
    /// Whoever commits several files at once does these steps by himself: [`CouchFile::write_data`], a sync of
    /// [`CouchFile::file`], [`CouchFile::write_header`], another sync, [`CouchFile::finish_commit`].
    pub fn commit(&mut self, timestamp_ns: u64) -> Result<(), Failure> {
        self.write_data()?;
        self.writer.sync()?;
        self.write_header(timestamp_ns)?;
        self.writer.sync()?;
        self.finish_commit();
        Ok(())
    }

    /// The same for the first commit of a file that nobody can find before this returns: nobody can find a header of
    /// it whose data are not there, so that one sync does for both.
    pub fn commit_unseen(&mut self, timestamp_ns: u64) -> Result<(), Failure> {
        assert!(!self.is_committed, "a file that has a commit can be found");
        self.write_data()?;
        self.write_header(timestamp_ns)?;
        self.writer.sync()?;
        self.finish_commit();
        Ok(())
    }

    /// First step of a commit: writes out everything saved. The caller syncs next.
    pub fn write_data(&mut self) -> Result<(), Failure> {
        self.writer.flush()?;
        self.stage = Stage::DataWritten;
        Ok(())
    }

    /// Second step of a commit: writes the header. The data must be synced, the header is to be synced by the caller.
    pub fn write_header(&mut self, timestamp_ns: u64) -> Result<(), Failure> {
        self.writer.check()?;
        assert_eq!(self.stage, Stage::DataWritten, "data comes before its header");
        self.header.timestamp_ns = timestamp_ns;
        // version 12 has the same checksum as 13; a file of version 11 keeps its own, one of version 14 its links
        if self.writer.source().checksum == Checksum::Crc32c {
            self.header.version = self.header.version.max(VERSION);
        }
        self.header.previous = self.is_committed.then_some(self.committed.offset);
        self.header.offset = self.writer.next_block();
        self.writer.write_header(&self.header.encode())?;
        self.stage = Stage::HeaderWritten;
        Ok(())
    }

    /// Last step of a commit: header and data are synced, from now on readers see them.
    pub fn finish_commit(&mut self) {
        assert_eq!(self.stage, Stage::HeaderWritten, "a commit ends with its header");
        self.stage = Stage::Saving;
        self.locals_unwritten = false;
        self.is_committed = true;
        self.committed = Arc::new(self.header.clone());
    }

    /// The file, to be synced. If that fails, this must be dropped.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.writer.source().file
    }

    /// A sync by the caller failed: every further call fails.
    pub fn poison(&mut self) {
        self.writer.poison();
    }

    /// The last commit, which was durable when it was made or found; nothing if there is none yet.
    pub fn last_commit(&self) -> Option<Commit> {
        self.is_committed.then(|| Commit(self.committed.clone()))
    }

    /// The commit whose header was written last.
    pub(crate) fn written_commit(&self) -> Commit {
        Commit(Arc::new(self.header.clone()))
    }

    /// Lends the buffers in which batches are put together, so that many files can share one set.
    pub fn lend_scratch(&mut self, mut scratch: Scratch) {
        self.writer.swap_buffer(&mut scratch.written);
        self.scratch = scratch;
    }

    /// Takes the buffers back. Nothing may be saved that is not written yet, unless the file is given up.
    pub fn take_scratch(&mut self) -> Scratch {
        let mut scratch = std::mem::take(&mut self.scratch);
        self.writer.swap_buffer(&mut scratch.written);
        scratch
    }
}

/// A file that holds a commit, and where it ends.
fn open_commit(disk: &dyn Disk, path: &Path, commit: &Commit) -> Result<(Source, u64), Failure> {
    let mut source = open_source(disk, path, OpenMode::ReadWrite)?;
    source.checksum = Checksum::of_version(commit.0.version);
    let end = file_len(&source)?;
    if end <= commit.0.offset {
        return Err(source.damaged(commit.0.offset, "the file ends before its last header"));
    }
    Ok((source, end))
}

pub(crate) fn open_source(disk: &dyn Disk, path: &Path, mode: OpenMode) -> Result<Source, Failure> {
    let path: Arc<Path> = path.into();
    match disk.open(&path, mode) {
        Ok(file) => Ok(Source { file, path, checksum: Checksum::Crc32c, encryption: Encryption::default() }),
        Err(source) => Err(Failure::Io { operation: "open", path, offset: 0, source }),
    }
}

fn file_len(source: &Source) -> Result<u64, Failure> {
    source.file.len().map_err(|e| Failure::Io {
        operation: "measure",
        path: source.path.clone(),
        offset: 0,
        source: e,
    })
}
