//! From the disk to memory: opening a bucket, and closing it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::env::Env;
use base::planted::{self, Bug};
use base::{Seqno, VbId, VbState};
use kvstore::KvStore;
use parking_lot::{Mutex, RwLock};
use vbucket::{BucketContext, Origin, VBucket};

use crate::account_check::AccountCheck;
use crate::bucket::Bucket;
use crate::bucket_core::Core;
use crate::checkpoint_recovery::{CheckpointRecovery, Checkpoints};
use crate::clean_mark::LastStop;
use crate::collections::BucketCollections;
use crate::compactor::Compaction;
use crate::compression::Compression;
use crate::compressor::Compressor;
use crate::config::{BucketConfig, BucketKind};
use crate::counters::OpCounts;
use crate::defragmenter::{Defragmentation, Defragmenter};
use crate::disk_state::{DiskState, FLUSH_TRIES};
use crate::documents::Documents;
use crate::durability::{Durability, SyncWrites};
use crate::eraser::{Eraser, Erasing};
use crate::evict::Eviction;
use crate::expiry_pager::{Expiring, ExpiryPager};
use crate::failure::Failure;
use crate::failure_log::FailureLog;
use crate::fetcher::Fetching;
use crate::figures::Figures;
use crate::file_snapshot::remove_parts;
use crate::flush_queue::{FlushQueue, Pace};
use crate::flusher::Flushing;
use crate::history::history_retention;
use crate::identity::{self, Identity};
use crate::keeper::ChoreId;
use crate::loader::Loading;
use crate::maintenance::{Maintenance, bound};
use crate::manifest_file;
use crate::memory::MemoryAccount;
use crate::origin::origin;
use crate::pager::Pager;
use crate::progress::Progress;
use crate::range_scan::{Scans, StaleRangeScans};
use crate::replica::Replicas;
use crate::roles::Roles;
use crate::settings::Key;
use crate::shard::{Shard, dead, new_uuid};
use crate::shard_guard::Holder;
use crate::snapshot_table::BucketSnapshotTable;
use crate::starts::{StartNote, Starts};
use crate::stream::Streams;
use crate::sync_waiters::SyncWaiters;
use crate::tasks::Tasks;
use crate::thread_watch::ThreadWatch;
use crate::tombstone_purger::{TombstonePurger, Tombstones};
use crate::traffic::Traffic;
use crate::unreadable::Unreadables;
use crate::value_times::ValueTimes;
use crate::vbuckets::VBuckets;
use crate::wakes::Wakes;

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
        wanted_snapshot: None,
        replica_stream: 0,
        is_claimed: false,
        is_half_given: false,
        followers: Vec::new(),
        prepare_followers: Vec::new(),
        held: 0,
        ops: OpCounts::default(),
        collection_ops_before: BTreeMap::new(),
        sync_waiters: SyncWaiters::default(),
        wakes: Wakes::default(),
    }
}

impl Bucket {
    /// Opens a bucket and loads it: its documents, and their values as far as the memory allows. Nobody else has to
    /// load anything then.
    pub fn open(config: BucketConfig, env: Env, store: Arc<dyn KvStore>) -> Result<Bucket, Failure> {
        let bucket = Bucket::open_cold(config, env, store)?;
        while bucket.loading.load_step() != Progress::Idle {}
        while bucket.loading.warm_step() != Progress::Idle {}
        Ok(bucket)
    }

