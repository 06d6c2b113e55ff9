//! What is done behind the commits, a bounded piece at a time: merging runs, rewriting segments.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::failure::Failure;
use crate::file::{FileKind, LogFile};
use crate::merge::Merge;
use crate::rewrite::Rewrite;
use crate::shard::Shard;

/// What is under way in a shard: one of each at most.
#[derive(Default)]
pub(crate) struct Work {
    merge: Option<Merge>,
    rewrite: Option<Rewrite>,
    /// Files that are to be looked at: whether they are encrypted as new ones would be.
    to_look: Vec<(FileKind, u64)>,
    review: Review,
    /// Bytes that commits have left to be read in merges and in rewrites.
    owed_merging: u64,
    owed_rewriting: u64,
    /// What failed while a commit had it done, to be told by the next step.
    failure: Option<Failure>,
}

/// Whether the files are encrypted as new ones would be. The manifest is written again last, so that it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Review {
    /// That is not known since the store was opened.
    #[default]
    Unknown,
    /// They are looked at.
    UnderWay,
    /// All were, when the manifest was written.
    Done,
}

/// Files that a step looks at.
const LOOKS_A_STEP: usize = 16;

/// How much waits to be done in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Debt {
    /// Runs of the key index.
    pub(crate) runs: u64,
    /// The share of items in segments that does not count, in percent.
    pub(crate) waste_percent: u64,
}

/// Commits have runs merged from this number on,
const FEW_RUNS: u64 = 16;
/// and for each of so many more a byte of entries for each byte that they bring.
const RUNS_A_BYTE: u64 = 4;
/// Commits have segments rewritten if this much more than [`crate::Config::waste_percent`] is wasted, in percent,
const WASTE_ABOVE: u64 = 3;
/// and for each of so many percent more a byte of items for each byte that they bring.
const WASTE_A_BYTE: u64 = 5;
/// The most bytes for each byte that a commit brings.
const MOST_A_BYTE: u64 = 8;

impl Debt {
    /// Bytes that are to be read in merges, and in rewrites, for a commit with so many bytes.
    fn of_commit(self, bytes: u64, waste_percent: u64) -> (u64, u64) {
        let share = |above: u64, step: u64| (above.min(step * MOST_A_BYTE) * bytes) / step;
        let wasted = self.waste_percent.saturating_sub(waste_percent + WASTE_ABOVE);
        (share(self.runs.saturating_sub(FEW_RUNS), RUNS_A_BYTE), share(wasted, WASTE_A_BYTE))
    }
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

impl Shard {
    /// Does a bounded piece of what there is to do. Says whether there was anything.
    pub(crate) fn step(&self) -> Result<bool, Failure> {
        if self.settle()? {
            return Ok(true);
        }
        let Some(mut work) = self.work.try_lock() else { return Ok(false) };
        if let Some(failure) = work.failure.take() {
            return Err(failure);
        }
        let aged = self.age_history()?;
        // What is under way rests, too, and goes on where it is.
        if self.files.tuning.lock().is_paused {
            return Ok(aged);
        }
        let gave_up = self.give_up_points()?;
        let merged = self.merge_step(&mut work)?;
        let rewrote = self.rewrite_step(&mut work)?;
        Ok(aged || gave_up || merged || rewrote || self.look_step(&mut work)?)
    }

