//! From the disk, or the list of an ephemeral bucket, to a stream: a few threads read what is no longer in checkpoints, a slice at a time, into bounded buffers.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::time::Duration;

use base::{Account, CollectionId, Seqno, VbId, VbState};
use buffers::Pool;
use frames::Piece;
use kvstore::{KvStore, Snapshot, Values};
use parking_lot::{Condvar, Mutex, MutexGuard};
use place::{KeyPlace, Place};
use slice::{Made, Slice};

use crate::bucket_core::Core;
use crate::config::{BucketConfig, BucketKind};
use crate::ephemeral::open_range;
use crate::failure_log::{Failed, FailureLog};
use crate::fetch_queue::FetchQueue;
use crate::follower::Follower;
use crate::kept_snapshot::KeptSnapshot;
use crate::memory::MemoryAccount;
use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::tasks::{StoreOp, TaskId, Tasks};
use crate::unreadable::Unreadables;
use crate::vbuckets::VBuckets;

mod buffers;
mod frames;
mod place;
mod slice;

pub use frames::Frames;
pub use slice::WriteChanges;

/// What a backfill holds ready at most, in bytes, before it waits for its stream; one document may be larger.
const BUFFER_BYTES: usize = 1 << 20;
/// What one step makes at least, in bytes, if there is so much.
const LEAST_SLICE_BYTES: usize = 64 << 10;
/// All backfills of a bucket hold no more ready than this part of its quota, but for a smallest slice a connection,
const SHARE_PART: u64 = 32;
/// and those of one connection no more than this part of that.
const CONNECTION_PART: usize = 4;
/// Nothing is read, for a connection that holds nothing either, while this part of the quota is ready and not sent: many
/// connections with one large document each would fill the memory.
const MOST_PART: u64 = 8;
/// The same for streams with prepares, as replicas have them: others that do not read hold them up later.
const MOST_PART_WITH_PREPARES: u64 = 4;
/// Beyond that, smallest slices of documents that are no larger are read for connections that hold nothing, until what is
/// ready of all backfills is larger by this part of the quota: those who do not take large documents hold up no small ones.
const LITTLE_PART: u64 = 16;
/// A backfill whose stream takes nothing for so long is given up: its snapshot keeps what a compaction has replaced
/// on the disk.
const MOST_STALLED: Duration = Duration::from_secs(720);
/// The same while others wait for room, of a connection that holds as much as the average one that holds anything.
const MOST_STALLED_IN_THE_WAY: Duration = Duration::from_secs(20);
/// What a backfill reads: one state of the vBucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackfillScope {
    /// The last change of that state; what follows is in memory or needs another backfill.
    pub high_seqno: Seqno,
    /// Tombstones up to here may be missing.
    pub purge_seqno: Seqno,
    /// The end of the snapshot that the last change lies in: higher than that on a replica that had not all of it.
    pub snapshot_end: Seqno,
    /// The last change that readers can see.
    pub max_visible: Seqno,
    /// The last prepare that is committed or aborted.
    pub high_completed: Seqno,
    /// The last prepare before which all are there, as safe as their levels ask.
    pub high_prepared: Seqno,
    /// The first seqno of the history of changes; 0 if none is kept.
    pub history_start: Seqno,
}

/// How a backfill reads.
#[derive(Clone, Copy, Debug)]
pub struct BackfillReading {
    /// Whether values are wanted.
    pub values: Values,
    /// This collection in the order of keys, its events before it; else everything in the order of seqnos.
    pub by_key: Option<CollectionId>,
    /// Whether it goes before others.
    pub is_urgent: bool,
    /// Whether prepares in flight and aborts are wanted, too; not in the order of keys.
    pub with_prepares: bool,
    /// Whether every version in the history of changes is wanted; not in the order of keys.
    pub with_past: bool,
}

