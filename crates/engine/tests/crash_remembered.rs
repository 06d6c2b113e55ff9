//! A crash is remembered for a vBucket that could not be read in the start after it, through clean stops, until it is
//! read: then it begins a new history, so that no seqno is given to two changes under one UUID.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::{Disk, Env, OpenMode, SimHandles};
use base::{VbId, VbState, VbUuid};
use common::stores::{files, journaled, open};
use common::{VB, World};
use kvstore::KvStore;

type Store = fn(&Env) -> Arc<dyn KvStore>;

fn start(env: &Env, handles: &SimHandles, store: Store) -> World {
    open(env.clone(), handles.clone(), store, |_| {})
}

fn flush(world: &World) {
    while world.bucket.flushing().flush_step() != engine::Progress::Idle {}
    // what is behind a journal is filed once nothing is saved for a while
    world.handles.clock.advance(Duration::from_secs(20));
    while world.bucket.flushing().file_step() != engine::Progress::Idle {}
}

fn file_of(disk: &dyn Disk, vb: VbId) -> PathBuf {
    let names = disk.read_dir(Path::new("/data/test")).expect("the disk works");
    let name = names.into_iter().find(|name| name.starts_with(&format!("{vb}.couch."))).expect("it has one");
    Path::new("/data/test").join(name)
}

/// Puts other bytes in the place of a file's; returns what it held.
fn exchange(disk: &dyn Disk, vb: VbId, bytes: Option<Vec<u8>>) -> Vec<u8> {
    let file = disk.open(&file_of(disk, vb), OpenMode::ReadWrite).expect("it is there");
    let mut before = vec![0; file.len().expect("the disk works") as usize];
    assert_eq!(file.read_at(&mut before, 0).expect("the disk works"), before.len());
    let bytes = bytes.unwrap_or_else(|| vec![0xee; before.len()]);
    file.set_len(bytes.len() as u64).expect("the disk works");
    file.write_at(&bytes, 0).expect("the disk works");
    file.sync_data().expect("the disk works");
    before
}

fn uuid(world: &World) -> VbUuid {
    world.bucket.with_vbucket(VB, |vb| vb.uuid()).expect("it has this many")
}

fn state(world: &World) -> VbState {
    world.bucket.with_vbucket(VB, |vb| vb.state()).expect("it has this many")
}

fn remembered(store: Store) {
    let (env, handles) = Env::sim(1);
    let world = start(&env, &handles, store);
    (0..20).for_each(|i| drop(world.set(&format!("k{i}"), "before the crash").expect("there is room")));
    flush(&world);
    let seen = uuid(&world);
    // changes that only memory has, and that somebody may have seen
    (20..30).for_each(|i| drop(world.set(&format!("k{i}"), "lost with the crash").expect("there is room")));
    drop(world);

    let sound = exchange(&*env.disk, VB, None);
    for stop in 0..2 {
        let world = start(&env, &handles, store);
        assert_eq!(state(&world), VbState::Dead, "stop {stop}");
        world.bucket.close().expect("what can be saved is saved");
        drop(world);
    }
    exchange(&*env.disk, VB, Some(sound));
    let world = start(&env, &handles, store);
    assert_eq!(state(&world), VbState::Active);
    assert_ne!(uuid(&world), seen, "the crash is forgotten");
    (0..20).for_each(|i| assert_eq!(world.get(&format!("k{i}")), Ok("before the crash".to_owned())));
    world.bucket.close().expect("the disk works");
    let after = uuid(&world);
    drop(world);
    let world = start(&env, &handles, store);
    assert_eq!(uuid(&world), after, "once it is read and saved the crash is over");
}

#[test]
fn in_files() {
    remembered(files);
}

#[test]
fn behind_a_journal() {
    remembered(journaled);
}
