//! The life of a node: start, run, stop.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;

use ::node::address_places::AddressPlaces;
use ::node::cluster::membership;
use ::node::cluster_map::NodeAddress;
use ::node::config::{ClusterEncryption, Config};
use ::node::counters::WorkerCounters;
use ::node::data_dir::{DataDir, DataDirError};
use ::node::doors::Doors;
use ::node::host_failure::HostFailure;
use ::node::hosting::{CHANGES_BITS, Host, Opened};
use ::node::reload::{self, Reloaded};
use ::node::user::Users;
use ::node::{Node, at_rest};
use base::env::{Env, Task};
use cluster::Fence;
use parking_lot::Mutex;
use protocol::extras::ConfigVersion;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::acceptor::{self, Entrance};
use crate::check::check_addresses;
use crate::http;
use crate::inside::{self, Inner, OwnDoor};
use crate::links::RuntimeLinks;
use crate::peers::HttpPeers;
use crate::signals::{EarlySignals, Signal, SignalListener};
use crate::timer::RuntimeTimer;
use crate::tls::{PeerTls, Tls, TlsError};
use crate::traces;
use crate::watchdog::WatchedThread;
use crate::worker::Worker;

/// How long HTTP clients may take with their last answers when the node stops.
const HTTP_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// If no signal can arrive any more, that is a reason to stop, too.
const NO_MORE_SIGNALS: Signal = Signal::Stop("none: the thread that hears signals has ended");

/// Why a node did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The folder cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The folder belongs to a node of a cluster, and the node was started as one that decides itself what it serves.
    #[error(
        "{} belongs to a node of a cluster, which decides what the node serves: start it with --join \
         etcd://HOST:PORT/CLUSTER, or with join in the configuration file; to leave the cluster for good and serve the \
         copies that are here, start it once with --leave-cluster",
        .0.display()
    )]
    BelongsToCluster(PathBuf),
    /// A bucket cannot be opened or closed.
    #[error(transparent)]
    Bucket(#[from] HostFailure),
    /// An address cannot be listened at.
    #[error("cannot listen at {addr}: {source}; {}", instead_of(.source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration has an address twice.
    #[error(
        "address {0} is the same as another one of this node: give each of --kv, --http, --kv-tls and --http-tls another \
         port, and each address once"
    )]
    SameAddress(SocketAddr),
    /// Encrypted connections cannot be served.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// It could not be made what it shall be.
    #[error("{0}")]
    NotPrepared(String),
    /// A thread or a runtime could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// A thread ended in a way it must not.
    #[error("a thread of the node panicked")]
    Panicked,
}

impl Failure {
    /// Whether the configuration, or a file that it names, has to be changed first.
    pub fn is_configuration(&self) -> bool {
        match self {
            Failure::Tls(_) | Failure::SameAddress(_) => true,
            Failure::Bucket(failure) => {
                matches!(failure, HostFailure::Quota { .. } | HostFailure::Quotas { .. })
                    || matches!(failure, HostFailure::Keys(error) if error.is_configuration())
            }
            _ => false,
        }
    }
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
    plain: Plain,
    encrypted: Option<Encrypted>,
    all: Vec<SocketAddr>,
    data_dir: Arc<DataDir>,
    /// What the node goes by now.
    config: Mutex<Config>,
    stop: watch::Sender<bool>,
    signals: mpsc::Receiver<Signal>,
    control: Task,
    http: Task,
    workers: Vec<Task>,
    audit: Task,
    watched: Vec<Arc<WatchedThread>>,
}

/// Where encrypted connections are accepted.
struct Encrypted {
    tls: Arc<Tls>,
    kv_addr: SocketAddr,
    http_addr: SocketAddr,
}

/// Where connections without TLS are accepted: the first address of each kind; `None` if they are off.
#[derive(Clone, Copy)]
struct Plain {
    kv_addr: Option<SocketAddr>,
    http_addr: Option<SocketAddr>,
}

