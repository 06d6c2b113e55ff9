//! What runs the buckets of a node: their files, their threads, and the list of those that came while it ran.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::{Env, Room, Task};
use base::planted::{self, Bug};
use base::{Heap, VbId, VbState};
use engine::{Bucket, BucketKind, MOST_RANGE_SCANS, SnapshotFiles, TaskKind};
use kvstore::{
    CouchConfig, FilesConfig, Journaled, JournaledConfig, KvStore, LogConfig, Movable, MoveStage,
    RocksConfig, StorageBackend,
};
use parking_lot::{Condvar, Mutex};

use crate::bucket_list::BucketList;
use crate::bucket_moves::BucketMoves;
use crate::cluster::membership;
use crate::config::{BucketSpec, Config, Switch};
use crate::data_dir::{DataDir, DataDirError};
use crate::down::{self, Down, DownBuckets};
use crate::host_failure::{HostFailure, MOST_BUCKETS};
use crate::machine_memory::machine_memory_bytes;
use crate::management::{BucketError, require_durability};
use crate::opened::{self, OpenedBucket};
use crate::quarantine::Quarantine;
use crate::served::{Served, ServedBuckets};
use crate::{at_rest, node_files};

/// Revisions of the cluster map that a start leaves room for: each change of a manifest takes one.
pub const CHANGES_BITS: u32 = 20;
/// Threads of a bucket that read values which clients wait for.
const FETCHERS: usize = 2;
/// Threads of a bucket that read for streams.
const BACKFILLERS: usize = 2;
/// Threads of a bucket that load documents after the start, and end then.
const LOADERS: usize = 2;

/// How long a deleted bucket waits for those who still look at it, and how often it counts them.
const STRAGGLERS_TIMEOUT: Duration = Duration::from_secs(10);
const STRAGGLERS_PAUSE: Duration = Duration::from_millis(1);

/// What failed of two things that are both done.
fn both(first: Result<(), HostFailure>, second: Result<(), HostFailure>) -> Result<(), HostFailure> {
    match first {
        Ok(()) => second,
        Err(first) => Err(first.and(second)),
    }
}

/// The buckets that a start has found.
pub struct Opened {
    /// Those that can be served.
    pub served: Vec<Served>,
    /// Those that cannot.
    pub down: DownBuckets,
}

impl Down {
    /// A bucket that failed.
    pub(crate) fn of(spec: &BucketSpec, error: &HostFailure) -> Down {
        tracing::error!(event = "bucket_down", bucket = spec.name, %error, "the bucket is down");
        let is_damage = match error {
            HostFailure::Bucket { source, .. } => source.is_damage(),
            HostFailure::Gone { .. } => true,
            _ => false,
        };
        // The node does not look again by itself.
        let what_to_do = if is_disk_full(error) { ": make room, and start the node again" } else { "" };
        Down { reason: format!("{error}{what_to_do}"), is_damage, quota_bytes: spec.quota_bytes }
    }
}

/// Whether a disk without room is the cause.
fn is_disk_full(error: &HostFailure) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source()).any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    })
}

/// Runs buckets.
pub struct Host {
    config: Config,
    data_dir: Arc<DataDir>,
    list: Mutex<BucketList>,
    threads: Mutex<BTreeMap<String, Vec<Task>>>,
    moves: BucketMoves,
    memory_quota_bytes: u64,
    quarantine: Quarantine,
    /// Of all buckets: who needs a file for each vBucket at once needs more than a bucket's share.
    snapshot_files: SnapshotFiles,
}

