//! One life of a node in its cluster, from one lease to the next, and the fence that goes with it.

use std::time::Duration;

use base::planted::{self, Bug};

use crate::agent::Agent;
use crate::fence::Fence;
use crate::state::State;
use crate::store::LeaseId;

/// A life: it begins without a lease. It serves when the document has admitted it and the node has become as the document
/// says: neither is enough.
///
/// When its lease is lost, and it holds no promises of others (record 62), it never comes back. While it holds them it
/// goes on, and takes another lease: until then no node has taken its place.
#[derive(Clone, Debug)]
pub struct Life {
    incarnation: u64,
    lease: Option<LeaseId>,
    /// The last renewal that was answered: when it was sent, by this node's clock, in nanoseconds.
    renewed_ns: Option<u64>,
    /// Until when others have surely promised not to take over; 0 if they have not.
    promised_ns: u64,
    /// Whether its member was written, or may have been.
    has_begun: bool,
    has_tried: bool,
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
            promised_ns: 0,
            has_begun: false,
            has_tried: false,
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

    /// Its member is about to be written, at `now_ns`. False if this life is over instead: what became of an attempt before
    /// is not known, so that the document may have let this life serve and others may have taken its place since.
    #[must_use]
    pub fn tries(&mut self, now_ns: u64) -> bool {
        self.has_begun |= self.has_tried;
        self.has_tried = true;
        !self.has_begun || self.is_promised(now_ns) || planted::is(Bug::LapsedLifeGoesOn)
    }

    /// Its member was written, and that was answered by `now_ns`, under a lease that was asked for at `sent_ns`. False if
    /// this life is over instead: it has had a lease before, and others may have taken its place since.
    #[must_use]
    pub fn begun(&mut self, lease: LeaseId, sent_ns: u64, now_ns: u64) -> bool {
        if self.has_begun && !self.is_promised(now_ns) && !planted::is(Bug::LapsedLifeGoesOn) {
            return false;
        }
        self.has_begun = true;
        self.lease = Some(lease);
        self.renewed_ns = Some(sent_ns);
        true
    }

    /// The store says at `now_ns` that the lease is over. Whether this life goes on without it, as others have promised
    /// not to take over.
    #[must_use]
    pub fn outlives_lease(&mut self, now_ns: u64) -> bool {
        self.lease = None;
        self.renewed_ns = None;
        self.is_promised(now_ns) || planted::is(Bug::LapsedLifeGoesOn)
    }

    /// Until when enough others have surely promised not to take over; 0 if they have not.
    pub fn promised(&mut self, until_ns: u64) {
        self.promised_ns = until_ns;
    }

    /// Whether it may serve at a moment, whatever has become of its lease.
    pub fn is_promised(&self, now_ns: u64) -> bool {
        self.is_admitted && self.has_become && now_ns < self.promised_ns
    }

    /// Whether it serves as long as it has its lease or promises.
    pub fn may_serve(&self) -> bool {
        self.is_admitted && self.has_become
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

    /// Opens the fence for as long as the lease is surely alive or promises are surely kept, if this life may serve; else
    /// closes it.
    pub fn move_fence(&self, fence: &Fence, ttl: Duration) {
        let may_serve = self.may_serve() || planted::is(Bug::ServedBeforeAdmission);
        let leased_ns = self.renewed_ns.map_or(0, |sent_ns| Fence::end_ns(sent_ns, ttl));
        match leased_ns.max(self.promised_ns) {
            end_ns if may_serve && end_ns > 0 => fence.open_until(end_ns, self.renewed_ns.unwrap_or(0)),
            _ => fence.close(),
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
        let address = Address::new("h".to_owned(), 1, 2);
        let state = command::found("u", &address, life.incarnation());
        life.note_admission(&state, "u");
        life.note_become(life.incarnation());
        life.move_fence(&fence, ttl);
        assert!(!fence.may_serve(0), "it has no lease");
        assert!(life.begun(LeaseId(1), 50, 50));
        life.renewed(40);
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(129) && !fence.may_serve(130), "an older renewal takes nothing back");
        let mut other = Life::new(1 << 30);
        assert!(other.begun(LeaseId(2), 60, 60));
        other.note_admission(&state, "u");
        other.note_become(other.incarnation());
        other.move_fence(&fence, ttl);
        assert!(!fence.may_serve(60), "another life was admitted");
    }

    #[test]
    fn serves_nothing_before_the_node_is_as_this_life_is_told_to_be() {
        let (mut life, fence, ttl) = (Life::new(u64::MAX), Fence::closed(), Duration::from_nanos(100));
        let address = Address::new("h".to_owned(), 1, 2);
        assert!(life.begun(LeaseId(1), 50, 50));
        life.note_admission(&command::found("u", &address, life.incarnation()), "u");
        life.note_become(life.incarnation() - 1);
        life.move_fence(&fence, ttl);
        assert!(!fence.may_serve(60), "the life before became something");
        life.note_become(life.incarnation());
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(60));
    }

    #[test]
    fn a_life_whose_member_may_have_been_written_is_not_tried_again() {
        let (mut life, fence, ttl) = (Life::new(u64::MAX), Fence::closed(), Duration::from_nanos(100));
        let address = Address::new("h".to_owned(), 1, 2);
        assert!(life.tries(50), "the first attempt, whose answer is lost");
        let mut promised = life.clone();
        assert!(!life.tries(300), "it may have been let serve, and have been replaced");
        promised.note_admission(&command::found("u", &address, promised.incarnation()), "u");
        promised.note_become(promised.incarnation());
        promised.promised(160);
        assert!(promised.tries(150));
        let mut late = promised.clone();
        assert!(promised.begun(LeaseId(2), 150, 159));
        assert!(!late.begun(LeaseId(2), 150, 160), "others may have taken over before the answer");
        promised.move_fence(&fence, ttl);
        assert!(fence.may_serve(229));
    }

    #[test]
    fn goes_on_without_its_lease_as_long_as_others_promise() {
        let (mut life, fence, ttl) = (Life::new(u64::MAX), Fence::closed(), Duration::from_nanos(100));
        let address = Address::new("h".to_owned(), 1, 2);
        assert!(life.begun(LeaseId(1), 50, 50));
        life.note_admission(&command::found("u", &address, life.incarnation()), "u");
        life.promised(160);
        assert!(!life.is_promised(60), "it has not become anything");
        life.note_become(life.incarnation());
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(159) && !fence.may_serve(160));
        assert!(life.outlives_lease(150) && life.lease().is_none());
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(159) && !fence.may_serve(160));
        let mut late = life.clone();
        assert!(!late.begun(LeaseId(2), 155, 160), "others may have taken over");
        assert!(life.begun(LeaseId(2), 155, 159));
        life.promised(0);
        life.move_fence(&fence, ttl);
        assert!(fence.may_serve(234) && !fence.may_serve(235));
        assert!(!life.outlives_lease(170));
        life.move_fence(&fence, ttl);
        assert!(!fence.may_serve(171));
    }
}
