//! One node of a development cluster: what it is started with, and the life that it has at the moment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::cluster::Store;
use ::node::Node;
use ::node::cluster::Cluster;
use ::node::config::{Config, Settings};
use ::node::injections::Injection;
use ::node::let_through;
use base::env::Env;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use super::config::{DevConfig, DevError, MOST_OFFSET_S};
use super::disk::{Death, MortalDisk};
use super::doors::{Wires, world};
use super::gate::Gate;
use super::shared::Shared;
use server::{Failure, Server, serve};

/// Files of documents that each node may have open.
const OPEN_FILES: usize = 400;
/// How long a start waits for those who still look at the life before, and how often it counts them.
const STRAGGLERS_TIMEOUT: Duration = Duration::from_secs(10);
const STRAGGLERS_PAUSE: Duration = Duration::from_millis(1);
/// What to do with a node that does not run.
const NOT_RUNNING: &str = "does not run; start it first";

/// A node.
pub(super) struct DevNode {
    /// What people call it, from 1 on.
    pub(super) number: u16,
    env: Env,
    store: Arc<dyn Store>,
    wires: Arc<Wires>,
    /// By how many seconds its wall clock is off.
    offset_s: Arc<AtomicI64>,
    debugs_privileges: bool,
    is_cut_from_store: AtomicBool,
    /// Held while it is started, stopped or killed.
    changing: Mutex<()>,
    inner: Mutex<Inner>,
}

struct Inner {
    config: Config,
    /// Its identity, once that is known.
    uuid: Option<String>,
    life: Option<Life>,
    last: Weak<Node>,
}

/// From a start to a stop.
struct Life {
    server: Server,
    /// Nothing before it has joined.
    cluster: Option<Arc<Cluster>>,
    gate: Arc<Gate>,
    death: Death,
}

impl Life {
    /// Ends its membership; false if a thread of that panicked.
    fn leave(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.stop())
    }
}

/// A node at one moment.
pub(super) struct Look {
    pub(super) number: u16,
    pub(super) uuid: Option<String>,
    pub(super) kv: SocketAddr,
    pub(super) http: SocketAddr,
    /// Where it speaks TLS with clients: KV and HTTP.
    pub(super) tls: Option<(SocketAddr, SocketAddr)>,
    pub(super) data: PathBuf,
    pub(super) is_running: bool,
    pub(super) is_frozen: bool,
    pub(super) is_cut_from_nodes: bool,
    pub(super) is_cut_from_store: bool,
    /// Whether its lease is alive by its own clock, and the cluster lets it serve.
    pub(super) may_serve: bool,
    pub(super) clock_offset_s: i64,
    /// What was injected into its requests.
    pub(super) injections: Value,
}

impl DevNode {
    /// A node that does not run yet; the first one listens where the configuration says.
    pub(super) fn new(shared: &Shared, number: u16, is_first: bool) -> Result<DevNode, DevError> {
        let Shared { config, env, store, wires, .. } = shared;
        let free = |addr: SocketAddr| if is_first { addr } else { SocketAddr::new(addr.ip(), 0) };
        let settings = Settings {
            kv: Some(free(config.kv).to_string()),
            http: Some(free(config.http).to_string()),
            username: Some(config.username.clone()),
            password: Some(config.password.clone()),
            vbuckets: Some(config.vbuckets),
            threads: Some(config.threads),
            max_open_files: Some(OPEN_FILES.max(4 * config.buckets.len())),
            descriptors: config.descriptors_of_node(),
            tls_cert: config.tls.as_ref().map(|tls| tls.certificate.clone()),
            tls_key: config.tls.as_ref().map(|tls| tls.key.clone()),
            tls_ca: config.tls.as_ref().map(|tls| tls.ca.clone()),
            cluster_encryption: Some(config.cluster_encryption()),
            kv_tls: config.tls.as_ref().map(|_| free_port(config.kv)),
            http_tls: config.tls.as_ref().map(|_| free_port(config.http)),
            ..Settings::default()
        };
        let folder = config.data.join(folder_name(number));
        let node = Config::new(settings, folder, config.threads, String::new)?;
        let (recent_log, log_levels) = (config.recent_log.clone(), config.log_levels.clone());
        let audit = match config.debugs_privileges {
            true => vec![("auditdEnabled".to_owned(), "true".to_owned())],
            false => Vec::new(),
        };
        let buckets = config.buckets.clone();
        let node = Config { is_member: true, buckets, recent_log, log_levels, audit, ..node };
        let (env, offset_s) = world(env, number, wires);
        Ok(DevNode {
            number,
            env,
            store: Arc::clone(store),
            wires: Arc::clone(wires),
            offset_s,
            debugs_privileges: config.debugs_privileges,
            is_cut_from_store: AtomicBool::new(false),
            changing: Mutex::default(),
            inner: Mutex::new(Inner { config: node, uuid: None, life: None, last: Weak::new() }),
        })
    }