impl Host {
    /// Removes what was deleted and is still there, and opens the buckets of the configuration and those that were made
    /// while the node ran. Where both name one, the configuration says what it is. A bucket that cannot be opened keeps
    /// no other one from being opened.
    pub fn open(config: Config, data_dir: Arc<DataDir>, env: &Env) -> Result<(Host, Opened), HostFailure> {
        check_quotas(&config, env)?;
        let memory_quota_bytes = memory_quota_bytes(&config, machine_memory_bytes(&*env.disk));
        let (list, mut down) = read_list(&config, &data_dir, env)?;
        // Who deletes a bucket of a node alone means it.
        let keep_s = if config.is_member { config.quarantine_s } else { 0 };
        let quarantine = Quarantine::new(data_dir.path(), keep_s);
        let (list, threads, moves) = (Mutex::new(list), Mutex::default(), BucketMoves::default());
        let snapshot_files = SnapshotFiles::new(config.max_open_files / SNAPSHOT_PART);
        let host =
            Host { config, data_dir, list, threads, moves, memory_quota_bytes, quarantine, snapshot_files };
        if host.config.is_member {
            host.take_along(env)?;
        }
        let removing = host.list.lock().removing().to_vec();
        let is_left = |name: &String| match host.remove_files(name, env) {
            Ok(()) => false,
            Err(error) => {
                tracing::error!(
                    event = "bucket_files_not_deleted", bucket = name, %error,
                    "the files of a deleted bucket are still there"
                );
                true
            }
        };
        let left: Vec<String> = removing.into_iter().filter(is_left).collect();
        // The buckets of a cluster are made while the node runs.
        let mut specs = if host.config.is_member { Vec::new() } else { host.config.buckets.clone() };
        let configured = specs.clone();
        let added = host.list.lock().specs().into_iter();
        specs.extend(added.filter(|spec| configured.iter().all(|other| other.name != spec.name)));
        let mut served = Vec::new();
        for spec in specs {
            let opened = if left.contains(&spec.name) {
                Err(HostFailure::NotRemoved(host.data_dir.bucket(&spec.name)))
            } else {
                host.open_bucket(&spec, env)
            };
            match opened {
                Ok(bucket) => {
                    host.describe(&bucket.spec, env);
                    served.push(bucket);
                }
                Err(error) if planted::is(Bug::OneBucketEndsStart) => return Err(error),
                Err(error) => drop(down.insert(spec.name.clone(), Down::of(&spec, &error))),
            }
        }
        Ok((host, Opened { served, down }))
    }

    /// Notes in the folder of a bucket that came while the node ran what it is.
    fn describe(&self, spec: &BucketSpec, env: &Env) {
        if !self.list.lock().has(&spec.name) {
            return;
        }
        if let Err(error) = down::describe(env, &self.data_dir.bucket(&spec.name), spec) {
            tracing::warn!(
                event = "bucket_description_not_written", bucket = spec.name, %error,
                "the folder of the bucket does not say what it is"
            );
        }
    }

