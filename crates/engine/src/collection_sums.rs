//! What a bucket has of each of its collections, over all vBuckets.

use std::sync::Arc;

use base::{CollectionId, VbId, VbState};
use kvstore::KvStore;
use vbucket::{CollectionOps, Manifest};

use crate::change_marks::Figure;
use crate::file_sums::{FileSums, of_id};
use crate::shard::Shard;
use crate::shard_guard::{Holder, ShardGuard};
use crate::vbuckets::VBuckets;

/// What a bucket has of one collection, over all vBuckets: documents of active ones, memory and operations of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionTotals {
    /// Documents that clients may see.
    pub documents: u64,
    /// Bytes of versions in memory, tombstones among them.
    pub memory_bytes: u64,
    /// Bytes that it takes in files, as far as that is known without reading them.
    pub disk_bytes: u64,
    /// What clients did since the start.
    pub ops: CollectionOps,
}

impl CollectionTotals {
    /// Adds another collection, or the same of other vBuckets.
    pub fn add(&mut self, other: &CollectionTotals) {
        self.documents += other.documents;
        self.memory_bytes += other.memory_bytes;
        self.disk_bytes += other.disk_bytes;
        self.ops.add(&other.ops);
    }
}

/// Documents of each collection that is stored of a vBucket, by id.
type StoredDocuments = Vec<(CollectionId, u64)>;

/// What some vBuckets have of collections, by id, without files. Those of which they have nothing are left out.
#[derive(Default)]
struct Summing {
    all: Vec<(CollectionId, CollectionTotals)>,
    /// What one vBucket has, in its order.
    seen: Vec<(CollectionId, CollectionTotals)>,
}

impl Summing {
    /// Locks a vBucket, with room for what it has: nothing is allocated under its lock, where the allocator may have to ask
    /// the system, or wait for a thread that has to.
    fn hold<'a>(&mut self, vbuckets: &'a VBuckets, vb: VbId) -> ShardGuard<'a> {
        self.seen.clear();
        loop {
            let shard = vbuckets.hold(vb, Holder::Stats);
            let most = shard.collection_ops_before.len() + shard.vb.collections().open_len();
            if most <= self.seen.capacity() {
                return shard;
            }
            drop(shard);
            self.seen.reserve(most);
        }
    }

    /// Sees what a vBucket has that [`Summing::hold`] has locked; `stored` has the documents of one that is not loaded yet.
    fn see(&mut self, shard: &Shard, stored: Option<&StoredDocuments>) {
        let mut add = |id: CollectionId, totals: CollectionTotals| {
            if totals != CollectionTotals::default() {
                self.seen.push((id, totals));
            }
        };
        for (id, ops) in &shard.collection_ops_before {
            add(*id, CollectionTotals { ops: *ops, ..CollectionTotals::default() });
        }
        if !shard.exists {
            return;
        }
        let is_active = shard.vb.state() == VbState::Active;
        shard.vb.each_held(|one, held| {
            let documents = match stored {
                _ if !is_active => 0,
                None => held.documents(),
                Some(stored) => {
                    stored.binary_search_by_key(&one.id, |(id, _)| *id).map_or(0, |at| stored[at].1)
                }
            };
            let (memory_bytes, ops) = (held.bytes, one.ops());
            add(one.id, CollectionTotals { documents, memory_bytes, disk_bytes: 0, ops });
        });
    }

    /// Adds what was seen, once the vBucket is not locked any more.
    fn add(&mut self) {
        let mut hint = 0;
        for (id, totals) in &self.seen {
            let at = of_id(&mut self.all, &mut hint, *id);
            self.all[at].1.add(totals);
        }
    }
}

/// What is kept of collections.
#[derive(Default)]
pub(crate) struct CollectionSums {
    /// Of each group of vBuckets.
    groups: Vec<Box<[(CollectionId, CollectionTotals)]>>,
    /// Groups to look at whether or not they changed: some of their vBuckets are not loaded yet.
    again: Vec<bool>,
    /// Counts looks that found a change.
    version: u64,
    /// What was told last, and of what it was made.
    told: Vec<(CollectionId, CollectionTotals)>,
    told_of: Option<(u64, u64, Arc<Manifest>)>,
}

fn stored_documents(store: &dyn KvStore, vb: VbId) -> StoredDocuments {
    let mut all = StoredDocuments::new();
    store.each_collection(vb, &mut |id, stats| all.push((id, stats.item_count)));
    all
}

impl CollectionSums {
    /// Looks at vBuckets of groups in which any changed, each locked once while its documents are loaded.
    pub(crate) fn look(&mut self, vbuckets: &VBuckets, store: &dyn KvStore) {
        let marks = vbuckets.marks();
        let CollectionSums { groups, again, version, .. } = self;
        groups.resize_with(usize::from(marks.groups()), Box::default);
        again.resize(groups.len(), false);
        marks.take(Figure::Collections, |group| again[usize::from(group)] = true);
        let mut sums = Summing::default();
        for (at, again) in again.iter_mut().enumerate().filter(|(_, again)| **again) {
            *again = false;
            *version += 1;
            sums.all.clear();
            for vb in marks.vbuckets(at as u16).map(VbId) {
                let mut shard = sums.hold(vbuckets, vb);
                let mut stored = None;
                if shard.exists && shard.unloaded.is_some() {
                    // Files are not looked at under the lock.
                    drop(shard);
                    let documents = stored_documents(store, vb);
                    shard = sums.hold(vbuckets, vb);
                    stored = shard.unloaded.is_some().then_some(documents);
                    *again = true;
                }
                sums.see(&shard, stored.as_ref());
                drop(shard);
                sums.add();
            }
            groups[at] = sums.all.as_slice().into();
        }
    }

    /// What there is of each collection of a manifest, in its order, as of the last looks.
    pub(crate) fn totals(
        &mut self,
        files: &FileSums,
        manifest: &Arc<Manifest>,
    ) -> &[(CollectionId, CollectionTotals)] {
        let is_same = self.told_of.as_ref().is_some_and(|(version, of_files, of)| {
            (*version, *of_files) == (self.version, files.version()) && Arc::ptr_eq(of, manifest)
        });
        if !is_same {
            let mut all: Vec<(CollectionId, CollectionTotals)> =
                manifest.collections().map(|one| (one.id, CollectionTotals::default())).collect();
            for group in &self.groups {
                let of = group.iter().map(|(id, totals)| (*id, totals));
                add_by_id(&mut all, of, |sum, totals| sum.add(totals));
            }
            for group in files.of_collections() {
                add_by_id(&mut all, group.iter().copied(), |sum, bytes| sum.disk_bytes += bytes);
            }
            self.told = all;
            self.told_of = Some((self.version, files.version(), Arc::clone(manifest)));
        }
        &self.told
    }
}

/// Adds to each of `all` what comes under its id; both are by id. What is not among them is left out.
fn add_by_id<T>(
    all: &mut [(CollectionId, CollectionTotals)],
    of: impl Iterator<Item = (CollectionId, T)>,
    mut add: impl FnMut(&mut CollectionTotals, T),
) {
    let mut at = 0;
    for (id, one) in of {
        while all.get(at).is_some_and(|(there, _)| *there < id) {
            at += 1;
        }
        match all.get_mut(at) {
            Some((there, totals)) if *there == id => add(totals, one),
            Some(_) => {}
            None => return,
        }
    }
}
