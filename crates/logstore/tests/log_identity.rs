//! A file of another folder, of another shard, or of a copy of the folder that went on by itself is refused, and so is a
//! manifest of these; what is served is what was committed here. Once the right file is back, everything is served.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base::env::sim::{SimDisk, SimHandles, SplitMix64, Survival};
use base::env::{Disk, Env, OpenMode};
use logstore::{Config, Failure, LogStore, Trust};
use world::{DIR, Doc, TestBatch, config};

const VBS: u16 = 4;
const KEYS: u64 = 20;

type Commits = BTreeMap<u16, u64>;

/// A folder, what its random numbers come from, and what its documents begin with.
struct Folder {
    disk: SimDisk,
    seed: u64,
    owner: u128,
    mark: u8,
    commits: Commits,
}

impl Folder {
    fn new(owner: u128) -> Folder {
        let (disk, seed, mark) = (SimDisk::new(), owner as u64, owner as u8);
        Folder { disk, seed, owner, mark, commits: Commits::new() }
    }

    /// A copy that goes on by itself.
    fn copy(&self, seed: u64) -> Folder {
        let (disk, commits) = (self.disk.image(Survival::Everything), self.commits.clone());
        Folder { disk, seed, owner: self.owner, mark: seed as u8, commits }
    }

    fn env(&self) -> Env {
        SimHandles::new(self.seed).with_disk(self.disk.clone()).env()
    }

    fn config(&self) -> Config {
        Config { owner: self.owner, manifest_bytes: 100_000, ..config() }
    }

    /// As its caller has it on record.
    fn open(&self) -> Result<LogStore, Failure> {
        let missing = BTreeSet::new();
        let trust = Trust::Record { commits: &self.commits, missing: &missing };
        LogStore::open(&self.env(), Path::new(DIR), self.config(), &trust)
    }

    /// All keys of each vBucket get a version, with one commit.
    fn commit(&mut self, round: u64) {
        let store = self.open().expect("it is sound");
        for vb in 0..VBS {
            let mut batch = batch(vb, round, self.mark);
            let commit = store.commit(&mut [&mut batch]).remove(0).expect("no fault is planned");
            self.commits.insert(vb, commit.number);
        }
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.disk.contents().into_iter().collect()
    }

    fn put(&self, path: &Path, bytes: &[u8]) {
        let file = self.disk.open(path, OpenMode::Create).expect("no fault is planned");
        let put = file.set_len(0).and_then(|()| file.write_at(bytes, 0)).and_then(|()| file.sync_data());
        put.expect("no fault is planned");
    }

    /// What is wrong with each vBucket when all of it is read, if anything is. What is served is right.
    fn refusals(&self, round: u64) -> BTreeMap<u16, String> {
        let store = match self.open() {
            Ok(store) => store,
            Err(failure) => return (0..VBS).map(|vb| (vb, failure.to_string())).collect(),
        };
        let read = |vb| Some((vb, self.refusal(&store, vb, round)?));
        (0..VBS).filter_map(read).collect()
    }

    fn refusal(&self, store: &LogStore, vb: u16, round: u64) -> Option<String> {
        let view = match store.snapshot(vb) {
            Ok(view) => view.expect("a vBucket is never absent"),
            Err(failure) => return Some(failure.to_string()),
        };
        let mut refused = None;
        for (key, doc) in batch(vb, round, self.mark).items {
            match view.get(&key, |item| item.value.to_vec()) {
                Ok(value) => assert_eq!(value, Some(doc.value), "vBucket {vb}, {}", key.escape_ascii()),
                Err(failure) => refused = Some(failure.to_string()),
            }
        }
        let mut items = 0;
        let scanned = view.scan::<Failure>(0, |item| {
            assert_eq!(item.value, value(round, self.mark), "vBucket {vb}");
            items += 1;
            Ok(std::ops::ControlFlow::Continue(()))
        });
        assert!(scanned.is_err() || items == KEYS, "{items}");
        scanned.err().map(|failure| failure.to_string()).or(refused)
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let fault = &mut |failure: &Failure| faults.push(failure.to_string());
        logstore::check(&self.env(), Path::new(DIR), self.owner, fault, &mut |_| {}).expect("it is listed");
        faults
    }
}

/// As long as that with another mark, compressed or not.
fn value(round: u64, mark: u8) -> Vec<u8> {
    let mut rng = SplitMix64::new(round);
    let mut value: Vec<u8> = (0..60).map(|_| rng.next_u64() as u8).collect();
    value[30] = mark;
    value
}

fn batch(vb: u16, round: u64, mark: u8) -> TestBatch {
    let doc = |key| Doc { seqno: round * KEYS + key + 1, flags: 0, value: value(round, mark) };
    let items = (0..KEYS).map(|key| (format!("key{key:04}").into_bytes(), doc(key))).collect();
    TestBatch { vb, items, mark: round, count: 0 }
}

/// The shard of a file's name.
fn shard_of(path: &Path) -> u16 {
    let name = path.file_name().expect("a name").to_string_lossy();
    name.split(['-', '.']).next().and_then(|shard| shard.parse().ok()).expect("a number")
}

