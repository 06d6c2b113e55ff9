//! A file of a log-structured store that comes from another bucket, or from a copy of the folder that went on by itself:
//! what it holds is refused, the rest is served, a check tells of it, and once the right file is back all is served.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::env::sim::{SimDisk, SimHandles, SplitMix64, Survival};
use base::env::{Disk, Env, OpenMode};
use base::{DocKey, VbId, VbState};
use kvstore::{
    Background, Failure, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, SaveBatch, VbStateDoc,
    check_log, is_log_file,
};
use store_suite::version;

const DIR: &str = "/data";
const VBUCKETS: u16 = 8;
const SHARDS: u16 = 2;

type Contents = BTreeMap<PathBuf, Vec<u8>>;

/// A bucket's folder, and what its random numbers and values come from.
struct Folder {
    disk: SimDisk,
    seed: u64,
}

impl Folder {
    fn env(&self) -> Env {
        SimHandles::new(self.seed).with_disk(self.disk.clone()).env()
    }

    fn open(&self) -> Result<Journaled, Failure> {
        self.start(self.seed).map(|(store, _)| store)
    }

    /// Starts with random numbers of these.
    fn start(&self, seed: u64) -> Result<(Journaled, SimHandles), Failure> {
        let handles = SimHandles::new(seed).with_disk(self.disk.clone());
        let store = logstore::Config { shards: usize::from(SHARDS), ..logstore::Config::default() };
        let files = FilesConfig::Log(LogConfig { store, ..LogConfig::default() });
        let config = JournaledConfig { files, journal_bytes: 256 << 10, ..JournaledConfig::default() };
        Ok((Journaled::open(handles.env(), DIR.as_ref(), config)?, handles))
    }

    fn value(&self, seqno: u64) -> Vec<u8> {
        // As long as that of another folder, compressed or not.
        let mut rng = SplitMix64::new(seqno);
        let mut value: Vec<u8> = (0..40).map(|_| rng.next_u64() as u8).collect();
        value[20] = self.seed as u8;
        value
    }

    /// Each vBucket gets a version, which is filed, and the node stops or is killed.
    fn live(&self, seqno: u64, stops: bool) {
        let (store, handles) = self.start(self.seed << 8 | seqno).expect("it is sound");
        for vb in (0..VBUCKETS).map(VbId) {
            let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
            let items = [version(0, "k", seqno, &self.value(seqno))];
            store.save(vb, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
        }
        if stops {
            store.close().expect("no fault is planned");
        } else {
            handles.clock.advance(std::time::Duration::from_secs(3600));
            while store.background_step().expect("no fault is planned") == Background::Worked {}
        }
    }

    fn files(&self) -> Contents {
        self.disk.contents().into_iter().collect()
    }

    fn put(&self, path: &Path, bytes: &[u8]) {
        let file = self.disk.open(path, OpenMode::Create).expect("no fault is planned");
        let put = file.set_len(0).and_then(|()| file.write_at(bytes, 0)).and_then(|()| file.sync_data());
        put.expect("no fault is planned");
    }

    fn image(&self, seed: u64) -> Folder {
        Folder { disk: self.disk.image(Survival::Everything), seed }
    }

    /// vBuckets that are refused, and why; what is served is right.
    fn refused(&self, seqno: u64) -> BTreeMap<u16, String> {
        let store = match self.open() {
            Ok(store) => store,
            Err(failure) => return (0..VBUCKETS).map(|vb| (vb, failure.to_string())).collect(),
        };
        let read = |vb| match store.get(VbId(vb), DocKey::new(b"k")) {
            Ok(found) => {
                let found = found.expect("a vBucket is never absent");
                assert_eq!(found.value(), self.value(seqno), "vBucket {vb}");
                None
            }
            Err(failure) => Some((vb, failure.to_string())),
        };
        (0..VBUCKETS).filter_map(read).collect()
    }

    fn checked(&self) -> String {
        let report = check_log(&self.env(), DIR.as_ref(), &mut |_| {}).expect("the disk works");
        report.faults.into_iter().map(|(.., what)| what).collect::<Vec<_>>().join("; ")
    }
}

fn is_of_store(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_log_file(&name.to_string_lossy()))
}

/// Puts each file of the store of another folder in the place of the one of its name; answers for how many of them
/// something was refused: what was replaced is not read.
fn try_each(folder: &Folder, other: &Folder, seqno: u64) -> usize {
    let (here, there) = (folder.files(), other.files());
    let differs = |(path, bytes): &(&PathBuf, &Vec<u8>)| {
        is_of_store(path) && here.get(*path).is_some_and(|one| one != *bytes)
    };
    let mut all_refused = 0;
    for (path, bytes) in there.iter().filter(differs) {
        let tries = folder.image(folder.seed);
        tries.put(path, bytes);
        let checked = tries.checked();
        let refused = tries.refused(seqno);
        assert!(!checked.is_empty(), "{}: {refused:?}", path.display());
        let shards: Vec<u16> = refused.keys().map(|vb| vb % SHARDS).collect();
        let is_of_bucket = refused.values().any(|what| what.contains("catalog"));
        assert!(
            is_of_bucket || shards.windows(2).all(|two| two[0] == two[1]),
            "{}: {refused:?}",
            path.display()
        );
        for (path, bytes) in &here {
            tries.put(path, bytes);
        }
        assert_eq!(tries.refused(seqno), BTreeMap::new(), "{} is back", path.display());
        all_refused += usize::from(!refused.is_empty());
    }
    all_refused
}

#[test]
fn a_file_of_another_bucket_is_refused() {
    for stops in [true, false] {
        let folders = [1, 2].map(|seed| Folder { disk: SimDisk::new(), seed });
        for folder in &folders {
            (1..3).for_each(|seqno| folder.live(seqno, stops || seqno == 1));
        }
        let refused = try_each(&folders[0], &folders[1], 2);
        assert!(refused >= 6, "{refused} files");
    }
}

#[test]
fn a_file_of_a_copy_that_went_on_by_itself_is_refused() {
    for stops in [true, false] {
        let folder = Folder { disk: SimDisk::new(), seed: 1 };
        folder.live(1, true);
        let copy = folder.image(2);
        // The copy is ahead, so that what it has on record is later.
        (2..5).for_each(|seqno| copy.live(seqno, true));
        folder.live(2, stops);
        let refused = try_each(&folder, &copy, 2);
        assert!(refused >= 6, "{refused} files");
    }
}
