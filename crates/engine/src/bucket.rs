//! One bucket: its vBuckets in memory, its store on disk, and what joins them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};

use base::env::Env;
use base::planted::{self, Bug};
use base::{CollectionId, DocKey, HistogramCounts, Moment, RevSeqno, Seqno, VbId, VbState, VbUuid};
use kvstore::KvStore;
use parking_lot::Mutex;
use vbucket::{BucketContext, CollectionOps, Origin, Removed, Stored, Topology, VBucket};

use crate::backfill::BackfillQueue;
use crate::checkpoint_recovery::CheckpointRelief;
use crate::claims::Roles;
use crate::collections::BucketManifest;
use crate::compaction_queue::CompactionQueue;
use crate::completion::Completion;
use crate::compression::CompressionCounters;
use crate::config::BucketConfig;
use crate::counters::OpCounts;
use crate::defragmenter::DefragmenterCounters;
use crate::disk_state::DiskState;
use crate::durability::{GivenUp, SyncDeadlines, SyncOutcome, SyncWaiters};
use crate::evict::Eviction;
use crate::expiry::ExpiryCounters;
use crate::failure::Failure;
use crate::failure_log::FailureLog;
use crate::fetch_queue::FetchQueue;
use crate::filer::Filer;
use crate::flush_queue::{FlushQueue, LARGE_BACKLOG};
use crate::flusher::FlushSpace;
use crate::follower::Follower;
use crate::keeper::Keeper;
use crate::memory::MemoryAccount;
use crate::persistence::PersistenceWaiters;
use crate::range_scan::RangeScanTable;
use crate::refusal::Refusal;
use crate::replica::Replicas;
use crate::settings::Settings;
use crate::shard_guard::{HOLDERS, Holder};
use crate::stats::CheckpointStats;
use crate::tasks::Tasks;
use crate::tombstone_purger::PurgeCounters;
use crate::traffic::Traffic;
use crate::unreadable::Unreadables;
use crate::vbuckets::VBuckets;
use crate::warmup::Warmup;

/// A vBucket and what the engine keeps under the same lock.
pub(crate) struct Shard {
    pub(crate) vb: VBucket,
    /// False once it was deleted, until somebody sets its state again.
    pub(crate) exists: bool,
    /// Whether anybody gave it a role, in this life of the node or before. The first role begins no new history: there
    /// is none that could have gone on elsewhere.
    pub(crate) had_role: bool,
    /// How much is on disk, while its documents are not loaded yet; only what needs none of them can be done then.
    pub(crate) unloaded: Option<kvstore::Counts>,
    /// Counts up whenever another vBucket takes its place, so that what was read for the old one is recognised.
    pub(crate) incarnation: u64,
    pub(crate) flush_queued: bool,
    /// What is stored of it is being replaced: nothing of it is to be written.
    pub(crate) is_claimed: bool,
    /// The stream whose changes a replica takes; 0 for none.
    pub(crate) replica_stream: u64,
    /// It is dead because another node takes it over, and it is not known whether that node has it yet.
    pub(crate) is_half_given: bool,
    /// Connections that stream its changes.
    pub(crate) followers: Vec<Arc<Follower>>,
    /// Those of them that acknowledge prepares to the active node.
    pub(crate) prepare_followers: Vec<Arc<Follower>>,
    /// Holds by the front end, around and around: which of them are timed.
    pub(crate) held: u8,
    pub(crate) ops: OpCounts,
    /// What clients did with collections of the vBuckets that were here before; of those collections that the bucket
    /// still has.
    pub(crate) collection_ops_before: BTreeMap<CollectionId, CollectionOps>,
    /// Who waits for prepares.
    pub(crate) sync_waiters: SyncWaiters,
}

impl Shard {
    /// Puts another vBucket in the place of this one, which is to be dropped outside the lock.
    pub(crate) fn replace(&mut self, vb: VBucket) -> VBucket {
        self.unloaded = None;
        self.replica_stream = 0;
        self.is_half_given = false;
        self.incarnation += 1;
        let old = CheckpointStats::of(self.vb.checkpoints());
        self.ops.merged_before += old.merged;
        self.ops.discarded += old.unpersisted_items;
        let old = std::mem::replace(&mut self.vb, vb);
        for one in old.collections().open() {
            let ops = old.collections().ops(one.id);
            if ops != CollectionOps::default() {
                self.collection_ops_before.entry(one.id).or_default().add(&ops);
            }
        }
        old
    }

