//! What every part of a bucket may use: what it is, its vBuckets, its store, and the queues by which parts wake each other.
//!
//! It knows no part. A part that has something for another one to do says so here: changes for the flusher in the flush
//! queue, work for a chore by making the chore due.

use std::sync::Arc;

use base::env::Env;
use base::planted::{self, Bug};
use base::{CollectionId, DocKey, HistogramCounts, Moment, VbId, VbState, VbUuid};
use kvstore::{HistoryRetention, HistoryUsage, KvStore, StorageBackend};
use parking_lot::{Mutex, RwLock};
use vbucket::{BucketContext, VBucket};

use crate::config::{BucketConfig, BucketKind, EvictionPolicy};
use crate::counters::OpCounts;
use crate::disk_state::DiskState;
use crate::failure_log::FailureLog;
use crate::figures::Figures;
use crate::flush_queue::{FlushQueue, LARGE_BACKLOG};

use crate::keeper::Keeper;
use crate::memory::MemoryAccount;
use crate::refusal::Refusal;
use crate::settings::{Changed, Key, SettingError, Settings, refuse_history};
use crate::shard::{Shard, new_uuid};
use crate::shard_guard::{HOLDERS, Holder, ShardGuard};
use crate::snapshot_table::BucketSnapshotTable;
use crate::tasks::Tasks;
use crate::thread_watch::ThreadWatch;
use crate::unreadable::Unreadables;
use crate::value_times::ValueTimes;
use crate::vbuckets::VBuckets;

/// The words of [`Key::CompressionMode`] as they are numbered.
const OFF: u64 = 0;
const ACTIVE: u64 = 2;

/// What every part of a bucket holds, and all that parts have in common.
pub struct Core {
    pub(crate) config: BucketConfig,
    /// What keeps the documents on disk now.
    pub(crate) backend: RwLock<StorageBackend>,
    pub(crate) uuid: String,
    pub(crate) env: Env,
    pub(crate) context: BucketContext,
    pub(crate) vbuckets: VBuckets,
    pub(crate) store: Arc<dyn KvStore>,
    pub(crate) memory: MemoryAccount,
    pub(crate) settings: Arc<Settings>,
    /// The chores, and when each is due.
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) tasks: Tasks,
    /// What was seen of its threads.
    pub(crate) watch: ThreadWatch,
    pub(crate) value_times: ValueTimes,
    /// vBuckets with something to write.
    pub(crate) flush: Arc<FlushQueue>,
    pub(crate) disk: DiskState,
    /// vBuckets whose files cannot be read or believed.
    pub(crate) unreadable: Unreadables,
    pub(crate) failure_log: FailureLog,
    /// Snapshots of it, and whether changes are held for one.
    pub(crate) snapshots: BucketSnapshotTable,
    /// Sums over vBuckets, for stats and metrics.
    pub(crate) figures: Figures,
    /// How much history of changes the store keeps.
    pub(crate) history: Mutex<HistoryRetention>,
}

impl Core {
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

