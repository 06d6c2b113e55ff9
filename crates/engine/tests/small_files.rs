//! The small files of a bucket's folder: a changed bit is never believed, and a disk that refuses is no first start.

mod common;
#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::sim::{Call, Effect, Fault, On, SimDisk, Survival};
use base::env::{Disk, Env, OpenMode, SimHandles};
use base::{CollectionId, DocKey, ScopeId};
use common::stores::{files, journaled, open};
use common::{VB, World};
use engine::{Bucket, BucketConfig, BucketKind, NextIds, small_file_faults};
use kvstore::Nothing;
use vbucket::{Collection, Manifest, ManifestUid, Scope};

const DIR: &str = "/data/test";

fn start(env: &Env, handles: &SimHandles) -> World {
    open(env.clone(), handles.clone(), journaled, |_| {})
}

fn try_start(env: &Env) -> Result<Bucket, engine::Failure> {
    let mut config = BucketConfig::new("test", DIR.into());
    config.vbuckets = 8;
    Bucket::open(config, env.clone(), files(env))
}

fn scope(id: u32, name: &str) -> Scope {
    Scope { id: ScopeId(id), name: name.to_owned() }
}

fn collection(id: u32, name: &str) -> Collection {
    let (id, scope, name) = (CollectionId(id), ScopeId(8), name.to_owned());
    Collection { id, scope, name, max_ttl_s: Some(7), history: None }
}

/// A bucket with collections 8 and 10, closed; 9 was dropped.
fn write() -> (Env, SimHandles, Manifest) {
    let (env, handles) = Env::sim(1);
    let world = start(&env, &handles);
    let default = Manifest::default();
    let scopes: Vec<Scope> = default.scopes().cloned().chain([scope(8, "s")]).collect();
    let with = |uid, more: &[Collection]| {
        let all = default.collections().cloned().chain(more.iter().cloned());
        Manifest::new(ManifestUid(uid), scopes.clone(), all).expect("a valid manifest")
    };
    let all = [collection(8, "a"), collection(9, "b"), collection(10, "c")];
    world.bucket.collections().set_manifest(with(3, &all)).expect("taken");
    let last = with(4, &[all[0].clone(), all[2].clone()]);
    world.bucket.collections().set_manifest(last.clone()).expect("taken");
    let key = DocKey { collection: CollectionId(8), key: b"k" };
    world.bucket.documents().store(VB, &common::set(key, "v"), world.now()).expect("there is room");
    world.bucket.close().expect("the disk works");
    (env, handles, last)
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn bytes_of(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("the disk works") as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("the disk works"), bytes.len());
    bytes
}

fn put(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Create).expect("a file");
    file.set_len(bytes.len() as u64).expect("the disk works");
    file.write_at(bytes, 0).expect("the disk works");
}

/// Other bytes in the place of a file's.
fn rot(disk: &dyn Disk, name: &str) {
    let path = path(name);
    let len = bytes_of(disk, &path).len();
    put(disk, &path, &vec![0xee; len]);
}

fn document(world: &World) -> Option<Vec<u8>> {
    let key = DocKey { collection: CollectionId(8), key: b"k" };
    Some(world.bucket.documents().get(VB, key, world.now()).ok()?.version.value().to_vec())
}

#[test]
fn one_damaged_file_changes_nothing_and_is_mended() {
    for name in ["manifest.json", "manifest.json.copy", "uuid", "uuid.copy"] {
        let (env, handles, manifest) = write();
        let uuid = start(&env, &handles).bucket;
        uuid.close().expect("the disk works");
        rot(&*env.disk, name);
        assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()).len(), 1, "{name}");
        let world = start(&env, &handles);
        assert_eq!(*world.bucket.collections().manifest(), manifest, "{name}");
        assert_eq!(world.bucket.uuid(), uuid.uuid(), "{name}");
        assert_eq!(world.bucket.collections().next_ids().collection, CollectionId(11), "{name}");
        assert_eq!(document(&world).as_deref(), Some(&b"v"[..]), "{name}");
        assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()), [], "{name}");
    }
}

