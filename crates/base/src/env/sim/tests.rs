//! What the simulated disk promises, against a model and case by case.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::env::{Disk, File, OpenMode};

fn path(name: &str) -> std::path::PathBuf {
    Path::new("/").join(name)
}

fn create(disk: &SimDisk, name: &str) -> Arc<dyn File> {
    let file = disk.open(&path(name), OpenMode::Create).expect("a fresh disk makes files");
    disk.sync_dir(Path::new("/")).expect("the root can be synced");
    file
}

fn content(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    disk.contents().into_iter().find(|(p, _)| *p == path(name)).map(|(_, bytes)| bytes)
}

#[derive(Clone, Debug)]
enum Op {
    Write { at: usize, len: usize },
    Cut { to: usize },
    Sync,
    FailSync,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_usize..6000, 1_usize..3000).prop_map(|(at, len)| Op::Write { at, len }),
        1 => (0_usize..7000).prop_map(|to| Op::Cut { to }),
        2 => Just(Op::Sync),
        1 => Just(Op::FailSync),
    ]
}

/// For each byte of a file, every value it may have after a power loss; the first is what a sync vouched for.
#[derive(Default)]
struct Model {
    now: Vec<u8>,
    allowed: Vec<Vec<u8>>,
    lengths: Vec<usize>,
    is_doubtful: bool,
}

impl Model {
    fn new() -> Model {
        Model { lengths: vec![0], ..Model::default() }
    }

    fn seen(&mut self) {
        self.allowed.resize(self.allowed.len().max(self.now.len()), vec![0]);
        for (i, values) in self.allowed.iter_mut().enumerate() {
            values.push(self.now.get(i).copied().unwrap_or(0));
            values.dedup();
        }
        self.lengths.push(self.now.len());
    }

    fn synced(&mut self) {
        if self.is_doubtful {
            return;
        }
        self.allowed = self.now.iter().map(|b| vec![*b]).collect();
        self.lengths = vec![self.now.len()];
    }

    fn check(&self, after: &[u8]) -> Result<(), TestCaseError> {
        let least = *self.lengths.iter().min().expect("never empty");
        let most = *self.lengths.iter().max().expect("never empty");
        prop_assert!((least..=most).contains(&after.len()), "{} not in {least}..={most}", after.len());
        for (i, byte) in after.iter().enumerate() {
            prop_assert!(self.allowed[i].contains(byte), "byte {i} is {byte}, allowed {:?}", self.allowed[i]);
        }
        Ok(())
    }
}

fn run(disk: &SimDisk, file: &dyn File, model: &mut Model, ops: &[Op]) {
    for (i, op) in ops.iter().enumerate() {
        match *op {
            Op::Write { at, len } => {
                let bytes = vec![i as u8 + 1; len];
                file.write_at(&bytes, at as u64).expect("no fault planned");
                model.now.resize(model.now.len().max(at + len), 0);
                model.now[at..at + len].copy_from_slice(&bytes);
                model.seen();
            }
            Op::Cut { to } => {
                file.set_len(to as u64).expect("no fault planned");
                model.now.resize(to, 0);
                model.seen();
            }
            Op::Sync => {
                file.sync_data().expect("no fault planned");
                model.synced();
            }
            Op::FailSync => {
                disk.plan(Fault::once(On::Kind(Call::Sync), 1, Effect::IO_ERROR));
                assert!(file.sync_data().is_err());
                disk.heal();
                model.is_doubtful = true;
            }
        }
    }
}

