//! A damaged part of a journal costs the vBuckets that had records in it, and no others: each start tells them as lost
//! until they are deleted or repaired, or until the damage heals; nothing that was acknowledged is served older.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::env::sim::{SimDisk, SimHandles, Survival};
use base::env::{Disk, Env, OpenMode};
use base::{CollectionId, DocKey, DurabilityLevel, Seqno, SyncWrite, VbId, VbState};
use kvstore::repair::{apply, survey};
use kvstore::{Background, Failure, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::{tuned, version};

const DIR: &str = "/data/b";
const VBUCKETS: u16 = 9;
const VALUE_BYTES: usize = 700;
const BLOCK: u64 = 4096;

fn open(env: &Env) -> Result<Journaled, Failure> {
    let (journal_bytes, file_after) = (512 << 10, Duration::from_secs(3600));
    let config = JournaledConfig { journal_bytes, file_after, ..JournaledConfig::default() };
    Journaled::open(env.clone(), DIR.as_ref(), config)
}

fn save(store: &Journaled, vb: VbId, seqno: u64) -> Result<(), Failure> {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let items = [version(0, &format!("k{seqno}"), seqno, &[seqno as u8; VALUE_BYTES])];
    store.save(vb, SaveBatch { items: &items, state: &state })
}

/// A bucket that was killed: each vBucket has a file, and three changes in the journal alone, each in a frame of its own,
/// in turn. Answers the highest seqno of each.
fn killed() -> (SimDisk, BTreeMap<VbId, u64>) {
    let (env, handles) = Env::sim(1);
    let store = open(&env).expect("no fault is planned");
    (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), 1).expect("no fault is planned"));
    store.close().expect("no fault is planned");
    drop(store);
    let store = open(&env).expect("no fault is planned");
    for seqno in 2..=4 {
        (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), seqno).expect("no fault is planned"));
    }
    drop(store);
    (handles.disk.image(Survival::Synced), (0..VBUCKETS).map(|vb| (VbId(vb), 4)).collect())
}

fn env_on(disk: &SimDisk) -> Env {
    SimHandles::new(2).with_disk(disk.clone()).env()
}

/// Every segment with its content, oldest first.
fn segments(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let is_segment = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("journal.") && !name.contains("spare")
    };
    let mut all: Vec<_> = disk.contents().into_iter().filter(|(path, _)| is_segment(path)).collect();
    all.sort_by_key(|(path, _)| (path.as_os_str().len(), path.clone()));
    all
}

fn write(disk: &SimDisk, path: &Path, offset: u64, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::ReadWrite).expect("it is there");
    file.write_at(bytes, offset).and_then(|()| file.sync_data()).expect("no fault is planned");
}

/// Which vBuckets are lost. Of the others every change must be there.
fn lost(store: &Journaled, high: &BTreeMap<VbId, u64>, place: &str) -> BTreeSet<VbId> {
    let states = store.states().unwrap_or_else(|failure| panic!("{place}: {failure}"));
    let mut lost = BTreeSet::new();
    for (vb, high) in high {
        let (_, stored) = states.iter().find(|(of, _)| of == vb).expect("each is told of");
        match stored {
            Err(failure) => {
                assert!(failure.is_damage(), "{place}: {failure}");
                assert!(failure.to_string().contains("the journal was damaged"), "{place}: {failure}");
                lost.insert(*vb);
            }
            Ok(stored) => {
                assert_eq!(stored.high_seqno, Seqno(*high), "{place}: {vb}");
                for seqno in 1..=*high {
                    let name = format!("k{seqno}");
                    let found = store.get(*vb, DocKey::new(name.as_bytes())).expect("it can be read");
                    let found = found.map(|found| found.value().to_vec());
                    assert!(found == Some(vec![seqno as u8; VALUE_BYTES]), "{place}: {name} of {vb}");
                }
            }
        }
    }
    lost
}

/// Ends a life. With something lost it is no clean stop, since the journal stays.
fn stop(store: &Journaled, lost: &BTreeSet<VbId>, place: &str) {
    let closed = store.close();
    assert_eq!(closed.is_ok(), lost.is_empty(), "{place}: {closed:?}");
}