/// Where a node listens.
struct Listeners {
    /// For the binary protocol: as it is, and encrypted if it speaks TLS.
    kv: Vec<Entrance>,
    http: Vec<Entrance>,
    plain: Plain,
    encrypted: Option<Encrypted>,
    /// All addresses, those for KV first.
    all: Vec<SocketAddr>,
    /// What others are told: the first address, of those with TLS if there is no other.
    kv_addr: SocketAddr,
    http_addr: SocketAddr,
}

/// Listens at all of some addresses.
fn open_all(env: &Env, addrs: &[SocketAddr], tls: Option<&Arc<Tls>>) -> Result<Vec<Entrance>, Failure> {
    let listen = |addr| acceptor::listen(env, addr).map_err(|source| Failure::Listen { addr, source });
    addrs.iter().map(|addr| Ok(Entrance { listener: listen(*addr)?, tls: tls.cloned() })).collect()
}

/// The address of the first of some entrances.
fn first_of(entrances: &[Entrance]) -> io::Result<Option<SocketAddr>> {
    entrances.first().map(|entrance| entrance.listener.local_addr()).transpose()
}

/// Addresses without TLS as the level of encryption has them, each once: where a start listens.
pub fn plain_addrs(config: &Config, addrs: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let level = encryption_level(config);
    let mut all: Vec<SocketAddr> = Vec::new();
    for addr in addrs.into_iter().map(|addr| level.plain_addr(addr)) {
        // Two of different networks may have become the same one of loopback.
        if level != ClusterEncryption::Strict || !all.contains(&addr) {
            all.push(addr);
        }
    }
    all
}

impl Listeners {
    fn open(env: &Env, config: &Config) -> Result<Listeners, Failure> {
        let tls =
            config.tls.as_ref().map(|tls| Tls::load(env, tls, config.is_member).map(Arc::new)).transpose()?;
        if let Some(endpoint) = &config.trace_endpoint {
            traces::tls_of(env, endpoint)?;
        }
        check_addresses(config)?;
        let mut kv = open_all(env, &plain_addrs(config, config.plain_kv()), None)?;
        let mut http = open_all(env, &plain_addrs(config, config.plain_http()), None)?;
        let plain = Plain { kv_addr: first_of(&kv)?, http_addr: first_of(&http)? };
        let mut encrypted = None;
        if let (Some(config), Some(tls)) = (&config.tls, tls) {
            let kvs = open_all(env, &config.kv_addrs(), Some(&tls))?;
            let https = open_all(env, &config.http_addrs(), Some(&tls))?;
            let addrs = first_of(&kvs)?.zip(first_of(&https)?);
            encrypted = addrs.map(|(kv_addr, http_addr)| Encrypted { tls, kv_addr, http_addr });
            kv.extend(kvs);
            http.extend(https);
        }
        let nowhere = || io::Error::other("the configuration names no address to listen at");
        let (kv_addr, http_addr) = first_of(&kv)?.zip(first_of(&http)?).ok_or_else(nowhere)?;
        let all = kv.iter().chain(&http).map(|entrance| entrance.listener.local_addr());
        let all = all.collect::<io::Result<Vec<_>>>()?;
        Ok(Listeners { kv, http, plain, encrypted, all, kv_addr, http_addr })
    }
}

pub(crate) fn encryption_level(config: &Config) -> ClusterEncryption {
    config.tls.as_ref().map(|tls| tls.cluster_encryption).unwrap_or_default()
}

/// Leaves the cluster that the folder belongs to, if that is asked for; a node that does not join must not belong to one.
fn decide_membership(config: &Config, data_dir: &DataDir, env: &Env) -> Result<(), Failure> {
    let folder = data_dir.path();
    let failed = |source| DataDirError::Io {
        operation: "tell whether a cluster decides about",
        path: folder.to_owned(),
        source,
    };
    if config.leaves_cluster {
        membership::leave_cluster(env, folder).map_err(failed)?;
    }
    if !config.is_member && !membership::may_start_alone(env, folder).map_err(failed)? {
        return Err(Failure::BelongsToCluster(folder.to_owned()));
    }
    Ok(())
}

