//! Which of the files of a vBucket is the one in use, and removing the others.

use std::collections::BTreeMap;
use std::path::Path;

use base::VbId;
use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};

use super::file::{Recorded, is_beyond, is_sound};
use super::folder::Folder;
use super::identity::Identity;
use super::{Couch, Refused, Slot, Trust, file_name};
use crate::catalog::{Listed, StoreId};
use crate::compaction::FileAt;
use crate::failure::Failure;

/// The files found in a bucket's folder.
pub(super) struct Revisions<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    store: StoreId,
    found: BTreeMap<VbId, Vec<u64>>,
}

/// The revision that is in use, and why.
struct InUse {
    revision: u64,
    recorded: Option<Recorded>,
    not_before: Option<Listed>,
    /// Whether changes that followed are missing.
    is_lost: bool,
}

impl<'a> Revisions<'a> {
    pub(super) fn new(env: &'a Env, dir: &'a Path, store: StoreId) -> Revisions<'a> {
        Revisions { disk: &*env.disk, dir, store, found: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, vb: VbId, revision: u64) {
        self.found.entry(vb).or_default().push(revision);
    }

    /// Chooses for each vBucket the revision in use. The others are removed, unless the one in use cannot be read, or
    /// nothing proves that they are not needed: then they are worth more than the room they take.
    pub(super) fn into_slots(
        mut self,
        trust: &Trust<'_>,
    ) -> Result<impl Iterator<Item = (VbId, Slot)>, Failure> {
        // what is on record and not there is a damaged vBucket
        let promised: Vec<VbId> = match trust {
            Trust::LastHeaders => Vec::new(),
            Trust::NotBefore(listed) | Trust::Exactly(listed) => listed.keys().copied().collect(),
            Trust::Journal { record, missing, .. } => record.keys().chain(*missing).copied().collect(),
        };
        for vb in promised {
            self.found.entry(vb).or_default();
        }
        let failed =
            |operation, path: &Path, source| Failure::Disk { operation, path: path.to_owned(), source };
        let (mut slots, mut removed) = (Vec::with_capacity(self.found.len()), false);
        for (vb, revisions) in &self.found {
            let vb = *vb;
            let in_use = choose(vb, revisions, trust);
            let in_use = in_use.filter(|it| !planted::is(Bug::VoidFileRead) || self.reaches_record(vb, it));
            let mut others = revisions.clone();
            others.retain(|revision| in_use.as_ref().is_none_or(|in_use| in_use.revision != *revision));
            let highest = revisions.iter().copied().max().unwrap_or_default();
            let is_newer = in_use.is_none() && !others.is_empty() && self.is_newer(vb, highest, trust);
            if !others.is_empty()
                && !is_newer
                && !trust.misses(vb)
                && self.may_remove(vb, in_use.as_ref(), trust)
            {
                for path in others.drain(..).map(|revision| self.dir.join(file_name(vb, revision))) {
                    self.disk.remove_file(&path).map_err(|source| failed("remove", &path, source))?;
                    removed = true;
                }
            }
            if is_newer {
                others.retain(|revision| *revision != highest);
            }
            let slot = Slot {
                revision: in_use.as_ref().map(|in_use| in_use.revision).or(is_newer.then_some(highest)),
                last_revision: highest.max(in_use.as_ref().map_or(0, |in_use| in_use.revision)),
                recorded: in_use.as_ref().and_then(|in_use| in_use.recorded),
                not_before: in_use.as_ref().and_then(|in_use| in_use.not_before),
                refused: match in_use {
                    Some(in_use) => in_use.is_lost.then_some(Refused::LOST_BEFORE),
                    None => is_newer.then_some(Refused::OLDER_JOURNAL),
                },
                strays: others,
                ..Slot::default()
            };
            slots.push((vb, slot));
        }
        if removed {
            self.disk.sync_dir(self.dir).map_err(|source| failed("sync folder", self.dir, source))?;
        }
        Ok(slots.into_iter())
    }

    /// Whether a file is long enough for the header that is on record.
    fn reaches_record(&self, vb: VbId, in_use: &InUse) -> bool {
        let Some(recorded) = in_use.recorded else { return true };
        let path = self.dir.join(file_name(vb, in_use.revision));
        let len = self.disk.open(&path, OpenMode::Read).and_then(|file| file.len());
        len.is_ok_and(|len| len > recorded.header_offset)
    }

    /// Whether a file has changes that a journal with nothing on record of the vBucket does not tell of.
    fn is_newer(&self, vb: VbId, revision: u64, trust: &Trust<'_>) -> bool {
        let path = self.dir.join(file_name(vb, revision));
        trust.told_of(vb).is_some_and(|told| is_beyond(self.disk, &path, told))
    }

