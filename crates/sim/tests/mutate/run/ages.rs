//! Both copies of a bucket's catalog are as they were some time before: each is whole, and they fit each other.

use base::env::sim::SplitMix64;

use super::damage::{Changes, Class, Damage, Kind};
use super::world::{Contents, World};

/// What can be put back of one world, in an order that `rng` decides.
pub fn all(world: &World, rng: &mut SplitMix64) -> Vec<Damage> {
    let mut all: Vec<Damage> = Vec::new();
    for (at, older) in world.older.iter().enumerate() {
        let place = format!("{} of {} older ones", at + 1, world.older.len());
        all.extend(Damage::of_many(Kind::BothStale, Class::Catalog, place, catalogs(world, older)));
    }
    for at in (1..all.len()).rev() {
        all.swap(at, rng.below(at as u64 + 1) as usize);
    }
    all
}

/// The older catalogs that are other than the newer ones.
fn catalogs(world: &World, older: &Contents) -> Changes {
    let is_catalog = |path: &std::path::Path| Class::of(path) == Class::Catalog;
    let all = older.iter().filter(|(path, bytes)| is_catalog(path) && world.files.get(*path) != Some(*bytes));
    all.map(|(path, bytes)| (path.clone(), Some(bytes.clone()))).collect()
}
