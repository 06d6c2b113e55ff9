//! A bucket folder that the original wrote, as an engine sees it.
#![allow(clippy::disallowed_methods, reason = "a test copies its fixtures")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use base::env::Env;
use base::{CollectionId, ItemKind, Seqno, VbId, VbState, Version};
use kvstore::{CollectionStats, Couch, CouchConfig, Journaled, JournaledConfig, KvStore, SaveBatch};

fn copy() -> (tempfile::TempDir, Couch) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/format/couchstore-13");
    let dir = tempfile::tempdir().expect("a folder");
    for vb in [0, 1, 2, 5] {
        let name = format!("{vb}.couch.2");
        fs::copy(golden.join(&name), dir.path().join(&name)).expect("the fixture is there");
    }
    let store = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("the bucket opens");
    (dir, store)
}

fn versions(store: &Couch, vb: VbId) -> Vec<Version> {
    let mut all = Vec::new();
    store
        .scan(vb, Seqno(0), kvstore::Values::Read, &mut |version| {
            all.push(version);
            ControlFlow::Continue(())
        })
        .expect("a scan");
    all
}

#[test]
fn state_and_counts_are_understood() {
    let (_dir, store) = copy();
    let states = store.states().expect("states");
    let highs: Vec<(u16, u64)> = states
        .iter()
        .map(|(vb, stored)| (vb.0, stored.as_ref().expect("a sound vBucket").high_seqno.0))
        .collect();
    assert_eq!(highs, [(0, 72), (1, 68), (2, 58), (5, 64)]);
    for (vb, stored) in states {
        let stored = stored.expect("a sound vBucket");
        assert_eq!(stored.state.state, VbState::Active);
        assert_eq!(stored.state.version, 4);
        assert!(stored.state.other.is_empty(), "every field is known: {:?}", stored.state.other);
        // counting again what the file holds gives the stored counts
        let live = |v: &&Version| v.meta().kind == ItemKind::Mutation;
        for (collection, stats) in &stored.collections {
            let all = versions(&store, vb);
            let own: Vec<_> = all.iter().filter(|v| v.key().collection == *collection).collect();
            let counted = own.iter().filter(|v| live(v)).count() as u64;
            assert_eq!(counted, stats.item_count, "vBucket {vb}, collection {collection}");
        }
        assert_eq!(
            stored.counts.documents,
            stored.collections.iter().map(|(_, s)| s.item_count).sum::<u64>()
        );
    }
}

/// Ids, metadata and bodies of everything in a collection, its creation included, add up to the stored size.
#[test]
fn sizes_of_collections_are_understood() {
    let (dir, store) = copy();
    for (vb, stored) in store.states().expect("states") {
        let path = dir.path().join(format!("{vb}.couch.2"));
        let file = couchstore::CouchFile::open_read(&base::env::RealDisk, &path).expect("a sound file");
        for (collection, stats) in stored.expect("a sound vBucket").collections {
            let mut bytes = 0;
            file.scan_ids(&[], |info| {
                let prefix = [&[0][..], &[2, 0], &[1, 0, 0]].map(|p| {
                    let mut prefix = p.to_vec();
                    *prefix.last_mut().expect("not empty") = collection.0 as u8;
                    prefix
                });
                if prefix.iter().any(|prefix| info.id.starts_with(prefix)) {
                    bytes += (info.id.len() + info.rev_meta.len()) as u64 + u64::from(info.body_bytes);
                }
                Ok::<_, couchstore::Failure>(ControlFlow::Continue(()))
            })
            .expect("a sound file");
            assert_eq!(bytes, stats.disk_bytes, "vBucket {vb}, collection {collection}");
        }
    }
}

/// Writes everything of a golden file into a new vBucket: the same counts and state document must come out.
#[test]
fn what_is_written_again_counts_the_same() {
    let (dir, store) = copy();
    for (vb, stored) in store.states().expect("states") {
        let stored = stored.expect("a sound vBucket");
        let copy = VbId(vb.0 + 100);
        for version in versions(&store, vb) {
            let batch = SaveBatch { items: &[version], state: &stored.state };
            store.save(copy, batch).expect("a save");
        }
        let again = store.states().expect("states").into_iter().find(|(id, _)| *id == copy);
        let again = again.expect("it was made").1.expect("a sound vBucket");
        assert_eq!(again.state, stored.state);
        // sizes may differ by what another compressor makes of the same body
        let sorted = |all: Vec<(CollectionId, CollectionStats)>| {
            let counts = all.into_iter().map(|(id, stats)| (id, (stats.item_count, stats.high_seqno)));
            counts.collect::<BTreeMap<_, _>>()
        };
        if vb != VbId(5) {
            // vBucket 5 has prepares, which are not visited
            assert_eq!(sorted(again.collections), sorted(stored.collections), "vBucket {vb}");
            assert_eq!(again.counts.tombstones, stored.counts.tombstones);
        }
        let state = |vb: VbId, revision: u32| {
            let path = dir.path().join(format!("{vb}.couch.{revision}"));
            let file = couchstore::CouchFile::open_read(&base::env::RealDisk, &path).expect("a sound file");
            file.local(b"_local/vbstate").expect("a sound file").expect("a state")
        };
        assert_eq!(state(vb, 2).escape_ascii().to_string(), state(copy, 1).escape_ascii().to_string());
    }
}