/// What a stream got out of a backfill.
#[derive(Default)]
pub struct Backfilled {
    /// What is read; known from the first step on.
    pub scope: Option<BackfillScope>,
    /// What the stream's writer made of changes in order of seqno, or of keys.
    pub frames: Vec<Frames>,
    /// The last change that is in them.
    pub last: Seqno,
    /// Whether they are of the history of changes: from its first seqno on. What comes before that is taken apart.
    pub is_history: bool,
    /// Whether that was all.
    pub is_done: bool,
    /// Whether the writer wants nothing after these.
    pub is_over: bool,
    /// The writer, once everything is read.
    pub writer: Option<Box<dyn WriteChanges>>,
    /// Whether the disk could not be read; nothing more comes.
    pub has_failed: bool,
}

struct State {
    snapshot: Option<Box<dyn Snapshot>>,
    scope: Option<BackfillScope>,
    /// Collections whose documents are left out, as of when the snapshot was taken: the vBucket may forget them while
    /// the snapshot still has their documents.
    dropped: Vec<(CollectionId, Seqno)>,
    /// What is to be read next.
    next: Place,
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// Nothing while a thread works with it.
    writer: Option<Box<dyn WriteChanges>>,
    is_done: bool,
    is_over: bool,
    has_failed: bool,
    /// Whether the next change is too large for a slice of small documents.
    is_large: bool,
    /// Since when it waits for its stream, on the monotonic clock.
    waits_since: Option<Duration>,
    /// Whether it stands in the queue, or a thread works on it.
    is_busy: bool,
}

/// One stream's reading from disk. Dropping the stream's reference does not end it: see [`Backfills::cancel`].
pub struct Backfill {
    vb: VbId,
    follower: Arc<Follower>,
    account: Account,
    values: Values,
    /// Whether it goes before others.
    is_urgent: bool,
    with_prepares: bool,
    with_past: bool,
    /// What is read; the present state of the store if it is not given.
    kept: Option<KeptSnapshot>,
    pool: Arc<Pool>,
    is_cancelled: AtomicBool,
    state: Mutex<State>,
}

impl Backfill {
    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.follower.parked.lock().retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), self));
        let (pieces, snapshot) = {
            let mut state = self.state.lock();
            self.is_read(&mut state);
            (take_all(&mut state), state.snapshot.take())
        };
        drop((pieces, snapshot));
    }

    fn wants_more(&self, state: &State) -> bool {
        !state.is_done && !state.is_busy && state.bytes <= BUFFER_BYTES / 2
    }

    /// Nothing more is read.
    fn is_read(&self, state: &mut State) {
        if !std::mem::replace(&mut state.is_done, true) {
            self.pool.leave(&self.account);
        }
    }
}

fn take_all(state: &mut State) -> VecDeque<Piece> {
    state.bytes = 0;
    std::mem::take(&mut state.pieces)
}

impl Drop for Backfill {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        self.is_read(&mut state);
        let pieces = take_all(&mut state);
        drop(state);
        drop(pieces);
    }
}

/// Backfills that want to read.
#[derive(Default)]
pub(crate) struct BackfillQueue {
    waiting: Mutex<VecDeque<Arc<Backfill>>>,
    wake: Condvar,
    is_stopping: AtomicBool,
    running: AtomicUsize,
    /// Bytes that backfills have made ready and that are not sent yet.
    buffered: AtomicUsize,
    /// Connections for which something of that is.
    holders: AtomicIsize,
    /// Buffers of threads that read.
    pool: Arc<Pool>,
    /// Backfills that wait until less is ready of all of them.
    parked: Mutex<Vec<Arc<Backfill>>>,
    /// How much that is, in bytes.
    most_buffered: AtomicUsize,
}

impl BackfillQueue {
    /// Something that was ready is sent, or is not wanted any more.
    fn has_sent(&self, bytes: usize) {
        let before = self.buffered.fetch_sub(bytes, Ordering::Relaxed);
        if before.saturating_sub(bytes) < self.most_buffered.load(Ordering::Relaxed) {
            let parked = std::mem::take(&mut *self.parked.lock());
            parked.into_iter().for_each(|backfill| self.push(backfill));
        }
    }