/// Puts a foreign file in the place of one, looks at what is served, and puts the right one back.
fn expect_refused(folder: &Folder, path: &Path, foreign: &[u8], round: u64, words: &str) {
    let before = folder.files();
    folder.put(path, foreign);
    let faults = folder.faults();
    let refused = folder.refusals(round);
    // A run that has nothing but replaced versions is not read.
    assert!(!refused.is_empty() || path.extension().is_some_and(|end| end == "run"), "{}", path.display());
    let of_shard = |vb: &u16| vb % 2 == shard_of(path);
    assert!(refused.keys().all(of_shard), "{}: others are served: {refused:?}", path.display());
    assert!(refused.values().all(|what| what.contains(words)), "{}: {refused:?}", path.display());
    let is_manifest = path.extension().is_some_and(|end| end == "manifest");
    assert!(is_manifest || faults.iter().any(|what| what.contains(words)), "{}: {faults:?}", path.display());
    let after = folder.files();
    assert!(before.keys().all(|path| after.contains_key(path)), "{}: nothing is removed", path.display());
    folder.put(path, &before[path]);
    assert_eq!(folder.refusals(round), BTreeMap::new(), "{} is back", path.display());
}

#[test]
fn a_file_of_another_folder_is_refused() {
    let mut folders = [Folder::new(1), Folder::new(2)];
    for round in 0..3 {
        folders.iter_mut().for_each(|folder| folder.commit(round));
    }
    let [one, other] = folders.each_ref().map(Folder::files);
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (path, foreign) in &other {
        let is_manifest = path.extension().is_some_and(|end| end == "manifest");
        assert!(is_manifest || foreign.len() == one[path].len(), "{}", path.display());
        // Files of earlier rounds hold what is replaced: scans look at them.
        expect_refused(&folders[0], path, foreign, 2, "it is of store 00000000000000000000000000000002");
    }
}

#[test]
fn a_file_of_another_shard_is_refused() {
    let mut folder = Folder::new(1);
    (0..3).for_each(|round| folder.commit(round));
    let files = folder.files();
    let mut tried = 0;
    for (path, bytes) in &files {
        let name = path.file_name().expect("a name").to_string_lossy();
        let (_, rest) = name.split_at(1);
        let other = path.with_file_name(format!("{}{rest}", 1 - shard_of(path)));
        expect_refused(&folder, &other, bytes, 2, &format!("of shard {}", shard_of(path)));
        tried += 1;
    }
    assert_eq!(tried, files.len());
}

#[test]
fn a_file_of_a_copy_that_went_on_by_itself_is_refused() {
    let mut folder = Folder::new(1);
    (0..2).for_each(|round| folder.commit(round));
    let mut copy = folder.copy(7);
    // The copy is ahead, so that its manifests have later commits.
    (2..5).for_each(|round| copy.commit(round));
    (2..4).for_each(|round| folder.commit(round));
    let (here, there) = (folder.files(), copy.files());
    let mut tried = 0;
    for (path, foreign) in
        there.iter().filter(|(path, bytes)| here.get(*path).is_some_and(|one| one != *bytes))
    {
        let is_manifest = path.extension().is_some_and(|end| end == "manifest");
        let words = if is_manifest { "a copy of the folder" } else { "a copy of this folder" };
        expect_refused(&folder, path, foreign, 3, words);
        tried += 1;
    }
    assert!(tried >= 10, "{tried} files");
}

/// The copy has all commits that are on record, and has merged: what its manifest does not name stays.
#[test]
fn nothing_is_removed_for_the_manifest_of_a_copy() {
    let mut folder = Folder::new(1);
    (0..4).for_each(|round| folder.commit(round));
    let copy = folder.copy(7);
    for one in [&folder, &copy] {
        let store = one.open().expect("it is sound");
        if one.seed == 1 {
            while store.step().expect("no fault is planned") {}
        }
    }
    let (here, there) = (folder.files(), copy.files());
    for path in here.keys().filter(|path| path.extension().is_some_and(|end| end == "manifest")) {
        folder.put(path, &there[path]);
        folder.refusals(3);
        folder.put(path, &here[path]);
        assert_eq!(folder.refusals(3), BTreeMap::new(), "{}", path.display());
    }
}

/// A start may ask for any commit that the caller has not replaced by another on record.
#[test]
fn what_may_be_on_record_stays() {
    let mut folder = Folder::new(1);
    let config = Config { has_record: true, ..folder.config() };
    let store = LogStore::open(&folder.env(), Path::new(DIR), config, &Trust::Last).expect("it is new");
    let mut commits = Vec::new();
    let refused = loop {
        let mut batch = batch(0, commits.len() as u64, 1);
        match store.commit(&mut [&mut batch]).remove(0) {
            Ok(commit) => commits.push(commit.number),
            Err(failure) => break failure.to_string(),
        }
    };
    assert!(commits.len() >= 32 && refused.contains("not on record"), "{}: {refused}", commits.len());
    let last = *commits.last().expect("there are some");
    store.recorded(0, last);
    for round in 0..20 {
        let mut batch = batch(0, commits.len() as u64 + round, 1);
        store.commit(&mut [&mut batch]).remove(0).expect("the others are on record");
    }
    drop(store);
    folder.commits.insert(0, last);
    assert_eq!(folder.refusal(&folder.open().expect("it opens"), 0, commits.len() as u64 - 1), None);
}
