//! A rollback to nothing whose file cannot be removed: what the journal says is void is served by no read, no later save
//! and no start.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use base::env::Env;
use base::env::sim::{Call, Effect, Fault, On};
use base::{DocKey, Seqno, VbId, VbState};
use kvstore::{Background, Journaled, JournaledConfig, KvStore, SaveBatch, Values, VbStateDoc};
use store_suite::version;

const VB: VbId = VbId(0);

fn open(env: &Env) -> Journaled {
    let config = JournaledConfig { file_after: Duration::ZERO, ..JournaledConfig::default() };
    Journaled::open(env.clone(), "/data".as_ref(), config).expect("the disk is well")
}

fn save(store: &Journaled, key: &str, seqno: u64) {
    let state = VbStateDoc { state: VbState::Active, max_cas: seqno, ..VbStateDoc::default() };
    let items = [version(0, key, seqno, key.as_bytes())];
    store.save(VB, SaveBatch { items: &items, state: &state }).expect("the disk is well");
}

fn file_all(store: &Journaled) {
    while store.background_step().expect("the disk is well") == Background::Worked {}
}

/// Keys with their seqnos.
fn contents(store: &Journaled) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let Some(snapshot) = store.snapshot(VB).expect("the disk is well") else { return all };
    let scanned = snapshot.scan(Seqno(0), Values::Read, &mut |version| {
        all.insert(String::from_utf8_lossy(version.key().key).into_owned(), version.meta().by_seqno.0);
        ControlFlow::Continue(())
    });
    scanned.expect("the disk is well");
    all
}

/// Eight documents are in the file; the rollback to nothing cannot remove it.
fn rolled_back() -> (Env, Journaled) {
    let (env, handles) = Env::sim(1);
    let store = open(&env);
    for seqno in 1..=8 {
        save(&store, &format!("old{seqno}"), seqno);
    }
    file_all(&store);
    handles.disk.plan(Fault::once(On::Kind(Call::Remove), 1, Effect::IO_ERROR));
    assert!(store.rollback(VB, Seqno(0)).is_err(), "the file cannot be removed");
    handles.disk.heal();
    (env, store)
}

#[test]
fn what_is_void_is_not_read() {
    let (_, store) = rolled_back();
    assert_eq!(contents(&store), BTreeMap::new());
    assert!(store.get(VB, DocKey::new(b"old1")).expect("the disk is well").is_none());
}

#[test]
fn what_is_void_does_not_come_back_with_a_later_save() {
    let new = BTreeMap::from([("new".to_owned(), 1)]);
    for is_stopped in [false, true] {
        let (env, store) = rolled_back();
        save(&store, "new", 1);
        assert_eq!(contents(&store), new);
        file_all(&store);
        assert_eq!(contents(&store), new);
        if is_stopped {
            store.close().expect("the disk is well");
        }
        drop(store);
        assert_eq!(contents(&open(&env)), new, "stopped: {is_stopped}");
    }
}

#[test]
fn the_rollback_can_be_tried_again() {
    let (env, store) = rolled_back();
    assert_eq!(store.rollback(VB, Seqno(0)).expect("the disk is well").seqno, Seqno(0));
    save(&store, "new", 1);
    store.close().expect("the disk is well");
    drop(store);
    assert_eq!(contents(&open(&env)), BTreeMap::from([("new".to_owned(), 1)]));
}
