//! Backups in a bucket of an S3-compatible object store (record 0133).
//!
//! # Guarantees
//!
//! - What is written counts when its manifest is there: an object is there as a whole or not at all.
//! - What a cut connection, or a store that is busy, refuses is tried again, so many times.
//!
//! It must not know what a backup is made of, but for the names of its files.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the client's end is not part of a node"
)]

mod disk;
#[cfg(test)]
mod fake_store;
mod http;
mod lock;
mod place;
#[cfg(test)]
mod segment_tests;
mod segments;
mod sign;
mod store;
#[cfg(test)]
mod tests;

use std::path::Path;

#[cfg(test)]
pub(crate) use fake_store::FakeStore;
pub(crate) use lock::{NotLocked, ObjectLock};
pub(crate) use place::{BackupPlace, ObjectStoreFlags};
pub(crate) use store::ObjectStore;

impl ObjectStore {
    /// Takes the lock with this name.
    pub(super) fn lock(&self, path: &Path) -> Result<ObjectLock, NotLocked> {
        ObjectLock::take(self, &disk::key_of(path)?, lock::LockTimes::REAL)
    }

    /// Makes one object of each segment of a log that consists of pieces and has a lower number than `before`.
    pub(super) fn join_segments(&self, folder: &Path, before: u32) -> std::io::Result<()> {
        segments::join_pieces(&std::sync::Arc::new(self.another()), folder, before)
    }
}
