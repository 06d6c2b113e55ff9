//! A bucket's store that can be exchanged for another one while it serves (docs/adr/0168-a-bucket-changes-its-store.md).
//!
//! # Guarantees
//!
//! - At each moment, a crash included, each vBucket is whole in one of two stores: in the other one if the record of the
//!   move says so, else in the first one. What was acknowledged is there.
//! - Saves of a vBucket wait for the move for one bounded step, those of other vBuckets never. Readers do not wait.
//! - A snapshot goes on reading the store that it was taken from. The files of that store stay until it is dropped, or until
//!   the end of the move has waited for it for [`LONGEST_WAIT`]: then it is ended, and its reader has to begin again.
//! - A vBucket that cannot be read stays where it is, and the others move.
//!
//! It must not know who asks for a move, nor who has to be told when it is over.
//!
//! The other store's files are in a folder within the bucket's until every vBucket is in it. Then the files of the first
//! store are removed, and those of the other one take their place, one by one, while it is in use ([`RelocatedDisk`]).
//!
//! Locks, in this order: `plan`, `saving` of vBuckets by number, `sides`.

mod ending;
mod held;
mod mover;
mod record;
mod routes;
mod unrecorded;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::VbId;
use base::env::{Env, RelocatedDisk};
use parking_lot::{Mutex, RwLock};

use crate::catalog::{self, Catalog};
use crate::failure::Failure;
use crate::files::StorageBackend;
use crate::store::KvStore;
use held::Side;
use mover::Copying;
pub use record::ELSEWHERE as MIGRATION;
use record::{MoveRecord, RecordStage, elsewhere};

/// How long the end of a move waits for those that read the store which is given up. It keeps room on the disk meanwhile, and
/// nothing else waits.
pub const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Opens the store of the bucket's folder, with the disk of a world.
pub type OpenStore = dyn Fn(Env, StorageBackend) -> Result<Arc<dyn KvStore>, Failure> + Send + Sync;

/// A bucket's store, and the one that it moves to.
pub struct Movable {
    env: Env,
    dir: PathBuf,
    open: Box<OpenStore>,
    sides: RwLock<Sides>,
    /// One for each vBucket, and behind them one for all that the bucket does not have.
    lanes: Box<[Lane]>,
    /// Whether there were two stores when it was last asked what changed.
    was_moving: AtomicBool,
    plan: Mutex<Option<MovePlan>>,
    shown: Mutex<Option<MoveProgress>>,
}

/// Which stores there are.
#[derive(Clone)]
enum Sides {
    One(Arc<Side>),
    Two { first: Arc<Side>, other: Arc<Side> },
}

impl Sides {
    fn are_two(&self) -> bool {
        matches!(self, Sides::Two { .. })
    }
}

/// What a vBucket needs while it moves.
#[derive(Default)]
struct Lane {
    /// Held while what is stored of the vBucket is changed.
    saving: Mutex<()>,
    /// Whether it is in the other one of two stores.
    is_elsewhere: AtomicBool,
    /// Whether it is unknown which store a restart finds it in: nothing of it is changed until that is on record.
    is_undecided: AtomicBool,
    /// Counts how often it went to another store: who read meanwhile reads again.
    turn: AtomicU64,
    work: Mutex<LaneWork>,
}

#[derive(Default)]
struct LaneWork {
    is_copied: bool,
    compactions: u32,
    /// Counts deletions and rollbacks: what was copied before is void.
    generation: u64,
}

/// A move.
struct MovePlan {
    record: MoveRecord,
    /// Whether the record is as it is on the disk.
    is_recorded: bool,
    /// vBuckets that are in their new store once the record is on the disk.
    pending: Vec<VbId>,
    /// Whether the store that they leave has something of them.
    leaves_strays: bool,
    relocated: RelocatedDisk,
    /// What one of the stores has of vBuckets that are in the other one: true for the other store.
    strays: BTreeSet<(bool, VbId)>,
    /// Whether vBuckets that are stored nowhere were told their store.
    has_placed_absent: bool,
    current: Option<Copying>,
    /// vBuckets that cannot be moved, and why.
    left: BTreeMap<VbId, String>,
    left_since: Duration,
    /// The store that is given up, and since when.
    leaving: Option<(Arc<Side>, Duration)>,
    items: u64,
    began: Duration,
}

