//! Compacting the file of a vBucket into its next revision while batches are saved.
//!
//! The slot's lock is held to take snapshots, and once more for the last few changes and the switch.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::planted::{self, Bug};
use base::{CollectionId, Seqno, VbId};
use couchstore::{Choice, DocInfo, Fate, LocalUpdate, RecordSummary, RevMeta, Snapshot};

use super::file::{VbFile, at_of, load_tally, read_manifest, read_state};
use super::identity::IDENTITY_ID;
use super::record::{self, Records};
use super::{CompactionSteps, Couch, Slot, Vbucket};
use crate::collections::{Tally, Weight, event_prefix};
use crate::compaction::{Candidate, Compacted, Compaction, CompactionProgress, Reason};
use crate::failure::Failure;
use crate::files::BeforeSwitch;
use crate::store::Values;

/// Whoever saves faster than a compaction catches up waits for it after so many rounds.
const MOST_ROUNDS: u32 = 16;

/// So much may be made durable while nobody can save: a sync of its own would take longer.
const LITTLE_BYTES: u64 = 256 << 10;

/// One compaction from its first look at the old file.
struct Run<'c> {
    couch: &'c Couch,
    vb: VbId,
    vbucket: &'c Vbucket,
    request: &'c Compaction<'c>,
    revision: u64,
    generation: u64,
    unfinished: PathBuf,
    steps: CompactionSteps,
}

/// No other compaction of the vBucket begins while this lives.
struct Turn<'v>(&'v Vbucket);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_compacting.store(false, Ordering::Release);
    }
}

impl Couch {
    /// Compacts as [`crate::KvStore::compact`] does, and calls `before_switch` with the new file's commit when it is
    /// durable and has its name, before it is in use and the old one goes, under the vBucket's lock. If that fails, the
    /// old file stays and the new one goes.
    pub fn compact_with(
        &self,
        vb: VbId,
        request: &Compaction<'_>,
        before_switch: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        let vbucket: Arc<Vbucket> = self.vbucket(vb);
        if vbucket.is_compacting.swap(true, Ordering::Acquire) {
            return Err(Failure::CompactionRuns { vb });
        }
        let _turn = Turn(&vbucket);
        let (run, old) = self.begin_compaction(vb, &vbucket, request)?;
        let result = run.go(old, before_switch);
        if let Err(failure) = &result {
            // what cannot be removed now is removed when the bucket opens
            self.env.disk.remove_file(&run.unfinished).ok();
            if !matches!(failure, Failure::CompactionEnded { .. }) {
                self.failures.fetch_add(1, Ordering::Relaxed);
                if let Some(left_out) = self.not_compacted.admit(self.env.clock.monotonic()) {
                    tracing::warn!(
                        event = "file_not_compacted", %failure, left_out,
                        "the file of a vBucket cannot be compacted"
                    );
                }
            }
        }
        result
    }

    fn begin_compaction<'c>(
        &'c self,
        vb: VbId,
        vbucket: &'c Vbucket,
        request: &'c Compaction<'c>,
    ) -> Result<(Run<'c>, Snapshot), Failure> {
        let mut slot = vbucket.slot.lock();
        if slot.revision.is_none() {
            return Err(Failure::NoVbucket { vb });
        }
        // Which of its files is the newest may not be known.
        if slot.is_lost() {
            self.opened(vb, vbucket, &mut slot)?;
        }
        let settled = self.promises.begin_writing().and_then(|()| slot.remove_strays(vb, &self.folder));
        let opened = settled.and_then(|()| Ok(self.opened(vb, vbucket, &mut slot)?.snapshot()));
        let old = self.note(vb, vbucket, &mut slot, opened)?;
        let revision = slot.last_revision + 1;
        slot.last_revision = revision;
        let run = Run {
            couch: self,
            vb,
            vbucket,
            request,
            revision,
            generation: vbucket.generation.load(Ordering::Relaxed),
            unfinished: self.folder.unfinished_path(vb, revision),
            steps: self.config.compaction,
        };
        Ok((run, old))
    }
}