    /// Has a connection told of what happens from now on.
    pub(crate) fn follow(&mut self, follower: &Arc<Follower>) {
        if !self.followers.iter().any(|other| Arc::ptr_eq(other, follower)) {
            self.followers.push(Arc::clone(follower));
        }
    }

    /// Tells those who follow that something happened.
    pub(crate) fn tell_followers(&self) {
        for follower in &self.followers {
            follower.mark(self.vb.id());
        }
    }

    /// Seqnos that are not on disk yet; none will be if there is no disk.
    pub(crate) fn unflushed(&self) -> u64 {
        self.vb.high_seqno().0 - self.vb.persisted_seqno().0
    }
}

/// Receipt of a change: what a client needs to recognise it later.
#[derive(Debug, PartialEq, Eq)]
pub struct Mutated {
    /// The document's new CAS.
    pub cas: base::Cas,
    /// The history it belongs to.
    pub uuid: VbUuid,
    /// Its place in that history.
    pub seqno: Seqno,
    /// The document's new revision.
    pub rev_seqno: RevSeqno,
    /// Of a sync write that is not committed yet: what becomes of it. Nothing: the change is done.
    pub pending: Option<Completion<SyncOutcome>>,
}

impl Mutated {
    pub(crate) fn of(stored: &Stored, uuid: VbUuid, pending: Option<Completion<SyncOutcome>>) -> Mutated {
        let Stored { cas, by_seqno: seqno, rev_seqno, .. } = *stored;
        Mutated { cas, uuid, seqno, rev_seqno, pending }
    }
}

/// One bucket. All methods may be called from any thread.
pub struct Bucket {
    pub(crate) config: BucketConfig,
    pub(crate) uuid: String,
    pub(crate) env: Env,
    pub(crate) context: BucketContext,
    pub(crate) vbuckets: VBuckets,
    pub(crate) store: Arc<dyn KvStore>,
    pub(crate) eviction: Eviction,
    pub(crate) memory: MemoryAccount,
    pub(crate) settings: Arc<Settings>,
    pub(crate) manifest: BucketManifest,
    pub(crate) keeper: Keeper,
    pub(crate) tasks: Tasks,
    pub(crate) expiry: ExpiryCounters,
    pub(crate) compression: CompressionCounters,
    pub(crate) defragmented: DefragmenterCounters,
    pub(crate) purged: PurgeCounters,
    pub(crate) relief: CheckpointRelief,
    pub(crate) waiters: PersistenceWaiters,
    /// Who waits until a pending vBucket has another role; the seqno means nothing here.
    pub(crate) parked: PersistenceWaiters,
    /// Whether clients are to try again later, since all documents are being removed.
    pub(crate) is_emptying: AtomicBool,
    /// Whether clients may use documents.
    pub traffic: Traffic,
    /// Copies beside the active one that the bucket is asked to have.
    pub(crate) wanted_replicas: AtomicU8,
    pub(crate) flush: FlushQueue,
    pub(crate) disk: DiskState,
    pub(crate) filer: Filer,
    pub(crate) compacting: CompactionQueue,
    pub(crate) fetching: Arc<FetchQueue>,
    pub(crate) backfills: Arc<BackfillQueue>,
    pub(crate) range_scans: RangeScanTable,
    pub(crate) replicas: Replicas,
    pub(crate) warmup: Warmup,
    pub(crate) sync_deadlines: SyncDeadlines,
    /// Held while the role of a vBucket changes. Taken before `flushing`.
    pub(crate) roles: Roles,
    /// Held while a batch is written. Taken before any vBucket's lock.
    pub(crate) flushing: Mutex<FlushSpace>,
    /// vBuckets whose files cannot be read or believed.
    pub(crate) unreadable: Unreadables,
    pub(crate) failure_log: FailureLog,
    /// vBuckets that were found after a crash: their histories begin anew, and that is not on disk before they are saved.
    pub(crate) crashed: Mutex<BTreeSet<VbId>>,
}

