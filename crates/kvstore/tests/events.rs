//! Events about collections: many of them cost the file of a vBucket one commit.

use base::env::Env;
use base::{Cas, CollectionId, Heap, ScopeId, Seqno, VbId, VbState, Version};
use kvstore::{Journaled, JournaledConfig, KvStore, SaveBatch, StoredVb, VbStateDoc};
use store_suite::version;
use vbucket::{Collection, ManifestUid, SystemEvent};

const VB: VbId = VbId(7);

fn open(env: &Env) -> Journaled {
    Journaled::open(env.clone(), "/data".as_ref(), JournaledConfig::default()).expect("the bucket opens")
}

fn event(seqno: u64, event: &SystemEvent) -> Version {
    let mut new = event.to_version(Heap::shared());
    (new.meta_mut().by_seqno, new.meta_mut().cas) = (Seqno(seqno), Cas(seqno));
    new.publish()
}

fn begin(seqno: u64, id: u32) -> Version {
    let name = format!("c{id}");
    let collection =
        Collection { id: CollectionId(id), scope: ScopeId(0), name, max_ttl_s: None, history: None };
    event(seqno, &SystemEvent::CollectionBegin { manifest: ManifestUid(seqno), collection })
}

fn end(seqno: u64, id: u32) -> Version {
    let (manifest, scope, id) = (ManifestUid(seqno), ScopeId(0), CollectionId(id));
    event(seqno, &SystemEvent::CollectionEnd { manifest, scope, id })
}

fn save(store: &Journaled, item: Version) {
    let state = VbStateDoc { state: VbState::Active, ..VbStateDoc::default() };
    store.save(VB, SaveBatch { items: &[item], state: &state }).expect("saved");
}

fn stored(store: &Journaled) -> StoredVb {
    let (_, stored) = store.states().expect("readable").into_iter().next().expect("it is there");
    stored.expect("readable")
}

/// The collections of the vBucket after everything that was saved is filed.
fn filed(store: &Journaled) -> Vec<u32> {
    store.counts(VB).expect("it is filed");
    stored(store).manifest.open.iter().map(|one| one.collection.id.0).collect()
}

#[test]
fn making_collections_costs_the_file_one_commit() {
    let (env, _) = Env::sim(1);
    let store = open(&env);
    for n in 0..200 {
        save(&store, begin(2 * n + 1, 8 + n as u32));
        save(&store, version(8 + n as u32, "k", 2 * n + 2, b"value"));
    }
    for n in 0..100 {
        save(&store, end(1000 + n, 8 + n as u32));
    }
    let open: Vec<u32> = std::iter::once(0).chain(108..208).collect();
    assert_eq!(filed(&store), open);
    let dropped: Vec<u32> = stored(&store).manifest.dropped.iter().map(|one| one.id.0).collect();
    assert_eq!(dropped, (8..108).collect::<Vec<_>>(), "their documents are to be erased");
    let counts = store.counts(VB).expect("filed");
    assert_eq!(counts.documents, 100);
    // Each commit writes the list of all collections.
    assert!(counts.file_bytes < 100_000, "{counts:?}");
}

#[test]
fn what_was_dropped_and_made_again_is_another_collection() {
    let (env, _) = Env::sim(1);
    let store = open(&env);
    save(&store, version(0, "old", 1, b"value"));
    save(&store, end(2, 0));
    save(&store, begin(3, 9));
    assert_eq!(filed(&store), [9]);
    save(&store, end(4, 9));
    save(&store, begin(5, 9));
    save(&store, version(9, "new", 6, b"value"));
    assert_eq!(filed(&store), [9]);
    assert_eq!(store.counts(VB).expect("filed").documents, 1);
}
