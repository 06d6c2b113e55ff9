//! What drives a node's [`Authority`] in a simulation: what it asks of the coordination store and of other nodes, and what
//! they answer. The simulation of the cluster's logic has this file, too.

use std::sync::Arc;

use base::env::sim::SplitMix64;
use cluster::membership::is_other;
use cluster::promise::Ask;
use cluster::store::LeaseId;
use cluster::tenure::Tenure;
use cluster::{Authority, Fence, Life, Membership, State, View, Writer};

use crate::store::{Request, TTL};

/// What the threads do that keep the lease and ask for promises.
#[derive(Debug)]
pub struct Held {
    /// What the node may serve.
    pub authority: Authority,
    /// Whether it asks for promises. In some runs no node does, as if nodes did not reach each other's HTTP port: leases
    /// alone must do then.
    pub asks_for_promises: bool,
    /// The newest revision that the node is as, and the tenures up to it.
    applied: u64,
    tenures: Vec<Tenure>,
    cluster: String,
    writer: Writer,
    /// Names tenures, so that nothing else is drawn otherwise.
    names: SplitMix64,
    /// When it asked last for a lease to begin a life with.
    asked_ns: u64,
}

impl Held {
    /// Of a node that has not asked for a lease yet, and was never there before.
    pub fn new(random: u64) -> Held {
        let fence = Arc::new(Fence::closed());
        Held {
            authority: Authority::new(random, fence, &Membership::default(), 0, TTL),
            asks_for_promises: true,
            applied: 0,
            tenures: Vec::new(),
            cluster: String::new(),
            writer: Writer::default(),
            names: SplitMix64::new(random),
            asked_ns: 0,
        }
    }

    /// The process starts again, at `now_ns`; the node has seen so much before.
    pub fn restart(&mut self, random: u64, seen: &Membership, now_ns: u64) {
        let fence = Arc::clone(self.authority.fence());
        fence.close();
        // Where no node asks, the process before has promised nothing.
        let promised_as = if self.asks_for_promises { seen.clone() } else { Membership::default() };
        self.authority = Authority::new(random, fence, &promised_as, now_ns, TTL);
        self.applied = 0;
        self.writer = Writer::default();
    }

    /// The process writes a document in the place of one of this revision; 0 if there is none.
    pub fn sign(&mut self, next: &mut State, before: u64) {
        self.writer.sign(next, before, self.names.next_u64());
    }

    /// Its life.
    pub fn life(&self) -> &Life {
        self.authority.life()
    }

    /// Whether it may serve.
    pub fn fence(&self) -> &Arc<Fence> {
        self.authority.fence()
    }

    /// What is asked for at `sent_ns`.
    pub fn renew(&mut self, sent_ns: u64) -> Request {
        let Some(lease) = self.life().lease() else {
            self.asked_ns = sent_ns;
            return Request::Grant;
        };
        Request::KeepAlive(lease)
    }

    /// Whether an answer belongs to the last attempt to take a lease: a server does one after the other, and hears
    /// nothing of those that it has given up.
    pub fn is_beginning(&self, sent_ns: u64) -> bool {
        self.life().lease().is_none() && sent_ns == self.asked_ns
    }

    /// A lease was granted, and the member is to be written under it, at `now_ns`.
    pub fn tries(&mut self, now_ns: u64, random: u64) {
        self.authority.granted(now_ns, || random);
    }

    /// The member was written under a lease that was asked for at `sent_ns`; that is heard at `now_ns`.
    pub fn begun(&mut self, lease: LeaseId, sent_ns: u64, now_ns: u64, random: u64) {
        // A lease that is of no use runs out.
        let _ = self.authority.begun(lease, sent_ns, now_ns, || random);
    }

    /// The lease was asked to be renewed by a request that was sent at `sent_ns`; the answer is heard at `now_ns`.
    pub fn renewed(&mut self, lease: LeaseId, is_alive: bool, sent_ns: u64, now_ns: u64, random: u64) {
        if self.life().lease() == Some(lease) {
            self.authority.renewed(is_alive, sent_ns, now_ns, || random);
        }
    }

    /// A state was read, and is followed.
    pub fn note_state(&mut self, view: &View, uuid: &str, now_ns: u64) {
        self.authority.note_state(view, uuid, now_ns);
        if is_other(&self.cluster, &view.state.cluster) {
            self.applied = 0;
        }
        self.cluster.clone_from(&view.state.cluster);
        self.authority.note_admission(&view.state, uuid);
    }

    /// The store holds a state that is not followed.
    #[allow(dead_code, reason = "one of the simulations has no such stores")]
    pub fn note_stale(&mut self, uuid: &str) {
        self.authority.note_stale();
        self.authority.note_admission(&State::empty(), uuid);
    }

    /// The node has become as a document says to its present life.
    pub fn note_become(&mut self, state: &State, uuid: &str) {
        self.applied = state.revision;
        self.tenures.clone_from(&state.tenures);
        self.authority.note_let_go(state, uuid);
        self.authority.note_become(self.life().incarnation());
    }

    /// What it asks of other nodes now, and of which.
    pub fn asks(&self, uuid: &str) -> Option<(Ask, Vec<String>)> {
        let (cluster, incarnation) = (self.cluster.clone(), self.life().incarnation());
        let tenures = self.tenures.clone();
        let ask = Ask { cluster, node: uuid.to_owned(), incarnation, applied: self.applied, tenures };
        (self.asks_for_promises && self.life().may_serve())
            .then(|| (ask, self.authority.asked().into_iter().map(str::to_owned).collect()))
    }

    /// A node has promised what one of this node's lives asked for at `sent_ns`.
    pub fn promised(&mut self, by: &str, incarnation: u64, sent_ns: u64) {
        self.authority.promised(by, incarnation, sent_ns, TTL);
    }
}
