//! Moves versions out of slabs that are little used when the heap wastes much, so that the slabs can be given back.
//!
//! A slab is sparse if less of it is used than the threshold allows: when none is left, no more than that is wasted.
//! Copies fill one slab after the other, so each version moves once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{NewVersion, VbId, Version};

use crate::bucket_core::Core;
use crate::evict::Eviction;
use crate::keeper::{Chore, Next, Slice};
use crate::settings::Key;
use crate::shard_guard::Holder;

/// Versions looked at, and at most moved, while a vBucket is locked once.
const VERSIONS_A_LOCK: usize = 64;
/// When slack is in the way of changes, it works from so many times less waste on.
const PRESSED_DIVISOR: u64 = 2;
/// Between two passes while slack is in the way,
const PRESSED_PAUSE: Duration = Duration::from_millis(100);
/// and after one that hardly helped, because of what others hold.
const FUTILE_PAUSE: Duration = Duration::from_secs(1);
/// A pass that takes less than such a part of the slack away hardly helped.
const HELP_ONE_IN: u64 = 8;

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
    pass: Option<Pass>,
    /// Nothing is done before that.
    rest_until_ns: u64,
}

/// One way through all tables.
struct Pass {
    vb: VbId,
    /// In the table of `vb`.
    cursor: u64,
    /// Slabs of which less is used are emptied.
    percent: u32,
    slack_at_begin: u64,
}

impl Defragmenter {
    /// Begins a pass if so much is wasted.
    fn begin(&mut self, defragmentation: &Defragmentation) -> bool {
        let (heap, threshold) = (
            &defragmentation.core.context.heap,
            defragmentation.core.settings.get(Key::DefragmenterThreshold),
        );
        let is_pressed = defragmentation.core.memory.is_slack_in_the_way();
        let threshold = if is_pressed { (threshold / PRESSED_DIVISOR).max(1) } else { threshold };
        let usage = heap.usage();
        if usage.slack_bytes()
            <= (usage.held_bytes / 100 * threshold).max(defragmentation.core.memory.little_slack_bytes())
        {
            return false;
        }
        defragmentation.counters.passes.fetch_add(1, Ordering::Relaxed);
        heap.trim();
        self.pass = Some(Pass {
            vb: VbId(0),
            cursor: 0,
            percent: 100 - threshold as u32,
            slack_at_begin: usage.slack_bytes(),
        });
        true
    }

    /// How long it rests.
    fn rest(&mut self, defragmentation: &Defragmentation, has_helped: bool) -> Next {
        let regular = Duration::from_millis(defragmentation.core.settings.get(Key::DefragmenterInterval));
        let is_pressed = defragmentation.core.memory.is_slack_in_the_way();
        // What is refused is what would be held with it: it is not there any more, so a little is added for it.
        let with_the_next =
            defragmentation.core.memory.held_bytes() + defragmentation.core.memory.little_slack_bytes();
        let is_refusing = !defragmentation.core.memory.admits(with_the_next);
        if is_refusing && !has_helped {
            defragmentation.eviction.squeeze();
        }
        let pressed = if has_helped || is_refusing { PRESSED_PAUSE } else { FUTILE_PAUSE };
        defragmentation.eviction.counters.is_defragmenter_called.store(is_pressed, Ordering::Relaxed);
        Next::After(if is_pressed { pressed } else { regular })
    }
}

impl Chore for Defragmenter {
    type Of = Defragmentation;