    /// Opens its files, and listens where it did before, or at free ports. It is no member yet.
    pub(super) fn open(&self) -> Result<(), DevError> {
        let (config, last) = {
            let inner = self.inner.lock();
            if inner.life.is_some() {
                return Err(self.is("runs already"));
            }
            (inner.config.clone(), inner.last.clone())
        };
        self.wait_for_end(&last);
        let death = Death::default();
        let disk = MortalDisk::new(Arc::clone(&self.env.disk), death.clone());
        let env = Env { disk: Arc::new(disk), ..self.env.clone() };
        let server = serve(config, env).map_err(|source| self.failed(source))?;
        if self.debugs_privileges {
            let_through::switch_on(server.node());
        }
        let gate = Arc::new(Gate::new(Arc::clone(&self.store)));
        gate.cut(self.is_cut_from_store.load(Ordering::SeqCst));
        let mut inner = self.inner.lock();
        (inner.config.kv_addr, inner.config.http_addr) = (server.kv_addr(), server.http_addr());
        inner.last = Arc::downgrade(server.node());
        if let (Some(tls), Some(kv), Some(http)) =
            (&mut inner.config.tls, server.kv_tls_addr(), server.http_tls_addr())
        {
            (tls.kv_addr, tls.http_addr) = (kv, http);
        }
        self.wires
            .listens(self.number, std::iter::once(server.kv_addr()).chain(server.kv_tls_addr()).collect());
        inner.life = Some(Life { server, cluster: None, gate, death });
        Ok(())
    }

    /// Makes it a member.
    pub(super) fn join(&self, config: &DevConfig) -> Result<(), DevError> {
        let (node, store) = {
            let inner = self.inner.lock();
            let life = inner.life.as_ref().ok_or_else(|| self.is(NOT_RUNNING))?;
            (Arc::clone(life.server.node()), Arc::clone(&life.gate) as Arc<dyn Store>)
        };
        let joined = Cluster::join(node, store, config.times.of_node());
        let cluster = joined.map_err(|source| DevError::Join { node: self.number, source })?;
        let mut inner = self.inner.lock();
        inner.uuid = Some(cluster.uuid().to_owned());
        // Whoever joins is the one that opened it, and nobody has stopped it in between.
        inner.life.as_mut().expect("it runs").cluster = Some(cluster);
        Ok(())
    }

    /// Starts it where it was.
    pub(super) fn start(&self, config: &DevConfig) -> Result<(), DevError> {
        let _changing = self.changing.lock();
        self.open()?;
        let joined = self.join(config);
        if joined.is_err() {
            self.end()?;
        }
        joined
    }

    /// Stops it cleanly: it leaves, answers what was asked, and writes what is not written. False if it did not run.
    pub(super) fn stop(&self) -> Result<bool, DevError> {
        let _changing = self.changing.lock();
        self.end()
    }

    fn end(&self) -> Result<bool, DevError> {
        let Some(life) = self.inner.lock().life.take() else { return Ok(false) };
        life.gate.freeze(false);
        life.server.node().announcer().freeze(false);
        // First, so that others do not wait for the lease to run out.
        let left = life.leave();
        life.server.stop().map_err(|source| self.failed(source))?;
        if left { Ok(true) } else { Err(self.failed(Failure::Panicked)) }
    }

    /// Ends it as if its process had been killed: what it has written stays, its lease runs out.
    pub(super) fn kill(&self) -> Result<(), DevError> {
        let _changing = self.changing.lock();
        let life = self.inner.lock().life.take().ok_or_else(|| self.is(NOT_RUNNING))?;
        life.death.comes();
        life.server.node().announcer().kill();
        life.gate.kill();
        let left = life.leave();
        life.server.kill().map_err(|source| self.failed(source))?;
        if left { Ok(()) } else { Err(self.failed(Failure::Panicked)) }
    }

    /// Lets it stand still, or go on.
    pub(super) fn freeze(&self, is_frozen: bool) -> Result<(), DevError> {
        let inner = self.inner.lock();
        let life = inner.life.as_ref().ok_or_else(|| self.is(NOT_RUNNING))?;
        match (life.gate.is_frozen(), is_frozen) {
            (true, true) => return Err(self.is("is frozen already; thaw it first")),
            (false, false) => return Err(self.is("is not frozen")),
            _ => {}
        }
        life.gate.freeze(is_frozen);
        life.server.node().announcer().freeze(is_frozen);
        Ok(())
    }

