//! A node: its buckets, users and cluster map. A value without globals, so that several live in one process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ::cluster::Fence;
use ::cluster::state::Alternate;
use base::RateLimit;
use base::env::Env;
use base::planted::{self, Bug};
use engine::Bucket;
use parking_lot::{Mutex, RwLock};
use protocol::extras::ConfigVersion;

use crate::accounts::Accounts;
use crate::audit::AuditLog;
use crate::audit::record::Ends;
use crate::client_addresses::ClientAddresses;
use crate::cluster::buckets::StillJoining;
use crate::cluster::serving::is_a_clusters;
use crate::cluster::{Cluster, identity};
use crate::cluster_map::{BucketShape, ClusterMap, Layout, LayoutRefusal, NodeAddress};
use crate::config::{BucketSpec, ConnectionLimits};
use crate::connection::CloseReason;
use crate::connection_memory::ConnectionMemory;
use crate::counters::{AcceptCounters, Totals, WorkerCounters};
use crate::dcp::Registry;
use crate::doors::{Doors, Timer};
use crate::down::{Down, DownBuckets};
use crate::hosting::Host;
use crate::injections::Injections;
use crate::login_throttle::LoginThrottle;
use crate::long_work::Lanes;
use crate::news::{Announcer, Hearing};
use crate::node_buckets::{BucketError, Management};
use crate::replication::Replication;
use crate::slow::SlowLog;
use crate::stats::timings::TimesByBucket;
use crate::user::Users;

/// A bucket that the node serves.
pub struct Served {
    /// What it was asked to be.
    pub spec: BucketSpec,
    /// The bucket.
    pub bucket: Arc<Bucket>,
}

/// A node.
pub struct Node {
    env: Env,
    accounts: Accounts,
    /// Who did what.
    pub audit: Arc<AuditLog>,
    served: RwLock<BTreeMap<String, Served>>,
    /// Events that are logged seldom.
    events: Events,
    /// Buckets that it has and cannot serve.
    down: RwLock<DownBuckets>,
    cluster_map: RwLock<Arc<ClusterMap>>,
    address: NodeAddress,
    /// Where clients of another network reach it.
    alternate: RwLock<Option<Alternate>>,
    limits: ConnectionLimits,
    workers: Vec<Arc<WorkerCounters>>,
    /// What a test has injected.
    pub injections: Injections,
    /// How long requests take, by bucket.
    pub times: TimesByBucket,
    accepting: Arc<AcceptCounters>,
    connection_memory: Arc<ConnectionMemory>,
    lanes: Lanes,
    logins: LoginThrottle,
    /// Guards changes by the cluster; what the original starts with, too.
    control_token: AtomicU64,
    started_ns: u64,
    doors: Doors,
    streams: Arc<Registry>,
    /// What runs the buckets; nothing if none can come or go.
    host: Option<Host>,
    /// Held while buckets come, change or go; before every other lock.
    pub changing: Mutex<()>,
    /// Tells connections that they should look at the map and at their bucket.
    announcer: Announcer,
    /// Who decides which buckets there are, if it is not the node itself.
    management: RwLock<Option<Arc<dyn Management>>>,
    replication: Replication,
    /// When a cluster does not let the node serve.
    fence: Arc<Fence>,
    cluster: RwLock<Option<Weak<Cluster>>>,
    /// What it is called by who must not take it for another one; known once it has a folder.
    uuid: OnceLock<String>,
}

/// A login that failed.
pub struct FailedLogin<'a> {
    /// Who the client says that it is.
    pub user: &'a [u8],
    /// Both ends of its connection: of a cluster's nodes this one refused.
    pub ends: Ends,
    /// Over which protocol: `kv` or `http`.
    pub protocol: &'static str,
    /// The status that the client is told.
    pub status: &'a str,
    /// What it is told beside that, if anything.
    pub reference: Option<&'a str>,
}

/// Events that clients and damage can bring about again and again.
#[derive(Default)]
pub struct Events {
    /// Connections that were closed because of a client's mistake, by its kind.
    pub closed: [RateLimit; CloseReason::MISTAKES],
    /// Logins that failed.
    pub logins: RateLimit,
    /// Requests of clients whose certificate names a user that does not exist.
    pub unknown_certified: RateLimit,
    /// Damaged copies that could not be set aside.
    pub not_set_aside: RateLimit,
    /// Damaged buckets that are made again.
    pub made_again: RateLimit,
    /// Other nodes that are not asked to wait, as there is no thread for it.
    pub not_asked: RateLimit,
    /// Sockets of clients that could not be used.
    pub not_served: RateLimit,
    /// Requests over HTTP that failed on the node's side.
    pub http_failures: RateLimit,
    /// Operations that took long.
    pub slow: SlowLog,
    /// Where clients come from.
    pub clients: ClientAddresses,
}

