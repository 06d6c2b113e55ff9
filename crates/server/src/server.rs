//! The life of a node: start, run, stop.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::Heap;
use base::env::{Env, Task};
use engine::{Bucket, BucketKind};
use kvstore::{CouchConfig, Journaled, JournaledConfig, KvStore};
use protocol::extras::ConfigVersion;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::acceptor;
use crate::cluster_map::NodeAddress;
use crate::config::{BucketSpec, Config, Switch};
use crate::counters::WorkerCounters;
use crate::data_dir::{DataDir, DataDirError};
use crate::http;
use crate::node::{Node, Served};
use crate::user::Users;
use crate::worker::Worker;

/// How long HTTP clients may take with their last answers when the node stops.
const HTTP_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Threads of a bucket that read values which clients wait for.
const FETCHERS: usize = 2;
/// Threads of a bucket that read for streams.
const BACKFILLERS: usize = 2;
/// Threads of a bucket that load documents after the start, and end then.
const LOADERS: usize = 2;
/// Threads of a bucket that read.
pub(crate) const READERS: usize = FETCHERS + LOADERS + BACKFILLERS;

/// Why a node did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The folder cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A bucket cannot be opened or closed.
    #[error("bucket {name}: {source}")]
    Bucket {
        /// The bucket.
        name: String,
        /// What happened.
        source: engine::Failure,
    },
    /// An address cannot be listened at.
    #[error("cannot listen at {addr}: {source}; {}", instead_of(.source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or a runtime could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// A thread ended in a way it must not.
    #[error("a thread of the node panicked")]
    Panicked,
}

/// What to do about an address that cannot be listened at.
fn instead_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop what listens there, or choose another address with --kv and --http",
        _ => "choose another address with --kv and --http",
    }
}

/// A running node.
pub struct Server {
    node: Arc<Node>,
    kv_addr: SocketAddr,
    http_addr: SocketAddr,
    data_dir: DataDir,
    stop: watch::Sender<bool>,
    signals: mpsc::Receiver<()>,
    control: Task,
    workers: Vec<Task>,
    writers: Vec<[Task; 4]>,
    readers: Vec<Task>,
}

/// Starts a node: takes its folder, opens its buckets, and listens.
pub fn serve(config: Config, env: Env) -> Result<Server, Failure> {
    let data_dir = DataDir::take(&config.data_dir, &env)?;
    let buckets = config
        .buckets
        .iter()
        .map(|spec| open(spec, &config, &data_dir, &env))
        .collect::<Result<Vec<_>, _>>()?;
    let listen = |addr| acceptor::listen(&env, addr).map_err(|source| Failure::Listen { addr, source });
    let kv = listen(config.kv_addr)?;
    let http = listen(config.http_addr)?;
    let (kv_addr, http_addr) = (kv.local_addr()?, http.local_addr()?);
    let writers =
        buckets.iter().map(|served| start_writers(&env, &served.bucket)).collect::<Result<Vec<_>, _>>()?;
    let readers =
        buckets.iter().map(|served| start_readers(&env, &served.bucket)).collect::<Result<Vec<_>, _>>()?;
    let readers = readers.into_iter().flatten().collect();
    let counters: Vec<_> = (0..config.threads).map(|_| Arc::new(WorkerCounters::default())).collect();
    let node = Arc::new(Node::new(
        env.clone(),
        Users::new(&config.users, &*env.random),
        buckets,
        NodeAddress::new(config.advertise.as_deref(), kv_addr, http_addr),
        ConfigVersion { epoch: 1, revision: data_dir.next_revision(&env)? },
        config.limits,
        counters.clone(),
    ));
    let started =
        counters.into_iter().enumerate().map(|(at, counters)| Worker::start(at, node.clone(), counters));
    let (seats, workers) = started.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    let (stop, stopping) = watch::channel(false);
    let (signalled, signals) = mpsc::channel();
    let control = Control { node: node.clone(), kv, http, seats, stopping, signalled };
    let control = control.start()?;
    Ok(Server { node, kv_addr, http_addr, data_dir, stop, signals, control, workers, writers, readers })
}