/// Why a bucket is not moved, or goes on moving.
#[derive(Debug, thiserror::Error)]
pub enum MoveRefused {
    /// It is kept there already.
    #[error("the bucket is kept in that store already")]
    IsThere,
    /// A move is under way, or is being cancelled.
    #[error("the bucket is being moved to another store already: wait for its end, or cancel it")]
    Moving,
    /// No move is under way.
    #[error("the bucket is not being moved to another store")]
    NotMoving,
    /// All vBuckets are in the new store.
    #[error(
        "all vBuckets are in the new store already, and the move cannot be cancelled: wait for its end, then move the bucket \
         back"
    )]
    TooLate,
    /// It keeps a history of changes, which only one of the stores can.
    #[error(
        "the bucket keeps a history of changes, which would end: set history_retention_seconds and \
         history_retention_bytes to 0 first"
    )]
    KeepsHistory,
    /// There is something of a vBucket that the bucket does not have.
    #[error(
        "the bucket's folder has files of vBucket {0}, which the bucket does not have: move them away first"
    )]
    Unknown(VbId),
    /// A store refuses.
    #[error(transparent)]
    Store(#[from] Failure),
}

/// What a step of a move did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// There is no move.
    Idle,
    /// Something was done, and there is more to do.
    Worked,
    /// Something has to end first: a compaction, a reader of the store that is given up, damage of a vBucket.
    Waiting,
    /// The bucket is in one store, the new one or after a cancelled move the first one. Once that is noted where buckets are listed, [`Movable::noted`] ends the
    /// move.
    Moved(StorageBackend),
}

/// What a move does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStage {
    /// vBuckets are copied to the new store.
    Copying,
    /// vBuckets go back to their first store.
    Cancelling,
    /// All are in one store, and the files of the other one go.
    Ending,
    /// It is over, and not noted yet.
    Done,
}

/// How far a move is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveProgress {
    /// The store in which the bucket was.
    pub from: StorageBackend,
    /// The store that was asked for.
    pub to: StorageBackend,
    /// What is being done.
    pub stage: MoveStage,
    /// vBuckets that are where they are to be.
    pub vbuckets: u64,
    /// vBuckets that there are.
    pub of_vbuckets: u64,
    /// Records that were copied since the move began, or the node started.
    pub items: u64,
    /// For how long.
    pub time: Duration,
    /// vBuckets that cannot be moved, and why.
    pub left: Vec<(VbId, String)>,
    /// vBuckets of which something still reads the store that is given up: the move ends when that ends.
    pub waits_for: Vec<VbId>,
    /// For how long it waits for them at the most.
    pub waits: Duration,
    /// Why the last step failed, if it did.
    pub failure: Option<String>,
}

fn disk_failed<'p>(operation: &'static str, path: &'p Path) -> impl Fn(std::io::Error) -> Failure + use<'p> {
    move |source| Failure::Disk { operation, path: path.to_owned(), source }
}

/// Whether a move of the bucket in a folder is not over: then its documents are in two stores, which only a node brings
/// together. Without a record, the folder of another store says so if it may have vBuckets.
///
/// # Errors
///
/// If the record of the move, or that folder, cannot be read.
pub fn is_moving(disk: &dyn base::env::Disk, dir: &Path) -> Result<bool, Failure> {
    match MoveRecord::look(disk, dir)? {
        Some(record) => Ok(record.stage != RecordStage::Done),
        None => unrecorded::may_have_vbuckets(disk, dir),
    }
}

