//! Files as objects of a store that cuts connections, and backups in it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::VbId;
use base::env::{Disk, Env, OpenMode};

use super::disk::ObjectDisk;
use super::fake_store::{FakeStore, Trouble};
use super::lock::LockTimes;
use super::store::MOST_TRIES;
use super::{BackupPlace, NotLocked, ObjectLock};
use crate::backup::{BackupError, ChainReader, TakeOptions, Taken, Version, take};
use crate::test_server::{BUCKET, NOT_INTERRUPTED, TestServer};

const DIR: &str = "s3://b/prod";

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join("travel/20261127T003000Z").join(name)
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Writes files, one of them in parts, and reads them again.
fn write_and_read(disk: &dyn Disk, large: &[u8], small: &[u8]) -> std::io::Result<()> {
    let file = disk.open(&path("changes-00001"), OpenMode::Create)?;
    let mut at = 0;
    for part in large.chunks(30 << 10) {
        file.write_at(part, at)?;
        at += part.len() as u64;
    }
    file.sync_data()?;
    let file = disk.open(&path("vbuckets"), OpenMode::Create)?;
    file.set_len(0)?;
    file.write_at(&small[..7], 0)?;
    file.sync_data()?;
    file.write_at(&small[7..], 7)?;
    file.sync_data()?;
    let file = disk.open(&path("manifest.new"), OpenMode::Create)?;
    file.set_len(0)?;
    file.write_at(small, 0)?;
    file.sync_data()?;
    disk.rename(&path("manifest.new"), &path("manifest"))?;
    for (name, content) in [("changes-00001", large), ("vbuckets", small), ("manifest", small)] {
        let file = disk.open(&path(name), OpenMode::Read)?;
        let mut bytes = vec![0; file.len()? as usize + 9];
        let read = file.read_at(&mut bytes, 0)?;
        assert_eq!((read, file.len()?), (content.len(), content.len() as u64), "{name}");
        assert!(bytes[..read] == *content, "{name}");
        let mut some = [0; 5];
        assert_eq!(file.read_at(&mut some, 11)?, 5);
        assert_eq!(some, content[11..16]);
        assert_eq!(file.read_at(&mut some, content.len() as u64 + 3)?, 0);
    }
    Ok(())
}

#[test]
fn a_cut_or_busy_request_is_sent_again_wherever_it_happens() {
    let env = Env::real();
    let (large, small) = (noise(400 << 10, 1), noise(1000, 2));
    let fake = FakeStore::start();
    let run = || write_and_read(&ObjectDisk::new(Arc::new(fake.store(&env))), &large, &small);
    run().expect("nothing is wrong");
    let requests = std::mem::take(&mut fake.kept().requests);
    assert!(requests > 15, "{requests}");
    for at in 0..requests {
        for trouble in [Trouble::CutRequest, Trouble::CutAnswer, Trouble::Busy] {
            {
                let mut kept = fake.kept();
                (kept.requests, kept.objects) = (0, BTreeMap::new());
                kept.troubles = [(at, trouble)].into();
            }
            run().unwrap_or_else(|error| panic!("{trouble:?} at {at}: {error}"));
            assert!(fake.kept().troubles.is_empty(), "{trouble:?} at {at} came");
        }
    }
}

#[test]
fn tries_are_bounded_and_a_refusal_says_what_to_do() {
    let env = Env::real();
    let fake = FakeStore::start();
    let store = fake.store(&env);
    let small = noise(1000, 2);
    fake.kept().refuses = Some((0, 503, "SlowDown"));
    let error = store.put("k", &small, super::store::PutIf::Always).expect_err("it stays busy");
    assert!(error.to_string().contains("503 SlowDown"), "{error}");
    let tries = std::mem::take(&mut fake.kept().requests);
    assert!((1..=2 * u64::from(MOST_TRIES)).contains(&tries), "{tries}");
    for (status, code, kind, advice) in [
        (403, "SignatureDoesNotMatch", ErrorKind::PermissionDenied, "AWS_SECRET_ACCESS_KEY"),
        (403, "AccessDenied", ErrorKind::PermissionDenied, "needs to list, read, write and delete"),
        (404, "NoSuchBucket", ErrorKind::Other, "make the bucket"),
        (301, "PermanentRedirect", ErrorKind::Other, "--s3-region"),
    ] {
        fake.kept().refuses = Some((0, status, code));
        let error = store.list("prod/").expect_err(code);
        assert!(error.kind() == kind && error.to_string().contains(advice), "{error}");
    }
    fake.kept().refuses = None;
    assert_eq!(store.head("k").expect("an answer"), None);
    let disk = ObjectDisk::new(Arc::new(fake.store(&env)));
    let missing = disk.open(&path("vbuckets"), OpenMode::Read).err().expect("it is not there");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let outside = disk.open(Path::new("s3://b/prod/../x"), OpenMode::Create).err().expect("refused");
    assert_eq!(outside.kind(), ErrorKind::InvalidInput);
}

