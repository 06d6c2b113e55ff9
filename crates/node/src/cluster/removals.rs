//! What was removed from the cluster's buckets lately, as this node has seen it. A removal that is asked for again, and a
//! name that is given again, wait until no node serves what had the name.
//!
//! The cluster's state says which revision deleted a bucket. It does not say so of scopes and collections: each node
//! compares the manifests that it sees. What was removed before this process ran is not known to it.

use std::collections::BTreeMap;

use ::cluster::State;
use vbucket::{MAX_COLLECTIONS, MAX_SCOPES, Manifest};

use super::manifest::manifest_of;

/// The most names of one bucket that are remembered, the last ones: as many as one change can take away.
const MOST_NAMES: usize = MAX_SCOPES + MAX_COLLECTIONS;

/// The name of a scope, and of a collection its own, too.
type Name = (String, Option<String>);

/// Names that are gone, by bucket.
#[derive(Default)]
pub(super) struct Removals(BTreeMap<String, OfBucket>);

/// The scopes and collections of a bucket.
struct OfBucket {
    /// Which bucket of that name it is.
    uuid: String,
    /// The revision at which this was the manifest.
    revision: u64,
    manifest: Manifest,
    /// The newest revision that each name was seen to be gone at.
    gone: BTreeMap<Name, u64>,
}

impl Removals {
    /// Notes what a state has. One that is older than what is noted already changes nothing.
    pub(super) fn note(&mut self, state: &State) {
        self.0.retain(|name, of| state.buckets.contains_key(name) || of.revision > state.revision);
        for (name, bucket) in &state.buckets {
            let Ok(uid) = Manifest::uid_in(&bucket.manifest) else { continue };
            let is_noted = |of: &OfBucket| {
                of.revision >= state.revision || of.uuid == bucket.uuid && of.manifest.uid() == uid
            };
            if self.0.get(name).is_some_and(is_noted) {
                continue;
            }
            let Ok((manifest, _)) = manifest_of(bucket) else { continue };
            match self.0.get_mut(name).filter(|of| of.uuid == bucket.uuid) {
                Some(of) => of.becomes(state.revision, manifest),
                None => {
                    let (uuid, revision) = (bucket.uuid.clone(), state.revision);
                    let of = OfBucket { uuid, revision, manifest, gone: BTreeMap::new() };
                    self.0.insert(name.clone(), of);
                }
            }
        }
    }

    /// The revision at which the last thing that was removed from a bucket was gone; `None` if nothing was.
    pub(super) fn newest(&self, bucket: &str) -> Option<u64> {
        self.0.get(bucket)?.gone.values().copied().max()
    }

    /// The same of what had a name that `next` gives to something new.
    pub(super) fn of_new_names(&self, bucket: &str, present: &Manifest, next: &Manifest) -> Option<u64> {
        let gone = &self.0.get(bucket)?.gone;
        names_only_in(next, present).filter_map(|name| gone.get(&name)).copied().max()
    }
}

impl OfBucket {
    fn becomes(&mut self, revision: u64, manifest: Manifest) {
        let gone: Vec<Name> = names_only_in(&self.manifest, &manifest).collect();
        self.gone.extend(gone.into_iter().map(|name| (name, revision)));
        (self.revision, self.manifest) = (revision, manifest);
        while self.gone.len() > MOST_NAMES {
            let first = self.gone.iter().min_by_key(|(_, revision)| **revision);
            let Some(first) = first.map(|(name, _)| name.clone()) else { break };
            self.gone.remove(&first);
        }
    }
}

/// The names of scopes and collections of a manifest that another one does not have, by their ids.
fn names_only_in<'m>(of: &'m Manifest, other: &'m Manifest) -> impl Iterator<Item = Name> + 'm {
    let scopes = of.scopes().filter(move |scope| other.scope(scope.id).is_none());
    let scopes = scopes.map(|scope| (scope.name.clone(), None));
    let collections = of.collections().filter(move |one| other.collection(one.id).is_none());
    let collections = collections.filter_map(move |one| {
        let scope = of.scope(one.scope)?;
        Some((scope.name.clone(), Some(one.name.clone())))
    });
    scopes.chain(collections)
}

#[cfg(test)]
mod tests {
    use ::cluster::Bucket;
    use serde_json::{Value, json};

    use super::*;

    /// A state with one bucket, whose scope `s` (8) has these collections.
    fn state(revision: u64, uuid: &str, uid: &str, collections: &[(&str, &str)]) -> State {
        let collection = |(name, uid): &(&str, &str)| json!({ "name": name, "uid": uid });
        let collections: Vec<Value> = collections.iter().map(collection).collect();
        let manifest = json!({ "uid": uid, "scopes": [
            { "name": "_default", "uid": "0", "collections": [{ "name": "_default", "uid": "0" }] },
            { "name": "s", "uid": "8", "collections": collections },
        ] });
        let bucket = Bucket { uuid: uuid.to_owned(), manifest: manifest.into(), ..Bucket::default() };
        let mut state = State::empty();
        state.revision = revision;
        state.buckets.insert("b".to_owned(), bucket);
        state
    }

    fn manifest(state: &State) -> Manifest {
        manifest_of(&state.buckets["b"]).expect("a manifest").0
    }

    #[test]
    fn names_are_remembered_with_the_revision_that_lacks_them() {
        let mut removals = Removals::default();
        let first = state(3, "1", "1", &[("c", "8"), ("d", "9")]);
        removals.note(&first);
        assert_eq!(removals.newest("b"), None, "what was before is not known");
        let without = state(7, "1", "2", &[("d", "9")]);
        removals.note(&without);
        assert_eq!((removals.newest("b"), removals.newest("other")), (Some(7), None));
        // An older state comes late, and the next one removes nothing.
        removals.note(&first);
        removals.note(&state(9, "1", "2", &[("d", "9")]));
        assert_eq!(removals.newest("b"), Some(7));

        let again = |name| manifest(&state(10, "1", "3", &[("d", "9"), (name, "a")]));
        let of = |name| removals.of_new_names("b", &manifest(&without), &again(name));
        assert_eq!((of("c"), of("e")), (Some(7), None));
    }

    #[test]
    fn another_bucket_of_the_same_name_begins_without() {
        let mut removals = Removals::default();
        removals.note(&state(3, "1", "1", &[("c", "8")]));
        removals.note(&state(4, "1", "2", &[]));
        assert_eq!(removals.newest("b"), Some(4));
        removals.note(&state(6, "2", "1", &[("c", "8")]));
        assert_eq!(removals.newest("b"), None);
        let mut without = State::empty();
        without.revision = 8;
        removals.note(&without);
        assert!(removals.0.is_empty());
    }

    #[test]
    fn the_oldest_names_are_forgotten() {
        let mut removals = Removals::default();
        let names: Vec<String> = (0..MOST_NAMES + 1).map(|at| format!("c{at}")).collect();
        let ids: Vec<String> = (0..names.len()).map(|at| format!("{:x}", 8 + at)).collect();
        let all: Vec<(&str, &str)> = names.iter().zip(&ids).map(|(name, id)| (&**name, &**id)).collect();
        // A bucket has less than that at a time.
        let mut revision = 0;
        for some in all.chunks(MAX_COLLECTIONS / 2).chain([&[][..]]) {
            revision += 1;
            removals.note(&state(revision, "1", &format!("{revision:x}"), some));
        }
        let gone = &removals.0["b"].gone;
        assert_eq!(gone.len(), MOST_NAMES);
        assert!(!gone.contains_key(&("s".to_owned(), Some("c0".to_owned()))));
    }
}
