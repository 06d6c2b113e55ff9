//! Saving a group of batches: data of all, one sync, headers of all, one sync; behind a journal one sync for both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::VbId;
use base::planted::{self, Bug};
use parking_lot::MutexGuard;

use super::file::VbFile;
use super::{Couch, Slot, Vbucket};
use crate::compaction::FileAt;
use crate::failure::{Failure, again};
use crate::store::SaveBatch;

/// One vBucket of a group, locked until the group is done.
struct Member<'g> {
    vb: VbId,
    vbucket: &'g Vbucket,
    slot: MutexGuard<'g, Slot>,
    /// The file of a vBucket that had none.
    new: Option<NewFile>,
    /// How it stands; after a failure nothing more is done for it.
    outcome: Result<FileAt, Failure>,
}

/// A file gets its name only when its first header is durable, so that a file without a valid header is always a
/// damaged one.
struct NewFile {
    file: VbFile,
    revision: u64,
    unfinished: PathBuf,
    path: PathBuf,
}

impl Member<'_> {
    fn file(&mut self) -> Option<&mut VbFile> {
        match &mut self.new {
            _ if self.outcome.is_err() => None,
            Some(new) => Some(&mut new.file),
            None => self.slot.file.as_mut(),
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.outcome = Err(failure);
    }
}

/// What makes a header trustworthy after a crash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The data were synced before it was written: it can be trusted wherever it is found.
    DataFirst,
    /// Somebody keeps a record of the headers that are durable; others are not trusted.
    Recorded,
}

impl Couch {
    /// Saves batches of different vBuckets; all their files are open at once.
    pub(super) fn save_part(
        &self,
        part: &[(VbId, SaveBatch<'_>)],
        how: Order,
    ) -> Vec<Result<FileAt, Failure>> {
        let vbuckets: Vec<Arc<Vbucket>> = part.iter().map(|(vb, _)| self.vbucket(*vb)).collect();
        // in order of vBucket, whatever order the group has, so that two groups never wait for each other
        let mut order: Vec<usize> = (0..part.len()).collect();
        order.sort_unstable_by_key(|&i| part[i].0);
        assert!(order.is_sorted_by(|&a, &b| part[a].0 < part[b].0), "a group has each vBucket once");
        let lock = |&i: &usize| self.lock_member(part[i].0, &vbuckets[i]);
        let mut members: Vec<Member<'_>> = order.iter().map(lock).collect();

        self.write_data(&mut members, |k| part[order[k]].1);
        if how == Order::DataFirst {
            self.sync_members(&mut members);
        }
        self.write_headers(&mut members);
        self.sync_members(&mut members);
        self.name_new_files(&mut members);

        let mut answers: Vec<_> = part.iter().map(|(vb, _)| Err(Failure::NoVbucket { vb: *vb })).collect();
        for (member, &i) in members.into_iter().zip(&order) {
            answers[i] = self.finish(member, part[i].1.items.len());
        }
        answers
    }

    fn lock_member<'g>(&self, vb: VbId, vbucket: &'g Vbucket) -> Member<'g> {
        let mut slot = vbucket.slot.lock();
        let (new, outcome) = if let Err(failure) = self.promises.begin_writing() {
            (None, Err(failure))
        } else if slot.revision.is_some() {
            let settled = slot.settle(vb, &self.folder);
            let opened =
                settled.and_then(|()| self.opened(vb, vbucket, &mut slot).map(|_| FileAt::default()));
            (None, opened)
        } else {
            match self.create(vb, &mut slot) {
                Ok(new) => (Some(new), Ok(FileAt::default())),
                Err(failure) => (None, Err(failure)),
            }
        };
        Member { vb, vbucket, slot, new, outcome }
    }

    fn create(&self, vb: VbId, slot: &mut Slot) -> Result<NewFile, Failure> {
        let revision = slot.last_revision + 1;
        slot.last_revision = revision;
        let (path, unfinished) = (self.folder.path(vb, revision), self.folder.unfinished_path(vb, revision));
        self.make_room(vb);
        let identity = self.promises.identity(vb, revision);
        let file = VbFile::create(&*self.env.disk, identity, &unfinished, self.config.tuning)?;
        Ok(NewFile { file, revision, unfinished, path })
    }

