//! The store as a journal uses it.

use std::collections::BTreeMap;
use std::path::Path;

use base::{Seqno, VbId};

use super::compact::at_of;
use super::{Log, LogRefusal, MOST_AT_ONCE, failed};
use crate::catalog::{Believe, Listed};
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::{Failure, Trouble};
use crate::files::{BeforeRollback, BeforeSwitch, Files, Undecided};
use crate::store::{SaveBatch, StoredVb};

impl Log {
    /// The last commit of a vBucket. If it cannot be read, the one that was on record, so that it is served once it can be
    /// read; or else the last place there could be.
    fn position(&self, vb: VbId) -> Option<FileAt> {
        let unknown = FileAt::last_of(1);
        let refused = self.refused.lock().get(&vb).cloned();
        let at = match self.store.stored(vb.0) {
            Ok(Some(stored)) => at_of(stored.commit),
            Ok(None) => refused.as_ref().map(|_| unknown)?,
            Err(_) => self.on_record.lock().get(&vb).map_or(unknown, |at| at.unmarked()),
        };
        Some(if matches!(refused, Some(LogRefusal::Lost(_))) { at.marked_lost() } else { at })
    }
}

impl Files for Log {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn most_at_once(&self) -> usize {
        MOST_AT_ONCE
    }

    fn file_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>> {
        self.commit_group(group)
    }

    fn recorded(&self, vb: VbId, at: FileAt) {
        self.store.recorded(vb.0, at.unmarked().header_offset);
    }

    fn positions(&self) -> Vec<(VbId, FileAt)> {
        let position = |vb| Some((vb, self.position(vb)?));
        Files::known(self).into_iter().filter_map(position).collect()
    }

    fn known(&self) -> Vec<VbId> {
        let mut all: Vec<VbId> = self.store.known().into_iter().map(VbId).collect();
        all.extend(self.refused.lock().keys().copied());
        all.sort_unstable();
        all.dedup();
        all
    }

    fn stored(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        self.check(vb)?;
        let meta = self.store.stored(vb.0).map_err(failed(vb))?;
        meta.map(|meta| self.stored_of(vb, &meta)).transpose()
    }

    fn rollback_with(&self, vb: VbId, to: Seqno, before: &BeforeRollback<'_>) -> Result<RolledBack, Failure> {
        self.check(vb)?;
        self.note_catalog();
        let before = |commit: Option<logstore::Commit>| before(commit.map(at_of)).map_err(Trouble::Ours);
        let back = self.store.rollback_with(vb.0, to.0, &before);
        let back =
            self.note(back.map_err(|trouble: Trouble<logstore::Failure>| trouble.into_failure(failed(vb))))?;
        self.rolled_back(vb, back)
    }

    fn compact_with(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        self.note(self.compact_and_tell(vb, request, before))
    }

    fn move_files(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        self.store.copy_files(vb.0, to).map(drop).map_err(failed(vb))
    }

    fn refuse(&self, vb: VbId, failure: &Failure) {
        let what = format!("it could not be read at the start ({failure}); start again");
        let refusal = if failure.is_damage() { LogRefusal::Damaged(what) } else { LogRefusal::Unread(what) };
        self.refused.lock().entry(vb).or_insert(refusal);
    }

    fn miss(&self, vb: VbId, what: String) {
        self.refused.lock().insert(vb, LogRefusal::Lost(what.into()));
    }

    fn give_up(&self, vb: VbId) -> FileAt {
        let unknown = FileAt::last_of(1);
        self.position(vb).unwrap_or(unknown).marked_lost()
    }

    fn are_listed(&self) -> bool {
        self.catalog.believe() == Some(Believe::Files)
    }

    fn undecided(&self) -> Vec<Undecided> {
        let refused = self.refused.lock();
        let all = self.store.undecided().into_iter().map(VbId);
        // Of one whose changes are missing it is not known what is on record.
        let known = all.filter(|vb| !matches!(refused.get(vb), Some(LogRefusal::Lost(_))));
        known.map(|vb| Undecided { vb, revisions: Vec::new() }).collect()
    }

    fn decide(&self, undecided: &Undecided) -> Result<(), Failure> {
        self.store.forget_rollback(undecided.vb.0).map_err(failed(undecided.vb))
    }

    /// A commit has no tail; what a start decided goes on record.
    fn cut_tails(&self) -> Result<(), Failure> {
        self.store.settle().map_err(|failure| {
            let source = std::io::Error::other(failure.to_string());
            Failure::Disk { operation: "settle the manifests of", path: self.dir.clone(), source }
        })
    }

    fn promise_files(&self, generations: u64) -> Result<(), Failure> {
        let listed = |(vb, at)| (vb, Listed { at, high_seqno: None, is_tail_void: true });
        let files: BTreeMap<VbId, Listed> = self.positions().into_iter().map(listed).collect();
        self.catalog.believe_files(files, generations)
    }
}