#[test]
fn a_lost_manifest_is_what_the_vbuckets_have_stored() {
    let remove = |disk: &dyn Disk, name: &str| disk.remove_file(&path(name)).expect("it is there");
    for lose in [rot, remove] {
        let (env, handles, manifest) = write();
        lose(&*env.disk, "manifest.json");
        lose(&*env.disk, "manifest.json.copy");
        let world = start(&env, &handles);
        assert_eq!(*world.bucket.collections().manifest(), manifest);
        assert_eq!(document(&world).as_deref(), Some(&b"v"[..]));
        let NextIds { scope, collection } = world.bucket.collections().next_ids();
        assert!(collection > CollectionId(1 << 16) && scope > ScopeId(1 << 16), "no id is used twice");
        world.bucket.close().expect("the disk works");
        assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()), []);
    }
}

#[test]
fn an_older_manifest_gives_no_id_a_second_time() {
    let (env, handles, manifest) = write();
    let names = ["manifest.json", "manifest.json.copy"];
    let older = names.map(|name| bytes_of(&*env.disk, &path(name)));
    let world = start(&env, &handles);
    let made = world.bucket.collections().next_ids().collection;
    let with_one_more = manifest.collections().cloned().chain([collection(made.0, "d")]);
    let newer = Manifest::new(ManifestUid(5), manifest.scopes().cloned(), with_one_more).expect("valid");
    world.bucket.collections().set_manifest(newer).expect("taken");
    world.bucket.close().expect("the disk works");
    for (name, bytes) in names.iter().zip(&older) {
        put(&*env.disk, &path(name), bytes);
    }
    // A node alone has written the file before any vBucket learnt of the change.
    let world = start(&env, &handles);
    assert_eq!(world.bucket.collections().manifest().uid(), ManifestUid(5), "that of the vBuckets");
    assert!(
        world.bucket.collections().next_ids().collection > made,
        "{:?}",
        world.bucket.collections().next_ids()
    );
}

/// Both files are put back from a backup, on a node of a cluster.
#[test]
fn a_member_uses_no_manifest_that_is_older_than_its_vbuckets() {
    let (env, handles, manifest) = write();
    let names = ["manifest.json", "manifest.json.copy"];
    let older = names.map(|name| bytes_of(&*env.disk, &path(name)));
    let world = start(&env, &handles);
    let made = world.bucket.collections().next_ids().collection;
    let with = |uid, more: &[Collection]| {
        let all = manifest.collections().cloned().chain(more.iter().cloned());
        Manifest::new(ManifestUid(uid), manifest.scopes().cloned(), all).expect("a valid manifest")
    };
    let newer = with(5, &[collection(made.0, "d")]);
    world.bucket.collections().set_manifest(newer.clone()).expect("taken");
    let key = DocKey { collection: made, key: b"new" };
    world.bucket.documents().store(VB, &common::set(key, "v"), world.now()).expect("there is room");
    world.bucket.close().expect("the disk works");
    let put_back = || names.iter().zip(&older).for_each(|(name, bytes)| put(&*env.disk, &path(name), bytes));
    let start_member =
        || open(env.clone(), handles.clone(), journaled, |config| config.needs_topology = true);
    let new = |world: &World| {
        world.bucket.documents().get(VB, key, world.now()).map(|found| found.version.value().to_vec())
    };
    put_back();
    let world = start_member();
    assert_eq!(*world.bucket.collections().manifest(), newer, "that of the vBuckets");
    assert!(
        world.bucket.collections().next_ids().collection > made,
        "{:?}",
        world.bucket.collections().next_ids()
    );
    // The cluster's manifest is the same one, and then the next one, which keeps the collection.
    world.bucket.collections().set_manifest(newer.clone()).expect("it is no change");
    world
        .bucket
        .collections()
        .set_manifest(with(6, &[collection(made.0, "d"), collection(made.0 + 1, "e")]))
        .expect("taken");
    assert_eq!(new(&world).as_deref(), Ok(&b"v"[..]));
    world.bucket.close().expect("the disk works");
    let world = start_member();
    assert_eq!(world.bucket.collections().manifest().uid(), ManifestUid(6));
    assert_eq!(new(&world).as_deref(), Ok(&b"v"[..]));
}