impl Movable {
    /// Opens a bucket's folder as the record of a move says, or else with this store. A move goes on with
    /// [`Movable::step`].
    ///
    /// # Errors
    ///
    /// If a store cannot be opened, or if what a move has left cannot be ended.
    pub fn open(
        env: Env,
        dir: &Path,
        vbuckets: u16,
        backend: StorageBackend,
        open: Box<OpenStore>,
    ) -> Result<Movable, Failure> {
        let record = MoveRecord::read(&*env.disk, dir)?;
        let record = record.map(|record| ending::complete(&env, dir, record)).transpose()?;
        let lanes: Box<[Lane]> = (0..=vbuckets).map(|_| Lane::default()).collect();
        let first_of = record.as_ref().map_or(backend, |record| match record.stage {
            RecordStage::Done => record.to,
            _ => record.from,
        });
        if record.is_none() {
            unrecorded::check(&env, dir, backend, &*open)?;
        }
        if record.as_ref().is_none_or(|record| record.stage == RecordStage::Done) {
            // What a move that never began, or is over, has left. If it cannot be removed, the next move tries again.
            let _ = env.disk.remove_dir_all(&elsewhere(dir));
        }
        let first = Side::new(open(env.clone(), first_of)?, first_of);
        let (sides, plan) = (RwLock::new(Sides::One(first)), Mutex::default());
        let dir = dir.to_owned();
        let movable = Movable {
            env,
            dir,
            open,
            sides,
            lanes,
            was_moving: AtomicBool::new(false),
            plan,
            shown: Mutex::default(),
        };
        if let Some(record) = record {
            movable.go_on(record)?;
        }
        Ok(movable)
    }

    /// Goes on with a move that is on record.
    fn go_on(&self, record: MoveRecord) -> Result<(), Failure> {
        let mut plan = self.plan_of(record);
        if plan.record.stage == RecordStage::Moving {
            let other = self.open_other(&plan)?;
            for (at, lane) in self.lanes.iter().enumerate() {
                let is_elsewhere = u16::try_from(at).is_ok_and(|at| plan.record.moved.contains(&at));
                lane.is_elsewhere.store(is_elsewhere, Ordering::SeqCst);
            }
            let mut sides = self.sides.write();
            let Sides::One(first) = sides.clone() else { return Ok(()) };
            for (is_other, side) in [(false, &first), (true, &other)] {
                let found = side.store.states()?.into_iter().map(|(vb, _)| vb);
                plan.strays.extend(
                    found.filter(|vb| plan.record.has_moved(*vb) != is_other).map(|vb| (is_other, vb)),
                );
            }
            *sides = Sides::Two { first, other };
        }
        self.show(&plan, None);
        *self.plan.lock() = Some(plan);
        Ok(())
    }

    fn plan_of(&self, record: MoveRecord) -> MovePlan {
        let now = self.env.clock.monotonic();
        let relocated = RelocatedDisk::new(self.env.disk.clone(), &self.dir, &elsewhere(&self.dir));
        MovePlan {
            record,
            is_recorded: true,
            pending: Vec::new(),
            leaves_strays: false,
            relocated,
            strays: BTreeSet::new(),
            has_placed_absent: false,
            current: None,
            left: BTreeMap::new(),
            left_since: now,
            leaving: None,
            items: 0,
            began: now,
        }
    }

    fn open_other(&self, plan: &MovePlan) -> Result<Arc<Side>, Failure> {
        let env = Env { disk: Arc::new(plan.relocated.clone()), ..self.env.clone() };
        let backend = plan.record.to;
        Ok(Side::new((self.open)(env, backend)?, backend))
    }

    /// The store in which the bucket is kept; the first one as long as a move is not over.
    pub fn backend(&self) -> StorageBackend {
        match &*self.sides.read() {
            Sides::One(side) | Sides::Two { first: side, .. } => side.backend,
        }
    }

    /// How far the move is; `None` if there is none.
    pub fn progress(&self) -> Option<MoveProgress> {
        self.shown.lock().clone()
    }