fn open(spec: &BucketSpec, config: &Config, data_dir: &DataDir, env: &Env) -> Result<Served, Failure> {
    let env = &env.with_heap(Heap::default());
    let mut bucket = engine::BucketConfig::new(&spec.name, data_dir.bucket(&spec.name));
    bucket.kind = spec.kind;
    bucket.quota_bytes = spec.quota_bytes;
    bucket.settings = spec.settings.clone();
    bucket.vbuckets = config.vbuckets;
    bucket.compact_percent = config.compaction.percent;
    bucket.compact_min_waste_bytes = config.compaction.min_waste_bytes;
    bucket.purge_age_s = config.compaction.purge_age_s;
    let failed = |source| Failure::Bucket { name: spec.name.clone(), source };
    let store = open_store(config, &bucket, env).map_err(|failure| failed(failure.into()))?;
    let bucket = Bucket::open_cold(bucket, env.clone(), store).map_err(failed)?;
    Ok(Served { spec: spec.clone(), bucket: Arc::new(bucket) })
}

/// The most of a bucket's quota that its journal may take, as a divisor: what stands in the journal alone stays in
/// memory.
const JOURNAL_SHARE: u64 = 4;
const SMALLEST_JOURNAL_BYTES: u64 = 16 << 20;

/// The store of a bucket.
fn open_store(
    config: &Config,
    bucket: &engine::BucketConfig,
    env: &Env,
) -> Result<Arc<dyn KvStore>, kvstore::Failure> {
    match bucket.kind {
        BucketKind::Persistent => open_files(config, bucket, env),
        BucketKind::Ephemeral => Ok(Arc::new(kvstore::Nothing)),
    }
}

/// The store of a bucket on disk. Without journal every batch commits in the files of its vBuckets.
fn open_files(
    config: &Config,
    bucket: &engine::BucketConfig,
    env: &Env,
) -> Result<Arc<dyn KvStore>, kvstore::Failure> {
    let couch = CouchConfig {
        max_open_files: config.max_open_files / config.buckets.len(),
        ..CouchConfig::default()
    };
    let default = JournaledConfig::default();
    let journal_bytes =
        (bucket.quota_bytes / JOURNAL_SHARE).clamp(SMALLEST_JOURNAL_BYTES, default.journal_bytes);
    let journaled = JournaledConfig { couch, journal_bytes, ..default };
    match config.journal {
        Switch::On => Ok(Arc::new(Journaled::open(env.clone(), &bucket.dir, journaled)?)),
        Switch::Off => Ok(Arc::new(Journaled::without_journal(env.clone(), &bucket.dir, journaled)?)),
    }
}

/// Starts the threads that write a bucket's changes: to where they are durable, and behind that to the
/// files; and the one that compacts those.
fn start_writers(env: &Env, bucket: &Arc<Bucket>) -> io::Result<[Task; 4]> {
    let start = |name: &str, run: fn(&Bucket)| {
        let bucket = Arc::clone(bucket);
        env.spawn.spawn(&format!("{name}-{}", bucket.name()), Box::new(move || run(&bucket)))
    };
    Ok([
        start("flush", Bucket::run_flusher)?,
        start("file", Bucket::run_filer)?,
        start("compact", Bucket::run_compactor)?,
        start("keep", Bucket::run_keeper)?,
    ])
}

/// Starts the threads that read values and those that load documents, which end when everything is loaded.
fn start_readers(env: &Env, bucket: &Arc<Bucket>) -> io::Result<Vec<Task>> {
    let start = |name: &str, at: usize, run: fn(&Bucket)| {
        let bucket = Arc::clone(bucket);
        env.spawn.spawn(&format!("{name}{at}-{}", bucket.name()), Box::new(move || run(&bucket)))
    };
    let fetchers = (0..FETCHERS).map(|at| start("fetch", at, Bucket::run_fetcher));
    let loaders = (0..LOADERS).map(|at| start("load", at, Bucket::run_loader));
    let backfillers = (0..BACKFILLERS).map(|at| start("backfill", at, Bucket::run_backfiller));
    fetchers.chain(loaders).chain(backfillers).collect()
}

