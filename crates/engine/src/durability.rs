//! Sync writes: changes that are told of once they are as safe as a client asks for.
//!
//! The vBucket knows which prepares are safe; here is who waits for them, who says what is where, and when time is over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use base::planted::{self, Bug};
use base::{DurabilityLevel, Seqno, VbId, VbState};
use parking_lot::Mutex;
use vbucket::{Completed, Garbage, NO_DEADLINE};

use crate::bucket_core::Core;
use crate::completion::Completion;
use crate::keeper::{Chore, ChoreId, Next, Slice};
use crate::persistence::PersistenceWaiters;
use crate::refusal::Refusal;
use crate::settings::Key;
use crate::shard::Shard;
use crate::shard_guard::Holder;
use crate::sync_waiters::{DEFAULT_SYNC_WRITE_TIMEOUT, Durable, SyncOutcome, SyncStep, SyncWaiter};

/// Prepares that are committed under a vBucket's lock at once: each is copied there.
const COMMITS_AT_ONCE: usize = 32;
/// So many are told together of what the disk has: each telling may wake a thread that works on the same vBuckets.
const TOLD_AT_ONCE: usize = 64;
/// Prepares that are looked at for their deadlines under a vBucket's lock at once.
const LOOKED_AT_ONCE: usize = 256;
/// A vBucket is not looked through for overdue prepares again before so much time has passed.
const LEAST_REST: Duration = Duration::from_millis(5);
/// How long the chore rests while no sync write is prepared: each deadline is noted with the keeper.
const NO_DEADLINE_PAUSE: Duration = Duration::from_secs(60);

/// What was decided under locks of vBuckets, to be told outside.
#[must_use = "those who wait are told by `tell`"]
#[derive(Default)]
pub(crate) struct Settled {
    completed: Vec<Completed>,
    waiters: Vec<(SyncWaiter, SyncOutcome)>,
    /// How many of the completed ones have had their waiters looked for.
    looked_for: usize,
}

impl Settled {
    /// Counts what is completed, and takes out those who wait for it.
    fn find_waiters(&mut self, shard: &mut Shard) {
        let Shard { sync_waiters: waiters, ops, .. } = shard;
        let new = &self.completed[self.looked_for..];
        let waiting = new.iter().filter_map(|one| {
            let outcome = if one.is_committed { SyncOutcome::Committed } else { SyncOutcome::Aborted };
            *(if one.is_committed { &mut ops.sync_committed } else { &mut ops.sync_aborted }) += 1;
            Some((waiters.take(one.prepared)?, outcome))
        });
        self.waiters.extend(waiting);
        self.looked_for = self.completed.len();
    }

    /// Whether so many are to be told that the next ones should not hold them up.
    pub(crate) fn is_large(&self) -> bool {
        self.completed.len() >= TOLD_AT_ONCE
    }

    /// Tells those who wait, and frees what was replaced.
    pub(crate) fn tell(&mut self) {
        for (waiter, outcome) in self.waiters.drain(..) {
            waiter.tell(outcome);
        }
        self.completed.clear();
        self.looked_for = 0;
    }
}

/// When which vBucket is to be looked through for overdue prepares.
#[derive(Default)]
struct SyncDeadlines(Mutex<BinaryHeap<Reverse<(u64, VbId)>>>);

/// Sync writes, and waiting for the disk.
pub struct Durability {
    pub(crate) core: Arc<Core>,
    /// Who waits until a change is on disk.
    pub(crate) waiters: PersistenceWaiters,
    deadlines: SyncDeadlines,
    /// Copies beside the active one that the bucket is asked to have.
    wanted_replicas: AtomicU8,
}

impl Durability {
    pub(crate) fn new(core: &Arc<Core>) -> Durability {
        Durability {
            core: Arc::clone(core),
            waiters: PersistenceWaiters::default(),
            deadlines: SyncDeadlines::default(),
            wanted_replicas: AtomicU8::new(0),
        }
    }

    /// How many copies beside the active one the bucket is asked to have: a node that holds a vBucket without a topology
    /// has none of them, and is no majority of all.
    pub fn set_replicas(&self, replicas: u8) {
        self.wanted_replicas.store(replicas, Ordering::Relaxed);
    }

    /// Whether a node that holds everything alone is too few.
    pub(crate) fn lacks_replicas(&self) -> bool {
        self.wanted_replicas.load(Ordering::Relaxed) > 0
            && self.core.settings.get(Key::DurabilityImpossibleFallback) == 0
    }

    /// What a change must be told of, at least: what the client asks for, or what the bucket does.
    pub(crate) fn raised(&self, durable: Option<Durable>) -> Option<Durable> {
        let least = match self.core.settings.get(Key::DurabilityMinLevel) {
            0 => return durable,
            level => u8::try_from(level).ok().and_then(DurabilityLevel::from_wire)?,
        };
        Some(match durable {
            Some(durable) => Durable { level: durable.level.max(least), ..durable },
            None => Durable { level: least, timeout: DEFAULT_SYNC_WRITE_TIMEOUT },
        })
    }