    fn push(&self, backfill: Arc<Backfill>) {
        let mut waiting = self.waiting.lock();
        if backfill.is_urgent {
            waiting.push_front(backfill);
        } else {
            waiting.push_back(backfill);
        }
        drop(waiting);
        self.wake.notify_one();
    }

    fn unpark(&self, follower: &Follower) {
        let parked = std::mem::take(&mut *follower.parked.lock());
        parked.into_iter().filter_map(|parked| parked.downcast().ok()).for_each(|parked| self.push(parked));
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

/// What of a backfill may be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoomFor {
    All,
    /// Changes of a smallest slice, none of which is larger than that.
    Small,
    Nothing,
}

/// Reading for streams of what is no longer in memory: the parts of a bucket that it needs.
#[derive(Clone, Copy)]
pub struct Backfills<'a> {
    config: &'a BucketConfig,
    store: &'a dyn KvStore,
    vbuckets: &'a VBuckets,
    memory: &'a MemoryAccount,
    fetching: &'a FetchQueue,
    unreadable: &'a Unreadables,
    failure_log: &'a FailureLog,
    queue: &'a Arc<BackfillQueue>,
    tasks: &'a Tasks,
}

impl<'a> Backfills<'a> {
    pub(crate) fn of(
        core: &'a Core,
        fetching: &'a FetchQueue,
        queue: &'a Arc<BackfillQueue>,
    ) -> Backfills<'a> {
        let Core { config, store, vbuckets, memory, unreadable, failure_log, tasks, .. } = core;
        let store = &**store;
        Backfills { config, store, vbuckets, memory, fetching, unreadable, failure_log, queue, tasks }
    }

    /// Begins to read what a vBucket had changed after `after`, as the store has it now, and to make of it what `writer`
    /// does. `follower` is told when there is something to take.
    pub fn begin(
        &self,
        vb: VbId,
        after: Seqno,
        reading: BackfillReading,
        writer: Box<dyn WriteChanges>,
        follower: &Arc<Follower>,
    ) -> Arc<Backfill> {
        self.begin_in(vb, after, reading, None, writer, follower)
    }

    /// The same in a snapshot that is kept, or as the store has it now.
    pub fn begin_in(
        &self,
        vb: VbId,
        after: Seqno,
        reading: BackfillReading,
        kept: Option<KeptSnapshot>,
        writer: Box<dyn WriteChanges>,
        follower: &Arc<Follower>,
    ) -> Arc<Backfill> {
        let next = match reading.by_key {
            None => Place::Seqno(after.next()),
            Some(collection) => Place::Key(KeyPlace::of(collection)),
        };
        let state = State {
            snapshot: None,
            scope: None,
            dropped: Vec::new(),
            next,
            pieces: VecDeque::new(),
            bytes: 0,
            writer: Some(writer),
            is_done: false,
            is_over: false,
            has_failed: false,
            is_large: false,
            waits_since: None,
            is_busy: true,
        };
        self.queue.pool.join();
        let backfill = Arc::new(Backfill {
            vb,
            follower: Arc::clone(follower),
            account: self.memory.account().clone(),
            values: reading.values,
            is_urgent: reading.is_urgent,
            with_prepares: reading.with_prepares,
            with_past: reading.with_past,
            kept,
            pool: Arc::clone(&self.queue.pool),
            is_cancelled: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        self.queue.push(Arc::clone(&backfill));
        backfill
    }

    /// Takes what a backfill has ready, and lets it go on: up to where the history of changes begins, or behind that.
    pub fn take(&self, backfill: &Arc<Backfill>, max_bytes: usize) -> Backfilled {
        let mut state = backfill.state.lock();
        let (mut frames, mut last) = (Vec::new(), Seqno(0));
        let mut bytes = 0;
        let is_history = state.pieces.front().is_some_and(|piece| piece.is_history);
        while bytes < max_bytes
            && state.pieces.front().is_some_and(|piece| piece.is_history == is_history)
            && let Some(piece) = state.pieces.pop_front()
        {
            bytes += piece.frames.allocated_bytes();
            last = last.max(piece.last);
            frames.push(piece.frames);
        }
        state.bytes -= bytes;
        if bytes > 0 {
            state.waits_since = None;
        }
        let wants_more = backfill.wants_more(&state);
        state.is_busy |= wants_more;
        let is_all = state.is_done && state.pieces.is_empty();
        let taken = Backfilled {
            scope: state.scope,
            is_done: is_all && !state.is_over && !state.has_failed,
            is_over: is_all && state.is_over,
            has_failed: is_all && state.has_failed,
            writer: if is_all { state.writer.take() } else { None },
            frames,
            last,
            is_history,
        };
        drop(state);
        if wants_more {
            self.queue.push(Arc::clone(backfill));
        }
        taken
    }

    /// Ends a backfill whose stream is gone: nothing more is read.
    pub fn cancel(&self, backfill: &Backfill) {
        backfill.cancel();
        self.queue.parked.lock().retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), backfill));
        self.queue.unpark(&backfill.follower);
    }

    /// Whether a backfill has waited for its stream for so long at `now` on the monotonic clock that it is given up: not
    /// for long if others wait for room and its connection is one of those that hold most.
    pub fn is_stalled(&self, backfill: &Backfill, now: Duration) -> bool {
        let mut state = backfill.state.lock();
        if state.pieces.is_empty() {
            state.waits_since = None;
            return false;
        }
        let waited = now.saturating_sub(*state.waits_since.get_or_insert(now));
        drop(state);
        waited >= MOST_STALLED || (waited >= MOST_STALLED_IN_THE_WAY && self.is_in_the_way(backfill))
    }

    /// Whether others wait for room, and the connection of this one holds no less than the average one: of those that
    /// hold anything there is always one.
    fn is_in_the_way(&self, backfill: &Backfill) -> bool {
        let own = backfill.follower.buffered.load(Ordering::Relaxed);
        let holders = usize::try_from(self.queue.holders.load(Ordering::Relaxed)).unwrap_or(0);
        own.saturating_mul(holders.max(1)) >= self.held_bytes() && !self.queue.parked.lock().is_empty()
    }

    /// Bytes that backfills have made ready and that are not sent yet.
    pub fn held_bytes(&self) -> usize {
        self.queue.buffered.load(Ordering::Relaxed)
    }

    /// Bytes that the threads which read for backfills keep in buffers of their own between two slices: at most 4 MiB
    /// a thread, and nothing once all backfills have read what they were to read.
    pub fn buffer_bytes(&self) -> usize {
        self.queue.pool.kept_bytes()
    }

    /// What one connection's backfills may hold ready.
    fn connection_share(&self) -> usize {
        let share = usize::try_from(self.memory.quota_bytes() / SHARE_PART).unwrap_or(usize::MAX);
        share / CONNECTION_PART
    }

    /// How much the next slice of a backfill makes at most.
    fn slice_bytes(&self, backfill: &Backfill, state: &State) -> usize {
        let own = backfill.follower.buffered.load(Ordering::Relaxed);
        let share = self.connection_share();
        let all = (share * CONNECTION_PART).saturating_sub(self.held_bytes());
        let room = BUFFER_BYTES.saturating_sub(state.bytes).min(share.saturating_sub(own)).min(all);
        room.max(LEAST_SLICE_BYTES)
    }

    /// Whether there is room for another slice. A connection that holds nothing has always room for one, so that
    /// those who do not take theirs hold up nobody else.
    fn has_room(&self, follower: &Follower) -> bool {
        let (own, share) = (follower.buffered.load(Ordering::Relaxed), self.connection_share());
        own == 0 || (own < share && self.held_bytes() < share * CONNECTION_PART)
    }

    /// Whether so much is ready of all backfills that not even such a slice is read. One document may be larger than all
    /// that may be ready.
    fn is_full(&self, backfill: &Backfill) -> bool {
        self.held_bytes() >= self.most_held(backfill)
    }

    fn most_held(&self, backfill: &Backfill) -> usize {
        self.part(if backfill.with_prepares { MOST_PART_WITH_PREPARES } else { MOST_PART })
    }

    fn part(&self, part: u64) -> usize {
        usize::try_from(self.memory.quota_bytes() / part).unwrap_or(usize::MAX)
    }

    /// What of a backfill may be read now: everything, small documents alone, or nothing.
    fn room_for(&self, backfill: &Backfill) -> RoomFor {
        let most = self.part(MOST_PART_WITH_PREPARES) + self.part(LITTLE_PART);
        self.queue.most_buffered.store(most, Ordering::Relaxed);
        if !self.is_full(backfill) {
            return RoomFor::All;
        }
        let has_little = self.held_bytes() < self.most_held(backfill) + self.part(LITTLE_PART);
        let holds_nothing = backfill.follower.buffered.load(Ordering::Relaxed) == 0;
        if has_little && holds_nothing && !backfill.state.lock().is_large {
            RoomFor::Small
        } else {
            RoomFor::Nothing
        }
    }

    /// Reads a slice for the next backfill that wants to.
    pub fn step(&self) -> Progress {
        let Some(next) = self.queue.waiting.lock().pop_front() else { return Progress::Idle };
        self.slice(&next)
    }

    /// Runs such steps until the bucket is closed; for threads of their own.
    pub fn run_backfiller(&self) {
        while let Some(next) = self.queue.wait() {
            self.slice(&next);
        }
    }

    /// Lets the backfill threads end after their present steps.
    pub fn stop(&self) {
        self.queue.is_stopping.store(true, Ordering::Relaxed);
        drop(self.queue.waiting.lock());
        self.queue.wake.notify_all();
    }

    /// Backfills that read at this moment.
    pub fn running(&self) -> usize {
        self.queue.running.load(Ordering::Relaxed)
    }

    fn slice(&self, backfill: &Arc<Backfill>) -> Progress {
        let follower = &backfill.follower;
        let mut parked = follower.parked.lock();
        // Under the lock: whoever takes something afterwards finds it parked.
        if !self.has_room(follower) && !backfill.is_cancelled.load(Ordering::Relaxed) {
            parked.push(Arc::clone(backfill) as Arc<dyn Any + Send + Sync>);
            return Progress::Worked;
        }
        drop(parked);
        let mut parked = self.queue.parked.lock();
        // Under this lock, too.
        let room = self.room_for(backfill);
        if room == RoomFor::Nothing && !backfill.is_cancelled.load(Ordering::Relaxed) {
            parked.push(Arc::clone(backfill));
            return Progress::Worked;
        }
        drop(parked);
        self.queue.running.fetch_add(1, Ordering::Relaxed);
        let read = || self.tasks.store_op(StoreOp::Backfill, || self.read_slice(backfill, room));
        let progress = self.tasks.step(TaskId::Backfiller, read);
        self.queue.running.fetch_sub(1, Ordering::Relaxed);
        backfill.follower.mark(backfill.vb);
        progress
    }

    /// The past of a vBucket from `from` on, wherever the bucket has it; `None` if there is none.
    fn past(&self, backfill: &Backfill, from: Seqno) -> Result<Option<Box<dyn Snapshot>>, kvstore::Failure> {
        let vb = backfill.vb;
        if let Some(kept) = &backfill.kept {
            return Ok(Some(Box::new(kept.clone())));
        }
        if self.config.kind != BucketKind::Ephemeral {
            return if backfill.with_past {
                self.store.history_snapshot(vb)
            } else {
                self.store.snapshot(vb)
            };
        }
        let found = self.vbuckets.find(vb, Holder::FrontEnd);
        match found.and_then(|mut shard| open_range(self.vbuckets, &mut shard, from)) {
            Ok(range) => Ok(Some(Box::new(range))),
            Err(Refusal::Busy) => Err(kvstore::Failure::TooManyReaders { vb }),
            Err(_) => Ok(None),
        }
    }

    /// What of a vBucket is dropped up to a seqno. What is dropped later is not left out of a state that ends there: whoever
    /// has that state may never hear of it, if the history goes on elsewhere.
    fn dropped_by(&self, vb: VbId, high: Seqno) -> Vec<(CollectionId, Seqno)> {
        let Ok(shard) = self.vbuckets.find(vb, Holder::FrontEnd) else { return Vec::new() };
        let dropped = shard.vb.collections().dropped().iter().filter(|one| one.end <= high);
        dropped.map(|one| (one.id, one.end)).collect()
    }

    /// What was made is ready.
    fn hold(&self, backfill: &Backfill, state: &mut State, mut pieces: Vec<Piece>, bytes: usize) {
        pieces.iter_mut().for_each(|piece| piece.frames.hold(self.queue, &backfill.follower));
        state.bytes += bytes;
        state.pieces.extend(pieces);
    }

    /// Opens the past of a vBucket from a seqno on, and notes which collections are dropped in it.
    fn open_past(
        &self,
        backfill: &Backfill,
        from: Seqno,
        dropped: &mut Vec<(CollectionId, Seqno)>,
    ) -> Result<Option<Box<dyn Snapshot>>, kvstore::Failure> {
        if let Some(kept) = &backfill.kept {
            *dropped = kept.dropped().to_vec();
            return self.past(backfill, from);
        }
        // What is erased while it is opened, and what is dropped.
        let before = self.dropped_by(backfill.vb, Seqno(u64::MAX));
        self.past(backfill, from).inspect(|snapshot| {
            let high = snapshot.as_ref().map_or(Seqno(0), |snapshot| snapshot.high_seqno());
            *dropped = self.dropped_by(backfill.vb, high);
            dropped.extend(before.into_iter().filter(|(_, end)| *end <= high));
        })
    }

    /// A slice was read, or there is nothing to read: what was made is ready, and the backfill goes on if it may.
    fn keep_slice(
        &self,
        backfill: &Arc<Backfill>,
        mut state: MutexGuard<'_, State>,
        read: Option<(Box<dyn Snapshot>, BackfillScope, Made)>,
    ) {
        let nothing = || (None, BackfillScope::default(), Made::default());
        let (snapshot, scope, made) =
            read.map_or_else(nothing, |(snapshot, scope, made)| (Some(snapshot), scope, made));
        state.scope.get_or_insert(scope);
        state.is_over |= made.is_over;
        state.is_large = made.is_large;
        if made.rest.is_none() || backfill.is_cancelled.load(Ordering::Relaxed) {
            backfill.is_read(&mut state);
        }
        if let Some(rest) = made.rest {
            state.next = rest;
        }
        state.snapshot = snapshot.filter(|_| !state.is_done);
        self.hold(backfill, &mut state, made.pieces, made.bytes);
        let again = backfill.wants_more(&state);
        state.is_busy |= again;
        drop(state);
        if again {
            self.queue.push(Arc::clone(backfill));
        }
    }

    /// Only one thread works on a backfill, so the state is not needed while it reads.
    fn read_slice(&self, backfill: &Arc<Backfill>, room: RoomFor) -> Progress {
        let (snapshot, next, scope, mut dropped, writer, max_bytes) = {
            let mut state = backfill.state.lock();
            let dropped = std::mem::take(&mut state.dropped);
            let max_bytes = match room {
                RoomFor::Small => LEAST_SLICE_BYTES,
                _ => self.slice_bytes(backfill, &state),
            };
            (state.snapshot.take(), state.next.clone(), state.scope, dropped, state.writer.take(), max_bytes)
        };
        let (Some(mut writer), false) = (writer, backfill.is_cancelled.load(Ordering::Relaxed)) else {
            return Progress::Worked;
        };
        let opened = match snapshot {
            Some(snapshot) => Ok(Some(snapshot)),
            None => self.open_past(backfill, next.seqno(), &mut dropped),
        };
        let mut buffers = self.queue.pool.take();
        let read = opened.and_then(|snapshot| {
            let Some(snapshot) = snapshot else { return Ok(None) };
            let completed = || snapshot.state().map(|state| Seqno(state.completed_seqno));
            let prepares_above = backfill.with_prepares.then(completed).transpose()?;
            let slice = Slice {
                writer: &mut *writer,
                account: &backfill.account,
                dropped: &dropped,
                prepares_above,
                with_past: backfill.with_past,
                max_bytes,
                most_change: if room == RoomFor::Small { LEAST_SLICE_BYTES } else { usize::MAX },
                made: Made::default(),
            };
            let made = slice.read(&*snapshot, next, backfill.values, &mut buffers)?;
            let scope = scope.map_or_else(|| self.scope_of(backfill.vb, &*snapshot), Ok)?;
            Ok(Some((snapshot, scope, made)))
        });
        self.queue.pool.give_back(buffers, &backfill.account);
        let mut state = backfill.state.lock();
        state.is_busy = false;
        state.writer = Some(writer);
        if matches!(&read, Ok(Some((_, _, made))) if made.is_unreadable) {
            backfill.is_read(&mut state);
            state.has_failed = true;
            drop(state);
            self.fetching.note_unreadable(&self.config.name, backfill.vb);
            return Progress::Failed;
        }
        match read {
            Ok(read) => {
                state.dropped = dropped;
                self.keep_slice(backfill, state, read);
                Progress::Worked
            }
            Err(failure) => {
                backfill.is_read(&mut state);
                state.has_failed = true;
                drop(state);
                self.failure_log.failed(&self.config.name, backfill.vb, Failed::Stream, &failure);
                self.unreadable.note_served(&self.config.name, backfill.vb, &failure);
                Progress::Failed
            }
        }
    }
}