impl Run<'_> {
    fn failed(&self, source: couchstore::Failure) -> Failure {
        Failure::File { vb: self.vb, source }
    }

    fn check_generation(&self) -> Result<(), Failure> {
        if self.vbucket.generation.load(Ordering::Relaxed) == self.generation {
            return Ok(());
        }
        let why = "the vBucket was deleted or rolled back";
        Err(Failure::CompactionEnded { vb: self.vb, why })
    }

    /// Between two steps: whether to go on.
    fn look_up(&self, progress: couchstore::Progress) -> Result<bool, Failure> {
        let couchstore::Progress { done_bytes, total_bytes, is_done } = progress;
        if (self.request.observe)(CompactionProgress { done_bytes, total_bytes }).is_break() {
            return Err(Failure::CompactionEnded { vb: self.vb, why: "it was told to end" });
        }
        self.check_generation()?;
        Ok(!is_done)
    }

    /// How much is brought over at once: more than is copied in a step, as it is saved into trees that are there.
    fn late_bytes(&self) -> u64 {
        self.steps.step_bytes * 16
    }

    fn go(&self, old: Snapshot, before_switch: &BeforeSwitch<'_>) -> Result<Compacted, Failure> {
        let couch = self.couch;
        couch.make_room(self.vb);
        let tally = load_tally(&old).map_err(|failure| self.failed(failure))?;
        let mut chooser = Chooser {
            request: self.request,
            records: Records::new(self.vb, old.clone(), couch.env.heap.clone()),
            old: old.clone(),
            tally,
            created: Vec::new(),
            compacted: Compacted::default(),
            completed: Seqno(read_state(self.vb, &old)?.completed_seqno),
        };
        let (disk, tuning) = (&*couch.env.disk, couch.config.tuning);
        let mut copy = couchstore::Compaction::start(disk, &self.unfinished, old, tuning)
            .map_err(|failure| self.failed(failure))?;
        while self.look_up(
            copy.step(self.steps.step_bytes, &mut chooser).map_err(|failure| self.failed(failure))?,
        )? {}
        self.approach(&mut copy, &mut chooser)?;
        self.switch(copy, chooser, before_switch)
    }

    /// Makes durable what was copied and brings over what was saved meanwhile, until there is little left: of that, and
    /// of what is not durable.
    fn approach(&self, copy: &mut couchstore::Compaction, chooser: &mut Chooser<'_>) -> Result<(), Failure> {
        let mut durable_bytes = 0;
        for _ in 0..MOST_ROUNDS {
            if copy.written_bytes() - durable_bytes > LITTLE_BYTES {
                copy.sync().map_err(|failure| self.failed(failure))?;
                durable_bytes = copy.written_bytes();
            }
            let newer = self.newest(&mut self.vbucket.slot.lock())?;
            if copy.seqnos_behind(&newer) <= self.steps.last_changes {
                break;
            }
            let mut step =
                || copy.catch_up(&newer, self.late_bytes(), chooser).map_err(|failure| self.failed(failure));
            while self.look_up(step()?)? {}
        }
        Ok(())
    }

    /// The file as of its last commit, unless it is not the one that is being compacted any more.
    fn newest(&self, slot: &mut Slot) -> Result<Snapshot, Failure> {
        self.check_generation()?;
        let opened = self.couch.opened(self.vb, self.vbucket, slot).map(|file| file.snapshot());
        self.couch.note(self.vb, self.vbucket, slot, opened)
    }

    /// Brings over the rest while nobody can save, and puts the new file in the old one's place.
    fn switch(
        &self,
        mut copy: couchstore::Compaction,
        mut chooser: Chooser<'_>,
        before_switch: &BeforeSwitch<'_>,
    ) -> Result<Compacted, Failure> {
        let mut slot = self.vbucket.slot.lock();
        let newest = self.newest(&mut slot)?;
        let failed = |failure| self.failed(failure);
        while !copy.catch_up(&newest, self.late_bytes(), &mut chooser).map_err(failed)?.is_done {}
        let Chooser { mut tally, compacted, .. } = chooser;
        if let Some(file) = &slot.file {
            tally.align(file.tally());
        }
        let mut changes: Vec<_> = tally.take_changes();
        let mut manifest = read_manifest(&newest).map_err(failed)?;
        if self.request.erases(&mut manifest) {
            let (id, value) = manifest.dropped_local();
            changes.push((id.to_owned(), value));
        }
        let identity = self.couch.promises.identity(self.vb, self.revision).to_json();
        let (identity, late) =
            if planted::is(Bug::IdentityLate) { (None, identity) } else { (identity, None) };
        if let Some(json) = identity {
            changes.push((String::from_utf8_lossy(IDENTITY_ID).into_owned(), Some(json)));
        }
        changes.sort_unstable();
        let locals: Vec<_> = changes
            .iter()
            .map(|(id, value)| LocalUpdate { id: id.as_bytes(), value: value.as_deref() })
            .collect();
        let mut file = copy.finish(&newest, &locals).map_err(failed)?;
        file.commit_unseen(self.couch.env.clock.unix_ns()).map_err(failed)?;
        let (info, at) = (file.snapshot().info(), at_of(self.revision, &file.snapshot()));
        let (is_named, switched) = match self.name() {
            Ok(()) => (true, before_switch(at)),
            named => (false, named),
        };
        if let Err(failure) = switched {
            // If it could not be put on record, nobody knows whether a restart will find it there: it must stay until
            // a later record is durable. Otherwise a restart would take it for the file in use.
            if !is_named || matches!(failure, Failure::CompactionEnded { .. }) {
                slot.strays.push(self.revision);
                slot.remove_strays(self.vb, &self.couch.folder).ok();
            } else {
                slot.undecided.push(self.revision);
                self.couch.is_undecided();
            }
            return Err(failure);
        }
        self.take_over(&mut slot, VbFile::known(&file, tally, late));
        Ok(Compacted {
            before_bytes: newest.info().file_bytes,
            after_bytes: info.file_bytes,
            purge_seqno: Seqno(info.purge_seqno),
            ..compacted
        })
    }

    fn name(&self) -> Result<(), Failure> {
        let folder = &self.couch.folder;
        folder.rename(&self.unfinished, &folder.path(self.vb, self.revision))?;
        folder.sync()
    }

    /// From now on the new file is the one in use. Readers of the old one keep what they have open.
    fn take_over(&self, slot: &mut Slot, known: Option<super::file::Known>) {
        if self.vbucket.close(slot, false) {
            self.couch.open_files.forget(self.vb);
        }
        // what was not decided before is by the record that names this one
        let undecided = std::mem::take(&mut slot.undecided);
        slot.strays.extend(undecided.into_iter().chain(slot.revision.replace(self.revision)));
        slot.keeps_tail = false;
        // closed for now, as its messages would go on naming the file as it was called first
        slot.known = known;
        self.couch.note_changed(self.vb);
        // if the old one cannot be removed now, later will do
        slot.remove_strays(self.vb, &self.couch.folder).ok();
    }
}