/// Where clients and other nodes reach the node.
fn reached_at(
    config: &Config,
    kv: SocketAddr,
    http: SocketAddr,
    encrypted: Option<(SocketAddr, SocketAddr)>,
) -> NodeAddress {
    let tls = encrypted.map(|(kv, _)| kv.ip());
    let host = host_told(kv.ip(), tls, encryption_level(config), config.is_member);
    let kv = SocketAddr::new(host, kv.port());
    let address = NodeAddress::new(config.advertise.as_deref(), kv, http);
    encrypted.iter().fold(address, |address, (kv, http)| address.with_tls(*kv, *http))
}

/// The host that clients are told without `--advertise`; an unspecified one means the address that each client came to.
fn host_told(plain: IpAddr, tls: Option<IpAddr>, level: ClusterEncryption, is_member: bool) -> IpAddr {
    match tls {
        // A strict node is reached by its ports for TLS alone.
        Some(tls) if level == ClusterEncryption::Strict => tls,
        // The ports without TLS are for this machine, those with TLS for others, too: no host would do for both.
        Some(tls) if plain.is_loopback() && !tls.is_loopback() && !is_member => {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        }
        // Other nodes come where documents go: to the ports without TLS, unless these are encrypted between nodes.
        Some(tls) if plain.is_loopback() && level.covers_documents() && !tls.is_unspecified() => tls,
        _ => plain,
    }
}

/// The host that a start with this configuration tells clients; `None` if each is told what it came to.
pub fn host_told_by(config: &Config) -> Option<String> {
    let encrypted = config.tls.as_ref().map(|tls| (tls.kv_addr, tls.http_addr));
    let first = |addrs: Vec<SocketAddr>| plain_addrs(config, addrs).first().copied();
    let kv = first(config.plain_kv()).or(encrypted.map(|(kv, _)| kv))?;
    let http = first(config.plain_http()).or(encrypted.map(|(_, http)| http))?;
    reached_at(config, kv, http, encrypted).host
}

/// Reads what was made while the node ran before: users, its address for other networks, the settings of the audit log.
fn read_kept(node: &Arc<Node>, config: &Config) {
    node.accounts().offer().set(config.sasl);
    node.accounts().read(node);
    node.read_alternate();
    ::node::audit::start::read_settings(node);
}

/// Starts a node: takes its folder, opens its buckets, and listens.
pub fn serve(config: Config, env: Env) -> Result<Server, Failure> {
    serve_prepared(config, env, |_| Ok(()))
}

/// The same; before the first client is served `prepare` makes of the node what it shall be.
pub fn serve_prepared(
    config: Config,
    env: Env,
    prepare: impl FnOnce(&Arc<Node>) -> Result<(), Failure>,
) -> Result<Server, Failure> {
    let begun = env.clock.monotonic();
    let hearing = ControlRuntime::new(&env)?;
    let data_dir = Arc::new(DataDir::take(&config.data_dir, &env)?);
    let env = at_rest::of_node(&env, &config, &data_dir)?;
    // Before anything is changed on the disk: a start that fails here has opened no bucket.
    let listeners = Listeners::open(&env, &config)?;
    decide_membership(&config, &data_dir, &env)?;
    if let Some(lowered) = &config.lowered {
        tracing::warn!(
            event = "open_files_limit_low", %lowered,
            "the limit of open files (ulimit -n, LimitNOFILE) is too low for what was asked"
        );
    }
    let revision = data_dir.next_revision(&env)?;
    let (host, opened) = Host::open(config.clone(), Arc::clone(&data_dir), &env)?;
    let (kv_addr, http_addr) = (listeners.kv_addr, listeners.http_addr);
    let encrypted = listeners.encrypted.as_ref();
    let peer_tls = PeerTls::new(encryption_level(&config), encrypted.map(|at| Arc::clone(&at.tls)));
    let encrypted = encrypted.map(|at| (at.kv_addr, at.http_addr));
    let address = reached_at(&config, kv_addr, http_addr, encrypted);
    let Opened { served: buckets, down } = host.start_all(opened, &env);
    let counters: Vec<_> = (0..config.threads).map(|_| Arc::new(WorkerCounters::default())).collect();
    let node = Node::new(
        env.clone(),
        Users::hashed(&config.users, config.hashing, &*env.random),
        buckets,
        address,
        ConfigVersion { epoch: 1, revision: revision << CHANGES_BITS },
        config.limits,
        counters.clone(),
    )
    .with_doors(doors(&peer_tls));
    let node = if config.is_member { node.fenced_by(Arc::new(Fence::closed())) } else { node };
    let node = Arc::new(node.hosting(host, down));
    let data = Arc::clone(&data_dir);
    let server = start_threads(&node, (listeners, hearing), peer_tls, config, data, counters, prepare);
    match &server {
        Ok(_) => log_start(&node, &data_dir, env.clock.monotonic() - begun),
        Err(_) => close_again(&node),
    }
    server
}

