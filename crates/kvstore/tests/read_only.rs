//! A folder that is opened to be read has all that a node would find, and stays as it is.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use base::encryption::{DataKeys, EncryptedDisk};
use base::env::sim::SimHandles;
use base::env::{Env, OpenMode};
use base::{Seqno, VbId, VbState};
use kvstore::{
    Background, CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, SaveBatch, Values,
    VbStateDoc, open_to_read,
};
use store_suite::version;

const DIR: &str = "/data";
const VBUCKETS: u16 = 4;

/// Seqnos, keys and values of each vBucket.
type Documents = Vec<Vec<(u64, Vec<u8>, Vec<u8>)>>;

fn config(is_log: bool) -> JournaledConfig {
    let store = logstore::Config { shards: 2, ..logstore::Config::default() };
    let files = match is_log {
        true => FilesConfig::Log(LogConfig { store, ..LogConfig::default() }),
        false => FilesConfig::Couch(CouchConfig::default()),
    };
    JournaledConfig { files, journal_bytes: 256 << 10, ..JournaledConfig::default() }
}

fn save(store: &Journaled, seqnos: std::ops::RangeInclusive<u64>) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    for seqno in seqnos {
        for vb in (0..VBUCKETS).map(VbId) {
            let items = [version(0, &format!("k{}", seqno % 7), seqno, format!("{vb} {seqno}").as_bytes())];
            store.save(vb, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
        }
    }
}

fn documents(store: &Journaled) -> Documents {
    let one = |vb| {
        let mut found = Vec::new();
        let snapshot = store.snapshot(VbId(vb)).expect("it is readable").expect("it is there");
        let scanned = snapshot.scan(Seqno(0), Values::Read, &mut |version| {
            let seqno = version.meta().by_seqno.0;
            found.push((seqno, version.key().key.to_vec(), version.value().to_vec()));
            ControlFlow::Continue(())
        });
        scanned.expect("it is readable");
        found
    };
    (0..VBUCKETS).map(one).collect()
}

fn contents(handles: &SimHandles) -> BTreeMap<PathBuf, Vec<u8>> {
    handles.disk.contents().into_iter().collect()
}

fn found_as_left(env: &Env, handles: &SimHandles, expected: &Documents) {
    let before = contents(handles);
    for _ in 0..2 {
        let store = open_to_read(env, Path::new(DIR)).expect("no fault is planned");
        assert!(store.states().expect("it is readable").iter().all(|(_, state)| state.is_ok()));
        assert_eq!(documents(&store), *expected);
        // Whatever else a tool might call: it stays in memory.
        store.close().expect("no fault is planned");
        assert_eq!(contents(handles), before, "nothing on disk is changed");
    }
}

#[test]
fn all_that_a_node_would_find_is_read_and_nothing_changed() {
    for (is_log, is_encrypted) in [(false, false), (true, false), (false, true), (true, true)] {
        let (env, handles) = Env::sim(1);
        let env = match is_encrypted {
            true => EncryptedDisk::env(&env, DataKeys::ephemeral(&env)),
            false => env,
        };
        let open =
            || Journaled::open(env.clone(), DIR.as_ref(), config(is_log)).expect("no fault is planned");
        let store = open();
        save(&store, 1..=20);
        // Some of it in files, some in the journal alone.
        while store.background_step().expect("no fault is planned") == Background::Worked {}
        save(&store, 21..=25);
        let expected = documents(&store);
        drop(store);
        found_as_left(&env, &handles, &expected);
        let store = open();
        assert_eq!(documents(&store), expected);
        store.close().expect("no fault is planned");
        drop(store);
        found_as_left(&env, &handles, &expected);
    }
}

#[test]
fn what_a_node_would_refuse_is_refused_with_the_reason() {
    let (env, handles) = Env::sim(1);
    let store = Journaled::open(env.clone(), DIR.as_ref(), config(false)).expect("no fault is planned");
    save(&store, 1..=5);
    store.close().expect("no fault is planned");
    drop(store);
    let path = Path::new(DIR).join("2.couch.1");
    let file = env.disk.open(&path, OpenMode::ReadWrite).expect("it is there");
    let len = file.len().expect("no fault is planned");
    file.set_len(len - 4096).and_then(|()| file.sync_data()).expect("no fault is planned");
    let before = contents(&handles);
    let store = open_to_read(&env, Path::new(DIR)).expect("the others are sound");
    let states = store.states().expect("the others are sound");
    let refused: Vec<_> = states.iter().filter(|(_, state)| state.is_err()).map(|(vb, _)| *vb).collect();
    assert_eq!(refused, [VbId(2)]);
    assert_eq!(contents(&handles), before);
}
