//! From the disk, or the list of an ephemeral bucket, to a stream: a few threads read what is no longer in checkpoints, a slice at a time, into bounded buffers.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::doc_key::encode_leb128;
use base::{Account, CollectionId, Part, Seqno, VbId, VbState, Version};
use kvstore::{Failure, Snapshot, Values};
use parking_lot::{Condvar, Mutex};
use vbucket::collections::event::stored_prefixes;

use crate::bucket::Bucket;
use crate::flusher::{Progress, is_committed};
use crate::follower::Follower;

/// What one step reads at most, in bytes; one document may be larger.
const SLICE_BYTES: usize = 256 << 10;
/// What a backfill holds ready at most, in bytes, before it waits for its stream.
const BUFFER_BYTES: usize = 1 << 20;
/// All backfills of a bucket hold no more ready than this part of its quota, but for a slice a connection,
const SHARE_PART: u64 = 32;
/// and those of one connection no more than this part of that.
const CONNECTION_PART: usize = 4;
/// A backfill whose stream takes nothing for so long is given up: its snapshot keeps what a compaction has replaced
/// on the disk.
const MOST_STALLED: Duration = Duration::from_secs(720);
/// What the account is charged for a version in a buffer, beside the version itself.
const SLOT_BYTES: usize = size_of::<Version>();

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
}

/// What a stream got out of a backfill.
#[derive(Debug, Default)]
pub struct Backfilled {
    /// What is read; known from the first step on.
    pub scope: Option<BackfillScope>,
    /// Documents in order of seqno, or of keys.
    pub items: Vec<Version>,
    /// Whether that was all.
    pub is_done: bool,
    /// Whether the disk could not be read; nothing more comes.
    pub has_failed: bool,
}

/// Where a backfill goes on, which is also how it reads.
#[derive(Clone, Debug)]
enum Place {
    /// By seqno, from this one on.
    Seqno(Seqno),
    /// By key.
    Key(KeyPlace),
}

/// A place in one range of stored keys, and the ranges behind it: what begins with a prefix.
#[derive(Clone, Debug)]
struct KeyPlace {
    prefix: Vec<u8>,
    /// The stored key that is read next.
    from: Vec<u8>,
    later: Vec<Vec<u8>>,
}

impl KeyPlace {
    /// The events of a collection, then the collection.
    fn of(collection: CollectionId) -> KeyPlace {
        let [first, second] = stored_prefixes(collection);
        let (bytes, len) = encode_leb128(collection.0);
        KeyPlace { from: first.clone(), prefix: first, later: vec![bytes[..len].to_vec(), second] }
    }

    /// The next range.
    fn next(mut self) -> Option<KeyPlace> {
        let prefix = self.later.pop()?;
        Some(KeyPlace { from: prefix.clone(), prefix, later: self.later })
    }
}

impl Place {
    /// Nothing below it is read.
    fn seqno(&self) -> Seqno {
        match self {
            Place::Seqno(seqno) => *seqno,
            Place::Key(_) => Seqno(1),
        }
    }
}

struct State {
    snapshot: Option<Box<dyn Snapshot>>,
    scope: Option<BackfillScope>,
    /// Collections whose documents are left out, as of when the snapshot was taken: the vBucket may forget them while
    /// the snapshot still has their documents.
    dropped: Vec<(CollectionId, Seqno)>,
    /// What is to be read next.
    next: Place,
    items: VecDeque<Version>,
    bytes: usize,
    is_done: bool,
    has_failed: bool,
    /// Since when it waits for its stream, on the monotonic clock.
    waits_since: Option<Duration>,
    /// Whether it stands in the queue, or a thread works on it.
    is_busy: bool,
}

/// One stream's reading from disk. Dropping the stream's reference does not end it: see [`Bucket::cancel_backfill`].
pub struct Backfill {
    vb: VbId,
    follower: Arc<Follower>,
    account: Account,
    values: Values,
    /// Whether it goes before others.
    is_urgent: bool,
    with_prepares: bool,
    total: Arc<AtomicUsize>,
    is_cancelled: AtomicBool,
    state: Mutex<State>,
}

impl Backfill {
    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.follower.parked.lock().retain(|other| !std::ptr::eq(&**other, self));
        let (items, snapshot) = {
            let mut state = self.state.lock();
            state.is_done = true;
            (self.take_all(&mut state), state.snapshot.take())
        };
        drop((items, snapshot));
    }

    fn wants_more(&self, state: &State) -> bool {
        !state.is_done && !state.is_busy && state.bytes <= BUFFER_BYTES / 2
    }

    fn hold(&self, state: &mut State, items: Vec<Version>, bytes: usize) {
        self.account.charge(Part::Streams, items.len() * SLOT_BYTES);
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.follower.buffered.fetch_add(bytes, Ordering::Relaxed);
        state.bytes += bytes;
        state.items.extend(items);
    }

    fn let_go(&self, state: &mut State, items: usize, bytes: usize) {
        self.account.release(Part::Streams, items * SLOT_BYTES);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
        self.follower.buffered.fetch_sub(bytes, Ordering::Relaxed);
        state.bytes -= bytes;
    }

    fn take_all(&self, state: &mut State) -> Vec<Version> {
        let items: Vec<Version> = std::mem::take(&mut state.items).into();
        let bytes = state.bytes;
        self.let_go(state, items.len(), bytes);
        items
    }
}

