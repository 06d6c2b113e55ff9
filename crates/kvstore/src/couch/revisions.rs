//! Which of the files of a vBucket is the one in use, and removing the others.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use base::VbId;
use base::env::Disk;
use couchstore::CouchFile;

use super::{Couch, Slot, file_name};
use crate::compaction::FileAt;
use crate::failure::Failure;

/// The files found in a bucket's folder.
#[derive(Default)]
pub(super) struct Revisions(BTreeMap<VbId, Vec<u64>>);

impl Revisions {
    pub(super) fn add(&mut self, vb: VbId, revision: u64) {
        self.0.entry(vb).or_default().push(revision);
    }

    /// Chooses for each vBucket the revision in use: the one on record, if there is a record. The others are removed,
    /// unless the one in use cannot be read: then they are worth more than the room they take.
    pub(super) fn into_slots(
        mut self,
        disk: &dyn Disk,
        dir: &Path,
        record: Option<&BTreeMap<VbId, FileAt>>,
    ) -> Result<impl Iterator<Item = (VbId, Slot)>, Failure> {
        for vb in record.into_iter().flat_map(BTreeMap::keys) {
            // what is on record and not there is a damaged vBucket
            self.0.entry(*vb).or_default();
        }
        let failed =
            |operation, path: &Path, source| Failure::Disk { operation, path: path.to_owned(), source };
        let (mut slots, mut removed) = (Vec::with_capacity(self.0.len()), false);
        for (vb, revisions) in self.0 {
            let highest = revisions.iter().copied().max().unwrap_or_default();
            let (in_use, mut others) = match record {
                None => choose(revisions),
                Some(record) => on_record(revisions, record.get(&vb)),
            };
            let is_readable = |at: FileAt| {
                let path = dir.join(file_name(vb, at.revision));
                CouchFile::open_read(disk, &path).is_ok()
            };
            if !others.is_empty() && in_use.is_none_or(is_readable) {
                for path in others.drain(..).map(|revision| dir.join(file_name(vb, revision))) {
                    disk.remove_file(&path).map_err(|source| failed("remove", &path, source))?;
                    removed = true;
                }
            }
            let slot = Slot {
                revision: in_use.map(|at| at.revision),
                last_revision: highest.max(in_use.map_or(0, |at| at.revision)),
                recorded: in_use.map(|at| at.header_offset).filter(|offset| *offset != FileAt::LAST),
                strays: others,
                ..Slot::default()
            };
            slots.push((vb, slot));
        }
        if removed {
            disk.sync_dir(dir).map_err(|source| failed("sync folder", dir, source))?;
        }
        Ok(slots.into_iter())
    }
}

/// The revision in use among all that are there, and the others. A file gets its name only when it is complete and
/// durable, and a compaction takes the old one away behind it, so the highest wins.
fn choose(mut revisions: Vec<u64>) -> (Option<FileAt>, Vec<u64>) {
    revisions.sort_unstable();
    let in_use = revisions.pop().map(|revision| FileAt { revision, header_offset: FileAt::LAST });
    (in_use, revisions)
}

/// The revision on record, and the others. A file that is not on record was made shortly before a crash, and what is
/// in it is in the journal.
fn on_record(mut revisions: Vec<u64>, record: Option<&FileAt>) -> (Option<FileAt>, Vec<u64>) {
    revisions.retain(|revision| record.is_none_or(|at| at.revision != *revision));
    (record.copied(), revisions)
}

impl Couch {
    /// Makes sure before a save that no higher revision than the one in use is on disk: a restart would take it.
    pub(super) fn settle(&self, vb: VbId, slot: &mut Slot) -> Result<(), Failure> {
        if slot.strays.iter().any(|stray| Some(*stray) > slot.revision) {
            self.remove_strays(vb, slot)
        } else {
            Ok(())
        }
    }

    /// Removes every revision that should not be there, durably.
    pub(super) fn remove_strays(&self, vb: VbId, slot: &mut Slot) -> Result<(), Failure> {
        if slot.strays.is_empty() {
            return Ok(());
        }
        for stray in &slot.strays {
            self.remove(&self.path(vb, *stray))?;
        }
        self.sync_folder()?;
        slot.strays.clear();
        Ok(())
    }

    /// Removes the closed file of a vBucket, durably.
    pub(super) fn remove_file_of(&self, vb: VbId, slot: &mut Slot) -> Result<(), Failure> {
        // first the others: nothing of them may come up in its place
        self.remove_strays(vb, slot)?;
        if let Some(revision) = slot.revision {
            self.remove(&self.path(vb, revision))?;
        }
        slot.revision = None;
        // synced even if the file was gone before: an earlier try may have failed here
        self.sync_folder()
    }

    /// Removes a file; fine if there is none.
    pub(super) fn remove(&self, path: &Path) -> Result<(), Failure> {
        match self.env.disk.remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => self.disk("remove", path, Err(e)),
            _ => Ok(()),
        }
    }

    pub(super) fn sync_folder(&self) -> Result<(), Failure> {
        self.disk("sync folder", &self.dir, self.env.disk.sync_dir(&self.dir))
    }
}