/// Decides what is copied, and keeps the counts of the new file.
struct Chooser<'c> {
    request: &'c Compaction<'c>,
    records: Records,
    old: Snapshot,
    tally: Tally,
    /// When collections that were met were created, as the old file has it.
    created: Vec<(CollectionId, Option<Seqno>)>,
    compacted: Compacted,
    /// Prepares up to here are committed.
    completed: Seqno,
}

fn weigh(id: &[u8], seqno: u64, deleted: bool, rev_meta_bytes: usize, body_bytes: u32) -> Weight {
    Weight {
        seqno: Seqno(seqno),
        deleted,
        disk_bytes: id.len() as u64 + rev_meta_bytes as u64 + u64::from(body_bytes),
    }
}

impl Chooser<'_> {
    /// Whether a record is of a collection that was dropped and created again since: it is not counted then.
    fn is_of_former(&mut self, info: &DocInfo<'_>) -> bool {
        let Some(collection) = crate::collections::collection_of(info.id) else { return false };
        let known = self.created.iter().find(|(id, _)| *id == collection).map(|(_, created)| *created);
        let created = known.unwrap_or_else(|| {
            let created = created_at(&self.old, collection);
            self.created.push((collection, created));
            created
        });
        created.is_some_and(|created| info.seqno < created.0)
    }
}

/// Seqno of the event that created a collection.
fn created_at(file: &Snapshot, collection: CollectionId) -> Option<Seqno> {
    let prefix = event_prefix(collection);
    let mut created = None;
    let scanned = file.scan_ids(&prefix, |info| {
        if info.id.starts_with(&prefix) && !info.deleted {
            created = Some(Seqno(info.seqno));
        }
        Ok::<_, couchstore::Failure>(std::ops::ControlFlow::Break(()))
    });
    // damage shows again when that part is copied
    scanned.ok().and(created)
}

impl Choice for Chooser<'_> {
    fn fate(&mut self, info: &DocInfo<'_>) -> Fate {
        // what is not understood stays as it is
        let rev_meta = RevMeta::decode(info.rev_meta);
        let candidate = Candidate {
            stored_key: info.id,
            seqno: Seqno(info.seqno),
            deleted: info.deleted,
            expiry: rev_meta.map(|meta| meta.expiry),
            sync_write: rev_meta.and_then(|meta| record::sync_write(&meta)),
        };
        let version = || self.records.version(info, Values::Leave, &mut record::Scratch::default()).ok();
        let Some(reason) = self.request.judge(candidate, self.completed, version) else { return Fate::Keep };
        self.compacted.count(reason);
        if reason != Reason::Dropped || !self.is_of_former(info) {
            let weight = weigh(info.id, info.seqno, info.deleted, info.rev_meta.len(), info.body_bytes);
            self.tally.leave_out(info.id, weight);
        }
        let is_told = !planted::is(Bug::PurgeNotTold);
        if reason == Reason::Purged && is_told { Fate::Purge } else { Fate::LeaveOut }
    }

    fn leaves_out_late(&mut self, info: &DocInfo<'_>) -> bool {
        self.request.drops(info.id, Seqno(info.seqno))
    }

    fn brought_over(&mut self, id: &[u8], new: RecordSummary, old: Option<RecordSummary>) {
        let weigh = |record: RecordSummary| {
            weigh(id, record.seqno, record.deleted, record.rev_meta_bytes, record.body_bytes)
        };
        self.tally.change(id, Seqno(new.seqno), weigh(new), old.map(weigh));
    }
}
