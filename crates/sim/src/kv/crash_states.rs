//! Every disk that a power loss can leave, at every moment of a random run, and the store opened on each.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use base::env::sim::{Recording, Replay, SimDisk, SplitMix64, Survival};

use kvstore::KvStore;

use super::model::Model;
use super::tally::{Tally, Trying};
use super::verify::{check_files, compare};
use super::workload::Shape;
use super::{DIR, Subject, prepared};

/// How thoroughly to look at one run.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Changes and reads in the run.
    pub ops: u64,
    /// Seeded power losses at each moment, besides the one that loses and the one that keeps everything unsynced.
    pub tries: u64,
    /// One state in so many is recovered on, changed a little, and crashed again at every moment of that.
    pub second_in: u64,
}

impl Default for Depth {
    fn default() -> Depth {
        Depth { ops: 40, tries: 24, second_in: 150 }
    }
}

/// How often the store is opened in a run. Before, it was closed, or its process was killed.
const STARTS: u64 = 2;
/// Changes of the disk that count as a start: opening, and the first save.
const START_CHANGES: u64 = 40;
/// Of so many moments of a start one is crashed in twice.
const START_IN: u64 = 3;
/// Makes what is crashed in starts independent of all else.
const AT_STARTS: u64 = 0x7374_6172_7473;
/// Changes and reads between a recovery and the second crash.
const OPS_AFTER_RECOVERY: u64 = 3;
/// Seeded power losses at each moment of the second crash.
const SECOND_TRIES: u64 = 2;
/// One state in so many has its files checked from end to end.
const CHECKED_IN: u64 = 4;
/// One state in so many is closed, and its files are looked at alone.
const CLOSED_IN: u64 = 8;

/// Runs the workload of `seed`, then opens the store on every disk that a power loss at any moment may have left.
pub fn crash_states(subject: &Subject<'_>, depth: &Depth, seed: u64) -> Tally {
    let _trying = Trying::new(format_args!("crash states of {} with seed {seed}", subject.name));
    let mut rng = SplitMix64::new(seed);
    let disk = prepared();
    disk.record();
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let shape = Shape::choose(&mut rng);
    let mut model = Model::new(shape.vbuckets);
    let mut wrong = Vec::new();
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(disk.changes());
        match subject.open(&disk) {
            Ok(store) => {
                compare(&*store, &model, disk.changes(), &mut wrong);
                let run = subject.run(&disk, &*store, shape);
                run.go_on(&mut model, &mut rng, depth.ops / STARTS, &mut wrong, &mut |_| false);
                if rng.chance(1, 2)
                    && let Err(failure) = store.close()
                {
                    wrong.push(format!("does not close: {failure}"));
                }
            }
            Err(failure) => wrong.push(format!("does not open: {failure}")),
        }
    }
    tally.judge(&wrong);
    let recording = disk.recording().expect("it was started");
    let mut trial = Trial { subject, shape, tally, rng, second_in: depth.second_in };
    trial.every_moment(&model, &recording, depth.tries, false);
    trial.rng = SplitMix64::new(seed ^ AT_STARTS);
    trial.second_at_starts(&model, &recording, &starts);
    trial.tally
}

struct Trial<'a> {
    subject: &'a Subject<'a>,
    shape: Shape,
    tally: Tally,
    rng: SplitMix64,
    second_in: u64,
}