impl Backfills<'_> {
    /// What there is to read in a vBucket's past as it is now.
    fn scope_of(&self, vb: VbId, snapshot: &dyn Snapshot) -> Result<BackfillScope, kvstore::Failure> {
        let state = snapshot.state()?;
        // A replica may have been told that nothing was changed before its snapshot ended.
        let high_seqno = snapshot.high_seqno().max(Seqno(state.snap_start));
        // Files of a time before sync writes say nothing of what readers can see.
        let has_prepares = state.prepared_seqno > 0 || state.max_visible_seqno > 0;
        let max_visible =
            if has_prepares { Seqno(state.max_visible_seqno).min(high_seqno) } else { high_seqno };
        let end = high_seqno.max(Seqno(state.snap_end));
        let present = self
            .vbuckets
            .find(vb, Holder::FrontEnd)
            .map(|shard| (shard.vb.state(), shard.vb.high_seqno(), shard.vb.snapshot()));
        let snapshot_end = match present {
            _ if state.state == VbState::Active => high_seqno,
            // It became active since: what the disk has of a snapshot is part of what it has in memory, be that the
            // whole snapshot or as much of it as came.
            Ok((VbState::Active, high, _)) if end > high_seqno => high_seqno.max(high),
            // The snapshot has become part of a larger one since that was saved.
            Ok((_, high, larger)) if larger.is_inside(high) && larger.start < high_seqno => {
                end.max(larger.end)
            }
            _ => end,
        };
        Ok(BackfillScope {
            high_seqno,
            purge_seqno: snapshot.purge_seqno().max(Seqno(state.purge_seqno)),
            snapshot_end,
            max_visible,
            high_completed: Seqno(state.completed_seqno),
            high_prepared: Seqno(state.high_prepared_seqno),
            history_start: snapshot.history_start(),
        })
    }
}