    /// Opens a bucket that can serve at once: finds the states of its vBuckets on disk, and begins a new history for
    /// each vBucket whose last stop was not clean. Documents are loaded by [`Loading::run_loader`], values that are not
    /// in memory are brought by [`Fetching::run_fetcher`].
    ///
    /// A vBucket whose file is damaged is dead until somebody mends it; the others serve.
    ///
    /// An ephemeral bucket begins empty, with vBuckets that nobody has met before; its store is [`kvstore::Nothing`].
    pub fn open_cold(config: BucketConfig, env: Env, store: Arc<dyn KvStore>) -> Result<Bucket, Failure> {
        assert!(config.vbuckets.is_power_of_two(), "the configuration checks the number of vBuckets");
        env.disk
            .create_dir_all_synced(&config.dir)
            .map_err(|source| Failure::io("create", &config.dir, source))?;
        remove_parts(&env, &config.dir);
        let identity = identity::of_bucket(&env, &config.dir)?;
        let is_ephemeral = config.kind == BucketKind::Ephemeral;
        let (starts, last) = Starts::read(&env, &config.dir, identity.owner())?;
        let stop = if is_ephemeral {
            LastStop::CLEAN
        } else {
            LastStop::take(&config, &env, &identity.uuid, store.was_closed(), &last)?
        };
        let manifest = manifest_file::find(&env, &config.dir, identity.owner(), last.noted())?;
        let settings = Arc::new(config.settings.clone());
        settings.put(Key::MaxSize, config.quota_bytes);
        if is_ephemeral {
            settings.be_ephemeral();
        }
        let new = if is_ephemeral { BucketContext::ephemeral } else { BucketContext::new };
        let context = new(env.random.next_u64(), env.random.next_u64(), env.heap.clone());
        let context = if config.needs_topology { context.in_cluster() } else { context };
        context.frequency.set(settings.get(Key::FreqCounterIncrementFactor));
        context.keep_history(store.keeps_history());
        let history = if store.keeps_history() {
            history_retention(&settings, config.vbuckets)
        } else {
            Default::default()
        };
        let shards = (0..config.vbuckets).map(|id| empty_shard(VbId(id), &config, &context, &env));
        let core = Arc::new(Core {
            memory: MemoryAccount::new(settings.clone(), context.heap.clone()),
            settings,
            keeper: Arc::default(),
            tasks: Tasks::new(&env.clock),
            watch: ThreadWatch::default(),
            value_times: ValueTimes::new(&env.clock),
            vbuckets: VBuckets::new(shards, &env.clock),
            uuid: identity.uuid.clone(),
            context,
            flush: Arc::new(FlushQueue::new(if store.is_journaled() { Pace::JOURNAL } else { Pace::FILES })),
            disk: DiskState::default(),
            store,
            unreadable: Unreadables::default(),
            failure_log: FailureLog::new(&env.clock),
            snapshots: BucketSnapshotTable::default(),
            figures: Figures::default(),
            history: Mutex::new(history),
            env,
            backend: RwLock::new(config.backend),
            config,
        });
        core.follow_filter_settings();
        core.settings.apply_to_clocks(&core.context.clock);
        let bucket = Bucket::of_parts(core);
        *bucket.collections.manifest.starts.lock() = starts;
        bucket.find_vbuckets(&stop, manifest, &identity)?;
        Ok(bucket)
    }