    /// Begins to move the bucket to another store, durably. [`Movable::step`] does the rest.
    ///
    /// # Errors
    ///
    /// If it may not be moved, or if the disk refuses; then it stays where it is.
    pub fn begin(&self, to: StorageBackend) -> Result<(), MoveRefused> {
        let mut plan = self.plan.lock();
        // Of a bucket that was moved before, it may be on record alone where it is.
        let before = plan.as_ref().map(|plan| plan.record.clone());
        match before.as_ref().map(|before| before.stage) {
            None | Some(RecordStage::Done) => {}
            Some(RecordStage::Moving) => return Err(MoveRefused::Moving),
            Some(RecordStage::Clearing | RecordStage::Bringing) => return Err(MoveRefused::TooLate),
        }
        let Sides::One(first) = self.sides.read().clone() else { return Err(MoveRefused::Moving) };
        if first.backend == to {
            return Err(MoveRefused::IsThere);
        }
        if first.store.keeps_history() {
            return Err(MoveRefused::KeepsHistory);
        }
        let unknown = first
            .store
            .states()?
            .into_iter()
            .map(|(vb, _)| vb)
            .find(|vb| usize::from(vb.0) >= self.vbuckets());
        if let Some(vb) = unknown {
            return Err(MoveRefused::Unknown(vb));
        }
        if before.is_none() {
            unrecorded::check(&self.env, &self.dir, first.backend, &*self.open)?;
        }
        let new = self.plan_of(MoveRecord::new(first.backend, to));
        let other = self.make_other(&first, &new)?;
        self.lanes.iter().for_each(|lane| lane.is_elsewhere.store(false, Ordering::SeqCst));
        if let Err(failure) = new.record.write(&*self.env.disk, &self.dir) {
            // It may be on record all the same. Without a folder, a start takes it for one that never began.
            drop(other);
            let _ = match before {
                Some(before) => before.write(&*self.env.disk, &self.dir),
                None => MoveRecord::remove(&*self.env.disk, &self.dir),
            };
            let _ = remove_elsewhere(&self.env, &self.dir);
            return Err(failure.into());
        }
        *self.sides.write() = Sides::Two { first, other };
        self.show(&new, None);
        *plan = Some(new);
        Ok(())
    }

    /// An empty store beside the bucket's, with the same number.
    fn make_other(&self, first: &Side, plan: &MovePlan) -> Result<Arc<Side>, Failure> {
        remove_elsewhere(&self.env, &self.dir)?;
        let folder = elsewhere(&self.dir);
        let made = self.env.disk.create_dir_all_synced(&folder);
        made.map_err(disk_failed("make folder", &folder))?;
        Catalog::anew(&self.env, &folder, first.store.store_id()?).mend()?;
        let opened = self.open_other(plan);
        if opened.is_err() {
            remove_elsewhere(&self.env, &self.dir)?;
        }
        opened
    }

    /// Has the vBuckets go back to the first store, durably. Blocks while the present step of the move is under way.
    ///
    /// # Errors
    ///
    /// If there is no move, if it is all but over, or if the disk refuses; then it may be cancelled all the same.
    pub fn cancel(&self) -> Result<(), MoveRefused> {
        let mut plan = self.plan.lock();
        let Some(plan) = plan.as_mut() else { return Err(MoveRefused::NotMoving) };
        match plan.record.stage {
            RecordStage::Moving => {}
            RecordStage::Clearing | RecordStage::Bringing => return Err(MoveRefused::TooLate),
            RecordStage::Done => return Err(MoveRefused::NotMoving),
        }
        self.settle_record(plan)?;
        if plan.record.is_cancelled {
            return Ok(());
        }
        self.give_up_copy(plan);
        plan.left.clear();
        plan.has_placed_absent = false;
        plan.record.is_cancelled = true;
        plan.is_recorded = false;
        let settled = self.settle_record(plan);
        self.show(plan, None);
        Ok(settled?)
    }