/// Starts with a damaged journal, lives on, and starts once more when the damage has healed: nothing is lost then.
fn heals(disk: SimDisk, high: &BTreeMap<VbId, u64>, well: &[(PathBuf, Vec<u8>)], place: &str) {
    let handles = SimHandles::new(2).with_disk(disk.clone());
    let (env, mut high) = (handles.env(), high.clone());
    for life in 0..2 {
        let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
        let first = lost(&store, &high, place);
        for _ in 0..2 {
            for (vb, high) in high.iter_mut().filter(|(vb, _)| !first.contains(vb)) {
                *high += 1;
                save(&store, *vb, *high).unwrap_or_else(|failure| panic!("{place}: {failure}"));
            }
            handles.clock.advance(Duration::from_secs(2));
            while store.background_step().expect("no fault is planned") != Background::Idle {}
        }
        if life == 1 {
            stop(&store, &first, place);
        }
    }
    for (path, bytes) in well {
        let file = disk.open(path, OpenMode::Create).expect("no fault is planned");
        file.set_len(0).and_then(|()| file.write_at(bytes, 0)).expect("no fault is planned");
        file.sync_data().and_then(|()| disk.sync_dir(Path::new(DIR))).expect("no fault is planned");
    }
    for stop in ["healed", "clean stop"] {
        let place = format!("{place}, {stop}");
        let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
        assert_eq!(lost(&store, &high, &place), BTreeSet::new(), "{place}");
        store.close().unwrap_or_else(|failure| panic!("{place}: {failure}"));
    }
}

/// Starts with a damaged journal: what is lost stays so over a crash and over stops, the others go on.
fn survives(disk: SimDisk, high: &BTreeMap<VbId, u64>, place: &str) -> Result<BTreeSet<VbId>, Failure> {
    let env = env_on(&disk);
    let mut high = high.clone();
    let store = open(&env)?;
    let first = lost(&store, &high, place);
    for (vb, high) in high.iter_mut().filter(|(vb, _)| !first.contains(vb)) {
        *high += 1;
        save(&store, *vb, *high).unwrap_or_else(|failure| panic!("{place}: {failure}"));
    }
    drop(store);
    let env = env_on(&disk.image(Survival::Synced));
    for life in ["crash", "stop", "second stop"] {
        let place = format!("{place}, {life}");
        let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
        assert_eq!(lost(&store, &high, &place), first, "{place}");
        stop(&store, &first, &place);
    }
    let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
    for vb in &first {
        store.delete_vbucket(*vb).unwrap_or_else(|failure| panic!("{place}: {failure}"));
        (1..=2).for_each(|seqno| save(&store, *vb, seqno).expect("it is another one"));
        high.insert(*vb, 2);
    }
    for stop in ["filled again", "filled again, clean stop"] {
        assert_eq!(lost(&store, &high, &format!("{place}, {stop}")), BTreeSet::new());
        store.close().unwrap_or_else(|failure| panic!("{place}: {failure}"));
    }
    drop(store);
    let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
    assert_eq!(lost(&store, &high, &format!("{place}, once more")), BTreeSet::new());
    Ok(first)
}

/// The vBucket whose change is in frame `n` of those in the journal alone.
fn vbucket_of(n: usize) -> VbId {
    VbId((n % usize::from(VBUCKETS)) as u16)
}

/// The frames that hold a change, in order.
fn changes(disk: &SimDisk) -> Vec<(PathBuf, u64, usize)> {
    let mut frames = Vec::new();
    for (path, bytes) in segments(disk) {
        let starts: Vec<usize> = (BLOCK as usize..bytes.len())
            .step_by(BLOCK as usize)
            .filter(|at| bytes[*at..].starts_with(b"SJfr"))
            .collect();
        for at in starts {
            let payload = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four bytes")) as usize;
            if payload > VALUE_BYTES {
                frames.push((path.clone(), at as u64, 56 + payload));
            }
        }
    }
    frames
}

