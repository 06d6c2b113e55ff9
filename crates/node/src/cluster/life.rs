//! The lease, and the fence that goes with it.

use std::sync::atomic::Ordering;

use ::cluster::store::{LeaseId, StoreFailure, Swap, Swapped};
use ::cluster::{Address, Life, Member, State, keys};
use base::env::Env;

use super::Cluster;
use super::trouble::Trouble;

/// A life that nobody has had before.
pub(super) fn new_life(env: &Env) -> Life {
    Life::new(env.random.next_u64())
}

impl Cluster {
    /// Until the membership ends: renews the lease, begins a new life when it has run out.
    pub(super) fn keep_lease(&self) {
        let every = self.config.lease_ttl / 5;
        let mut trouble = Trouble::default();
        let mut was_served = false;
        loop {
            let renewed = self.renew();
            let now = self.node.env().clock.monotonic();
            was_served = self.log_fence(was_served);
            match renewed {
                Err(failure) if trouble.failed(now) => {
                    tracing::warn!(%failure, "the lease was not renewed; without it this node serves as long as others promise not to take over");
                }
                Err(_) => {}
                Ok(()) => {
                    if let Some(after) = trouble.is_over(now) {
                        tracing::info!(?after, "the lease is renewed again");
                    }
                }
            }
            if self.pause(every) || self.has_forgotten.load(Ordering::SeqCst) {
                break;
            }
        }
        self.node.fence().close();
        let lease = self.life.lock().give_up();
        if let Some(Err(failure)) = lease.map(|lease| self.store.revoke(lease)) {
            tracing::warn!(%failure, "the lease is left to run out");
        }
    }

    /// Says when the node ceases to serve, and when it begins to. Returns whether it serves now.
    fn log_fence(&self, was_served: bool) -> bool {
        let node = self.node.address().name();
        let is_served = self.node.fence().may_serve(self.node.env().clock.monotonic_ns());
        match (was_served, is_served) {
            (true, false) => tracing::warn!(
                node,
                "lease and promises have run out, or the cluster does not let this node serve: it serves nothing for now"
            ),
            (false, true) => {
                tracing::info!(
                    node,
                    "the node has its lease or promises, and serves what the cluster gives it"
                )
            }
            _ => {}
        }
        is_served
    }

    fn renew(&self) -> Result<(), StoreFailure> {
        let sent_ns = self.node.env().clock.monotonic_ns();
        let Some(lease) = self.life.lock().lease() else { return self.begin_life() };
        if self.store.keep_alive(lease)? {
            let mut life = self.life.lock();
            life.renewed(sent_ns);
            self.move_fence(&life);
            drop(life);
            return self.tell_address(lease);
        }
        let goes_on = {
            let mut life = self.life.lock();
            let goes_on = life.outlives_lease(self.node.env().clock.monotonic_ns());
            self.move_fence(&life);
            goes_on
        };
        if goes_on {
            tracing::warn!(
                "the lease has run out: this node serves on, as others have promised not to take over"
            );
        } else {
            tracing::warn!("the lease is gone from the coordination store: the node begins another life");
            self.end_life();
        }
        self.begin_life()
    }

    /// Another life begins, to which no node has promised anything yet.
    fn end_life(&self) {
        self.node.fence().close();
        *self.life.lock() = new_life(self.node.env());
        self.forget_promises();
    }

    /// A new lease, and a member under it, for a life that has none (any more).
    fn begin_life(&self) -> Result<(), StoreFailure> {
        let sent_ns = self.node.env().clock.monotonic_ns();
        let lease = self.store.grant(self.config.lease_ttl)?;
        let goes_on = self.life.lock().tries(self.node.env().clock.monotonic_ns());
        if !goes_on {
            self.end_life();
            let _ = self.life.lock().tries(self.node.env().clock.monotonic_ns());
        }
        if !self.put_member(lease)? {
            return Ok(());
        }
        let has_begun = {
            let mut life = self.life.lock();
            let has_begun = life.begun(lease, sent_ns, self.node.env().clock.monotonic_ns());
            self.move_fence(&life);
            has_begun
        };
        if !has_begun {
            tracing::warn!(
                "the promises of others are over: this node serves nothing until the cluster lets it"
            );
            self.end_life();
            self.store.revoke(lease)?;
        }
        Ok(())
    }

    /// Says under a lease who this life is and where it is reached. Whether that is in the store now: something else may
    /// have taken its place.
    fn put_member(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.address_is_told.store(true, Ordering::SeqCst);
        let member = Member {
            incarnation: self.life.lock().incarnation(),
            address: self.told_address(),
            limits: self.limits,
            reads: ::cluster::state::FORMAT,
        };
        let json = serde_json::to_vec(&member).unwrap_or_default();
        let key = keys::member(&self.uuid);
        let put = || -> Result<bool, StoreFailure> {
            // A member that was sent before, and comes late, must not take this one's place: it goes with another lease.
            let expected = Some(self.store.version_of(&key)?);
            let put = Swap { key: &key, expected, value: Some(&json), lease: Some(lease) };
            Ok(matches!(self.store.swap(put)?, Swapped::Done(_)))
        };
        let outcome = put();
        if !matches!(outcome, Ok(true)) {
            self.address_is_told.store(false, Ordering::SeqCst);
        }
        outcome
    }

    /// Where the node is reached, as it is now.
    pub(super) fn told_address(&self) -> Address {
        Address { alternate: self.node.alternate(), ..self.address.clone() }
    }

    /// Where the node is reached has changed: the next renewal says so.
    pub(crate) fn address_has_changed(&self) {
        self.address_is_told.store(false, Ordering::SeqCst);
    }

    fn tell_address(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        if !self.address_is_told.load(Ordering::SeqCst) {
            self.put_member(lease)?;
        }
        Ok(())
    }

    /// Notes whether the newest document lets this life serve.
    pub(super) fn note_admission(&self, state: &State) {
        let mut life = self.life.lock();
        life.note_admission(state, &self.uuid);
        self.move_fence(&life);
    }

    /// Notes that the node has become as a document says to the life of this number.
    pub(super) fn note_become(&self, incarnation: u64) {
        let mut life = self.life.lock();
        life.note_become(incarnation);
        self.move_fence(&life);
    }

    /// Opens the fence for as long as the lease is surely alive, or promises are surely kept, if this life may serve.
    pub(super) fn move_fence(&self, life: &Life) {
        if self.is_stopping() {
            self.node.fence().close();
        } else {
            life.move_fence(self.node.fence(), self.config.lease_ttl);
        }
    }
}
