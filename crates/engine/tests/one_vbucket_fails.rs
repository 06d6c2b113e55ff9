//! What cannot be saved of one vBucket keeps no other one from being saved or emptied, in a stop least of all.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::sim::{Call, Effect, Fault, On};
use base::env::{Disk, Env, OpenMode};
use base::{Seqno, VbId};
use common::stores::{files, journaled, open};
use common::{World, doc, set};
use kvstore::KvStore;

const DAMAGED: VbId = VbId(0);
const SOUND: [VbId; 3] = [VbId(1), VbId(3), VbId(6)];

fn put(world: &World, vb: VbId, key: &str, value: &str) {
    world.bucket.documents().store(vb, &set(doc(key), value), world.now()).expect("there is room");
}

fn value_of(world: &World, vb: VbId, key: &str) -> Option<String> {
    let found = world.bucket.documents().get(vb, doc(key), world.now()).ok()?;
    Some(String::from_utf8_lossy(found.version.value()).into_owned())
}

fn file_of(disk: &dyn Disk, vb: VbId) -> PathBuf {
    let names = disk.read_dir(Path::new("/data/test")).expect("the disk works");
    let name = names.into_iter().find(|name| name.starts_with(&format!("{vb}.couch."))).expect("it has one");
    Path::new("/data/test").join(name)
}

fn rot(disk: &dyn Disk, vb: VbId) {
    let file = disk.open(&file_of(disk, vb), OpenMode::ReadWrite).expect("it is there");
    let len = file.len().expect("the disk works") as usize;
    file.write_at(&vec![0xee; len], 0).expect("the disk works");
    file.sync_data().expect("the disk works");
}

#[test]
fn a_stop_saves_every_vbucket_that_can_be_saved() {
    let (env, handles) = Env::sim(1);
    let world = open(env.clone(), handles.clone(), files, |_| {});
    for vb in SOUND.into_iter().chain([DAMAGED]) {
        (0..20).for_each(|i| put(&world, vb, &format!("k{i}"), "before"));
    }
    assert!(world.bucket.flushing().flush_all());
    rot(&*env.disk, DAMAGED);
    for vb in SOUND.into_iter().chain([DAMAGED]) {
        (0..20).for_each(|i| put(&world, vb, &format!("k{i}"), &format!("{vb} {i} after")));
    }
    // a client waits for it, so it goes first and alone
    let _waiting = world.bucket.durability().persisted(DAMAGED, Seqno(21)).expect("few wait");
    let failure = world.bucket.close().expect_err("one vBucket cannot be saved").to_string();
    assert!(failure.contains("could not be written"), "{failure}");
    drop(world);
    let world = open(env, handles, files, |_| {});
    for vb in SOUND {
        for i in 0..20 {
            assert_eq!(value_of(&world, vb, &format!("k{i}")), Some(format!("{vb} {i} after")));
        }
    }
}

fn a_stop_tries_again(store: fn(&Env) -> Arc<dyn KvStore>, call: Call) {
    let (env, handles) = Env::sim(1);
    let world = open(env.clone(), handles.clone(), store, |_| {});
    for vb in SOUND {
        (0..20).for_each(|i| put(&world, vb, &format!("k{i}"), &format!("{vb} {i}")));
    }
    handles.disk.plan(Fault::once(On::Kind(call), 1, Effect::IO_ERROR));
    world.bucket.close().expect("the disk is well again");
    drop(world);
    let world = open(env, handles, store, |_| {});
    for vb in SOUND {
        (0..20).for_each(|i| assert_eq!(value_of(&world, vb, &format!("k{i}")), Some(format!("{vb} {i}"))));
    }
}

#[test]
fn a_stop_tries_again_what_the_disk_refused_once() {
    for call in [Call::Write, Call::Sync] {
        a_stop_tries_again(files, call);
        a_stop_tries_again(journaled, call);
    }
}

#[test]
fn a_vbucket_that_cannot_be_emptied_holds_up_no_other() {
    let (env, handles) = Env::sim(1);
    let world = open(env, handles.clone(), files, |_| {});
    for vb in SOUND {
        put(&world, vb, "k", "v");
    }
    assert!(world.bucket.flushing().flush_all());
    handles.disk.plan(Fault::once(On::Kind(Call::Remove), 1, Effect::IO_ERROR));
    assert!(world.bucket.roles().remove_all_documents().is_err(), "one of them stays");
    let left = SOUND.into_iter().filter(|vb| value_of(&world, *vb, "k").is_some()).count();
    assert_eq!(left, 1);
    let second = SOUND.into_iter().find(|vb| value_of(&world, *vb, "k").is_none()).expect("one is empty");
    put(&world, second, "k", "v");
    assert!(world.bucket.flushing().flush_all());
    handles.disk.plan(Fault::for_ever(On::Kind(Call::Remove), 1, Effect::IO_ERROR));
    let failure = world.bucket.roles().remove_all_documents().expect_err("both stay").to_string();
    assert!(SOUND.into_iter().filter(|vb| value_of(&world, *vb, "k").is_some()).count() >= 2);
    assert!(failure.contains("; "), "each is told: {failure}");
    handles.disk.heal();
    world.bucket.roles().remove_all_documents().expect("the disk is well again");
    assert!(SOUND.into_iter().all(|vb| value_of(&world, vb, "k").is_none()));
}

#[test]
fn what_is_given_up_leaves_each_vbucket_empty_or_whole() {
    let (env, handles) = Env::sim(1);
    let world = open(env.clone(), handles.clone(), journaled, |_| {});
    for vb in SOUND {
        put(&world, vb, "k", "v");
    }
    assert!(world.bucket.flushing().flush_all());
    let mut left = 3;
    let given_up = world.bucket.roles().remove_documents_while(|| {
        left -= 1;
        left >= 0
    });
    let failure = given_up.expect_err("it was not done for all").to_string();
    assert!(failure.contains("3 of ") && failure.contains("remove them again"), "{failure}");
    let values = |world: &World| SOUND.map(|vb| value_of(world, vb, "k"));
    let whole = || Some("v".to_owned());
    assert_eq!(values(&world), [None, whole(), whole()]);
    world.bucket.close().expect("the disk works");
    drop(world);
    let world = open(env, handles, journaled, |_| {});
    assert_eq!(values(&world), [None, whole(), whole()], "that is what is on disk, too");
    world.bucket.roles().remove_documents_while(|| true).expect("the disk works");
    assert_eq!(values(&world), [None, None, None]);
}
