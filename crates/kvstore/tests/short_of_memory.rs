//! What a journaled store holds in memory: it is charged, given back, and let go of early when memory is short.

use base::env::Env;
use base::{DocKey, Part, VbId, VbState};
use kvstore::{Background, Journaled, JournaledConfig, KvStore, SaveBatch, VbStateDoc};
use store_suite::version;

const ROUNDS: u64 = 40;

fn filled(env: &Env) -> Journaled {
    let store = Journaled::open(env.clone(), "/data".as_ref(), JournaledConfig::default());
    let store = store.expect("the bucket opens");
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    for seqno in 1..=ROUNDS {
        for vb in (0..4).map(VbId) {
            let items = [version(0, &format!("k{seqno}"), seqno, &[b'v'; 200])];
            store.save(vb, SaveBatch { items: &items, state: &state }).expect("saved");
        }
    }
    store
}

fn file(store: &Journaled) {
    while store.background_step().expect("the disk works") == Background::Worked {}
}

#[test]
fn versions_are_filed_early_when_memory_is_short() {
    let (env, _handles) = Env::sim(1);
    let store = filled(&env);
    let before = store.stats().unfiled_bytes;
    file(&store);
    assert_eq!(store.stats().unfiled_bytes, before, "there is room, and saves have just ended");
    store.hold_at_most(before);
    file(&store);
    assert_eq!(store.stats().unfiled_bytes, before, "no more than what is allowed");
    store.hold_at_most(before - 1);
    file(&store);
    assert!(store.stats().unfiled_bytes < before);
    for seqno in 1..=ROUNDS {
        let found = store.get(VbId(2), DocKey::new(format!("k{seqno}").as_bytes())).expect("readable");
        assert_eq!(found.expect("there").meta().by_seqno.0, seqno);
    }
}

#[test]
fn what_is_held_is_charged_and_given_back() {
    let (env, _handles) = Env::sim(2);
    let storage = || env.heap.account().exact()[Part::Storage as usize];
    let store = filled(&env);
    let filled = storage();
    assert!(filled >= 4 * ROUNDS as i64 * size_of::<base::Version>() as i64, "{filled} bytes");
    let snapshot = store.snapshot(VbId(1)).expect("readable").expect("there");
    assert!(storage() > filled, "what a reader holds too");
    store.hold_at_most(0);
    file(&store);
    assert!(storage() > 0, "the reader holds it still");
    drop(snapshot);
    assert_eq!(storage(), 0);
    drop(store);
    assert_eq!(env.heap.account().exact(), [0; base::memory::PARTS]);
}