#[test]
fn a_lost_manifest_that_no_vbucket_has_keeps_the_bucket_down() {
    let (env, _) = Env::sim(1);
    drop(try_start(&env).expect("a new bucket"));
    put(&*env.disk, &path("manifest.json"), b"{");
    let failure = try_start(&env).map(drop).expect_err("nothing says which collections there are");
    assert!(failure.to_string().contains("manifest.json cannot be used"), "{failure}");
}

#[test]
fn a_manifest_without_checksum_is_compared_with_the_vbuckets() {
    let (env, handles, manifest) = write();
    let bytes = bytes_of(&*env.disk, &path("manifest.json"));
    let content = bytes.split(|byte| *byte == b'\n').nth(1).expect("the line behind the header");
    env.disk.remove_file(&path("manifest.json.copy")).expect("it is there");
    let text = std::str::from_utf8(content).expect("it is text");
    // One bit of an id, and of a name; and as it was.
    for changed in
        [text.replace("\"uid\":\"8\"", "\"uid\":\"9\""), text.replace("\"a\"", "\"q\""), text.to_owned()]
    {
        put(&*env.disk, &path("manifest.json"), changed.as_bytes());
        let world = start(&env, &handles);
        assert_eq!(*world.bucket.collections().manifest(), manifest, "{changed}");
        assert_eq!(document(&world).as_deref(), Some(&b"v"[..]));
        world.bucket.close().expect("the disk works");
        assert!(bytes_of(&*env.disk, &path("manifest.json")).starts_with(b"stave-file 1 "));
        env.disk.remove_file(&path("manifest.json.copy")).expect("it was written again");
    }
}

#[test]
fn a_disk_that_refuses_the_identity_is_no_first_start() {
    let (env, handles, _) = write();
    let before = start(&env, &handles);
    before.bucket.close().expect("the disk works");
    let refuse = || handles.disk.plan(Fault::for_ever(On::Kind(Call::Open), 1, Effect::IO_ERROR));
    let config = || {
        let mut config = BucketConfig::new("test", DIR.into());
        config.vbuckets = 8;
        config
    };
    let store = journaled(&env);
    refuse();
    assert!(Bucket::open(config(), env.clone(), store.clone()).is_err(), "it is there, and cannot be read");
    handles.disk.heal();
    let after = Bucket::open(config(), env.clone(), store).expect("the disk works");
    assert_eq!(after.uuid(), before.bucket.uuid());
}

#[test]
fn a_lost_identity_is_replaced_and_histories_begin_anew() {
    let (env, handles, manifest) = write();
    let before = start(&env, &handles);
    let history = |world: &World| world.bucket.with_vbucket(VB, |vb| vb.uuid());
    let (uuid, old) = (before.bucket.uuid().to_owned(), history(&before));
    before.bucket.close().expect("the disk works");
    rot(&*env.disk, "uuid");
    rot(&*env.disk, "uuid.copy");
    let world = start(&env, &handles);
    assert_ne!(world.bucket.uuid(), uuid);
    assert_ne!(history(&world), old);
    assert_eq!(*world.bucket.collections().manifest(), manifest);
    world.bucket.close().expect("the disk works");
    assert_eq!(
        *start(&env, &handles).bucket.collections().manifest(),
        manifest,
        "it belongs to the new identity now"
    );
}

