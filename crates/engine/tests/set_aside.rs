//! A vBucket whose file cannot be believed: what it is told to be, and how its files are set aside for another copy.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::{Disk, Env, OpenMode, SimHandles};
use base::{VbId, VbState};
use common::stores::{files, journaled, open};
use common::{VB, World};
use engine::{CompactOutcome, CompactRequest, Progress, Refusal};
use kvstore::KvStore;

type Store = fn(&Env) -> Arc<dyn KvStore>;

const QUARANTINE: &str = "/data/quarantine/1-0-test-vbucket";

fn start(env: &Env, handles: &SimHandles, store: Store) -> World {
    open(env.clone(), handles.clone(), store, |config| config.needs_topology = true)
}

fn files_of(disk: &dyn Disk, folder: &str, vb: VbId) -> Vec<PathBuf> {
    let names = disk.read_dir(Path::new(folder)).unwrap_or_default();
    let of = names.into_iter().filter(|name| name.starts_with(&format!("{vb}.couch.")));
    of.map(|name| Path::new(folder).join(name)).collect()
}

/// A bucket that was closed with documents, and whose file of a vBucket was damaged since, or is gone.
fn damaged(env: &Env, handles: &SimHandles, store: Store, is_gone: bool) -> World {
    let world = start(env, handles, store);
    (0..20).for_each(|i| drop(world.set(&format!("k{i}"), "old").expect("there is room")));
    while world.bucket.flushing().flush_step() != Progress::Idle {}
    handles.clock.advance(Duration::from_secs(20));
    while world.bucket.flushing().file_step() != Progress::Idle {}
    world.bucket.close().expect("a clean stop");
    drop(world);
    let path = files_of(&*env.disk, "/data/test", VB).pop().expect("it has a file");
    if is_gone {
        env.disk.create_dir_all_synced(Path::new(QUARANTINE)).expect("a folder");
        let to = Path::new(QUARANTINE).join(path.file_name().expect("a name"));
        env.disk.rename(&path, &to).expect("the disk works");
        env.disk.sync_dir(Path::new("/data/test")).expect("the disk works");
    } else {
        let file = env.disk.open(&path, OpenMode::ReadWrite).expect("it is there");
        let len = file.len().expect("the disk works") as usize;
        file.write_at(&vec![0xee; len], 0).expect("the disk works");
        file.sync_data().expect("the disk works");
    }
    start(env, handles, store)
}

fn is_set_aside(store: Store, is_gone: bool) {
    let (env, handles) = Env::sim(1);
    let world = damaged(&env, &handles, store, is_gone);
    assert_eq!(world.bucket.damaged(), [VB]);
    let role = |role| world.bucket.roles().set_vbucket_state(VB, role, None);
    for other in [VbState::Active, VbState::Replica, VbState::Pending] {
        assert_eq!(role(other), Err(Refusal::Unreadable), "it does not begin with nothing");
    }
    let sound = VbId(VB.0 ^ 1);
    assert!(matches!(world.bucket.roles().set_aside(sound, Path::new(QUARANTINE)), Err(Refusal::Invalid)));
    world
        .bucket
        .roles()
        .set_aside(VB, Path::new(QUARANTINE))
        .expect("it is damaged")
        .expect("the disk works");
    assert!(world.bucket.damaged().is_empty() && world.bucket.standing(VB).is_none());
    assert_eq!(files_of(&*env.disk, QUARANTINE, VB).len(), 1, "the file is kept");
    // Before it has a copy again, and after.
    world.bucket.close().expect("a clean stop");
    drop(world);
    let world = start(&env, &handles, store);
    assert!(world.bucket.damaged().is_empty() && world.bucket.standing(VB).is_none());
    world.bucket.roles().set_vbucket_state(VB, VbState::Active, None).expect("it begins");
    assert!(world.get("k0").is_err(), "with nothing");
    world.set("k0", "new").expect("there is room");
    world.bucket.close().expect("a clean stop");
    drop(world);
    let world = start(&env, &handles, store);
    assert!(world.bucket.unreadable().is_empty());
    assert!(world.get("k0").is_ok() && world.get("k1").is_err());
}