    /// Whether files of a vBucket that are not in use may be removed.
    fn may_remove(&self, vb: VbId, in_use: Option<&InUse>, trust: &Trust<'_>) -> bool {
        let Some(in_use) = in_use else {
            let is_proven = matches!(trust, Trust::Journal { .. });
            if !is_proven {
                tracing::error!(
                    event = "vbucket_file_unlisted", %vb,
                    "files of a vBucket that the catalog does not list are left alone"
                );
            }
            // it was made shortly before a crash, and what is in it is in the journal
            return is_proven;
        };
        let path = self.dir.join(file_name(vb, in_use.revision));
        let identity = Identity { store: Some(self.store), vb, revision: in_use.revision };
        match is_sound(self.disk, &path, identity, in_use.recorded) {
            Ok(_) => true,
            Err(failure) => {
                tracing::error!(
                    event = "vbucket_revisions_left", %vb, %failure,
                    "other revisions of the file are left alone"
                );
                false
            }
        }
    }
}

/// The revision in use: the one on record, if there is a record. Otherwise the highest: a file gets its name only when
/// it is complete and durable, and a compaction takes the old one away behind it. But what is listed must be there, or
/// a revision that took its place.
fn choose(vb: VbId, revisions: &[u64], trust: &Trust<'_>) -> Option<InUse> {
    let highest = revisions.iter().copied().max();
    let plain = |revision| InUse { revision, recorded: None, not_before: None, is_lost: false };
    let exactly = |listed: &Listed| {
        let recorded = Recorded::of(listed);
        InUse { revision: listed.at.revision, recorded, not_before: None, is_lost: listed.at.is_lost() }
    };
    match trust {
        Trust::LastHeaders => highest.map(plain),
        Trust::Exactly(_) if planted::is(Bug::HighestRevisionWins) => highest.map(plain),
        Trust::Exactly(listed) => listed.get(&vb).map(|listed| {
            let in_use = exactly(listed);
            if planted::is(Bug::LastHeaderBelieved) { plain(in_use.revision) } else { in_use }
        }),
        Trust::NotBefore(listed) => match (listed.get(&vb), highest) {
            (Some(listed), _) if listed.at.is_lost() => Some(exactly(listed)),
            (Some(listed), highest) if highest.is_none_or(|highest| highest <= listed.at.revision) => {
                let revision = listed.at.revision;
                Some(InUse { revision, recorded: None, not_before: Some(*listed), is_lost: false })
            }
            (_, highest) => highest.map(plain),
        },
        Trust::Journal { record, .. } => record.get(&vb).map(|at| {
            let is_unchecked = planted::is(Bug::RecordedHeaderUnchecked);
            let at = FileAt { checksum: at.checksum.filter(|_| !is_unchecked), ..*at };
            let mut in_use = exactly(&Listed { at, high_seqno: None, is_tail_void: true });
            if let Some(recorded) = &mut in_use.recorded {
                recorded.told = trust.told_of(vb);
            }
            in_use
        }),
    }
}

impl Slot {
    /// Makes sure before a save that no higher revision than the one in use is on disk: a restart would take it.
    pub(super) fn settle(&mut self, vb: VbId, folder: &Folder) -> Result<(), Failure> {
        if self.strays.iter().any(|stray| Some(*stray) > self.revision) {
            self.remove_strays(vb, folder)
        } else {
            Ok(())
        }
    }

    /// Removes every revision that should not be there, durably.
    pub(super) fn remove_strays(&mut self, vb: VbId, folder: &Folder) -> Result<(), Failure> {
        if self.strays.is_empty() {
            return Ok(());
        }
        for stray in &self.strays {
            folder.remove(&folder.path(vb, *stray))?;
        }
        folder.sync()?;
        self.strays.clear();
        Ok(())
    }

    /// Removes the file of a vBucket, which is closed, durably.
    pub(super) fn remove_file(&mut self, vb: VbId, folder: &Folder) -> Result<(), Failure> {
        // first the others: nothing of them may come up in its place
        let undecided = std::mem::take(&mut self.undecided);
        self.strays.extend(undecided);
        self.keeps_tail = false;
        self.remove_strays(vb, folder)?;
        if let Some(revision) = self.revision {
            folder.remove(&folder.path(vb, revision))?;
        }
        self.revision = None;
        // synced even if the file was gone before: an earlier try may have failed here
        folder.sync()
    }
}

impl Couch {
    /// Moves all files of a vBucket to another folder, durably.
    pub(super) fn move_revisions(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        if vbucket.close(&mut slot, false) {
            self.open_files.forget(vb);
        }
        self.folder.move_files_of(vb, to)
    }
}
