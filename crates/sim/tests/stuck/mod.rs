//! A vBucket whose file, or in a log-structured store the manifest of whose shard, cannot be brought up to date, a journal at its limit, and the power going at any moment: what was
//! acknowledged is there afterwards, each key with its last value. Keys and contents are compared as a whole, since a save
//! that is lost can hide behind a later one (record 53).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::env::sim::{Recording, SimDisk, SimHandles, SplitMix64, Survival};
use base::env::{Disk, Env, OpenMode};
use base::{DocKey, Seqno, VbId, VbState};
use kvstore::{Failure, FilesConfig, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use sim::kv::subjects::small_log;
use store_suite::version;

const DIR: &str = "/data";
const BAD: VbId = VbId(1);
const OTHERS: [VbId; 3] = [VbId(0), VbId(2), VbId(3)];
const JOURNAL_BYTES: u64 = 64 << 10;
/// Moments at which the power goes, of one run.
const CRASHES: u64 = 24;

/// After so many changes of the disk a save was acknowledged: vBucket and seqno.
type Acknowledged = Vec<(u64, VbId, u64)>;

/// What is behind the journal.
#[derive(Clone, Copy, Debug)]
pub enum Files {
    Couch,
    /// Each of the vBuckets has a shard of its own.
    Log,
}

impl Files {
    fn open(self, env: &Env) -> Result<Journaled, Failure> {
        let mut config = JournaledConfig { journal_bytes: JOURNAL_BYTES, ..JournaledConfig::default() };
        if let Files::Log = self {
            let mut log = small_log(2 << 10, 8 << 10, 16 << 10);
            log.store.shards = 1 + OTHERS.len();
            config.files = FilesConfig::Log(log);
        }
        Journaled::open(env.clone(), DIR.as_ref(), config)
    }

    /// The file without which nothing of `BAD` can be filed.
    fn of_bad(self, disk: &dyn Disk) -> PathBuf {
        let prefix = match self {
            Files::Couch => format!("{BAD}.couch."),
            Files::Log => format!("{}.manifest", BAD.0),
        };
        let names = disk.read_dir(Path::new(DIR)).expect("no fault is planned");
        let name = names.into_iter().find(|name| name.starts_with(&prefix)).expect("it is filed");
        Path::new(DIR).join(name)
    }
}

/// Each third save overwrites the key of an earlier one.
fn key_of(seqno: u64) -> String {
    if seqno.is_multiple_of(3) { format!("k{}", seqno / 2) } else { format!("k{seqno}") }
}

fn save(store: &Journaled, vb: VbId, seqno: u64, bytes: usize) -> Result<(), Failure> {
    let state = VbStateDoc { state: VbState::Active, max_cas: seqno, ..VbStateDoc::default() };
    let items = [version(0, &key_of(seqno), seqno, &vec![b'v'; bytes])];
    store.save(vb, SaveBatch { items: &items, state: &state })
}

/// Puts other bytes in the place of a file's; returns what it held.
fn exchange(files: Files, disk: &dyn Disk, bytes: Option<&[u8]>) -> Vec<u8> {
    let file = disk.open(&files.of_bad(disk), OpenMode::ReadWrite).expect("it is there");
    let mut before = vec![0; file.len().expect("no fault is planned") as usize];
    file.read_at(&mut before, 0).expect("no fault is planned");
    let garbage = vec![0xee; before.len()];
    let bytes = bytes.unwrap_or(&garbage);
    file.set_len(bytes.len() as u64).expect("no fault is planned");
    file.write_at(bytes, 0).and_then(|()| file.sync_data()).expect("no fault is planned");
    before
}

/// What differs of a vBucket from its saves up to `high`; saves that were not acknowledged may be there.
fn difference(store: &Journaled, vb: VbId, high: u64) -> Option<String> {
    let found = match store.snapshot(vb) {
        Ok(found) => found.map_or(Seqno(0), |snapshot| snapshot.high_seqno()),
        Err(failure) => return Some(format!("{vb}: {failure}")),
    };
    if found < Seqno(high) {
        return Some(format!("{vb}: high seqno {found}, and {high} was acknowledged"));
    }
    let wanted: BTreeMap<String, u64> = (1..=found.0).map(|seqno| (key_of(seqno), seqno)).collect();
    let is_right = |(key, seqno): (&String, &u64)| {
        let version = store.get(vb, DocKey::new(key.as_bytes()));
        version.is_ok_and(|found| found.is_some_and(|found| found.meta().by_seqno == Seqno(*seqno)))
    };
    let wrong = wanted.iter().filter(|entry| !is_right(*entry)).count();
    (wrong > 0).then(|| format!("{vb}: {wrong} of {} keys are missing or wrong", wanted.len()))
}

/// Saves while a file is damaged; what the disk did meanwhile, and what the file held.
fn run(files: Files, seed: u64) -> (SimHandles, Recording, Acknowledged, Vec<u8>) {
    let mut rng = SplitMix64::new(seed);
    let (env, handles) = Env::sim(seed);
    let store = files.open(&env).expect("no fault is planned");
    for vb in OTHERS.into_iter().chain([BAD]) {
        save(&store, vb, 1, 40).expect("no fault is planned");
    }
    store.close().expect("no fault is planned");
    drop(store);
    let sound = exchange(files, &*env.disk, None);
    let store = files.open(&env).expect("no fault is planned");
    handles.disk.record();
    let mut acknowledged = Acknowledged::new();
    let mut next: BTreeMap<VbId, u64> = OTHERS.into_iter().chain([BAD]).map(|vb| (vb, 2)).collect();
    let most = rng.between(20, 100);
    for _ in 0..rng.between(150, 400) {
        let is_bad = rng.chance(1, 3) && next[&BAD] < most;
        let (vb, bytes) = if is_bad {
            (BAD, rng.between(1, 60) as usize)
        } else {
            (OTHERS[rng.below(OTHERS.len() as u64) as usize], rng.between(200, 1_500) as usize)
        };
        // One that has too much that cannot be filed takes no more.
        if save(&store, vb, next[&vb], bytes).is_ok() {
            acknowledged.push((handles.disk.changes(), vb, next[&vb]));
            *next.entry(vb).or_default() += 1;
        }
    }
    let recording = handles.disk.recording().expect("it is recorded");
    (handles, recording, acknowledged, sound)
}

/// The power goes at some moments of a run, and the file is mended: what is wrong then.
pub fn crashes(files: Files, seed: u64) -> Result<(), String> {
    let (handles, recording, acknowledged, sound) = run(files, seed);
    let mut rng = SplitMix64::new(!seed);
    let total = recording.len() as u64;
    let mut moments: Vec<u64> = (0..CRASHES).map(|_| rng.between(1, total)).chain([total]).collect();
    moments.sort_unstable();
    let mut replay = recording.replay();
    let mut done = 0;
    for at in moments {
        while done < at && replay.step() {
            done += 1;
        }
        let disks: [SimDisk; 2] = [replay.killed(), replay.image(Survival::Synced)];
        for disk in disks {
            let env = handles.with_disk(disk).env();
            exchange(files, &*env.disk, Some(&sound));
            let store = files.open(&env).map_err(|failure| format!("crash at {at}: {failure}"))?;
            let mut high: BTreeMap<VbId, u64> = BTreeMap::new();
            for (_, vb, seqno) in acknowledged.iter().filter(|(when, ..)| *when <= at) {
                high.insert(*vb, *seqno);
            }
            let wrong = high.iter().find_map(|(vb, high)| difference(&store, *vb, *high));
            wrong.map_or(Ok(()), |wrong| Err(format!("crash at {at} of {total}: {wrong}")))?;
        }
    }
    Ok(())
}
