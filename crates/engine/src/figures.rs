//! Sums over the vBuckets of a bucket, kept from one look to the next: a look costs what has changed since.
//!
//! What is told equals what a look at each vBucket would find. Sums are kept of groups of neighbours, and made again of all
//! of a group in which anything changed: nothing is added up over time, so no sum can drift away from what it is of.

use std::sync::Arc;

use base::{CollectionId, VbId};
use kvstore::KvStore;
use parking_lot::Mutex;
use vbucket::Manifest;

use crate::change_marks::Figure;
use crate::collection_sums::{CollectionSums, CollectionTotals};
use crate::file_sums::FileSums;
use crate::shard_guard::Holder;
use crate::vb_stats::{StateStats, VbStats};
use crate::vbuckets::VBuckets;

/// The place of what was counted in vBuckets that are deleted, behind the roles.
pub(crate) const DELETED: usize = 4;

/// By role in the order of their wire numbers, and of deleted ones.
pub(crate) type StateSums = [StateStats; DELETED + 1];

/// What is kept of vBuckets.
#[derive(Default)]
struct VbucketSums {
    /// Of each group, what it has of some roles: mostly of one.
    groups: Vec<Box<[(usize, StateStats)]>>,
    sum: StateSums,
}

/// What is kept for figures of a bucket.
///
/// # Thread safety
///
/// A look holds the lock of its sums, and takes that of one vBucket after the other, or of parts of the store, under it.
/// Only looks take these locks: no operation of a client waits for figures.
#[derive(Default)]
pub(crate) struct Figures {
    vbuckets: Mutex<VbucketSums>,
    collections: Mutex<CollectionSums>,
    files: Mutex<FileSums>,
}

impl VbucketSums {
    fn look(&mut self, vbuckets: &VBuckets) {
        let marks = vbuckets.marks();
        self.groups.resize_with(usize::from(marks.groups()), Box::default);
        let mut any = false;
        let mut sums: Vec<(usize, StateStats)> = Vec::new();
        marks.take(Figure::Stats, |group| {
            any = true;
            sums.clear();
            for vb in marks.vbuckets(group).map(VbId) {
                // Under the lock a vBucket is read, and nothing is allocated or added up.
                let shard = vbuckets.hold(vb, Holder::Stats);
                let ops = shard.ops;
                let stats = shard.is_told().then(|| VbStats::of(&shard));
                drop(shard);
                let place = stats.as_ref().map_or(DELETED, |stats| stats.state as usize - 1);
                let at = sums.iter().position(|(of, _)| *of == place).unwrap_or_else(|| {
                    sums.push((place, StateStats::default()));
                    sums.len() - 1
                });
                match stats {
                    Some(stats) => sums[at].1.enter(&stats),
                    None => sums[at].1.count_deleted(&ops),
                }
            }
            self.groups[usize::from(group)] = sums.as_slice().into();
        });
        if any {
            self.sum = StateSums::default();
            let all = self.groups.iter().flatten();
            all.for_each(|(place, stats)| self.sum[*place].add(stats));
        }
    }
}

impl Figures {
    /// Sums of vBuckets by role. Locks each vBucket of a group that changed, one after the other.
    pub(crate) fn by_state(&self, vbuckets: &VBuckets) -> StateSums {
        let mut sums = self.vbuckets.lock();
        sums.look(vbuckets);
        sums.sum
    }

    /// Bytes of files and bytes in them that are in use.
    pub(crate) fn file_usage(&self, store: &dyn KvStore, vbuckets: u16) -> (u64, u64) {
        let mut files = self.files.lock();
        files.look(store, vbuckets);
        files.usage()
    }

    /// What the bucket has of each collection of a manifest, in its order.
    pub(crate) fn of_collections(
        &self,
        vbuckets: &VBuckets,
        store: &dyn KvStore,
        manifest: &Arc<Manifest>,
    ) -> Vec<(CollectionId, CollectionTotals)> {
        let mut sums = self.collections.lock();
        sums.look(vbuckets, store);
        let mut files = self.files.lock();
        files.look(store, vbuckets.marks().vbucket_count());
        sums.totals(&files, manifest).to_vec()
    }
}
