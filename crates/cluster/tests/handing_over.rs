//! A vBucket that is handed over by another thread while its node becomes what the document says.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;

use base::VbState;
use cluster::apply::{ApplyTarget, Following, Given, apply_bucket};
use cluster::{Agent, Chain, NodeId, Refusals, Step};
use support::{BUCKET, three};

/// A node with one vBucket, which somebody takes over while the node looks after its links.
struct HandedOver {
    role: Cell<VbState>,
    activated: RefCell<Vec<Vec<Chain>>>,
}

impl ApplyTarget for HandedOver {
    type Topology = Vec<Chain>;
    type Error = Infallible;

    fn role(&self, _: u16) -> Option<VbState> {
        Some(self.role.get())
    }

    fn topology(&self, _: u16, chains: &[Chain]) -> Result<Vec<Chain>, Infallible> {
        Ok(chains.to_vec())
    }

    fn set_role(&self, _: u16, role: VbState) -> Result<(), Infallible> {
        self.role.set(role);
        Ok(())
    }

    fn activate(&self, _: u16, topology: Vec<Chain>) -> Result<(), Infallible> {
        self.role.set(VbState::Active);
        self.activated.borrow_mut().push(topology);
        Ok(())
    }

    fn follow(&self, _: &BTreeMap<u16, Following>) -> Result<(), Refusals<Infallible>> {
        self.role.set(VbState::Dead);
        Ok(())
    }

    fn remove(&self, _: u16) -> Result<(), Infallible> {
        Ok(())
    }
}

#[test]
fn stays_handed_over() {
    let mut view = three();
    let bucket = view.state.buckets.get_mut(BUCKET).expect("it is there");
    bucket.target = vec![[2, 1, 3].map(|id| Some(NodeId(id))).to_vec()];
    bucket.steps.insert(0, Step::TakeOver { since: 1 });
    let agent = Agent::new(&view.state, "1", 10).expect("it is a node");
    let target = HandedOver { role: Cell::new(VbState::Active), activated: RefCell::default() };
    let mut given = Given::default();
    for _ in 0..2 {
        apply_bucket(&agent, &view.state.buckets[BUCKET], &target, &mut given).expect("nothing fails");
        assert_eq!(target.role(0), Some(VbState::Dead), "two nodes would serve it");
    }
    assert_eq!(target.activated.take(), Vec::<Vec<Chain>>::new());
}
