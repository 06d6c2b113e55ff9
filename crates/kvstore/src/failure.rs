//! What can go wrong with a bucket's documents on disk.

use std::io;
use std::path::PathBuf;

use base::{Seqno, VbId};

/// The disk or a file misbehaves. What names a vBucket concerns that vBucket only.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file cannot be read or written, or is damaged.
    #[error("vBucket {vb}: {source}")]
    File {
        /// Whose file.
        vb: VbId,
        /// Operation, path and offset.
        source: couchstore::Failure,
    },
    /// A file of a log-structured store cannot be read or written, or is damaged.
    #[error("vBucket {vb}: {source}")]
    Log {
        /// Which vBucket it shows at.
        vb: VbId,
        /// Operation, path and offset.
        source: logstore::Failure,
    },
    /// RocksDB refuses, or what it keeps is damaged.
    #[error("vBucket {vb}: RocksDB cannot {operation} in {dir}: {what}", dir = dir.display())]
    Rocks {
        /// Which vBucket it shows at.
        vb: VbId,
        /// What was tried.
        operation: &'static str,
        /// The folder of the database.
        dir: PathBuf,
        /// Whether the disk or the bytes are at fault.
        fault: RocksFault,
        /// What RocksDB says, with the file if it names one.
        what: String,
    },
    /// The folder has the files of another store than the bucket is to be kept in, or of a version of it that is not read
    /// here, or the store cannot work as it was asked to. What is in the folder is sound, and stays.
    #[error("{dir} cannot be used: {what}", dir = dir.display())]
    OtherStore {
        /// Where.
        dir: PathBuf,
        /// Which file says so.
        what: String,
    },
    /// The disk refused an operation on the bucket's folder.
    #[error("cannot {operation} {path}: {source}", path = path.display())]
    Disk {
        /// What was tried.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// What the disk said.
        source: io::Error,
    },
    /// A record of a file is sound but not one that a key-value engine writes.
    #[error("vBucket {vb}: unknown form of the record with seqno {seqno} in {path}: {what}", path = path.display())]
    Record {
        /// Whose file.
        vb: VbId,
        /// The file.
        path: PathBuf,
        /// Which record.
        seqno: Seqno,
        /// What is unknown.
        what: &'static str,
    },
    /// The state document of a vBucket is missing or cannot be understood.
    #[error("vBucket {vb}: no usable state document in {path}: {what}", path = path.display())]
    State {
        /// Whose file.
        vb: VbId,
        /// The file.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A failure that concerned others too, which have it in full.
    #[error("{what}")]
    Shared {
        /// In words.
        what: String,
        /// Whether the disk is full.
        is_disk_full: bool,
    },
    /// Nothing is stored for this vBucket.
    #[error("vBucket {vb}: nothing is stored")]
    NoVbucket {
        /// Which vBucket.
        vb: VbId,
    },
    /// What was asked for needs an order of keys, and what is in memory has none.
    #[error("vBucket {vb}: it is in memory alone, where items are in the order of their seqnos only")]
    SeqnosOnly {
        /// Which vBucket.
        vb: VbId,
    },
    /// So many read the vBucket from memory that nobody else can.
    #[error("vBucket {vb}: too many read it already")]
    TooManyReaders {
        /// Which vBucket.
        vb: VbId,
    },
    /// The journal is damaged, or somebody else wrote it: what it vouched for cannot all be given back.
    #[error("the journal is damaged at offset {offset} of {path}: {what}", path = path.display())]
    Journal {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// Frames of the journal are missing that may have had acknowledged changes of a vBucket.
    #[error(
        "vBucket {vb}: the journal was damaged, and acknowledged changes may be missing: {what}; fill the vBucket from another node, or see what 'stave check --repair' would keep"
    )]
    Lost {
        /// Whose changes.
        vb: VbId,
        /// What is missing.
        what: String,
    },
    /// A vBucket's file is sound, and not the one that was promised.
    #[error("vBucket {vb}: {path} is not the file that was promised: {what}; put the right file there", path = path.display())]
    Mismatch {
        /// Whose file.
        vb: VbId,
        /// The file.
        path: PathBuf,
        /// What does not match.
        what: String,
    },
    /// The catalog of a folder cannot be used, so it is not known which files to believe.
    #[error("the catalog in {dir} cannot be used: {what}; put back what was there", dir = dir.display())]
    Catalog {
        /// The folder.
        dir: PathBuf,
        /// Why.
        what: String,
    },
    /// What is read is of a store that the bucket has left.
    #[error(
        "vBucket {vb}: the bucket went to another store, and what was read of the one before has ended: begin again"
    )]
    SnapshotEnded {
        /// Which vBucket.
        vb: VbId,
    },
    /// The vBucket is being compacted already.
    #[error("vBucket {vb}: a compaction is under way")]
    CompactionRuns {
        /// Which vBucket.
        vb: VbId,
    },
    /// What is in the journal is being brought into files, which would have to be waited for; the vBucket is as it was.
    #[error("vBucket {vb}: files are being written; try again")]
    FilingRuns {
        /// Which vBucket.
        vb: VbId,
    },
    /// A compaction gave up, through no fault of the disk; the vBucket is as it was.
    #[error("vBucket {vb}: the compaction ended early: {why}")]
    CompactionEnded {
        /// Which vBucket.
        vb: VbId,
        /// Why.
        why: &'static str,
    },
}

