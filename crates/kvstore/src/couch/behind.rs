//! The files as a journal uses them.

use std::path::Path;
use std::sync::Arc;

use base::{Seqno, VbId};

use super::group::Order;
use super::{Couch, Refusal, Refused, Vbucket, listing};
use crate::compaction::{Compacted, Compaction, FileAt, RolledBack};
use crate::failure::Failure;
use crate::files::{BeforeRollback, BeforeSwitch, Files, Undecided};
use crate::state::VbStateDoc;
use crate::store::{SaveBatch, StoredVb};

/// The most vBuckets that are filed together: they share a sync.
const MOST_AT_ONCE: usize = 128;

impl Files for Couch {
    fn dir(&self) -> &Path {
        self.folder.dir()
    }

    /// None of the files of a group can be closed meanwhile: others are open beside them.
    fn most_at_once(&self) -> usize {
        self.config.max_open_files.div_ceil(2).clamp(1, MOST_AT_ONCE)
    }

    /// One sync for data and headers together: see [`Couch::open_with`].
    fn file_group(&self, group: &[(VbId, SaveBatch<'_>)]) -> Vec<Result<FileAt, Failure>> {
        self.save_parts(group, Order::Recorded)
    }

    fn positions(&self) -> Vec<(VbId, FileAt)> {
        let vbuckets: Vec<_> = self.vbuckets.lock().iter().map(|(vb, one)| (*vb, one.clone())).collect();
        let position = |(vb, vbucket): (VbId, Arc<Vbucket>)| {
            let (revision, recorded, is_lost) = {
                let slot = vbucket.slot.lock();
                (slot.revision?, slot.recorded, slot.is_lost())
            };
            let at = recorded.map_or_else(
                || {
                    let found = self.ask(vb, &vbucket, |file| Ok(file.at(revision)));
                    found.ok().flatten().unwrap_or(FileAt::last_of(revision))
                },
                |recorded| recorded.at(revision),
            );
            Some((vb, if is_lost { at.marked_lost() } else { at }))
        };
        vbuckets.into_iter().filter_map(position).collect()
    }

    fn known(&self) -> Vec<VbId> {
        self.vbuckets.lock().keys().copied().collect()
    }

    fn stored(&self, vb: VbId) -> Result<Option<StoredVb>, Failure> {
        let vbucket = self.vbuckets.lock().get(&vb).cloned();
        vbucket.map_or(Ok(None), |vbucket| self.ask(vb, &vbucket, |file| file.stored(vb)))
    }

    fn rollback_with(&self, vb: VbId, to: Seqno, before: &BeforeRollback<'_>) -> Result<RolledBack, Failure> {
        Couch::rollback_with(self, vb, to, before)
    }

    fn compact_with(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        Couch::compact_with(self, vb, request, before)
    }

    fn adopt_with(
        &self,
        vb: VbId,
        file: &Path,
        state: &VbStateDoc,
        before: &BeforeSwitch<'_>,
    ) -> Result<StoredVb, Failure> {
        Couch::adopt_with(self, vb, file, state, before)
    }

    fn move_files(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        self.move_revisions(vb, to)
    }

    fn refuse(&self, vb: VbId, failure: &Failure) {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        if slot.is_lost() {
            return;
        }
        if vbucket.close(&mut slot, true) {
            self.open_files.forget(vb);
        }
        self.note_changed(vb);
        let what = format!("it could not be read at the start ({failure}); start again");
        let kind = if failure.is_damage() { Refusal::Damaged } else { Refusal::Unread };
        slot.refused = Some(Refused { why: what.into(), kind });
    }

    fn miss(&self, vb: VbId, what: String) {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        // What has no file on record is refused all the same.
        let revision = *slot.revision.get_or_insert(1);
        slot.last_revision = slot.last_revision.max(revision);
        if vbucket.close(&mut slot, true) {
            self.open_files.forget(vb);
        }
        self.note_changed(vb);
        slot.refused = Some(Refused { why: what.into(), kind: Refusal::Lost });
    }

    fn give_up(&self, vb: VbId) -> FileAt {
        let vbucket = self.vbucket(vb);
        let mut slot = vbucket.slot.lock();
        let revision = *slot.revision.get_or_insert(1);
        listing::last_of(self, vb, &vbucket, &mut slot, revision).at.marked_lost()
    }

    fn are_listed(&self) -> bool {
        self.promises.are_listed()
    }

    fn undecided(&self) -> Vec<Undecided> {
        self.list_undecided()
    }

    fn decide(&self, undecided: &Undecided) -> Result<(), Failure> {
        self.remove_undecided(undecided)
    }

    fn cut_tails(&self) -> Result<(), Failure> {
        self.end_with_headers()
    }

    fn promise_files(&self, generations: u64) -> Result<(), Failure> {
        self.list_headers(generations)
    }
}
