//! A node: its buckets, users and cluster map. A value without globals, so that several live in one process.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ::cluster::Fence;
use base::RateLimit;
use base::env::Env;
use engine::Bucket;
use parking_lot::RwLock;
use protocol::extras::ConfigVersion;

use crate::accounts::Accounts;
use crate::audit::AuditLog;
use crate::audit::record::Ends;
use crate::changing::Changing;
use crate::client_addresses::ClientAddresses;
use crate::close_reason::CloseLimits;
use crate::cluster_map::{ClusterMap, NodeAddress};
use crate::config::{BucketSpec, ConnectionLimits};
use crate::connection_memory::ConnectionMemory;
use crate::counters::{Totals, WorkerCounters, Workers};
use crate::dcp::Registry;
use crate::doors::Doors;
use crate::down::DownBuckets;
use crate::hosting::Host;
use crate::injections::Injections;
use crate::login_throttle::LoginThrottle;
use crate::long_work::Lanes;
use crate::management::Management;
use crate::news::Announcer;
use crate::node_map::NodeMap;
use crate::privilege_debug::PrivilegeDebug;
use crate::replication::Replication;
use crate::served::{Served, ServedBuckets};
use crate::slow::SlowLog;
use crate::stats::timings::TimesByBucket;
use crate::user::Users;
use crate::user_data::UserData;

/// A membership in a cluster, which knows its node. The node keeps it without its type; `Node::cluster`, beside the type,
/// gives it back.
pub(crate) type AnyMembership = dyn Any + Send + Sync;

/// A node.
pub struct Node {
    env: Env,
    accounts: Accounts,
    /// Who did what.
    pub audit: Arc<AuditLog>,
    served: Arc<ServedBuckets>,
    /// Events that are logged seldom.
    events: Events,
    map: NodeMap,
    limits: ConnectionLimits,
    workers: Workers,
    /// What a test has injected.
    pub injections: Injections,
    /// Whether a development cluster lets users do what they lack privileges for.
    pub privilege_debug: PrivilegeDebug,
    /// How long requests take, by bucket.
    pub times: TimesByBucket,
    connection_memory: Arc<ConnectionMemory>,
    lanes: Lanes,
    /// Who failed to log in.
    pub logins: LoginThrottle,
    /// Guards changes by the cluster.
    pub control_token: ControlToken,
    started_ns: u64,
    /// When that was by the clock, in seconds since 1970: it stays what it was when the clock is set.
    pub(crate) started_unix_s: u32,
    doors: Doors,
    streams: Arc<Registry>,
    /// What runs the buckets; nothing if none can come or go.
    host: Option<Host>,
    /// Held while buckets come, change or go; before every other lock.
    pub changing: Changing,
    /// Tells connections that they should look at the map and at their bucket.
    announcer: Arc<Announcer>,
    /// Who decides which buckets there are, if it is not the node itself.
    pub(crate) management: RwLock<Option<Arc<dyn Management>>>,
    replication: Replication,
    /// When a cluster does not let the node serve.
    fence: Arc<Fence>,
    /// The membership by which a cluster decides what the node serves, if there is one.
    pub(crate) membership: RwLock<Option<Weak<AnyMembership>>>,
    /// What it is called by who must not take it for another one; known once it has a folder.
    pub(crate) uuid: OnceLock<String>,
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
    /// Why no password was looked at; `None` if one was, and is wrong.
    pub reason: Option<&'static str>,
    /// The mechanism that the client asked for, if that is the reason.
    pub mechanism: Option<&'a str>,
}

/// Events that clients and damage can bring about again and again.
#[derive(Default)]
pub struct Events {
    /// Connections that were closed because of a client's mistake, by its reason.
    pub closed: CloseLimits,
    /// Logins that failed.
    pub logins: RateLimit,
    /// Those of them over HTTP: KV counts by its answers.
    pub http_logins_failed: AtomicU64,
    /// Requests of clients whose certificate names a user that does not exist.
    pub unknown_certified: RateLimit,
    /// Logins of users whom this node may not know well enough.
    pub not_let_in: RateLimit,
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
        let user = UserData(login.user.escape_ascii());
        let FailedLogin { protocol, status, reference, reason, mechanism, .. } = *login;
        let of = |addr: Option<SocketAddr>| addr.map_or_else(|| "-".to_owned(), |addr| addr.to_string());
        let (node, peer) = (of(login.ends.local), UserData(of(login.ends.remote)));
        if let Some(left_out) = self.logins.admit(now) {
            tracing::warn!(
                event = "login_failed", %user, %peer, node, protocol, status, reference, reason, mechanism, left_out,
                "a login failed"
            );
        } else {
            tracing::debug!(
                %user, %peer, node, protocol, status, reference, reason, mechanism, "a login failed"
            );
        }
    }

    /// A client asks for something as the user that its certificate names, and there is no such user: what it is told.
    pub fn unknown_certified(&self, name: &str, now: Duration) -> String {
        if name.is_empty() {
            return self.nameless_certificate(now);
        }
        if let Some(left_out) = self.unknown_certified.admit(now) {
            let user = UserData(name);
            tracing::warn!(
                event = "certificate_user_unknown", %user, left_out,
                "a client's certificate names a user that does not exist"
            );
        }
        format!(
            "The client's certificate names user {name:?}, which does not exist: make this user, or log in with name and \
             password"
        )
    }

    /// The same where no rule finds a name.
    fn nameless_certificate(&self, now: Duration) -> String {
        if let Some(left_out) = self.unknown_certified.admit(now) {
            tracing::warn!(
                event = "certificate_names_no_user",
                left_out,
                "no rule of tls-client-user finds the name of a user in a client's certificate"
            );
        }
        "No rule of tls-client-user finds the name of a user in the client's certificate: give the client another one, change \
         the rules (/settings/clientCertAuth tells them), or log in with name and password"
            .to_owned()
    }
}

