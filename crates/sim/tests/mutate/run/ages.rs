//! Both copies of a bucket's catalog, or all small files of its folder, are as they were some time before: each is whole,
//! and they fit each other.

use std::path::PathBuf;

use base::env::sim::SplitMix64;

use super::damage::{Changes, Class, Damage, Kind};
use super::world::{Contents, World};

/// What can be put back of one world, in an order that `rng` decides.
pub fn all(world: &World, rng: &mut SplitMix64) -> Vec<Damage> {
    let mut all: Vec<Damage> = Vec::new();
    for (at, older) in world.older.iter().enumerate() {
        let place = format!("{} of {} older ones", at + 1, world.older.len());
        let catalogs = changed(world, older, |class| class == Class::Catalog);
        all.extend(Damage::of_many(Kind::BothStale, Class::Catalog, place.clone(), catalogs));
        let mut small = changed(world, older, |class| !class.is_of_store());
        small.extend(gone(world, older));
        all.extend(Damage::of_many(Kind::SmallStale, Class::Small, place, small));
    }
    for at in (1..all.len()).rev() {
        all.swap(at, rng.below(at as u64 + 1) as usize);
    }
    all
}

/// The older files of some classes that are other than the newer ones.
fn changed(world: &World, older: &Contents, is_one: impl Fn(Class) -> bool) -> Changes {
    let is_changed = |(path, bytes): &(&PathBuf, &Vec<u8>)| {
        is_one(Class::of(path)) && world.files.get(*path) != Some(*bytes)
    };
    older.iter().filter(is_changed).map(|(path, bytes)| (path.clone(), Some(bytes.clone()))).collect()
}

/// Small files that were not there.
fn gone(world: &World, older: &Contents) -> Changes {
    let is_new = |path: &&PathBuf| !Class::of(path).is_of_store() && !older.contains_key(*path);
    world.files.keys().filter(is_new).map(|path| (path.clone(), None)).collect()
}