/// Objects, and those that are not complete.
fn counts(fake: &FakeStore) -> (usize, usize) {
    let kept = fake.kept();
    (kept.objects.len(), kept.uploads.len())
}

#[test]
fn what_is_not_synced_is_not_there_and_an_object_is_read_as_it_was() {
    let env = Env::real();
    let fake = FakeStore::start();
    let disk = ObjectDisk::new(Arc::new(fake.store(&env)));
    let file = disk.open(&path("changes-00001"), OpenMode::Create).expect("made");
    let mut at = 0;
    for part in noise(200 << 10, 3).chunks(30 << 10) {
        file.write_at(part, at).expect("sent");
        at += part.len() as u64;
    }
    assert_eq!(counts(&fake), (0, 1));
    assert!(file.write_at(b"x", 0).is_err(), "nothing is written over");
    drop(file);
    assert_eq!(counts(&fake), (0, 0), "it is given up");
    let file = disk.open(&path("vbuckets"), OpenMode::CreateNew).expect("made");
    file.write_at(b"first", 0).expect("kept");
    file.sync_data().expect("sent");
    let again = disk.open(&path("vbuckets"), OpenMode::CreateNew).err().expect("it is there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    let read = disk.open(&path("vbuckets"), OpenMode::Read).expect("it is there");
    fake.kept().objects.insert("prod/travel/20261127T003000Z/vbuckets".to_owned(), b"other".to_vec());
    read.read_at(&mut [0; 5], 0).expect_err("another object is in its place");
    fake.kept().page = 3;
    for at in 0..10 {
        fake.kept().objects.insert(format!("prod/travel/x{at}/y"), Vec::new());
    }
    let mut names = disk.read_dir(&Path::new(DIR).join("travel")).expect("listed");
    names.sort();
    assert_eq!((names.len(), &*names[0], &*names[10]), (11, "20261127T003000Z", "x9"), "several pages");
}

fn back_up(server: &TestServer, place: &BackupPlace) -> anyhow::Result<Taken> {
    let repository = place.repository();
    take(place.env(), &server.target(), &repository, &TakeOptions::default(), &NOT_INTERRUPTED, &mut |_| {})
}

fn documents(place: &BackupPlace) -> BTreeMap<String, String> {
    let repository = place.repository();
    let chain = repository.chain(BUCKET, None).expect("a backup");
    let mut reader = ChainReader::open(&repository, &chain).expect("sound");
    reader.verify(&mut |_| {}).expect("sound");
    let (mut all, text) = (BTreeMap::new(), |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned());
    for vb in 0..chain.newest().manifest.vbuckets {
        let visit = &mut |version: &Version<'_>| -> Result<(), BackupError> {
            if !version.record.deleted {
                all.insert(text(version.record.key.key), text(version.record.value));
            }
            Ok(())
        };
        reader.newest(VbId(vb), visit).expect("sound");
    }
    all
}

