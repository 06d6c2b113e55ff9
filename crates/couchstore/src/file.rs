//! A file that is written: opened at its last valid header, appended to, committed.

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, OpenMode};

use crate::chunk::{Checksum, Source};
use crate::failure::Failure;
use crate::header::{Header, VERSION};
use crate::node::NodeKind;
use crate::snapshot::Snapshot;
use crate::writer::Writer;

/// Choices about the shape of what is written; the defaults were measured.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Inflated size above which a leaf is divided.
    pub leaf_bytes: usize,
    /// Inflated size above which an interior node is divided.
    pub interior_bytes: usize,
    /// Whether nodes are really compressed, or stored as a Snappy block of one literal.
    pub compress_nodes: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { leaf_bytes: 1024, interior_bytes: 2048, compress_nodes: false }
    }
}

impl Tuning {
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
    pub(crate) tuning: Tuning,
    /// Whether nodes of the local tree may still be in the write buffer.
    pub(crate) locals_unwritten: bool,
}

impl CouchFile {
    /// Makes a new file, which must not exist. It is no valid file before its first commit, and its name is durable
    /// only after a sync of the folder.
    pub fn create(disk: &dyn Disk, path: &Path) -> Result<CouchFile, Failure> {
        let source = open_source(disk, path, OpenMode::CreateNew)?;
        Ok(CouchFile::at(source, Header::new(), 0))
    }

    /// Opens a file at its last valid header. Whatever comes after that header is left alone.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<CouchFile, Failure> {
        let mut source = open_source(disk, path, OpenMode::ReadWrite)?;
        source.file.sync_data().map_err(|e| Failure::Io {
            operation: "sync",
            path: source.path.clone(),
            offset: 0,
            source: e,
        })?;
        let end = file_len(&source)?;
        let header = Header::find_last(&mut source, end)?;
        Ok(CouchFile::at(source, header, end))
    }

    /// Opens a file for reading, at its last valid header.
    pub fn open_read(disk: &dyn Disk, path: &Path) -> Result<Snapshot, Failure> {
        let mut source = open_source(disk, path, OpenMode::Read)?;
        let end = file_len(&source)?;
        let header = Header::find_last(&mut source, end)?;
        Ok(Snapshot::new(source, Arc::new(header), end))
    }

    fn at(source: Source, header: Header, end: u64) -> CouchFile {
        CouchFile {
            writer: Writer::new(source, end),
            committed: Arc::new(header.clone()),
            header,
            tuning: Tuning::default(),
            locals_unwritten: false,
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
    pub fn commit(&mut self, timestamp_ns: u64) -> Result<(), Failure> {
        self.writer.flush()?;
        self.writer.sync()?;
        self.header.timestamp_ns = timestamp_ns;
        // version 12 has the same checksum as 13; a file of version 11 keeps its own
        if self.writer.source().checksum == Checksum::Crc32c {
            self.header.version = VERSION;
        }
        self.header.offset = self.writer.next_block();
        self.writer.append_header(&self.header.encode());
        self.writer.flush()?;
        self.writer.sync()?;
        self.locals_unwritten = false;
        self.committed = Arc::new(self.header.clone());
        Ok(())
    }
}

fn open_source(disk: &dyn Disk, path: &Path, mode: OpenMode) -> Result<Source, Failure> {
    let path: Arc<Path> = path.into();
    match disk.open(&path, mode) {
        Ok(file) => Ok(Source { file, path, checksum: Checksum::Crc32c }),
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