proptest! {
    #[test]
    fn a_crash_keeps_what_was_synced_and_invents_nothing(ops in proptest::collection::vec(op(), 1..25), seed: u64) {
        let disk = SimDisk::new();
        let file = create(&disk, "f");
        let mut model = Model::new();
        run(&disk, &*file, &mut model, &ops);
        prop_assert_eq!(content(&disk, "f"), Some(model.now.clone()));
        for n in 0..8 {
            let after = disk.image(Survival::Seeded(seed.wrapping_add(n)));
            model.check(&content(&after, "f").expect("the name was synced"))?;
        }
        let synced = content(&disk.image(Survival::Synced), "f").expect("the name was synced");
        model.check(&synced)?;
        prop_assert_eq!(content(&disk.image(Survival::Everything), "f"), Some(model.now));
    }

    #[test]
    fn the_same_seed_gives_the_same_crash(ops in proptest::collection::vec(op(), 1..25), seed: u64) {
        let crash = || {
            let disk = SimDisk::new();
            let file = create(&disk, "f");
            run(&disk, &*file, &mut Model::new(), &ops);
            disk.crash(seed).contents()
        };
        prop_assert_eq!(crash(), crash());
    }

    #[test]
    fn a_sector_is_never_torn(seeds in proptest::collection::vec(any::<u64>(), 20)) {
        let disk = SimDisk::new();
        let file = create(&disk, "f");
        for round in 1..5_u8 {
            file.write_at(&[round; 4096], 0).expect("no fault planned");
        }
        for seed in seeds {
            let after = content(&disk.image(Survival::Seeded(seed)), "f").expect("the name was synced");
            for sector in after.chunks(SECTOR_BYTES as usize) {
                prop_assert!(sector.iter().all(|b| *b == sector[0]));
            }
        }
    }

    #[test]
    fn names_come_and_go_in_order(ops in proptest::collection::vec((0_u8..3, 0_u8..4, 0_u8..4), 1..30), seed: u64) {
        // Each file holds its own number, synced, so that names can be told apart by what they lead to.
        let disk = SimDisk::new();
        let mut history: BTreeMap<u8, Vec<Option<u8>>> = (0..4).map(|n| (n, vec![None])).collect();
        let mut now: BTreeMap<u8, u8> = BTreeMap::new();
        for (i, (what, a, b)) in ops.into_iter().enumerate() {
            let number = i as u8;
            match what {
                0 => {
                    let _ = disk.remove_file(&path(&a.to_string()));
                    let file = disk.open(&path(&a.to_string()), OpenMode::CreateNew).expect("just removed");
                    file.write_at(&[number], 0).expect("no fault planned");
                    file.sync_data().expect("no fault planned");
                    now.insert(a, number);
                    history.entry(a).or_default().extend([None, Some(number)]);
                }
                1 if now.contains_key(&a) && a != b => {
                    disk.rename(&path(&a.to_string()), &path(&b.to_string())).expect("it is there");
                    let number = now.remove(&a).expect("it is there");
                    now.insert(b, number);
                    history.entry(a).or_default().push(None);
                    history.entry(b).or_default().push(Some(number));
                }
                2 => {
                    disk.sync_dir(Path::new("/")).expect("the root can be synced");
                    history = (0..4).map(|n| (n, vec![now.get(&n).copied()])).collect();
                }
                _ => {}
            }
        }
        let after = disk.crash(seed);
        for n in 0..4 {
            let found = content(&after, &n.to_string()).map(|bytes| bytes[0]);
            let allowed = &history[&n];
            prop_assert!(allowed.contains(&found), "{n} leads to {found:?}, allowed {allowed:?}");
        }
    }
}

#[test]
fn crashes_tear_lose_and_reorder() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    file.write_at(&[1; 2048], 0).expect("no fault planned");
    file.sync_data().expect("no fault planned");
    file.write_at(&[2; 1024], 0).expect("no fault planned");
    file.write_at(&[3; 1024], 1024).expect("no fault planned");
    let states: std::collections::BTreeSet<Vec<u8>> = (0..400)
        .map(|seed| content(&disk.image(Survival::Seeded(seed)), "f").expect("the name was synced"))
        .map(|bytes| bytes.chunks(512).map(|s| s[0]).collect())
        .collect();
    assert_eq!(states.len(), 16, "each of four sectors old or new: {states:?}");
    assert!(states.contains(&vec![1, 1, 3, 3]), "the second write without the first");
}

#[test]
fn a_later_sync_does_not_vouch_for_what_an_earlier_one_failed_to_write() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    file.write_at(&[1; 512], 0).expect("no fault planned");
    file.sync_data().expect("no fault planned");
    file.write_at(&[2; 512], 0).expect("no fault planned");
    disk.plan(Fault::once(On::Kind(Call::Sync), 1, Effect::IO_ERROR));
    assert_eq!(file.sync_data().expect_err("planned").raw_os_error(), Some(libc::EIO));
    file.write_at(&[3; 512], 512).expect("no fault planned");
    file.sync_data().expect("only one fault was planned");
    assert_eq!(content(&disk, "f").expect("open")[0], 2, "the page cache shows it all the while");
    let lost = content(&disk.image(Survival::Synced), "f").expect("the name was synced");
    assert_eq!((lost[0], lost[512]), (1, 3));
    // Written again, the page is dirty again, and the next sync is good for it.
    file.write_at(&[2; 512], 0).expect("no fault planned");
    file.sync_data().expect("no fault planned");
    let kept = content(&disk.image(Survival::Synced), "f").expect("the name was synced");
    assert_eq!((kept[0], kept[512]), (2, 3));
}

