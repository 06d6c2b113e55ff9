//! From the disk to a stream: a few threads read what is no longer in memory, a slice at a time, into bounded buffers.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base::{Account, Part, Seqno, VbId, Version};
use kvstore::{Snapshot, Values};
use parking_lot::{Condvar, Mutex};

use crate::bucket::Bucket;
use crate::flusher::Progress;
use crate::follower::Follower;

/// What one step reads at most, in bytes; one document may be larger.
const SLICE_BYTES: usize = 256 << 10;
/// What a backfill holds ready at most, in bytes, before it waits for its stream.
const BUFFER_BYTES: usize = 1 << 20;
/// What the account is charged for a version in a buffer, beside the version itself.
const SLOT_BYTES: usize = size_of::<Version>();

/// What a backfill reads: one state of the vBucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackfillScope {
    /// The last change of that state; what follows is in memory or needs another backfill.
    pub high_seqno: Seqno,
    /// Tombstones up to here may be missing.
    pub purge_seqno: Seqno,
}

/// What a stream got out of a backfill.
#[derive(Debug, Default)]
pub struct Backfilled {
    /// What is read; known from the first step on.
    pub scope: Option<BackfillScope>,
    /// Documents in order of seqno.
    pub items: Vec<Version>,
    /// Whether that was all.
    pub is_done: bool,
    /// Whether the disk could not be read; nothing more comes.
    pub has_failed: bool,
}

#[derive(Default)]
struct State {
    snapshot: Option<Box<dyn Snapshot>>,
    scope: Option<BackfillScope>,
    /// The next seqno to read.
    next: Seqno,
    items: VecDeque<Version>,
    bytes: usize,
    is_done: bool,
    has_failed: bool,
    /// Whether it stands in the queue, or a thread works on it.
    is_busy: bool,
}

/// One stream's reading from disk. Dropping the stream's reference does not end it: see [`Backfill::cancel`].
pub struct Backfill {
    vb: VbId,
    follower: Arc<Follower>,
    account: Account,
    values: Values,
    is_cancelled: AtomicBool,
    state: Mutex<State>,
}

impl Backfill {
    /// Ends it: nothing more is read.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        let (items, snapshot) = {
            let mut state = self.state.lock();
            state.is_done = true;
            (state.take_all(&self.account), state.snapshot.take())
        };
        drop((items, snapshot));
    }

    fn wants_more(&self, state: &State) -> bool {
        !state.is_done && !state.is_busy && state.bytes <= BUFFER_BYTES / 2
    }
}

impl State {
    fn take_all(&mut self, account: &Account) -> Vec<Version> {
        let items: Vec<Version> = std::mem::take(&mut self.items).into();
        account.release(Part::Streams, items.len() * SLOT_BYTES);
        self.bytes = 0;
        items
    }
}

impl Drop for Backfill {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        drop(state.take_all(&self.account));
    }
}

/// Backfills that want to read.
#[derive(Default)]
pub(crate) struct BackfillQueue {
    waiting: Mutex<VecDeque<Arc<Backfill>>>,
    wake: Condvar,
    is_stopping: AtomicBool,
    running: AtomicUsize,
}

impl BackfillQueue {
    fn push(&self, backfill: Arc<Backfill>, first: bool) {
        let mut waiting = self.waiting.lock();
        if first {
            waiting.push_front(backfill);
        } else {
            waiting.push_back(backfill);
        }
        drop(waiting);
        self.wake.notify_one();
    }

    fn wait(&self) -> Option<Arc<Backfill>> {
        let mut waiting = self.waiting.lock();
        loop {
            if self.is_stopping.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(next) = waiting.pop_front() {
                return Some(next);
            }
            self.wake.wait(&mut waiting);
        }
    }
}

