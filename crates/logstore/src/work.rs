//! What is done behind the commits, a bounded piece at a time: merging runs, rewriting segments.

use std::ops::ControlFlow;

use crate::failure::Failure;
use crate::merge::Merge;
use crate::rewrite::Rewrite;
use crate::shard::Shard;

/// What is under way in a shard: one of each at most.
#[derive(Default)]
pub(crate) struct Work {
    merge: Option<Merge>,
    rewrite: Option<Rewrite>,
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
        let merged = self.merge_step(&mut work)?;
        let rewrote = self.rewrite_step(&mut work)?;
        Ok(merged || rewrote)
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
        vb: u16,
        observe: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        // Only what is wasted now: saves go on meanwhile.
        let mut left = self.wasted_by(vb);
        loop {
            if observe().is_break() {
                return Err(Failure::Ended { vb, why: "it was told to end" });
            }
            let mut work = self.work.lock();
            if work.rewrite.is_none() {
                left = left.intersection(&self.wasted_by(vb)).copied().collect();
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
                    tracing::warn!(%failure, "a damaged segment is not rewritten");
                }
                done => done.map(drop)?,
            }
        }
    }
}
