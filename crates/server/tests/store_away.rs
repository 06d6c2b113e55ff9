//! Reads, writes and durable writes go on while etcd stands still, is dead, and comes back; administration is refused.
//!
//! `STORE_AWAY_SECONDS=600` has etcd stand still for 10 minutes.
#![allow(clippy::disallowed_methods, reason = "a setting of the test is in the environment")]

#[path = "support/etcd.rs"]
mod etcd;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ::cluster::{Command, Store};
use base::env::Env;
use etcd::Etcd;
use node::cluster::{Cluster, ClusterConfig};
use protocol::feature::Feature;
use protocol::{RequestParts, Status, opcode};
use server::Server;
use server::etcd::{EtcdAccess, EtcdAddress, EtcdStore};
use support::{Client, http, vb};

const SOON: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(3);
const KEYS: usize = 24;
/// Of a framing extra: durability, one byte, majority.
const MAJORITY: &[u8] = &[0x11, 0x01];

struct Member {
    server: Server,
    cluster: Arc<Cluster>,
}

impl Member {
    fn start(folder: &Path, etcd: &Etcd) -> Member {
        let server = support::start_member(folder);
        let address = EtcdAddress::parse(&format!("etcd://{}/test", etcd.addr)).expect("an address");
        let store: Arc<dyn Store> = Arc::new(EtcdStore::new(Env::real(), &address, EtcdAccess::default()));
        let config = ClusterConfig { lease_ttl: LEASE, ..ClusterConfig::default() };
        let cluster = Cluster::join(Arc::clone(server.node()), store, config).expect("it joins");
        assert!(cluster.wait_until_served(SOON), "it is let in");
        Member { server, cluster }
    }
}

/// The longest time for which the machine stood still: how late a thread is that wants to run all the time.
struct Standstill {
    longest_ns: Arc<AtomicU64>,
    /// Ends the thread when it is dropped.
    _end: Sender<()>,
}

impl Standstill {
    fn watch() -> Standstill {
        let (end, ended) = channel::<()>();
        let (longest_ns, clock) = (Arc::new(AtomicU64::new(0)), Env::real().clock);
        let noted = Arc::clone(&longest_ns);
        std::thread::spawn(move || {
            let mut before = clock.monotonic_ns();
            while ended.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                let now = clock.monotonic_ns();
                noted.fetch_max(now - before, Ordering::SeqCst);
                before = now;
            }
        });
        Standstill { longest_ns, _end: end }
    }

    fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Ordering::SeqCst))
    }
}

/// A client of each node, and what came of what they asked.
struct Load {
    clock: Arc<dyn base::env::Clock>,
    standstill: Standstill,
    /// For each key the client of the node that is active for it.
    owners: Vec<(String, usize)>,
    clients: Vec<Client>,
    operations: u64,
    failures: u64,
    first: Option<String>,
}

impl Load {
    fn of(members: &[Member]) -> Load {
        let features = [Feature::AltRequestSupport, Feature::SyncReplication];
        let clients = members.iter().map(|member| Client::connect(&member.server, "default", &features));
        let state = members[0].cluster.view().expect("it has been read").state.clone();
        let owner = |key: &String| {
            let id = state.buckets["default"].active(vb(key.as_bytes()).0).expect("it is served");
            members.iter().position(|member| member.cluster.uuid() == state.nodes[&id].uuid)
        };
        let keys = (0..KEYS).map(|at| format!("key-{at}"));
        Load {
            clock: Env::real().clock,
            standstill: Standstill::watch(),
            owners: keys.map(|key| (key.clone(), owner(&key).expect("a member"))).collect(),
            clients: clients.collect(),
            operations: 0,
            failures: 0,
            first: None,
        }
    }

    fn note(&mut self, what: &str, is_done: bool) {
        self.operations += 1;
        self.failures += u64::from(!is_done);
        if !is_done {
            self.first.get_or_insert_with(|| format!("{what} after {} operations", self.operations));
        }
    }

