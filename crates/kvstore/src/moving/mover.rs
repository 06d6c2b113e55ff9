//! The steps of a move: each is bounded, and what one has left the next one goes on with.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::env::Env;
use base::{Seqno, VbId};

use super::record::RecordStage;
use super::{Lane, Movable, MovePlan, MoveStep, Side, Sides};
use crate::copying::{CopyFailure, PieceLimits, copy_piece, partial_state, seal, state_of};
use crate::failure::Failure;
use crate::state::VbStateDoc;
use crate::store::Snapshot;

/// What is copied in one step.
const LIMITS: PieceLimits = PieceLimits { bytes: 2 << 20, items: 4 << 10 };
/// So many records are brought to their files in the other store before more are copied: until then they are in memory.
const FILE_EVERY: u64 = 16 << 10;
/// So many changes may be left for the end, when nothing of the vBucket can be saved. Twice as many after each pass that
/// leaves more than that.
const LAST_ITEMS: usize = 500;
const MOST_DOUBLINGS: u32 = 5;
/// Bytes of them.
const LAST_BYTES: usize = 1 << 20;
/// Pieces of them; a drop of a collection ends one.
const LAST_PIECES: usize = 4;
/// Bytes that stay free on the disk while a vBucket is copied, beside twice what it takes: for two journals, and for what is
/// saved meanwhile.
const STAYS_FREE: u64 = 64 << 20;
/// vBuckets that could not be moved are tried again after so long.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// A vBucket that is being copied.
pub(super) struct Copying {
    vb: VbId,
    snapshot: Box<dyn Snapshot>,
    /// What is not copied yet of the snapshot begins here.
    next: Seqno,
    partial: VbStateDoc,
    /// [`super::LaneWork::generation`] when it began.
    generation: u64,
    unfiled: u64,
    passes: u32,
}

impl Copying {
    /// Whether what was copied so far is of no use, because the vBucket was deleted or went back meanwhile.
    fn is_void(&self, lane: &Lane) -> bool {
        lane.work.lock().generation != self.generation
    }
}

/// Where a move goes from and to.
struct Ends {
    from: Arc<Side>,
    to: Arc<Side>,
}

impl Movable {
    /// Does a bounded piece of the move: for a thread of its own, which calls again at once while there is more to do.
    ///
    /// # Errors
    ///
    /// If a store or the disk refuses: it is to be tried again after a while. Nothing that was saved is in danger.
    pub fn step(&self) -> Result<MoveStep, Failure> {
        let mut plan = self.plan.lock();
        let Some(present) = plan.as_mut() else { return Ok(MoveStep::Idle) };
        let done = self.step_of(present);
        self.show(present, done.as_ref().err());
        done
    }

    fn step_of(&self, plan: &mut MovePlan) -> Result<MoveStep, Failure> {
        self.settle_record(plan)?;
        match plan.record.stage {
            RecordStage::Moving => self.move_some(plan),
            RecordStage::Clearing => self.clear(plan),
            RecordStage::Bringing => self.bring(plan),
            RecordStage::Done => Ok(MoveStep::Moved(plan.record.to)),
        }
    }

    fn move_some(&self, plan: &mut MovePlan) -> Result<MoveStep, Failure> {
        let Some(ends) = self.ends(plan) else { return self.end_move(plan) };
        if let Some((is_other, vb)) = plan.strays.first().copied() {
            let side = if is_other == plan.record.goes_elsewhere() { &ends.to } else { &ends.from };
            match side.store.delete_vbucket(vb) {
                // It is in nobody's way there, and goes with the store or before it is copied.
                Err(failure) if !failure.is_of_one_file() => return Err(failure),
                _ => plan.strays.remove(&(is_other, vb)),
            };
            return Ok(MoveStep::Worked);
        }
        if plan.current.is_some() {
            return self.copy_some(plan, &ends);
        }
        if !plan.has_placed_absent {
            self.place_absent(plan, &ends)?;
            plan.has_placed_absent = true;
            return Ok(MoveStep::Worked);
        }
        match self.next_to_move(plan) {
            Next::Copy(vb) => self.begin_copy(plan, &ends, vb),
            Next::Wait => {
                let now = self.env.clock.monotonic();
                if !plan.left.is_empty() && now.saturating_sub(plan.left_since) >= TRY_AGAIN {
                    plan.left.clear();
                }
                Ok(MoveStep::Waiting)
            }
            Next::Over => {
                drop(ends);
                self.end_move(plan)
            }
        }
    }

    /// `None` if one of the stores is left already.
    fn ends(&self, plan: &MovePlan) -> Option<Ends> {
        let Sides::Two { first, other } = self.sides.read().clone() else { return None };
        Some(if plan.record.goes_elsewhere() {
            Ends { from: first, to: other }
        } else {
            Ends { from: other, to: first }
        })
    }