    fn write_data<'b>(&self, members: &mut [Member<'_>], batch: impl Fn(usize) -> SaveBatch<'b>) {
        let mut scratch = self.scratch.lock();
        for (k, member) in members.iter_mut().enumerate() {
            let vb = member.vb;
            if let Some(file) = member.file()
                && let Err(failure) = file.write_data(vb, batch(k), &mut scratch)
            {
                member.fail(failure);
            }
        }
    }

    fn write_headers(&self, members: &mut [Member<'_>]) {
        let timestamp_ns = self.env.clock.unix_ns();
        for member in members {
            let vb = member.vb;
            if let Some(Err(failure)) = member.file().map(|file| file.write_header(vb, timestamp_ns)) {
                member.fail(failure);
            }
        }
    }

    /// Makes durable what was written. If that fails, it failed for all: nobody knows for which.
    fn sync_members(&self, members: &mut [Member<'_>]) {
        let files: Vec<_> = members.iter_mut().filter_map(|m| m.file().map(|file| file.to_sync())).collect();
        if files.is_empty() || planted::is(Bug::FilesNotSynced) {
            return;
        }
        let Err(error) = self.sync.sync_files(&files) else { return };
        for member in members {
            if member.file().is_some() {
                let path = match &member.new {
                    Some(new) => new.unfinished.clone(),
                    None => self.folder.path(member.vb, member.slot.revision.unwrap_or_default()),
                };
                member.fail(Failure::Disk { operation: "sync", path, source: again(&error) });
            }
        }
    }

    /// Headers of new files are durable: they get their names, durably.
    fn name_new_files(&self, members: &mut [Member<'_>]) {
        let mut renamed = false;
        for member in members.iter_mut().filter(|member| member.outcome.is_ok()) {
            let Some(new) = &member.new else { continue };
            match self.folder.rename(&new.unfinished, &new.path) {
                Ok(()) => renamed = true,
                Err(failure) => member.fail(failure),
            }
        }
        if !renamed {
            return;
        }
        let Err(error) = self.env.disk.sync_dir(self.folder.dir()) else { return };
        for member in members.iter_mut().filter(|member| member.outcome.is_ok()) {
            if let Some(new) = &member.new {
                let path = new.path.clone();
                member.fail(Failure::Disk { operation: "sync folder of", path, source: again(&error) });
            }
        }
    }

    fn finish(&self, mut member: Member<'_>, items: usize) -> Result<FileAt, Failure> {
        match (member.outcome.is_ok(), member.new.take()) {
            (true, Some(mut new)) => {
                new.file.finish_commit();
                member.outcome = Ok(new.file.at(new.revision));
                member.slot.revision = Some(new.revision);
                // it is closed, as its messages would go on naming the file as it was called first
                member.slot.known = new.file.into_known(false);
            }
            (true, None) => {
                let revision = member.slot.revision.expect("it has a file");
                member.slot.keeps_tail = false;
                let file = member.slot.file.as_mut().expect("it was written to");
                file.finish_commit();
                *member.vbucket.latest.lock() = Some(file.snapshot());
                member.outcome = Ok(file.at(revision));
            }
            (false, Some(new)) => {
                // whichever of the two names it has; what cannot be removed now must not come up after a deletion
                let remove = |path: &Path| self.env.disk.remove_file(path).ok();
                remove(&new.unfinished);
                remove(&new.path);
                member.slot.strays.push(new.revision);
            }
            (false, None) => {}
        }
        self.note_changed(member.vb);
        let at = self.note(member.vb, member.vbucket, &mut member.slot, member.outcome)?;
        self.saves.fetch_add(1, Ordering::Relaxed);
        self.items_saved.fetch_add(items as u64, Ordering::Relaxed);
        Ok(at)
    }
}