/// What the token that guards changes by the cluster is until somebody sets it, as in the original.
const FIRST_CONTROL_TOKEN: u64 = 0xdead_beef;

/// The token that guards changes by the cluster.
pub struct ControlToken(AtomicU64);

impl Default for ControlToken {
    fn default() -> ControlToken {
        ControlToken(AtomicU64::new(FIRST_CONTROL_TOKEN))
    }
}

impl ControlToken {
    /// What it is.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces it, if it is `old` or `old` is not given; else returns what it is.
    pub fn replace(&self, old: Option<u64>, new: u64) -> Result<(), u64> {
        match old {
            None => self.0.store(new, Ordering::Release),
            Some(old) => {
                self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)?;
            }
        }
        Ok(())
    }
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
        let (announcer, doors) = (Arc::new(Announcer::default()), Doors::closed());
        let connection_memory = Arc::new(ConnectionMemory::new(limits.memory_bytes));
        let logins = LoginThrottle::new(users.secret_for(b"failed logins"));
        let accounts = Accounts::new(users);
        let served = Arc::new(ServedBuckets::new(buckets));
        let map = NodeMap::new(version, address, &served, &announcer);
        Node {
            injections: Injections::default(),
            privilege_debug: PrivilegeDebug::default(),
            times: TimesByBucket::new(workers.len()),
            audit: Arc::new(AuditLog::new(env.clone(), Arc::clone(&connection_memory))),
            events: Events::default(),
            replication: Replication::new(
                env.clone(),
                map.address().name(),
                announcer.hearing(),
                Arc::clone(&connection_memory),
                Arc::clone(&doors.links),
                Arc::clone(accounts.node_logins()),
            ),
            accounts,
            served,
            map,
            limits,
            workers: Workers::new(workers),
            lanes: Lanes::new(0),
            logins,
            connection_memory,
            control_token: ControlToken::default(),
            started_ns: env.clock.monotonic_ns(),
            started_unix_s: env.clock.unix_s(),
            doors,
            streams: Arc::default(),
            host: None,
            changing: Changing::default(),
            announcer,
            management: RwLock::default(),
            fence: Arc::new(Fence::open()),
            membership: RwLock::default(),
            uuid: OnceLock::new(),
            env,
        }
    }

    /// The node with what runs its buckets, so that others can be made while it runs, and with those that it cannot serve.
    pub fn hosting(self, host: Host, down: DownBuckets) -> Node {
        self.served.set_down(down);
        let lanes = Lanes::new(self.workers.threads().max(1));
        Node { host: Some(host), lanes, ..self }
    }

    /// The buckets that it serves, and those that it cannot.
    pub fn served(&self) -> &ServedBuckets {
        &self.served
    }

    /// What runs its buckets.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Tells connections of new maps, of buckets that are gone, and of freezing.
    pub fn announcer(&self) -> &Announcer {
        &self.announcer
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

    /// From now on a cluster decides what the node serves, and which buckets there are: requests over HTTP go there.
    pub(crate) fn belongs_to(&self, membership: Weak<AnyMembership>, management: Arc<dyn Management>) {
        *self.membership.write() = Some(membership);
        *self.management.write() = Some(management);
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

    /// What of its buckets follows other nodes.
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// The users, and where those are kept that were made while the node ran.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// A bucket.
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.served.get(name)
    }

    /// All buckets with what they were asked to be, by name.
    pub fn buckets(&self) -> Vec<(BucketSpec, Arc<Bucket>)> {
        self.served.all()
    }

    /// The names of all buckets.
    pub fn bucket_names(&self) -> Vec<String> {
        self.served.names()
    }

    /// The cluster map as it is now.
    pub fn cluster_map(&self) -> Arc<ClusterMap> {
        self.map.now()
    }

    /// The cluster map, and what a node alone makes it of.
    pub fn map(&self) -> &NodeMap {
        &self.map
    }

    /// Where the node is reached.
    pub fn address(&self) -> &NodeAddress {
        self.map.address()
    }

    /// Bounds that protect the node from its clients.
    pub fn limits(&self) -> ConnectionLimits {
        self.limits
    }

    /// What all workers counted.
    pub fn totals(&self) -> Totals {
        Totals::of(of_all_threads(self))
    }

    /// Where all that leaves its worker is done.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// What its connections hold.
    pub fn connection_memory(&self) -> &Arc<ConnectionMemory> {
        &self.connection_memory
    }

    /// What each worker counts, and what came of clients that wanted to connect.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Seconds since the node started.
    pub fn uptime_s(&self) -> u64 {
        self.env.clock.monotonic_ns().saturating_sub(self.started_ns) / 1_000_000_000
    }
}

/// A node with threads for long work, without anything else that is made when it is hosted.
#[cfg(test)]
pub(crate) fn with_long_work(node: Node, threads: usize) -> Node {
    Node { lanes: Lanes::new(threads), ..node }
}

/// What each thread of a node counts that handles requests.
pub fn of_all_threads(node: &Node) -> impl Iterator<Item = &WorkerCounters> + Clone {
    node.workers().all().iter().chain(node.lanes().counters()).map(|counters| &**counters)
}

/// Commands whose longest turn at a worker of this node took a millisecond or more, and that turn in nanoseconds.
pub fn longest_turns(node: &Node) -> impl Iterator<Item = (&'static str, u64)> {
    (0..=u8::MAX).filter_map(|opcode| {
        let longest_ns = node.workers().all().iter().map(|worker| worker.longest_turn_with_ns(opcode)).max();
        Some((protocol::opcode::name(opcode)?, longest_ns.filter(|ns| *ns > 0)?))
    })
}
