//! Snapshots of a bucket: all vBuckets that are active here at one moment (docs/adr/0197).
//!
//! # Guarantees
//!
//! - While changes are held, no change of a client gets a seqno. A hold ends when it is released, when the moment is taken, or
//!   by itself when its time is over, so that a client that goes away keeps no other one waiting.
//! - A moment is taken during the hold of its own or not at all: what it has of a vBucket is that vBucket's state at a seqno
//!   behind which nothing came before the hold ended.
//! - What is kept are snapshots of the store, made by the flusher when it has saved everything up to that seqno and nothing
//!   behind it: in memory for what is in the journal alone, whatever the vBuckets have.
//! - None is forgotten: a snapshot ends when nothing was read or asked of it for [`crate::BUCKET_SNAPSHOT_LEASE`]. A crash leaves
//!   nothing behind, since nothing is written.
//!
//! It knows of the vBuckets of this node alone: who takes a moment of a cluster holds all of its nodes first.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Seqno, VbId, VbState};
use kvstore::Failure;
use parking_lot::Mutex;
use vbucket::Manifest;

use crate::bucket_core::Core;
use crate::completion::{Completion, completion};
use crate::failure_log::Failed;
use crate::kept_snapshot::KeptSnapshot;
use crate::shard_guard::Holder;
use crate::snapshot_table::{ChangeHold, Content, Kept, Part, VbMoment, WantedSnapshot};

/// Changes are held for no longer than this.
pub const LONGEST_HOLD: Duration = Duration::from_secs(1);
/// Behind a hold no other one begins for this many times its length: changes are held for a tenth of the time at the most.
const REST: u64 = 9;

/// Why changes are not held, or a moment is not taken or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketSnapshotRefusal {
    /// The bucket has no disk.
    NoDisk,
    /// Changes are held for another snapshot, were held a moment ago, or another snapshot is being made: to be tried again.
    Busy,
    /// The time of the hold is over: the moment is lost.
    HoldOver,
    /// There are as many files open for snapshots as there may be, or this one would need too many.
    TooMany,
    /// There is no such snapshot, it has ended, or it has nothing of this vBucket.
    Unknown,
    /// The flusher has not come to its moment yet.
    NotReady,
    /// It has nothing of this vBucket any more: the vBucket's role or history changed, the bucket went to another store,
    /// or the disk failed.
    Lost,
}

/// What is told of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSnapshotFigures {
    /// Which one, by the name that its client gave it.
    pub id: u128,
    /// How long ago it was made.
    pub age: Duration,
    /// When it ends unless something is read or asked of it.
    pub ends_after: Duration,
    /// The collections that there were when it was made.
    pub manifest: Arc<Manifest>,
    /// For how long changes were held for it.
    pub held: Duration,
    /// What it has.
    pub vbuckets: Vec<VbMoment>,
    /// vBuckets that cannot be read yet.
    pub waiting: usize,
    /// vBuckets that cannot be read any more.
    pub lost: Vec<VbId>,
}

/// A vBucket of a snapshot, to be read.
pub struct KeptVbucket {
    /// Where it was.
    pub moment: VbMoment,
    /// What it had.
    pub snapshot: KeptSnapshot,
}

/// Snapshots of a bucket.
#[derive(Clone, Copy)]
pub struct BucketSnapshots<'a> {
    core: &'a Core,
}

