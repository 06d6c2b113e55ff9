//! How far the loading of a bucket is: which vBuckets still need their documents, and which values come next.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{Seqno, VbId};
use kvstore::Counts;
use parking_lot::Mutex;

use crate::completion::{Completer, Completion, completion};

/// About so many values of one vBucket are loaded in a slice.
const SLICE_VALUES: u64 = 256;

/// How far the loading of a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmupState {
    /// Metadata are being loaded; vBuckets are served one after the other, those first that somebody waits for.
    LoadingKeys,
    /// Everything is served; values are being loaded ahead of their readers.
    LoadingValues,
    /// Nothing is loaded ahead any more.
    Done,
}

/// How far the loading of a bucket is, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmupStats {
    /// What is being done.
    pub state: WarmupState,
    /// vBuckets that had documents to load.
    pub vbuckets: u64,
    /// Those that are loaded.
    pub vbuckets_loaded: u64,
    /// vBuckets that could not be read.
    pub vbuckets_failed: u64,
    /// Documents and tombstones on disk when loading began.
    pub estimated_keys: u64,
    /// Those whose metadata were loaded.
    pub keys: u64,
    /// Documents on disk when loading began.
    pub estimated_values: u64,
    /// Values that were loaded ahead of their readers, or along with the metadata.
    pub values: u64,
    /// Whether loading stopped because the memory was used up to the low watermark.
    pub at_watermark: bool,
    /// How long it took to find the vBuckets, in microseconds: from then on the bucket serves.
    pub states_us: u64,
    /// How long it took until all metadata were there, in microseconds; nothing while they are not.
    pub keys_us: Option<u64>,
    /// How long all of it took, in microseconds; so far, if it is not done.
    pub total_us: u64,
}

/// A part of a vBucket whose values are loaded next: seqnos `from` to `end`; below it come more of the same width.
pub(crate) struct Slice {
    pub(crate) vb: VbId,
    pub(crate) incarnation: u64,
    pub(crate) from: Seqno,
    pub(crate) end: Seqno,
    width: u64,
}

impl Slice {
    /// The newest slice of a vBucket with so many items among its seqnos up to `high`.
    pub(crate) fn newest(vb: VbId, incarnation: u64, high: Seqno, items: u64) -> Slice {
        let width = (high.0 / items.max(1)).saturating_add(1).saturating_mul(SLICE_VALUES);
        Slice { vb, incarnation, from: Seqno(high.0.saturating_sub(width) + 1), end: high, width }
    }

    /// What is left of it behind what was read.
    pub(crate) fn rest(self, from: Seqno) -> Slice {
        Slice { from, ..self }
    }

    /// The slice below this one.
    pub(crate) fn below(self) -> Option<Slice> {
        // A slice may have been cut short from below; its lower edge is where the one before it ends.
        let end = Seqno(self.lower_edge().checked_sub(1).filter(|end| *end > 0)?);
        let from = Seqno(end.0.saturating_sub(self.width) + 1);
        Some(Slice { from, end, ..self })
    }

    fn lower_edge(&self) -> u64 {
        self.end.0.saturating_sub(self.width) + 1
    }
}