    pub(crate) fn await_prepare(
        &self,
        shard: &mut Shard,
        prepared: Seqno,
        deadline_ns: u64,
    ) -> Completion<SyncOutcome> {
        let promised = shard.sync_waiters.wait(prepared);
        self.note_deadline(shard, deadline_ns);
        promised
    }

    fn note_deadline(&self, shard: &mut Shard, deadline_ns: u64) {
        let due_ns = &mut shard.sync_waiters.due_ns;
        if *due_ns == 0 || deadline_ns < *due_ns {
            *due_ns = deadline_ns;
            self.deadlines.0.lock().push(Reverse((deadline_ns, shard.vb.id())));
            if self.core.keeper.note(ChoreId::SyncWrites, deadline_ns) {
                shard.wakes.add(Arc::clone(&self.core.keeper) as _);
            }
        }
    }

    /// A node says that it has all prepares of a vBucket up to `prepared` as safe as their levels ask. Costs what is
    /// committed by that.
    pub fn acknowledged(&self, vb: VbId, node: &str, prepared: Seqno) {
        let mut settled = Settled::default();
        let now_ns = self.core.env.clock.monotonic_ns();
        let has_more = {
            let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::FrontEnd) else { return };
            let Shard { vb: vbucket, sync_waiters, .. } = &mut *shard;
            if let Some(place) = vbucket.topology().and_then(|topology| topology.replica_place(node)) {
                sync_waiters.note(SyncStep::Acknowledged(place), prepared, now_ns);
            }
            if shard.vb.state() != VbState::Active || !shard.vb.acknowledged(node, prepared) {
                return;
            }
            self.settle_held(&mut shard, &mut settled)
        };
        settled.tell();
        if has_more {
            self.settle(vb);
        }
    }

    /// A node begins to take a vBucket's changes behind `from`: what it acknowledged beyond, it has lost.
    pub fn replica_resumes(&self, vb: VbId, node: &str, from: Seqno) {
        if let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::FrontEnd) {
            shard.vb.replica_resumes(node, from);
        }
    }

    /// Up to where a replica (or pending vBucket) may acknowledge prepares; nothing if it is none. It rises when
    /// something is applied, and when something is on disk.
    pub fn replica_prepared(&self, vb: VbId) -> Option<Seqno> {
        let shard = self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        let follows = matches!(shard.vb.state(), VbState::Replica | VbState::Pending);
        follows.then(|| shard.vb.sync_writes().high_prepared_seqno())
    }

    /// Commits under a vBucket's lock what is safe by now, not too much of it; whoever waits for that is to be told
    /// outside. Whether there may be more: then go on with [`Durability::settle`].
    pub(crate) fn settle_held(&self, shard: &mut Shard, settled: &mut Settled) -> bool {
        if shard.vb.sync_writes().prepares_in_flight() == 0 {
            return false;
        }
        let has_more = shard.vb.commit_ready(COMMITS_AT_ONCE, &mut settled.completed);
        if settled.looked_for < settled.completed.len() {
            settled.find_waiters(shard);
            match shard.vb.has_unflushed() {
                true => self.core.queue_flush(shard),
                // What was committed alone is on disk, and may be seen now.
                false => shard.tell_followers(),
            }
        }
        has_more
    }

    /// Ends prepares of dropped collections, some at a time; those who wait for them are told that they are aborted.
    pub(crate) fn end_dropped_prepares(&self, vb: VbId) {
        let mut from = Some(Seqno(0));
        while let Some(at) = from {
            let mut settled = Settled::default();
            {
                let mut shard = self.core.vbuckets.hold(vb, Holder::Eraser);
                from = shard.vb.end_dropped_prepares(at, LOOKED_AT_ONCE, &mut settled.completed);
                settled.find_waiters(&mut shard);
            }
            if settled.completed.is_empty() {
                continue;
            }
            settled.tell();
            // One of them may have held up others.
            self.settle(vb);
        }
    }

    /// Commits all that is safe in a vBucket, some under its lock at a time, and tells those who waited for it.
    pub(crate) fn settle(&self, vb: VbId) {
        let mut settled = Settled::default();
        while self.settle_held(&mut self.core.vbuckets.hold(vb, Holder::SyncWrites), &mut settled) {
            settled.tell();
        }
        settled.tell();
    }

    /// Aborts overdue prepares of one vBucket, if it is due, and notes when it is to be looked at again.
    /// Nothing: no vBucket is due; then the time of the next one, if there is any.
    fn abort_overdue(&self, now_ns: u64) -> Result<(), Option<u64>> {
        let vb = {
            let mut due = self.deadlines.0.lock();
            match due.peek() {
                Some(Reverse((at_ns, _))) if *at_ns > now_ns => return Err(Some(*at_ns)),
                None => return Err(None),
                Some(_) => {}
            }
            let Some(Reverse((at_ns, vb))) = due.pop() else { return Err(None) };
            drop(due);
            let mut shard = self.core.vbuckets.hold(vb, Holder::SyncWrites);
            if shard.sync_waiters.due_ns != at_ns {
                // It was noted again, for an earlier time.
                return Ok(());
            }
            shard.sync_waiters.due_ns = 0;
            vb
        };
        let mut from = Some(Seqno(0));
        let mut earliest_ns = NO_DEADLINE;
        while let Some(at) = from {
            let look = self.abort_slice(vb, at, now_ns);
            earliest_ns = earliest_ns.min(look.earliest_ns);
            from = look.next;
        }
        if earliest_ns != NO_DEADLINE {
            let soonest_ns = now_ns.saturating_add(LEAST_REST.as_nanos() as u64);
            self.note_deadline(
                &mut self.core.vbuckets.hold(vb, Holder::SyncWrites),
                earliest_ns.max(soonest_ns),
            );
        }
        Ok(())
    }

    fn abort_slice(&self, vb: VbId, from: Seqno, now_ns: u64) -> vbucket::OverdueLook {
        let mut overdue = Vec::new();
        let mut garbage: Vec<Garbage> = Vec::new();
        let mut waiters = Vec::new();
        let now = self.core.now();
        let look = {
            let mut shard = self.core.vbuckets.hold(vb, Holder::SyncWrites);
            if shard.vb.state() != VbState::Active {
                return vbucket::OverdueLook { next: None, earliest_ns: NO_DEADLINE };
            }
            let look = shard.vb.sync_writes().overdue(from, now_ns, LOOKED_AT_ONCE, &mut overdue);
            for prepared in &overdue {
                let aborted = shard.vb.abort(*prepared, now);
                let outcome = if aborted.is_some() { SyncOutcome::Aborted } else { SyncOutcome::GivenUp };
                shard.ops.sync_aborted += u64::from(aborted.is_some());
                garbage.extend(aborted);
                waiters.extend(shard.sync_waiters.take(*prepared).map(|waiter| (waiter, outcome)));
            }
            if !overdue.is_empty() {
                self.core.queue_flush(&mut shard);
            }
            look
        };
        for (waiter, outcome) in waiters {
            waiter.tell(outcome);
        }
        if !overdue.is_empty() {
            // One of them may have held up others.
            self.settle(vb);
        }
        look
    }

    /// Aborts prepares whose time is over.
    pub fn sync_write_step(&self) {
        while self.abort_overdue(self.core.env.clock.monotonic_ns()).is_ok() {}
    }

    /// Waits until what a node has prepared alone is committed: from then on everything that is acknowledged is as safe
    /// as the vBucket's present topology asks. Nothing: it is already.
    pub fn alone_committed(&self, vb: VbId) -> Result<Option<Completion<()>>, Refusal> {
        let last = self.core.vbuckets.find(vb, Holder::FrontEnd)?.vb.sync_writes().last_alone();
        let last = last.filter(|_| !planted::is(Bug::TopologyForgetsAlone));
        last.map_or(Ok(None), |seqno| self.persisted(vb, seqno))
    }

    /// Waits until `seqno` of a vBucket is on disk, synced. Nothing: it is there already.
    /// Refused if there is no disk.
    pub fn persisted(&self, vb: VbId, seqno: Seqno) -> Result<Option<Completion<()>>, Refusal> {
        let waiting = {
            let shard = self.core.vbuckets.find(vb, Holder::FrontEnd)?;
            if self.core.is_ephemeral() {
                return Err(Refusal::NoDisk);
            }
            if shard.vb.persisted_seqno() >= seqno {
                return Ok(None);
            }
            self.waiters.wait(vb, seqno).ok_or(Refusal::Busy)?
        };
        self.core.flush.hurry(vb);
        Ok(Some(waiting))
    }
}

/// The chore that aborts overdue prepares. It sleeps until the first deadline of all.
#[derive(Default)]
pub(crate) struct SyncWrites;

impl Chore for SyncWrites {
    type Of = Durability;

    fn step(&mut self, durability: &Durability, slice: &Slice<'_>) -> Next {
        loop {
            let now_ns = durability.core.env.clock.monotonic_ns();
            match durability.abort_overdue(now_ns) {
                Ok(()) if slice.is_over() => return Next::Again,
                Ok(()) => {}
                Err(next) => {
                    let pause = next.map_or(NO_DEADLINE_PAUSE, |at| Duration::from_nanos(at - now_ns));
                    return Next::After(pause);
                }
            }
        }
    }
}
