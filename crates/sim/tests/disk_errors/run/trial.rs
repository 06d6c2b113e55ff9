//! One trial: a task on a disk that falls ill in it, an end, a start on the disk that is well, and what is there then.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::env::sim::{Call, Survival};
use base::{VbId, VbState};
use sim::Fingerprint;

use super::found::{Found, bring_whole};
use super::ill::{Harm, Illness};
use super::tasks::{TASKS, Task};
use super::world::{Base, Kind, PREPARED, REPLICA, VBUCKETS, World};

/// How long calls go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lasts {
    Once,
    AWhile,
    UntilItHeals,
}

impl Lasts {
    pub const ALL: [Lasts; 3] = [Lasts::Once, Lasts::AWhile, Lasts::UntilItHeals];

    pub fn calls(self) -> u64 {
        match self {
            Lasts::Once => 1,
            Lasts::AWhile => 3,
            Lasts::UntilItHeals => u64::MAX,
        }
    }
}

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It stops on the disk that is well again.
    Stop,
    /// It is killed after the disk is well again.
    Kill,
    /// The power goes after the disk is well again: what was not synced is lost.
    PowerLoss,
    /// It stops while the disk is ill; the disk is well at the next start.
    StopIll,
}

impl End {
    pub const ALL: [End; 4] = [End::Stop, End::Kill, End::PowerLoss, End::StopIll];
}

/// What is tried, but for the call that is the first to go wrong.
#[derive(Clone, Copy)]
pub struct Cell {
    pub kind: Kind,
    pub task: &'static Task,
    pub call: Call,
    pub lasts: Lasts,
    pub harm: Harm,
    pub end: End,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { kind, task, call, lasts, harm, end } = self;
        write!(f, "{kind:?}, {}, {call:?} {harm:?} {lasts:?}, {end:?}", task.name)
    }
}

/// What became of a trial.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Calls that went wrong within the task.
    pub struck: u64,
    pub wrong: Vec<String>,
}

/// How much of the table is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Much {
    /// One call of each cell.
    OneEach,
    /// Each call of each cell; of many calls as many as this, spread over them.
    AtMost(u64),
}

impl Much {
    /// Which of so many calls are the first to go wrong.
    pub fn choose(self, seed: u64, calls: u64) -> Vec<u64> {
        match self {
            Much::OneEach => vec![seed % calls + 1],
            Much::AtMost(most) if calls > most => {
                let step = calls as f64 / most as f64;
                (0..most).map(|n| (n as f64 * step) as u64 + 1).collect()
            }
            Much::AtMost(_) => (1..=calls).collect(),
        }
    }
}

/// How many calls of each kind a task makes on a disk that is well.
pub fn calls_of(base: &Base, task: &Task) -> BTreeMap<Call, u64> {
    let mut world = World::on(base, 1);
    world.open(false).expect("the disk is well");
    (task.prepare)(&mut world);
    world.evict_all();
    world.ill.count(task.only);
    (task.run)(&mut world);
    Call::ALL.into_iter().map(|call| (call, world.ill.calls(call))).filter(|(_, calls)| *calls > 0).collect()
}

/// All cells of a store, each with how many calls there are to choose from.
pub fn all_of(base: &Base, kind: Kind) -> Vec<(Cell, u64)> {
    let mut all = Vec::new();
    for task in TASKS.iter().filter(|task| task.is_with(kind)) {
        for (call, calls) in calls_of(base, task) {
            for harm in Harm::ALL.into_iter().filter(|harm| harm.applies_to(call)) {
                let cells = Lasts::ALL.into_iter().flat_map(|lasts| End::ALL.map(|end| (lasts, end)));
                // What has failed once is over when it stops: that is a stop of a disk that is well.
                let cells = cells.filter(|(lasts, end)| *lasts != Lasts::Once || *end != End::StopIll);
                all.extend(cells.map(|(lasts, end)| (Cell { kind, task, call, lasts, harm, end }, calls)));
            }
        }
    }
    all
}

impl Cell {
    fn seed(&self) -> u64 {
        Fingerprint::of_bytes([self.to_string().as_bytes()]).0
    }

    /// Which calls are the first to go wrong.
    pub fn choose(&self, calls: u64, much: Much) -> Vec<u64> {
        much.choose(self.seed(), calls)
    }

