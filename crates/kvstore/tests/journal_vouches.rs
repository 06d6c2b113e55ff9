//! What the journal vouches for after a crash: the segments that are needed, and the header of each vBucket's file.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::env::sim::{Call, Effect, Fault, On, SimDisk, SimHandles, Survival};
use base::env::{Disk, OpenMode};
use base::{DocKey, VbId, VbState};
use kvstore::journal::check_journal;
use kvstore::{
    Background, Compaction, Failure, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc,
    check_recorded,
};
use store_suite::version;

const DIR: &str = "/data/b";
const VBUCKETS: u16 = 3;
const VALUE_BYTES: usize = 700;
/// Items of a save that takes more than one segment.
const LARGE: u64 = 60;
/// The vBucket with that save.
const CUT: VbId = VbId(1);

fn start(disk: &SimDisk, seed: u64) -> (Result<Journaled, Failure>, SimHandles) {
    let handles = SimHandles::new(seed).with_disk(disk.clone());
    let (journal_bytes, file_after) = (512 << 10, Duration::from_secs(3600));
    let config = JournaledConfig { journal_bytes, file_after, ..JournaledConfig::default() };
    (Journaled::open(handles.env(), DIR.as_ref(), config), handles)
}

fn open(disk: &SimDisk) -> Journaled {
    start(disk, 2).0.expect("no fault is planned")
}

/// One version of each of these seqnos.
fn save(store: &Journaled, vb: VbId, seqnos: std::ops::RangeInclusive<u64>, byte: u8) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let item = |seqno| version(0, &format!("k{seqno:03}"), seqno, &[byte; VALUE_BYTES]);
    let items: Vec<_> = seqnos.map(item).collect();
    store.save(vb, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
}

/// The value of a document, which must be there.
fn value(store: &Journaled, vb: VbId, seqno: u64) -> Result<u8, Failure> {
    let found = store.get(vb, DocKey::new(format!("k{seqno:03}").as_bytes()))?;
    Ok(found.map_or(0, |found| found.value()[0]))
}

fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let number = |path: &PathBuf| path.to_str()?.strip_prefix("/data/b/journal.")?.parse::<u64>().ok();
    let mut all: Vec<PathBuf> = disk.contents().into_iter().map(|(path, _)| path).collect();
    all.retain(|path| number(path).is_some());
    all.sort_by_key(number);
    all
}

/// A bucket with a save that begins in one segment and goes on in the next, after a start that has filed another vBucket.
fn cut_save() -> SimDisk {
    let disk = SimDisk::new();
    let store = open(&disk);
    (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), 1..=1, 1));
    store.close().expect("no fault is planned");
    drop(store);
    let store = open(&disk);
    save(&store, CUT, 2..=LARGE, 2);
    // Proves that the one before was synced: it is not written again.
    save(&store, VbId(0), 2..=2, 2);
    assert!(segments(&disk).len() > 1, "{:?}", segments(&disk));
    drop(store);
    let disk = disk.image(Survival::Synced);
    let store = open(&disk);
    save(&store, VbId(0), 3..=3, 3);
    store.compact(VbId(0), &Compaction::default()).expect("no fault is planned");
    save(&store, VbId(2), 2..=2, 2);
    drop(store);
    disk.image(Survival::Synced)
}

fn remove_oldest(disk: &SimDisk) {
    let removed = disk.remove_file(&segments(disk)[0]).and_then(|()| disk.sync_dir(Path::new(DIR)));
    removed.expect("no fault is planned");
}

/// The oldest segment is missing: only the vBucket whose save began there is refused.
fn is_refused_for_its_beginning(disk: &SimDisk) {
    remove_oldest(disk);
    for life in 0..2 {
        let store = open(disk);
        let failure = value(&store, CUT, LARGE).expect_err("its beginning is missing");
        assert!(failure.to_string().contains("an older segment is missing"), "{life}: {failure}");
        assert_eq!(value(&store, VbId(0), 3).expect("all of it is there"), 3);
        assert_eq!(value(&store, VbId(2), 2).expect("all of it is there"), 2);
    }
}

