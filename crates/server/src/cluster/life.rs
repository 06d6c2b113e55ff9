//! The lease, and the fence that goes with it.

use ::cluster::store::{LeaseId, StoreFailure, Swap, Swapped};
use ::cluster::{Agent, Member, View, keys};
use base::env::Env;

use super::Cluster;

/// One life of a node in its cluster: from one lease to the next.
pub(super) struct Life {
    incarnation: u64,
    lease: Option<LeaseId>,
    /// The last renewal that was answered, by this node's clock, in nanoseconds.
    renewed_ns: Option<u64>,
    is_admitted: bool,
}

impl Life {
    pub(super) fn new(env: &Env) -> Life {
        // JSON of other programs may lose what is above 53 bits.
        let incarnation = env.random.next_u64() >> 11;
        Life { incarnation, lease: None, renewed_ns: None, is_admitted: false }
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.lease
    }
}

impl Cluster {
    /// Until the membership ends: renews the lease, begins a new life when it has run out.
    pub(super) fn keep_lease(&self) {
        let every = self.config.lease_ttl / 5;
        loop {
            if let Err(failure) = self.renew() {
                tracing::warn!(%failure, "the lease was not renewed");
            }
            if self.pause(every) {
                break;
            }
        }
        self.node.fence().close();
        let lease = self.life.lock().lease.take();
        if let Some(Err(failure)) = lease.map(|lease| self.store.revoke(lease)) {
            tracing::warn!(%failure, "the lease is left to run out");
        }
    }

    fn renew(&self) -> Result<(), StoreFailure> {
        let sent_ns = self.node.env().clock.monotonic_ns();
        let Some(lease) = self.life.lock().lease else { return self.begin_life() };
        if self.store.keep_alive(lease)? {
            let mut life = self.life.lock();
            life.renewed_ns = Some(sent_ns);
            self.move_fence(&life);
            return Ok(());
        }
        tracing::warn!("the lease has run out: this node serves nothing until the cluster lets it");
        self.node.fence().close();
        *self.life.lock() = Life::new(self.node.env());
        self.begin_life()
    }

    /// A new lease, and a member under it.
    fn begin_life(&self) -> Result<(), StoreFailure> {
        let sent_ns = self.node.env().clock.monotonic_ns();
        let lease = self.store.grant(self.config.lease_ttl)?;
        let incarnation = self.life.lock().incarnation;
        let member = Member { incarnation, address: self.address.clone() };
        let json = serde_json::to_vec(&member).unwrap_or_default();
        let key = keys::member(&self.uuid);
        let put = Swap { key: &key, expected: None, value: Some(&json), lease: Some(lease) };
        if let Swapped::Done(_) = self.store.swap(put)? {
            let mut life = self.life.lock();
            life.lease = Some(lease);
            life.renewed_ns = Some(sent_ns);
        }
        Ok(())
    }

    /// Notes whether the newest document lets this life serve.
    pub(super) fn note_admission(&self, view: &View) {
        let mut life = self.life.lock();
        let agent = Agent::new(&view.state, &self.uuid, life.incarnation);
        life.is_admitted = agent.is_some_and(|agent| agent.may_serve());
        self.move_fence(&life);
    }

    /// Opens the fence for as long as the lease is surely alive, if this life may serve.
    fn move_fence(&self, life: &Life) {
        let is_stopping = self.is_stopping();
        match life.renewed_ns.filter(|_| life.is_admitted && !is_stopping) {
            Some(sent_ns) => self.node.fence().renewed(sent_ns, self.config.lease_ttl),
            None => self.node.fence().close(),
        }
    }
}
