//! Segments of a log in a store: appended to, joined, cut, removed, and with pieces that are lost or come late.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::{Disk, Env, File, OpenMode};

use super::disk::ObjectDisk;
use super::fake_store::{FakeStore, Trouble};

const FOLDER: &str = "s3://b/prod/travel/log";
const KEY: &str = "prod/travel/log/segment-00000003";

fn path() -> PathBuf {
    Path::new(FOLDER).join("segment-00000003")
}

fn disk(fake: &FakeStore) -> ObjectDisk {
    ObjectDisk::new(Arc::new(fake.store(&Env::real())))
}

/// Appends groups, each with a sync.
fn append(disk: &dyn Disk, groups: &[&[u8]]) -> std::io::Result<Arc<dyn File>> {
    let file = disk.open(&path(), OpenMode::CreateNew)?;
    let mut at = 0;
    for group in groups {
        file.write_at(group, at)?;
        file.sync_data()?;
        at += group.len() as u64;
    }
    Ok(file)
}

fn content(disk: &dyn Disk) -> std::io::Result<Vec<u8>> {
    let file = disk.open(&path(), OpenMode::Read)?;
    let mut bytes = vec![0; file.len()? as usize + 3];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn names(fake: &FakeStore) -> Vec<String> {
    fake.kept().objects.keys().cloned().collect()
}

fn join(fake: &FakeStore, before: u32) -> std::io::Result<()> {
    fake.store(&Env::real()).join_segments(Path::new(FOLDER), before)
}

const GROUPS: [&[u8]; 3] = [b"state", b"a group", b"another group"];

#[test]
fn what_is_synced_is_there_and_a_cut_request_is_sent_again() {
    let fake = FakeStore::start();
    let run = || -> std::io::Result<()> {
        let disk = disk(&fake);
        let file = append(&disk, &GROUPS)?;
        file.write_at(b"not synced", 25)?;
        assert_eq!(content(&disk)?, GROUPS.concat());
        assert_eq!(disk.read_dir(Path::new(FOLDER))?, ["segment-00000003"]);
        join(&fake, 3)?;
        assert_eq!(names(&fake).len(), 3, "one that is written to stays in pieces");
        join(&fake, 4)?;
        assert_eq!(content(&disk)?, GROUPS.concat());
        assert_eq!(names(&fake), [KEY]);
        Ok(())
    };
    run().expect("nothing is wrong");
    let requests = std::mem::take(&mut fake.kept().requests);
    for at in 0..requests {
        for trouble in [Trouble::CutRequest, Trouble::CutAnswer, Trouble::Busy] {
            {
                let mut kept = fake.kept();
                kept.objects.clear();
                (kept.requests, kept.troubles) = (0, [(at, trouble)].into());
            }
            run().unwrap_or_else(|error| panic!("{trouble:?} at {at}: {error}"));
        }
    }
    assert!(requests > 12, "{requests}");
}

#[test]
fn joining_that_ends_at_any_request_loses_no_byte() {
    let fake = FakeStore::start();
    let begin = || {
        fake.kept().objects.clear();
        append(&disk(&fake), &GROUPS).expect("written");
        fake.kept().requests = 0;
    };
    begin();
    join(&fake, 4).expect("nothing is wrong");
    let requests = fake.kept().requests;
    for at in 0..requests {
        begin();
        fake.kept().refuses = Some((at, 403, "AccessDenied"));
        join(&fake, 4).expect_err("the store refuses");
        fake.kept().refuses = None;
        assert_eq!(content(&disk(&fake)).expect("it is there"), GROUPS.concat(), "at {at}");
        join(&fake, 4).expect("it is done again");
        assert_eq!(names(&fake), [KEY]);
    }
    assert!(requests > 8, "{requests}");
}

#[test]
fn whoever_reads_while_another_process_joins_sees_every_byte() {
    let fake = FakeStore::start();
    let begin = || {
        {
            let mut kept = fake.kept();
            kept.objects.clear();
            kept.joined.clear();
        }
        append(&disk(&fake), &GROUPS).expect("written");
        fake.kept().requests = 0;
    };
    begin();
    content(&disk(&fake)).expect("nothing is wrong");
    let requests = fake.kept().requests;
    for (put, removed) in (0..requests).flat_map(|put| (put..=requests).map(move |removed| (put, removed))) {
        for count in 1..=GROUPS.len() {
            begin();
            // The later one counts where both are the same.
            fake.kept().joined = [(put, (KEY, 0)), (removed, (KEY, count))].into();
            let read = content(&disk(&fake));
            let read =
                read.unwrap_or_else(|error| panic!("put at {put}, {count} gone at {removed}: {error}"));
            assert_eq!(read, GROUPS.concat(), "put at {put}, {count} gone at {removed}");
        }
    }
    assert!(requests > 4, "{requests}");
}

#[test]
fn a_lost_piece_is_named_and_one_that_comes_late_is_passed_over() {
    let fake = FakeStore::start();
    let disk = disk(&fake);
    append(&disk, &GROUPS).expect("written");
    let piece = |begin: u64| format!("{KEY}.{begin:012}");
    for begin in [0, 5] {
        let lost = fake.kept().objects.remove(&piece(begin)).expect("it was there");
        let error = content(&disk).expect_err("a piece is missing");
        assert!(error.to_string().contains("lacks a piece of prod/travel/log/segment-00000003 behind byte"));
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        join(&fake, 4).expect_err("no segment is made of what is left");
        fake.kept().objects.insert(piece(begin), lost);
    }
    // Of a process that lost its lock when another one had gone on with the log.
    let file = disk.open(&path(), OpenMode::ReadWrite).expect("it is there");
    file.set_len(12).expect("cut");
    file.write_at(b" GROUP", 6).expect("written over");
    file.sync_data().expect("it is one object");
    fake.kept().objects.insert(piece(12), b"late".to_vec());
    assert_eq!(content(&disk).expect("it is there"), b"statea GROUP");
    join(&fake, 4).expect("it is whole");
    assert_eq!(names(&fake), [KEY]);
    assert_eq!(content(&disk).expect("it is there"), b"statea GROUP");
    let again = disk.open(&path(), OpenMode::CreateNew).err().expect("it is there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn two_writers_put_no_piece_in_the_place_of_another() {
    let fake = FakeStore::start();
    let (first, second) = (disk(&fake), disk(&fake));
    let open = |disk: &ObjectDisk| disk.open(&path(), OpenMode::CreateNew).expect("there is none");
    let (a, b) = (open(&first), open(&second));
    a.write_at(b"mine", 0).expect("kept");
    b.write_at(b"yours", 0).expect("kept");
    a.sync_data().expect("it is the first one");
    let error = b.sync_data().expect_err("another one is there");
    assert!(error.to_string().contains("another process writes this log"), "{error}");
    assert_eq!(content(&first).expect("it is there"), b"mine");
}

#[test]
fn a_segment_that_is_read_while_it_is_joined_is_read_to_its_end_and_removed_as_a_whole() {
    let fake = FakeStore::start();
    let disk = disk(&fake);
    append(&disk, &GROUPS).expect("written");
    let file = disk.open(&path(), OpenMode::Read).expect("it is there");
    join(&fake, 4).expect("joined");
    let mut bytes = vec![0; 25];
    assert_eq!((file.read_at(&mut bytes, 0).expect("read"), &bytes[5..12]), (25, &b"a group"[..]));
    // Longer than what is kept in memory.
    fake.kept().objects.clear();
    let large = vec![7; 200 << 10];
    append(&disk, &[b"state", &large, &large]).expect("written");
    let file = disk.open(&path(), OpenMode::Read).expect("it is there");
    let mut some = [0; 12];
    assert_eq!(file.read_at(&mut some, (200 << 10) - 1).expect("read"), 12);
    assert_eq!(some, [7; 12]);
    assert_eq!(file.read_at(&mut some, (400 << 10) + 5 - 4).expect("read"), 4);
    join(&fake, 4).expect("joined");
    assert_eq!(file.read_at(&mut some, 3).expect("read from the whole one"), 12);
    assert_eq!(&some[..3], &[b't', b'e', 7]);
    fake.kept().objects.clear();
    append(&disk, &GROUPS).expect("written");
    disk.remove_file(&path()).expect("removed");
    assert_eq!(names(&fake), Vec::<String>::new());
}