    /// A node that never was in a cluster brings the buckets that it has: those of its configuration are in the list from
    /// now on, like those that were made while it ran.
    fn take_along(&self, env: &Env) -> Result<(), HostFailure> {
        let failed = |path: &Path, source| {
            let operation = "look for buckets in";
            HostFailure::DataDir(DataDirError::Io { operation, path: path.to_owned(), source })
        };
        let (data, buckets) = (self.data_dir.path(), self.data_dir.buckets());
        if membership::belongs_to_cluster(&*env.disk, data).map_err(|error| failed(data, error))? {
            return Ok(());
        }
        let names = match env.disk.read_dir(&buckets) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names.map_err(|error| failed(&buckets, error))?,
        };
        let mut list = self.list.lock();
        for name in names {
            if list.has(&name) {
                continue;
            }
            let spec = self.config.buckets.iter().find(|spec| spec.name == name);
            list.put(spec.ok_or(HostFailure::NotNamed(name))?, env)?;
        }
        Ok(())
    }

    /// Erases the files of deleted buckets that were kept for long enough.
    pub(crate) fn erase_old(&self, env: &Env) -> io::Result<()> {
        self.quarantine.erase_old(env)
    }

    /// Moves the damaged files of a vBucket into quarantine; the vBucket is not there any more.
    pub(crate) fn set_aside(&self, bucket: &Bucket, vb: VbId, env: &Env) -> Result<(), HostFailure> {
        let name = bucket.name();
        let place = self.quarantine.place(env, &format!("{name}-vbucket-{vb}"))?;
        let failed = |source| HostFailure::Bucket { name: name.to_owned(), source };
        match bucket.roles().set_aside(vb, &place) {
            Ok(set_aside) => set_aside.map_err(failed)?,
            // It is not damaged any more.
            Err(_) => return Ok(()),
        }
        let (place, keep_s) = (place.display(), self.config.quarantine_s);
        tracing::warn!(
            event = "damaged_files_set_aside", bucket = name, %vb, %place, keep_s,
            "damaged files were set aside; another node has the vBucket"
        );
        Ok(())
    }

    /// The most that the quotas of all buckets may come to when another is made, in bytes.
    pub fn memory_quota_bytes(&self) -> u64 {
        self.memory_quota_bytes
    }

    /// Whether this bucket may be made beside those that there are.
    pub(crate) fn may_make(
        &self,
        spec: &BucketSpec,
        present: &ServedBuckets,
        env: &Env,
    ) -> Result<(), BucketError> {
        if let Some(why) = present.why_down(&spec.name) {
            return Err(BucketError::Down(why));
        }
        let quotas = present.quotas();
        // Names that differ in case alone are one name on some file systems and to people.
        if quotas.iter().any(|(name, _)| name.eq_ignore_ascii_case(&spec.name)) {
            return Err(BucketError::Exists);
        }
        if quotas.len() >= MOST_BUCKETS {
            return Err(BucketError::TooMany);
        }
        self.check_quota(&quotas, &spec.name, spec.quota_bytes)?;
        match self.folder_in_the_way(&spec.name, env) {
            Some(folder) => Err(BucketError::InTheWay(folder)),
            None => Ok(()),
        }
    }

    /// Whether a bucket may have this quota beside the others.
    pub(crate) fn check_quota(
        &self,
        quotas: &[(String, u64)],
        name: &str,
        bytes: u64,
    ) -> Result<(), BucketError> {
        let others = quotas.iter().filter(|(other, _)| other != name).map(|(_, quota)| *quota);
        let (others, most) = (others.fold(0, u64::saturating_add), self.memory_quota_bytes());
        if others.saturating_add(bytes) <= most {
            return Ok(());
        }
        let [bytes, others, most] = [bytes, others, most].map(|bytes| bytes >> 20);
        Err(BucketError::Quota(format!(
            "{bytes} MiB were asked for, other buckets have {others} MiB, and all together may have {most} MiB: ask for \
             less, or raise memory-quota"
        )))
    }

    /// Where its files are.
    pub(crate) fn data_dir(&self) -> &DataDir {
        &self.data_dir
    }

    /// How much room there is where its files are; `None` if the disk does not know.
    pub fn room(&self, env: &Env) -> Option<Room> {
        env.disk.room(self.data_dir.path())
    }

    /// What the node was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A number for the next cluster map of a node alone: larger than all before, durably.
    pub(crate) fn next_revision(&self, env: &Env) -> Result<i64, HostFailure> {
        Ok(self.data_dir.next_revision(env)? << CHANGES_BITS)
    }

    /// Whether a folder with files stands where a bucket of this name would be, and nobody has deleted it.
    pub(crate) fn folder_in_the_way(&self, name: &str, env: &Env) -> Option<PathBuf> {
        let folder = self.data_dir.bucket(name);
        let is_known = { self.list.lock().removing().iter().any(|other| other == name) };
        let is_full = env.disk.read_dir(&folder).is_ok_and(|names| !names.is_empty());
        (is_full && !is_known).then_some(folder)
    }

    /// Makes a bucket: it is in the list first, so that it is there after a restart however far this came.
    pub(crate) fn make(&self, spec: &BucketSpec, env: &Env) -> Result<Served, HostFailure> {
        let is_left_over = { self.list.lock().removing().contains(&spec.name) };
        if is_left_over {
            self.remove_files(&spec.name, env)?;
        }
        {
            let mut list = self.list.lock();
            list.put(spec, env)?;
            // One of this name may have been here before, and its folder is gone.
            list.note_opened(&spec.name, None, env)?;
        }
        let opened = self.open_bucket(spec, env).and_then(|served| {
            self.start(&served.bucket, env)?;
            self.describe(spec, env);
            Ok(served)
        });
        opened.map_err(|error| {
            let begun = self.list.lock().begin_removal(&spec.name, env);
            let removed = begun.map_err(HostFailure::from).and_then(|()| self.remove_files(&spec.name, env));
            error.and(removed)
        })
    }

    /// Notes what a bucket is now, if it was made while the node ran: others are what the configuration says.
    pub(crate) fn note(&self, spec: &BucketSpec, env: &Env) -> Result<(), HostFailure> {
        {
            let mut list = self.list.lock();
            if !list.has(&spec.name) {
                return Ok(());
            }
            list.put(spec, env)?;
        }
        self.describe(spec, env);
        Ok(())
    }

    /// Notes durably that a bucket is deleted.
    pub(crate) fn begin_removal(&self, name: &str, env: &Env) -> Result<(), HostFailure> {
        self.list.lock().begin_removal(name, env)?;
        // Should the list be lost, what is left of it is not taken for a bucket.
        if let Err(error) = node_files::bucket(&self.data_dir.bucket(name)).remove(&*env.disk) {
            tracing::debug!(bucket = name, %error, "the folder of a deleted bucket still says what it was");
        }
        Ok(())
    }

    /// Removes the files of a deleted bucket that is not open.
    pub(crate) fn remove_closed(&self, name: &str, env: &Env) -> Result<(), HostFailure> {
        self.remove_files(name, env)
    }

    /// Ends a bucket that nobody can find any more, and removes its files. Blocks until those who still look at it have
    /// ended, or for some seconds.
    pub(crate) fn remove(&self, bucket: Arc<Bucket>, env: &Env) -> Result<(), HostFailure> {
        let name = bucket.name().to_owned();
        // Its threads have ended, also if one of them panicked.
        let stopped = self.stop(&bucket);
        let started = env.clock.monotonic();
        let (mutex, nobody) = (Mutex::new(()), Condvar::new());
        while Arc::strong_count(&bucket) > 1 {
            if env.clock.monotonic() - started > STRAGGLERS_TIMEOUT {
                let stragglers = Arc::strong_count(&bucket) - 1;
                tracing::error!(
                    event = "bucket_still_in_use",
                    bucket = name,
                    stragglers,
                    "a deleted bucket is still looked at"
                );
                break;
            }
            nobody.wait_for(&mut mutex.lock(), STRAGGLERS_PAUSE);
        }
        drop(bucket);
        both(stopped, self.remove_files(&name, env))
    }

    fn remove_files(&self, name: &str, env: &Env) -> Result<(), HostFailure> {
        self.data_dir.keys().forget(name);
        let removed = self.quarantine.remove_bucket(env, &self.data_dir.buckets(), name);
        removed.map_err(|source| HostFailure::Remove { path: self.data_dir.bucket(name), source })?;
        Ok(self.list.lock().end_removal(name, env)?)
    }

    fn open_bucket(&self, spec: &BucketSpec, env: &Env) -> Result<Served, HostFailure> {
        let known =
            self.list.lock().opened(&spec.name).cloned().filter(|_| spec.kind == BucketKind::Persistent);
        let folder = self.data_dir.bucket(&spec.name);
        let failed =
            |source: kvstore::Failure| HostFailure::Bucket { name: spec.name.clone(), source: source.into() };
        let gone = |what| HostFailure::Gone { name: spec.name.clone(), what };
        if known.is_some() {
            opened::missing(&*env.beneath().disk, &folder)
                .map_err(failed)?
                .map_or(Ok(()), |what| Err(gone(what)))?;
        }
        let of_node = env;
        let env = at_rest::of_bucket(env, &self.config, &self.data_dir, spec)?.with_heap(Heap::default());
        if let Some(known) = known {
            known.refuses(&*env.disk, &folder).map_err(failed)?.map_or(Ok(()), |what| Err(gone(what)))?;
            if engine::uuid_in(&*env.disk, &folder).is_none() {
                // It gets another one, which must not be held against it if this start ends before it is noted.
                self.list.lock().note_opened(&spec.name, None, of_node)?;
            }
        }
        let (served, opened) = self.open_folder(spec, &env)?;
        self.list.lock().note_opened(&spec.name, opened, of_node)?;
        if let Some(found) = self.moves.get(&spec.name)
            && let Err(error) = self.note_store(&served.spec, &found.movable, of_node)
        {
            // The record of the move says it at the next start, too.
            tracing::error!(
                event = "bucket_store_not_noted", bucket = spec.name, %error,
                "the store of the bucket is not noted in the list of buckets"
            );
        }
        Ok(served)
    }

    /// Opens a bucket whose folder may be believed; answers what it was opened as, too.
    fn open_folder(
        &self,
        spec: &BucketSpec,
        env: &Env,
    ) -> Result<(Served, Option<OpenedBucket>), HostFailure> {
        let config = &self.config;
        let mut bucket = engine::BucketConfig::new(&spec.name, self.data_dir.bucket(&spec.name));
        bucket.kind = spec.kind;
        bucket.backend = spec.backend;
        bucket.quota_bytes = spec.quota_bytes;
        bucket.settings = spec.settings.clone();
        bucket.vbuckets = config.vbuckets;
        bucket.first_role = if config.is_member { VbState::Dead } else { VbState::Active };
        bucket.needs_topology = config.is_member;
        bucket.compact_percent = config.compaction.percent;
        bucket.compact_min_waste_bytes = config.compaction.min_waste_bytes;
        bucket.purge_age_s = config.compaction.purge_age_s;
        bucket.most_range_scans = self.files_for_scans(&spec.name);
        bucket.snapshot_files = self.snapshot_files.clone();
        let failed = |source| HostFailure::Bucket { name: spec.name.clone(), source };
        let (store, backend) = self.open_store(&bucket, env).map_err(|failure| failed(failure.into()))?;
        bucket.backend = backend;
        if ends_history(&bucket, &*store) {
            tracing::warn!(
                event = "history_ended",
                bucket = spec.name,
                "the history of changes ends, and the versions that it kept go: the bucket's settings keep none; write \
                 history_retention_seconds or history_retention_bytes under [bucket.settings] of the configuration file"
            );
        }
        let bucket = Bucket::open_cold(bucket, env.clone(), Arc::clone(&store)).map_err(failed)?;
        let opened = OpenedBucket::of(&bucket, &*store).map_err(|failure| failed(failure.into()))?;
        if config.is_member {
            for (vb, refusal) in crate::cluster::hold::hold_all(&bucket) {
                // The node's fence is closed, and the cluster has it hold the vBucket again before it opens.
                tracing::error!(
                    event = "vbucket_role_kept", bucket = spec.name, %vb, ?refusal,
                    "a vBucket keeps its role until it is held again"
                );
            }
        }
        bucket.durability().set_replicas(spec.replicas);
        if spec.durability_min.is_some()
            && let Err(error) = require_durability(&bucket, spec)
        {
            tracing::error!(
                event = "durability_min_not_in_force", bucket = spec.name, %error,
                "the least durability of the bucket is not in force"
            );
        }
        let spec = BucketSpec { backend, ..spec.clone() };
        Ok((Served { spec, bucket: Arc::new(bucket) }, opened))
    }

    /// The store of a bucket, and which one it is: another one than was asked for if the bucket was moved.
    fn open_store(
        &self,
        bucket: &engine::BucketConfig,
        env: &Env,
    ) -> Result<(Arc<dyn KvStore>, StorageBackend), kvstore::Failure> {
        if bucket.kind == BucketKind::Ephemeral {
            return Ok((Arc::new(kvstore::Nothing), bucket.backend));
        }
        let (of, journal) = (bucket.clone(), self.config.journal);
        let max_open_files = self.files_for_documents(&bucket.name);
        let open = move |env: Env, backend| open_files(&of, backend, (max_open_files, journal), env);
        let movable =
            Movable::open(env.clone(), &bucket.dir, bucket.vbuckets, bucket.backend, Box::new(open))?;
        let (backend, movable) = (movable.backend(), Arc::new(movable));
        self.moves.put(&bucket.name, Arc::clone(&movable));
        Ok((movable, backend))
    }

    /// What moves buckets to other stores.
    pub(crate) fn moves(&self) -> &BucketMoves {
        &self.moves
    }

    /// Notes in which store a bucket is kept, if it was made while the node ran, and forgets how it came there. Of another
    /// one the configuration says it; until that says so the record of the move does.
    pub(crate) fn note_store(
        &self,
        spec: &BucketSpec,
        movable: &Movable,
        env: &Env,
    ) -> Result<(), HostFailure> {
        let is_over = movable.progress().is_some_and(|progress| progress.stage == MoveStage::Done);
        if !is_over || movable.backend() != spec.backend {
            return Ok(());
        }
        self.note(spec, env)?;
        // A member's buckets are in the list, also those that the configuration names.
        let mut configured = self.config.buckets.iter().filter(|_| !self.config.is_member);
        let configured = configured.find(|configured| configured.name == spec.name);
        let is_noted = match configured {
            Some(configured) => configured.backend == spec.backend,
            None => self.list.lock().has(&spec.name),
        };
        if is_noted {
            let failed = |source: kvstore::Failure| HostFailure::Bucket {
                name: spec.name.clone(),
                source: source.into(),
            };
            movable.noted().map_err(failed)?;
        }
        Ok(())
    }

    /// Starts the thread that moves a bucket to another store.
    pub(crate) fn spawn_move(
        &self,
        name: &str,
        env: &Env,
        job: Box<dyn FnOnce() + Send>,
    ) -> Result<(), HostFailure> {
        let mut threads = self.threads.lock();
        // A bucket that is being closed has none any more.
        let Some(threads) = threads.get_mut(name) else { return Ok(()) };
        let task = env.spawn.spawn(&format!("move-{name}"), job)?;
        let fixed = threads_of_a_bucket().count();
        let mut at = 0;
        threads.retain(|task| {
            at += 1;
            at <= fixed || task.is_running()
        });
        threads.push(task);
        Ok(())
    }

    /// Files that a bucket may have open: those of the configuration share what there is, of others each has a little.
    fn share_of_files(&self, name: &str) -> usize {
        let configured = &self.config.buckets;
        let is_configured = configured.iter().any(|spec| spec.name == name);
        let sharers = if is_configured { configured.len() } else { MOST_BUCKETS };
        (self.config.max_open_files / sharers).max(FEWEST_OPEN_FILES)
    }

    /// Of these, those that range scans may keep open, each one at most.
    fn files_for_scans(&self, name: &str) -> usize {
        (self.share_of_files(name) / 4).min(MOST_RANGE_SCANS)
    }

    /// Of these, those that everything else may open.
    fn files_for_documents(&self, name: &str) -> usize {
        let share = self.share_of_files(name);
        share - self.files_for_scans(name) - share / SNAPSHOT_PART
    }

    /// Starts the threads of a bucket.
    pub(crate) fn start(&self, bucket: &Arc<Bucket>, env: &Env) -> Result<(), HostFailure> {
        let mut started = Vec::new();
        for (name, _, run) in threads_of_a_bucket() {
            let running = Arc::clone(bucket);
            match env.spawn.spawn(&format!("{name}-{}", bucket.name()), Box::new(move || run(&running))) {
                Ok(task) => started.push(task),
                Err(error) => {
                    end(bucket);
                    return Err(HostFailure::from(error).and(join(started)));
                }
            }
        }
        self.threads.lock().insert(bucket.name().to_owned(), started);
        Ok(())
    }

    /// Threads of a kind that a bucket has at the moment; of all buckets if none is named.
    pub(crate) fn running_threads(&self, bucket: Option<&str>, kind: TaskKind) -> usize {
        let threads = self.threads.lock();
        let of = threads.iter().filter(|(name, _)| bucket.is_none_or(|bucket| bucket == *name));
        let running = |tasks: &Vec<Task>| {
            let kinds = threads_of_a_bucket().map(|(_, kind, _)| kind);
            std::iter::zip(tasks, kinds).filter(|(task, of)| *of == kind && task.is_running()).count()
        };
        of.map(|(_, tasks)| running(tasks)).sum()
    }

    /// Starts the threads of the buckets that a start has found. Where that fails the bucket is down.
    pub fn start_all(&self, opened: Opened, env: &Env) -> Opened {
        let Opened { served, mut down } = opened;
        let mut started = Vec::new();
        for bucket in served {
            match self.start(&bucket.bucket, env) {
                Ok(()) => started.push(bucket),
                Err(error) => drop(down.insert(bucket.spec.name.clone(), Down::of(&bucket.spec, &error))),
            }
        }
        Opened { served: started, down }
    }

    /// Ends the threads of a bucket.
    pub(crate) fn stop(&self, bucket: &Bucket) -> Result<(), HostFailure> {
        end(bucket);
        self.moves.stop(bucket.name());
        let threads = self.threads.lock().remove(bucket.name()).unwrap_or_default();
        join(threads)
    }

    /// Ends the threads of all these buckets, and leaves what they have not written.
    pub fn abandon(&self, buckets: &[(BucketSpec, Arc<Bucket>)]) -> Result<(), HostFailure> {
        // All are told first, so that they end beside each other.
        buckets.iter().for_each(|(_, bucket)| end(bucket));
        all_of(buckets.iter().map(|(spec, bucket)| (spec.name.as_str(), self.stop(bucket))))
    }

    /// Ends the threads of all these buckets, writes what is left, and notes that they were closed cleanly. What fails
    /// for one bucket keeps no other one from being closed.
    pub fn close(&self, buckets: &[(BucketSpec, Arc<Bucket>)]) -> Result<(), HostFailure> {
        buckets.iter().for_each(|(_, bucket)| end(bucket));
        let close = |(spec, bucket): &(BucketSpec, Arc<Bucket>)| {
            let ended = self.stop(bucket);
            let closed = bucket.close();
            both(ended, closed.map_err(|source| HostFailure::Bucket { name: spec.name.clone(), source }))
        };
        all_of(buckets.iter().map(|of| (of.0.name.as_str(), close(of))))
    }
}