/// A record that says something impossible though its checksum is right, such as a program with a mistake writes: the
/// prepare of a document whose key is none.
#[test]
fn a_prepare_of_no_document_costs_its_vbucket_alone() {
    let (first, of) = (VbId(0), VbId(3));
    // The last record of the journal, or one with others behind it.
    for behind in [0, 1, 3] {
        let (disk, mut high) = killed();
        let env = env_on(&disk);
        let store = open(&env).expect("nothing is wrong yet");
        let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
        let prepare = |key: &[u8]| {
            let level = DurabilityLevel::Majority;
            tuned(CollectionId::PREPARES.0, key, 5, b"v", |meta| meta.sync_write = SyncWrite::Prepare(level))
        };
        // A prefix of a collection that does not end, and none at all.
        for (vb, key) in [(first, &b"\0k"[..]), (of, if behind == 1 { b"" } else { b"\xff\xff" })] {
            let items = [prepare(key)];
            store.save(vb, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
        }
        high.insert(first, 5);
        for (vb, seqno) in [(4, 5), (5, 5), (4, 6)].into_iter().take(behind) {
            save(&store, VbId(vb), seqno).expect("no fault is planned");
            high.insert(VbId(vb), seqno);
        }
        drop(store);
        for life in ["first", "second"] {
            let place = format!("{behind} behind it, {life} life");
            let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
            let states = store.states().expect("the bucket is served");
            for (vb, stored) in states {
                match stored {
                    Err(failure) => {
                        assert!(vb == of && failure.is_damage(), "{place}: {vb}: {failure}");
                        let says = failure.to_string();
                        let known = ["a prepare of no document", "may be missing"];
                        assert!(known.iter().any(|known| says.contains(known)), "{place}: {says}");
                    }
                    Ok(stored) => {
                        assert_ne!(vb, of, "{place}");
                        assert_eq!(stored.high_seqno, Seqno(high[&vb]), "{place}: {vb}");
                    }
                }
            }
            let next = high[&VbId(7)] + 1;
            save(&store, VbId(7), next).unwrap_or_else(|failure| panic!("{place}: {failure}"));
            high.insert(VbId(7), next);
            // On record as lost it is not read, and no one writes to it.
            assert!(life == "second" || save(&store, of, 9).is_err(), "{place}: it takes nothing");
        }
    }
}

#[test]
fn a_flipped_bit_costs_the_vbuckets_of_its_frame() {
    let (disk, high) = killed();
    let frames = changes(&disk);
    assert_eq!(frames.len(), usize::from(VBUCKETS) * 3, "a frame for each change");
    // Nothing says that the last one was synced.
    let frames = &frames[..frames.len() - 1];
    for (n, (path, offset, bytes)) in frames.iter().enumerate() {
        // each part of a frame: head, table, directories, state, item, value
        for at in (0..*bytes as u64).step_by(37) {
            let place = format!("frame {n}, byte {at}");
            let (disk, _) = killed();
            assert!(disk.rot(path, offset + at, 1 << (at % 8)).expect("a file"));
            let lost = survives(disk, &high, &place).unwrap_or_else(|failure| panic!("{place}: {failure}"));
            assert_eq!(lost, BTreeSet::from([vbucket_of(n)]), "{place}");
            if at % (37 * 8) == 0 {
                let (disk, _) = killed();
                let well = segments(&disk);
                assert!(disk.rot(path, offset + at, 1 << (at % 8)).expect("a file"));
                heals(disk, &high, &well, &place);
            }
        }
    }
}

#[test]
fn zeroed_sectors_cost_the_vbuckets_of_their_frames() {
    let (disk, high) = killed();
    let frames = changes(&disk);
    for (from, count) in [(0, 1), (0, 3), (4, 2), (5, 7), (2, 16), (20, 5)] {
        let (disk, _) = killed();
        for (path, offset, _) in &frames[from..from + count] {
            write(&disk, path, *offset, &[0; BLOCK as usize]);
        }
        let place = format!("{count} frames from {from}");
        let lost = survives(disk, &high, &place).unwrap_or_else(|failure| panic!("{place}: {failure}"));
        let had: BTreeSet<VbId> = (from..from + count).map(vbucket_of).collect();
        assert!(lost.is_superset(&had), "{place}: {lost:?}");
        // Directories name more only if more than one frame is missing.
        assert!(count > 1 || lost == had, "{place}: {lost:?}");
        let (disk, _) = killed();
        let well = segments(&disk);
        for (path, offset, _) in &frames[from..from + count] {
            write(&disk, path, *offset, &[0; BLOCK as usize]);
        }
        heals(disk, &high, &well, &place);
        println!(
            "{place}: {} of {VBUCKETS} vBuckets had something there, {} are lost",
            had.len(),
            lost.len()
        );
    }
}

/// A bucket that was killed when it had filed much, and the first segments of its journal were gone.
fn filed() -> (SimDisk, BTreeMap<VbId, u64>) {
    let (env, handles) = Env::sim(1);
    let store = open(&env).expect("no fault is planned");
    let mut high = 0;
    while store.stats().journal.expect("it has one").recycled_segments < 3 {
        high += 1;
        (0..VBUCKETS).for_each(|vb| save(&store, VbId(vb), high).expect("no fault is planned"));
        handles.clock.advance(Duration::from_secs(1));
        while store.background_step().expect("no fault is planned") != Background::Idle {}
    }
    drop(store);
    (handles.disk.image(Survival::Synced), (0..VBUCKETS).map(|vb| (VbId(vb), high)).collect())
}

/// What a start puts on record while it cannot read everything must not win over what it could not read: the segments
/// before it, which had the rest, are gone.
#[test]
fn damage_that_heals_leaves_no_older_files_on_record() {
    let (disk, high) = filed();
    let frames: Vec<(PathBuf, u64)> = segments(&disk)
        .iter()
        .flat_map(|(path, bytes)| {
            let starts = (BLOCK as usize..bytes.len()).step_by(BLOCK as usize);
            starts
                .filter(|at| bytes[*at..].starts_with(b"SJfr"))
                .map(|at| (path.clone(), at as u64))
                .collect::<Vec<_>>()
        })
        .collect();
    println!("{} frames", frames.len());
    for (n, (path, offset)) in frames[..frames.len() - 1].iter().enumerate() {
        let (disk, _) = filed();
        let well = segments(&disk);
        write(&disk, path, *offset, &[0; BLOCK as usize]);
        heals(disk, &high, &well, &format!("frame {n}"));
    }
}

/// Only the first frame of the next segment says of all frames of a segment what they had.
#[test]
fn more_than_directories_cover_stops_the_bucket() {
    let (disk, _) = killed();
    let frames = changes(&disk);
    let of_segments: BTreeSet<&PathBuf> = frames.iter().map(|(path, ..)| path).collect();
    assert!(of_segments.len() > 3, "there are several: {of_segments:?}");
    for (path, offset, _) in &frames[3..23] {
        write(&disk, path, *offset, &[0; BLOCK as usize]);
    }
    let before = disk.contents();
    let failure = open(&env_on(&disk)).map(drop).expect_err("whose changes are missing is not known");
    assert!(matches!(failure, Failure::Journal { .. }), "{failure}");
    assert!(disk.contents() == before, "nothing is changed");
}

#[test]
fn a_missing_middle_segment_costs_its_vbuckets() {
    let (disk, high) = killed();
    let frames = changes(&disk);
    let paths: BTreeSet<&PathBuf> = frames.iter().map(|(path, ..)| path).collect();
    let middle = (*paths.iter().nth(1).expect("there are several")).clone();
    disk.remove_file(&middle).and_then(|()| disk.sync_dir(Path::new(DIR))).expect("no fault is planned");
    let had: BTreeSet<VbId> = frames
        .iter()
        .enumerate()
        .filter(|(_, frame)| frame.0 == middle)
        .map(|(n, _)| vbucket_of(n))
        .collect();
    let lost = survives(disk, &high, "a segment is gone").expect("the next one says what it had");
    assert_eq!(lost, had);
}

#[test]
fn a_zeroed_header_costs_nothing() {
    let (disk, high) = killed();
    let (path, ..) = changes(&disk).remove(0);
    write(&disk, &path, 0, &[0; BLOCK as usize]);
    assert_eq!(survives(disk, &high, "the header").expect("frames say what it said"), BTreeSet::new());
}

#[test]
fn a_torn_end_is_no_damage() {
    let (disk, mut high) = killed();
    let (path, offset, bytes) = changes(&disk).pop().expect("there are some");
    // Nothing says that the last frame was synced: its change may never have been acknowledged.
    assert!(disk.rot(&path, offset + bytes as u64 - 1, 1).expect("a file"));
    *high.get_mut(&vbucket_of(usize::from(VBUCKETS) * 3 - 1)).expect("it is there") -= 1;
    assert_eq!(survives(disk, &high, "the last frame").expect("no damage"), BTreeSet::new());
}

/// Damaged segments stay only as long as there is room.
#[test]
fn a_full_journal_gives_up_what_is_missing() {
    let (disk, mut high) = killed();
    let well = segments(&disk);
    let (path, offset, _) = changes(&disk).swap_remove(4);
    write(&disk, &path, offset + 500, &[0xaa; 40]);
    let (env, gone) = (env_on(&disk), BTreeSet::from([VbId(4)]));
    let store = open(&env).expect("one vBucket is lost");
    assert_eq!(lost(&store, &high, "the start"), gone);
    let limit = 512 << 10;
    let (mut most, mut is_there) = (0, true);
    for _ in 0..40 {
        for (vb, high) in high.iter_mut().filter(|(vb, _)| !gone.contains(vb)) {
            *high += 1;
            save(&store, *vb, *high).expect("no fault is planned");
        }
        most = most.max(store.stats().journal.expect("it has one").used_bytes);
        let is_there_still = disk.contents().iter().any(|(there, _)| *there == path);
        assert!(is_there || !is_there_still, "it went");
        is_there = is_there_still;
    }
    assert!(!is_there, "it was let go of");
    assert!((limit..3 * limit).contains(&most), "{most} bytes");
    assert_eq!(lost(&store, &high, "full"), gone);
    store.close().expect("what is missing is on record");
    drop(store);
    // What was given up is not served again, whatever comes back.
    for (path, bytes) in well {
        let file = disk.open(&path, OpenMode::Create).expect("no fault is planned");
        file.write_at(&bytes, 0).and_then(|()| file.sync_data()).expect("no fault is planned");
    }
    for place in ["the next start", "the one behind it"] {
        let store = open(&env).unwrap_or_else(|failure| panic!("{place}: {failure}"));
        assert_eq!(lost(&store, &high, place), gone);
        store.close().expect("no fault is planned");
    }
}

#[test]
fn a_repair_keeps_what_is_before_the_gap_and_ends_the_loss() {
    let (disk, high) = killed();
    // The second of the three changes of vBucket 4.
    let n = usize::from(VBUCKETS) + 4;
    let (path, offset, _) = changes(&disk).swap_remove(n);
    write(&disk, &path, offset + 500, &[0xaa; 40]);
    let env = env_on(&disk);
    let store = open(&env).expect("one vBucket is lost");
    assert_eq!(lost(&store, &high, "the start"), BTreeSet::from([VbId(4)]));
    stop(&store, &BTreeSet::from([VbId(4)]), "the stop");
    drop(store);
    let found = survey(&env, DIR.as_ref()).expect("no fault is planned");
    assert_eq!(found.vbuckets.keys().copied().collect::<Vec<_>>(), [VbId(4)]);
    assert_eq!(found.vbuckets[&VbId(4)].kept, Seqno(2), "its file, and the change before the gap");
    apply(&env, DIR.as_ref(), "/data/quarantine".as_ref(), found).expect("no fault is planned");
    let store = open(&env).expect("it is repaired");
    let mut high = high;
    high.insert(VbId(4), 2);
    assert_eq!(lost(&store, &high, "after the repair"), BTreeSet::new());
}
