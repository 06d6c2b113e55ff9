//! What runs the buckets of a node: their files, their threads, and the list of those that came while it ran.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::env::{Env, OpenMode, Task};
use base::{Heap, VbState};
use engine::{Bucket, BucketKind};
use kvstore::{CouchConfig, Journaled, JournaledConfig, KvStore};
use parking_lot::{Condvar, Mutex};

use crate::bucket_list::{BucketList, ListError};
use crate::cluster::membership;
use crate::config::{BucketSpec, Config, Switch};
use crate::data_dir::{DataDir, DataDirError};
use crate::node::Served;
use crate::node_buckets::require_durability;
use crate::quarantine::Quarantine;
use crate::server::CHANGES_BITS;

/// Threads of a bucket that read values which clients wait for.
const FETCHERS: usize = 2;
/// Threads of a bucket that read for streams.
const BACKFILLERS: usize = 2;
/// Threads of a bucket that load documents after the start, and end then.
const LOADERS: usize = 2;
/// Threads of a bucket that read.
pub(crate) const READERS: usize = FETCHERS + LOADERS + BACKFILLERS;

/// The most buckets that a node may have while more are made: each has its threads.
pub const MOST_BUCKETS: usize = 30;
/// How long a deleted bucket waits for those who still look at it, and how often it counts them.
const STRAGGLERS_TIMEOUT: Duration = Duration::from_secs(10);
const STRAGGLERS_PAUSE: Duration = Duration::from_millis(1);

/// Why a bucket cannot be run, or its files cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum HostFailure {
    /// It cannot be opened or closed.
    #[error("bucket {name}: {source}")]
    Bucket {
        /// The bucket.
        name: String,
        /// What happened.
        source: engine::Failure,
    },
    /// The list of buckets.
    #[error(transparent)]
    List(#[from] ListError),
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Its files are still there.
    #[error("cannot remove {}: {source}; it is tried again at the next start", path.display())]
    Remove {
        /// Its folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There are files of a bucket of which nobody says what it is.
    #[error(
        "the folder of data has a bucket {0} that came from a configuration or a flag: name it in the configuration \
         file, such as buckets = [\"{0}:256MiB\"], so that the node can bring it into its cluster"
    )]
    NotNamed(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// A thread ended in a way it must not.
    #[error("a thread of the bucket panicked")]
    Panicked,
    /// More than one bucket failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<HostFailure>),
}

/// Runs buckets.
pub struct Host {
    config: Config,
    data_dir: Arc<DataDir>,
    list: Mutex<BucketList>,
    threads: Mutex<BTreeMap<String, Vec<Task>>>,
    memory_quota_bytes: u64,
    quarantine: Quarantine,
}

impl Host {
    /// Removes what was deleted and is still there, and opens the buckets of the configuration and those that were made
    /// while the node ran. Where both name one, the configuration says what it is.
    pub fn open(
        config: Config,
        data_dir: Arc<DataDir>,
        env: &Env,
    ) -> Result<(Host, Vec<Served>), HostFailure> {
        let memory_quota_bytes = config
            .memory_quota_bytes
            .or_else(|| machine_memory_bytes(env).map(|bytes| bytes / 5 * 4))
            .unwrap_or(u64::MAX);
        let list = BucketList::read(data_dir.path(), env)?;
        // Who deletes a bucket of a node alone means it.
        let keep_s = if config.is_member { config.quarantine_s } else { 0 };
        let quarantine = Quarantine::new(data_dir.path(), keep_s);
        let (list, threads) = (Mutex::new(list), Mutex::default());
        let host = Host { config, data_dir, list, threads, memory_quota_bytes, quarantine };
        if host.config.is_member {
            host.take_along(env)?;
        }
        let removing = host.list.lock().removing().to_vec();
        for name in removing {
            host.remove_files(&name, env)?;
        }
        // The buckets of a cluster are made while the node runs.
        let mut specs = if host.config.is_member { Vec::new() } else { host.config.buckets.clone() };
        let configured = specs.clone();
        let added = host.list.lock().specs().into_iter();
        specs.extend(added.filter(|spec| configured.iter().all(|other| other.name != spec.name)));
        let served = specs.iter().map(|spec| host.open_bucket(spec, env)).collect::<Result<_, _>>()?;
        Ok((host, served))
    }