#[test]
fn a_missing_segment_costs_the_vbucket_whose_save_began_in_it() {
    let disk = cut_save();
    let store = open(&disk);
    assert_eq!(value(&store, CUT, LARGE).expect("nothing is missing"), 2);
    drop(store);
    let damaged = disk.image(Survival::Synced);
    is_refused_for_its_beginning(&damaged);
    let damaged = disk.image(Survival::Synced);
    remove_oldest(&damaged);
    let report = check_journal(&damaged, Path::new(DIR)).expect("the disk works");
    assert_eq!(report.missing.expect("it is known").into_keys().collect::<Vec<_>>(), [CUT]);
}

/// Earlier versions noted after a start that only the frame is needed in which a save ends.
#[test]
#[cfg(debug_assertions)]
fn the_same_where_an_earlier_version_noted_less() {
    let planted = base::planted::Planted::new(base::planted::Bug::BeginningNotNeeded);
    let disk = cut_save();
    drop(planted);
    let damaged = disk.image(Survival::Synced);
    remove_oldest(&damaged);
    let report = check_journal(&damaged, Path::new(DIR)).expect("the disk works");
    assert_eq!(report.missing.expect("it is known").into_keys().collect::<Vec<_>>(), [CUT]);
    is_refused_for_its_beginning(&disk);
}

/// A bucket whose files were brought up to date twice, the second time with values of this byte, and that was killed.
fn filed(byte: u8) -> SimDisk {
    let disk = SimDisk::new();
    // Both have the same identity.
    let store = open(&disk);
    (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), 1..=1, 1));
    store.close().expect("no fault is planned");
    drop(store);
    let (store, handles) = start(&disk, 3);
    let store = store.expect("no fault is planned");
    (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), 2..=2, byte));
    // A header has the time in it, in nanoseconds.
    handles.clock.advance(Duration::from_secs(3600) + Duration::from_nanos(byte.into()));
    while store.background_step().expect("no fault is planned") == Background::Worked {}
    drop(store);
    disk.image(Survival::Synced)
}

fn contents(disk: &SimDisk, path: &Path) -> Vec<u8> {
    let all = disk.contents().into_iter();
    all.filter(|(there, _)| there == path).map(|(_, bytes)| bytes).next().expect("it is there")
}

/// The file of a copy of the folder that went on by itself is put in the place of the one of its name, which has its
/// header at the same place.
#[test]
fn a_header_of_a_copy_at_the_place_on_record_is_refused() {
    let (disk, copy) = (filed(2), filed(3));
    let path = Path::new(DIR).join("1.couch.1");
    let (right, other) = (contents(&disk, &path), contents(&copy, &path));
    assert!(right.len() == other.len() && right != other);
    let put = |bytes: &[u8]| {
        let file = disk.open(&path, OpenMode::ReadWrite).expect("it is there");
        file.write_at(bytes, 0).and_then(|()| file.sync_data()).expect("no fault is planned");
    };
    put(&other);
    let on_record =
        check_journal(&disk, Path::new(DIR)).expect("the disk works").files.expect("some are filed");
    let faults = check_recorded(&disk, Path::new(DIR), &on_record, None).expect("the disk works");
    assert_eq!(faults.into_iter().map(|(path, ..)| path).collect::<Vec<_>>(), std::slice::from_ref(&path));
    for life in 0..2 {
        let store = open(&disk);
        let failure = value(&store, VbId(1), 2).expect_err("it is another header");
        assert!(failure.to_string().contains("not the one that is on record"), "{life}: {failure}");
        assert_eq!(value(&store, VbId(0), 2).expect("it is sound"), 2);
    }
    put(&right);
    assert_eq!(value(&open(&disk), VbId(1), 2).expect("it is back"), 2);
}

/// Brings the files up to date.
fn file_everything(store: &Journaled, handles: &SimHandles) {
    handles.clock.advance(Duration::from_secs(3600));
    while store.background_step().expect("no fault is planned") == Background::Worked {}
}

