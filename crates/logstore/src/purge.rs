//! Leaving out what the caller does not want any more, a bounded number of versions with each commit.

use std::ops::ControlFlow;

use crate::commit::Sealed;
use crate::failure::Failure;
use crate::file::FileKind;
use crate::history::{HistoryEdit, KEPT};
use crate::identity::FileId;
use crate::meta::{CommitEdit, Edit, Kill, Point, RunMeta};
use crate::run::{Entry, RunWriter, Stored, run_key};
use crate::shard::Shard;
use crate::store::LogStore;
use crate::view::{Commit, View};

/// The most versions that are left out with one commit.
const PIECE: usize = 4096;
/// The purger is asked whether to go on each time this number of keys was looked at.
const LOOK_UP: u64 = 128;

/// Decides what is left out.
pub trait Purger {
    /// Whether the newest version of a key is left out. Called without a lock.
    fn judge(&mut self, view: &View, key: &[u8], entry: &Entry) -> Result<bool, Failure>;

    /// Whether to go on; `done` keys were looked at.
    fn go_on(&mut self, done: u64) -> ControlFlow<()>;

    /// Whether a version with [`crate::KEPT`] that is left out stays in the history. Called under the lock of the shard.
    fn stays_in_history(&self, _: &Erased) -> bool {
        true
    }

    /// What is stored with the commit that leaves these out, as in [`crate::Batch::seal`]; in the last one there may be
    /// none. Called under the lock of the shard.
    fn seal(&mut self, now: &View, erased: &[Erased], is_last: bool) -> Result<Sealed, String>;
}

/// A version that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erased {
    /// Its key.
    pub key: Box<[u8]>,
    /// What is known of it.
    pub entry: Entry,
}

/// What a purge came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// The last commit.
    pub commit: Commit,
    /// Versions that were left out.
    pub erased: u64,
}

impl LogStore {
    /// A commit behind a purge is on record, and a start will not go back behind it: what was kept for that goes.
    pub fn is_on_record(&self, vb: u16) -> Result<(), Failure> {
        let shard = self.shard(vb);
        let mut writer = shard.writer.lock();
        let is_pending = {
            let state = shard.state.read();
            let is_prepared = state.meta.prepared.contains_key(&vb);
            state.meta.vbs.get(&vb).is_some_and(|meta| meta.is_pending()) && !is_prepared
        };
        if is_pending { shard.log(&mut writer, &[Edit::Reset { vb }], &[]) } else { Ok(()) }
    }

    /// Leaves out what `purger` says of a vBucket. Batches may be committed meanwhile; what they replace is not left out.
    /// A rollback does not go back behind it; a start may, if a commit of before is on record, until
    /// [`LogStore::is_on_record`] is called.
    ///
    /// # Errors
    ///
    /// [`Failure::Ended`] if the purger ends it, or if the vBucket is deleted or rolled back meanwhile. What was left
    /// out until then stays left out.
    pub fn purge(&self, vb: u16, purger: &mut dyn Purger) -> Result<Purged, Failure> {
        let shard = self.shard(vb);
        let first = self.snapshot(vb)?.ok_or(Failure::NoVbucket { vb })?;
        let mut epoch = first.meta.epoch();
        let (mut view, mut from, mut done, mut all) = (first, Vec::new(), 0, 0);
        loop {
            let mut erased = Vec::new();
            let mut next = None;
            view.entries::<Failure>(&from, |key, entry| {
                if erased.len() >= PIECE {
                    next = Some(key.to_vec());
                    return Ok(ControlFlow::Break(()));
                }
                if done % LOOK_UP == 0 && purger.go_on(done).is_break() {
                    return Err(Failure::Ended { vb, why: "it was told to end" });
                }
                done += 1;
                if purger.judge(&view, key, entry)? {
                    erased.push(Erased { key: key.into(), entry: *entry });
                }
                Ok(ControlFlow::Continue(()))
            })?;
            let (commit, count) = shard.erase(vb, epoch, erased, next.is_none(), purger)?;
            all += count;
            epoch = commit.epoch;
            let Some(next) = next else { return Ok(Purged { commit, erased: all }) };
            from = next;
            view = self.snapshot(vb)?.ok_or(Failure::NoVbucket { vb })?;
        }
    }
}

impl Shard {
    fn erase(
        &self,
        vb: u16,
        epoch: u64,
        mut erased: Vec<Erased>,
        is_last: bool,
        purger: &mut dyn Purger,
    ) -> Result<(Commit, u64), Failure> {
        let mut writer = self.writer.lock();
        let ended = |why| Failure::Ended { vb, why };
        let changed = "the vBucket was deleted or rolled back";
        let now = self.view(vb)?.filter(|now| now.meta.epoch() == epoch).ok_or_else(|| ended(changed))?;
        // What was replaced meanwhile is not there any more.
        erased.retain(|one| now.meta.is_live(one.entry.seqno));
        let kept = erased.iter().filter(|one| one.entry.flags & KEPT != 0 && purger.stays_in_history(one));
        let kept: Vec<u64> = kept.map(|one| one.entry.seqno).collect();
        let (number, next_epoch) = {
            let state = self.state.read();
            if state.meta.prepared.contains_key(&vb) {
                return Err(ended("a rollback is not decided"));
            }
            (self.new_commit(&state), state.meta.next_epoch)
        };
        let sealed = purger.seal(&now, &erased, is_last).map_err(|what| Failure::Batch { vb, what })?;
        let state: std::sync::Arc<[u8]> = sealed.state.into();
        // What is left out is so from a new epoch on: before it the entries count.
        let new_epoch = if erased.is_empty() { epoch } else { next_epoch };
        let (high, purge) = (now.high_seqno(), sealed.purge_seqno);
        let point = Point { commit: number, epoch: new_epoch, high, purge, state };
        let kill = |one: &Erased| Kill { seqno: one.entry.seqno, bytes: one.entry.bytes };
        let kills = erased.iter().map(kill).collect();
        let forgets = Vec::new();
        let history =
            HistoryEdit::of_commit(self.files.keeping.now(), Some(&now.meta), (high, false), (0, kept));
        let edit =
            CommitEdit { vb, begins: false, point, extent: None, kills, forgets, is_purge: true, history };
        let (mut edits, mut names) = (Vec::new(), Vec::new());
        if !erased.is_empty() {
            let (run, name) = self.write_erased(vb, (number, new_epoch), &erased)?;
            edits.push(Edit::AddRun(run));
            names.push(name);
        }
        edits.push(Edit::Commit(edit));
        self.log(&mut writer, &edits, &names)?;
        Ok((Commit { epoch: new_epoch, number }, erased.len() as u64))
    }

    fn write_erased(
        &self,
        vb: u16,
        (number, epoch): (u64, u64),
        erased: &[Erased],
    ) -> Result<(RunMeta, String), Failure> {
        let mut writer = RunWriter::new(self.new_file(FileKind::Run)?);
        let mut write = || {
            for Erased { key, entry } in erased {
                let stored = Stored { epoch, entry: *entry, is_erased: true };
                writer.add(&run_key(vb, key), &stored)?;
            }
            writer.finish()?;
            writer.file.sync()?;
            self.files.sync_dir()
        };
        if let Err(failure) = write() {
            writer.file.abandon(&self.files);
            return Err(failure);
        }
        let (bytes, vbs) = (writer.file.len(), std::mem::take(&mut writer.vbs));
        let entries = writer.entries;
        let FileId { number: of_file, nonce, .. } = writer.file.id;
        let meta = RunMeta { number: of_file, nonce, bytes, low: number, high: number, entries, vbs };
        Ok((meta, writer.file.name))
    }
}
