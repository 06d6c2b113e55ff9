//! A node's life and its fence, kept by what the coordination store answers. The simulation of the cluster's logic has
//! this file, too.

use cluster::store::LeaseId;
use cluster::{Fence, Life, State};

use crate::store::{Request, TTL};

/// What the thread does that keeps the lease.
#[derive(Debug)]
pub struct Held {
    /// Its life.
    pub life: Life,
    /// Whether it may serve.
    pub fence: Fence,
    /// When it asked last for a lease to begin a life with.
    asked_ns: u64,
}

impl Held {
    /// Of a node that has not asked for a lease yet.
    pub fn new(random: u64) -> Held {
        Held { life: Life::new(random), fence: Fence::closed(), asked_ns: 0 }
    }

    /// A life that nobody has had before.
    pub fn begin_life(&mut self, random: u64) {
        self.fence.close();
        self.life = Life::new(random);
    }

    /// What is asked for at `sent_ns`.
    pub fn renew(&mut self, sent_ns: u64) -> Request {
        let Some(lease) = self.life.lease() else {
            self.asked_ns = sent_ns;
            return Request::Grant;
        };
        Request::KeepAlive(lease)
    }

    /// Whether an answer belongs to the last attempt to begin a life: a server does one after the other, and hears
    /// nothing of those that it has given up.
    pub fn is_beginning(&self, sent_ns: u64) -> bool {
        self.life.lease().is_none() && sent_ns == self.asked_ns
    }

    /// The lease was asked to be renewed by a request that was sent at `sent_ns`.
    pub fn renewed(&mut self, lease: LeaseId, is_alive: bool, sent_ns: u64, random: u64) {
        if self.life.lease() != Some(lease) {
            return;
        }
        if is_alive {
            self.life.renewed(sent_ns);
            self.life.move_fence(&self.fence, TTL);
        } else {
            self.begin_life(random);
        }
    }

    /// The newest document was read.
    pub fn note_admission(&mut self, state: &State, uuid: &str) {
        self.life.note_admission(state, uuid);
        self.life.move_fence(&self.fence, TTL);
    }

    /// The node has become as a document says to its present life.
    pub fn note_become(&mut self) {
        self.life.note_become(self.life.incarnation());
        self.life.move_fence(&self.fence, TTL);
    }
}