/// Closes the buckets of a start that fails, so that it is no crash to them.
fn close_again(node: &Node) {
    let host = node.host().expect("a server's node runs its buckets");
    // What fails is logged, bucket by bucket.
    let _ = host.close(&node.buckets());
}

/// Makes of a node what it shall be, and starts the threads that serve clients.
fn start_threads(
    node: &Arc<Node>,
    (listeners, hearing): (Listeners, ControlRuntime),
    peer_tls: PeerTls,
    config: Config,
    data_dir: Arc<DataDir>,
    counters: Vec<Arc<WorkerCounters>>,
    prepare: impl FnOnce(&Arc<Node>) -> Result<(), Failure>,
) -> Result<Server, Failure> {
    node.know_itself().map_err(|error| Failure::NotPrepared(format!("the node's identity: {error}")))?;
    read_kept(node, &config);
    node.events().slow.limits.follow(&config.slow_limits);
    prepare(node)?;
    ::node::migration::resume_all(node)?;
    let audit = node.audit.start()?;
    let started = counters.into_iter().enumerate().map(|(at, counters)| {
        let watched = WatchedThread::new(&format!("worker-{at}"));
        let (worker, thread) = Worker::start(at, node.clone(), counters, Arc::clone(&watched))?;
        Ok((worker, (thread, watched)))
    });
    let (seats, workers): (Vec<_>, Vec<_>) = started.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    let (workers, mut watched): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
    let (of_control, of_http) = (WatchedThread::new("control"), WatchedThread::new("http"));
    watched.extend([Arc::clone(&of_control), Arc::clone(&of_http)]);
    let (stop, stopping) = watch::channel(false);
    let (signalled, signals) = mpsc::channel();
    let Listeners { kv, http, plain, encrypted, all, kv_addr, http_addr } = listeners;
    let (kv_door, inner) = OwnDoor::of(plain.kv_addr);
    let web = HttpThread {
        node: node.clone(),
        entrances: http,
        peer_tls,
        kv_door,
        stopping: stopping.clone(),
        watched: of_http,
    };
    let tls = encrypted.as_ref().map(|encrypted| Arc::clone(&encrypted.tls));
    let control = Control {
        node: node.clone(),
        entrances: kv,
        inner,
        tls,
        seats,
        stopping,
        signalled,
        watched: of_control,
    };
    let (control, http) = (control.start(hearing)?, web.start()?);
    Ok(Server {
        node: Arc::clone(node),
        kv_addr,
        http_addr,
        plain,
        encrypted,
        all,
        data_dir,
        config: Mutex::new(config),
        stop,
        signals,
        control,
        http,
        workers,
        audit,
        watched,
    })
}

/// What a node reaches through the runtime and sockets.
fn doors(tls: &PeerTls) -> Doors {
    Doors {
        timer: Arc::new(RuntimeTimer),
        peers: Arc::new(HttpPeers::new(tls.clone())),
        links: Arc::new(RuntimeLinks::new(tls.clone())),
        protection: Arc::new(tls.clone()),
    }
}

fn log_start(node: &Node, data_dir: &DataDir, took: Duration) {
    tracing::info!(
        event = "node_started",
        version = env!("CARGO_PKG_VERSION"),
        data = %data_dir.path().display(),
        buckets = node.bucket_names().join(" "),
        down = node.served().down().len(),
        took_ms = took.as_millis() as u64,
        "started"
    );
}

impl Server {
    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Where clients connect to: with TLS if that is the only way.
    pub fn kv_addr(&self) -> SocketAddr {
        self.kv_addr
    }

