//! Backups of a bucket in a folder, and what a restore reads from them (docs/backup_format.md, record 110).
//!
//! # Guarantees
//!
//! - A backup without its manifest is not complete, and no restore reads it. The manifest is written last, when everything
//!   else of the backup is durable.
//! - Of each vBucket a backup holds one state that the vBucket had, which is not before the moment at which the backup began:
//!   all of one moment if its manifest names a snapshot of the bucket, else each at the end of a snapshot of its own.
//! - A flipped bit, a missing byte, and a file of another backup are noticed, and the file is named.
//! - With a key each file is encrypted and authenticated (record 0176); without it none of them is read.
//!
//! It must not know how documents are sent to a cluster (`crate::with_meta`), nor what is printed.

mod block;
mod bucket_state;
mod follow;
pub(crate) mod fuzz;
mod keys;
mod lines;
mod log;
mod manifest;
mod objects;
mod prepared;
mod reader;
mod repository;
mod take;
mod writer;

#[cfg(test)]
mod tests;

use base::SmallFileError;
pub(crate) use block::{FORMAT as BLOCK_FORMAT, Version};
#[cfg(test)]
pub(crate) use bucket_state::read_users;
pub(crate) use bucket_state::{UsersPut, count_users, create_bucket, http_of, put_users};

pub(crate) use follow::{FollowCounts, FollowNews, FollowOptions, follow_bucket};
pub(crate) use log::{AtMoment, ChangeLog, FORMAT as LOG_FORMAT, GapSet, MomentReader, WantedMoment};
pub(crate) use manifest::BackupManifest;
#[cfg(test)]
pub(crate) use objects::FakeStore;
pub(crate) use objects::{BackupPlace, ObjectStoreFlags};
pub(crate) use reader::ChainReader;
pub(crate) use repository::{Backup, Chain, Repository, UnfinishedBackup};
pub(crate) use take::{HowFar, TakeOptions, Taken, record_of, take};

/// Why a backup cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupError {
    /// The disk refused.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its backup wrote.
    #[error("{} is damaged: {what}; use another backup, or another copy of this file", path.display())]
    Damaged {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// There is no such backup.
    #[error("{0}")]
    Missing(String),
    /// It is encrypted, and the key is missing or another one.
    #[error("{0}")]
    Key(String),
}

impl From<SmallFileError> for BackupError {
    fn from(error: SmallFileError) -> BackupError {
        match error {
            SmallFileError::Io { operation, path, source } => BackupError::Io { operation, path, source },
            SmallFileError::Damaged { path, what } | SmallFileError::Newer { path, what } => {
                BackupError::Damaged { path, what }
            }
        }
    }
}

impl BackupError {
    fn damaged(path: &std::path::Path, what: impl Into<String>) -> BackupError {
        BackupError::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether a file is not what its backup wrote.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, BackupError::Damaged { .. })
    }
}
