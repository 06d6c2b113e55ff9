//! The n-th call fails, for each n, once or from then on: nothing acknowledged is lost, and work goes on when it can.

use base::env::sim::{SimDisk, SplitMix64, Survival};
use kvstore::KvStore;

use super::model::Model;
use super::tally::{Tally, Trying};
use super::verify::compare;
use super::workload::{End, Shape};
use super::{Subject, prepared};
use crate::crash::FaultKind;

/// Runs the workload of `seed` with every kind of fault at every call.
pub fn fault_points(subject: &Subject<'_>, ops: u64, seed: u64) -> Tally {
    let _trying = Trying::new(format_args!("fault points of {} with seed {seed}", subject.name));
    let mut tally = Tally::default();
    for kind in &FaultKind::ALL {
        for nth in 1.. {
            let _trying = Trying::new(format_args!("{} at call {nth}", kind.name));
            let mut trial = Trial { subject, kind, disk: prepared(), wrong: Vec::new() };
            trial.disk.plan(kind.at(nth));
            trial.run(ops, seed);
            if !trial.disk.was_struck() {
                break;
            }
            tally.fault_points += 1;
            *tally.by_kind.entry(kind.name).or_default() += 1;
            tally.judge(&trial.wrong);
        }
    }
    tally
}

struct Trial<'a> {
    subject: &'a Subject<'a>,
    kind: &'a FaultKind,
    disk: SimDisk,
    wrong: Vec<String>,
}

impl Trial<'_> {
    fn run(&mut self, ops: u64, seed: u64) {
        let mut rng = SplitMix64::new(seed);
        let shape = Shape::choose(&mut rng);
        let mut model = Model::new(shape.vbuckets);
        let Some(store) = self.open() else {
            self.power_loss(&model);
            return;
        };
        let disk = self.disk.clone();
        let run = self.subject.run(&disk, &*store, shape);
        let mut wrong = std::mem::take(&mut self.wrong);
        let mut healed = false;
        let end = run.go_on(&mut model, &mut rng, ops, &mut wrong, &mut |model| {
            self.power_loss(model);
            !disk.is_off() && !std::mem::replace(&mut healed, self.heal())
        });
        self.wrong.append(&mut wrong);
        if end == End::GaveUp && !disk.is_off() {
            self.wrong.push("does not go on although the disk works again".into());
        }
        if !disk.is_off() {
            disk.heal();
            compare(&*store, &model, disk.changes(), &mut self.wrong);
        }
        drop(store);
        self.power_loss(&model);
    }

    /// A store that cannot be opened promises nothing, and must open when the disk works again.
    fn open(&mut self) -> Option<Box<dyn KvStore>> {
        for _ in 0..2 {
            match self.subject.open(&self.disk) {
                Ok(store) => return Some(store),
                Err(_) if self.disk.is_off() => return None,
                Err(_) => {}
            }
        }
        self.heal();
        match self.subject.open(&self.disk) {
            Ok(store) => Some(store),
            Err(failure) => {
                self.wrong.push(format!("does not open although the disk works again: {failure}"));
                None
            }
        }
    }

    /// The disk works again. It must have been broken for good: one failure is nothing to give up for.
    fn heal(&mut self) -> bool {
        if !self.kind.is_for_ever() {
            self.wrong.push("failed again and again after one fault".into());
        }
        self.disk.heal();
        true
    }

    /// The power goes now, and the store is opened on what is left.
    fn power_loss(&mut self, model: &Model) {
        let at = self.disk.changes();
        for survival in [Survival::Synced, Survival::Everything, Survival::Seeded(at), Survival::Seeded(!at)]
        {
            let _trying = Trying::new(format_args!("power loss after {at} changes, {survival:?}"));
            let image = self.disk.image(survival);
            match self.subject.open(&image) {
                Ok(store) => {
                    compare(&*store, model, at, &mut self.wrong);
                }
                Err(failure) => self.wrong.push(format!("{survival:?} does not open: {failure}")),
            }
        }
    }
}