#[test]
fn names_are_durable_after_their_folder_was_synced() {
    let disk = SimDisk::new();
    let folder = path("a/b");
    disk.create_dir_all(&folder).expect("fresh disk");
    let file = disk.open(&folder.join("f.tmp"), OpenMode::CreateNew).expect("the folder is there");
    file.write_at(b"x", 0).expect("no fault planned");
    file.sync_data().expect("no fault planned");
    assert!(disk.image(Survival::Synced).contents().is_empty(), "no folder was synced");
    disk.sync_dir(Path::new("/")).expect("root");
    disk.sync_dir(&path("a")).expect("a");
    disk.sync_dir(&folder).expect("b");
    disk.rename(&folder.join("f.tmp"), &folder.join("f")).expect("it is there");
    assert_eq!(disk.image(Survival::Synced).contents(), [(folder.join("f.tmp"), b"x".to_vec())]);
    disk.sync_dir(&folder).expect("b");
    assert_eq!(disk.image(Survival::Synced).contents(), [(folder.join("f"), b"x".to_vec())]);
    assert_eq!(disk.read_dir(&folder).expect("it is there"), ["f"]);
    assert_eq!(disk.read_dir(Path::new("/")).expect("it is there"), ["a"]);
}

#[test]
fn the_power_goes_during_the_nth_change() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    disk.plan(Fault::power_off_at(2));
    file.write_at(b"one", 0).expect("the first is fine");
    assert!(file.read_at(&mut [0; 3], 0).is_ok(), "reads are not counted");
    assert!(file.sync_data().is_err());
    assert!(disk.is_off());
    assert!(file.read_at(&mut [0; 3], 0).is_err(), "everything fails from now on");
    assert!(disk.open(&path("f"), OpenMode::Read).is_err());
    assert_eq!(content(&disk.image(Survival::Synced), "f"), Some(Vec::new()));
    let after = disk.crash(7);
    let file = after.open(&path("f"), OpenMode::ReadWrite).expect("a new life");
    file.write_at(b"two", 0).expect("no faults are inherited");
}

#[test]
fn handles_die_in_a_crash() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    let after = disk.crash(1);
    assert!(file.write_at(b"late", 0).is_err());
    assert_eq!(content(&after, "f"), Some(Vec::new()));
}

#[test]
fn writes_fail_as_planned() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    disk.plan(Fault::once(On::Kind(Call::Write), 1, Effect::Short { bytes: 2, errno: libc::ENOSPC }));
    disk.plan(Fault::for_ever(On::Kind(Call::Write), 3, Effect::DISK_FULL));
    assert_eq!(file.write_at(b"abcd", 0).expect_err("short").kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(file.len().expect("reads go on"), 2);
    file.write_at(b"abcd", 0).expect("between the faults");
    assert!(file.write_at(b"x", 9).is_err());
    assert!(file.write_at(b"x", 9).is_err());
    disk.heal();
    file.write_at(b"x", 4).expect("healed");
    assert_eq!(content(&disk, "f"), Some(b"abcdx".to_vec()));
    assert_eq!(disk.calls(On::Kind(Call::Write)), 5);
}

#[test]
fn a_recording_rebuilds_every_moment() {
    let disk = SimDisk::new();
    disk.record();
    let file = create(&disk, "f");
    let mut moments = vec![(disk.changes(), content(&disk, "f"))];
    for n in 0..20_u64 {
        file.write_at(&[n as u8; 700], n * 300).expect("no fault planned");
        if n % 3 == 0 {
            file.sync_data().expect("no fault planned");
        }
        moments.push((disk.changes(), content(&disk, "f")));
    }
    let recording = disk.recording().expect("it was started");
    let mut replay = recording.replay();
    for (changes, expected) in moments {
        while replay.done() as u64 != changes {
            assert!(replay.step());
        }
        assert_eq!(content(&replay.image(Survival::Everything), "f"), expected);
    }
    assert!(!replay.step());
    assert_eq!(replay.image(Survival::Seeded(3)).contents(), disk.image(Survival::Seeded(3)).contents());
}

#[test]
fn opens_as_asked() {
    use std::io::ErrorKind;
    let disk = SimDisk::new();
    let kind = |r: std::io::Result<Arc<dyn File>>| r.err().map(|e| e.kind());
    assert_eq!(kind(disk.open(&path("f"), OpenMode::Read)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.open(&path("no/f"), OpenMode::Create)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.open(&path("f"), OpenMode::CreateNew)), None);
    assert_eq!(kind(disk.open(&path("f"), OpenMode::CreateNew)), Some(ErrorKind::AlreadyExists));
    assert_eq!(kind(disk.open(Path::new("/"), OpenMode::Read)), Some(ErrorKind::IsADirectory));
    let read = disk.open(&path("f"), OpenMode::Read).expect("it is there");
    assert!(read.write_at(b"x", 0).is_err());
    disk.remove_file(&path("f")).expect("it is there");
    assert_eq!(read.len().expect("the handle lives on"), 0);
    assert_eq!(disk.remove_file(&path("f")).expect_err("gone").kind(), ErrorKind::NotFound);
}