/// A store of a bucket on disk. Without journal every batch commits in the files of its vBuckets.
fn open_files(
    bucket: &engine::BucketConfig,
    backend: StorageBackend,
    (max_open_files, journal): (usize, Switch),
    env: Env,
) -> Result<Arc<dyn KvStore>, kvstore::Failure> {
    let files = match backend {
        StorageBackend::Couchstore => {
            FilesConfig::Couch(CouchConfig { max_open_files, ..CouchConfig::default() })
        }
        StorageBackend::LogStructured => {
            let history = engine::history_retention(&bucket.settings, bucket.vbuckets);
            let config = LogConfig::new(max_open_files, bucket.quota_bytes / CACHE_SHARE);
            FilesConfig::Log(LogConfig { history, ..config })
        }
        StorageBackend::RocksDb => {
            FilesConfig::Rocks(RocksConfig::new(max_open_files, bucket.quota_bytes / CACHE_SHARE))
        }
    };
    let default = JournaledConfig::default();
    let journal_bytes =
        (bucket.quota_bytes / JOURNAL_SHARE).clamp(SMALLEST_JOURNAL_BYTES, default.journal_bytes);
    let journaled = JournaledConfig { files, journal_bytes, ..default };
    Ok(match journal {
        Switch::On => Arc::new(Journaled::open(env, &bucket.dir, journaled)?),
        Switch::Off => Arc::new(Journaled::without_journal(env, &bucket.dir, journaled)?),
    })
}

