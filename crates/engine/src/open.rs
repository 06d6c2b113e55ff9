//! From the disk to memory: opening a bucket, and closing it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::env::{Env, OpenMode};
use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use kvstore::KvStore;
use parking_lot::Mutex;
use vbucket::{BucketContext, Origin, VBucket};

use crate::bucket::Bucket;
use crate::bucket_core::Core;
use crate::checkpoint_recovery::Checkpoints;
use crate::claims::Roles;
use crate::clean_mark::LastStop;
use crate::collections::BucketCollections;
use crate::compaction_queue::CompactionQueue;
use crate::compression::CompressionCounters;
use crate::config::{BucketConfig, BucketKind};
use crate::counters::OpCounts;
use crate::defragmenter::DefragmenterCounters;
use crate::disk_state::DiskState;
use crate::durability::Durability;
use crate::evict::Eviction;
use crate::expiry::ExpiryCounters;
use crate::failure::Failure;
use crate::failure_log::FailureLog;
use crate::filer::Filer;
use crate::flush_queue::{FlushQueue, Pace};
use crate::flusher::Progress;
use crate::identity::{self, Identity};
use crate::keeper::Keeper;
use crate::manifest_file;
use crate::memory::MemoryAccount;
use crate::origin::origin;
use crate::persistence::PersistenceWaiters;
use crate::range_scan::RangeScanTable;
use crate::replica::Replicas;
use crate::settings::Key;
use crate::shard::{Shard, dead, new_uuid};
use crate::shard_guard::Holder;
use crate::sync_waiters::SyncWaiters;
use crate::tasks::Tasks;
use crate::tombstone_purger::PurgeCounters;
use crate::traffic::Traffic;
use crate::unreadable::Unreadables;
use crate::vbuckets::VBuckets;
use crate::warmup::Warmup;

/// How often a stop tries to save what the disk refused.
pub(crate) const FLUSH_TRIES: usize = 3;

/// A vBucket without documents, with a history of its own.
fn empty_shard(id: VbId, config: &BucketConfig, context: &BucketContext, env: &Env) -> Shard {
    let origin = Origin::empty(config.first_role, new_uuid(env));
    Shard {
        vb: VBucket::new(id, context, origin),
        exists: true,
        had_role: config.first_role != VbState::Dead,
        unloaded: None,
        incarnation: 0,
        flush_queued: false,
        replica_stream: 0,
        is_claimed: false,
        is_half_given: false,
        followers: Vec::new(),
        prepare_followers: Vec::new(),
        held: 0,
        ops: OpCounts::default(),
        collection_ops_before: BTreeMap::new(),
        sync_waiters: SyncWaiters::default(),
    }
}

impl Bucket {
    /// Opens a bucket and loads it: its documents, and their values as far as the memory allows. Nobody else has to
    /// load anything then.
    pub fn open(config: BucketConfig, env: Env, store: Arc<dyn KvStore>) -> Result<Bucket, Failure> {
        let bucket = Bucket::open_cold(config, env, store)?;
        while bucket.load_step() != Progress::Idle {}
        while bucket.warm_step() != Progress::Idle {}
        Ok(bucket)
    }

    /// Opens a bucket that can serve at once: finds the states of its vBuckets on disk, and begins a new history for
    /// each vBucket whose last stop was not clean. Documents are loaded by [`Bucket::run_loader`], values that are not
    /// in memory are brought by [`Bucket::run_fetcher`].
    ///
    /// A vBucket whose file is damaged is dead until somebody mends it; the others serve.
    ///
    /// An ephemeral bucket begins empty, with vBuckets that nobody has met before; its store is [`kvstore::Nothing`].
    pub fn open_cold(config: BucketConfig, env: Env, store: Arc<dyn KvStore>) -> Result<Bucket, Failure> {
        assert!(config.vbuckets.is_power_of_two(), "the configuration checks the number of vBuckets");
        env.disk
            .create_dir_all_synced(&config.dir)
            .map_err(|source| Failure::io("create", &config.dir, source))?;
        let identity = identity::of_bucket(&env, &config.dir)?;
        let is_ephemeral = config.kind == BucketKind::Ephemeral;
        let stop = if is_ephemeral {
            LastStop::CLEAN
        } else {
            LastStop::take(&config, &env, &identity.uuid, store.was_closed())?
        };
        let manifest = manifest_file::find(&env, &config.dir, identity.owner())?;
        let settings = Arc::new(config.settings.clone());
        settings.put(Key::MaxSize, config.quota_bytes);
        if is_ephemeral {
            settings.be_ephemeral();
        }
        let new = if is_ephemeral { BucketContext::ephemeral } else { BucketContext::new };
        let context = new(env.random.next_u64(), env.random.next_u64(), env.heap.clone());
        let context = if config.needs_topology { context.in_cluster() } else { context };
        context.frequency.set(settings.get(Key::FreqCounterIncrementFactor));
        let shards = (0..config.vbuckets).map(|id| empty_shard(VbId(id), &config, &context, &env));
        let core = Arc::new(Core {
            memory: MemoryAccount::new(settings.clone(), context.heap.clone()),
            settings,
            keeper: Keeper::default(),
            tasks: Tasks::new(&env.clock),
            vbuckets: VBuckets::new(shards, &env.clock),
            uuid: identity.uuid.clone(),
            context,
            flush: FlushQueue::new(if store.is_journaled() { Pace::JOURNAL } else { Pace::FILES }),
            disk: DiskState::default(),
            store,
            unreadable: Unreadables::default(),
            failure_log: FailureLog::new(&env.clock),
            env,
            config,
        });
        core.follow_filter_settings();
        core.settings.apply_to_clocks(&core.context.clock);
        let bucket = Bucket::of_parts(core);
        bucket.find_vbuckets(&stop, manifest, &identity)?;
        Ok(bucket)
    }