impl Events {
    /// A client could not log in.
    pub fn login_failed(&self, login: &FailedLogin<'_>, now: Duration) {
        let user = format!("<ud>{}</ud>", login.user.escape_ascii());
        let FailedLogin { protocol, status, reference, .. } = *login;
        let of = |addr: Option<SocketAddr>| addr.map_or_else(|| "-".to_owned(), |addr| addr.to_string());
        let (node, peer) = (of(login.ends.local), of(login.ends.remote));
        if let Some(left_out) = self.logins.admit(now) {
            tracing::warn!(%user, peer, node, protocol, status, reference, left_out, "a login failed");
        } else {
            tracing::debug!(%user, peer, node, protocol, status, reference, "a login failed");
        }
    }

    /// A client asks for something as the user that its certificate names, and there is no such user: what it is told.
    pub fn unknown_certified(&self, name: &str, now: Duration) -> String {
        if let Some(left_out) = self.unknown_certified.admit(now) {
            let user = format!("<ud>{name}</ud>");
            tracing::warn!(%user, left_out, "a client's certificate names a user that does not exist");
        }
        format!(
            "The client's certificate names user {name:?}, which does not exist: make this user, or log in with name and \
             password"
        )
    }
}

/// What the token that guards changes by the cluster is until somebody sets it.
const FIRST_CONTROL_TOKEN: u64 = 0xdead_beef;

/// Notes that a bucket which should be here is down.
pub(crate) fn put_down(node: &Node, name: &str, down: Down) {
    node.down.write().insert(name.to_owned(), down);
}

impl Node {
    /// A node that serves `buckets` to `users` at `address`.
    pub fn new(
        env: Env,
        users: Users,
        buckets: Vec<Served>,
        address: NodeAddress,
        version: ConfigVersion,
        limits: ConnectionLimits,
        workers: Vec<Arc<WorkerCounters>>,
    ) -> Node {
        let (announcer, doors) = (Announcer::default(), Doors::closed());
        let connection_memory = Arc::new(ConnectionMemory::new(limits.memory_bytes));
        let accounts = Accounts::new(users);
        let shapes: Vec<BucketShape> = buckets.iter().map(shape_of).collect();
        workers.iter().enumerate().for_each(|(number, worker)| worker.set_number(number));
        Node {
            injections: Injections::default(),
            times: TimesByBucket::new(workers.len()),
            audit: Arc::new(AuditLog::new(env.clone(), Arc::clone(&connection_memory))),
            cluster_map: RwLock::new(Arc::new(ClusterMap::single_node(version, (&address, None), &shapes))),
            served: RwLock::new(
                buckets.into_iter().map(|served| (served.spec.name.clone(), served)).collect(),
            ),
            events: Events::default(),
            down: RwLock::default(),
            replication: Replication::new(
                env.clone(),
                address.name(),
                announcer.hearing(),
                Arc::clone(&connection_memory),
                Arc::clone(&doors.links),
                Arc::clone(accounts.node_logins()),
            ),
            accounts,
            address,
            alternate: RwLock::default(),
            limits,
            workers,
            accepting: Arc::default(),
            lanes: Lanes::new(0),
            logins: LoginThrottle::default(),
            connection_memory,
            control_token: AtomicU64::new(FIRST_CONTROL_TOKEN),
            started_ns: env.clock.monotonic_ns(),
            doors,
            streams: Arc::default(),
            host: None,
            changing: Mutex::default(),
            announcer,
            management: RwLock::default(),
            fence: Arc::new(Fence::open()),
            cluster: RwLock::default(),
            uuid: OnceLock::new(),
            env,
        }
    }

    /// The node with what runs its buckets, so that others can be made while it runs.
    pub fn hosting(self, host: Host) -> Node {
        let lanes = Lanes::new(self.workers.len().max(1));
        Node { host: Some(host), lanes, ..self }
    }

    /// The node with buckets that it cannot serve.
    pub fn with_down(self, down: DownBuckets) -> Node {
        Node { down: RwLock::new(down), ..self }
    }

    /// Buckets that the node has and cannot serve.
    pub fn down_buckets(&self) -> DownBuckets {
        self.down.read().clone()
    }

    /// Why a bucket that the node has is not served; nothing if it is, or there is none of this name.
    pub fn why_down(&self, name: &str) -> Option<String> {
        self.down.read().get(name).map(|down| down.reason.clone())
    }

    /// Whether a bucket is down because what is on disk of it cannot be believed.
    pub(crate) fn is_damaged(&self, name: &str) -> bool {
        self.down.read().get(name).is_some_and(|down| down.is_damage)
    }

    /// A bucket that was down is deleted.
    pub(crate) fn forget_down(&self, name: &str) {
        self.down.write().remove(name);
    }