    /// Writes, writes durably and reads for so long.
    fn run(&mut self, length: Duration) {
        let end = self.clock.monotonic() + length;
        while self.clock.monotonic() < end {
            for at in 0..self.owners.len() {
                let (key, owner) = self.owners[at].clone();
                let key = key.as_bytes();
                let value = format!("{}", self.operations).into_bytes();
                let written = self.clients[owner].set(key, &value);
                self.note("a write", written == Some(Status::Success));
                let durable = RequestParts {
                    opcode: opcode::SET,
                    key,
                    value: &value,
                    extras: &[0; 8],
                    frame_infos: MAJORITY,
                    vbucket: vb(key),
                    ..RequestParts::default()
                };
                let written = self.clients[owner].try_request(&durable).map(|frame| frame.status);
                self.note("a durable write", written == Some(Status::Success));
                let read = self.clients[owner].get(key).filter(|frame| frame.status == Status::Success);
                self.note("a read", read.is_some_and(|frame| frame.value == value));
            }
        }
    }

    /// `None` if something failed because the machine stood still: leases and promises end meanwhile, as they must, and
    /// nodes get no other ones while etcd is away.
    fn check(&self, when: &str) -> Option<()> {
        println!("{when}: {} operations, {} failures", self.operations, self.failures);
        let longest = self.standstill.longest();
        if self.failures > 0 && longest >= LEASE / 3 {
            println!("{when}: nothing follows from this run, the machine stood still for {longest:?}");
            return None;
        }
        assert_eq!(self.failures, 0, "{when}: the first is {:?}", self.first);
        Some(())
    }
}

fn lives(members: &[Member]) -> Vec<u64> {
    let view = members[0].cluster.view().expect("it has been read");
    view.state.nodes.values().map(|node| node.incarnation).collect()
}

#[test]
fn data_is_served_while_etcd_is_away() {
    let mut etcd = Etcd::start();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let members: Vec<_> = folders.iter().map(|folder| Member::start(folder.path(), &etcd)).collect();
    members[0].cluster.ask(&Command::Rebalance { eject: Vec::new() }).expect("it is done");
    let wait = |what: &str, is_so: &dyn Fn(&::cluster::View) -> bool| {
        assert!(
            members.iter().all(|member| member.cluster.wait_until(SOON, |view, _| is_so(view))),
            "{what}"
        );
    };
    wait("all are active", &|view| {
        view.state.rebalance.is_none()
            && view.state.nodes.keys().filter(|id| view.state.is_active(**id)).count() == 3
    });
    let bucket = "name=default&ramQuotaMB=100&replicaNumber=1";
    let (code, text) = http(&members[0].server, "POST", "/pools/default/buckets", bucket);
    assert_eq!(code, 202, "{text}");
    let revision = members[0].cluster.view().expect("it is read").state.revision;
    for member in &members {
        assert!(member.cluster.wait_until_served(SOON));
        assert!(member.cluster.wait_until(SOON, |_, applied| applied >= revision));
        assert!(member.cluster.wait_until_promised(SOON), "the others promise");
    }
    let before = lives(&members);
    if served_while_away(&members, &mut etcd).is_some() {
        wait("all have leases", &|view| view.state.nodes.keys().all(|id| view.alive(*id).is_some()));
        assert_eq!(lives(&members), before, "no node began a new life");
    }
    for member in members {
        assert!(member.cluster.stop(), "its threads end as they should");
        member.server.stop().expect("a clean stop");
    }
}

/// `None` if the machine stood still for too long.
fn served_while_away(members: &[Member], etcd: &mut Etcd) -> Option<()> {
    let mut load = Load::of(members);
    load.run(Duration::from_secs(1));
    load.check("before")?;

    etcd.stand_still();
    let seconds = std::env::var("STORE_AWAY_SECONDS").ok().and_then(|text| text.parse().ok());
    load.run(seconds.map_or(2 * LEASE, Duration::from_secs));
    load.check("etcd stands still")?;
    let (code, told) = http(&members[0].server, "POST", "/pools/default/buckets", "name=more&ramQuotaMB=100");
    assert!(code >= 500 && told.contains("etcd"), "{code}: {told}");
    etcd.go_on();
    load.run(LEASE);
    load.check("etcd goes on")?;

    etcd.kill();
    load.run(2 * LEASE);
    load.check("etcd is dead")?;
    etcd.start_again();
    load.run(LEASE);
    load.check("etcd is there again")
}