    /// The parts, lower ones first: each is given those that it uses.
    fn of_parts(core: Arc<Core>) -> Bucket {
        let checkpoints = Arc::new(Checkpoints::new(&core));
        let eviction = Arc::new(Eviction::new(&core));
        let collections = Arc::new(BucketCollections::new(&core, &checkpoints));
        Bucket {
            durability: Arc::new(Durability::new(&core)),
            replicas: Arc::new(Replicas::new(&core, &checkpoints, &collections, &eviction)),
            checkpoints,
            eviction,
            collections,
            expiry: ExpiryCounters::default(),
            compression: CompressionCounters::default(),
            defragmented: DefragmenterCounters::default(),
            purged: PurgeCounters::default(),
            parked: PersistenceWaiters::default(),
            is_emptying: AtomicBool::new(false),
            traffic: Traffic::default(),
            filer: Filer::default(),
            compacting: CompactionQueue::default(),
            fetching: Arc::default(),
            backfills: Arc::default(),
            range_scans: RangeScanTable::default(),
            warmup: Warmup::new(core.env.clock.monotonic()),
            roles: Roles::default(),
            flushing: Mutex::default(),
            crashed: Mutex::default(),
            core,
        }
    }

    fn find_vbuckets(
        &self,
        stop: &LastStop,
        mut manifest: manifest_file::Found,
        identity: &Identity,
    ) -> Result<(), Failure> {
        let found = self.store.states()?;
        let states = found.len();
        for (vb, found) in found {
            if vb.0 >= self.vbuckets() {
                tracing::error!(bucket = self.name(), %vb, "a file of a vBucket that this bucket does not have is left alone");
                continue;
            }
            let mut shard = self.vbuckets.hold(vb, Holder::Roles);
            shard.had_role = true;
            match found {
                Ok(stored) => {
                    manifest.compare(&stored.manifest);
                    let counts = stored.counts;
                    shard.vb = VBucket::new(vb, &self.context, origin(&self.env, stored));
                    if counts.documents + counts.tombstones > 0 || shard.vb.high_seqno() > Seqno(0) {
                        shard.unloaded = Some(counts);
                        self.warmup.add(vb, &counts);
                    }
                }
                Err(failure) => {
                    self.unreadable.note_dead(self.name(), vb, &failure);
                    self.warmup.count_failed();
                    shard.vb = dead(vb, &self.context, &self.env);
                }
            }
            let goes_on = stop.was_clean_for(vb) || planted::is(Bug::NoHistoryAfterCrash);
            if goes_on {
                continue;
            }
            self.crashed.lock().insert(vb);
            if shard.vb.state() == VbState::Active {
                shard.vb.new_history(self.new_uuid());
                self.queue_flush(&mut shard);
            }
        }
        self.collections.manifest.begin_with(manifest.settle(
            &self.env,
            &self.config.dir,
            &self.uuid,
            self.config.needs_topology,
        )?);
        identity.keep(&self.env, &self.config.dir)?;
        // What was decided before the stop and did not get to all of them.
        let manifest = self.collections.manifest();
        for vb in (0..self.vbuckets()).map(VbId) {
            drop(self.collections.take_over_manifest(
                &mut self.vbuckets.hold(vb, Holder::Roles),
                &manifest,
                None,
                self.now(),
            ));
        }
        self.warmup.found_all(self.env.clock.monotonic());
        let warmup = self.warmup_stats();
        tracing::info!(
            bucket = self.name(),
            last_stop = stop.name(states > 0),
            with_documents = warmup.vbuckets,
            dead = warmup.vbuckets_failed,
            from_journal_bytes = self.store.stats().unfiled_bytes,
            "the bucket is open"
        );
        Ok(())
    }

    /// Writes what is left and marks the stop as clean, if there is a disk. The flusher's and the filer's threads must
    /// have ended.
    ///
    /// # Errors
    ///
    /// If something could not be written. Everything that the disk takes is durable all the same; the stop is no clean
    /// one.
    pub fn close(&self) -> Result<(), Failure> {
        // A disk that refused once may be well again, and this is the last chance of what is in memory alone.
        if self.is_ephemeral() {
            return self.collections.close_manifest();
        }
        if !(0..FLUSH_TRIES).any(|_| self.flush_all()) {
            return Err(Failure::NotFlushed { bucket: self.name().to_owned() });
        }
        self.collections.close_manifest()?;
        self.store.close()?;
        // What is saved has its new history on disk; what could not be read since the crash has not.
        let is_unread = |vb: &VbId| self.vbuckets.hold(*vb, Holder::Roles).vb.state() == VbState::Dead;
        let crashed = self.crashed.lock().iter().copied().filter(is_unread).collect();
        LastStop::mark(&self.config, &self.env, &self.uuid, &crashed)
    }
}

/// Writes a file of the bucket's folder, durably but for its name.
pub(crate) fn write_file(env: &Env, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let write = || {
        let file = env.disk.open(path, OpenMode::Create)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        file.sync_data()
    };
    write().map_err(|source| Failure::io("write", path, source))
}
