//! Moves versions out of slabs that are little used when the heap wastes much, so that the slabs can be given back.
//!
//! A slab is sparse if less of it is used than the threshold allows: when none is left, no more than that is wasted.
//! Copies fill one slab after the other, so each version moves once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{NewVersion, VbId, Version};

use crate::bucket::Bucket;
use crate::keeper::{Chore, Next, Slice};
use crate::settings::Key;
use crate::shard_guard::Holder;

/// Versions looked at, and at most moved, while a vBucket is locked once.
const VERSIONS_A_LOCK: usize = 64;
/// Waste below this is not worth a pass.
const LEAST_SLACK_BYTES: u64 = 1 << 20;

/// What the defragmenter did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefragmenterStats {
    /// Passes over the tables that were begun because the heap wasted much.
    pub passes: u64,
    /// Versions that it looked at.
    pub visited: u64,
    /// Versions that it moved.
    pub moved: u64,
}

/// The counts behind [`DefragmenterStats`].
#[derive(Default)]
pub(crate) struct DefragmenterCounters {
    passes: AtomicU64,
    visited: AtomicU64,
    moved: AtomicU64,
}

/// Moves versions together when the heap wastes much.
#[derive(Default)]
pub(crate) struct Defragmenter {
    /// Where the pass goes on: vBucket, and cursor in its table.
    at: Option<(u16, u64)>,
}

impl Chore for Defragmenter {
    fn step(&mut self, bucket: &Bucket, slice: &Slice<'_>) -> Next {
        let settings = &bucket.settings;
        let pause = Next::After(Duration::from_millis(settings.get(Key::DefragmenterInterval)));
        let threshold = settings.get(Key::DefragmenterThreshold);
        if !settings.is_on(Key::DefragmenterEnabled) {
            self.at = None;
            return pause;
        }
        let heap = &bucket.context.heap;
        if self.at.is_none() {
            let usage = heap.usage();
            if usage.slack_bytes() <= (usage.held_bytes / 100 * threshold).max(LEAST_SLACK_BYTES) {
                return pause;
            }
            bucket.defragmented.passes.fetch_add(1, Ordering::Relaxed);
            heap.trim();
        }
        let (mut vb, mut cursor) = self.at.take().unwrap_or_default();
        let moving = heap.moving();
        while vb < bucket.vbuckets() {
            if slice.is_over() {
                self.at = Some((vb, cursor));
                return Next::Again;
            }
            match bucket.move_some(VbId(vb), cursor, 100 - threshold as u32) {
                Some(next) => cursor = next,
                None => (vb, cursor) = (vb + 1, 0),
            }
        }
        drop(moving);
        heap.trim();
        pause
    }
}

impl Bucket {
    /// What the defragmenter did so far.
    pub fn defragmenter_stats(&self) -> DefragmenterStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let DefragmenterCounters { passes, visited, moved } = &self.defragmented;
        DefragmenterStats { passes: of(passes), visited: of(visited), moved: of(moved) }
    }

    /// Moves some versions of a vBucket, from `cursor` on in its table, out of slabs of which less than `percent` is
    /// used. Where to go on; nothing if the table has no more.
    fn move_some(&self, vb: VbId, cursor: u64, percent: u32) -> Option<u64> {
        let mut sparse: Vec<Version> = Vec::with_capacity(VERSIONS_A_LOCK);
        let mut visited = 0;
        let next = {
            let shard = self.documents_for(vb, Holder::Defragmenter).ok()?;
            shard.vb.table().visit(cursor, VERSIONS_A_LOCK, |version| {
                visited += 1;
                // What somebody else holds stays where it is for him, so moving it would cost memory.
                if version.is_unique() && version.is_sparse(percent) {
                    sparse.push(version.clone());
                }
            })
        };
        self.defragmented.visited.fetch_add(visited, Ordering::Relaxed);
        if sparse.is_empty() {
            return next;
        }
        let prepare = |there: Version| (self.hash(there.key()), self.copy(&there), there);
        let copies: Vec<(u64, NewVersion, Version)> = sparse.into_iter().map(prepare).collect();
        let mut left = Vec::with_capacity(copies.len());
        if let Ok(mut shard) = self.documents_for(vb, Holder::Defragmenter) {
            for (hash, copy, there) in copies {
                let moved = shard.vb.move_version(hash, &there, copy);
                self.defragmented.moved.fetch_add(u64::from(moved.is_ok()), Ordering::Relaxed);
                let (Ok(old) | Err(old)) = moved;
                left.push((old, there));
            }
        }
        next
    }

    /// The same version once more, at another place.
    fn copy(&self, version: &Version) -> NewVersion {
        let (heap, meta, key) = (&self.context.heap, version.meta(), version.key());
        if version.is_resident() {
            NewVersion::new(heap, meta, key, &[version.value()])
        } else {
            NewVersion::without_value(heap, meta, key, version.value_bytes())
        }
    }
}