/// The most that the quotas of all buckets may come to, in bytes.
fn memory_quota_bytes(config: &Config, machine: Option<u64>) -> u64 {
    config.memory_quota_bytes.or(machine.map(|bytes| bytes / 5 * 4)).unwrap_or(u64::MAX)
}

/// Whether there is the memory for each bucket of the configuration, and for all of them together.
///
/// # Errors
///
/// [`HostFailure::Quota`] or [`HostFailure::Quotas`].
pub fn check_quotas(config: &Config, env: &Env) -> Result<(), HostFailure> {
    let machine = machine_memory_bytes(&*env.disk);
    let (most, of) = match (config.memory_quota_bytes, machine) {
        (Some(most), machine) if machine.is_none_or(|machine| most <= machine) => {
            (most, "memory-quota allows")
        }
        (_, Some(machine)) => (machine, "the machine, or its limit for this process, has"),
        (Some(most), None) => (most, "memory-quota allows"),
        (None, None) => return Ok(()),
    };
    let buckets = if config.is_member { &[][..] } else { &config.buckets };
    if let Some(spec) = buckets.iter().find(|spec| spec.quota_bytes > most) {
        return Err(HostFailure::Quota { name: spec.name.clone(), quota_bytes: spec.quota_bytes, most, of });
    }
    let quota_bytes = buckets.iter().map(|spec| spec.quota_bytes).fold(0, u64::saturating_add);
    let most = memory_quota_bytes(config, machine);
    if buckets.len() < 2 || quota_bytes <= most {
        return Ok(());
    }
    let of = match config.memory_quota_bytes {
        Some(_) => "memory-quota allows",
        None => "four fifths of the machine's memory, or of its limit for this process, are",
    };
    let names: Vec<&str> = buckets.iter().map(|spec| spec.name.as_str()).collect();
    Err(HostFailure::Quotas { names: names.join(", "), quota_bytes, most, of })
}

