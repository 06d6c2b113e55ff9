//! A start behind a clean stop that is killed, and the next one too: what was saved before the stop is served.

use std::sync::Arc;

use base::env::Env;
use base::env::sim::{SimDisk, Survival};
use base::{DocKey, VbId, VbState};
use kvstore::{Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

const VB: VbId = VbId(1);

fn open(disk: &SimDisk) -> Journaled {
    let (env, _) = Env::sim(1);
    let env = Env { disk: Arc::new(disk.clone()), ..env };
    let config = JournaledConfig { journal_bytes: 256 << 10, ..JournaledConfig::default() };
    Journaled::open(env, "/data".as_ref(), config).expect("nothing is damaged")
}

fn save(store: &Journaled, seqno: u64) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    let items = [version(0, "k", seqno, format!("value {seqno}").as_bytes())];
    store.save(VB, SaveBatch { items: &items, state: &state }).expect("no fault is planned");
}

fn value(store: &Journaled) -> String {
    let found = store.get(VB, DocKey::new(b"k")).expect("readable").expect("a save is lost");
    String::from_utf8_lossy(found.value()).into_owned()
}

#[test]
fn two_starts_that_are_killed_lose_nothing() {
    let (env, sim) = Env::sim(1);
    let store =
        Journaled::open(env.clone(), "/data".as_ref(), JournaledConfig::default()).expect("a new folder");
    (1..=3).for_each(|seqno| save(&store, seqno));
    store.close().expect("no fault is planned");
    drop(store);

    sim.disk.record();
    let store = open(&sim.disk);
    save(&store, 4);
    drop(store);
    let first = sim.disk.recording().expect("it records");

    let mut replay = first.replay();
    let mut starts = 0;
    loop {
        let disk = replay.killed();
        disk.record();
        let store = open(&disk);
        let expected = value(&store);
        drop(store);
        let second = disk.recording().expect("it records");
        let mut again = second.replay();
        loop {
            let at = (replay.done(), again.done());
            assert_eq!(value(&open(&again.image(Survival::Everything))), expected, "killed at {at:?}");
            starts += 1;
            if !again.step() {
                break;
            }
        }
        if !replay.step() {
            break;
        }
    }
    assert!(starts > 20, "{starts} starts");
}