    /// Where HTTP is served: with TLS if that is the only way.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// All addresses at which it listens: for KV, then for HTTP, of each those without TLS first.
    pub fn listens_at(&self) -> &[SocketAddr] {
        &self.all
    }

    /// Where the data are.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.path().to_owned()
    }

    /// The threads that serve clients, for a watchdog.
    pub fn watched(&self) -> Vec<Arc<WatchedThread>> {
        self.watched.clone()
    }

    /// The line that says that the node can be used.
    pub fn ready_line(&self) -> String {
        let encrypted = self.encrypted.as_ref().map_or_else(String::new, |encrypted| {
            format!(" kvs={} https={}", encrypted.kv_addr, encrypted.http_addr)
        });
        let data = self.data_dir.path().display();
        let shown = |addr: Option<SocketAddr>| addr.map_or_else(|| "off".to_owned(), |addr| addr.to_string());
        let (kv, http) = (shown(self.plain.kv_addr), shown(self.plain.http_addr));
        format!("ready kv={kv} http={http}{encrypted} data={data}")
    }

    /// Where clients connect to with TLS; nothing if there is none.
    pub fn kv_tls_addr(&self) -> Option<SocketAddr> {
        self.encrypted.as_ref().map(|encrypted| encrypted.kv_addr)
    }

    /// Where HTTP is served with TLS; nothing if there is none.
    pub fn http_tls_addr(&self) -> Option<SocketAddr> {
        self.encrypted.as_ref().map(|encrypted| encrypted.http_addr)
    }

    /// A configuration that was read again is not valid, and changes nothing.
    pub fn reload_refused(&self) {
        reload::record_refused(&self.node);
    }

    /// Has the node go by a configuration that was read again, as far as that is possible while it runs. Blocks while
    /// the disk works.
    pub fn reload(&self, config: Config) -> Reloaded {
        self.reload_beside(config, Reloaded::default())
    }

    /// Why the keys of a configuration that was read again cannot be taken; `None` if they can.
    pub fn why_not_keys(&self, config: &Config) -> Option<String> {
        reload::why_not_keys(&self.config.lock(), config)
    }

    /// The same, with what came of parts of the configuration that the node does not know.
    pub fn reload_beside(&self, config: Config, beside: Reloaded) -> Reloaded {
        let (env, asked) = (self.node.env(), config.tls.clone());
        let mut told = reload::reload(&self.node, &mut self.config.lock(), config);
        told.taken.splice(0..0, beside.taken);
        told.waiting.extend(beside.waiting);
        told.refused.extend(beside.refused);
        if let (Some(encrypted), Some(asked)) = (&self.encrypted, asked) {
            let overruled = encrypted.tls.overruled(&asked);
            match encrypted.tls.reload(env, &asked) {
                Ok(true) => told.taken.push(
                    "certificate, key, CAs or other settings of TLS (tls-...), for new connections"
                        .to_owned(),
                ),
                Ok(false) => {}
                Err(error) => {
                    told.refused.push(format!("certificate and key, which stay as they were: {error}"))
                }
            }
            let to_no_effect = |name| format!("{name}: what was set over HTTP counts over it");
            told.refused.extend(overruled.into_iter().map(to_no_effect));
        }
        reload::record(&self.node, &told);
        told
    }

    /// Waits until a signal asks something of the process.
    pub fn next_signal(&self) -> Signal {
        self.signals.recv().unwrap_or(NO_MORE_SIGNALS)
    }

    /// The same, but not for longer than this; nothing if there is none until then.
    pub fn signal_within(&self, at_most: Duration) -> Option<Signal> {
        match self.signals.recv_timeout(at_most) {
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            heard => Some(heard.unwrap_or(NO_MORE_SIGNALS)),
        }
    }

    /// Stops: takes no more clients, answers what was asked, writes what is not written yet, and notes that the stop
    /// was clean.
    ///
    /// # Errors
    ///
    /// What could not be done for a thread or a bucket; everything else is done all the same.
    pub fn stop(self) -> Result<(), Failure> {
        self.node.changing.stop();
        self.node.announcer().freeze(false);
        let node = Arc::clone(&self.node);
        let begun = node.env().clock.monotonic();
        let ended = self.end_threads();
        // The one change of buckets that is under way; those behind it give up.
        let _changing = node.changing.wait_for_end();
        let host = node.host().expect("a server's node runs its buckets");
        let closed = host.close(&node.buckets()).map_err(Failure::from);
        // Last: its disk may hang, and what clients were told is on record without it.
        let stopped = closed.and(ended.end_audit(&node));
        let took_ms = (node.env().clock.monotonic() - begun).as_millis() as u64;
        match &stopped {
            Ok(()) => tracing::info!(event = "node_stopped", took_ms, "stopped"),
            Err(error) => {
                tracing::error!(event = "node_stopped_uncleanly", took_ms, %error, "stopped, but not cleanly")
            }
        }
        stopped
    }

    /// Ends as if the process had been killed: clients are cut, nothing more is answered or written. The disk that the
    /// node was started with must have stopped to answer: what was begun is not finished.
    pub fn kill(self) -> Result<(), Failure> {
        self.node.changing.stop();
        self.node.announcer().kill();
        let node = Arc::clone(&self.node);
        let ended = self.end_threads();
        let _changing = node.changing.wait_for_end();
        let host = node.host().expect("a server's node runs its buckets");
        host.abandon(&node.buckets())?;
        ended.end_audit(&node)
    }

    /// Takes no more clients, and ends the threads that serve them: all of them, whatever became of one.
    fn end_threads(self) -> EndedThreads {
        self.stop.send_replace(true);
        let threads = [self.control, self.http].into_iter().chain(self.workers);
        let panicked = threads.map(Task::join).filter(|sound| !sound).count();
        self.node.lanes().wait_until_idle();
        let are_left_sound = self.node.streams().join_rollbacks();
        let are_sound = self.node.replication().stop() && are_left_sound && panicked == 0;
        EndedThreads { are_sound, audit: self.audit }
    }
}