    /// Injects something into its requests, or takes back all that was injected.
    pub(super) fn inject(&self, injection: Option<Injection>) -> Result<(), DevError> {
        let inner = self.inner.lock();
        let life = inner.life.as_ref().ok_or_else(|| self.is(NOT_RUNNING))?;
        let injections = &life.server.node().injections;
        match injection {
            Some(injection) => injections.add(injection),
            None => injections.clear(),
        }
        Ok(())
    }

    /// Cuts it off from the coordination store, or lets it ask that again; this outlives a restart.
    pub(super) fn cut_from_store(&self, is_cut: bool) {
        let inner = self.inner.lock();
        self.is_cut_from_store.store(is_cut, Ordering::SeqCst);
        if let Some(life) = &inner.life {
            life.gate.cut(is_cut);
        }
    }

    /// Moves its wall clock, which may be off by so much and no more: times are counted in 64 bits of nanoseconds.
    pub(super) fn advance_clock(&self, seconds: i64) -> Result<(), DevError> {
        let offset_s = moved(self.offset_s.load(Ordering::Relaxed), seconds)?;
        self.offset_s.store(offset_s, Ordering::Relaxed);
        Ok(())
    }

    /// By how many seconds its wall clock would be off then.
    pub(super) fn clock_after(&self, seconds: i64) -> Result<i64, DevError> {
        moved(self.offset_s.load(Ordering::Relaxed), seconds)
    }

    /// The node, if it runs.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.inner.lock().life.as_ref().map(|life| Arc::clone(life.server.node()))
    }

    /// Its membership, if it runs and can do something about it.
    pub(super) fn member(&self) -> Option<Arc<Cluster>> {
        let inner = self.inner.lock();
        let able = inner.life.as_ref().filter(|life| !life.gate.is_frozen() && !life.gate.is_cut());
        able.and_then(|life| life.cluster.clone())
    }

    /// What it is now.
    pub(super) fn look(&self) -> Look {
        let inner = self.inner.lock();
        let life = inner.life.as_ref();
        let now_ns = self.env.clock.monotonic_ns();
        Look {
            number: self.number,
            uuid: inner.uuid.clone(),
            kv: inner.config.kv_addr,
            http: inner.config.http_addr,
            tls: inner.config.tls.as_ref().map(|tls| (tls.kv_addr, tls.http_addr)),
            data: inner.config.data_dir.clone(),
            is_running: life.is_some(),
            is_frozen: life.is_some_and(|life| life.gate.is_frozen()),
            is_cut_from_nodes: self.wires.is_cut(self.number),
            is_cut_from_store: self.is_cut_from_store.load(Ordering::SeqCst),
            may_serve: life.is_some_and(|life| life.server.node().fence().may_serve(now_ns)),
            clock_offset_s: self.offset_s.load(Ordering::Relaxed),
            injections: life.map_or_else(|| json!([]), |life| life.server.node().injections.to_json()),
        }
    }

    /// Whoever asked the life before for something holds it until that is answered, and its folder with it.
    fn wait_for_end(&self, last: &Weak<Node>) {
        let started = self.env.clock.monotonic();
        let (mutex, nobody) = (Mutex::new(()), Condvar::new());
        while last.strong_count() > 0 && self.env.clock.monotonic() - started < STRAGGLERS_TIMEOUT {
            nobody.wait_for(&mut mutex.lock(), STRAGGLERS_PAUSE);
        }
    }

    fn is(&self, is: &'static str) -> DevError {
        DevError::State { node: self.number, is }
    }

    fn failed(&self, source: Failure) -> DevError {
        DevError::Node { node: self.number, source }
    }
}

/// Where a clock is that is moved.
pub(super) fn moved(offset_s: i64, seconds: i64) -> Result<i64, DevError> {
    let may_be = |offset_s: &i64| (-MOST_OFFSET_S..=MOST_OFFSET_S).contains(offset_s);
    offset_s.checked_add(seconds).filter(may_be).ok_or(DevError::Clock)
}

/// A free port of the same host.
fn free_port(addr: SocketAddr) -> String {
    SocketAddr::new(addr.ip(), 0).to_string()
}

/// The folder of a node in that of the cluster.
pub(super) fn folder_name(number: u16) -> String {
    format!("node{number}")
}