    /// What runs its buckets.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Lets somebody else decide which buckets there are: whoever asks over HTTP is sent there.
    pub fn set_management(&self, management: Arc<dyn Management>) {
        *self.management.write() = Some(management);
    }

    /// Who decides which buckets there are.
    pub fn management(self: &Arc<Node>) -> Arc<dyn Management> {
        match self.management.read().clone() {
            Some(other) => other,
            None if is_a_clusters(self) && !planted::is(Bug::JoiningNodeDecides) => Arc::new(StillJoining),
            None => Arc::clone(self) as Arc<dyn Management>,
        }
    }

    /// Hears of new maps, of buckets that are gone, and of freezing.
    pub fn hearing(&self) -> Hearing {
        self.announcer.hearing()
    }

    /// Lets clients wait: what they send is left unread, connections stay open. For tests of applications.
    pub fn freeze(&self, is_frozen: bool) {
        self.announcer.freeze(is_frozen);
    }

    /// Lets all connections look at what is different.
    pub fn tell(&self) {
        self.announcer.tell();
    }

    /// Whether any client waits for a sync write.
    pub fn has_sync_writes(&self) -> bool {
        self.workers.iter().any(|worker| worker.has_sync_writes())
    }

    /// Cuts all clients at once, as if the process had been killed. For tests of applications.
    pub fn kill(&self) {
        self.announcer.kill();
    }

    /// The outside world as the node sees it.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The node with a way to the outside; it has none before.
    pub fn with_doors(self, doors: Doors) -> Node {
        let replication = self.replication.run_by(Arc::clone(&doors.links));
        Node { doors, replication, ..self }
    }

    /// The way to the outside.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }

    /// Events that are logged seldom.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Where waiting handlers get their time limits from.
    pub fn timer(&self) -> &dyn Timer {
        &*self.doors.timer
    }

    /// The connections that stream changes.
    pub fn streams(&self) -> &Arc<Registry> {
        &self.streams
    }

    /// The node, serving nothing but what this fence lets it.
    pub fn fenced_by(self, fence: Arc<Fence>) -> Node {
        Node { fence, ..self }
    }