#[test]
fn writing_on_in_a_file_of_the_original_keeps_what_was_there() {
    let (dir, store) = copy();
    let before = versions(&store, VbId(0));
    let state = store.states().expect("states").remove(0).1.expect("a sound vBucket").state;
    let new = store_suite::version(0, "json::8", 73, b"changed");
    store.save(VbId(0), SaveBatch { items: &[new], state: &state }).expect("a save");
    drop(store);
    let store = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("the bucket opens");
    let after = versions(&store, VbId(0));
    assert_eq!(after.len(), before.len());
    let kept = before.iter().filter(|v| v.key().key != b"json::8");
    for (a, b) in kept.zip(&after) {
        assert_eq!((a.stored_key(), a.meta(), a.value()), (b.stored_key(), b.meta(), b.value()));
    }
    assert_eq!(after.last().map(|v| v.value().to_vec()), Some(b"changed".to_vec()));
}

#[test]
fn damage_to_one_file_shows_at_that_vbucket_only() {
    let (dir, store) = copy();
    drop(store);
    fs::write(dir.path().join("1.couch.2"), [0; 5000]).expect("a write");
    let store = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("the bucket opens");
    let states = store.states().expect("states");
    let sound: Vec<(u16, bool)> = states.iter().map(|(vb, stored)| (vb.0, stored.is_ok())).collect();
    assert_eq!(sound, [(0, true), (1, false), (2, true), (5, true)]);
    assert_eq!(store.stats().failures, 1);
}

#[test]
fn collections_are_understood() {
    let (_dir, store) = copy();
    for (_, stored) in store.states().expect("states") {
        let manifest = stored.expect("a sound vBucket").manifest;
        let mut open: Vec<_> = manifest
            .open
            .iter()
            .map(|one| {
                let collection = &one.collection;
                (collection.id.0, collection.scope.0, &*collection.name, collection.max_ttl_s, one.start.0)
            })
            .collect();
        open.sort_unstable();
        assert_eq!(
            open,
            [
                (0, 0, "_default", None, 0),
                (8, 8, "airline", None, 2),
                (9, 8, "route", None, 3),
                (11, 8, "ttl", Some(3600), 5)
            ]
        );
        let mut scopes: Vec<_> =
            manifest.scopes.iter().map(|one| (one.scope.id.0, &*one.scope.name, one.start.0)).collect();
        scopes.sort_unstable();
        assert_eq!(scopes, [(0, "_default", 0), (8, "inventory", 1)]);
        assert_eq!((manifest.uid.0, manifest.dropped.len()), (2, 0));
    }
}

/// A folder of an earlier version has no catalog, and its files carry no identity: it is believed as it is, once.
#[test]
fn a_folder_without_a_catalog_is_taken_over_and_promised_from_then_on() {
    let (dir, store) = copy();
    let before = versions(&store, VbId(0));
    drop(store);
    let open = || Journaled::open(Env::real(), dir.path(), JournaledConfig::default());
    let store = open().expect("the bucket opens");
    let state = store.states().expect("states").remove(0).1.expect("a sound vBucket").state;
    let new = store_suite::version(0, "behind a journal", 73, b"changed");
    store.save(VbId(0), SaveBatch { items: &[new], state: &state }).expect("a save");
    // killed: the journal is believed now
    drop(store);
    let store = open().expect("the bucket opens");
    assert_eq!(store.states().expect("states").iter().filter(|(_, stored)| stored.is_ok()).count(), 4);
    store.close().expect("everything is filed");
    drop(store);
    let store = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("the bucket opens");
    let after = versions(&store, VbId(0));
    assert_eq!(after.len(), before.len() + 1);
    for (a, b) in before.iter().zip(&after) {
        assert_eq!((a.stored_key(), a.meta(), a.value()), (b.stored_key(), b.meta(), b.value()));
    }
    drop(store);
    // the file that was written to belongs to the catalog, which lists one that was not, too
    fs::remove_file(dir.path().join("1.couch.2")).expect("it is there");
    for name in ["catalog", "catalog.copy"] {
        let store = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("one copy is enough");
        let states = store.states().expect("states");
        let sound: Vec<(u16, bool)> = states.iter().map(|(vb, stored)| (vb.0, stored.is_ok())).collect();
        assert_eq!(sound, [(0, true), (1, false), (2, true), (5, true)], "before {name} goes");
        fs::remove_file(dir.path().join(name)).expect("it is there");
    }
    let store = Couch::open(Env::real(), dir.path(), CouchConfig::default()).expect("the bucket opens");
    let failed = store.states().expect("states").into_iter().find_map(|(_, stored)| stored.err());
    let failure = failed.expect("one cannot be served").to_string();
    assert!(failure.contains("0.couch.2") && failure.contains("store"), "{failure}");
}
