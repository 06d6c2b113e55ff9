//! Merging neighbouring runs of the key index into one: versions that nothing needs go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::planted::{self, Bug};

use crate::failure::Failure;
use crate::file::{FileKind, Purpose};
use crate::meta::{Edit, RunMeta, VbMeta};
use crate::run::{Merged, Run, RunWriter, Stored, split_key};
use crate::shard::{Shard, ShardState};
use crate::work::Progress;

/// The most runs that are merged at once: more than are asked for to be of one size (`Tuning::merge_runs`, at most 8).
const MOST_RUNS: usize = 12;
/// From this number of runs on the newest are merged, whatever their sizes.
const TOO_MANY_RUNS: usize = 40;

/// A merge under way.
pub(crate) struct Merge {
    inputs: Vec<Arc<Run>>,
    merged: Merged,
    writer: RunWriter,
    rules: Rules,
}

/// Which versions are needed, as of when the merge began. What was needed then and is not any more goes with a later
/// merge; nothing comes to be needed that was not.
struct Rules {
    vbs: BTreeMap<u16, Arc<VbMeta>>,
    /// vBuckets of which everything stays.
    kept_whole: BTreeSet<u16>,
    /// vBuckets with something in older runs.
    below: BTreeSet<u16>,
}

impl Rules {
    /// Puts the versions of a key that are needed into `kept`; they come with the newest first.
    fn choose(&self, vb: u16, versions: &[Stored], kept: &mut Vec<Stored>) {
        kept.clear();
        if self.kept_whole.contains(&vb) {
            kept.extend_from_slice(versions);
            return;
        }
        let Some(meta) = self.vbs.get(&vb) else { return };
        let mut newer: Option<(u64, u64)> = None;
        for stored in versions {
            let seqno = stored.entry.seqno;
            if !meta.sees(stored.epoch, seqno) {
                continue;
            }
            let place = (stored.epoch, seqno);
            let needs = |newer| meta.needs_entry(place, newer) && !planted::is(Bug::MergeForgetsPoints);
            if newer.is_none_or(needs) {
                kept.push(*stored);
            }
            newer = Some(place);
        }
        if !self.below.contains(&vb) {
            // There is nothing that it would hide.
            while kept.last().is_some_and(|stored| stored.is_erased) {
                kept.pop();
            }
        }
    }
}

/// The size class of a run: runs of one differ by less than a factor of four.
fn class(run: &RunMeta, small_bytes: u64) -> u32 {
    (run.bytes / small_bytes.max(1)).checked_ilog2().map_or(0, |log| log / 2 + 1)
}

impl Merge {
    /// Neighbouring runs that are to be merged, if there are any.
    pub(crate) fn choose(shard: &Shard) -> Result<Option<Merge>, Failure> {
        Merge::begin(shard, |state| {
            let metas: Vec<RunMeta> = state.meta.runs.iter().rev().cloned().collect();
            let is_bad: Vec<bool> = state.runs.iter().map(|run| run.file.is_bad()).collect();
            neighbours(&metas, &is_bad, shard)
        })
    }

    /// One run, that is written again.
    pub(crate) fn of_one(shard: &Shard, number: u64) -> Result<Option<Merge>, Failure> {
        Merge::begin(shard, |state| {
            let at = state.runs.iter().position(|run| run.file.number() == number && !run.file.is_bad())?;
            Some(at..at + 1)
        })
    }

    /// Of the runs, the newest first, those that `choose` says.
    fn begin(
        shard: &Shard,
        choose: impl FnOnce(&ShardState) -> Option<std::ops::Range<usize>>,
    ) -> Result<Option<Merge>, Failure> {
        let (inputs, rules) = {
            let state = shard.state.read();
            let Some(range) = choose(&state) else { return Ok(None) };
            let inputs: Vec<Arc<Run>> = state.runs[range.clone()].to_vec();
            let below = state.runs[range.end..].iter().flat_map(|run| run.vbs.iter().copied()).collect();
            let kept_whole = state.refused.keys().chain(state.meta.damaged.keys()).copied().collect();
            (inputs, Rules { vbs: state.meta.vbs.clone(), kept_whole, below })
        };
        let merged = match Merged::new(inputs.iter(), &[]) {
            Ok(merged) => merged,
            Err(failure) => {
                mark_bad(&inputs, &failure);
                return Err(failure);
            }
        };
        let writer = RunWriter::new(shard.new_file(FileKind::Run)?);
        Ok(Some(Merge { inputs, merged, writer, rules }))
    }

