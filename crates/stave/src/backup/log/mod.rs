//! The log of a bucket that is followed: every change behind a backup, with its moment (docs/backup_format.md, record 0122).
//!
//! # Guarantees
//!
//! - What is in front of the last whole group is durable, and in the order in which each vBucket changed.
//! - An entry behind a horizon has a later moment than the horizon.
//! - Where a vBucket's states cannot be told apart, a gap says so. What was rolled back is never shown.
//! - A flipped bit and a missing byte are noticed, and the file is named. A group at the very end that is not whole counts
//!   as not written.
//!
//! It must not know how documents are sent to a cluster (`crate::with_meta`), nor what is printed.

mod entry;
mod frame;
pub(super) mod fuzz;
mod gaps;
mod held;
mod index;
mod moment;
mod position;
mod scan;
mod segment;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub(crate) use entry::LoggedChange;
pub(crate) use frame::FORMAT;
pub(crate) use gaps::{Gap, GapSet};
pub(crate) use moment::{AtMoment, MomentReader, WantedMoment};
pub(crate) use position::LogPosition;
pub(crate) use scan::{ChangeLog, clock_set_back};
pub(crate) use writer::{LogGroup, LogWriter};

/// The folder of a bucket's log, in the bucket's folder of backups.
pub(super) const LOG: &str = "log";
/// What the names of segments begin with.
pub(super) const SEGMENT: &str = "segment-";

fn segment_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{SEGMENT}{number:08}"))
}