/// The list of buckets; if it is damaged, what the buckets' folders say, and the buckets that say nothing.
fn read_list(
    config: &Config,
    data_dir: &DataDir,
    env: &Env,
) -> Result<(BucketList, DownBuckets), HostFailure> {
    let error = match BucketList::read(data_dir.path(), env) {
        Ok(list) => return Ok((list, DownBuckets::new())),
        Err(error) if error.is_damage() => error,
        Err(error) => return Err(error.into()),
    };
    let folder = data_dir.buckets();
    let mut names = match env.disk.read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(|source| HostFailure::Remove { path: folder.clone(), source })?,
    };
    names.retain(|name| config.is_member || config.buckets.iter().all(|spec| spec.name != *name));
    let (specs, down) = down::look_in(env, &folder, names);
    let (found, lost) = (specs.len(), down.len());
    tracing::error!(
        event = "bucket_list_rebuilt", %error, found, lost,
        "the list of buckets is put together again from the buckets' folders"
    );
    let mut list = BucketList::of_found(data_dir.path(), &specs);
    if lost == 0 {
        // Otherwise what is left of the damaged one stays for the operator to look at.
        list.write(env)?;
    }
    Ok((list, down))
}

/// Does all of it, tells of each bucket for which it failed, and returns what failed.
fn all_of<'n>(outcomes: impl Iterator<Item = (&'n str, Result<(), HostFailure>)>) -> Result<(), HostFailure> {
    let mut failures = Vec::new();
    for (bucket, outcome) in outcomes {
        if let Err(error) = outcome {
            tracing::error!(event = "bucket_stop_failed", bucket, %error, "the bucket did not stop cleanly");
            failures.push(error);
            if planted::is(Bug::OneBucketEndsStop) {
                break;
            }
        }
    }
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => Err(HostFailure::Several(failures)),
    }
}