    /// Merges about `bytes`.
    pub(crate) fn step(&mut self, bytes: u64) -> Result<Progress, Failure> {
        let (mut done, mut versions, mut kept, mut of) = (0, Vec::new(), Vec::new(), Vec::new());
        while let Some((key, _)) = self.merged.current() {
            of.clear();
            of.extend_from_slice(key);
            versions.clear();
            while let Some((key, stored)) = self.merged.current()
                && key == of
            {
                versions.push(*stored);
                done += key.len() as u64 + 16;
                self.merged.advance()?;
            }
            let (vb, _) = split_key(&of).expect("the key of a run begins with a vBucket");
            self.rules.choose(vb, &versions, &mut kept);
            for stored in &kept {
                self.writer.add(&of, stored)?;
            }
            if done >= bytes {
                return Ok(Progress::More);
            }
        }
        self.writer.finish()?;
        self.writer.file.sync()?;
        Ok(Progress::Done)
    }

    /// Puts the new run in the place of the old ones.
    pub(crate) fn install(mut self, shard: &Shard) -> Result<(), Failure> {
        let mut edits: Vec<Edit> = self
            .inputs
            .iter()
            .map(|run| Edit::RemoveFile { kind: FileKind::Run, number: run.file.number() })
            .collect();
        let mut names = Vec::new();
        if self.writer.entries > 0 {
            shard.files.count(Purpose::Merges, self.writer.file.len());
            if let Err(failure) = shard.files.sync_dir() {
                self.writer.file.abandon(&shard.files);
                return Err(failure);
            }
            names.push(self.writer.file.name.clone());
            edits.push(Edit::AddRun(RunMeta {
                number: self.writer.file.id.number,
                nonce: self.writer.file.id.nonce,
                bytes: self.writer.file.len(),
                low: self.inputs.iter().map(|run| run.low).min().unwrap_or(0),
                high: self.inputs.iter().map(|run| run.high).max().unwrap_or(0),
                entries: self.writer.entries,
                vbs: std::mem::take(&mut self.writer.vbs),
            }));
        } else {
            self.writer.file.abandon(&shard.files);
        }
        shard.log(&mut shard.writer.lock(), &edits, &names)
    }

    /// It cannot be done; runs that cannot be read are left alone from now on.
    pub(crate) fn abandon(self, shard: &Shard, failure: &Failure) {
        mark_bad(&self.inputs, failure);
        self.writer.file.abandon(&shard.files);
    }
}

fn mark_bad(inputs: &[Arc<Run>], failure: &Failure) {
    if let Some(path) = failure.damaged_file() {
        inputs.iter().filter(|run| run.file.path() == path).for_each(|run| run.file.make_bad());
    }
}

/// The range of runs, the newest first, that are to be merged: enough of one size class, with smaller ones between
/// them.
fn neighbours(metas: &[RunMeta], is_bad: &[bool], shard: &Shard) -> Option<std::ops::Range<usize>> {
    let enough = shard.files.tuning.lock().merge_runs.max(2);
    let classes: Vec<u32> = metas.iter().map(|run| class(run, shard.config.small_run_bytes)).collect();
    let highest = classes.iter().copied().max()?;
    for most in 0..=highest {
        let mut start = 0;
        for at in 0..=classes.len() {
            let is_in = at < classes.len() && classes[at] <= most && !is_bad[at];
            if is_in && at - start < MOST_RUNS {
                continue;
            }
            let found = classes[start..at].iter().filter(|class| **class == most).count();
            if found >= enough {
                return Some(start..at);
            }
            start = if is_in { at } else { at + 1 };
        }
    }
    let good = is_bad.iter().take_while(|bad| !**bad).count();
    (metas.len() > TOO_MANY_RUNS && good >= enough).then_some(0..good.min(MOST_RUNS))
}