impl<'a> BucketSnapshots<'a> {
    pub(crate) fn of(core: &'a Core) -> BucketSnapshots<'a> {
        BucketSnapshots { core }
    }

    /// Holds changes for a snapshot that will have this name, for so long at the most. Answers where all vBuckets are that
    /// are active here: no change of a client comes behind that before the hold ends.
    pub fn hold(&self, id: u128, most: Duration) -> Result<Vec<VbMoment>, BucketSnapshotRefusal> {
        if self.core.is_ephemeral() {
            return Err(BucketSnapshotRefusal::NoDisk);
        }
        let (core, table) = (self.core, &self.core.snapshots);
        let is_known =
            |kept: &BTreeMap<u128, Arc<Kept>>| kept.contains_key(&id) || kept.values().any(|one| one.waits());
        if is_known(&table.kept.lock()) {
            return Err(BucketSnapshotRefusal::Busy);
        }
        let stale = {
            let mut hold = table.hold.lock();
            let now = core.env.clock.monotonic_ns();
            if now < hold.until_ns || now < hold.rest_until_ns {
                return Err(BucketSnapshotRefusal::Busy);
            }
            let until = now + most.min(LONGEST_HOLD).as_nanos() as u64;
            (hold.id, hold.from_ns, hold.until_ns) = (id, now, until);
            hold.rest_until_ns = until + (until - now) * REST;
            table.held_until_ns.store(until, Ordering::Release);
            std::mem::take(&mut hold.waiters)
        };
        // Requests that waited for an earlier one, which ended by itself, have gone on by themselves.
        drop(stale);
        let active = self.active();
        if active.len() > core.config.snapshot_files.left() {
            self.release(id);
            return Err(BucketSnapshotRefusal::TooMany);
        }
        Ok(active)
    }

    /// Where all vBuckets are that are active here, each looked at under its lock.
    fn active(&self) -> Vec<VbMoment> {
        let vbuckets = (0..self.core.vbuckets()).map(VbId);
        let look = |vb| {
            let shard = self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?;
            let moment = VbMoment { vb, uuid: shard.vb.uuid(), seqno: shard.vb.high_seqno() };
            (shard.vb.state() == VbState::Active).then_some(moment)
        };
        vbuckets.filter_map(look).collect()
    }

    /// Ends the hold for a snapshot without one; whether changes were still held for it.
    pub fn release(&self, id: u128) -> bool {
        self.end_hold(id).is_some()
    }

    /// For how long changes were held, if they were held for this one until now.
    fn end_hold(&self, id: u128) -> Option<Duration> {
        let table = &self.core.snapshots;
        let (waiters, held_ns) = {
            let mut hold = table.hold.lock();
            let now = self.core.env.clock.monotonic_ns();
            if hold.id != id || now >= hold.until_ns {
                return None;
            }
            let held_ns = now - hold.from_ns;
            (hold.until_ns, hold.rest_until_ns) = (now, now + held_ns * REST);
            table.held_until_ns.store(0, Ordering::Release);
            (std::mem::take(&mut hold.waiters), held_ns)
        };
        waiters.into_iter().for_each(|waiter| waiter.complete(()));
        Some(Duration::from_nanos(held_ns))
    }

    /// Ready when changes are held no longer, or abandoned then; with for how long that takes at the most. `None` if they
    /// are not held.
    pub fn released(&self) -> Option<(Completion<()>, Duration)> {
        let mut hold = self.core.snapshots.hold.lock();
        let left_ns = hold.until_ns.saturating_sub(self.core.env.clock.monotonic_ns());
        if left_ns == 0 {
            return None;
        }
        // Not each time: all who write may wait.
        if hold.waiters.len().is_power_of_two() {
            hold.waiters.retain(|waiter| !waiter.is_unwanted());
        }
        let (completer, released) = completion();
        hold.waiters.push(completer);
        Some((released, Duration::from_nanos(left_ns)))
    }

    /// Takes the moment for which changes are held, and ends the hold. The snapshot can be read once the flusher has come to
    /// it. `manifest` has the collections that there are, and is told with it.
    pub fn take(&self, id: u128, manifest: Arc<Manifest>) -> Result<Vec<VbMoment>, BucketSnapshotRefusal> {
        let (core, table) = (self.core, &self.core.snapshots);
        let is_held = |hold: &ChangeHold| hold.id == id && core.env.clock.monotonic_ns() < hold.until_ns;
        if !is_held(&table.hold.lock()) {
            return Err(BucketSnapshotRefusal::HoldOver);
        }
        let created = core.env.clock.monotonic();
        let kept = Arc::new(Kept {
            created,
            manifest,
            held_ns: AtomicU64::new(0),
            used_ns: AtomicU64::new(created.as_nanos() as u64),
            was_read: Arc::default(),
            parts: Mutex::default(),
        });
        // Two that take the same moment would end each other's.
        match table.kept.lock().entry(id) {
            Entry::Vacant(place) => drop(place.insert(Arc::clone(&kept))),
            Entry::Occupied(_) => return Err(BucketSnapshotRefusal::Busy),
        }
        let parts = (0..core.vbuckets()).map(VbId).map(|vb| self.take_part(id, &kept, vb));
        let taken: Result<Vec<Option<VbMoment>>, _> = parts.collect();
        // A thread that writes after the end of the hold has looked at the same clock, under the locks that were just held.
        let ended = self.end_hold(id);
        let ended =
            taken.and_then(|taken| ended.ok_or(BucketSnapshotRefusal::HoldOver).map(|held| (taken, held)));
        match ended {
            Ok((taken, held)) => {
                kept.held_ns.store(held.as_nanos() as u64, Ordering::Relaxed);
                let taken: Vec<VbMoment> = taken.into_iter().flatten().collect();
                taken.iter().for_each(|one| core.flush.hurry(one.vb));
                Ok(taken)
            }
            Err(refusal) => {
                let _ = self.end(id);
                Err(refusal)
            }
        }
    }

    /// Has the flusher stop at the last change of a vBucket, if that is active.
    fn take_part(&self, id: u128, kept: &Kept, vb: VbId) -> Result<Option<VbMoment>, BucketSnapshotRefusal> {
        let (core, table) = (self.core, &self.core.snapshots);
        let Ok(mut shard) = core.vbuckets.find(vb, Holder::FrontEnd) else { return Ok(None) };
        if shard.vb.state() != VbState::Active {
            return Ok(None);
        }
        let open = core.config.snapshot_files.take().ok_or(BucketSnapshotRefusal::TooMany)?;
        // What comes next is in another checkpoint: of what is in this one nothing is replaced any more.
        shard.vb.checkpoints_mut().close();
        let moment = VbMoment { vb, uuid: shard.vb.uuid(), seqno: shard.vb.high_seqno() };
        let dropped = shard.vb.collections().dropped().iter().map(|one| (one.id, one.end)).collect();
        let part = Part { moment, dropped, content: Content::Waits(open) };
        kept.parts.lock().insert(vb, part);
        if shard.wanted_snapshot.replace(WantedSnapshot { id, seqno: moment.seqno }).is_none() {
            table.waiting.fetch_add(1, Ordering::Relaxed);
        }
        core.queue_flush(&mut shard);
        Ok(Some(moment))
    }

    /// Ends a snapshot: its files are closed.
    pub fn end(&self, id: u128) -> Result<(), BucketSnapshotRefusal> {
        let ended = self.core.snapshots.kept.lock().remove(&id);
        ended.map(drop).ok_or(BucketSnapshotRefusal::Unknown)
    }

    /// Tells of a snapshot, and renews its lease.
    pub fn look(&self, id: u128) -> Result<BucketSnapshotFigures, BucketSnapshotRefusal> {
        let kept = self.core.snapshots.find(id).ok_or(BucketSnapshotRefusal::Unknown)?;
        kept.used(self.core.env.clock.monotonic());
        Ok(self.figures_of(id, &kept))
    }

    /// Tells of all snapshots, by their names.
    pub fn figures(&self) -> Vec<BucketSnapshotFigures> {
        self.all().iter().map(|(id, kept)| self.figures_of(*id, kept)).collect()
    }

    fn all(&self) -> Vec<(u128, Arc<Kept>)> {
        self.core.snapshots.kept.lock().iter().map(|(id, kept)| (*id, Arc::clone(kept))).collect()
    }

    fn figures_of(&self, id: u128, kept: &Kept) -> BucketSnapshotFigures {
        let now = self.core.env.clock.monotonic();
        let ends_after = kept.ends_after(now);
        let parts = kept.parts.lock();
        let count = |waits: &&Part| matches!(waits.content, Content::Waits(_));
        let lost = parts.values().filter(|part| matches!(part.content, Content::Lost));
        BucketSnapshotFigures {
            id,
            age: now.saturating_sub(kept.created),
            ends_after,
            manifest: Arc::clone(&kept.manifest),
            held: Duration::from_nanos(kept.held_ns.load(Ordering::Relaxed)),
            vbuckets: parts.values().map(|part| part.moment).collect(),
            waiting: parts.values().filter(count).count(),
            lost: lost.map(|part| part.moment.vb).collect(),
        }
    }

    /// What a snapshot has of a vBucket that is active here in the same history; renews the lease.
    pub fn open(&self, id: u128, vb: VbId) -> Result<KeptVbucket, BucketSnapshotRefusal> {
        let kept = self.core.snapshots.find(id).ok_or(BucketSnapshotRefusal::Unknown)?;
        kept.used(self.core.env.clock.monotonic());
        let moment = kept.parts.lock().get(&vb).map(|part| part.moment);
        if !self.is_present(&moment.ok_or(BucketSnapshotRefusal::Unknown)?) {
            kept.lose(vb);
        }
        kept.lose_cut_off();
        let parts = kept.parts.lock();
        let part = parts.get(&vb).ok_or(BucketSnapshotRefusal::Unknown)?;
        match &part.content {
            Content::Waits(_) => Err(BucketSnapshotRefusal::NotReady),
            Content::Lost => Err(BucketSnapshotRefusal::Lost),
            Content::Kept(snapshot) => {
                let snapshot = snapshot.clone().ok_or(BucketSnapshotRefusal::Unknown)?;
                Ok(KeptVbucket { moment: part.moment, snapshot })
            }
        }
    }

    /// Ends snapshots whose lease is over, and closes the files of vBuckets that are not active here any more in the same
    /// history.
    pub(crate) fn end_stale(&self) {
        let now = self.core.env.clock.monotonic();
        for (id, kept) in self.all() {
            if kept.ends_after(now).is_zero() {
                let _ = self.end(id);
                continue;
            }
            let moments: Vec<VbMoment> = kept.parts.lock().values().map(|part| part.moment).collect();
            moments.iter().filter(|one| !self.is_present(one)).for_each(|one| kept.lose(one.vb));
            kept.lose_cut_off();
        }
    }

    fn is_present(&self, moment: &VbMoment) -> bool {
        let shard = self.core.vbuckets.find(moment.vb, Holder::FrontEnd);
        shard.is_ok_and(|shard| shard.vb.state() == VbState::Active && shard.vb.uuid() == moment.uuid)
    }

    /// Keeps what is saved of those vBuckets of a group whose moment the flusher has come to. The caller keeps anything else
    /// from being saved meanwhile. Reads the disk.
    pub(crate) fn keep_saved(&self, group: &[VbId]) {
        if self.core.snapshots.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        for vb in group {
            let wanted = {
                let mut shard = self.core.vbuckets.hold(*vb, Holder::Flusher);
                let persisted = shard.vb.persisted_seqno();
                let is_saved = shard.wanted_snapshot.is_some_and(|wanted| persisted >= wanted.seqno);
                if is_saved { shard.wanted_snapshot.take().map(|wanted| (wanted, persisted)) } else { None }
            };
            let Some((wanted, persisted)) = wanted else { continue };
            self.core.snapshots.waiting.fetch_sub(1, Ordering::Relaxed);
            self.keep(*vb, wanted, persisted);
        }
    }

    fn keep(&self, vb: VbId, wanted: WantedSnapshot, persisted: Seqno) {
        // It may have ended meanwhile.
        let Some(kept) = self.core.snapshots.find(wanted.id) else { return };
        let Some(moment) = kept.parts.lock().get(&vb).map(|part| part.moment) else { return };
        let snapshot = match self.core.store.snapshot(vb) {
            Ok(snapshot) => snapshot,
            Err(failure) => {
                self.failed(vb, &failure);
                return kept.lose(vb);
            }
        };
        let is_there = snapshot.is_some() || wanted.seqno == Seqno(0);
        let high = snapshot.as_ref().map_or(Seqno(0), |snapshot| snapshot.high_seqno());
        if persisted != wanted.seqno || high > wanted.seqno || !is_there || !self.is_present(&moment) {
            return kept.lose(vb);
        }
        let was_read = Arc::clone(&kept.was_read);
        let mut parts = kept.parts.lock();
        let Some(part) = parts.get_mut(&vb) else { return };
        // It may have been lost meanwhile.
        let Content::Waits(open) = std::mem::replace(&mut part.content, Content::Lost) else { return };
        let kept = |snapshot| KeptSnapshot::new(snapshot, Arc::clone(&part.dropped), was_read, open);
        part.content = Content::Kept(snapshot.map(kept));
    }

    fn failed(&self, vb: VbId, failure: &Failure) {
        self.core.failure_log.failed(self.core.name(), vb, Failed::BucketSnapshot, failure);
        self.core.unreadable.note_served(self.core.name(), vb, failure);
    }
}
