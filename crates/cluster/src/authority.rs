//! What a node may serve, by what the coordination store and other nodes have answered: its life with its lease, its
//! fence, and the promises that it holds and has given, as one state machine.
//!
//! It sends nothing and reads no clock. Who drives it sends what it asks for, and tells it what was answered, with the
//! moments of both.
//!
//! # Invariants
//!
//! - The fence is where the life and the promises have it after every step.
//! - Promises that were made to one life are nothing to the next one.
//! - After [`Authority::stop`] the fence never opens again.
//!
//! # Units
//!
//! Moments are nanoseconds of the node's own clock, which must go on while the machine is suspended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::fence::Fence;
use crate::life::Life;
use crate::membership::Membership;
use crate::promise::{Ask, Granter, Holder, Unpromised};
use crate::state::{NodeId, State};
use crate::store::LeaseId;
use crate::view::View;

/// What has become of a life whose lease was to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// It has its lease.
    Alive,
    /// Its lease is over, and it goes on by the promises of others. It takes another lease.
    Promised,
    /// It has ended, and another one has begun, which takes a lease.
    Ended,
}

/// The state of one process of a node.
#[derive(Debug)]
pub struct Authority {
    life: Life,
    fence: Arc<Fence>,
    granter: Granter,
    holder: Holder,
    /// How long a lease and a promise last.
    lasts: Duration,
    is_stopped: bool,
}

impl Authority {
    /// Of a process that starts at `now_ns`, whose node has seen so much before; `random` makes its life another one than
    /// all before.
    pub fn new(random: u64, fence: Arc<Fence>, seen: &Membership, now_ns: u64, lasts: Duration) -> Authority {
        Authority {
            life: Life::new(random),
            fence,
            granter: Granter::new(seen, now_ns, lasts),
            holder: Holder::default(),
            lasts,
            is_stopped: false,
        }
    }

    /// Its life.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Whether it may serve.
    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// The life ends; another one begins.
    fn end_life(&mut self, random: u64) {
        self.fence.close();
        self.life = Life::new(random);
        self.holder.clear();
        self.count_on();
    }

    /// A lease was granted, and the member is to be written under it, at `now_ns`: in the name of another life, made by
    /// `random`, if this one is over.
    pub fn granted(&mut self, now_ns: u64, random: impl FnOnce() -> u64) {
        if !self.life.tries(now_ns) {
            self.end_life(random());
            let _ = self.life.tries(now_ns);
        }
    }

    /// The member was written under a lease that was asked for at `sent_ns`, and that was answered by `now_ns`. False if
    /// this life is over instead, and another one has begun: it has no use for the lease.
    #[must_use]
    pub fn begun(&mut self, lease: LeaseId, sent_ns: u64, now_ns: u64, random: impl FnOnce() -> u64) -> bool {
        let goes_on = self.life.begun(lease, sent_ns, now_ns);
        if goes_on {
            self.move_fence();
        } else {
            self.end_life(random());
        }
        goes_on
    }

    /// The life's lease was asked to be renewed by a request that was sent at `sent_ns`; it is heard at `now_ns` whether
    /// the lease lives.
    pub fn renewed(
        &mut self,
        is_alive: bool,
        sent_ns: u64,
        now_ns: u64,
        random: impl FnOnce() -> u64,
    ) -> Renewed {
        if is_alive {
            self.life.renewed(sent_ns);
            self.move_fence();
            return Renewed::Alive;
        }
        if self.life.outlives_lease(now_ns) {
            self.move_fence();
            return Renewed::Promised;
        }
        self.end_life(random());
        Renewed::Ended
    }

    /// The lease, which is given up: it is not renewed any more.
    pub fn give_up(&mut self) -> Option<LeaseId> {
        self.fence.close();
        self.life.give_up()
    }