/// The threads that serve have ended; the one that writes the audit log is left.
struct EndedThreads {
    are_sound: bool,
    audit: Task,
}

impl EndedThreads {
    /// Writes the rest of the audit log, and ends its thread; an error if one of all these threads panicked.
    fn end_audit(self, node: &Node) -> Result<(), Failure> {
        node.audit.stop();
        if self.audit.join() && self.are_sound { Ok(()) } else { Err(Failure::Panicked) }
    }
}

/// The thread that accepts clients and hears signals.
struct Control {
    node: Arc<Node>,
    entrances: Vec<Entrance>,
    /// What the node itself connects with, if it has no port without TLS.
    inner: Option<Inner>,
    tls: Option<Arc<Tls>>,
    seats: Vec<Worker>,
    stopping: watch::Receiver<bool>,
    signalled: mpsc::Sender<Signal>,
    watched: Arc<WatchedThread>,
}

/// What the thread runs on, made at the beginning of a start for the signals that come meanwhile.
struct ControlRuntime {
    runtime: Runtime,
    early: EarlySignals,
}

impl ControlRuntime {
    fn new(env: &Env) -> io::Result<ControlRuntime> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let early = {
            let _inside = runtime.enter();
            EarlySignals::new(env)?
        };
        Ok(ControlRuntime { runtime, early })
    }
}

impl Control {
    fn start(self, hearing: ControlRuntime) -> io::Result<Task> {
        let ControlRuntime { runtime, early } = hearing;
        // Before a client is told that the node is ready: one that asks it to stop ends the process uncleanly until then.
        let env = self.node.env().clone();
        if let Some(tls) = &self.tls {
            tls.note_end(&self.node);
        }
        let signals = {
            let _inside = runtime.enter();
            SignalListener::new(early)?
        };
        env.spawn.spawn("control", Box::new(move || runtime.block_on(self.run(signals))))
    }