    /// How long its requests took to look into values.
    pub fn value_times(&self) -> &ValueTimes {
        &self.value_times
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

    /// Notes under its lock that a vBucket has something for its followers, and for the flusher if there is a disk.
    pub(crate) fn queue_flush(&self, shard: &mut Shard) {
        shard.tell_followers();
        if self.is_ephemeral() {
            return;
        }
        if !shard.flush_queued {
            shard.flush_queued = true;
            if self.flush.note(shard.vb.id(), self.env.clock.monotonic()) {
                shard.wakes.add(Arc::clone(&self.flush) as _);
            }
        }
        // exactly once on the way up
        if shard.unflushed() == LARGE_BACKLOG {
            hurry_flush(self, shard);
        }
    }

    /// The same for a change that a client waits for: the caller hurries it once the lock is released.
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

    /// Looks at one vBucket for stats; nothing if there is no such vBucket here.
    pub fn inspect<T>(&self, vb: VbId, look: impl FnOnce(&VBucket) -> T) -> Option<T> {
        self.vbuckets
            .find(vb, Holder::Stats)
            .ok()
            .filter(|shard| shard.is_told())
            .map(|shard| look(&shard.vb))
    }

    /// Looks at one vBucket for an operation; nothing if there is no such vBucket.
    pub fn with_vbucket<T>(&self, vb: VbId, look: impl FnOnce(&VBucket) -> T) -> Option<T> {
        self.vbuckets.find(vb, Holder::FrontEnd).ok().map(|shard| look(&shard.vb))
    }

    /// How long holders of this kind held the locks of vBuckets so far: all of the holds, of the front end one in 64.
    pub fn lock_times_of(&self, holder: Holder) -> HistogramCounts {
        self.vbuckets.lock_times_of(holder)
    }

    /// How long holders of this kind waited for the locks of vBuckets so far: all waits for a lock that was not free.
    pub fn lock_waits_of(&self, holder: Holder) -> HistogramCounts {
        self.vbuckets.lock_waits_of(holder)
    }

    /// How long holders of each kind held the locks of vBuckets so far.
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

    /// Whether documents are in memory only.
    pub fn is_ephemeral(&self) -> bool {
        self.config.kind == BucketKind::Ephemeral
    }

    /// What the bucket was made with.
    pub fn config(&self) -> &BucketConfig {
        &self.config
    }

    /// What keeps the documents on disk: what the bucket was opened with, until it is moved.
    pub fn backend(&self) -> StorageBackend {
        *self.backend.read()
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes a setting by name while the bucket serves.
    pub fn set_param(&self, name: &str, value: &str) -> Result<Changed, SettingError> {
        let mut changed = self.set_params(&[(name, value)]).map_err(|mut errors| errors.remove(0))?;
        Ok(changed.remove(0))
    }

    /// Changes several settings by name while the bucket serves, all or none.
    pub fn set_params(&self, pairs: &[(&str, &str)]) -> Result<Vec<Changed>, Vec<SettingError>> {
        self.settings.check_fixed(pairs)?;
        refuse_history(self.backend(), pairs).map_err(|error| vec![error])?;
        let changed = self.settings.set_all(self.config.kind, pairs)?;
        self.follow_history(&changed)?;
        self.follow_filter_settings();
        self.settings.apply_to_clocks(&self.context.clock);
        self.env.disk.set_encrypting(self.settings.is_on(Key::EncryptionAtRest));
        self.keeper.wake_all();
        for Changed { setting, old, new } in &changed {
            tracing::info!(
                event = "setting_changed",
                bucket = self.name(),
                setting = setting.name,
                old,
                new,
                "a setting was changed"
            );
        }
        Ok(changed)
    }

    /// How far the history of changes of a vBucket reaches back, as of what is in its files.
    pub fn history(&self, vb: VbId) -> HistoryUsage {
        self.store.history(vb)
    }

    /// What leaves memory when it runs short.
    pub fn eviction_policy(&self) -> EvictionPolicy {
        match self.settings.get(Key::EvictionPolicy) {
            0 => EvictionPolicy::ValueOnly,
            1 => EvictionPolicy::Full,
            2 => EvictionPolicy::AutoDelete,
            _ => EvictionPolicy::FailNewData,
        }
    }

    /// Whether whole documents leave memory when it runs short.
    pub fn evicts_whole(&self) -> bool {
        self.settings.get(Key::EvictionPolicy) == EvictionPolicy::Full as u64
    }

    /// Lets filters be made as the settings say.
    pub(crate) fn follow_filter_settings(&self) {
        let wrong = self.settings.get(Key::BfilterFpProb);
        self.context.filters.set(self.settings.is_on(Key::BfilterEnabled).then_some(wrong));
    }

    /// Whether a value that arrives compressed is stored so, and a compressed one is sent so to whom agreed on it.
    /// If not, what is compressed in memory already stays so (Couchbase Server's documentation, Compression).
    #[inline]
    pub fn keeps_compressed(&self) -> bool {
        self.settings.get(Key::CompressionMode) != OFF
    }

    /// Whether cold values are compressed in the background. Not in ephemeral buckets, whose versions are linked in
    /// seqno order, too.
    pub(crate) fn compresses(&self) -> bool {
        self.settings.get(Key::CompressionMode) == ACTIVE && self.config.kind == BucketKind::Persistent
    }

    /// Locks an active vBucket that has a collection and whose documents are loaded, for an operation.
    #[inline]
    pub(crate) fn active_with(&self, vb: VbId, id: CollectionId) -> Result<ShardGuard<'_>, Refusal> {
        let shard = self.vbuckets.active(vb, Holder::FrontEnd)?;
        if shard.vb.collections().is_open(id) { Ok(shard) } else { Err(Refusal::UnknownCollection) }
    }
}

/// Has the flusher write a vBucket first that is locked now.
pub(crate) fn hurry_flush(core: &Core, shard: &mut Shard) {
    if core.flush.note_urgent(shard.vb.id()) {
        shard.wakes.add(Arc::clone(&core.flush) as _);
    }
}

/// Locks an active vBucket for a change of a client, which is refused while changes are held.
#[inline]
pub(crate) fn active_for_change(core: &Core, vb: VbId, id: CollectionId) -> Result<ShardGuard<'_>, Refusal> {
    let shard = core.active_with(vb, id)?;
    if core.snapshots.holds_changes(&*core.env.clock) { Err(Refusal::Held) } else { Ok(shard) }
}

/// A bucket was moved to another store.
pub fn moved_to(bucket: &Core, backend: StorageBackend) {
    *bucket.backend.write() = backend;
}

/// Whether an event of a bucket is to be logged that clients, other nodes or a bad disk can bring about again and again:
/// then how many of its kind were left out since the last line.
pub fn admit_log(bucket: &Core, kind: &'static str) -> Option<u64> {
    bucket.failure_log.admit_of_user(kind)
}