/// The part of a bucket's quota, as a divisor, that its log-structured store may keep of blocks that it has read.
const CACHE_SHARE: u64 = 8;
/// The most of a bucket's quota that its journal may take, as a divisor: what stands in the journal alone stays in
/// memory.
const JOURNAL_SHARE: u64 = 4;
const SMALLEST_JOURNAL_BYTES: u64 = 16 << 20;
/// With fewer open files a bucket would do nothing but open and close them.
const FEWEST_OPEN_FILES: usize = 4;
/// Snapshots of buckets may keep this part of all files open.
const SNAPSHOT_PART: usize = 8;

/// Threads that help with many short compactions: the disk syncs for several in the time that it takes for one.
const COMPACTION_HELPERS: usize = 3;

type Run = fn(&Bucket);

/// Those that write a bucket's changes to where they are durable, and behind that to the files; the one that compacts
/// those, and its helpers; the housekeeper; those that read values, that load documents and end then, and that read for streams.
fn threads_of_a_bucket() -> impl Iterator<Item = (String, TaskKind, Run)> {
    use TaskKind::{AuxIo, NonIo, Reader, Writer};
    let alone: [(&str, TaskKind, Run); 4] = [
        ("flush", Writer, |bucket| bucket.flushing().run_flusher()),
        ("file", Writer, |bucket| bucket.flushing().run_filer()),
        ("compact", Writer, |bucket| bucket.compaction().run_compactor()),
        ("keep", NonIo, |bucket| bucket.maintenance().run_keeper()),
    ];
    let others: [(&str, usize, TaskKind, Run); 4] = [
        ("compact", COMPACTION_HELPERS, Writer, |bucket| bucket.compaction().help_compactor()),
        ("fetch", FETCHERS, Reader, |bucket| bucket.fetching().run_fetcher()),
        ("load", LOADERS, AuxIo, |bucket| bucket.loading().run_loader()),
        ("backfill", BACKFILLERS, AuxIo, |bucket| bucket.streams().backfills().run_backfiller()),
    ];
    let alone = alone.into_iter().map(|(name, kind, run)| (name.to_owned(), kind, run));
    let numbered = |(name, count, kind, run)| (0..count).map(move |at| (format!("{name}{at}"), kind, run));
    alone.chain(others.into_iter().flat_map(numbered))
}