    async fn run(self, signals: SignalListener) {
        let Control { node, entrances, inner, tls, seats, stopping, signalled, watched } = self;
        let (limits, accepting) = (node.limits(), Arc::clone(node.workers().accepting()));
        let places = Arc::new(AddressPlaces::new(limits.connections_per_address));
        let stopped = || stopped(&stopping);
        let clients = entrances.into_iter().map(|entrance| {
            let what =
                if entrance.tls.is_some() { "accepting clients with TLS" } else { "accepting clients" };
            let accept = acceptor::accept(entrance, &seats, &limits, &places, &accepting);
            Box::pin(until(stopped(), what, accept)) as Pin<Box<dyn Future<Output = ()> + '_>>
        });
        let inner = inner.map(|inner| inside::accept(inner, &seats, &places));
        let follow = tls.map(|tls| {
            let (env, node) = (node.env().clone(), Arc::clone(&node));
            async move {
                tls.follow_files(env, node).await;
                Ok(())
            }
        });
        tokio::join!(
            all(clients.collect()),
            until(stopped(), "accepting the node itself", or_pending(inner)),
            until(stopped(), "following certificates", or_pending(follow)),
            until(stopped(), "waiting for signals", signals.hear(signalled)),
            until(stopped(), "answering the watchdog", answer(&watched, &node)),
        );
        // Here the workers' seats are dropped, and with them the workers end.
    }
}

/// The thread that serves HTTP: however long it works on an answer, clients of the KV protocol are accepted.
struct HttpThread {
    node: Arc<Node>,
    entrances: Vec<Entrance>,
    peer_tls: PeerTls,
    kv_door: OwnDoor,
    stopping: watch::Receiver<bool>,
    watched: Arc<WatchedThread>,
}

impl HttpThread {
    fn start(self) -> io::Result<Task> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let env = self.node.env().clone();
        env.spawn.spawn("http", Box::new(move || runtime.block_on(self.run())))
    }

    async fn run(self) {
        let HttpThread { node, entrances, peer_tls, kv_door, stopping, watched } = self;
        let overdue = async {
            stopped(&stopping).await;
            tokio::time::sleep(HTTP_DRAIN_TIMEOUT).await;
        };
        let answering = answer(&watched, &node);
        let serving = http::serve(entrances, peer_tls, Arc::clone(&node), kv_door, stopping.clone());
        // The one that ends first ends both, and only serving ends.
        let both = async {
            tokio::select! { served = serving => served, told = answering => told }
        };
        until(overdue, "HTTP", both).await;
    }
}

/// Answers the watchdog; never ends.
async fn answer(watched: &WatchedThread, node: &Node) -> io::Result<()> {
    watched.answer(node.env()).await;
    Ok(())
}

/// Ready when the node stops.
fn stopped(stopping: &watch::Receiver<bool>) -> impl Future<Output = ()> + use<> {
    let mut stopping = stopping.clone();
    // An error means that the thread that could stop the node is gone.
    async move { drop(stopping.wait_for(|stop| *stop).await) }
}

/// What there is to be done; if there is nothing, that never ends.
async fn or_pending<T>(work: Option<impl Future<Output = T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Works on all of them until each has ended.
async fn all(mut works: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        works.retain_mut(|work| work.as_mut().poll(cx).is_pending());
        if works.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Works until the end comes first.
async fn until(end: impl Future<Output = ()>, what: &str, work: impl Future<Output = io::Result<()>>) {
    tokio::select! {
        done = work => {
            if let Err(error) = done {
                tracing::error!(event = "service_ended", %error, "{what} ended");
            }
        }
        () = end => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_a_host_that_they_reach() {
        let [here, beyond, any] =
            ["127.0.0.1", "192.0.2.2", "0.0.0.0"].map(|ip| ip.parse().expect("an address"));
        use ClusterEncryption::{All, Control, Off, Strict};
        for (plain, tls, level, is_member, told) in [
            (here, None, Off, false, here),
            (here, Some(here), Off, false, here),
            (beyond, Some(beyond), Off, false, beyond),
            (here, Some(beyond), Off, false, any),
            (here, Some(any), Off, false, any),
            (here, Some(beyond), Off, true, here),
            (here, Some(beyond), Control, true, here),
            (here, Some(beyond), All, true, beyond),
            (here, Some(any), All, true, here),
            (here, Some(beyond), Strict, true, beyond),
            (beyond, Some(here), All, true, beyond),
        ] {
            assert_eq!(
                host_told(plain, tls, level, is_member),
                told,
                "{plain} {tls:?} {level:?} {is_member}"
            );
        }
    }
}
