//! What is journaled again, because a file cannot be brought up to date, survives each crash: with distinct keys and
//! whole contents, for a file at fault, a journal at its limit, and a restart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::env::sim::{SimDisk, Survival};
use base::env::{Disk, Env, OpenMode};
use base::{DocKey, Seqno, VbId, VbState};
use kvstore::{Failure, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

const DIR: &str = "/data";
const BAD: VbId = VbId(3);
const JOURNAL_BYTES: u64 = 256 << 10;
const VBUCKETS: u16 = 6;
const BAD_SAVES: u64 = 110;
const ROUNDS: u64 = 260;

fn open(env: &Env) -> Result<Journaled, Failure> {
    let config = JournaledConfig { journal_bytes: JOURNAL_BYTES, ..JournaledConfig::default() };
    Journaled::open(env.clone(), DIR.as_ref(), config)
}

/// Each third save overwrites the key of an earlier one; the others have keys of their own.
fn key_of(seqno: u64) -> String {
    if seqno.is_multiple_of(3) { format!("k{}", seqno / 2) } else { format!("k{seqno}") }
}

fn save(store: &Journaled, vb: VbId, seqno: u64, size: usize) -> Result<(), Failure> {
    let state = VbStateDoc { state: VbState::Active, max_cas: seqno, ..VbStateDoc::default() };
    let value = format!("{seqno} ").repeat(size);
    let items = [version(0, &key_of(seqno), seqno, value.as_bytes())];
    store.save(vb, SaveBatch { items: &items, state: &state })
}

fn file_of(disk: &dyn Disk, vb: VbId) -> PathBuf {
    let names = disk.read_dir(Path::new(DIR)).expect("the disk works");
    let name = names.into_iter().find(|name| name.starts_with(&format!("{vb}.couch."))).expect("filed");
    Path::new(DIR).join(name)
}

/// Puts other bytes in the place of a file's; returns what it held.
fn exchange(disk: &dyn Disk, vb: VbId, bytes: Option<&[u8]>) -> Vec<u8> {
    let file = disk.open(&file_of(disk, vb), OpenMode::ReadWrite).expect("it is there");
    let mut before = vec![0; file.len().expect("the disk works") as usize];
    assert_eq!(file.read_at(&mut before, 0).expect("the disk works"), before.len());
    let garbage = vec![0xee; before.len()];
    let bytes = bytes.unwrap_or(&garbage);
    file.set_len(bytes.len() as u64).expect("the disk works");
    file.write_at(bytes, 0).expect("the disk works");
    file.sync_data().expect("the disk works");
    before
}

/// The seqno of each key of a vBucket that holds all saves up to `high`.
fn contents(high: u64) -> BTreeMap<String, u64> {
    (1..=high).map(|seqno| (key_of(seqno), seqno)).collect()
}

/// What differs of a vBucket from its saves up to `high`; saves that were not acknowledged may be there.
fn difference(store: &Journaled, vb: VbId, high: u64) -> Option<String> {
    let found = store.snapshot(vb).expect("readable").map_or(Seqno(0), |snapshot| snapshot.high_seqno());
    if found < Seqno(high) {
        return Some(format!("{vb}: high seqno {found}, acknowledged {high}"));
    }
    let wanted = contents(found.0);
    let is_right = |(key, seqno): (&String, &u64)| {
        let version = store.get(vb, DocKey::new(key.as_bytes())).expect("readable");
        version.is_some_and(|version| version.meta().by_seqno == Seqno(*seqno))
    };
    let wrong: Vec<_> = wanted.iter().filter(|entry| !is_right(*entry)).collect();
    (!wrong.is_empty()).then(|| format!("{vb}: {} of {} keys wrong: {wrong:?}", wrong.len(), wanted.len()))
}

/// What was acknowledged: after so many changes of the disk, which vBucket has which seqno.
type Acknowledged = Vec<(u64, VbId, u64)>;

fn high_at(acknowledged: &Acknowledged, at: u64) -> BTreeMap<VbId, u64> {
    let before = acknowledged.iter().filter(|(when, ..)| *when < at);
    before.map(|(_, vb, seqno)| (*vb, *seqno)).collect()
}

#[test]
fn repeated_saves_survive_every_crash() {
    let (env, handles) = Env::sim(1);
    let store = open(&env).expect("opens");
    for vb in 0..VBUCKETS {
        save(&store, VbId(vb), 1, 3).expect("saved");
    }
    store.close().expect("everything is filed");
    drop(store);
    let sound = exchange(&*env.disk, BAD, None);
    let store = open(&env).expect("opens");
    handles.disk.record();
    let mut acknowledged: Acknowledged = Vec::new();
    for seqno in 2..ROUNDS {
        if seqno < BAD_SAVES {
            save(&store, BAD, seqno, 30).expect("little is journaled although it cannot be filed");
            acknowledged.push((handles.disk.changes(), BAD, seqno));
        }
        for vb in 0..3 {
            save(&store, VbId(vb), seqno, 400).expect("saved");
            acknowledged.push((handles.disk.changes(), VbId(vb), seqno));
        }
    }
    let total = handles.disk.changes();
    let recording = handles.disk.recording().expect("recorded");
    let mut replay = recording.replay();
    let (mut tried, mut wrong) = (0, Vec::new());
    for at in 1..=total {
        assert!(replay.step(), "a change at {at}");
        // the states around the end of the recording and each third before are enough, in both kinds of crash
        if at % 3 != 0 && at + 40 < total {
            continue;
        }
        let disks: [SimDisk; 2] = [replay.killed(), replay.image(Survival::Synced)];
        for disk in disks {
            let env = handles.with_disk(disk).env();
            exchange(&*env.disk, BAD, Some(&sound));
            let store = open(&env).expect("opens after a crash");
            tried += 1;
            let high = high_at(&acknowledged, at);
            wrong.extend(high.iter().filter_map(|(vb, high)| {
                difference(&store, *vb, *high).map(|difference| format!("crash at {at}: {difference}"))
            }));
            if at == total {
                // what was taken in is filed as it was served
                store.close().expect("everything is filed");
                drop(store);
                let store = open(&env).expect("opens after a clean stop");
                wrong.extend(high.iter().filter_map(|(vb, high)| difference(&store, *vb, *high)));
            }
        }
    }
    assert!(tried > 1000, "{tried} crashes");
    assert_eq!(wrong.len(), 0, "of {tried}: {:#?}", wrong.first());
}

#[test]
fn a_rollback_keeps_nothing_of_repeated_saves() {
    let (env, _handles) = Env::sim(1);
    let store = open(&env).expect("opens");
    save(&store, BAD, 1, 3).expect("saved");
    save(&store, VbId(0), 1, 3).expect("saved");
    store.close().expect("everything is filed");
    drop(store);
    let sound = exchange(&*env.disk, BAD, None);
    let store = open(&env).expect("opens");
    for seqno in 2..ROUNDS {
        if seqno < BAD_SAVES {
            save(&store, BAD, seqno, 30).expect("saved");
        }
        save(&store, VbId(0), seqno, 1200).expect("saved");
    }
    drop(store);
    exchange(&*env.disk, BAD, Some(&sound));
    let store = open(&env).expect("opens");
    let rolled_back = store.rollback(BAD, Seqno(BAD_SAVES / 2)).expect("rolled back");
    assert_eq!(rolled_back.seqno, Seqno(1), "the file's state is the last before that is whole");
    assert_eq!(difference(&store, BAD, 1), None);
}