/// A bucket that was killed twice, as of the first time and of the second: in between one vBucket got changes that are
/// in its file. At the first time its file was on record, or there was none.
fn killed_twice(had_file: bool) -> (SimDisk, SimDisk) {
    let disk = SimDisk::new();
    let (store, handles) = start(&disk, 3);
    let store = store.expect("no fault is planned");
    (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), 1..=1, 1));
    if had_file {
        file_everything(&store, &handles);
    }
    (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), 2..=2, 2));
    let older = disk.image(Survival::Synced);
    save(&store, CUT, 3..=3, 3);
    file_everything(&store, &handles);
    drop(store);
    (older, disk.image(Survival::Synced))
}

/// Everything but the files of documents as of an older moment.
fn put_back(newer: &SimDisk, older: &SimDisk) {
    let is_of_documents = |path: &Path| path.to_str().is_some_and(|path| path.contains(".couch."));
    let changed = || {
        for (path, _) in newer.contents().into_iter().filter(|(path, _)| !is_of_documents(path)) {
            newer.remove_file(&path)?;
        }
        for (path, bytes) in older.contents().into_iter().filter(|(path, _)| !is_of_documents(path)) {
            let file = newer.open(&path, OpenMode::Create)?;
            file.write_at(&bytes, 0)?;
            file.sync_data()?;
        }
        newer.sync_dir(Path::new(DIR))
    };
    changed().expect("no fault is planned");
}

/// Journal and catalog of an older moment lie in front of files that are newer.
#[test]
fn a_file_that_is_newer_than_the_journal_is_refused() {
    for had_file in [true, false] {
        let (older, newer) = killed_twice(had_file);
        assert_eq!(value(&open(&newer.image(Survival::Synced)), CUT, 3).expect("nothing is wrong"), 3);
        put_back(&newer, &older);
        let report = check_journal(&newer, Path::new(DIR)).expect("the disk works");
        let (files, told) = (report.files.unwrap_or_default(), report.told.as_ref());
        let faults = check_recorded(&newer, Path::new(DIR), &files, told).expect("the disk works");
        let at_fault: Vec<PathBuf> = faults.into_iter().map(|(path, ..)| path).collect();
        assert_eq!(at_fault, [Path::new(DIR).join("1.couch.1")], "{had_file}");
        for life in 0..2 {
            let store = open(&newer);
            let failure = store.snapshot(CUT).map(drop).expect_err("its file is newer");
            assert!(failure.to_string().contains("of an older moment"), "{had_file}, {life}: {failure}");
            assert!(failure.is_damage(), "{failure}");
            assert_eq!(value(&store, VbId(0), 2).expect("its file has what the journal has"), 2);
        }
    }
}

/// A file that could not be removed when its vBucket was deleted says nothing about the vBucket that is made again.
#[test]
fn a_file_of_a_deleted_vbucket_is_not_compared() {
    let disk = SimDisk::new();
    let (store, handles) = start(&disk, 3);
    let store = store.expect("no fault is planned");
    save(&store, CUT, 1..=9, 1);
    file_everything(&store, &handles);
    disk.plan(Fault::once(On::Kind(Call::Remove), 1, Effect::IO_ERROR));
    store.delete_vbucket(CUT).expect_err("its file cannot be removed");
    // The record of the deletion is needed no longer.
    let first = segments(&disk)[0].clone();
    for seqno in 1..100 {
        save(&store, VbId(0), seqno * 10..=seqno * 10 + 9, 1);
        file_everything(&store, &handles);
    }
    assert!(!segments(&disk).contains(&first), "{first:?}");
    save(&store, CUT, 1..=1, 2);
    drop(store);
    let disk = disk.image(Survival::Synced);
    assert!(!contents(&disk, &Path::new(DIR).join("1.couch.1")).is_empty());
    let store = open(&disk);
    assert_eq!(value(&store, CUT, 1).expect("the journal has it"), 2);
    assert_eq!(value(&store, CUT, 2).expect("it was deleted"), 0);
}

/// Mistakes in the product that these tests show (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Journals, |seed| {
        // Nothing in them depends on it.
        if seed == 0 {
            a_missing_segment_costs_the_vbucket_whose_save_began_in_it();
            a_header_of_a_copy_at_the_place_on_record_is_refused();
            a_file_that_is_newer_than_the_journal_is_refused();
        }
        Ok(())
    });
}
