//! One life of a node in its cluster, from one lease to the next, and the fence that goes with it.

use std::time::Duration;

use base::planted::{self, Bug};

use crate::agent::Agent;
use crate::fence::Fence;
use crate::state::State;
use crate::store::LeaseId;

/// A life: it begins without a lease, and never comes back when its lease is lost. It serves when the document has
/// admitted it and the node has become as the document says: neither is enough.
#[derive(Clone, Debug)]
pub struct Life {
    incarnation: u64,
    lease: Option<LeaseId>,
    /// The last renewal that was answered: when it was sent, by this node's clock, in nanoseconds.
    renewed_ns: Option<u64>,
    is_admitted: bool,
    has_become: bool,
}

impl Life {
    /// A new life; `random` makes it another one than all before.
    pub fn new(random: u64) -> Life {
        // JSON of other programs may lose what is above 53 bits.
        let random = if planted::is(Bug::SameLife) { 1 << 11 } else { random };
        Life {
            incarnation: random >> 11,
            lease: None,
            renewed_ns: None,
            is_admitted: false,
            has_become: false,
        }
    }

    /// Its number.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Its lease; nothing before there is a member under it.
    pub fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    /// Its member was written under a lease that was asked for at `sent_ns`.
    pub fn begun(&mut self, lease: LeaseId, sent_ns: u64) {
        self.lease = Some(lease);
        self.renewed_ns = Some(sent_ns);
    }

    /// The lease was renewed by a request that was sent at `sent_ns`.
    pub fn renewed(&mut self, sent_ns: u64) {
        self.renewed_ns = self.renewed_ns.max(Some(sent_ns));
    }

    /// It gives its lease up.
    pub fn give_up(&mut self) -> Option<LeaseId> {
        self.lease.take()
    }

    /// Notes whether the newest document lets this life serve.
    pub fn note_admission(&mut self, state: &State, uuid: &str) {
        let agent = Agent::new(state, uuid, self.incarnation);
        self.is_admitted = agent.is_some_and(|agent| agent.may_serve());
    }

    /// Notes that the node has become as a document says to the life of this number. Before that it may still be active
    /// for what others have taken over since the life before ended.
    pub fn note_become(&mut self, incarnation: u64) {
        self.has_become |= self.incarnation == incarnation;
    }

    /// Opens the fence for as long as the lease is surely alive, if this life may serve; else closes it.
    pub fn move_fence(&self, fence: &Fence, ttl: Duration) {
        let may_serve = (self.is_admitted && self.has_become) || planted::is(Bug::ServedBeforeAdmission);
        match self.renewed_ns.filter(|_| may_serve) {
            Some(sent_ns) => fence.renewed(sent_ns, ttl),
            None => fence.close(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use crate::state::Address;

    #[test]
    fn serves_when_it_is_admitted_and_as_long_as_its_lease_lives() {
        let (mut life, fence, ttl) = (Life::new(u64::MAX), Fence::closed(), Duration::from_nanos(100));
        let address = Address { host: "h".to_owned(), kv: 1, http: 2 };
        let state = command::found("u", &address, life.incarnation());
        life.note_admission(&state, "u");
        life.note_become(life.incarnation());
        life.move_fence(&fence, ttl);
        assert!(!fence.may_serve(0), "it has no lease");
        life.begun(LeaseId(1), 50);
        life.renewed(40);
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(129) && !fence.may_serve(130), "an older renewal takes nothing back");
        let mut other = Life::new(1 << 30);
        other.begun(LeaseId(2), 60);
        other.note_admission(&state, "u");
        other.note_become(other.incarnation());
        other.move_fence(&fence, ttl);
        assert!(!fence.may_serve(60), "another life was admitted");
    }

    #[test]
    fn serves_nothing_before_the_node_is_as_this_life_is_told_to_be() {
        let (mut life, fence, ttl) = (Life::new(u64::MAX), Fence::closed(), Duration::from_nanos(100));
        let address = Address { host: "h".to_owned(), kv: 1, http: 2 };
        life.begun(LeaseId(1), 50);
        life.note_admission(&command::found("u", &address, life.incarnation()), "u");
        life.note_become(life.incarnation() - 1);
        life.move_fence(&fence, ttl);
        assert!(!fence.may_serve(60), "the life before became something");
        life.note_become(life.incarnation());
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(60));
    }
}
