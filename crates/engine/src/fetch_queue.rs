//! Which values somebody waits for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{DocKey, VbId, Version};
use parking_lot::{Condvar, Mutex};

use crate::completion::{Completer, Completion, completion};

/// The most keys of one vBucket that are read together.
const BATCH_KEYS: usize = 64;
/// The most readers that may wait in a bucket; more are refused.
pub(crate) const MAX_WAITING: usize = 100_000;
/// The most that may be lent before the next batch is read, in bytes.
const MAX_LENT_BYTES: usize = 32 << 20;

/// What became of a fetch.
#[derive(Clone)]
pub enum Fetched {
    /// Look again: it is in memory now, or it is known that there is nothing, or it has changed. What there is no room
    /// for, and what is not there, stays so until the last holder of the pin drops it.
    Look(Option<FetchPin>),
    /// The value cannot be read; the reason is in the log.
    Failed,
}

/// What stays in memory as long as those who waited for it have not looked: a document for which there is no room, or
/// the certainty that there is none.
#[derive(Clone)]
pub struct FetchPin(
    #[expect(dead_code, reason = "what matters is when the last one is dropped")] Arc<Pinned>,
);

struct Pinned {
    queue: Arc<FetchQueue>,
    vb: VbId,
    held: Option<Held>,
}

/// What is lent.
pub(crate) enum Held {
    /// A document.
    Version(Version),
    /// The absence of a key from a vBucket, and which of those that were in its place it was.
    Absence(Arc<[u8]>, u64),
}

impl Held {
    fn bytes(&self) -> usize {
        match self {
            Held::Version(version) => version.allocated_bytes(),
            Held::Absence(key, _) => key.len(),
        }
    }
}

impl FetchPin {
    pub(crate) fn new(queue: &Arc<FetchQueue>, vb: VbId, held: Held) -> FetchPin {
        queue.queue.lock().lent_bytes += held.bytes();
        FetchPin(Arc::new(Pinned { queue: queue.clone(), vb, held: Some(held) }))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.queue.give_back(self.vb, held);
        }
    }
}

/// Keys to read, those who wait for them, and values that were given back.
#[derive(Default)]
pub(crate) struct FetchQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Values read.
    pub(crate) fetched: AtomicU64,
    /// Values that could not be read.
    pub(crate) failed: AtomicU64,
    /// How often a value that was there could not be read.
    pub(crate) unreadable: AtomicU64,
    /// Batches read.
    pub(crate) batches: AtomicU64,
    /// The largest value of the last batch, in bytes: as large may be what nothing is known about.
    pub(crate) lately_bytes: AtomicU64,
}

#[derive(Default)]
struct Queue {
    vbuckets: HashMap<VbId, Keys>,
    /// vBuckets with keys that nobody reads yet, each once, in turn.
    turns: VecDeque<VbId>,
    waiting: usize,
    given_back: Vec<(VbId, Held)>,
    lent_bytes: usize,
    stopping: bool,
}

#[derive(Default)]
struct Keys {
    /// Not being read yet, oldest first.
    unread: VecDeque<Arc<[u8]>>,
    /// Who waits for which key, read already or not.
    waiters: HashMap<Arc<[u8]>, Waiters>,
}

/// Those who wait for one key.
#[derive(Default)]
struct Waiters {
    /// When the first of them asked.
    asked_ns: u64,
    completers: Vec<Completer<Fetched>>,
}

/// What a fetcher has to do next.
#[derive(Default)]
pub(crate) struct Work {
    /// What was lent and is not needed any more.
    pub(crate) given_back: Vec<(VbId, Held)>,
    /// Keys of one vBucket, in order.
    pub(crate) batch: Option<(VbId, Vec<Arc<[u8]>>)>,
}

impl FetchQueue {
    /// Counts that a stored value could not be read, and says so in the log, the rarer the more often that happens.
    pub(crate) fn note_unreadable(&self, bucket: &str, vb: VbId) {
        let times = self.unreadable.fetch_add(1, Ordering::Relaxed) + 1;
        if times.is_power_of_two() {
            tracing::error!(
                event = "value_unreadable",
                bucket,
                %vb,
                times,
                "a stored value cannot be read: it is not the Snappy block, or has not the xattrs, that its datatype \
                 says; run stave check"
            );
        }
    }

