//! What the active vBucket knows of the others: up to where each node has all prepares, and what is safe by that.

use base::planted::{self, Bug};
use base::{DurabilityLevel, Seqno};

use crate::durability::topology::{Chain, Topology};

/// The most nodes whose acknowledgements are kept: two chains, and some that a topology still to come may name.
pub const MAX_NODES: usize = 16;

/// Acknowledgements by node. A node's number says that it has all prepares up to it as safe as their levels ask.
///
/// Nodes that the topology does not name are remembered: it may name them next.
#[derive(Debug)]
pub struct ActiveMonitor {
    acknowledged: Vec<(Box<str>, Seqno)>,
    /// With the active node each chain has a majority that has all prepares up to here.
    replicated: Seqno,
    /// Whether nothing is safe without a topology; else the active node is alone then, and a majority.
    needs_topology: bool,
}

impl ActiveMonitor {
    /// Nobody has acknowledged anything yet. Without a topology the active node is alone, and a majority, or, if it
    /// `needs_topology`, no majority of anything: others may have the vBucket, too, and it was not told yet.
    pub fn new(topology: Option<&Topology>, needs_topology: bool) -> ActiveMonitor {
        let mut monitor = ActiveMonitor { acknowledged: Vec::new(), replicated: Seqno(0), needs_topology };
        monitor.set_topology(topology);
        monitor
    }

    /// From now on these nodes count.
    pub fn set_topology(&mut self, topology: Option<&Topology>) {
        let of_chain = |topology: &Topology, chain: &Chain| self.replicated_in(chain, topology.active());
        let replicated = |topology| {
            let asked = if planted::is(Bug::OneChainAsked) { 1 } else { 2 };
            let chains = Topology::chains(topology).take(asked).map(|chain| of_chain(topology, chain));
            chains.min().unwrap_or_default()
        };
        let without = if self.needs_topology { Seqno(0) } else { Seqno(u64::MAX) };
        self.replicated = topology.map_or(without, replicated);
    }

    /// Whether a prepare can ever be as safe as it asks, as far as this topology goes.
    pub fn is_possible(&self, topology: Option<&Topology>) -> bool {
        topology.map_or(!self.needs_topology, Topology::is_possible)
    }

    /// Notes that a node has all prepares up to `prepared`; a number below an earlier one says nothing new.
    /// Whether more may be safe now.
    pub fn acknowledge(&mut self, topology: Option<&Topology>, node: &str, prepared: Seqno) -> bool {
        let is_named = |name: &str| topology.is_some_and(|topology| topology.names(name));
        match self.acknowledged.iter().position(|(name, _)| **name == *node) {
            Some(at) if self.acknowledged[at].1 >= prepared => return false,
            Some(at) => self.acknowledged[at].1 = prepared,
            None if self.acknowledged.len() < MAX_NODES => self.acknowledged.push((node.into(), prepared)),
            None => match self.acknowledged.iter_mut().find(|(name, _)| !is_named(name)) {
                Some(stranger) => *stranger = (node.into(), prepared),
                None => return false,
            },
        }
        let before = self.replicated;
        self.set_topology(topology);
        self.replicated > before
    }

    /// A node begins anew behind `from`: what it acknowledged beyond, it may have lost.
    pub fn resume(&mut self, topology: Option<&Topology>, node: &str, from: Seqno) {
        for (name, prepared) in &mut self.acknowledged {
            if **name == *node {
                *prepared = from.min(*prepared);
            }
        }
        self.set_topology(topology);
    }

    /// Whether a prepare is as safe as its level asks, with the active node's disk at `persisted`.
    pub fn is_satisfied(&self, prepared: Seqno, level: DurabilityLevel, persisted: Seqno) -> bool {
        let is_on_disk =
            level == DurabilityLevel::Majority || prepared <= persisted || planted::is(Bug::CommitBeforeDisk);
        prepared <= self.replicated && is_on_disk
    }

    /// The acknowledged seqno of each node.
    pub fn acknowledged(&self) -> impl Iterator<Item = (&str, Seqno)> {
        self.acknowledged.iter().map(|(name, prepared)| (&**name, *prepared))
    }

    fn seqno_of(&self, node: &str) -> Seqno {
        self.acknowledged
            .iter()
            .find(|(name, _)| **name == *node)
            .map(|(_, seqno)| *seqno)
            .unwrap_or_default()
    }

    /// Up to where a majority of the chain has all prepares, the active node counted if it is a member.
    fn replicated_in(&self, chain: &Chain, active: &str) -> Seqno {
        let is_active = |name: &&str| *name == active;
        let needed = chain.majority() - chain.members().flatten().filter(is_active).count();
        let mut others = [Seqno(0); super::MAX_CHAIN];
        let numbers =
            chain.members().flatten().filter(|name| !is_active(name)).map(|name| self.seqno_of(name));
        let is_stranger = |name: &str| chain.members().flatten().all(|member| member != name);
        let strangers =
            self.acknowledged().filter(|(name, _)| planted::is(Bug::StrangerCounts) && is_stranger(name));
        for (place, number) in others.iter_mut().zip(numbers.chain(strangers.map(|(_, seqno)| seqno))) {
            *place = number;
        }
        others.sort_unstable_by(|a, b| b.cmp(a));
        needed.checked_sub(1).map_or(Seqno(u64::MAX), |last| others[last])
    }
}

#[cfg(test)]
mod tests;