impl Bucket {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its identity: 32 hexadecimal digits, made when it was created.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// How many vBuckets it has.
    pub fn vbuckets(&self) -> u16 {
        self.config.vbuckets
    }

    /// Its memory account.
    pub fn memory(&self) -> &MemoryAccount {
        &self.memory
    }

    /// The outside world as this bucket sees it.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The hash of a key, computed before any lock is taken.
    pub fn hash(&self, key: DocKey<'_>) -> u64 {
        self.context.seed.hash(key)
    }

    /// The role of a vBucket; nothing if there is no such vBucket.
    pub fn state_of(&self, vb: VbId) -> Option<VbState> {
        self.with_vbucket(vb, VBucket::state)
    }

    /// Notes under its lock that a vBucket has something for those who follow it, and for the flusher if there is a disk.
    pub(crate) fn queue_flush(&self, shard: &mut Shard) {
        shard.tell_followers();
        if self.is_ephemeral() {
            return;
        }
        if !shard.flush_queued {
            shard.flush_queued = true;
            self.flush.push(shard.vb.id(), self.env.clock.monotonic());
        }
        // exactly once on the way up
        if shard.unflushed() == LARGE_BACKLOG {
            self.flush.hurry(shard.vb.id());
        }
    }

    /// The same for a change that somebody waits for: the caller hurries it once the lock is released.
    pub(crate) fn queue_urgent_flush(&self, shard: &mut Shard) {
        shard.tell_followers();
        shard.flush_queued = true;
    }

    /// vBuckets that are dead because what is stored of them cannot be read, and why.
    pub fn unreadable(&self) -> Vec<(VbId, String)> {
        self.unreadable.dead()
    }

    /// vBuckets whose files cannot be believed, whatever the disk does later: dead ones, and ones that are served from
    /// what can be read.
    pub fn damaged(&self) -> Vec<VbId> {
        self.unreadable.damaged()
    }

    /// Whether what is stored of a vBucket cannot be read, so that it is dead.
    pub fn is_unreadable(&self, vb: VbId) -> bool {
        self.unreadable.is_dead(vb)
    }

    /// Whether the files of a vBucket cannot be believed, whatever the disk does later.
    pub fn is_damaged(&self, vb: VbId) -> bool {
        self.unreadable.is_damaged(vb)
    }

    /// Looks at all vBuckets one after the other.
    pub fn each_vbucket(&self, mut look: impl FnMut(&VBucket)) {
        for vb in (0..self.vbuckets()).map(VbId) {
            let shard = self.vbuckets.hold(vb, Holder::Stats);
            if shard.exists {
                look(&shard.vb);
            }
        }
    }

    /// Looks at one vBucket for stats; nothing if there is no such vBucket.
    pub fn inspect<T>(&self, vb: VbId, look: impl FnOnce(&VBucket) -> T) -> Option<T> {
        self.vbuckets.find(vb, Holder::Stats).ok().map(|shard| look(&shard.vb))
    }

    /// Looks at one vBucket for an operation; nothing if there is no such vBucket.
    pub fn with_vbucket<T>(&self, vb: VbId, look: impl FnOnce(&VBucket) -> T) -> Option<T> {
        self.vbuckets.find(vb, Holder::FrontEnd).ok().map(|shard| look(&shard.vb))
    }

    /// How long holders of this kind held the locks of vBuckets so far: all of the holds, of the front end one in 64.
    pub fn lock_times_of(&self, holder: Holder) -> HistogramCounts {
        self.vbuckets.lock_times_of(holder)
    }

    /// How long whom held the locks of vBuckets so far.
    pub fn lock_times(&self) -> Vec<(Holder, HistogramCounts)> {
        HOLDERS.iter().map(|holder| (*holder, self.lock_times_of(*holder))).collect()
    }

