//! What must not go back when an older state of the cluster is adopted: numbers that this node has given out, or done, for
//! its buckets. The state would give them out twice.

use ::cluster::State;
use ::cluster::state::NextIds;
use base::planted::{self, Bug};
use base::{CollectionId, ScopeId};
use vbucket::Manifest;

use super::apply::LocalBuckets;
use super::noted::Note;

/// Puts into a state that is to be adopted what this node has newer of the buckets that both have: manifests, the ids
/// behind all that a scope or a collection ever had, and how often all documents were removed.
pub(super) fn go_forward(buckets: &LocalBuckets, state: &mut State) {
    let present = buckets.node.buckets();
    let noted = buckets.noted.lock();
    for (spec, local) in present {
        if let (Some(bucket), Some(note)) = (state.buckets.get_mut(&spec.name), noted.get(&spec.name)) {
            let (manifest, ids) = (local.collections().manifest(), local.collections().next_ids());
            keep_numbers(bucket, note, &manifest, ids);
        }
    }
}

/// The same for a bucket, of which the node has noted `note`, and has this manifest and these ids.
fn keep_numbers(bucket: &mut ::cluster::Bucket, note: &Note, manifest: &Manifest, ids: engine::NextIds) {
    // Another bucket of the same name has numbers of its own.
    if bucket.uuid != note.uuid || planted::is(Bug::AdoptedNumbersGoBack) {
        return;
    }
    if Manifest::uid_in(&bucket.manifest).is_ok_and(|uid| uid < manifest.uid()) {
        bucket.manifest = manifest.to_json().into();
    }
    let NextIds { scope, collection } = bucket.next_ids;
    let ids = engine::NextIds {
        scope: ids.scope.max(ScopeId(scope)),
        collection: ids.collection.max(CollectionId(collection)),
    };
    let ids = ids.above(manifest);
    bucket.next_ids = NextIds { scope: ids.scope.0, collection: ids.collection.0 };
    bucket.flushes = bucket.flushes.max(note.flushes);
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    pub(crate) fn numbers_of_a_bucket_do_not_go_back_with_an_older_state() {
        let manifest = |uid: &str, collection: &str| {
            json!({ "uid": uid, "scopes": [{ "uid": "0", "name": "_default", "collections": [
                { "uid": "0", "name": "_default" }, { "uid": collection, "name": "c" },
            ] }] })
        };
        let of = |uuid: &str, manifest: serde_json::Value| ::cluster::Bucket {
            uuid: uuid.to_owned(),
            manifest: manifest.into(),
            flushes: 1,
            next_ids: NextIds { scope: 9, collection: 9 },
            ..::cluster::Bucket::default()
        };
        let local = Manifest::from_json(&manifest("4", "c")).expect("a manifest");
        let ids = engine::NextIds { scope: ScopeId(8), collection: CollectionId(11) };
        let note = Note { uuid: "u".to_owned(), flushes: 3, had: true };
        let mut older = of("u", manifest("1", "8"));
        keep_numbers(&mut older, &note, &local, ids);
        assert_eq!((older.flushes, older.next_ids), (3, NextIds { scope: 9, collection: 13 }));
        assert_eq!(*older.manifest, local.to_json());
        // What the state has newer stays, and so does another bucket.
        let mut newer = ::cluster::Bucket { flushes: 7, ..of("u", manifest("5", "8")) };
        keep_numbers(&mut newer, &note, &local, ids);
        assert_eq!((newer.flushes, &*newer.manifest), (7, &manifest("5", "8")));
        let mut other = of("v", manifest("1", "8"));
        keep_numbers(&mut other, &note, &local, ids);
        assert_eq!(other, of("v", manifest("1", "8")));
    }
}