    /// Tries it once. A panic is a violation, too.
    pub fn run(&self, base: &Base, nth: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let ended = catch_unwind(AssertUnwindSafe(|| self.go(base, nth, &mut outcome)));
        if let Err(panic) = ended {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            outcome.wrong.push(format!("it panics: {what}"));
        }
        outcome
    }

    fn go(&self, base: &Base, nth: u64, outcome: &mut Outcome) {
        let mut world = World::on(base, self.seed());
        world.open(false).expect("the disk is well");
        (self.task.prepare)(&mut world);
        world.evict_all();
        let Cell { call, harm, .. } = *self;
        let illness = Illness { call, nth, lasts: self.lasts.calls(), harm, only: self.task.only };
        world.ill.fall_ill(illness);
        (self.task.run)(&mut world);
        outcome.struck = world.ill.struck();
        if self.end != End::StopIll {
            world.ill.heal();
        }
        let has_more = self.seed().wrapping_add(nth).is_multiple_of(2);
        self.end(&mut world, has_more);
        outcome.wrong.append(world.wrong.get_mut());
    }

    /// Goes on for a while, ends, starts, and compares; then once more, cleanly.
    fn end(&self, world: &mut World, has_more: bool) {
        if self.end != End::StopIll && world.bucket.is_none() && !starts(world) {
            return;
        }
        if self.end != End::StopIll {
            (self.task.again)(world);
        }
        if self.end != End::StopIll && has_more {
            world.change(2, 200);
            world.replicate(3);
            settle(world);
            world.file();
            let is_read = is_read(world);
            decide(world, is_read);
        }
        let before = match self.end {
            End::Stop => {
                settle(world);
                let before = look(world);
                check_all(world, &before, "before the stop", |found| found.high);
                Some(before)
            }
            _ => None,
        };
        let is_read = is_read(world);
        // What could not be read at the start is not in the files, so that the stop cannot be a clean one.
        let is_all_read = world.bucket.as_ref().is_some_and(|bucket| bucket.unreadable().is_empty());
        let is_clean = match self.end {
            End::Kill | End::PowerLoss => {
                world.kill();
                false
            }
            End::Stop | End::StopIll => match world.close() {
                Ok(()) => {
                    decide(world, is_read);
                    true
                }
                Err(failure) if self.end == End::Stop && is_all_read => {
                    return world.wrong.get_mut().push(format!("it does not stop cleanly: {failure}"));
                }
                Err(_) => false,
            },
        };
        world.ill.heal();
        if self.end == End::PowerLoss {
            let disk = world.disk.image(Survival::Synced);
            world.change_disk(disk);
        }
        let Some(found) = start(world, "the start") else { return };
        if let Some(before) = before.filter(|_| is_clean) {
            compare(world, &before, &found);
        }
        goes_on(world, &found);
        (self.task.again)(world);
        stop_again(world);
    }
}

/// Starts on a disk that is well after an end during the task; whether it did.
fn starts(world: &mut World) -> bool {
    let found = start(world, "the start on the disk that is well");
    found.inspect(|found| goes_on(world, found)).is_some()
}

fn goes_on(world: &mut World, found: &Bucketful) {
    for (vb, found) in &found.vbuckets {
        world.model.of(*vb).goes_on_from(found);
    }
}

/// A bucket, vBucket by vBucket.
struct Bucketful {
    uuid: String,
    manifest: u64,
    vbuckets: BTreeMap<VbId, Found>,
}

fn look(world: &mut World) -> Bucketful {
    world.evict_all();
    let bucket = world.bucket();
    let all = (0..VBUCKETS).map(VbId);
    let wrong = world.wrong.get_mut();
    if world.kind.is_full() {
        world.model.vbuckets.iter().for_each(|(vb, of)| bring_whole(&bucket, *vb, of.docs.keys(), wrong));
    }
    let vbuckets = all.filter_map(|vb| Some((vb, Found::read(&bucket, vb, &PREPARED, wrong)?))).collect();
    Bucketful { uuid: bucket.uuid().to_owned(), manifest: bucket.collections().manifest().uid().0, vbuckets }
}