/// What is still to be loaded.
pub(crate) struct Warmup {
    began: Duration,
    todo: Mutex<Todo>,
    stopping: AtomicBool,
    keys: AtomicU64,
    values: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct Todo {
    /// vBuckets whose documents nobody has begun to load, in the order in which they are.
    order: VecDeque<VbId>,
    unloaded: HashSet<VbId>,
    /// Those of them that somebody waits for, first come first served.
    wanted: VecDeque<VbId>,
    waiters: HashMap<VbId, Vec<Completer<()>>>,
    /// vBuckets that are being loaded.
    loading: u64,
    /// Slices of values, one for each vBucket, in turn.
    slices: VecDeque<Slice>,
    /// Slices that are being loaded.
    warming: u64,
    vbuckets: u64,
    loaded: u64,
    estimated_keys: u64,
    estimated_values: u64,
    at_watermark: bool,
    states_found: Duration,
    keys_loaded: Option<Duration>,
    done: Option<Duration>,
}

impl Todo {
    /// Notes the moment when a part has become complete.
    fn settle(&mut self, now: Duration) {
        if self.unloaded.is_empty() && self.loading == 0 {
            let keys_loaded = *self.keys_loaded.get_or_insert(now);
            if self.slices.is_empty() && self.warming == 0 {
                self.done.get_or_insert(now.max(keys_loaded));
            }
        }
    }
}

impl Warmup {
    pub(crate) fn new(began: Duration) -> Warmup {
        Warmup {
            began,
            todo: Mutex::default(),
            stopping: AtomicBool::new(false),
            keys: AtomicU64::new(0),
            values: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// A vBucket has documents to load.
    pub(crate) fn add(&self, vb: VbId, counts: &Counts) {
        let mut todo = self.todo.lock();
        todo.order.push_back(vb);
        todo.unloaded.insert(vb);
        todo.vbuckets += 1;
        todo.estimated_keys += counts.documents + counts.tombstones;
        todo.estimated_values += counts.documents;
    }

    /// There are no more vBuckets.
    pub(crate) fn found_all(&self, now: Duration) {
        let mut todo = self.todo.lock();
        todo.states_found = now;
        todo.settle(now);
    }

    /// A vBucket cannot be read.
    pub(crate) fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until a vBucket's documents are loaded. Call it while holding the vBucket's lock and finding it not
    /// loaded, so that the loader cannot pass between the check and the wait.
    pub(crate) fn want(&self, vb: VbId) -> Completion<()> {
        let (completer, promised) = completion();
        let mut todo = self.todo.lock();
        if self.is_stopping() {
            return promised;
        }
        let waiters = todo.waiters.entry(vb).or_default();
        if waiters.len().is_power_of_two() {
            waiters.retain(|waiter| !waiter.is_unwanted());
        }
        waiters.push(completer);
        if todo.unloaded.contains(&vb) && !todo.wanted.contains(&vb) {
            todo.wanted.push_back(vb);
        }
        promised
    }

    /// The vBucket to be loaded next; tell [`Warmup::loaded`] when that is done.
    pub(crate) fn take_vbucket(&self) -> Option<VbId> {
        let mut todo = self.todo.lock();
        if self.is_stopping() {
            return None;
        }
        while let Some(vb) = todo.wanted.pop_front().or_else(|| todo.order.pop_front()) {
            if todo.unloaded.remove(&vb) {
                todo.loading += 1;
                return Some(vb);
            }
        }
        None
    }

    /// A vBucket's documents are loaded, or never will be; its values come from `slice` downwards.
    pub(crate) fn loaded(&self, vb: VbId, keys: u64, values: u64, slice: Option<Slice>, now: Duration) {
        self.keys.fetch_add(keys, Ordering::Relaxed);
        self.values.fetch_add(values, Ordering::Relaxed);
        let waiters = {
            let mut todo = self.todo.lock();
            todo.loading -= 1;
            todo.loaded += 1;
            if !todo.at_watermark {
                todo.slices.extend(slice);
            }
            todo.settle(now);
            todo.waiters.remove(&vb)
        };
        waiters.unwrap_or_default().into_iter().for_each(|waiter| waiter.complete(()));
    }

    /// A vBucket is deleted: nothing of it is to be loaded, and whoever waits shall look again.
    pub(crate) fn forget(&self, vb: VbId) {
        let waiters = {
            let mut todo = self.todo.lock();
            todo.unloaded.remove(&vb);
            todo.slices.retain(|slice| slice.vb != vb);
            todo.waiters.remove(&vb)
        };
        waiters.unwrap_or_default().into_iter().for_each(|waiter| waiter.complete(()));
    }

    /// The slice of values to be loaded next; tell [`Warmup::warmed`] when that is done.
    pub(crate) fn take_slice(&self) -> Option<Slice> {
        let mut todo = self.todo.lock();
        if self.is_stopping() {
            return None;
        }
        let slice = todo.slices.pop_front()?;
        todo.warming += 1;
        Some(slice)
    }

    /// Not everything that was found could be kept.
    pub(crate) fn found_no_room(&self) {
        self.todo.lock().at_watermark = true;
    }

    /// Loads no more values: there is no room for them.
    pub(crate) fn stop_at_watermark(&self, now: Duration) {
        let mut todo = self.todo.lock();
        todo.at_watermark |= !todo.slices.is_empty() || todo.warming > 0;
        todo.slices.clear();
        todo.settle(now);
    }

    /// A slice is loaded: up to its end, or only to before `rest`.
    pub(crate) fn warmed(&self, slice: Slice, rest: Option<Seqno>, values: u64, now: Duration) {
        self.values.fetch_add(values, Ordering::Relaxed);
        let mut todo = self.todo.lock();
        todo.warming -= 1;
        if todo.at_watermark {
            todo.settle(now);
            return;
        }
        match rest {
            Some(from) => todo.slices.push_front(Slice { from, ..slice }),
            None => todo.slices.extend(slice.below()),
        }
        todo.settle(now);
    }

    /// Lets loaders end after what they are at; whoever still waits is told that nobody comes.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let waiters = std::mem::take(&mut self.todo.lock().waiters);
        drop(waiters);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The numbers as they are.
    pub(crate) fn stats(&self, now: Duration) -> WarmupStats {
        let todo = self.todo.lock();
        let since = |moment: Duration| moment.saturating_sub(self.began).as_micros() as u64;
        WarmupStats {
            state: match (todo.keys_loaded, todo.done) {
                (None, _) => WarmupState::LoadingKeys,
                (Some(_), None) => WarmupState::LoadingValues,
                (Some(_), Some(_)) => WarmupState::Done,
            },
            vbuckets: todo.vbuckets,
            vbuckets_loaded: todo.loaded,
            vbuckets_failed: self.failed.load(Ordering::Relaxed),
            estimated_keys: todo.estimated_keys,
            keys: self.keys.load(Ordering::Relaxed),
            estimated_values: todo.estimated_values,
            values: self.values.load(Ordering::Relaxed),
            at_watermark: todo.at_watermark,
            states_us: since(todo.states_found),
            keys_us: todo.keys_loaded.map(since),
            total_us: since(todo.done.unwrap_or(now)),
        }
    }
}