    /// Once after the start, and whenever the manifest is not encrypted as a new one would be, looks at all files; those
    /// that are not are written again. Called when there is nothing else to do.
    fn look_step(&self, work: &mut Work) -> Result<bool, Failure> {
        let is_current = self.has_current_manifest();
        if work.review == Review::Unknown || (work.review == Review::Done && !is_current) {
            let state = self.state.read();
            let runs = state.meta.runs.iter().map(|run| (FileKind::Run, run.number));
            let segments = state.meta.segments.keys().map(|number| (FileKind::Segment, *number));
            work.to_look = runs.chain(segments).collect();
            work.review = Review::UnderWay;
        }
        if work.review == Review::Done {
            return Ok(false);
        }
        for _ in 0..LOOKS_A_STEP {
            let Some(next) = work.to_look.pop() else {
                if !is_current {
                    self.renew_manifest()?;
                }
                work.review = Review::Done;
                return Ok(true);
            };
            match next {
                (_, _) if self.is_current_file(next) => {}
                (FileKind::Run, number) => work.merge = Merge::of_one(self, number)?,
                (FileKind::Segment, number) => {
                    work.rewrite = Some(Rewrite::begin(self, &[number].into())?);
                }
            }
            if work.merge.is_some() || work.rewrite.is_some() {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Whether a file is encrypted as a new one would be, or is not in use any more, or cannot be read.
    fn is_current_file(&self, (kind, number): (FileKind, u64)) -> bool {
        let state = self.state.read();
        let (run, segment) = match kind {
            FileKind::Run => (state.runs.iter().find(|run| run.file.number() == number).cloned(), None),
            FileKind::Segment => (None, state.segments.get(&number).cloned()),
        };
        drop(state);
        let of = |file: &LogFile| file.is_bad() || file.is_current();
        run.is_none_or(|run| of(&run.file)) && segment.is_none_or(|segment| of(&segment.file))
    }

    /// How much waits to be done.
    pub(crate) fn debt(&self) -> Debt {
        let state = self.state.read();
        let bytes: u64 = state.meta.segments.values().map(|segment| segment.bytes).sum();
        let live: u64 = state.meta.live_bytes().values().sum();
        let waste_percent = 100 - 100 * live.min(bytes) / bytes.max(1);
        let waste_percent = if bytes == 0 { 0 } else { waste_percent };
        Debt { runs: state.meta.runs.len() as u64, waste_percent }
    }

    /// Does some of what waits to be done if that is much: the more, the more there is and the more was committed. So
    /// what is committed all the time is slowed, and what waits has a limit.
    pub(crate) fn keep_pace(&self, committed: u64) {
        let (merging, rewriting) = self.debt().of_commit(committed, self.files.tuning.lock().waste_percent);
        if merging == 0 && rewriting == 0 {
            return;
        }
        let mut work = self.work.lock();
        work.owed_merging += merging;
        work.owed_rewriting += rewriting;
        if let Err(failure) = self.pay(&mut work) {
            // What cannot be done now is owed by no one.
            (work.owed_merging, work.owed_rewriting) = (0, 0);
            work.failure = Some(failure);
        }
    }

    fn pay(&self, work: &mut Work) -> Result<(), Failure> {
        let step = self.config.step_bytes.max(1);
        while work.owed_merging >= step {
            let did = self.merge_step(work)?;
            work.owed_merging = if did { work.owed_merging - step } else { 0 };
        }
        while work.owed_rewriting >= step {
            let did = self.rewrite_step(work)?;
            work.owed_rewriting = if did { work.owed_rewriting - step } else { 0 };
        }
        Ok(())
    }

    fn merge_step(&self, work: &mut Work) -> Result<bool, Failure> {
        if work.merge.is_none() {
            work.merge = Merge::choose(self)?;
        }
        let Some(mut merge) = work.merge.take() else { return Ok(false) };
        match merge.step(self.config.step_bytes) {
            Ok(Progress::More) => work.merge = Some(merge),
            Ok(Progress::Done) => merge.install(self)?,
            Err(failure) => {
                merge.abandon(self, &failure);
                return Err(failure);
            }
        }
        Ok(true)
    }

    fn rewrite_step(&self, work: &mut Work) -> Result<bool, Failure> {
        if work.rewrite.is_none() {
            let Some(chosen) = self.wasteful() else { return Ok(false) };
            work.rewrite = Some(Rewrite::begin(self, &chosen)?);
        }
        self.rewrite_on(work).map(|_| true)
    }

    fn rewrite_on(&self, work: &mut Work) -> Result<Progress, Failure> {
        let Some(mut rewrite) = work.rewrite.take() else { return Ok(Progress::Done) };
        match rewrite.step(self.config.step_bytes) {
            Ok(Progress::More) => {
                work.rewrite = Some(rewrite);
                Ok(Progress::More)
            }
            Ok(Progress::Done) => rewrite.install(self).map(|()| Progress::Done),
            Err(failure) => {
                rewrite.abandon(self, &failure);
                Err(failure)
            }
        }
    }

    /// See [`crate::LogStore::reclaim`].
    pub(crate) fn reclaim(
        &self,
        vbs: &BTreeSet<u16>,
        observe: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // Only what is wasted now: saves go on meanwhile.
        let mut left = self.wasted_by(vbs);
        loop {
            if observe().is_break() {
                let vb = vbs.first().copied().unwrap_or_default();
                return Err(Failure::Ended { vb, why: "it was told to end" });
            }
            let mut work = self.work.lock();
            if work.rewrite.is_none() {
                left = left.intersection(&self.wasted_by(vbs)).copied().collect();
                if left.is_empty() {
                    return Ok(());
                }
                let few = self.some_of(&left);
                left.retain(|segment| !few.contains(segment));
                work.rewrite = Some(Rewrite::begin(self, &few)?);
            }
            match self.rewrite_on(&mut work) {
                // The damage is that of another vBucket, or shows when this one is read. The segment stays.
                Err(failure) if failure.is_damage() => {
                    tracing::warn!(
                        event = "log_segment_not_rewritten", %failure,
                        "a damaged segment cannot be rewritten, and stays with its waste"
                    );
                }
                done => done.map(drop)?,
            }
        }
    }
}