impl Server {
    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Where clients connect to.
    pub fn kv_addr(&self) -> SocketAddr {
        self.kv_addr
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where the data are.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.path().to_owned()
    }

    /// The line that says that the node can be used.
    pub fn ready_line(&self) -> String {
        format!("ready kv={} http={} data={}", self.kv_addr, self.http_addr, self.data_dir.path().display())
    }

    /// Waits until the process is told to stop, by SIGTERM or Ctrl-C.
    pub fn wait_for_signal(&self) {
        // An error means that nobody can signal any more, which is a reason to stop, too.
        let _ = self.signals.recv();
    }

    /// Stops: takes no more clients, answers what was asked, writes what is not written yet, and notes that the stop
    /// was clean.
    pub fn stop(self) -> Result<(), Failure> {
        self.stop.send_replace(true);
        join(self.control)?;
        for worker in self.workers {
            join(worker)?;
        }
        if !self.node.replication().stop() {
            return Err(Failure::Panicked);
        }
        let buckets = self.node.buckets();
        for (_, bucket) in &buckets {
            bucket.stop_loaders();
            bucket.stop_fetchers();
            bucket.stop_backfillers();
            bucket.stop_compactor();
            bucket.stop_keeper();
            bucket.stop_flusher();
            bucket.stop_filer();
        }
        for thread in self.readers.into_iter().chain(self.writers.into_iter().flatten()) {
            join(thread)?;
        }
        for (spec, bucket) in &buckets {
            bucket.close().map_err(|source| Failure::Bucket { name: spec.name.clone(), source })?;
        }
        Ok(())
    }
}

fn join(thread: Task) -> Result<(), Failure> {
    if thread.join() { Ok(()) } else { Err(Failure::Panicked) }
}

/// The thread that accepts clients, serves HTTP and hears signals.
struct Control {
    node: Arc<Node>,
    kv: TcpListener,
    http: TcpListener,
    seats: Vec<Worker>,
    stopping: watch::Receiver<bool>,
    signalled: mpsc::Sender<()>,
}

impl Control {
    fn start(self) -> io::Result<Task> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Before anybody is told that the node is ready: a signal must not find the process without ears.
        let ears = {
            let _inside = runtime.enter();
            Ears { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? }
        };
        let env = self.node.env().clone();
        env.spawn.spawn("control", Box::new(move || runtime.block_on(self.run(ears))))
    }

    async fn run(self, ears: Ears) {
        let Control { node, kv, http, seats, stopping, signalled } = self;
        let max_connections = node.limits().connections;
        let stopped = || {
            let mut stopping = stopping.clone();
            // An error means that whoever could stop the node is gone.
            async move { drop(stopping.wait_for(|stop| *stop).await) }
        };
        let overdue = async {
            stopped().await;
            tokio::time::sleep(HTTP_DRAIN_TIMEOUT).await;
        };
        // When accepting ends, the workers' seats are dropped, and with them the workers end.
        tokio::join!(
            until(stopped(), "accepting clients", acceptor::accept(kv, seats, max_connections)),
            until(overdue, "HTTP", http::serve(http, node, stopping.clone())),
            until(stopped(), "waiting for signals", hear_signals(ears, signalled)),
        );
    }
}

/// Works until the end comes first.
async fn until(end: impl Future<Output = ()>, what: &str, work: impl Future<Output = io::Result<()>>) {
    tokio::select! {
        done = work => {
            if let Err(error) = done {
                tracing::error!(%error, "{what} ended");
            }
        }
        () = end => {}
    }
}

/// Where the process hears that it shall stop.
struct Ears {
    terminate: Signal,
    interrupt: Signal,
}

async fn hear_signals(mut ears: Ears, signalled: mpsc::Sender<()>) -> io::Result<()> {
    loop {
        tokio::select! {
            _ = ears.terminate.recv() => {}
            _ = ears.interrupt.recv() => {}
        }
        // Nobody listens any more once the node is being stopped.
        let _ = signalled.send(());
    }
}