/// On a disk that is well everything is saved and filed within a few tries.
fn settle(world: &mut World) {
    if !(0..3).any(|_| world.bucket().flushing().flush_all()) {
        world.wrong.get_mut().push("changes are not saved although the disk is well".into());
    }
    world.note();
}

/// Whether the replica can be read, so that what failed half-way is settled when more of it is saved and filed.
fn is_read(world: &World) -> bool {
    world.bucket.as_ref().and_then(|bucket| bucket.state_of(REPLICA)) == Some(VbState::Replica)
}

fn decide(world: &mut World, is_read: bool) {
    world.model.vbuckets.values_mut().for_each(|of| of.before = None);
    if is_read {
        world.model.of(REPLICA).is_undecided = false;
    }
}

fn check_all(world: &mut World, found: &Bucketful, when: &str, claim: fn(&Found) -> base::Seqno) {
    let mut wrong = Vec::new();
    for (vb, found) in &found.vbuckets {
        // What could not be read is dead until the next start.
        if found.state == VbState::Dead && when != "the start" {
            continue;
        }
        world.model.check(*vb, found, claim(found), &mut wrong);
    }
    if !world.manifests.contains(&found.manifest) {
        wrong.push(format!("manifest {} is none of {:?}", found.manifest, world.manifests));
    }
    world.wrong.get_mut().extend(wrong.into_iter().map(|what| format!("{when}: {what}")));
}

/// Starts on a disk that is well, and checks what is there.
fn start(world: &mut World, when: &str) -> Option<Bucketful> {
    if let Err(failure) = world.open(false) {
        world.wrong.get_mut().push(format!("{when}: it does not open: {failure}"));
        return None;
    }
    let found = look(world);
    check_all(world, &found, "the start", |found| found.persisted);
    Some(found)
}

/// After a clean stop everything is as it was served before.
fn compare(world: &mut World, before: &Bucketful, after: &Bucketful) {
    let mut wrong = Vec::new();
    if before.uuid != after.uuid {
        wrong.push("another bucket".to_owned());
    }
    let is_same_manifest = before.manifest == after.manifest;
    for (vb, before) in &before.vbuckets {
        if before.state == VbState::Dead {
            continue;
        }
        let Some(after) = after.vbuckets.get(vb) else {
            wrong.push(format!("{vb}: it is gone"));
            continue;
        };
        if world.kind == Kind::Ephemeral {
            if after.failover.iter().any(|entry| before.failover.contains(entry)) {
                wrong.push(format!("{vb}: its history goes on without its documents"));
            }
            continue;
        }
        let mut before = Found { persisted: after.persisted, ..before.clone() };
        if !is_same_manifest {
            // It takes over what is in use now.
            (before.high, before.open, before.max_cas) = (after.high, after.open.clone(), after.max_cas);
        }
        if before != *after {
            wrong.push(format!("{vb}: {}", difference(&before, after)));
        }
    }
    world.wrong.get_mut().extend(wrong.into_iter().map(|what| format!("after a clean stop: {what}")));
}

fn difference(before: &Found, after: &Found) -> String {
    let docs = before.docs.iter().filter(|(key, doc)| after.docs.get(*key) != Some(doc));
    let docs =
        docs.map(|(key, doc)| format!("{} was {doc:?}, is {:?}", key.escape_ascii(), after.docs.get(key)));
    let docs: Vec<String> = docs.collect();
    let bare = |found: &Found| Found { docs: BTreeMap::new(), ..found.clone() };
    let rest = if bare(before) == bare(after) {
        String::new()
    } else {
        format!("{:?} was {:?}", bare(after), bare(before))
    };
    let more = after.docs.len().saturating_sub(before.docs.len());
    format!("{rest} {} of {} documents differ, {more} more: {docs:?}", docs.len(), before.docs.len())
}

/// One more life, and one more stop: a start takes nothing away either.
fn stop_again(world: &mut World) {
    world.note();
    world.change(1, 20);
    settle(world);
    let before = look(world);
    check_all(world, &before, "before the second stop", |found| found.high);
    if let Err(failure) = world.close() {
        return world.wrong.get_mut().push(format!("the second stop is not clean: {failure}"));
    }
    if let Some(after) = start(world, "the second start") {
        compare(world, &before, &after);
    }
}