#[test]
fn a_backup_that_ends_at_any_request_is_not_one_and_goes_on() {
    let (mut server, env) = (TestServer::start(), Env::real());
    let fake = FakeStore::start();
    let place = || BackupPlace::of_store(&env, DIR, fake.store(&env));
    let mut model = BTreeMap::new();
    let mut client = server.client();
    for at in 0..200 {
        let (key, value) = (format!("k{at}"), format!("v{at}"));
        client.set(key.as_bytes(), value.as_bytes(), 0).expect("stored");
        model.insert(key, value);
    }
    back_up(&server, &place()).expect("a backup");
    let requests = fake.kept().requests;
    assert_eq!(documents(&place()), model);
    assert!(!fake.kept().objects.contains_key("prod/default/lock"), "the lock is given back");
    client.set(b"k0", b"later", 0).expect("stored");
    model.insert("k0".to_owned(), "later".to_owned());
    back_up(&server, &place()).expect("one that goes on from it");
    assert_eq!(documents(&place()), model);
    let mut complete = 0;
    for at in 0..requests {
        {
            let mut kept = fake.kept();
            kept.objects.clear();
            (kept.requests, kept.refuses) = (0, Some((at, 403, "AccessDenied")));
        }
        let taken = back_up(&server, &place());
        fake.kept().refuses = None;
        // That of a dead process is waited for elsewhere.
        fake.kept().objects.remove("prod/default/lock");
        let backups = place().repository().backups(BUCKET).expect("listed");
        // The manifest has a copy, which is written first: with it alone the backup is complete.
        assert!(backups.is_empty() || backups.iter().all(Result::is_ok) && at + 8 > requests, "at {at}");
        complete += usize::from(taken.is_ok());
        back_up(&server, &place()).expect("it goes on");
        assert_eq!(documents(&place()), model, "broken off at request {at}");
    }
    assert!(requests > 15 && complete < 5, "{requests} {complete}");
    let place = place();
    let repository = place.repository();
    for backup in repository.backups(BUCKET).expect("listed") {
        repository.remove(&backup.expect("sound").folder).expect("removed");
    }
    assert_eq!(fake.kept().objects, BTreeMap::new());
    drop(client);
    server.stop();
}

#[test]
fn one_process_at_a_time_works_on_backups_and_a_dead_one_makes_way() {
    let env = Env::real();
    let fake = FakeStore::start();
    let take_in = |times| ObjectLock::take(&fake.store(&env), "prod/lock", times);
    // Kept for 9 seconds, so that the machine may stand still for some.
    let times = LockTimes::of(Duration::from_millis(200));
    let held = take_in(times).ok().expect("it is free");
    assert!(matches!(take_in(times), Err(NotLocked::Held)) && !held.is_lost());
    drop(held);
    assert!(fake.kept().objects.is_empty());
    let take = || take_in(LockTimes::of(Duration::from_millis(50)));
    // Of a process that was killed.
    fake.kept().objects.insert("prod/lock".to_owned(), b"another 3".to_vec());
    let begun = Instant::now();
    let held = take().ok().expect("it does not change");
    assert!(begun.elapsed() >= Duration::from_secs(3));
    // Another one takes it over.
    fake.kept().objects.insert("prod/lock".to_owned(), b"another 4".to_vec());
    let until = Instant::now() + Duration::from_secs(60);
    while !held.is_lost() {
        assert!(Instant::now() < until, "it is noticed");
        std::thread::yield_now();
    }
    drop(held);
    assert_eq!(fake.kept().objects["prod/lock"], b"another 4", "it stays the other one's");
    // A store that cannot be reached.
    fake.kept().objects.clear();
    let held = take().ok().expect("it is free");
    fake.kept().refuses = Some((0, 403, "AccessDenied"));
    while !held.is_lost() {
        assert!(Instant::now() < until, "it is noticed");
        std::thread::yield_now();
    }
    drop(held);
    // One that takes requests and says nothing: others take the lock meanwhile.
    fake.kept().refuses = None;
    fake.kept().objects.clear();
    let held = take().ok().expect("it is free");
    {
        let mut kept = fake.kept();
        let next = kept.requests;
        kept.troubles = (next..next + 100).map(|at| (at, Trouble::Silent)).collect();
    }
    while !held.is_lost() {
        assert!(Instant::now() < until, "it is noticed");
        std::thread::yield_now();
    }
    drop(held);
    assert!(Instant::now() < until, "nobody waits for its thread");
}