    /// The parts, lower ones first: each is given those that it uses.
    fn of_parts(core: Arc<Core>) -> Bucket {
        let checkpoints = Arc::new(Checkpoints::new(&core));
        let eviction = Arc::new(Eviction::new(&core));
        let durability = Arc::new(Durability::new(&core));
        let collections = Arc::new(BucketCollections::new(&core, &checkpoints));
        let documents = Arc::new(Documents::new(&core, &checkpoints, &durability, &eviction));
        let replicas = Arc::new(Replicas::new(&core, &checkpoints, &collections, &eviction));
        let flushing = Arc::new(Flushing::new(&core, &checkpoints, &durability, &replicas));
        let fetching = Arc::new(Fetching::new(&core, &eviction));
        let loading = Arc::new(Loading::new(&core, &durability, &fetching, &flushing));
        let compaction =
            Arc::new(Compaction::new(&core, &collections, &documents, &eviction, &fetching, &flushing));
        let scans = Arc::new(Scans::new(&core));
        let compression = Arc::new(Compression::new(&core));
        let defragmentation = Arc::new(Defragmentation::new(&core, &eviction));
        let tombstones = Arc::new(Tombstones::new(&core, &checkpoints));
        let expiring = Arc::new(Expiring::new(&documents, &fetching));
        let erasing = Arc::new(Erasing::new(&core, &collections, &compaction, &durability));
        let chores = vec![
            (ChoreId::CheckpointRecovery, bound(CheckpointRecovery::default(), &checkpoints)),
            (ChoreId::Pager, bound(Pager::default(), &documents)),
            (ChoreId::ExpiryPager, bound(ExpiryPager::default(), &expiring)),
            (ChoreId::TombstonePurger, bound(TombstonePurger::default(), &tombstones)),
            (ChoreId::Compressor, bound(Compressor::default(), &compression)),
            (ChoreId::Defragmenter, bound(Defragmenter::default(), &defragmentation)),
            (ChoreId::AccountCheck, bound(AccountCheck::default(), &core)),
            (ChoreId::Eraser, bound(Eraser, &erasing)),
            (ChoreId::SyncWrites, bound(SyncWrites, &durability)),
            (ChoreId::RangeScans, bound(StaleRangeScans, &scans)),
        ];
        Bucket {
            maintenance: Maintenance::new(&core, &replicas, chores),
            roles: Roles::new(&core, &checkpoints, &collections, &durability, &flushing, &loading),
            streams: Arc::new(Streams::new(&core, &checkpoints, &fetching)),
            checkpoints,
            durability,
            eviction,
            collections,
            documents,
            replicas,
            flushing,
            fetching,
            loading,
            compaction,
            scans,
            compression,
            defragmentation,
            tombstones,
            traffic: Traffic::default(),
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
                tracing::error!(
                    event = "vbucket_file_unexpected", bucket = self.name(), %vb,
                    "a file of a vBucket that this bucket does not have is left alone"
                );
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
                        self.loading.warmup.add(vb, &counts);
                    }
                }
                Err(failure) => {
                    self.unreadable.note_dead(self.name(), vb, &failure);
                    self.loading.warmup.count_failed();
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
        let (dir, is_member) = (&self.config.dir, self.config.needs_topology);
        let (manifest, ids) = manifest.settle(&self.env, dir, &self.uuid, is_member)?;
        let mut starts = self.collections.manifest.starts.lock();
        starts.begin(StartNote { env: &self.env, dir, bucket: &self.uuid, manifest: manifest.uid(), ids })?;
        drop(starts);
        self.collections.manifest.begin_with((manifest, ids));
        identity.keep(&self.env, dir)?;
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
        self.loading.warmup.found_all(self.env.clock.monotonic());
        self.log_open(stop.name(states > 0));
        Ok(())
    }

    fn log_open(&self, last_stop: &str) {
        let warmup = self.loading.warmup_stats();
        tracing::info!(
            event = "bucket_opened",
            bucket = self.name(),
            last_stop,
            vbuckets_with_documents = warmup.vbuckets,
            dead = warmup.vbuckets_failed,
            from_journal_bytes = self.store.stats().unfiled_bytes,
            "the bucket is open"
        );
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
        if !(0..FLUSH_TRIES).any(|_| self.flushing.flush_all()) {
            return Err(Failure::NotFlushed { bucket: self.name().to_owned() });
        }
        self.collections.close_manifest()?;
        self.store.close()?;
        // What is saved has its new history on disk; what could not be read since the crash has not.
        let is_unread = |vb: &VbId| self.vbuckets.hold(*vb, Holder::Roles).vb.state() == VbState::Dead;
        let crashed = self.crashed.lock().iter().copied().filter(is_unread).collect();
        let start = self.collections.start_number()?;
        LastStop::mark(&self.config, &self.env, &self.uuid, start, &crashed)
    }
}
