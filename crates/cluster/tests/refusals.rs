//! What is refused to one vBucket keeps no other one from becoming what the document says.

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;

use base::VbState;
use cluster::apply::{ApplyTarget, Following, Given, apply_bucket, let_go};
use cluster::{Agent, Bucket, Chain, NodeId, Refusals, State, Status, Step};
use support::{BUCKET, three};

/// A node to which some changes of single vBuckets are refused.
#[derive(Default)]
struct Picky {
    roles: RefCell<BTreeMap<u16, VbState>>,
    followed: RefCell<Vec<u16>>,
    removed: RefCell<Vec<u16>>,
    refuses: Vec<(u16, VbState)>,
}

impl Picky {
    fn having(role: VbState, refuses: &[(u16, VbState)]) -> Picky {
        let roles = (0..VBUCKETS).map(|vb| (vb, role)).collect();
        Picky { roles: RefCell::new(roles), refuses: refuses.to_vec(), ..Picky::default() }
    }

    fn roles(&self) -> Vec<VbState> {
        self.roles.borrow().values().copied().collect()
    }
}

impl ApplyTarget for Picky {
    type Topology = Vec<Chain>;
    type Error = u16;

    fn role(&self, vb: u16) -> Option<VbState> {
        self.roles.borrow().get(&vb).copied()
    }

    fn topology(&self, _: u16, chains: &[Chain]) -> Result<Vec<Chain>, u16> {
        Ok(chains.to_vec())
    }

    fn set_role(&self, vb: u16, role: VbState) -> Result<(), u16> {
        if self.refuses.contains(&(vb, role)) {
            return Err(vb);
        }
        self.roles.borrow_mut().insert(vb, role);
        Ok(())
    }

    fn activate(&self, vb: u16, _: Vec<Chain>) -> Result<(), u16> {
        self.set_role(vb, VbState::Active)
    }

    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<u16>> {
        *self.followed.borrow_mut() = following.keys().copied().collect();
        Refusals::of(following.keys().filter_map(|vb| self.set_role(*vb, VbState::Replica).err()))
    }

    fn remove(&self, vb: u16) -> Result<(), u16> {
        self.removed.borrow_mut().push(vb);
        self.roles.borrow_mut().remove(&vb);
        Ok(())
    }
}

const VBUCKETS: u16 = 4;

/// Node 1 is active for the first two vBuckets and a replica of the others.
fn half_and_half() -> (State, Bucket) {
    let state = three().state;
    let mut bucket = state.buckets[BUCKET].clone();
    let chain = |ids: [u32; 3]| ids.map(|id| Some(NodeId(id))).to_vec();
    bucket.map = vec![chain([1, 2, 3]), chain([1, 2, 3]), chain([2, 1, 3]), chain([2, 1, 3])];
    (state, bucket)
}

fn refused(outcome: Result<(), Refusals<u16>>) -> Vec<u16> {
    outcome.err().into_iter().flatten().collect()
}

#[test]
fn one_vbucket_keeps_no_other_one_from_being_applied() {
    let (state, bucket) = half_and_half();
    let agent = Agent::new(&state, "1", 10).expect("it is a node");
    let (active, replica, dead) = (VbState::Active, VbState::Replica, VbState::Dead);
    let mut given = Given::default();
    let mut target = Picky::having(dead, &[(0, active), (2, replica)]);
    assert_eq!(refused(apply_bucket(&agent, &bucket, &target, &mut given)), [2, 0]);
    assert_eq!(target.roles(), [dead, active, dead, replica]);
    // The next application tries again what was refused.
    target.refuses.clear();
    assert_eq!(refused(apply_bucket(&agent, &bucket, &target, &mut given)), [0; 0]);
    assert_eq!(target.roles(), [active, active, replica, replica]);
}

#[test]
fn a_vbucket_that_stays_active_follows_no_node() {
    let (state, bucket) = half_and_half();
    let agent = Agent::new(&state, "1", 10).expect("it is a node");
    let target = Picky::having(VbState::Active, &[(2, VbState::Replica)]);
    assert_eq!(refused(apply_bucket(&agent, &bucket, &target, &mut Given::default())), [2]);
    assert_eq!(*target.followed.borrow(), [3]);
    assert_eq!(target.roles()[3], VbState::Replica);
}

#[test]
fn all_refusals_of_letting_go_are_told() {
    let (state, bucket) = half_and_half();
    let agent = Agent::new(&state, "3", 10).expect("it is a node");
    let target = Picky::having(VbState::Active, &[(0, VbState::Replica), (2, VbState::Replica)]);
    assert_eq!(refused(let_go(&agent, &bucket, &target)), [0, 2]);
    let (active, replica) = (VbState::Active, VbState::Replica);
    assert_eq!(target.roles(), [active, replica, active, replica]);
}

#[test]
fn a_node_that_comes_without_its_copies_drops_them_when_the_rebalance_begins() {
    let (mut state, mut bucket) = half_and_half();
    let (me, first) = (NodeId(3), NodeId(1));
    bucket.map.iter_mut().for_each(|chain| *chain = vec![Some(first), None, None]);
    // It begins with the copy that this node kept of vBucket 3, and builds one of vBucket 0.
    let mut begun = bucket.clone();
    begun.target = begun.map.clone();
    begun.map[3] = vec![Some(me), None, None];
    begun.target[0] = vec![Some(first), Some(me), None];
    begun.steps.insert(0, Step::Build);
    let dead = VbState::Dead;
    for status in [Status::New, Status::FullRecovery, Status::DeltaRecovery] {
        state.nodes.get_mut(&me).expect("it is there").status = status;
        let agent = |state: &State| Agent::new(state, "3", 10).expect("it is a node");
        let mut target = Picky::having(dead, &[]);
        let mut given = Given::default();
        assert_eq!(refused(apply_bucket(&agent(&state), &bucket, &target, &mut given)), [0; 0]);
        assert_eq!((target.roles(), target.removed.borrow().len()), (vec![dead; 4], 0), "{status}");
        state.nodes.get_mut(&me).expect("it is there").status = Status::Active;
        target.refuses.clear();
        assert_eq!(refused(apply_bucket(&agent(&state), &begun, &target, &mut given)), [0; 0]);
        let (removed, roles) = (target.removed.take(), target.roles.take());
        let wanted: &[u16] = if status == Status::DeltaRecovery { &[1, 2] } else { &[0, 1, 2] };
        assert_eq!(removed, wanted, "{status}");
        assert_eq!(roles.into_iter().collect::<Vec<_>>(), [(0, VbState::Replica), (3, VbState::Active)]);
    }
}
