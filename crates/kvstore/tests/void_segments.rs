//! A segment of a journal that a clean stop made void is never read, also if it is there again.

use std::path::{Path, PathBuf};

use base::env::{Disk, Env, OpenMode};
use base::{DocKey, VbId, VbState};
use kvstore::{Failure, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

const DIR: &str = "/data";
const VB: VbId = VbId(1);

fn open(env: &Env) -> Result<Journaled, Failure> {
    let config = JournaledConfig { journal_bytes: 256 << 10, ..JournaledConfig::default() };
    Journaled::open(env.clone(), DIR.as_ref(), config)
}

fn save(store: &Journaled, seqno: u64) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let items = [version(0, "k", seqno, format!("value {seqno}").as_bytes())];
    store.save(VB, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
}

/// The only segment, and what it holds.
fn segment(disk: &dyn Disk) -> (PathBuf, Vec<u8>) {
    let names = disk.read_dir(Path::new(DIR)).expect("no fault is planned");
    let is_segment = |name: &String| name.starts_with("journal.") && !name.contains("spare");
    let path = Path::new(DIR).join(names.into_iter().find(is_segment).expect("there is one"));
    let file = disk.open(&path, OpenMode::Read).expect("it is there");
    let mut bytes = vec![0; file.len().expect("no fault is planned") as usize];
    assert_eq!(file.read_at(&mut bytes, 0).expect("no fault is planned"), bytes.len());
    (path, bytes)
}

#[test]
fn a_segment_of_an_earlier_journal_that_is_there_again_is_not_read() {
    let (env, _) = Env::sim(1);
    let store = open(&env).expect("no fault is planned");
    (1..=3).for_each(|seqno| save(&store, seqno));
    let (path, bytes) = segment(&*env.disk);
    store.close().expect("no fault is planned");
    drop(store);
    let store = open(&env).expect("no fault is planned");
    (4..=5).for_each(|seqno| save(&store, seqno));
    // Killed; a restored copy brings the segment back.
    drop(store);
    let file = env.disk.open(&path, OpenMode::Create).expect("no fault is planned");
    file.write_at(&bytes, 0).and_then(|()| file.sync_data()).expect("no fault is planned");

    let store = open(&env).expect("the catalog says that the segment is void");
    let found = store.get(VB, DocKey::new(b"k")).expect("readable").expect("there");
    assert_eq!(found.value(), b"value 5");
    assert!(env.disk.open(&path, OpenMode::Read).is_err(), "it is removed");
}