/// What is at fault if RocksDB fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RocksFault {
    /// What is stored is not what was stored.
    Damage,
    /// There is no room left.
    DiskFull,
    /// The vBucket could not be read when it had to be, and is not used until the next start.
    Unread,
    /// Anything else: the disk refuses, or the database stopped writing after an earlier failure.
    Other,
}

/// So that one `?` serves failures of both floors while a store below calls back.
pub(crate) enum Trouble<E> {
    /// Of the store below.
    Below(E),
    Ours(Failure),
}

impl<E> From<E> for Trouble<E> {
    fn from(failure: E) -> Trouble<E> {
        Trouble::Below(failure)
    }
}

impl<E> Trouble<E> {
    /// Our failure; `failed` makes one of one below.
    pub(crate) fn into_failure(self, failed: impl FnOnce(E) -> Failure) -> Failure {
        match self {
            Trouble::Below(failure) => failed(failure),
            Trouble::Ours(failure) => failure,
        }
    }
}

impl Failure {
    /// Whether there is no room left on the disk, so that it may be mended by making room.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Failure::File { source: couchstore::Failure::Io { source, .. }, .. }
            | Failure::Disk { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Failure::Log { source: logstore::Failure::Io { source, .. }, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Failure::Rocks { fault, .. } => *fault == RocksFault::DiskFull,
            Failure::Shared { is_disk_full, .. } => *is_disk_full,
            _ => false,
        }
    }

    /// Whether what is on disk cannot be believed, whatever the disk does later: a file is not what its format or a
    /// record demands, or is not there. A disk that refuses, or has no room, is no damage.
    pub fn is_damage(&self) -> bool {
        match self {
            Failure::File { source, .. } => match source {
                couchstore::Failure::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
                couchstore::Failure::Damaged { .. } | couchstore::Failure::NoHeader { .. } => true,
                couchstore::Failure::UnsupportedVersion { .. }
                | couchstore::Failure::Encrypted { .. }
                | couchstore::Failure::Poisoned { .. } => false,
            },
            Failure::Log { source, .. } => source.is_damage(),
            Failure::Rocks { fault, .. } => *fault == RocksFault::Damage,
            Failure::Record { .. }
            | Failure::State { .. }
            | Failure::Journal { .. }
            | Failure::Lost { .. }
            | Failure::Mismatch { .. }
            | Failure::Catalog { .. } => true,
            Failure::Disk { .. }
            | Failure::OtherStore { .. }
            | Failure::Shared { .. }
            | Failure::NoVbucket { .. }
            | Failure::SeqnosOnly { .. }
            | Failure::TooManyReaders { .. }
            | Failure::SnapshotEnded { .. }
            | Failure::CompactionRuns { .. }
            | Failure::FilingRuns { .. }
            | Failure::CompactionEnded { .. } => false,
        }
    }

    /// Whether a file is at fault that others do not depend on.
    pub(crate) fn is_of_one_file(&self) -> bool {
        if let Failure::Log { source, .. } = self {
            return source.is_of_one() && !self.is_disk_full();
        }
        if let Failure::Rocks { fault, .. } = self {
            return matches!(fault, RocksFault::Damage | RocksFault::Unread);
        }
        let names_one = matches!(
            self,
            Failure::File { .. }
                | Failure::Record { .. }
                | Failure::State { .. }
                | Failure::Lost { .. }
                | Failure::Mismatch { .. }
        );
        names_one && !self.is_disk_full()
    }

    /// An answer for each of `count` that it concerns: it stands at the last, and the same at the others.
    pub(crate) fn for_each_of<T>(self, count: usize) -> Vec<Result<T, Failure>> {
        let mut answers: Vec<_> = (1..count).map(|_| Err(self.again())).collect();
        answers.extend((count > 0).then_some(Err(self)));
        answers
    }

    /// The same failure for one more vBucket or key that it concerns.
    pub(crate) fn again(&self) -> Failure {
        match self {
            Failure::Disk { operation, path, source } => {
                Failure::Disk { operation, path: path.clone(), source: again(source) }
            }
            Failure::NoVbucket { vb } => Failure::NoVbucket { vb: *vb },
            other => Failure::Shared { what: other.to_string(), is_disk_full: other.is_disk_full() },
        }
    }
}

/// The same error once more.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