impl Trial<'_> {
    /// Goes through a recording, and crashes twice in and behind starts, where a journal begins and files are put in
    /// order: `starts` are the changes that were done before each.
    fn second_at_starts(&mut self, model: &Model, recording: &Recording, starts: &[u64]) {
        let mut replay = recording.replay();
        loop {
            let at = replay.done() as u64;
            let is_start = starts.iter().any(|start| (*start..start + START_CHANGES).contains(&at));
            if is_start && self.rng.chance(1, START_IN) {
                let survival = Survival::Seeded(self.rng.next_u64());
                self.second(model, &replay, survival, at);
            }
            if !replay.step() {
                return;
            }
        }
    }

    /// Goes through a recording; images that are the same and must answer the same promises are looked at once.
    fn every_moment(&mut self, model: &Model, recording: &Recording, tries: u64, is_second: bool) {
        let acks: BTreeSet<u64> = model.acks();
        let mut replay = recording.replay();
        let mut seen = HashSet::new();
        loop {
            let at = replay.done() as u64;
            if acks.contains(&at) {
                seen.clear();
            }
            let survivals = if replay.is_unsynced() { tries + 2 } else { 1 };
            for n in 0..survivals {
                let survival = match n {
                    0 => Survival::Synced,
                    1 => Survival::Everything,
                    _ => Survival::Seeded(self.rng.next_u64()),
                };
                let (image, mark) = replay.image_marked(survival);
                if !seen.insert(mark) {
                    continue;
                }
                let _trying = Trying::new(format_args!("after {at} changes, {survival:?}"));
                self.look(model, &image, at, is_second);
                if !is_second && self.rng.chance(1, self.second_in) {
                    self.second(model, &replay, survival, at);
                }
            }
            if replay.next_is_sync() {
                seen.clear();
            }
            if !replay.step() {
                return;
            }
        }
    }

    fn look(&mut self, model: &Model, image: &SimDisk, at: u64, is_second: bool) {
        let mut wrong = Vec::new();
        if self.subject.trusts_last_header && self.rng.chance(1, CHECKED_IN) {
            check_files(&*self.subject.world(image).disk, &mut wrong);
        }
        match self.subject.open(image) {
            Ok(store) => {
                compare(&*store, model, at, &mut wrong);
                if self.rng.chance(1, CLOSED_IN) {
                    self.close(&*store, image, model, at, &mut wrong);
                }
            }
            Err(failure) => wrong.push(format!("does not open: {failure}")),
        }
        *(if is_second { &mut self.tally.second_crashes } else { &mut self.tally.states }) += 1;
        self.tally.judge(&wrong);
    }

    /// Once it is closed the files alone hold everything, and are clean.
    fn close(&self, store: &dyn KvStore, disk: &SimDisk, model: &Model, at: u64, wrong: &mut Vec<String>) {
        if let Err(failure) = store.close() {
            return wrong.push(format!("does not close: {failure}"));
        }
        let world = self.subject.world(disk);
        check_files(&*world.disk, wrong);
        match (self.subject.open_closed)(world, Path::new(DIR)) {
            Ok(files) => {
                let mut of_files = Vec::new();
                compare(&*files, model, at, &mut of_files);
                wrong.extend(of_files.into_iter().map(|what| format!("closed, {what}")));
            }
            Err(failure) => wrong.push(format!("closed, does not open: {failure}")),
        }
    }

    /// Recovers, changes a little, and crashes at every moment of all that. Half of the recoveries find a disk on
    /// which only the process died: what was unsynced is there, and still unsynced.
    fn second(&mut self, model: &Model, replay: &Replay<'_>, survival: Survival, at: u64) {
        let is_kill = self.rng.chance(1, 2);
        let _trying = Trying::new(if is_kill { "killed instead, second crash" } else { "second crash" });
        let disk = if is_kill { replay.killed() } else { replay.image(survival) };
        disk.record();
        let mut wrong = Vec::new();
        let Ok(store) = self.subject.open(&disk) else { return };
        let places = compare(&*store, model, at, &mut wrong);
        if wrong.is_empty() {
            let mut model = model.recovered(at, &places, disk.changes());
            let run = self.subject.run(&disk, &*store, self.shape);
            let mut rng = self.rng.fork();
            run.go_on(&mut model, &mut rng, OPS_AFTER_RECOVERY, &mut wrong, &mut |_| false);
            drop(store);
            let recording = disk.recording().expect("it was started");
            self.every_moment(&model, &recording, SECOND_TRIES, true);
        }
        self.tally.judge(&wrong);
    }
}