    /// The vBuckets that are not where they are to be.
    fn unplaced(&self, plan: &MovePlan) -> impl Iterator<Item = (VbId, &Lane)> {
        let goal = plan.record.goes_elsewhere();
        let all = self.lanes[..self.vbuckets()].iter().enumerate();
        all.filter(move |(_, lane)| lane.is_elsewhere.load(Ordering::SeqCst) != goal)
            .map(|(at, lane)| (VbId(at as u16), lane))
    }

    fn next_to_move(&self, plan: &MovePlan) -> Next {
        let mut next = Next::Over;
        for (vb, lane) in self.unplaced(plan) {
            next = Next::Wait;
            if plan.left.contains_key(&vb) {
                continue;
            }
            let mut work = lane.work.lock();
            if work.compactions == 0 {
                work.is_copied = true;
                return Next::Copy(vb);
            }
        }
        next
    }

    /// vBuckets that are stored nowhere are in the new store from now on, all with one record.
    fn place_absent(&self, plan: &mut MovePlan, ends: &Ends) -> Result<(), Failure> {
        let is_absent = |vb: &VbId| matches!(ends.from.store.snapshot(*vb), Ok(None));
        let mut absent: Vec<VbId> = self.unplaced(plan).map(|(vb, _)| vb).filter(is_absent).collect();
        let _saving: Vec<_> = absent.iter().map(|vb| self.lane(*vb).saving.lock()).collect();
        absent.retain(is_absent);
        self.switch(plan, absent, false)
    }

    fn begin_copy(&self, plan: &mut MovePlan, ends: &Ends, vb: VbId) -> Result<MoveStep, Failure> {
        if let Err(failure) = check_room((&self.env, &self.dir), ends, vb) {
            self.lane(vb).work.lock().is_copied = false;
            return Err(failure);
        }
        let begun = self.copying_of(ends, vb);
        match begun {
            Ok(Some(copying)) => plan.current = Some(copying),
            Ok(None) => {
                let _saving = self.lane(vb).saving.lock();
                self.lane(vb).work.lock().is_copied = false;
                if matches!(ends.from.store.snapshot(vb), Ok(None)) {
                    self.switch(plan, vec![vb], false)?;
                }
            }
            Err(failure) => {
                self.lane(vb).work.lock().is_copied = false;
                self.leave_behind(plan, vb, failure)?;
            }
        }
        Ok(MoveStep::Worked)
    }

    /// A copy that begins; `None` if there is nothing to copy.
    fn copying_of(&self, ends: &Ends, vb: VbId) -> Result<Option<Copying>, Failure> {
        if !matches!(ends.to.store.snapshot(vb), Ok(None)) {
            ends.to.store.delete_vbucket(vb)?;
        }
        // A deletion or a way back is wholly done or has not begun: what it makes void is not copied as if it were newer.
        let _saving = self.lane(vb).saving.lock();
        let generation = self.lane(vb).work.lock().generation;
        let Some(stored) = ends.from.store.stored_vbucket(vb)? else { return Ok(None) };
        let Some(snapshot) = ends.from.store.snapshot(vb)? else { return Ok(None) };
        let partial = partial_state(&state_of(&stored));
        Ok(Some(Copying { vb, snapshot, next: Seqno(0), partial, generation, unfiled: 0, passes: 0 }))
    }

    fn copy_some(&self, plan: &mut MovePlan, ends: &Ends) -> Result<MoveStep, Failure> {
        let Some(copying) = plan.current.as_mut() else { return Ok(MoveStep::Worked) };
        let vb = copying.vb;
        if copying.is_void(self.lane(vb)) {
            self.give_up_copy(plan);
            return Ok(MoveStep::Worked);
        }
        let from = (&*copying.snapshot, copying.next);
        let copied = copy_piece(from, (&*ends.to.store, vb), &copying.partial, LIMITS);
        let done = match copied {
            Ok((0, _)) => self.end_copy(plan, ends),
            Ok((items, next)) => {
                copying.next = next;
                copying.unfiled += items;
                plan.items += items;
                if copying.unfiled < FILE_EVERY {
                    return Ok(MoveStep::Worked);
                }
                copying.unfiled = 0;
                ends.to.store.counts(vb).map(drop)
            }
            Err(CopyFailure::Unread(failure) | CopyFailure::Unwritten(failure)) => Err(failure),
        };
        if let Err(failure) = done {
            // A part of a copy takes room that changes of clients need more.
            if failure.is_of_one_file() || failure.is_disk_full() {
                self.give_up_copy(plan);
            }
            self.leave_behind(plan, vb, failure)?;
        }
        Ok(MoveStep::Worked)
    }

