//! The operator of nodes without a cluster: decides which node is active, has the others follow it, and gives roles one
//! by one, so that nodes disagree for a while.

use std::collections::BTreeMap;

use ::node::replication::{Password, Source, Sources};
use base::{VbId, VbState};
use dcp::Mode;

use super::histories::{At, Histories, bucket_of, place, role};
use super::third::Third;
use crate::connections::{CLIENT, PASSWORD};
use crate::dice::{Dice, show};
use crate::nodes::Nodes;
use crate::target::name_of;

/// Which node is to have a vBucket.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The active node.
    pub active: usize,
    /// The node to which it is being handed over.
    pub heir: Option<usize>,
}

/// What the operator needs of the world.
pub struct Field<'a> {
    /// All nodes.
    pub nodes: &'a mut Nodes,
    /// The histories that they are in.
    pub histories: &'a mut Histories,
    /// Follows one of them.
    pub third: &'a mut Third,
    /// Decides.
    pub dice: &'a mut Dice,
}

impl Field<'_> {
    /// A node gets a role.
    pub fn set_role(&mut self, at: At, wanted: VbState) -> Result<(), String> {
        if self.third.node == at.node {
            self.third.catch_up(self.nodes, self.histories)?;
        }
        let before = place(self.nodes, at).uuid;
        if wanted == VbState::Active && role(self.nodes, at) != Some(wanted) {
            self.histories.look(self.nodes, at)?;
        }
        let set = bucket_of(self.nodes, at.node).roles().set_vbucket_state(at.vb, wanted, None);
        set.map_err(|refusal| format!("{at:?} does not become {wanted:?}: {refusal:?}"))?;
        show(|| format!("{at:?} becomes {wanted:?} at {:?}", place(self.nodes, at)));
        self.histories.name_branch(self.nodes, at, before)
    }
}

/// Plans, and what nodes were told of them.
pub struct Operator {
    plans: Vec<Plan>,
    /// By node and vBucket: which node is followed, and how.
    following: BTreeMap<At, (usize, Mode)>,
}

impl Operator {
    /// The first node is active for all vBuckets.
    pub fn new(nodes: &Nodes) -> Operator {
        let plans = nodes.vbuckets().map(|_| Plan { active: 0, heir: None }).collect();
        Operator { plans, following: BTreeMap::new() }
    }

    /// What is planned for a vBucket.
    pub fn plan(&self, vb: VbId) -> Plan {
        self.plans[usize::from(vb.0)]
    }

    /// Whether a vBucket of a node follows that of another one.
    pub fn follows(&self, at: At, source: usize) -> bool {
        self.following.get(&at).is_some_and(|(of, _)| *of == source)
    }

    /// The node that a vBucket is to be taken over from.
    pub fn source_of(&self, at: At) -> usize {
        self.following.get(&at).map_or(self.plan(at.vb).active, |(source, _)| *source)
    }

    /// A node has ended: it follows no other one.
    pub fn forget(&mut self, node: usize) {
        self.following.retain(|at, _| at.node != node);
    }

    /// Tells a node what it follows.
    fn declare(&self, nodes: &Nodes, node: usize) -> Result<(), String> {
        let of_node = self.following.iter().filter(|(at, _)| at.node == node);
        let source = |(at, (source, mode)): (&At, &(usize, Mode))| {
            let (username, password) = (CLIENT.to_owned(), Password::from(PASSWORD.to_owned()));
            (at.vb, Source { node: name_of(*source), username, password, mode: *mode })
        };
        let sources: Sources = of_node.map(source).collect();
        let refused = nodes[node].front_end.replication().want_each(bucket_of(nodes, node), &sources);
        match refused.first() {
            Some(refused) => Err(format!("node {node} does not follow: {refused}")),
            None => Ok(()),
        }
    }

    fn unlink(&mut self, nodes: &Nodes, at: At) -> Result<(), String> {
        if self.following.remove(&at).is_some() { self.declare(nodes, at.node) } else { Ok(()) }
    }

    fn link(&mut self, nodes: &Nodes, at: At, source: usize, mode: Mode) -> Result<(), String> {
        if self.following.insert(at, (source, mode)) == Some((source, mode)) {
            return Ok(());
        }
        self.declare(nodes, at.node)
    }

    /// A replica becomes active; in half of the cases the active node is not told.
    pub fn fail_over(&mut self, field: &mut Field<'_>, at: At) -> Result<(), String> {
        let plan = self.plan(at.vb);
        let is_replica = role(field.nodes, at) == Some(VbState::Replica);
        if at.node == plan.active || !is_replica || plan.heir.is_some() {
            return Ok(());
        }
        field.histories.counts.failovers += 1;
        if field.dice.one_in(2) {
            field.set_role(At { node: plan.active, ..at }, VbState::Replica)?;
        } else {
            field.histories.counts.stale += 1;
        }
        self.unlink(field.nodes, at)?;
        field.set_role(at, VbState::Active)?;
        self.plans[usize::from(at.vb.0)].active = at.node;
        Ok(())
    }

    /// A handover to a replica begins.
    pub fn hand_over(&mut self, field: &mut Field<'_>, at: At) {
        let is_replica = role(field.nodes, at) == Some(VbState::Replica);
        let plan = &mut self.plans[usize::from(at.vb.0)];
        if at.node != plan.active && plan.heir.is_none() && is_replica {
            plan.heir = Some(at.node);
            field.histories.counts.takeovers += 1;
        }
    }

    /// Brings roles and links a step closer to what they must be; all of them, if nothing goes wrong any more.
    pub fn reconcile(&mut self, field: &mut Field<'_>, is_mending: bool) -> Result<(), String> {
        for vb in field.nodes.vbuckets().map(VbId) {
            self.reconcile_handover(field, vb, is_mending)?;
            let Plan { active, heir } = self.plan(vb);
            let first = At { node: active, vb };
            if heir.is_none() && role(field.nodes, first) != Some(VbState::Active) {
                self.unlink(field.nodes, first)?;
                field.set_role(first, VbState::Active)?;
            }
            for node in 0..field.nodes.len() {
                if node == active || !(is_mending || field.dice.one_in(6)) {
                    continue;
                }
                let at = At { node, vb };
                let is_heir = heir == Some(node);
                let wanted = if is_heir { VbState::Pending } else { VbState::Replica };
                if role(field.nodes, at) != Some(wanted) {
                    self.unlink(field.nodes, at)?;
                    field.set_role(at, wanted)?;
                }
                let mode = if is_heir { Mode::TakeOver } else { Mode::Replicate };
                self.link(field.nodes, at, active, mode)?;
            }
        }
        Ok(())
    }

    fn reconcile_handover(
        &mut self,
        field: &mut Field<'_>,
        vb: VbId,
        is_mending: bool,
    ) -> Result<(), String> {
        let Some(heir) = self.plan(vb).heir else { return Ok(()) };
        let at = At { node: heir, vb };
        if role(field.nodes, at) == Some(VbState::Active) {
            field.histories.counts.taken_over += 1;
            self.unlink(field.nodes, at)?;
            self.plans[usize::from(vb.0)] = Plan { active: heir, heir: None };
        } else if field.dice.one_in(if is_mending { 2_000 } else { 60 }) {
            self.unlink(field.nodes, at)?;
            self.plans[usize::from(vb.0)].heir = None;
        }
        Ok(())
    }
}