    /// Whether and until when the node may serve what it is active for.
    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// The cluster that decides what the node serves, if there is one.
    pub fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.read().as_ref().and_then(Weak::upgrade)
    }

    /// From now on a cluster decides what the node serves.
    pub(crate) fn belongs_to(&self, cluster: &Arc<Cluster>) {
        *self.cluster.write() = Some(Arc::downgrade(cluster));
        // Nodes of an earlier version let the administrator in, which all nodes have.
        if let Some(user) = self.host().and_then(|host| host.config().users.first()) {
            let (name, password) = (user.name.clone(), user.password.clone());
            self.accounts().node_logins().set_administrator(name, password.into());
        }
    }

    /// The node's identity, kept with its data; empty if it has no folder.
    pub fn uuid(&self) -> &str {
        self.uuid.get().map_or("", String::as_str)
    }

    /// Reads the node's identity, or makes it.
    pub fn know_itself(&self) -> std::io::Result<()> {
        let uuid = identity::of_node(self)?;
        self.uuid.get_or_init(|| uuid);
        Ok(())
    }

    /// What of its buckets follows other nodes.
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// The users.
    pub fn users(&self) -> Arc<Users> {
        self.accounts.users()
    }

    /// Who they are, and where those are kept that were made while the node ran.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// A bucket.
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.served.read().get(name).map(|served| Arc::clone(&served.bucket))
    }

    /// All buckets with what they were asked to be, by name.
    pub fn buckets(&self) -> Vec<(BucketSpec, Arc<Bucket>)> {
        self.served.read().values().map(|served| (served.spec.clone(), Arc::clone(&served.bucket))).collect()
    }

    /// The names of all buckets.
    pub fn bucket_names(&self) -> Vec<String> {
        self.served.read().keys().cloned().collect()
    }

    /// The cluster map as it is now.
    pub fn cluster_map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.cluster_map.read())
    }

    /// Shows clients the manifests of the buckets as they are now, in a cluster map of the next revision.
    pub fn show_manifests(&self) {
        {
            let mut map = self.cluster_map.write();
            if !map.is_lone() {
                // The cluster's own map tells of manifests.
                return;
            }
            let version = map.version();
            *map = self.lone_map(ConfigVersion { revision: version.revision + 1, ..version });
        }
        self.announcer.tell();
    }

    /// Replaces the cluster map, and tells the connections that want to know. It must be newer than the present one;
    /// the map that a node made for itself gives way to any. From now on the node makes none itself.
    pub fn set_cluster_map(&self, layout: Layout) -> Result<(), LayoutRefusal> {
        let new = Arc::new(ClusterMap::new(layout)?);
        {
            let mut present = self.cluster_map.write();
            if !present.is_lone() && new.version() <= present.version() {
                return Err(LayoutRefusal::Stale(present.version()));
            }
            *present = new;
        }
        self.announcer.tell();
        Ok(())
    }

    /// Adds a bucket, or puts another description of one in its place.
    pub fn serve_bucket(&self, served: Served) {
        self.served.write().insert(served.spec.name.clone(), served);
    }

    /// Lets nobody find a bucket any more.
    pub fn forget_bucket(&self, name: &str) {
        let gone = self.served.write().remove(name);
        drop(gone);
        self.announcer.tell();
    }

    /// Makes a new map of a node alone; one that came from elsewhere stays.
    pub(crate) fn redraw_map(&self) -> Result<(), BucketError> {
        let version = self.cluster_map().version();
        if !self.cluster_map().is_lone() {
            return Ok(());
        }
        let revision = match &self.host {
            Some(host) => host.next_revision(&self.env)?,
            None => version.revision + 1,
        };
        let new = self.lone_map(ConfigVersion { revision, ..version });
        {
            let mut present = self.cluster_map.write();
            if present.is_lone() {
                *present = new;
            }
        }
        self.announcer.tell();
        Ok(())
    }

    /// Where the node is reached.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Where clients of another network reach the node; nothing if they do not.
    pub fn alternate(&self) -> Option<Alternate> {
        self.alternate.read().clone()
    }

    /// The map of a node that serves all of its buckets itself.
    fn lone_map(&self, version: ConfigVersion) -> Arc<ClusterMap> {
        let shapes: Vec<BucketShape> = self.served.read().values().map(shape_of).collect();
        Arc::new(ClusterMap::single_node(version, (&self.address, self.alternate()), &shapes))
    }

    /// Clients of another network reach the node here: maps say so from now on, and in a cluster those of all nodes soon.
    pub(crate) fn set_alternate(&self, alternate: Option<Alternate>) {
        *self.alternate.write() = alternate;
        {
            let mut map = self.cluster_map.write();
            if map.is_lone() {
                *map = self.lone_map(map.version());
            }
        }
        if let Some(cluster) = self.cluster() {
            cluster.address_has_changed();
        }
    }

    /// Bounds that protect the node from its clients.
    pub fn limits(&self) -> ConnectionLimits {
        self.limits
    }

    /// What all workers counted.
    pub fn totals(&self) -> Totals {
        Totals::of(crate::counters::of_all_threads(self))
    }

    /// What came of clients that wanted to connect.
    pub fn accepting(&self) -> &Arc<AcceptCounters> {
        &self.accepting
    }

    /// Where all that leaves its worker is done.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Who failed to log in.
    pub fn logins(&self) -> &LoginThrottle {
        &self.logins
    }

    /// What its connections hold.
    pub fn connection_memory(&self) -> &Arc<ConnectionMemory> {
        &self.connection_memory
    }

    /// Once a second: sees to it that connections do not hold too much.
    pub fn tick_connection_memory(&self, now_s: u64) {
        let quotas = self.served.read().values().map(|served| served.bucket.memory().quota_bytes()).sum();
        self.connection_memory.follow_quotas(quotas);
        self.connection_memory.tick(now_s);
    }

    /// What each worker counts.
    pub fn workers(&self) -> &[Arc<WorkerCounters>] {
        &self.workers
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Seconds since the node started.
    pub fn uptime_s(&self) -> u64 {
        self.env.clock.monotonic_ns().saturating_sub(self.started_ns) / 1_000_000_000
    }

    /// The token that guards changes by the cluster.
    pub fn control_token(&self) -> u64 {
        self.control_token.load(Ordering::Acquire)
    }

    /// Replaces the token, if it is `old` or `old` is not given; else returns what it is.
    pub fn set_control_token(&self, old: Option<u64>, new: u64) -> Result<(), u64> {
        match old {
            None => self.control_token.store(new, Ordering::Release),
            Some(old) => {
                self.control_token.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)?;
            }
        }
        Ok(())
    }
}

fn shape_of(served: &Served) -> BucketShape {
    let bucket = &served.bucket;
    BucketShape {
        name: bucket.name().to_owned(),
        uuid: bucket.uuid().to_owned(),
        kind: bucket.config().kind,
        backend: bucket.config().backend,
        vbuckets: bucket.vbuckets(),
        manifest_uid: served.bucket.collections().manifest().uid(),
        replicas: served.spec.replicas,
    }
}

/// A node with threads for long work, without anything else that is made when it is hosted.
#[cfg(test)]
pub(crate) fn with_long_work(node: Node, threads: usize) -> Node {
    Node { lanes: Lanes::new(threads), ..node }
}