/// A bucket that serves, and whose file of a vBucket is damaged meanwhile.
fn damaged_while_served(env: &Env, handles: &SimHandles, store: Store) -> World {
    let world = start(env, handles, store);
    (0..20).for_each(|i| drop(world.set(&format!("k{i}"), "old").expect("there is room")));
    while world.bucket.flushing().flush_step() != Progress::Idle {}
    handles.clock.advance(Duration::from_secs(20));
    while world.bucket.flushing().file_step() != Progress::Idle {}
    let path = files_of(&*env.disk, "/data/test", VB).pop().expect("it has a file");
    let file = env.disk.open(&path, OpenMode::ReadWrite).expect("it is there");
    let len = file.len().expect("the disk works") as usize;
    file.write_at(&vec![0xee; len], 0).expect("the disk works");
    world
}

fn compact(world: &World) -> CompactOutcome {
    let waiting =
        world.bucket.compaction().compact(VB, CompactRequest::default()).expect("none is under way");
    world.bucket.compaction().compact_step();
    waiting.try_take().expect("it was done")
}

fn is_found_while_served(store: Store) {
    let (env, handles) = Env::sim(1);
    let world = damaged_while_served(&env, &handles, store);
    assert!(world.bucket.damaged().is_empty(), "nobody has looked");
    assert_eq!(compact(&world), CompactOutcome::Failed);
    assert_eq!(world.bucket.damaged(), [VB]);
    assert!(world.bucket.unreadable().is_empty() && !world.bucket.is_unreadable(VB), "it is served");
    assert!(world.get("k0").is_ok());
    world.set("k0", "new").expect("it is served");
    // It is given up for another copy, and its files are kept elsewhere.
    let role = |role| world.bucket.roles().set_vbucket_state(VB, role, None).expect("something is in memory");
    role(VbState::Replica);
    assert!(
        matches!(world.bucket.roles().set_aside(VB, Path::new(QUARANTINE)), Err(Refusal::Invalid)),
        "it is in use"
    );
    role(VbState::Dead);
    world
        .bucket
        .roles()
        .set_aside(VB, Path::new(QUARANTINE))
        .expect("it is damaged")
        .expect("the disk works");
    assert!(world.bucket.damaged().is_empty() && world.bucket.standing(VB).is_none());
    assert_eq!(files_of(&*env.disk, QUARANTINE, VB).len(), 1, "the file is kept");
    role(VbState::Replica);
    world.bucket.close().expect("a clean stop");
    drop(world);
    let world = start(&env, &handles, store);
    assert!(world.bucket.unreadable().is_empty() && world.bucket.damaged().is_empty());
}

/// A save, or filing behind the journal, finds the damage, while another vBucket is saved.
fn is_found_by_a_save(store: Store) {
    let (env, handles) = Env::sim(1);
    let world = damaged_while_served(&env, &handles, store);
    world.set("k0", "new").expect("it is served");
    let other = VbId(VB.0 ^ 1);
    world.bucket.roles().set_vbucket_state(other, VbState::Active, None).expect("it is made");
    world.bucket.flushing().flush_step();
    handles.clock.advance(Duration::from_secs(20));
    world.bucket.flushing().file_step();
    assert_eq!(world.bucket.damaged(), [VB]);
    assert!(!world.bucket.is_unreadable(VB), "it is served");
    for role in [VbState::Replica, VbState::Dead] {
        world.bucket.roles().set_vbucket_state(VB, role, None).expect("something is in memory");
    }
    world
        .bucket
        .roles()
        .set_aside(VB, Path::new(QUARANTINE))
        .expect("it is damaged")
        .expect("the disk works");
    handles.clock.advance(Duration::from_secs(20));
    world.bucket.flushing().file_step();
    assert!(world.bucket.damaged().is_empty(), "nothing of it is filed any more");
    assert!(world.bucket.close().is_ok());
}

#[test]
fn damage_that_saves_find_is_told_of() {
    is_found_by_a_save(files);
    is_found_by_a_save(journaled);
}

#[test]
fn damage_is_told_of_while_the_vbucket_is_served() {
    is_found_while_served(files);
    is_found_while_served(journaled);
}

#[test]
fn damaged_files_are_kept_elsewhere() {
    is_set_aside(files, false);
    is_set_aside(journaled, false);
}

#[test]
fn files_that_were_moved_before_a_crash_are_damage_like_before() {
    is_set_aside(files, true);
    is_set_aside(journaled, true);
}