    /// Sums what clients did.
    pub fn op_counts(&self) -> OpCounts {
        let mut sum = OpCounts::default();
        for vb in (0..self.vbuckets()).map(VbId) {
            sum.add(&self.vbuckets.hold(vb, Holder::Stats).ops);
        }
        sum
    }

    /// Sets a vBucket's role and topology; the vBucket is made if it was deleted.
    pub fn set_vbucket_state(
        &self,
        vb: VbId,
        state: VbState,
        topology: Option<Topology>,
    ) -> Result<(), Refusal> {
        let _roles = self.roles_of(vb);
        self.set_role_alone(vb, state, topology)
    }

    /// Gives an active vBucket another topology; false if it is not active, or not any more.
    pub fn lead_on(&self, vb: VbId, topology: Topology) -> Result<bool, Refusal> {
        // Nobody hands it over between the look and the change.
        let _roles = self.roles_of(vb);
        if self.state_of(vb) != Some(VbState::Active) {
            return Ok(false);
        }
        self.set_role_alone(vb, VbState::Active, Some(topology)).map(|()| true)
    }

    /// For whoever holds the roles.
    fn set_role_alone(&self, vb: VbId, state: VbState, topology: Option<Topology>) -> Result<(), Refusal> {
        if vb.0 >= self.vbuckets() {
            return Err(Refusal::NotMyVbucket);
        }
        // In a cluster another node may have what cannot be read here: that does not begin with nothing.
        let may_begin = state == VbState::Dead || !self.config.needs_topology;
        if !may_begin && self.unreadable.is_dead(vb) {
            return Err(Refusal::Unreadable);
        }
        let mut shard = self.vbuckets.hold(vb, Holder::Roles);
        let removed = self.set_role(&mut shard, state, topology);
        let left = self.take_over_manifest(&mut shard, &self.manifest(), None, self.now());
        let mut given_up = GivenUp::default();
        if state != VbState::Active {
            given_up = shard.sync_waiters.give_up();
        }
        drop(shard);
        drop((left, given_up));
        self.dispose(removed);
        self.settle(vb);
        self.parked.persisted(vb, Seqno(u64::MAX));
        Ok(())
    }

    fn set_role(&self, shard: &mut Shard, state: VbState, topology: Option<Topology>) -> Removed {
        let mut removed = Removed::default();
        let (existed, had_role) = (shard.exists, shard.had_role);
        shard.exists = true;
        shard.had_role |= state != VbState::Dead;
        if state != VbState::Dead {
            self.unreadable.begins(shard.vb.id());
        }
        if !existed || !had_role {
            shard.vb.begin_in(state, topology);
        } else {
            if shard.vb.state() != state {
                // What streams find in memory belongs to one stretch of one role.
                shard.vb.checkpoints_mut().close();
                removed = shard.vb.checkpoints_mut().remove_closed();
            }
            shard.vb.set_state(state, topology, || self.new_uuid());
        }
        if !shard.vb.is_following() {
            shard.replica_stream = 0;
        }
        shard.is_half_given = false;
        self.queue_flush(shard);
        removed
    }

    /// Makes an active vBucket dead whose changes another node has, all but the last few: nothing more is written here.
    /// False if it is not active, or another vBucket than when the stream began. One that is dead because this was said
    /// before, and the other node does not have all of it yet, stays so.
    pub fn give_away(&self, vb: VbId, incarnation: u64) -> bool {
        let _roles = self.roles_of(vb);
        let Ok(mut shard) = self.vbuckets.find(vb, Holder::FrontEnd) else { return false };
        if shard.incarnation != incarnation {
            return false;
        }
        if shard.is_half_given {
            return true;
        }
        if shard.vb.state() != VbState::Active {
            return false;
        }
        if !planted::is(Bug::TakeoverLeavesActive) {
            shard.vb.set_state(VbState::Dead, None, || self.new_uuid());
        }
        shard.is_half_given = true;
        self.queue_flush(&mut shard);
        let given_up = shard.sync_waiters.give_up();
        drop(shard);
        drop(given_up);
        true
    }

    /// The other node said that a vBucket that was given away is its own now.
    pub fn given_away(&self, vb: VbId, incarnation: u64) {
        if let Ok(mut shard) = self.vbuckets.find(vb, Holder::FrontEnd)
            && shard.incarnation == incarnation
        {
            shard.is_half_given = false;
        }
    }

