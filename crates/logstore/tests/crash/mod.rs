//! The power goes at every moment of random changes, and each call fails once or for ever: what was acknowledged is found.

use std::collections::{BTreeMap, HashSet};

use base::env::sim::{Effect, Fault, On, SimDisk, SplitMix64, Survival};
use logstore::{LogStore, Trust};

use crate::world::{Content, Found, Open, World, open, read};

/// Runs, and seeded power losses at each moment of each.
const SEEDS: u64 = 40;
const TRIES: u64 = 4;
const STEPS: u64 = 25;

fn found(store: &LogStore) -> Result<Found, String> {
    let mut all = BTreeMap::new();
    for vb in store.known() {
        let view = store.snapshot(vb).map_err(|failure| failure.to_string())?;
        if let Some(view) = view {
            all.insert(vb, read(&view)?);
        }
    }
    Ok(all)
}

fn open_on(disk: &SimDisk, world: &World, at: u64) -> Result<LogStore, String> {
    let store = open(disk, &Trust::Last).map_err(|failure| failure.to_string())?;
    world.allows(&found(&store)?, at)?;
    Ok(store)
}

fn go(world: &mut World, steps: u64) {
    for _ in 0..steps {
        world.change().expect("no fault is planned");
    }
}

/// Opens the store on every disk that a power loss at any moment of a run may have left. Answers how many there were.
pub fn power_losses(seed: u64) -> u64 {
    let mut states = 0;
    let disk = SimDisk::new();
    disk.record();
    let mut world = World::new(disk.clone(), SplitMix64::new(seed));
    go(&mut world, STEPS);
    let recording = disk.recording().expect("it was started");
    let (mut replay, mut rng) = (recording.replay(), SplitMix64::new(!seed));
    let mut seen = HashSet::new();
    loop {
        let at = replay.done() as u64;
        for n in 0..TRIES + 2 {
            let survival = match n {
                0 => Survival::Synced,
                1 => Survival::Everything,
                _ => Survival::Seeded(rng.next_u64()),
            };
            let (image, mark) = replay.image_marked(survival);
            if !seen.insert((mark, world.position(at))) {
                continue;
            }
            states += 1;
            let opened = open_on(&image, &world, at);
            let store = opened.unwrap_or_else(|wrong| panic!("seed {seed}, {at}, {survival:?}: {wrong}"));
            if rng.chance(1, 4) {
                go_on(store, &image, rng.next_u64());
            }
        }
        if !replay.step() {
            return states;
        }
    }
}

/// What is done behind a recovery changes nothing, and another start finds the same.
fn go_on(store: LogStore, disk: &SimDisk, seed: u64) {
    let before = found(&store).expect("it was read");
    while store.step().expect("a step") {}
    assert_eq!(found(&store).expect("it is read"), before, "after the steps");
    drop(store);
    let crashed = disk.image(Survival::Seeded(seed));
    let store = open(&crashed, &Trust::Last).expect("it opens again");
    assert_eq!(found(&store).expect("it is read"), before, "at the second start");
}

#[test]
fn a_power_loss_loses_nothing() {
    let states: u64 = (0..SEEDS).map(power_losses).sum();
    println!("{states} states");
    assert!(states > 5000, "{states}");
}

fn content_of(world: &World) -> BTreeMap<u16, Content> {
    world.model.iter().map(|(vb, history)| (*vb, history.now().clone())).collect()
}

#[test]
fn a_call_that_fails_loses_nothing() {
    let effects = [Effect::IO_ERROR, Effect::DISK_FULL, Effect::Short { bytes: 30, errno: 28 }];
    let mut faults = 0;
    for (seed, for_ever) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        for nth in 1.. {
            let disk = SimDisk::new();
            let mut world = World::new(disk.clone(), SplitMix64::new(seed));
            let effect = effects[(nth % 3) as usize];
            disk.plan(Fault { on: On::Any, nth, for_ever, effect });
            for _ in 0..20 {
                let failed = world.change().is_err();
                world.is_in_doubt |= failed;
                let is_over = failed && (for_ever || world.store.is_none());
                if is_over {
                    break;
                }
            }
            if !disk.was_struck() {
                break;
            }
            faults += 1;
            let at = disk.changes();
            for survival in [Survival::Synced, Survival::Everything, Survival::Seeded(nth)] {
                let opened = open_on(&disk.image(survival), &world, at);
                opened.unwrap_or_else(|wrong| panic!("seed {seed}, call {nth}, {survival:?}: {wrong}"));
            }
            disk.heal();
            world.store = None;
            let store = open_on(&disk, &world, at);
            let store = store.unwrap_or_else(|wrong| panic!("seed {seed}, call {nth}, healed: {wrong}"));
            let found_again = found(&store).expect("it was read");
            world.adopt(store, found_again);
            for _ in 0..5 {
                world.commit().expect("the disk works again");
                world.store().step().expect("the disk works again");
            }
            world.check_all().unwrap_or_else(|wrong| panic!("seed {seed}, call {nth}, on: {wrong}"));
            world.reopen(Open::Last).expect("it opens");
            let again = found(world.store()).expect("it is read");
            assert_eq!(again, content_of(&world), "seed {seed}, call {nth}");
        }
    }
    println!("{faults} faults");
}