    /// All of the snapshot is copied: copies what was saved meanwhile, and if that is little ends the copy, while nothing
    /// of the vBucket can be saved.
    fn end_copy(&self, plan: &mut MovePlan, ends: &Ends) -> Result<(), Failure> {
        let Some(copying) = plan.current.as_mut() else { return Ok(()) };
        let vb = copying.vb;
        // What can be done before is done before.
        ends.to.store.counts(vb)?;
        let most = LAST_ITEMS << copying.passes.min(MOST_DOUBLINGS);
        let _saving = self.lane(vb).saving.lock();
        let (Some(snapshot), false) = (ends.from.store.snapshot(vb)?, copying.is_void(self.lane(vb))) else {
            self.give_up_copy(plan);
            return Ok(());
        };
        for taken in 0.. {
            if taken == LAST_PIECES {
                copying.snapshot = snapshot;
                copying.passes += 1;
                return Ok(());
            }
            let limits = PieceLimits { bytes: LAST_BYTES, items: most / LAST_PIECES };
            let from = (&*snapshot, copying.next);
            match copy_piece(from, (&*ends.to.store, vb), &copying.partial, limits) {
                Ok((0, _)) => break,
                Ok((items, next)) => {
                    copying.next = next;
                    plan.items += items;
                }
                Err(CopyFailure::Unread(failure) | CopyFailure::Unwritten(failure)) => return Err(failure),
            }
        }
        drop(snapshot);
        let stored = ends.from.store.stored_vbucket(vb)?.ok_or(Failure::NoVbucket { vb })?;
        if stored.high_seqno.0.saturating_add(1) < copying.next.0 {
            // The vBucket went back, and the mark of changes does not say so: the copy is newer than it.
            self.give_up_copy(plan);
            return Ok(());
        }
        seal(&*ends.to.store, vb, &stored)?;
        plan.current = None;
        self.switch(plan, vec![vb], true)
    }

    /// From now on these vBuckets are in their new store. What was acknowledged of them is there, and nothing of them is
    /// being saved. `is_stored`: whether the store that they leave has something of them.
    fn switch(&self, plan: &mut MovePlan, vbs: Vec<VbId>, is_stored: bool) -> Result<(), Failure> {
        if vbs.is_empty() {
            return Ok(());
        }
        for vb in &vbs {
            self.lane(*vb).is_undecided.store(true, Ordering::SeqCst);
            if plan.record.goes_elsewhere() {
                plan.record.moved.insert(vb.0);
            } else {
                plan.record.moved.remove(&vb.0);
            }
        }
        plan.pending = vbs;
        plan.leaves_strays = is_stored;
        plan.is_recorded = false;
        self.settle_record(plan)
    }

    /// Puts on record what is not there yet. Whether a record that could not be written is on the disk is not known: until
    /// one is there, nothing of the vBuckets that it is about is changed.
    pub(super) fn settle_record(&self, plan: &mut MovePlan) -> Result<(), Failure> {
        if !plan.is_recorded {
            plan.record.write(&*self.env.disk, &self.dir)?;
            plan.is_recorded = true;
        }
        let goal = plan.record.goes_elsewhere();
        for vb in plan.pending.drain(..) {
            let lane = self.lane(vb);
            lane.is_elsewhere.store(goal, Ordering::SeqCst);
            lane.turn.fetch_add(1, Ordering::SeqCst);
            lane.is_undecided.store(false, Ordering::SeqCst);
            lane.work.lock().is_copied = false;
            if plan.leaves_strays {
                plan.strays.insert((!goal, vb));
            }
        }
        Ok(())
    }

    pub(super) fn give_up_copy(&self, plan: &mut MovePlan) {
        if let Some(copying) = plan.current.take() {
            self.lane(copying.vb).work.lock().is_copied = false;
            plan.strays.insert((plan.record.goes_elsewhere(), copying.vb));
        }
    }

    /// A vBucket that cannot be moved stays where it is. Other failures are handed on.
    fn leave_behind(&self, plan: &mut MovePlan, vb: VbId, failure: Failure) -> Result<(), Failure> {
        if !failure.is_of_one_file() {
            return Err(failure);
        }
        if plan.left.is_empty() {
            plan.left_since = self.env.clock.monotonic();
        }
        plan.left.insert(vb, failure.to_string());
        Ok(())
    }
}

/// Fails while the disk has no room for the copy of a vBucket: what was moved before is given back in the background.
fn check_room((env, dir): (&Env, &Path), ends: &Ends, vb: VbId) -> Result<(), Failure> {
    let Some(room) = env.disk.room(dir) else { return Ok(()) };
    let takes = match ends.from.store.usage(vb) {
        Some(usage) => usage.file_bytes,
        None => ends.from.store.counts(vb)?.file_bytes,
    };
    let needed = takes.saturating_mul(2).saturating_add(STAYS_FREE);
    if room.free_bytes >= needed {
        return Ok(());
    }
    let said = format!(
        "the disk has {} free bytes, and {needed} are needed to copy vBucket {vb}: the move goes on when there are",
        room.free_bytes
    );
    let source = std::io::Error::new(std::io::ErrorKind::StorageFull, said);
    Err(Failure::Disk { operation: "move", path: dir.to_owned(), source })
}

/// What a move does next.
enum Next {
    Copy(VbId),
    /// Nothing can be done now.
    Wait,
    /// Every vBucket is where it is to be.
    Over,
}