/// An ephemeral bucket's manifest is in its file alone.
#[test]
fn a_start_that_ends_while_it_replaces_the_identity_keeps_the_manifest() {
    let starts = std::cell::Cell::new(0);
    let start_on = |disk: &SimDisk| {
        // Each start makes another identity if it has to make one.
        starts.set(starts.get() + 1);
        let mut config = BucketConfig::new("test", DIR.into());
        (config.vbuckets, config.kind) = (8, BucketKind::Ephemeral);
        let env = SimHandles::new(starts.get()).with_disk(disk.clone()).env();
        Bucket::open(config, env, Arc::new(Nothing))
    };
    let disk = SimDisk::new();
    let bucket = start_on(&disk).expect("the disk works");
    let default = Manifest::default();
    let scopes = default.scopes().cloned().chain([scope(8, "s")]);
    let all = default.collections().cloned().chain([collection(8, "a")]);
    let manifest = Manifest::new(ManifestUid(3), scopes, all).expect("a valid manifest");
    bucket.collections().set_manifest(manifest.clone()).expect("taken");
    bucket.close().expect("the disk works");
    rot(&disk, "uuid");
    rot(&disk, "uuid.copy");
    let changes = |fault: Option<Fault>| {
        let disk = disk.image(Survival::Everything);
        fault.into_iter().for_each(|fault| disk.plan(fault));
        let started = start_on(&disk);
        disk.heal();
        (disk.changes(), disk, started)
    };
    let (all, ..) = changes(None);
    assert!(all > 4, "the identity and the manifest are written: {all} changes");
    for nth in 1..=all {
        let (_, cut, _) = changes(Some(Fault::power_off_at(nth)));
        let (_, refused, _) = changes(Some(Fault::for_ever(On::Changes, nth, Effect::IO_ERROR)));
        let after = [cut.image(Survival::Everything), cut.image(Survival::Synced), refused];
        for disk in after {
            let again = start_on(&disk).unwrap_or_else(|failure| panic!("change {nth} of {all}: {failure}"));
            assert_eq!(*again.collections().manifest(), manifest, "change {nth} of {all}");
        }
    }
}

/// The files of a bucket's folder, and what they hold.
fn folder(handles: &SimHandles) -> Vec<(PathBuf, Vec<u8>)> {
    handles.disk.contents().into_iter().filter(|(path, _)| path.starts_with(DIR)).collect()
}

fn put_back(env: &Env, older: &[(PathBuf, Vec<u8>)], name: &str) {
    for (path, bytes) in older.iter().filter(|(path, _)| path.ends_with(name)) {
        put(&*env.disk, path, bytes);
    }
}

/// Nothing has reached the journal since the start, so that the catalog is still that of the clean stop.
#[test]
fn an_older_mark_that_is_put_back_after_a_crash_is_not_believed() {
    for store in [journaled, files] {
        let (env, handles, _) = write();
        let start = || open(env.clone(), handles.clone(), store, |_| {});
        let history = |world: &World| world.bucket.with_vbucket(VB, |vb| vb.uuid());
        start().bucket.close().expect("the disk works");
        let older = folder(&handles);
        let world = start();
        let before = history(&world);
        // A reader may see this change, and only memory has it.
        world.set("k", "lost with the crash").expect("there is room");
        drop(world);
        put_back(&env, &older, "clean");
        assert_ne!(history(&start()), before, "a seqno is given to two changes");
    }
}

/// The newest manifest is in its file alone: no vBucket has stored it.
#[test]
fn an_older_manifest_is_told_although_no_vbucket_has_stored_the_newer_one() {
    for kind in [BucketKind::Persistent, BucketKind::Ephemeral] {
        let (env, _) = Env::sim(1);
        let start = |is_member| {
            let mut config = BucketConfig::new("test", DIR.into());
            (config.vbuckets, config.kind, config.needs_topology) = (8, kind, is_member);
            let store = if kind == BucketKind::Ephemeral { Arc::new(Nothing) } else { files(&env) };
            Bucket::open(config, env.clone(), store)
        };
        let names = ["manifest.json", "manifest.json.copy"];
        let bucket = start(false).expect("the disk works");
        let scopes = Manifest::default().scopes().cloned().chain([scope(8, "s")]).collect::<Vec<_>>();
        let with = |uid, more: &[Collection]| {
            let all =
                Manifest::default().collections().cloned().chain(more.iter().cloned()).collect::<Vec<_>>();
            Manifest::new(ManifestUid(uid), scopes.iter().cloned(), all).expect("a valid manifest")
        };
        bucket.collections().set_manifest(with(3, &[collection(8, "a")])).expect("taken");
        let older = names.map(|name| bytes_of(&*env.disk, &path(name)));
        bucket.collections().set_manifest(with(4, &[collection(8, "a"), collection(9, "b")])).expect("taken");
        // A crash: no vBucket has saved anything.
        drop(bucket);
        names.iter().zip(&older).for_each(|(name, bytes)| put(&*env.disk, &path(name), bytes));
        assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()).len(), 1);

        let member = start(true).expect("it opens");
        assert_eq!(member.collections().manifest().uid(), ManifestUid(3), "the cluster has the newer one");
        assert!(member.collections().next_ids().collection > CollectionId(9));
        let newer = with(4, &[collection(8, "a"), collection(9, "b")]);
        member.collections().set_manifest(newer).expect("that of the cluster");
        drop(member);
        names.iter().zip(&older).for_each(|(name, bytes)| put(&*env.disk, &path(name), bytes));

        let bucket = start(false).expect("it opens");
        let manifest = bucket.collections().manifest();
        assert!(manifest.uid() > ManifestUid(4), "no client has seen {}", manifest.uid());
        assert!(manifest.collection(CollectionId(8)).is_some(), "no collection is erased");
        assert!(bucket.collections().next_ids().collection > CollectionId(9), "no id is used twice");
        drop(bucket);
        assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()), []);
    }
}