    /// A node that never was in a cluster brings the buckets that it has: those of its configuration are in the list from
    /// now on, like those that were made while it ran.
    fn take_along(&self, env: &Env) -> Result<(), HostFailure> {
        let failed = |path: &Path, source| {
            let operation = "look for buckets in";
            HostFailure::DataDir(DataDirError::Io { operation, path: path.to_owned(), source })
        };
        let (data, buckets) = (self.data_dir.path(), self.data_dir.buckets());
        if membership::belongs_to_cluster(env, data).map_err(|error| failed(data, error))? {
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

    /// The most that the quotas of all buckets may come to when another is made, in bytes.
    pub fn memory_quota_bytes(&self) -> u64 {
        self.memory_quota_bytes
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
        self.list.lock().put(spec, env)?;
        let opened = self.open_bucket(spec, env).and_then(|served| {
            self.start(&served.bucket, env)?;
            Ok(served)
        });
        if opened.is_err() {
            self.list.lock().begin_removal(&spec.name, env)?;
            self.remove_files(&spec.name, env)?;
        }
        opened
    }

    /// Notes what a bucket is now, if it was made while the node ran: others are what the configuration says.
    pub(crate) fn note(&self, spec: &BucketSpec, env: &Env) -> Result<(), HostFailure> {
        let mut list = self.list.lock();
        if list.has(&spec.name) {
            list.put(spec, env)?;
        }
        Ok(())
    }

    /// Notes durably that a bucket is deleted.
    pub(crate) fn begin_removal(&self, name: &str, env: &Env) -> Result<(), HostFailure> {
        Ok(self.list.lock().begin_removal(name, env)?)
    }

    /// Ends a bucket that nobody can find any more, and removes its files. Blocks until those who still look at it have
    /// ended, or for some seconds.
    pub(crate) fn remove(&self, bucket: Arc<Bucket>, env: &Env) -> Result<(), HostFailure> {
        let name = bucket.name().to_owned();
        self.stop(&bucket)?;
        let started = env.clock.monotonic();
        let (mutex, nobody) = (Mutex::new(()), Condvar::new());
        while Arc::strong_count(&bucket) > 1 {
            if env.clock.monotonic() - started > STRAGGLERS_TIMEOUT {
                let stragglers = Arc::strong_count(&bucket) - 1;
                tracing::error!(bucket = name, stragglers, "a deleted bucket is still looked at");
                break;
            }
            nobody.wait_for(&mut mutex.lock(), STRAGGLERS_PAUSE);
        }
        drop(bucket);
        self.remove_files(&name, env)
    }

    fn remove_files(&self, name: &str, env: &Env) -> Result<(), HostFailure> {
        let folder = self.data_dir.bucket(name);
        let remove = || {
            self.quarantine.remove(env, &folder, name)?;
            match env.disk.sync_dir(&self.data_dir.buckets()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            }
        };
        remove().map_err(|source| HostFailure::Remove { path: folder.clone(), source })?;
        Ok(self.list.lock().end_removal(name, env)?)
    }

    fn open_bucket(&self, spec: &BucketSpec, env: &Env) -> Result<Served, HostFailure> {
        let env = &env.with_heap(Heap::default());
        let config = &self.config;
        let mut bucket = engine::BucketConfig::new(&spec.name, self.data_dir.bucket(&spec.name));
        bucket.kind = spec.kind;
        bucket.quota_bytes = spec.quota_bytes;
        bucket.settings = spec.settings.clone();
        bucket.vbuckets = config.vbuckets;
        bucket.first_role = if config.is_member { VbState::Dead } else { VbState::Active };
        bucket.needs_topology = config.is_member;
        bucket.compact_percent = config.compaction.percent;
        bucket.compact_min_waste_bytes = config.compaction.min_waste_bytes;
        bucket.purge_age_s = config.compaction.purge_age_s;
        let failed = |source| HostFailure::Bucket { name: spec.name.clone(), source };
        let store = self.open_store(&bucket, env).map_err(|failure| failed(failure.into()))?;
        let bucket = Bucket::open_cold(bucket, env.clone(), store).map_err(failed)?;
        if config.is_member {
            crate::cluster::hold_all(&bucket);
        }
        if spec.durability_min.is_some()
            && let Err(error) = require_durability(&bucket, spec)
        {
            tracing::error!(bucket = spec.name, %error, "the least durability of the bucket is not in force");
        }
        Ok(Served { spec: spec.clone(), bucket: Arc::new(bucket) })
    }

    /// The store of a bucket.
    fn open_store(
        &self,
        bucket: &engine::BucketConfig,
        env: &Env,
    ) -> Result<Arc<dyn KvStore>, kvstore::Failure> {
        match bucket.kind {
            BucketKind::Persistent => self.open_files(bucket, env),
            BucketKind::Ephemeral => Ok(Arc::new(kvstore::Nothing)),
        }
    }

    /// The store of a bucket on disk. Without journal every batch commits in the files of its vBuckets.
    fn open_files(
        &self,
        bucket: &engine::BucketConfig,
        env: &Env,
    ) -> Result<Arc<dyn KvStore>, kvstore::Failure> {
        let couch =
            CouchConfig { max_open_files: self.share_of_files(&bucket.name), ..CouchConfig::default() };
        let default = JournaledConfig::default();
        let journal_bytes =
            (bucket.quota_bytes / JOURNAL_SHARE).clamp(SMALLEST_JOURNAL_BYTES, default.journal_bytes);
        let journaled = JournaledConfig { couch, journal_bytes, ..default };
        match self.config.journal {
            Switch::On => Ok(Arc::new(Journaled::open(env.clone(), &bucket.dir, journaled)?)),
            Switch::Off => Ok(Arc::new(Journaled::without_journal(env.clone(), &bucket.dir, journaled)?)),
        }
    }

    /// Files that a bucket may have open: those of the configuration share what there is, of others each has a little.
    fn share_of_files(&self, name: &str) -> usize {
        let configured = &self.config.buckets;
        let is_configured = configured.iter().any(|spec| spec.name == name);
        let sharers = if is_configured { configured.len() } else { MOST_BUCKETS };
        (self.config.max_open_files / sharers).max(FEWEST_OPEN_FILES)
    }

    /// Starts the threads of a bucket.
    pub(crate) fn start(&self, bucket: &Arc<Bucket>, env: &Env) -> Result<(), HostFailure> {
        let mut started = Vec::new();
        for (name, run) in threads_of_a_bucket() {
            let running = Arc::clone(bucket);
            match env.spawn.spawn(&format!("{name}-{}", bucket.name()), Box::new(move || run(&running))) {
                Ok(task) => started.push(task),
                Err(error) => {
                    end(bucket);
                    join(started)?;
                    return Err(error.into());
                }
            }
        }
        self.threads.lock().insert(bucket.name().to_owned(), started);
        Ok(())
    }

    /// Ends the threads of a bucket.
    pub(crate) fn stop(&self, bucket: &Bucket) -> Result<(), HostFailure> {
        end(bucket);
        let threads = self.threads.lock().remove(bucket.name()).unwrap_or_default();
        join(threads)
    }

    /// Ends the threads of all these buckets, and leaves what they have not written.
    pub(crate) fn abandon(&self, buckets: &[(BucketSpec, Arc<Bucket>)]) -> Result<(), HostFailure> {
        // All are told first, so that they end beside each other.
        buckets.iter().for_each(|(_, bucket)| end(bucket));
        all_of(buckets.iter().map(|(spec, bucket)| (spec.name.as_str(), self.stop(bucket))))
    }

    /// Ends the threads of all these buckets, writes what is left, and notes that they were closed cleanly. What fails
    /// for one bucket keeps no other one from being closed.
    pub(crate) fn close(&self, buckets: &[(BucketSpec, Arc<Bucket>)]) -> Result<(), HostFailure> {
        buckets.iter().for_each(|(_, bucket)| end(bucket));
        let close = |(spec, bucket): &(BucketSpec, Arc<Bucket>)| {
            let ended = self.stop(bucket);
            let closed = bucket.close();
            closed.map_err(|source| HostFailure::Bucket { name: spec.name.clone(), source })?;
            ended
        };
        all_of(buckets.iter().map(|of| (of.0.name.as_str(), close(of))))
    }
}

/// Does all of it, tells of each bucket for which it failed, and returns what failed.
fn all_of<'n>(outcomes: impl Iterator<Item = (&'n str, Result<(), HostFailure>)>) -> Result<(), HostFailure> {
    let mut failures = Vec::new();
    for (bucket, outcome) in outcomes {
        if let Err(error) = outcome {
            tracing::error!(bucket, %error, "the bucket did not stop cleanly");
            failures.push(error);
        }
    }
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => Err(HostFailure::Several(failures)),
    }
}

