//! What can go wrong with the store's files.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file or the disk under it misbehaves.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The disk refused an operation.
    #[error("cannot {operation} {path} at offset {offset}: {source}", path = path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file or folder.
        path: Arc<Path>,
        /// Where in the file.
        offset: u64,
        /// What the disk said.
        source: Arc<io::Error>,
    },
    /// Bytes of a file are not what the format demands.
    #[error("{path} is damaged at offset {offset}: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: Arc<Path>,
        /// Where the damaged part starts.
        offset: u64,
        /// What does not hold.
        what: &'static str,
    },
    /// A file is another one than the one that belongs there.
    #[error("{path} is not the file that belongs there: {what}", path = path.display())]
    Foreign {
        /// The file.
        path: Arc<Path>,
        /// Which one it is.
        what: String,
    },
    /// A vBucket is not served because files that it needs are damaged.
    #[error("vBucket {vb} cannot be used: {what}")]
    Refused {
        /// Which one.
        vb: u16,
        /// Why.
        what: Arc<str>,
    },
    /// There is no such vBucket.
    #[error("vBucket {vb} is not stored")]
    NoVbucket {
        /// Which one.
        vb: u16,
    },
    /// The folder was made with other settings, or by another version.
    #[error("{path} cannot be used: {what}", path = path.display())]
    Unsupported {
        /// The file.
        path: Arc<Path>,
        /// What does not fit.
        what: String,
    },
    /// The work was ended because the vBucket was deleted or rolled back, or because its watcher ended it.
    #[error("the work on vBucket {vb} was ended: {why}")]
    Ended {
        /// Which one.
        vb: u16,
        /// Why.
        why: &'static str,
    },
    /// What the caller made of a batch cannot be stored.
    #[error("the batch of vBucket {vb} cannot be stored: {what}")]
    Batch {
        /// Which one.
        vb: u16,
        /// Why.
        what: String,
    },
}

impl Failure {
    pub(crate) fn io(operation: &'static str, path: &Arc<Path>, offset: u64, source: io::Error) -> Failure {
        Failure::Io { operation, path: path.clone(), offset, source: Arc::new(source) }
    }

    pub(crate) fn damaged(path: &Arc<Path>, offset: u64, what: &'static str) -> Failure {
        Failure::Damaged { path: path.clone(), offset, what }
    }

    /// Whether stored bytes are wrong or missing, as opposed to a disk that refuses.
    pub fn is_damage(&self) -> bool {
        match self {
            Failure::Damaged { .. }
            | Failure::Foreign { .. }
            | Failure::Refused { .. }
            | Failure::Unsupported { .. } => true,
            Failure::Io { operation, source, .. } => {
                *operation == "open" && source.kind() == io::ErrorKind::NotFound
            }
            Failure::NoVbucket { .. } | Failure::Ended { .. } | Failure::Batch { .. } => false,
        }
    }

    /// The file that is damaged, or missing, or another one.
    pub(crate) fn damaged_file(&self) -> Option<&Arc<Path>> {
        match self {
            Failure::Damaged { path, .. } | Failure::Foreign { path, .. } | Failure::Io { path, .. } => {
                self.is_damage().then_some(path)
            }
            _ => None,
        }
    }

    /// Whether it concerns what was to be read of one vBucket, and not what is written for many.
    pub fn is_of_one(&self) -> bool {
        match self {
            Failure::Io { operation, .. } => matches!(*operation, "open" | "read"),
            Failure::Batch { .. } => true,
            _ => self.is_damage(),
        }
    }
}