impl Drop for Backfill {
    fn drop(&mut self) {
        let items = self.take_all(&mut self.state.lock());
        drop(items);
    }
}

/// Backfills that want to read.
#[derive(Default)]
pub(crate) struct BackfillQueue {
    waiting: Mutex<VecDeque<Arc<Backfill>>>,
    wake: Condvar,
    is_stopping: AtomicBool,
    running: AtomicUsize,
    /// Bytes that all backfills hold ready.
    buffered: Arc<AtomicUsize>,
}

impl BackfillQueue {
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
        reading: BackfillReading,
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
            items: VecDeque::new(),
            bytes: 0,
            is_done: false,
            has_failed: false,
            waits_since: None,
            is_busy: true,
        };
        let backfill = Arc::new(Backfill {
            vb,
            follower: Arc::clone(follower),
            account: self.memory.account().clone(),
            values: reading.values,
            is_urgent: reading.is_urgent,
            with_prepares: reading.with_prepares,
            total: Arc::clone(&self.backfills.buffered),
            is_cancelled: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        self.backfills.push(Arc::clone(&backfill));
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
        backfill.let_go(&mut state, items.len(), bytes);
        if bytes > 0 {
            state.waits_since = None;
        }
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
        if wants_more {
            self.backfills.push(Arc::clone(backfill));
        }
        if bytes > 0 {
            self.unpark(&backfill.follower);
        }
        taken
    }

    /// Ends a backfill whose stream is gone: nothing more is read.
    pub fn cancel_backfill(&self, backfill: &Backfill) {
        backfill.cancel();
        self.unpark(&backfill.follower);
    }

    fn unpark(&self, follower: &Follower) {
        let parked = std::mem::take(&mut *follower.parked.lock());
        parked.into_iter().for_each(|parked| self.backfills.push(parked));
    }

    /// Whether a backfill has waited for its stream for so long at `now` on the monotonic clock that it is given up.
    pub fn is_backfill_stalled(&self, backfill: &Backfill, now: Duration) -> bool {
        let mut state = backfill.state.lock();
        if state.items.is_empty() {
            state.waits_since = None;
            return false;
        }
        now.saturating_sub(*state.waits_since.get_or_insert(now)) >= MOST_STALLED
    }

    /// Bytes that backfills hold ready for their streams.
    pub fn backfilled_bytes(&self) -> usize {
        self.backfills.buffered.load(Ordering::Relaxed)
    }

    /// Whether there is room for another slice. A connection that holds nothing has always room for one, so that
    /// those who do not take theirs hold up nobody else.
    fn has_backfill_room(&self, follower: &Follower) -> bool {
        let share = usize::try_from(self.memory.quota_bytes() / SHARE_PART).unwrap_or(usize::MAX);
        let own = follower.buffered.load(Ordering::Relaxed);
        own == 0 || (own < share / CONNECTION_PART && self.backfilled_bytes() < share)
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
        let follower = &backfill.follower;
        let mut parked = follower.parked.lock();
        // Under the lock: whoever takes something afterwards finds it parked.
        if !self.has_backfill_room(follower) && !backfill.is_cancelled.load(Ordering::Relaxed) {
            parked.push(Arc::clone(backfill));
            return Progress::Worked;
        }
        drop(parked);
        self.backfills.running.fetch_add(1, Ordering::Relaxed);
        let progress = self.read_slice(backfill);
        self.backfills.running.fetch_sub(1, Ordering::Relaxed);
        backfill.follower.mark(backfill.vb);
        progress
    }

    /// What of a vBucket is dropped up to a seqno. What is dropped later is not left out of a state that ends there: whoever
    /// has that state may never hear of it, if the history goes on elsewhere.
    fn dropped_by(&self, vb: VbId, high: Seqno) -> Vec<(CollectionId, Seqno)> {
        let Ok(shard) = self.shard(vb) else { return Vec::new() };
        let dropped = shard.vb.collections().dropped().iter().filter(|one| one.end <= high);
        dropped.map(|one| (one.id, one.end)).collect()
    }

    /// Only one thread works on a backfill, so the state is not needed while it reads.
    fn read_slice(&self, backfill: &Arc<Backfill>) -> Progress {
        let (snapshot, next, scope, mut dropped) = {
            let mut state = backfill.state.lock();
            (state.snapshot.take(), state.next.clone(), state.scope, std::mem::take(&mut state.dropped))
        };
        if backfill.is_cancelled.load(Ordering::Relaxed) {
            return Progress::Worked;
        }
        let opened = match snapshot {
            Some(snapshot) => Ok(Some(snapshot)),
            None => {
                // What is erased while it is opened, and what is dropped.
                let before = self.dropped_by(backfill.vb, Seqno(u64::MAX));
                self.past(backfill.vb, next.seqno()).inspect(|snapshot| {
                    let high = snapshot.as_ref().map_or(Seqno(0), |snapshot| snapshot.high_seqno());
                    dropped = self.dropped_by(backfill.vb, high);
                    dropped.extend(before.into_iter().filter(|(_, end)| *end <= high));
                })
            }
        };
        let mut slice = Slice::default();
        let scanned = opened.and_then(|snapshot| {
            let Some(snapshot) = snapshot else { return Ok(None) };
            slice.dropped = dropped;
            if backfill.with_prepares {
                slice.prepares_above = Some(Seqno(snapshot.state()?.completed_seqno));
            }
            slice.read(&*snapshot, next, backfill.values)?;
            let scope = scope.map_or_else(|| self.scope_of(backfill.vb, &*snapshot), Ok)?;
            Ok(Some((snapshot, scope)))
        });
        let Slice { items, bytes, rest, dropped, .. } = slice;
        let mut state = backfill.state.lock();
        state.is_busy = false;
        match scanned {
            Ok(opened) => {
                let (snapshot, scope) = opened.unzip();
                state.scope.get_or_insert(scope.unwrap_or_default());
                state.is_done = rest.is_none() || backfill.is_cancelled.load(Ordering::Relaxed);
                if let Some(rest) = rest {
                    state.next = rest;
                }
                state.snapshot = snapshot.filter(|_| !state.is_done);
                state.dropped = dropped;
                backfill.hold(&mut state, items, bytes);
                let again = backfill.wants_more(&state);
                state.is_busy |= again;
                drop(state);
                if again {
                    self.backfills.push(Arc::clone(backfill));
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

/// What one step has read.
#[derive(Default)]
struct Slice {
    items: Vec<Version>,
    bytes: usize,
    /// Where the next step goes on; nothing if this was all.
    rest: Option<Place>,
    /// Collections whose end is part of what is read, with the seqnos at which they ended: what they held is left out.
    dropped: Vec<(CollectionId, Seqno)>,
    /// Prepares above this are in flight, and wanted; nothing if none are wanted.
    prepares_above: Option<Seqno>,
}

impl Slice {
    /// Takes it, unless it belongs to the next slice.
    fn take(&mut self, version: Version) -> Result<(), Version> {
        if !self.dropped.is_empty() && self.hides(&version) {
            return Ok(());
        }
        if self.bytes >= SLICE_BYTES {
            return Err(version);
        }
        self.bytes += version.allocated_bytes();
        self.items.push(version);
        Ok(())
    }

    fn hides(&self, version: &Version) -> bool {
        let (id, seqno) = (version.document_key().collection, version.meta().by_seqno);
        self.dropped.iter().any(|(of, end)| *of == id && seqno <= *end)
    }

    fn take_in_order(&mut self, version: Version) -> ControlFlow<()> {
        match self.take(version) {
            Ok(()) => ControlFlow::Continue(()),
            Err(next) => {
                self.rest = Some(Place::Seqno(next.meta().by_seqno));
                ControlFlow::Break(())
            }
        }
    }

    fn read(&mut self, snapshot: &dyn Snapshot, place: Place, values: Values) -> Result<(), Failure> {
        match place {
            Place::Seqno(from) => match self.prepares_above {
                None => snapshot.scan(from, values, &mut |version| self.take_in_order(version)),
                Some(completed) => snapshot.scan_all(from, values, &mut |version| {
                    if is_committed(&version, completed) {
                        return ControlFlow::Continue(());
                    }
                    self.take_in_order(version)
                }),
            },
            Place::Key(mut range) => loop {
                let mut next = None;
                snapshot.scan_keys(&range.from, values, &mut |version| {
                    if !version.stored_key().starts_with(&range.prefix) {
                        return ControlFlow::Break(());
                    }
                    match self.take(version) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(version) => {
                            next = Some(version.stored_key().to_vec());
                            ControlFlow::Break(())
                        }
                    }
                })?;
                if let Some(from) = next {
                    self.rest = Some(Place::Key(KeyPlace { from, ..range }));
                    return Ok(());
                }
                match range.next() {
                    Some(later) => range = later,
                    None => return Ok(()),
                }
            },
        }
    }
}

impl Bucket {
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
        let present =
            self.shard(vb).map(|shard| (shard.vb.state(), shard.vb.high_seqno(), shard.vb.snapshot()));
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
        })
    }
}