/// The most of a bucket's quota that its journal may take, as a divisor: what stands in the journal alone stays in
/// memory.
const JOURNAL_SHARE: u64 = 4;
const SMALLEST_JOURNAL_BYTES: u64 = 16 << 20;
/// With fewer open files a bucket would do nothing but open and close them.
const FEWEST_OPEN_FILES: usize = 4;

/// Threads that help with many short compactions: the disk syncs for several in the time that it takes for one.
const COMPACTION_HELPERS: usize = 3;

type Run = fn(&Bucket);

/// Those that write a bucket's changes to where they are durable, and behind that to the files; the one that compacts
/// those, and its helpers; the housekeeper; those that read values, that load documents and end then, and that read for streams.
fn threads_of_a_bucket() -> impl Iterator<Item = (String, Run)> {
    let writers: [(&str, Run); 4] = [
        ("flush", Bucket::run_flusher),
        ("file", Bucket::run_filer),
        ("compact", Bucket::run_compactor),
        ("keep", Bucket::run_keeper),
    ];
    let others: [(&str, usize, Run); 4] = [
        ("compact", COMPACTION_HELPERS, Bucket::help_compactor),
        ("fetch", FETCHERS, Bucket::run_fetcher),
        ("load", LOADERS, Bucket::run_loader),
        ("backfill", BACKFILLERS, Bucket::run_backfiller),
    ];
    let writers = writers.into_iter().map(|(name, run)| (name.to_owned(), run));
    let numbered = |(name, count, run)| (0..count).map(move |at| (format!("{name}{at}"), run));
    writers.chain(others.into_iter().flat_map(numbered))
}

/// Lets the threads of a bucket end.
fn end(bucket: &Bucket) {
    bucket.stop_loaders();
    bucket.stop_fetchers();
    bucket.stop_backfillers();
    bucket.stop_compactor();
    bucket.stop_keeper();
    bucket.stop_flusher();
    bucket.stop_filer();
}

fn join(threads: Vec<Task>) -> Result<(), HostFailure> {
    // All of them are waited for, whatever became of one.
    let panicked = threads.into_iter().map(Task::join).filter(|sound| !sound).count();
    if panicked == 0 { Ok(()) } else { Err(HostFailure::Panicked) }
}

/// The machine's memory (proc(5), /proc/meminfo); nothing if the system does not say.
fn machine_memory_bytes(env: &Env) -> Option<u64> {
    let file = env.disk.open("/proc/meminfo".as_ref(), OpenMode::Read).ok()?;
    let mut text = [0; 4096];
    let read = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..read]).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}
