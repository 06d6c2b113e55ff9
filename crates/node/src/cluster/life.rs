//! The lease, and the fence that goes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::cluster::store::{LeaseId, Store, StoreFailure, Swap, Swapped};
use ::cluster::{Address, Authority, Limits, Member, Membership, Renewed, State, keys};
use parking_lot::{Mutex, MutexGuard};

use super::ClusterConfig;
use super::ending::Ending;
use super::trouble::Trouble;
use crate::node::Node;

/// What the node may serve, and its lease in the coordination store.
///
/// # Invariants
///
/// - No request is sent while the authority is locked.
pub(super) struct Lease {
    node: Arc<Node>,
    store: Arc<dyn Store>,
    config: ClusterConfig,
    uuid: String,
    /// Without the one for clients of another network, which may change.
    address: Address,
    /// Whether the store has the address as it is.
    address_is_told: AtomicBool,
    /// What the node can hold.
    limits: Option<Limits>,
    authority: Mutex<Authority>,
    /// Whether it is renewed no more, although the membership goes on.
    is_given_up: AtomicBool,
    ending: Arc<Ending>,
}

impl Lease {
    /// Of a node that has seen so much before, and serves nothing yet.
    pub(super) fn new(
        node: &Arc<Node>,
        store: &Arc<dyn Store>,
        config: ClusterConfig,
        (uuid, address): (&str, Address),
        seen: &Membership,
        ending: &Arc<Ending>,
    ) -> Lease {
        let limits = node
            .host()
            .map(|host| Limits { quota_bytes: host.memory_quota_bytes(), vbuckets: host.config().vbuckets });
        let (random, now_ns) = (node.env().random.next_u64(), node.env().clock.monotonic_ns());
        let authority = Authority::new(random, Arc::clone(node.fence()), seen, now_ns, config.lease_ttl);
        Lease {
            node: Arc::clone(node),
            store: Arc::clone(store),
            config,
            uuid: uuid.to_owned(),
            address,
            address_is_told: AtomicBool::new(true),
            limits,
            authority: Mutex::new(authority),
            is_given_up: AtomicBool::new(false),
            ending: Arc::clone(ending),
        }
    }

    /// What the node may serve.
    pub(super) fn authority(&self) -> MutexGuard<'_, Authority> {
        self.authority.lock()
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.node.env().clock.monotonic_ns()
    }

    /// Until the membership ends: renews the lease, begins a new life when it has run out.
    pub(super) fn keep(&self) {
        let every = self.config.lease_ttl / 5;
        let mut trouble = Trouble::default();
        let mut was_served = false;
        loop {
            let renewed = self.renew();
            let now = self.node.env().clock.monotonic();
            was_served = self.log_fence(was_served);
            match renewed {
                Err(failure) if trouble.failed(now) => {
                    tracing::warn!(
                        event = "lease_not_renewed", %failure,
                        "the lease was not renewed; a node that serves goes on only while others promise not to \
                         take over"
                    );
                }
                Err(_) => {}
                Ok(()) => {
                    if let Some(after) = trouble.is_over(now) {
                        tracing::info!(event = "lease_renewed", ?after, "the lease is renewed again");
                    }
                }
            }
            if self.ending.pause(every) || self.is_given_up.load(Ordering::SeqCst) {
                break;
            }
        }
        let lease = self.authority.lock().give_up();
        if let Some(Err(failure)) = lease.map(|lease| self.store.revoke(lease)) {
            tracing::warn!(event = "lease_left_to_run_out", %failure, "this node cannot give its lease back as it stops: others take its place when the lease has run out");
        }
    }

    /// Says when the node ceases to serve, and when it begins to. Returns whether it serves now.
    fn log_fence(&self, was_served: bool) -> bool {
        let node = self.node.address().name();
        let is_served = self.node.fence().may_serve(self.now_ns());
        match (was_served, is_served) {
            (true, false) => tracing::warn!(
                event = "node_not_serving",
                node,
                "lease and promises have run out, or the cluster does not let this node serve: it serves nothing for now"
            ),
            (false, true) => {
                tracing::info!(
                    event = "node_serving",
                    node,
                    "the node has its lease or promises, and serves what the cluster gives it"
                )
            }
            _ => {}
        }
        is_served
    }

    fn renew(&self) -> Result<(), StoreFailure> {
        let sent_ns = self.now_ns();
        let Some(lease) = self.authority.lock().life().lease() else { return self.begin_life() };
        let is_alive = self.store.keep_alive(lease)?;
        let now_ns = self.now_ns();
        let renewed = self.authority.lock().renewed(is_alive, sent_ns, now_ns, || self.random());
        match renewed {
            Renewed::Alive => return self.tell_address(lease),
            Renewed::Promised => tracing::warn!(
                event = "lease_run_out",
                "the lease has run out: this node serves on, as others have promised not to take over"
            ),
            Renewed::Ended => {
                tracing::warn!(
                    event = "lease_gone",
                    "the lease is gone from the coordination store: the node begins another life"
                )
            }
        }
        self.begin_life()
    }

    /// What makes a life another one than all before.
    fn random(&self) -> u64 {
        self.node.env().random.next_u64()
    }

    /// A new lease, and a member under it, for a life that has none (any more).
    fn begin_life(&self) -> Result<(), StoreFailure> {
        let sent_ns = self.now_ns();
        let lease = self.store.grant(self.config.lease_ttl)?;
        let now_ns = self.now_ns();
        self.authority.lock().granted(now_ns, || self.random());
        if !self.put_member(lease)? {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let has_begun = self.authority.lock().begun(lease, sent_ns, now_ns, || self.random());
        if !has_begun {
            tracing::warn!(
                event = "promises_over",
                "the lease came too late, after the promises of others were over: this node serves nothing until the cluster lets it"
            );
            self.store.revoke(lease)?;
        }
        Ok(())
    }

    /// Says under a lease who this life is and where it is reached. Whether that is in the store now: something else may
    /// have taken its place.
    fn put_member(&self, lease: LeaseId) -> Result<bool, StoreFailure> {
        self.address_is_told.store(true, Ordering::SeqCst);
        let member = Member {
            incarnation: self.incarnation(),
            address: self.told_address(),
            limits: self.limits,
            reads: ::cluster::state::FORMAT,
            node_login: true,
            timed_proofs: true,
            moves_stores: true,
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
        Address { alternate: self.node.map().alternate(), ..self.address.clone() }
    }

    /// Where the node is reached has changed: the next renewal says so.
    pub(super) fn address_has_changed(&self) {
        self.address_is_told.store(false, Ordering::SeqCst);
    }

    fn tell_address(&self, lease: LeaseId) -> Result<(), StoreFailure> {
        if !self.address_is_told.load(Ordering::SeqCst) {
            self.put_member(lease)?;
        }
        Ok(())
    }

    /// The lease is renewed no more: the node is to be failed over.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    /// The number of the node's present life.
    pub(super) fn incarnation(&self) -> u64 {
        self.authority.lock().life().incarnation()
    }

    /// Notes whether the newest document lets this life serve.
    pub(super) fn note_admission(&self, state: &State) {
        self.authority.lock().note_admission(state, &self.uuid);
    }

    /// Notes that the node has become as a document says to the life of this number.
    pub(super) fn note_become(&self, incarnation: u64) {
        self.authority.lock().note_become(incarnation);
    }
}