    /// Waits for the value of a key from now on; nothing if too many wait already, or nobody fetches any more.
    pub(crate) fn wait(&self, vb: VbId, key: DocKey<'_>, now_ns: u64) -> Option<Completion<Fetched>> {
        let stored = key.to_stored().0;
        let mut queue = self.queue.lock();
        let queue = &mut *queue;
        if queue.waiting >= MAX_WAITING || queue.stopping {
            return None;
        }
        queue.waiting += 1;
        let (completer, promised) = completion();
        let keys = queue.vbuckets.entry(vb).or_default();
        if let Some(waiters) = keys.waiters.get_mut(&stored[..]) {
            waiters.completers.push(completer);
            return Some(promised);
        }
        let key: Arc<[u8]> = stored[..].into();
        keys.waiters.insert(key.clone(), Waiters { asked_ns: now_ns, completers: vec![completer] });
        keys.unread.push_back(key);
        if keys.unread.len() == 1 {
            queue.turns.push_back(vb);
        }
        self.wake.notify_one();
        Some(promised)
    }

    fn give_back(&self, vb: VbId, held: Held) {
        let mut queue = self.queue.lock();
        queue.lent_bytes -= held.bytes();
        if !queue.stopping {
            queue.given_back.push((vb, held));
            self.wake.notify_one();
        }
    }

    /// What is to be done next, if there is anything.
    pub(crate) fn take(&self) -> Option<Work> {
        self.queue.lock().take()
    }

    /// Waits until there is something to do; nothing once it is stopped.
    pub(crate) fn wait_for_work(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopping {
                return None;
            }
            match queue.take() {
                None => self.wake.wait(&mut queue),
                work => return work,
            }
        }
    }

    /// Whether so much is lent that what comes next has to wait.
    pub(crate) fn is_lent_out(&self) -> bool {
        self.queue.lock().lent_bytes >= MAX_LENT_BYTES
    }

    /// Keys that were taken and not read: they are next again.
    pub(crate) fn put_back(&self, vb: VbId, keys: &[Arc<[u8]>]) {
        let mut queue = self.queue.lock();
        let queue = &mut *queue;
        let Some(waiting) = queue.vbuckets.get_mut(&vb) else { return };
        if waiting.unread.is_empty() {
            queue.turns.push_front(vb);
        }
        keys.iter().rev().for_each(|key| waiting.unread.push_front(key.clone()));
        self.wake.notify_one();
    }

    /// When somebody first asked for a key that was not read since.
    pub(crate) fn asked_ns(&self, vb: VbId, key: &[u8]) -> Option<u64> {
        Some(self.queue.lock().vbuckets.get(&vb)?.waiters.get(key)?.asked_ns)
    }

    /// A key was read, or never will be: those who wait for it.
    pub(crate) fn finish(&self, vb: VbId, key: &[u8]) -> Vec<Completer<Fetched>> {
        let mut queue = self.queue.lock();
        let Some(keys) = queue.vbuckets.get_mut(&vb) else { return Vec::new() };
        let waiters = keys.waiters.remove(key).unwrap_or_default().completers;
        if keys.waiters.is_empty() {
            queue.vbuckets.remove(&vb);
        }
        queue.waiting -= waiters.len();
        waiters
    }

    /// Lets fetchers end; those who still wait are told that nobody comes.
    pub(crate) fn stop(&self) {
        let left = {
            let mut queue = self.queue.lock();
            queue.stopping = true;
            queue.waiting = 0;
            queue.turns.clear();
            (std::mem::take(&mut queue.vbuckets), std::mem::take(&mut queue.given_back))
        };
        self.wake.notify_all();
        drop(left);
    }

    /// Readers that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().waiting
    }

    /// Counts what a batch did.
    pub(crate) fn count(&self, fetched: u64, failed: u64) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.fetched.fetch_add(fetched, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }
}

impl Queue {
    fn take(&mut self) -> Option<Work> {
        let given_back = std::mem::take(&mut self.given_back);
        // Whoever has a pin is about to look: what comes next waits for that rather than for memory.
        let batch = if self.lent_bytes < MAX_LENT_BYTES { self.take_batch() } else { None };
        (batch.is_some() || !given_back.is_empty()).then_some(Work { given_back, batch })
    }

    /// The oldest keys of the vBucket whose turn it is, without those whose readers have all gone.
    fn take_batch(&mut self) -> Option<(VbId, Vec<Arc<[u8]>>)> {
        while let Some(vb) = self.turns.pop_front() {
            let Some(keys) = self.vbuckets.get_mut(&vb) else { continue };
            let mut batch = Vec::new();
            while batch.len() < BATCH_KEYS
                && let Some(key) = keys.unread.pop_front()
            {
                let waiters = keys.waiters.get(&key).map_or(&[][..], |waiters| &waiters.completers);
                if waiters.iter().all(Completer::is_unwanted) {
                    self.waiting -= waiters.len();
                    keys.waiters.remove(&key);
                } else {
                    batch.push(key);
                }
            }
            if !keys.unread.is_empty() {
                self.turns.push_back(vb);
            }
            if keys.waiters.is_empty() {
                self.vbuckets.remove(&vb);
            }
            if !batch.is_empty() {
                batch.sort_unstable();
                return Some((vb, batch));
            }
        }
        None
    }
}