#[test]
fn bits_rot() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    file.write_at(b"abc", 0).expect("no fault planned");
    assert!(disk.rot(&path("f"), 1, 0x01).expect("it is there"));
    assert!(!disk.rot(&path("f"), 3, 0x01).expect("it is there"));
    assert_eq!(content(&disk, "f"), Some(b"acc".to_vec()));
}

#[test]
fn a_header_often_outlives_its_data() {
    let disk = SimDisk::new();
    let file = create(&disk, "f");
    file.write_at(&[1; 5000], 0).expect("no fault planned");
    file.sync_data().expect("no fault planned");
    file.write_at(&[2; 3000], 5000).expect("no fault planned");
    file.write_at(&[3; 100], 8192).expect("no fault planned");
    let orphans = (0..300)
        .map(|seed| content(&disk.image(Survival::Seeded(seed)), "f").expect("the name was synced"))
        .filter(|bytes| bytes.get(8192) == Some(&3) && bytes[5000..8000].iter().all(|b| *b != 2));
    let orphans = orphans.count();
    assert!(orphans > 8, "{orphans} of 300");
}

#[test]
fn folders_can_be_made_durably() {
    for folder in ["/a/b/c", "a/b/c"] {
        let disk = SimDisk::new();
        disk.create_dir_all_synced(Path::new(folder)).expect("fresh disk");
        let after = disk.image(Survival::Synced);
        assert_eq!(after.read_dir(Path::new(folder)).expect("it survived"), Vec::<String>::new());
    }
    let folder = tempfile::tempdir().expect("the machine has a disk");
    let deep = folder.path().join("a/b");
    crate::env::RealDisk.create_dir_all_synced(&deep).expect("it is ours");
    assert!(crate::env::RealDisk.read_dir(&deep).is_ok());
}

#[test]
fn images_are_told_apart_by_their_marks() {
    let disk = SimDisk::new();
    disk.record();
    let file = create(&disk, "f");
    let mut rng = SplitMix64::new(5);
    for _ in 0..6 {
        let bytes = vec![rng.next_u64() as u8; rng.between(1, 2000) as usize];
        file.write_at(&bytes, rng.below(3000)).expect("no fault planned");
    }
    let recording = disk.recording().expect("it was started");
    let mut replay = recording.replay();
    let mut by_mark = BTreeMap::new();
    while replay.step() {
        if !replay.next_is_sync() && replay.done() > 2 {
            assert!(replay.is_unsynced());
            for seed in 0..50 {
                let (image, mark) = replay.image_marked(Survival::Seeded(seed));
                let contents = image.contents();
                assert_eq!(by_mark.entry(mark).or_insert_with(|| contents.clone()), &contents);
            }
        }
    }
    let distinct: std::collections::BTreeSet<_> = by_mark.values().collect();
    assert_eq!(distinct.len(), by_mark.len());
    assert!(by_mark.len() > 50);
}

#[test]
fn a_folder_that_is_renamed_takes_along_what_is_in_it_or_stays_as_a_whole() {
    let disk = SimDisk::new();
    disk.create_dir_all_synced(&path("from/in")).expect("a fresh disk makes folders");
    disk.create_dir_all_synced(&path("to")).expect("a fresh disk makes folders");
    for name in ["from/a", "from/in/b"] {
        let file = disk.open(&path(name), OpenMode::Create).expect("a fresh disk makes files");
        file.write_at(name.as_bytes(), 0).expect("a write");
        file.sync_data().expect("a sync");
    }
    ["from", "from/in"].iter().for_each(|name| disk.sync_dir(&path(name)).expect("a sync"));
    disk.rename(&path("from"), &path("to/new")).expect("nothing is in the way");
    let at = |disk: &SimDisk, folder: &str| {
        let is_there =
            |name: &str, bytes: &str| content(disk, &format!("{folder}/{name}")) == Some(bytes.into());
        [is_there("a", "from/a"), is_there("in/b", "from/in/b")]
    };
    assert_eq!((at(&disk, "to/new"), at(&disk, "from")), ([true; 2], [false; 2]));
    for seed in 0..64 {
        let after = disk.image(Survival::Seeded(seed));
        let (new, old) = (at(&after, "to/new"), at(&after, "from"));
        assert!((new, old) == ([true; 2], [false; 2]) || (new, old) == ([false; 2], [true; 2]), "{seed}");
    }
    assert_eq!(at(&disk.image(Survival::Synced), "from"), [true; 2], "no folder of the names was synced");
    disk.sync_dir(&path("to")).expect("a sync");
    assert_eq!(at(&disk.image(Survival::Synced), "to/new"), [true; 2]);
    assert!(disk.image(Survival::Synced).read_dir(&path("from")).is_err());
}
