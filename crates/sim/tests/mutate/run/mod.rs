//! One file of a node that has ended is not what it was, or a bucket's folder, and the node starts: what it serves is
//! right, or it is refused with a reason in the log; never older, never silently absent.

mod ages;
mod damage;
mod folders;
mod log;
mod node_files;
mod repair;
mod start;
mod strangers;
mod tally;
mod world;

use base::env::sim::SplitMix64;

pub use damage::Kind;
pub use tally::{Outcome, Tally};

use damage::Damage;
use world::{Keeper, World};

/// Starts that are tried with one world: to make it costs as much as some of them.
const STARTS_A_WORLD: u64 = 40;

/// Starts with one world on older small files.
const AGES_A_WORLD: usize = 10;

/// Starts with one world on files of others.
const STRANGERS_A_WORLD: usize = 12;

/// Of so many seeds one has a world in a log-structured store, too.
const SEEDS_A_LOG: u64 = 4;

/// Of so many seeds one damages whole folders.
const SEEDS_A_FOLDER: u64 = 8;

/// What is tried with one seed: how many starts, and only files that are damaged in this way, if it says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trial {
    /// Only this kind of damage.
    pub only: Option<Kind>,
}

impl Trial {
    /// A world, and repairs of one damaged file each, some of which lose power: what was said is what is served then.
    /// Answers how many were repaired, and what was wrong.
    pub fn repair(&self, seed: u64) -> (u64, Vec<String>) {
        let mut rng = SplitMix64::new(seed);
        let world = World::build(&mut rng);
        self.repairs(seed, &world, &mut rng)
    }

    /// The same of a log-structured store.
    pub fn repair_log(&self, seed: u64) -> (u64, Vec<String>) {
        let mut rng = SplitMix64::new(!seed);
        let world = World::build_in(Keeper::Log, &mut rng);
        self.repairs(seed, &world, &mut rng)
    }

    fn repairs(&self, seed: u64, world: &World, rng: &mut SplitMix64) -> (u64, Vec<String>) {
        let (mut repaired, mut wrong) = (0, Vec::new());
        for _ in 0..STARTS_A_WORLD {
            let Some(damage) = Damage::choose(world, rng, self.only) else { continue };
            let disk = world.disk();
            damage.apply(&disk);
            match repair::repair(world, &disk, &damage, rng) {
                Ok(was_needed) => repaired += u64::from(was_needed),
                Err(what) => wrong.push(format!("seed {seed}: {damage}: {what}")),
            }
        }
        (repaired, wrong)
    }

    /// A world, and starts with one damaged file each.
    pub fn run(&self, seed: u64) -> Tally {
        let mut rng = SplitMix64::new(seed);
        let mut tally = Tally::default();
        self.starts(seed, &World::build(&mut rng), &mut rng, &mut tally);
        if seed.is_multiple_of(SEEDS_A_LOG) {
            let mut rng = SplitMix64::new(!seed);
            let built_with = rng.clone();
            let world = World::build_in(Keeper::Log, &mut rng);
            self.starts(seed, &world, &mut rng, &mut tally);
            self.strangers(seed, &world, &built_with, &mut tally);
            let built_with = SplitMix64::new(seed.rotate_left(16));
            let world = World::build_in(Keeper::Journaled, &mut built_with.clone());
            self.strangers(seed, &world, &built_with, &mut tally);
        }
        node_files::run(seed, self.only, &mut tally);
        if self.only.is_none() && seed.is_multiple_of(SEEDS_A_FOLDER) {
            folders::run(seed, &mut tally);
        }
        tally
    }

    fn starts(&self, seed: u64, world: &World, rng: &mut SplitMix64, tally: &mut Tally) {
        tally.judge(seed, "nothing", "sound", &start::start(world, &world.disk(), None, true));
        for at in 0..STARTS_A_WORLD {
            let Some(damage) = Damage::choose(world, rng, self.only) else { continue };
            let disk = world.disk();
            damage.apply(&disk);
            let began_again = at % 4 == 0;
            let mut started = start::start(world, &disk, Some(&damage), began_again);
            if damage.class.is_kept_twice() && started.is_refused() {
                started.wrong.push("it is refused, and the other of the two copies is whole".to_owned());
            }
            let (kind, class) = (damage.kind.name(), damage.class.name());
            tally.judge(seed, kind, class, &started.named(&damage));
            if damage.may_heal() {
                let disk = world.disk();
                damage.apply(&disk);
                if let Some(started) = start::heals(world, &disk, &damage) {
                    tally.judge(seed, "heals", class, &started.named(&damage));
                }
            }
        }
        if self.only.is_none_or(|only| !Kind::ALL.contains(&only)) {
            self.ages(seed, world, tally);
        }
    }

    /// A file is that of another bucket, or of a copy of the folder.
    fn strangers(&self, seed: u64, world: &World, built_with: &SplitMix64, tally: &mut Tally) {
        if self.only.is_some_and(|only| Kind::ALL.contains(&only)) {
            return;
        }
        let mut rng = SplitMix64::new(seed.rotate_left(48));
        let all = strangers::all(world, built_with, &mut rng);
        self.start_each(seed, world, &all[..all.len().min(STRANGERS_A_WORLD)], tally);
    }

    /// Both copies of the catalog, or all small files, are as they were before.
    fn ages(&self, seed: u64, world: &World, tally: &mut Tally) {
        let mut rng = SplitMix64::new(seed.rotate_left(32));
        let all = ages::all(world, &mut rng);
        self.start_each(seed, world, &all[..all.len().min(AGES_A_WORLD)], tally);
    }

    fn start_each(&self, seed: u64, world: &World, all: &[Damage], tally: &mut Tally) {
        for (at, damage) in all.iter().enumerate() {
            let disk = world.disk();
            damage.apply(&disk);
            let started = start::start(world, &disk, Some(damage), at % 4 == 0).named(damage);
            tally.judge(seed, damage.kind.name(), damage.class.name(), &started);
        }
    }
}