/// Threads of a kind that every bucket begins with.
pub(crate) fn threads_of_kind(kind: TaskKind) -> usize {
    threads_of_a_bucket().filter(|(_, of, _)| *of == kind).count()
}

/// Whether a store has a history of changes, and the bucket's settings keep none.
fn ends_history(bucket: &engine::BucketConfig, store: &dyn KvStore) -> bool {
    let is_kept = engine::history_retention(&bucket.settings, bucket.vbuckets).is_on();
    !is_kept && (0..bucket.vbuckets).any(|vb| store.history(VbId(vb)).start > 0)
}

/// Lets the threads of a bucket end.
fn end(bucket: &Bucket) {
    bucket.loading().stop_loaders();
    bucket.fetching().stop_fetchers();
    bucket.streams().backfills().stop();
    bucket.compaction().stop_compactor();
    bucket.maintenance().stop_keeper();
    bucket.flushing().stop_flusher();
    bucket.flushing().stop_filer();
}

fn join(threads: Vec<Task>) -> Result<(), HostFailure> {
    // All of them are waited for, whatever became of one.
    let panicked = threads.into_iter().map(Task::join).filter(|sound| !sound).count();
    if panicked == 0 { Ok(()) } else { Err(HostFailure::Panicked) }
}

#[cfg(test)]
mod tests;
