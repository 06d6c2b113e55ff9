//! The order in which a node becomes what the document says, whatever holds its vBuckets.
//!
//! A server and the simulator of whole clusters run this, each with a target of its own.

use std::collections::BTreeMap;

use base::VbState;
use base::planted::{self, Bug};

use crate::agent::{Agent, Want};
use crate::refusals::Refusals;
use crate::state::{Bucket, Chain, NodeId};

/// Whom a vBucket follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// The node that has what it follows.
    pub source: NodeId,
    /// Whether it becomes active in that node's place.
    pub takes_over: bool,
}

/// What a node has of one bucket: the vBuckets and the links to other nodes.
pub trait ApplyTarget {
    /// Chains as the vBuckets keep them.
    type Topology: PartialEq + Clone;
    /// Why something was not done.
    type Error;

    /// A vBucket's role; nothing if it is not there, or dead and without a change.
    fn role(&self, vb: u16) -> Option<VbState>;
    /// Whether what is stored of a vBucket cannot be read, and nothing of it is in memory: it is not there, and does not
    /// begin with nothing.
    fn is_unreadable(&self, _: u16) -> bool {
        false
    }
    /// Whether the files of a vBucket cannot be believed.
    fn is_damaged(&self, _: u16) -> bool {
        false
    }
    /// Whether a node is alive and does not say that its copy of a vBucket cannot be read.
    fn is_live(&self, _vb: u16, _: NodeId) -> bool {
        false
    }
    /// The files of a damaged vBucket are kept elsewhere, and the vBucket is not there any more.
    fn set_aside(&self, _: u16) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Chains by the names under which replicas introduce themselves.
    fn topology(&self, vb: u16, chains: &[Chain]) -> Result<Self::Topology, Self::Error>;
    /// A vBucket takes a role other than active.
    fn set_role(&self, vb: u16, role: VbState) -> Result<(), Self::Error>;
    /// A vBucket becomes active, and durable writes need these chains.
    fn activate(&self, vb: u16, topology: Self::Topology) -> Result<(), Self::Error>;
    /// The durable writes of an active vBucket need these chains from now on. One that is not active, or not any more,
    /// is left as it is: false. A target whose vBuckets are handed over by other threads must do that in one step.
    fn lead_on(&self, vb: u16, topology: Self::Topology) -> Result<bool, Self::Error> {
        let leads = self.role(vb) == Some(VbState::Active);
        if leads {
            self.activate(vb, topology)?;
        }
        Ok(leads)
    }
    /// From now on these vBuckets follow these nodes, and no others follow anybody. What is followed becomes replica or
    /// pending; what was followed in the same way before goes on.
    ///
    /// A refusal keeps no other vBucket from following, and no link that is not wanted any more from ending.
    fn follow(&self, following: &BTreeMap<u16, Following>) -> Result<(), Refusals<Self::Error>>;
    /// A dead vBucket goes with all that it has.
    fn remove(&self, vb: u16) -> Result<(), Self::Error>;
}

/// What a process knows of a bucket from the last time that it applied the document.
#[derive(Clone, Debug)]
pub struct Given<T> {
    /// The topologies that the active vBuckets were given last, so that only changes are asked for.
    topologies: BTreeMap<u16, T>,
    /// The node is to come without the copies that it has kept. After a restart it comes with them, as if it had been taken
    /// back with its copies: the streams of replicas end what differs either way.
    drops_kept: bool,
}

impl<T> Default for Given<T> {
    fn default() -> Self {
        Given { topologies: BTreeMap::new(), drops_kept: false }
    }
}

/// Collects what is refused to single vBuckets, so that the others go on.
struct Collected<E>(Vec<E>);

impl<E> Collected<E> {
    /// What was done; `None` if it was refused.
    fn note<T>(&mut self, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|refusal| self.0.push(refusal)).ok()
    }

    fn note_all(&mut self, outcome: Result<(), Refusals<E>>) {
        self.0.extend(outcome.err().into_iter().flatten());
    }
}

/// Sets the files of damaged vBuckets aside, if that may be. Returns those that are still there: one that has something in
/// memory lets go of its link and is dead first, and the next attempt sets it aside.
fn part_with<S: ApplyTarget>(
    agent: &Agent,
    bucket: &Bucket,
    target: &S,
    refused: &mut Collected<S::Error>,
) -> Vec<u16> {
    let mut parting = Vec::new();
    for vb in bucket.vbuckets().filter(|vb| target.is_damaged(*vb)) {
        let is_live_elsewhere =
            bucket.active(vb).is_some_and(|id| id != agent.id() && target.is_live(vb, id));
        if !agent.may_part_with(bucket, vb, is_live_elsewhere) {
            continue;
        }
        let is_in_use = target.role(vb).is_some_and(|is| is != VbState::Dead);
        if !is_in_use || planted::is(Bug::SetAsideInUse) {
            refused.note(target.set_aside(vb));
        }
        if target.is_damaged(vb) {
            parting.push(vb);
        }
    }
    parting
}

/// Removes the copies that a node kept which comes without them, once a rebalance has begun: from then on each vBucket has an
/// owner, and those that begin with a copy of this node are in a chain.
fn drop_kept<S: ApplyTarget>(
    agent: &Agent,
    bucket: &Bucket,
    target: &S,
    given: &mut Given<S::Topology>,
    refused: &mut Collected<S::Error>,
) {
    if agent.comes_without_copies() {
        given.drops_kept = true;
        return;
    }
    if !std::mem::take(&mut given.drops_kept) {
        return;
    }
    for vb in bucket.vbuckets().filter(|vb| agent.gives_up_kept(bucket, *vb)) {
        if target.role(vb).is_some() {
            let gone = target.set_role(vb, VbState::Dead).and_then(|()| target.remove(vb));
            given.drops_kept |= refused.note(gone).is_none();
        }
    }
}

