//! A file is that of another bucket with the same keys and lengths, or that of a copy of the folder that went on by itself.

use std::path::{Path, PathBuf};

use base::env::sim::SplitMix64;

use super::damage::{Class, Damage, Kind, generation};
use super::world::{Contents, End, World};

/// Which files of others there are for a world that `rng` decided, in an order that it decides.
pub fn all(world: &World, built_with: &SplitMix64, rng: &mut SplitMix64) -> Vec<Damage> {
    let twin = World::twin(world.keeper, &mut built_with.clone());
    let branch = world.branch(rng);
    let mut all: Vec<Damage> = differing(world, &twin, Kind::OfAnother).collect();
    all.extend(differing(world, &branch, Kind::OfBranch));
    for at in (1..all.len()).rev() {
        all.swap(at, rng.below(at as u64 + 1) as usize);
    }
    all
}

/// Files of the store that are other ones there.
fn differing<'a>(world: &'a World, there: &'a Contents, kind: Kind) -> impl Iterator<Item = Damage> + 'a {
    // After a crash nothing vouches for the last header of a couchstore file but where it is.
    let is_unvouched =
        move |class| class == Class::Documents && kind == Kind::OfBranch && world.end == End::Killed;
    let is_other = move |(path, bytes): &(&PathBuf, &Vec<u8>)| {
        let class = Class::of(path);
        // Nothing names a segment that is begun behind the last one, or after a stop: a start reads it. If the oldest is
        // missing, a save that began in it is.
        let is_end = class == Class::Segment && !is_inside(world, path);
        let is_tried = class.is_of_store() && !is_unvouched(class) && !is_end;
        is_tried && world.files.get(*path) != Some(*bytes)
    };
    let of_one =
        move |(path, bytes): (&PathBuf, &Vec<u8>)| Damage::of_one(kind, path, place(world, path), bytes);
    there.iter().filter(is_other).map(of_one)
}

/// Whether a segment has others of its journal before and behind it, or is the last one.
fn is_inside(world: &World, path: &Path) -> bool {
    let oldest = world.files.keys().filter_map(|path| generation(path)).min();
    world.files.contains_key(path) && generation(path) > oldest
}

fn place(world: &World, path: &Path) -> String {
    if world.files.contains_key(path) { "all of it" } else { "beside the others" }.to_owned()
}