    /// The node serves nothing any more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.fence.close();
    }

    /// A state that is followed was read at `now_ns`: before the node does or reports anything that it says.
    pub fn note_state(&mut self, view: &View, uuid: &str, now_ns: u64) {
        self.granter.note_state(&view.state);
        self.granter.note_members(view, now_ns);
        self.holder.note_state(&view.state, uuid);
        self.count_on();
    }

    /// The store holds a state that the node does not follow.
    pub fn note_stale(&mut self) {
        self.granter.note_stale();
    }

    /// Whether the newest document lets this life serve.
    pub fn note_admission(&mut self, state: &State, uuid: &str) {
        self.life.note_admission(state, uuid);
        self.move_fence();
    }

    /// The node serves nothing that a state does not let it, in all buckets.
    pub fn note_let_go(&mut self, state: &State, uuid: &str) {
        self.holder.note_let_go(state, uuid);
        self.count_on();
    }

    /// The node has become as a document says to the life of this number.
    pub fn note_become(&mut self, incarnation: u64) {
        self.life.note_become(incarnation);
        self.move_fence();
    }

    /// The nodes that are asked for promises, by identity.
    pub fn asked(&self) -> BTreeSet<&str> {
        self.holder.asked()
    }

    /// A node has promised what the life of this number asked for at `sent_ns`, for so long.
    pub fn promised(&mut self, by: &str, incarnation: u64, sent_ns: u64, lasts: Duration) {
        // Of another life's promises nothing is known to this one.
        if incarnation == self.life.incarnation() {
            self.holder.promised(by, sent_ns, lasts);
            self.count_on();
        }
    }

    /// Promises at `now_ns` to another node what it asks for, and says for how long, or why not.
    pub fn grant(&mut self, ask: &Ask, now_ns: u64) -> Result<Duration, Unpromised> {
        self.granter.grant(ask, now_ns)?;
        Ok(self.granter.lasts())
    }

    /// A life of another node says that it serves no more.
    pub fn release(&mut self, ask: &Ask) -> Duration {
        self.granter.release(ask);
        self.granter.lasts()
    }

    /// The nodes that the store misses and that serve no more at `now_ns`: see [`Granter::gone`].
    pub fn gone(&self, now_ns: u64) -> BTreeSet<String> {
        self.granter.gone(now_ns)
    }

    /// By bucket, the nodes whose place is in question and from which this one does not take over yet, at `now_ns`.
    pub fn bound(&self, state: &State, now_ns: u64) -> BTreeMap<String, BTreeSet<NodeId>> {
        self.granter.bound(state, now_ns)
    }

    /// Counts the promises that are held.
    fn count_on(&mut self) {
        self.life.promised(self.holder.until_ns());
        self.move_fence();
    }

    /// Opens the fence for as long as the lease is surely alive, or promises are surely kept, if this life may serve.
    fn move_fence(&self) {
        if self.is_stopped {
            self.fence.close();
        } else {
            self.life.move_fence(&self.fence, self.lasts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use crate::state::Address;

    const LASTS: Duration = Duration::from_nanos(100);

    /// A node that was let serve with a lease of moment 50.
    fn serving() -> Authority {
        let mut authority =
            Authority::new(1 << 20, Arc::new(Fence::closed()), &Membership::default(), 0, LASTS);
        authority.granted(50, || unreachable!("it has no life before"));
        assert!(authority.begun(LeaseId(1), 50, 51, || unreachable!("it has no life before")));
        let incarnation = authority.life().incarnation();
        let state = command::found("u", &Address::new("h".to_owned(), 1, 2), incarnation);
        authority.note_admission(&state, "u");
        authority.note_become(incarnation);
        assert!(authority.fence().may_serve(129) && !authority.fence().may_serve(130));
        authority
    }

    #[test]
    fn a_lost_lease_without_promises_ends_the_life() {
        let mut authority = serving();
        let before = authority.life().incarnation();
        assert_eq!(authority.renewed(true, 60, 61, || unreachable!("it lives")), Renewed::Alive);
        assert!(authority.fence().may_serve(139));
        assert_eq!(authority.renewed(false, 70, 71, || 2 << 20), Renewed::Ended);
        assert!(!authority.fence().may_serve(72) && authority.life().incarnation() != before);
        assert!(authority.begun(LeaseId(2), 80, 81, || unreachable!("it is new")));
        assert!(!authority.fence().may_serve(82), "the new life was not admitted");
    }

    #[test]
    fn a_lease_that_comes_too_late_is_of_no_use() {
        let mut authority = serving();
        let before = authority.life().incarnation();
        assert!(!authority.begun(LeaseId(2), 90, 91, || 2 << 20), "it has had one before");
        assert!(authority.life().incarnation() != before && authority.life().lease().is_none());
    }

    #[test]
    fn nothing_opens_the_fence_of_a_node_that_has_stopped() {
        let mut authority = serving();
        authority.stop();
        assert_eq!(authority.renewed(true, 60, 61, || unreachable!("it lives")), Renewed::Alive);
        authority.note_become(authority.life().incarnation());
        assert!(!authority.fence().may_serve(62));
    }
}