#[test]
fn a_lost_manifest_that_only_the_starts_know_keeps_the_bucket_down() {
    let (env, handles) = Env::sim(1);
    let config = || {
        let mut config = BucketConfig::new("test", DIR.into());
        (config.vbuckets, config.kind) = (8, BucketKind::Ephemeral);
        config
    };
    let bucket = Bucket::open(config(), env.clone(), Arc::new(Nothing)).expect("a new bucket");
    let default = Manifest::default();
    let scopes = default.scopes().cloned().chain([scope(8, "s")]);
    let manifest =
        Manifest::new(ManifestUid(3), scopes, default.collections().cloned()).expect("a valid manifest");
    bucket.collections().set_manifest(manifest.clone()).expect("taken");
    bucket.close().expect("the disk works");
    let whole = folder(&handles);
    for name in ["manifest.json", "manifest.json.copy"] {
        env.disk.remove_file(&path(name)).expect("it is there");
    }
    let failure = Bucket::open(config(), env.clone(), Arc::new(Nothing)).map(drop);
    let failure = failure.expect_err("nothing says which collections there are");
    assert!(failure.is_damage() && failure.to_string().contains("manifest.json cannot be used"), "{failure}");
    put_back(&env, &whole, "manifest.json");
    let again = Bucket::open(config(), env.clone(), Arc::new(Nothing)).expect("it is back");
    assert_eq!(*again.collections().manifest(), manifest);
}

/// A folder of the version before has no `starts`.
#[test]
fn a_folder_without_starts_is_read_as_before() {
    let (env, handles, manifest) = write();
    let world = start(&env, &handles);
    let history = |world: &World| world.bucket.with_vbucket(VB, |vb| vb.uuid());
    let (before, uuid) = (history(&world), world.bucket.uuid().to_owned());
    world.bucket.close().expect("the disk works");
    env.disk.remove_file(&path("starts")).expect("it is there");
    let body = format!("clean 2\nbucket {uuid}\ncrashed\n");
    let text = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
    put(&*env.disk, &path("clean"), text.as_bytes());
    assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()), []);
    let world = start(&env, &handles);
    assert_eq!((history(&world), &*world.bucket.collections().manifest()), (before, &manifest));
    world.bucket.close().expect("the disk works");
    // Once this version has run, that mark is an older one.
    put(&*env.disk, &path("clean"), text.as_bytes());
    assert_ne!(history(&start(&env, &handles)), before);
}

#[test]
fn damaged_starts_are_a_crash_and_are_written_again() {
    let (env, handles, manifest) = write();
    let world = start(&env, &handles);
    let history = |world: &World| world.bucket.with_vbucket(VB, |vb| vb.uuid());
    let before = history(&world);
    world.bucket.close().expect("the disk works");
    rot(&*env.disk, "starts");
    assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()).len(), 1);
    let world = start(&env, &handles);
    assert_ne!(history(&world), before);
    assert_eq!(*world.bucket.collections().manifest(), manifest);
    assert_eq!(document(&world).as_deref(), Some(&b"v"[..]));
    assert_eq!(small_file_faults(&*env.disk, DIR.as_ref()), []);
    world.bucket.close().expect("the disk works");
    let after = history(&world);
    assert_eq!(history(&start(&env, &handles)), after, "it vouches again");
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::SmallFiles, |seed| {
        // Nothing in it depends on it.
        if seed == 0 {
            an_older_mark_that_is_put_back_after_a_crash_is_not_believed();
        }
        Ok(())
    });
}