    fn step(&mut self, defragmentation: &Defragmentation, slice: &Slice<'_>) -> Next {
        if !defragmentation.core.settings.is_on(Key::DefragmenterEnabled) {
            self.pass = None;
            return self.rest(defragmentation, false);
        }
        let now_ns = defragmentation.core.env.clock.monotonic_ns();
        if now_ns < self.rest_until_ns {
            return Next::After(Duration::from_nanos(self.rest_until_ns - now_ns));
        }
        if self.pass.is_none() && !self.begin(defragmentation) {
            return self.rest(defragmentation, false);
        }
        let heap = &defragmentation.core.context.heap;
        let Some(pass) = &mut self.pass else { return Next::Again };
        {
            let _moving = heap.moving();
            while pass.vb.0 < defragmentation.core.vbuckets() {
                if slice.is_over() {
                    return Next::Again;
                }
                match defragmentation.move_some(pass.vb, pass.cursor, pass.percent) {
                    Some(next) => pass.cursor = next,
                    None => (pass.vb, pass.cursor) = (VbId(pass.vb.0 + 1), 0),
                }
            }
        }
        heap.trim();
        let slack_at_begin = pass.slack_at_begin;
        self.pass = None;
        let has_helped = heap.usage().slack_bytes() < slack_at_begin - slack_at_begin / HELP_ONE_IN;
        let next = self.rest(defragmentation, has_helped);
        if let Next::After(pause) = next {
            let pause = pause.min(FUTILE_PAUSE);
            self.rest_until_ns = defragmentation.core.env.clock.monotonic_ns() + pause.as_nanos() as u64;
        }
        next
    }
}

/// Moving versions together when the heap wastes much.
pub struct Defragmentation {
    pub(crate) core: Arc<Core>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) counters: DefragmenterCounters,
}

impl Defragmentation {
    pub(crate) fn new(core: &Arc<Core>, eviction: &Arc<Eviction>) -> Defragmentation {
        Defragmentation {
            core: Arc::clone(core),
            eviction: Arc::clone(eviction),
            counters: DefragmenterCounters::default(),
        }
    }

    /// What the defragmenter did so far.
    pub fn defragmenter_stats(&self) -> DefragmenterStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let DefragmenterCounters { passes, visited, moved } = &self.counters;
        DefragmenterStats { passes: of(passes), visited: of(visited), moved: of(moved) }
    }

    /// Moves some versions of a vBucket, from `cursor` on in its table, out of slabs of which less than `percent` is
    /// used. Where to go on; nothing if the table has no more.
    fn move_some(&self, vb: VbId, cursor: u64, percent: u32) -> Option<u64> {
        let mut sparse: Vec<Version> = Vec::with_capacity(VERSIONS_A_LOCK);
        let mut visited = 0;
        let next = {
            let shard = self.core.vbuckets.loaded(vb, Holder::Defragmenter).ok()?;
            shard.vb.table().visit(cursor, VERSIONS_A_LOCK, |version| {
                visited += 1;
                // What somebody else holds stays where it is for him, so moving it would cost memory.
                if version.is_unique() && version.is_sparse(percent) {
                    sparse.push(version.clone());
                }
            })
        };
        self.counters.visited.fetch_add(visited, Ordering::Relaxed);
        if sparse.is_empty() {
            return next;
        }
        let prepare = |there: Version| (self.core.hash(there.key()), self.copy(&there), there);
        let copies: Vec<(u64, NewVersion, Version)> = sparse.into_iter().map(prepare).collect();
        let mut left = Vec::with_capacity(copies.len());
        if let Ok(mut shard) = self.core.vbuckets.loaded(vb, Holder::Defragmenter) {
            for (hash, copy, there) in copies {
                let moved = shard.vb.move_version(hash, &there, copy);
                self.counters.moved.fetch_add(u64::from(moved.is_ok()), Ordering::Relaxed);
                let (Ok(old) | Err(old)) = moved;
                left.push((old, there));
            }
        }
        next
    }

    /// The same version once more, at another place.
    fn copy(&self, version: &Version) -> NewVersion {
        let (heap, meta, key) = (&self.core.context.heap, version.meta(), version.key());
        if version.shares_value() {
            NewVersion::like(heap, meta, key, version)
        } else if version.is_resident() {
            NewVersion::new(heap, meta, key, &[version.value()])
        } else {
            NewVersion::without_value(heap, meta, key, version.value_bytes())
        }
    }
}
