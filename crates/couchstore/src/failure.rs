//! What can go wrong with a file.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file or the disk under it misbehaves.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The disk refused an operation.
    #[error("cannot {operation} {path} at offset {offset}: {source}", path = path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The file.
        path: Arc<Path>,
        /// Where in the file.
        offset: u64,
        /// What the disk said.
        source: io::Error,
    },
    /// Bytes of the file are not what the format demands.
    #[error("{path} is damaged at offset {offset}: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: Arc<Path>,
        /// Where the damaged chunk starts.
        offset: u64,
        /// What does not hold.
        what: &'static str,
    },
    /// No header of the file vouches for its trees.
    #[error("{path} holds no valid header", path = path.display())]
    NoHeader {
        /// The file.
        path: Arc<Path>,
    },
    /// A file of a version that is not read here.
    #[error("{path} has the unsupported file version {version}", path = path.display())]
    UnsupportedVersion {
        /// The file.
        path: Arc<Path>,
        /// Version in its last header.
        version: u8,
    },
    /// An encrypted file of the original, whose key was not given.
    #[error("{path} is encrypted with the key {key_id:?} of the server that wrote it, which was not given", path = path.display())]
    Encrypted {
        /// The file.
        path: Arc<Path>,
        /// The key that its own is made of.
        key_id: String,
    },
    /// An earlier write or sync failed, so nothing is known about the end of the file: it must be opened again.
    #[error("{path} must be opened again after a failed write", path = path.display())]
    Poisoned {
        /// The file.
        path: Arc<Path>,
    },
}