    /// Waits until a pending vBucket has another role; nothing if it has one, or too many wait.
    pub fn role_change(&self, vb: VbId) -> Option<Completion<()>> {
        let shard = self.vbuckets.find(vb, Holder::FrontEnd).ok()?;
        if shard.vb.state() == VbState::Pending { self.parked.wait(vb, Seqno(0)) } else { None }
    }

    /// Closes the open checkpoint of a vBucket, and lets go of those that nobody needs.
    pub fn create_checkpoint(&self, vb: VbId) -> Result<(), Refusal> {
        let removed = {
            let mut shard = self.vbuckets.find(vb, Holder::FrontEnd)?;
            let checkpoints = shard.vb.checkpoints_mut();
            checkpoints.close();
            checkpoints.remove_closed()
        };
        self.dispose(removed);
        Ok(())
    }

    /// Deletes a dead vBucket, its documents and its file.
    pub fn delete_vbucket(&self, vb: VbId) -> Result<Result<(), Failure>, Refusal> {
        self.remove_vbucket(vb, || self.store.delete_vbucket(vb))
    }

    /// The same for a vBucket whose files cannot be believed; they are moved to the folder `to`, on the same disk.
    pub fn set_aside(&self, vb: VbId, to: &Path) -> Result<Result<(), Failure>, Refusal> {
        if !self.is_damaged(vb) {
            return Err(Refusal::Invalid);
        }
        self.remove_vbucket(vb, || self.store.set_aside(vb, to))
    }

    fn remove_vbucket(
        &self,
        vb: VbId,
        remove: impl FnOnce() -> Result<(), kvstore::Failure>,
    ) -> Result<Result<(), Failure>, Refusal> {
        let _claim = self.claim(vb)?;
        if self.vbuckets.find(vb, Holder::FrontEnd)?.vb.state() != VbState::Dead {
            return Err(Refusal::Invalid);
        }
        // It is dead and stays so: nobody writes to it, and what is on disk goes first.
        let removed = remove();
        if removed.is_err() && !self.is_not_stored(vb) {
            return Ok(removed.map_err(Failure::from));
        }
        let old = {
            let mut shard = self.vbuckets.find(vb, Holder::Roles)?;
            let old = shard.replace(dead(vb, &self.context, &self.env));
            shard.exists = false;
            // What is written next says that it is dead, so that a restart does not make it anew.
            shard.vb.set_state(VbState::Dead, None, || self.new_uuid());
            self.queue_flush(&mut shard);
            old
        };
        self.unreadable.forget(vb);
        self.waiters.forget(vb);
        self.parked.forget(vb);
        self.warmup.forget(vb);
        drop(old);
        Ok(removed.map_err(Failure::from))
    }

    /// Whether the store has nothing of a vBucket, after a deletion that failed: it may fail when the vBucket is gone,
    /// for a restart to find or not. What is in memory must not go on as if the disk had it, because the next save
    /// would vouch for all of it.
    pub(crate) fn is_not_stored(&self, vb: VbId) -> bool {
        !planted::is(Bug::FailedRemovalIgnored) && matches!(self.store.snapshot(vb), Ok(None))
    }

    /// A fresh identity for a history: never 0, and below 2^48 as the original's are.
    pub(crate) fn new_uuid(&self) -> VbUuid {
        new_uuid(&self.env)
    }

    /// The moment of now.
    pub fn now(&self) -> Moment {
        Moment(self.env.clock.unix_ns())
    }
}

/// A fresh identity for a history: never 0, below 2^48.
pub(crate) fn new_uuid(env: &Env) -> VbUuid {
    VbUuid((env.random.next_u64() & 0xffff_ffff_ffff).max(1))
}

/// An empty, dead vBucket, in the place of one that is deleted or damaged.
pub(crate) fn dead(id: VbId, context: &BucketContext, env: &Env) -> VBucket {
    VBucket::new(id, context, Origin::empty(VbState::Dead, new_uuid(env)))
}
