//! What a clean stop promises of each file, and files of which two versions are on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::VbId;

use super::file::{Known, VbFile};
use super::folder::on;
use super::{Couch, Slot, Vbucket};
use crate::catalog::Listed;
use crate::compaction::FileAt;
use crate::failure::Failure;
use crate::files::Undecided;

impl Couch {
    fn each_vbucket(&self) -> Vec<(VbId, Arc<Vbucket>)> {
        self.vbuckets.lock().iter().map(|(vb, one)| (*vb, one.clone())).collect()
    }

    /// Puts into the catalog, durably, which header of each file is the last; segments of the journal up to
    /// `generations` are void then. Each file ends with its last header: see [`Couch::end_with_headers`].
    pub(super) fn list_headers(&self, generations: u64) -> Result<(), Failure> {
        self.promises.list(generations, || {
            let mut files = BTreeMap::new();
            for (vb, vbucket) in self.each_vbucket() {
                let mut slot = vbucket.slot.lock();
                if let Some(revision) = slot.revision {
                    files.insert(vb, self.promise(vb, &vbucket, &mut slot, revision));
                }
            }
            files
        })
    }

    /// What is promised of one file. Of one that cannot be opened it is what was promised before.
    fn promise(&self, vb: VbId, vbucket: &Vbucket, slot: &mut Slot, revision: u64) -> Listed {
        let mut listed = last_of(self, vb, vbucket, slot, revision);
        if slot.is_lost() {
            listed.at = listed.at.marked_lost();
        }
        listed
    }

    /// Has every file end with its last header, durably: what stands behind it was refused, and another program would
    /// take it for newer. A file that cannot be opened stays as it is.
    pub(super) fn end_with_headers(&self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for (vb, vbucket) in self.each_vbucket() {
            let mut slot = vbucket.slot.lock();
            if slot.is_lost() {
                continue;
            }
            if slot.recorded.is_some_and(|recorded| recorded.is_tail_void) {
                // opening cuts it; a failure has been told, and what is on record stays so
                let opened = self.opened(vb, &vbucket, &mut slot).map(drop);
                self.note(vb, &vbucket, &mut slot, opened).ok();
                continue;
            }
            let open = slot.file.as_ref().map(VbFile::has_tail);
            if open.or(slot.known.as_ref().map(Known::has_tail)).unwrap_or(false) {
                let cut = self.cut_tail(vb, &vbucket, &mut slot);
                let cut = self.note(vb, &vbucket, &mut slot, cut);
                outcome = outcome.and(cut);
            }
        }
        outcome
    }

    fn cut_tail(&self, vb: VbId, vbucket: &Vbucket, slot: &mut Slot) -> Result<(), Failure> {
        if vbucket.close(slot, false) {
            self.open_files.forget(vb);
        }
        slot.keeps_tail = false;
        let file = self.opened(vb, vbucket, slot)?.to_sync();
        let path = self.folder.path(vb, slot.revision.unwrap_or_default());
        on("sync", &path, file.sync_data())
    }

    /// Something of a vBucket is on disk that a restart may find on record, or not.
    pub(super) fn is_undecided(&self) {
        self.has_undecided.store(true, Ordering::Release);
    }

    /// What is on disk of which nobody knows whether a restart will find it on record.
    pub(super) fn list_undecided(&self) -> Vec<Undecided> {
        if !self.has_undecided.load(Ordering::Acquire) {
            return Vec::new();
        }
        let of_one = |(vb, vbucket): (VbId, Arc<Vbucket>)| {
            let slot = vbucket.slot.lock();
            let any = slot.keeps_tail || !slot.undecided.is_empty();
            any.then(|| Undecided { vb, revisions: slot.undecided.clone() })
        };
        let all: Vec<Undecided> = self.each_vbucket().into_iter().filter_map(of_one).collect();
        if all.is_empty() {
            self.has_undecided.store(false, Ordering::Release);
        }
        all
    }

    /// A record is durable that is newer than what was undecided, and names the revision and header in use: the others
    /// go, durably. No rollback runs meanwhile.
    pub(super) fn remove_undecided(&self, undecided: &Undecided) -> Result<(), Failure> {
        let vb = undecided.vb;
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        let (decided, left) =
            slot.undecided.iter().copied().partition(|revision| undecided.revisions.contains(revision));
        slot.undecided = left;
        slot.strays.extend::<Vec<u64>>(decided);
        let mut settled = slot.remove_strays(vb, &self.folder);
        if settled.is_ok() && slot.keeps_tail {
            settled = self.cut_tail(vb, &vbucket, &mut slot);
        }
        self.note(vb, &vbucket, &mut slot, settled)
    }
}

/// What is last of a vBucket, whether or not it is lost.
pub(super) fn last_of(couch: &Couch, vb: VbId, vbucket: &Vbucket, slot: &mut Slot, revision: u64) -> Listed {
    if slot.file.is_none() && slot.known.is_none() && slot.recorded.is_none() {
        let opened = couch.opened(vb, vbucket, slot).map(drop);
        couch.note(vb, vbucket, slot, opened).ok();
    }
    let last_commit = slot.file.as_ref().and_then(VbFile::last_commit);
    if let Some(commit) = last_commit.as_ref().or_else(|| slot.known.as_ref().map(Known::commit)) {
        let checksum = Some(commit.header_checksum());
        return Listed {
            at: FileAt { revision, header_offset: commit.header_offset(), checksum },
            high_seqno: Some(commit.update_seqno()),
            is_tail_void: false,
        };
    }
    match slot.recorded {
        Some(recorded) => {
            Listed { at: recorded.at(revision), high_seqno: None, is_tail_void: recorded.is_tail_void }
        }
        None => {
            let at = FileAt::last_of(revision);
            Listed { at, high_seqno: None, is_tail_void: true }
        }
    }
}