    /// It is noted where buckets are listed in which store the bucket is: a move that is over is forgotten, durably. Until
    /// then a start takes the record's word for it.
    ///
    /// # Errors
    ///
    /// If the disk refuses; it is to be tried again.
    pub fn noted(&self) -> Result<(), Failure> {
        let mut plan = self.plan.lock();
        if plan.as_ref().is_some_and(|plan| plan.record.stage == RecordStage::Done) {
            // Without the record, what a cancelled move has left would be taken for vBuckets that moved.
            remove_elsewhere(&self.env, &self.dir)?;
            MoveRecord::remove(&*self.env.disk, &self.dir)?;
            *plan = None;
            *self.shown.lock() = None;
        }
        Ok(())
    }

    fn vbuckets(&self) -> usize {
        self.lanes.len() - 1
    }

    fn lane_number(&self, vb: VbId) -> usize {
        usize::from(vb.0).min(self.vbuckets())
    }

    fn lane(&self, vb: VbId) -> &Lane {
        &self.lanes[self.lane_number(vb)]
    }

    /// The store that a vBucket is in.
    fn side(&self, vb: VbId) -> Arc<Side> {
        match &*self.sides.read() {
            Sides::One(side) => side.clone(),
            Sides::Two { first, other } => {
                if self.lane(vb).is_elsewhere.load(Ordering::SeqCst) {
                    other.clone()
                } else {
                    first.clone()
                }
            }
        }
    }

    /// Asks the store that a vBucket is in; again if the vBucket went to the other one meanwhile.
    fn ask<T>(&self, vb: VbId, question: impl Fn(&Arc<Side>) -> T) -> T {
        let lane = self.lane(vb);
        loop {
            let turn = lane.turn.load(Ordering::SeqCst);
            let answer = question(&self.side(vb));
            if lane.turn.load(Ordering::SeqCst) == turn {
                return answer;
            }
        }
    }

    fn show(&self, plan: &MovePlan, failure: Option<&Failure>) {
        let goal = plan.record.goes_elsewhere();
        let stage = match plan.record.stage {
            RecordStage::Moving if plan.record.is_cancelled => MoveStage::Cancelling,
            RecordStage::Moving => MoveStage::Copying,
            RecordStage::Clearing | RecordStage::Bringing => MoveStage::Ending,
            RecordStage::Done => MoveStage::Done,
        };
        let all = &self.lanes[..self.vbuckets()];
        let placed = all.iter().filter(|lane| lane.is_elsewhere.load(Ordering::SeqCst) == goal).count();
        let placed = if plan.record.stage == RecordStage::Moving { placed } else { all.len() };
        *self.shown.lock() = Some(MoveProgress {
            from: plan.record.from,
            to: plan.record.to,
            stage,
            vbuckets: placed as u64,
            of_vbuckets: all.len() as u64,
            items: plan.items,
            time: self.env.clock.monotonic().saturating_sub(plan.began),
            left: plan.left.iter().map(|(vb, why)| (*vb, why.clone())).collect(),
            waits_for: plan.leaving.iter().flat_map(|(side, _)| side.readers.vbuckets()).collect(),
            waits: plan.leaving.as_ref().map_or(Duration::ZERO, |(_, since)| {
                LONGEST_WAIT.saturating_sub(self.env.clock.monotonic().saturating_sub(*since))
            }),
            failure: failure.map(ToString::to_string),
        });
    }
}

fn remove_elsewhere(env: &Env, dir: &Path) -> Result<(), Failure> {
    let folder = elsewhere(dir);
    env.disk.remove_dir_all(&folder).map_err(disk_failed("remove", &folder))?;
    env.disk.sync_dir(dir).map_err(disk_failed("sync", dir))
}

/// Whether there is a store in the folder that the other one has until a move is over.
fn has_other(env: &Env, dir: &Path) -> Result<bool, Failure> {
    Ok(!matches!(catalog::find(&*env.disk, &elsewhere(dir))?, catalog::Found::None))
}
