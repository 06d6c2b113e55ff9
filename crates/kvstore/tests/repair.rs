//! Of a journal whose older segments are gone each frame is damaged in turn: what a survey says is what is there after the
//! repair.

#[cfg(debug_assertions)]
#[path = "../../simulation/src/known.rs"]
mod known;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::env::sim::{SimDisk, SimHandles};
use base::env::{Disk, Env, OpenMode};
use base::{DocKey, Seqno, VbId, VbState};
use kvstore::repair::{apply, survey};
use kvstore::{Background, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

const DIR: &str = "/data/b";
const ASIDE: &str = "/data/quarantine";
const VBUCKETS: [VbId; 2] = [VbId(1), VbId(2)];
/// Three frames with such a value fit into a segment.
const VALUE_BYTES: usize = 1 << 10;
/// Changes of each vBucket in a round: records of files stand first, in the middle or last in their segment.
const CHANGES: [u64; 3] = [5, 6, 7];
/// Changes of each vBucket that are in the journal alone. Later segments repeat which files there are, so that a record of
/// a file is missed only if there are none.
const UNFILED: [u64; 2] = [0, 5];

fn open(env: &Env) -> Journaled {
    let (journal_bytes, file_after) = (256 << 10, Duration::ZERO);
    let config = JournaledConfig { journal_bytes, file_after, ..JournaledConfig::default() };
    Journaled::open(env.clone(), DIR.as_ref(), config).expect("no fault is planned")
}

/// Document `kN` has seqno N.
fn save(store: &Journaled, vb: VbId, seqno: u64) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let items = [version(0, &format!("k{seqno}"), seqno, &[seqno as u8; VALUE_BYTES])];
    store.save(vb, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
}

fn file_all(store: &Journaled) {
    while store.background_step().expect("no fault is planned") == Background::Worked {}
}

/// A bucket that was killed: everything was filed twice, and the last changes are in the journal alone.
fn killed(changes: u64, unfiled: u64) -> (SimDisk, BTreeMap<VbId, u64>) {
    let (env, handles) = Env::sim(1);
    let store = open(&env);
    let mut high: BTreeMap<VbId, u64> = BTreeMap::new();
    let mut next = |vb: VbId| {
        let seqno = high.entry(vb).or_default();
        *seqno += 1;
        save(&store, vb, *seqno);
    };
    for _ in 0..2 {
        (0..changes).for_each(|_| VBUCKETS.into_iter().for_each(&mut next));
        file_all(&store);
    }
    (0..unfiled).for_each(|_| VBUCKETS.into_iter().for_each(&mut next));
    drop(store);
    (handles.disk.clone(), high)
}

/// Every frame of every segment.
fn frames(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    let is_segment = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("journal.") && !name.contains("spare")
    };
    let contents = disk.contents();
    let mut segments: Vec<_> = contents.into_iter().filter(|(path, _)| is_segment(path)).collect();
    segments.sort_by_key(|(path, _)| (path.as_os_str().len(), path.clone()));
    let of_segment = |(path, bytes): (PathBuf, Vec<u8>)| {
        let offsets = (4096..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(b"SJfr"));
        offsets.map(|at| (path.clone(), at as u64)).collect::<Vec<_>>()
    };
    segments.into_iter().flat_map(of_segment).collect()
}

fn flip(disk: &SimDisk, path: &Path, offset: u64) {
    let file = disk.open(path, OpenMode::ReadWrite).expect("it is there");
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, offset).expect("no fault is planned"), 1);
    file.write_at(&[byte[0] ^ 4], offset).and_then(|()| file.sync_data()).expect("no fault is planned");
}

/// Surveys, repairs, starts and compares; answers up to where each vBucket was kept.
fn repaired(disk: SimDisk, high: &BTreeMap<VbId, u64>, place: &str) -> [(VbId, u64); 2] {
    let env = SimHandles::new(2).with_disk(disk).env();
    let found = survey(&env, DIR.as_ref()).expect("no fault is planned");
    let kept = |vb| found.vbuckets.get(&vb).map_or(high[&vb], |damaged| damaged.kept.0);
    let kept = VBUCKETS.map(|vb| (vb, kept(vb)));
    apply(&env, DIR.as_ref(), ASIDE.as_ref(), found).expect("no fault is planned");
    assert!(survey(&env, DIR.as_ref()).expect("no fault is planned").is_clean(), "{place}");
    let store = open(&env);
    let states = store.states().expect("no fault is planned");
    for (vb, kept) in kept {
        let stored = states.iter().find(|(stored, _)| *stored == vb).expect("it is there");
        let stored = stored.1.as_ref().expect("it can be read");
        assert_eq!(stored.high_seqno, Seqno(kept), "{place}: {vb}");
        for seqno in 1..=high[&vb] {
            let name = format!("k{seqno}");
            let found = store.get(vb, DocKey::new(name.as_bytes())).expect("it can be read");
            let expected = (seqno <= kept).then(|| vec![seqno as u8; VALUE_BYTES]);
            let found = found.map(|found| found.value().to_vec());
            assert!(found == expected, "{place}: {name} of {vb}, which is kept up to {kept}, is not so");
        }
    }
    kept
}

#[test]
fn what_is_told_is_what_is_there_after_any_damaged_frame() {
    for (changes, unfiled) in
        CHANGES.into_iter().flat_map(|changes| UNFILED.map(|unfiled| (changes, unfiled)))
    {
        let (disk, high) = killed(changes, unfiled);
        let mut frames = frames(&disk);
        // Nothing says that the last one was synced.
        frames.pop();
        for (path, offset) in frames {
            let (disk, _) = killed(changes, unfiled);
            flip(&disk, &path, offset);
            let place = format!("{changes} changes: {}, offset {offset}", path.display());
            let kept = repaired(disk, &high, &place);
            let is_filed = |(_, kept): &(VbId, u64)| *kept >= 2 * changes;
            assert!(kept.iter().all(is_filed), "{place}: files have more than {kept:?}");
        }
    }
}

/// Mistakes in the product that this test shows (`base::planted`).
#[test]
#[cfg(debug_assertions)]
fn mistakes_in_the_product_are_found() {
    known::must_find(known::Simulator::Repairs, |seed| {
        // Nothing in it depends on it.
        if seed == 0 {
            what_is_told_is_what_is_there_after_any_damaged_frame();
        }
        Ok(())
    });
}