/// Has a bucket that could not be made what the document says serve nothing that the document does not let it. What it
/// may serve goes on as it is, and links do, unless one of them would give a vBucket a role that it must not have.
///
/// # Errors
///
/// What was refused; everything else has let go.
pub fn let_go<S: ApplyTarget>(agent: &Agent, bucket: &Bucket, target: &S) -> Result<(), Refusals<S::Error>> {
    if planted::is(Bug::FailedBucketServes) {
        return Ok(());
    }
    let must_not_be = |role: VbState| {
        bucket.vbuckets().filter(move |vb| {
            let lets = |want| {
                matches!((role, want), (_, Want::Active { .. }) | (VbState::Pending, Want::TakeOver { .. }))
            };
            target.role(*vb) == Some(role) && !lets(agent.want(bucket, *vb, Some(role)))
        })
    };
    let mut refused = Collected(Vec::new());
    if must_not_be(VbState::Pending).next().is_some() {
        // After this no link makes a vBucket active.
        refused.note_all(target.follow(&BTreeMap::new()));
    }
    for role in [VbState::Pending, VbState::Active] {
        for vb in must_not_be(role) {
            refused.note(target.set_role(vb, VbState::Replica));
        }
    }
    Refusals::of(refused.0)
}

/// Makes all vBuckets of a bucket what the document says; idempotent, to be repeated until it succeeds.
///
/// Links that are not wanted any more end first: none of them gives a vBucket a role after this. Whatever is to become
/// active does so last.
///
/// # Errors
///
/// What was refused. A vBucket to which something is refused is left as it is; every other one becomes what the document
/// says.
pub fn apply_bucket<S: ApplyTarget>(
    agent: &Agent,
    bucket: &Bucket,
    target: &S,
    given: &mut Given<S::Topology>,
) -> Result<(), Refusals<S::Error>> {
    let mut refused = Collected(Vec::new());
    let parting = part_with(agent, bucket, target, &mut refused);
    drop_kept(agent, bucket, target, given, &mut refused);
    let roles: Roles = bucket.vbuckets().map(|vb| (vb, target.role(vb))).collect();
    let role_was = |vb: u16| roles.get(&vb).copied().flatten();
    let mut wants = agent.wants(bucket, role_was);
    // One that cannot be read does not begin with nothing, whatever it is to be.
    let stays_out = |vb: u16| role_was(vb).is_none() && target.is_unreadable(vb);
    wants.retain(|vb, _| !stays_out(*vb) || planted::is(Bug::DamagedBeginsEmpty));
    wants.extend(parting.into_iter().filter(|vb| !stays_out(*vb)).map(|vb| (vb, Want::Keep)));
    let following = to_follow(&wants, target, &mut refused);
    refused.note_all(target.follow(&following));
    given.topologies.retain(|vb, _| matches!(wants.get(vb), Some(Want::Active { .. })));
    for (vb, want) in &wants {
        let is = target.role(*vb);
        let done = match want {
            Want::Hold if is.is_some_and(|is| is != VbState::Replica) => {
                target.set_role(*vb, VbState::Replica)
            }
            Want::Keep if is.is_some_and(|is| is != VbState::Dead) => target.set_role(*vb, VbState::Dead),
            Want::Gone if is.is_some() => {
                target.set_role(*vb, VbState::Dead).and_then(|()| target.remove(*vb))
            }
            _ => Ok(()),
        };
        refused.note(done);
    }
    activate(&wants, &roles, target, given, &mut refused);
    Refusals::of(refused.0)
}

/// The roles of all vBuckets before anything is changed.
type Roles = BTreeMap<u16, Option<VbState>>;

/// Whom the vBuckets are to follow. One that was active follows another history now and goes back to where they part: if
/// it cannot stop being active, it follows none.
fn to_follow<S: ApplyTarget>(
    wants: &BTreeMap<u16, Want>,
    target: &S,
    refused: &mut Collected<S::Error>,
) -> BTreeMap<u16, Following> {
    let mut following = BTreeMap::new();
    for (vb, want) in wants {
        let (source, takes_over) = match want {
            Want::Replica { source } => (*source, false),
            Want::TakeOver { source } => (*source, true),
            _ => continue,
        };
        let was_active = !takes_over && target.role(*vb) == Some(VbState::Active);
        if was_active && refused.note(target.set_role(*vb, VbState::Replica)).is_none() {
            continue;
        }
        following.insert(*vb, Following { source, takes_over });
    }
    following
}

/// Makes vBuckets active, and gives those that are active their new chains.
fn activate<S: ApplyTarget>(
    wants: &BTreeMap<u16, Want>,
    roles: &Roles,
    target: &S,
    given: &mut Given<S::Topology>,
    refused: &mut Collected<S::Error>,
) {
    for (vb, want) in wants {
        let Want::Active { topology } = want else { continue };
        let Some(topology) = refused.note(target.topology(*vb, topology)) else { continue };
        let done = if roles.get(vb).copied().flatten() != Some(VbState::Active) {
            target.activate(*vb, topology.clone()).map(|()| true)
        } else if given.topologies.get(vb) != Some(&topology) {
            // One that was handed over since its role was looked at stays so: two would serve it.
            target.lead_on(*vb, topology.clone())
        } else {
            continue;
        };
        if refused.note(done) == Some(true) {
            given.topologies.insert(*vb, topology);
        }
    }
}
