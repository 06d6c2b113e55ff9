//! A vBucket whose file is damaged is on its own: the others are saved and filed, and the journal does not grow.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::env::{Disk, Env, OpenMode};
use base::{Seqno, VbId, VbState};
use kvstore::{Failure, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

const DIR: &str = "/data";
const BAD: VbId = VbId(3);
const JOURNAL_BYTES: u64 = 256 << 10;

fn open(env: &Env) -> Journaled {
    let config = JournaledConfig { journal_bytes: JOURNAL_BYTES, ..JournaledConfig::default() };
    Journaled::open(env.clone(), DIR.as_ref(), config).expect("the bucket opens")
}

fn save(store: &Journaled, vb: VbId, seqno: u64) -> Result<(), Failure> {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let items = [version(0, &format!("k{seqno}"), seqno, value(vb, seqno).as_bytes())];
    store.save(vb, SaveBatch { items: &items, state: &state })
}

fn value(vb: VbId, seqno: u64) -> String {
    format!("{vb}/{seqno} ").repeat(200)
}

/// Each save has a key of its own, so that none hides behind a later one: all of them are there, and nothing else.
fn assert_whole(store: &Journaled, vb: VbId, last: Seqno) {
    assert_eq!(high(store, vb), last);
    for seqno in 1..=last.0 {
        let key = format!("k{seqno}");
        let found = store.get(vb, base::DocKey::new(key.as_bytes())).expect("readable");
        let found = found.unwrap_or_else(|| panic!("{vb} has lost {key}"));
        assert!(found.value() == value(vb, seqno).as_bytes(), "{vb}: {key}");
    }
    let more = format!("k{}", last.0 + 1);
    assert!(store.get(vb, base::DocKey::new(more.as_bytes())).expect("readable").is_none(), "{vb}: {more}");
}

fn file_of(disk: &dyn Disk, vb: VbId) -> PathBuf {
    let names = disk.read_dir(Path::new(DIR)).expect("the disk works");
    let name = names.into_iter().find(|name| name.starts_with(&format!("{vb}.couch."))).expect("filed");
    Path::new(DIR).join(name)
}

/// Puts other bytes in the place of a file's; returns what it held.
fn exchange(disk: &dyn Disk, vb: VbId, bytes: Option<Vec<u8>>) -> Vec<u8> {
    let file = disk.open(&file_of(disk, vb), OpenMode::ReadWrite).expect("it is there");
    let mut before = vec![0; file.len().expect("the disk works") as usize];
    assert_eq!(file.read_at(&mut before, 0).expect("the disk works"), before.len());
    let bytes = bytes.unwrap_or_else(|| vec![0xee; before.len()]);
    file.set_len(bytes.len() as u64).expect("the disk works");
    file.write_at(&bytes, 0).expect("the disk works");
    file.sync_data().expect("the disk works");
    before
}

fn high(store: &Journaled, vb: VbId) -> Seqno {
    store.snapshot(vb).expect("readable").expect("it is there").high_seqno()
}

#[test]
fn one_damaged_file_stops_one_vbucket() {
    let (env, handles) = Env::sim(1);
    let store = open(&env);
    for vb in 0..6 {
        save(&store, VbId(vb), 1).expect("saved");
    }
    store.close().expect("everything is filed");
    drop(store);
    let sound = exchange(&*env.disk, BAD, None);
    let store = open(&env);
    let (mut refused, mut last_saved) = (0, Seqno(1));
    for seqno in 2..600 {
        for vb in 0..6 {
            match save(&store, VbId(vb), seqno) {
                Ok(()) if VbId(vb) == BAD => {
                    assert_eq!(refused, 0, "from the first refusal on");
                    last_saved = Seqno(seqno);
                }
                Ok(()) => {}
                Err(failure) => {
                    assert_eq!(VbId(vb), BAD, "{failure}");
                    assert!(failure.to_string().contains("3.couch."), "{failure}");
                    refused += 1;
                }
            }
        }
        handles.clock.advance(Duration::from_secs(1));
        let _ = store.background_step();
        let used = store.stats().journal.expect("there is one").used_bytes;
        assert!(used <= 2 * JOURNAL_BYTES, "{used} bytes after {seqno}");
    }
    assert!(refused > 0, "it cannot go on for ever");
    for vb in (0..6).map(VbId).filter(|vb| *vb != BAD) {
        assert_whole(&store, vb, Seqno(599));
    }
    assert!(store.snapshot(BAD).is_err());
    assert!(store.close().is_err(), "not everything is in the files");

    drop(store);
    let store = open(&env);
    for vb in (0..6).map(VbId).filter(|vb| *vb != BAD) {
        assert_whole(&store, vb, Seqno(599));
    }
    // Somebody mends the file: what was acknowledged is in the journal still.
    drop(store);
    exchange(&*env.disk, BAD, Some(sound));
    let store = open(&env);
    assert!(last_saved > Seqno(1));
    assert_whole(&store, BAD, last_saved);
    store.close().expect("everything is filed");
    drop(store);
    let store = open(&env);
    (0..6).map(VbId).for_each(|vb| {
        assert_whole(&store, vb, if vb == BAD { last_saved } else { Seqno(599) });
    });
}