impl Bucket {
    /// Begins to read what a vBucket had changed after `after`, as the store has it now. `follower` is told when
    /// there is something to take.
    pub fn begin_backfill(
        &self,
        vb: VbId,
        after: Seqno,
        values: Values,
        follower: &Arc<Follower>,
    ) -> Arc<Backfill> {
        let state = State { next: after.next(), is_busy: true, ..State::default() };
        let backfill = Arc::new(Backfill {
            vb,
            follower: Arc::clone(follower),
            account: self.memory.account().clone(),
            values,
            is_cancelled: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        self.backfills.push(Arc::clone(&backfill), false);
        backfill
    }

    /// Takes what a backfill has ready, and lets it go on.
    pub fn take_backfilled(&self, backfill: &Arc<Backfill>, max_bytes: usize) -> Backfilled {
        let mut state = backfill.state.lock();
        let mut items = Vec::new();
        let mut bytes = 0;
        while bytes < max_bytes
            && let Some(item) = state.items.pop_front()
        {
            bytes += item.allocated_bytes();
            items.push(item);
        }
        state.bytes -= bytes;
        let wants_more = backfill.wants_more(&state);
        state.is_busy |= wants_more;
        let is_empty = state.items.is_empty();
        let taken = Backfilled {
            scope: state.scope,
            is_done: state.is_done && is_empty && !state.has_failed,
            has_failed: state.has_failed && is_empty,
            items,
        };
        drop(state);
        backfill.account.release(Part::Streams, taken.items.len() * SLOT_BYTES);
        if wants_more {
            self.backfills.push(Arc::clone(backfill), false);
        }
        taken
    }

    /// Reads a slice for the next backfill that wants to.
    pub fn backfill_step(&self) -> Progress {
        let Some(next) = self.backfills.waiting.lock().pop_front() else { return Progress::Idle };
        self.backfill_slice(&next)
    }

    /// Runs such steps until the bucket is closed; for threads of their own.
    pub fn run_backfiller(&self) {
        while let Some(next) = self.backfills.wait() {
            self.backfill_slice(&next);
        }
    }

    /// Lets the backfill threads end after their present steps.
    pub fn stop_backfillers(&self) {
        self.backfills.is_stopping.store(true, Ordering::Relaxed);
        drop(self.backfills.waiting.lock());
        self.backfills.wake.notify_all();
    }

    /// Backfills that read at this moment.
    pub fn running_backfills(&self) -> usize {
        self.backfills.running.load(Ordering::Relaxed)
    }

    fn backfill_slice(&self, backfill: &Arc<Backfill>) -> Progress {
        self.backfills.running.fetch_add(1, Ordering::Relaxed);
        let progress = self.read_slice(backfill);
        self.backfills.running.fetch_sub(1, Ordering::Relaxed);
        backfill.follower.mark(backfill.vb);
        progress
    }

    /// Only one thread works on a backfill, so the state is not needed while it reads.
    fn read_slice(&self, backfill: &Arc<Backfill>) -> Progress {
        let (snapshot, next) = {
            let mut state = backfill.state.lock();
            (state.snapshot.take(), state.next)
        };
        if backfill.is_cancelled.load(Ordering::Relaxed) {
            return Progress::Worked;
        }
        let opened = match snapshot {
            Some(snapshot) => Ok(Some(snapshot)),
            None => self.store.snapshot(backfill.vb),
        };
        let mut items = Vec::new();
        let mut bytes = 0;
        let mut rest = None;
        let scanned = opened.and_then(|snapshot| {
            let Some(snapshot) = snapshot else { return Ok(None) };
            snapshot.scan(next, backfill.values, &mut |version| {
                if bytes >= SLICE_BYTES {
                    rest = Some(version.meta().by_seqno);
                    return ControlFlow::Break(());
                }
                bytes += version.allocated_bytes();
                items.push(version);
                ControlFlow::Continue(())
            })?;
            Ok(Some(snapshot))
        });
        let mut state = backfill.state.lock();
        state.is_busy = false;
        match scanned {
            Ok(snapshot) => {
                let scope = snapshot.as_ref().map_or(
                    BackfillScope { high_seqno: Seqno(0), purge_seqno: Seqno(0) },
                    |snapshot| BackfillScope {
                        high_seqno: snapshot.high_seqno(),
                        purge_seqno: snapshot.purge_seqno(),
                    },
                );
                state.scope.get_or_insert(scope);
                state.is_done = rest.is_none() || backfill.is_cancelled.load(Ordering::Relaxed);
                state.next = rest.unwrap_or(state.next);
                state.snapshot = snapshot.filter(|_| !state.is_done);
                state.bytes += bytes;
                backfill.account.charge(Part::Streams, items.len() * SLOT_BYTES);
                state.items.extend(items);
                let again = backfill.wants_more(&state);
                state.is_busy |= again;
                drop(state);
                if again {
                    self.backfills.push(Arc::clone(backfill), false);
                }
                Progress::Worked
            }
            Err(failure) => {
                (state.is_done, state.has_failed) = (true, true);
                drop(state);
                tracing::error!(bucket = self.name(), vb = %backfill.vb, %failure, "a stream cannot read from disk");
                Progress::Failed
            }
        }
    }
}
