//! The nodes of a cluster, what the newest document says of them, and which of them reach each other.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use base::VbId;
use base::env::sim::SplitMix64;
use cluster::state::present;
use cluster::{NodeId, State, Status};
use engine::Bucket;

use crate::jobs::Fault;
use crate::links;
use crate::node::{BUCKET, Node};
use crate::rules::Rules;
use crate::store::TTL;
use crate::target::{name_of, place_of};

/// The store, among the ends of messages.
pub const STORE: usize = usize::MAX;

/// All nodes, by place.
pub struct Nodes {
    all: Vec<Node>,
    /// The newest document, as it was written.
    pub newest: State,
    /// One-way: from, to.
    pub cut: BTreeSet<(usize, usize)>,
    vbuckets: u16,
}

impl Deref for Nodes {
    type Target = [Node];

    fn deref(&self) -> &[Node] {
        &self.all
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut [Node] {
        &mut self.all
    }
}

/// The node at a place, to the document.
pub fn id_of(at: usize) -> NodeId {
    NodeId(at as u32 + 1)
}

impl Nodes {
    /// Nodes that have nothing, and no document.
    pub fn new(rules: &Rules, rng: &mut SplitMix64) -> Nodes {
        let mut all: Vec<Node> = (0..rules.nodes).map(|at| Node::new(at, rules, rng)).collect();
        all.iter_mut().for_each(|node| node.member.held.asks_for_promises = rules.seed % 16 != 8);
        Nodes { all, newest: State::empty(), cut: BTreeSet::new(), vbuckets: rules.vbuckets }
    }

    /// The numbers of all vBuckets.
    pub fn vbuckets(&self) -> std::ops::Range<u16> {
        0..self.vbuckets
    }

    /// One of them.
    pub fn any(&self, rng: &mut SplitMix64) -> usize {
        rng.below(self.all.len() as u64) as usize
    }

    /// All buckets that there are.
    pub fn buckets(&self) -> Vec<(usize, Arc<Bucket>)> {
        self.all.iter().filter_map(|node| Some((node.at, node.bucket.clone()?))).collect()
    }

    /// The place of the node that calls itself so.
    pub fn called(&self, name: &str) -> Option<usize> {
        (0..self.all.len()).find(|at| name_of(*at) == name)
    }

    /// Whether messages get from one end to another.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// The clocks of all nodes go on, each at its own rate.
    pub fn let_time_pass(&mut self, now_us: u64, by_us: u64) {
        for node in &self.all {
            let by = Duration::from_nanos(by_us * node.rate);
            // A node that stands still may be on a machine that is suspended.
            if node.frozen_until_us > now_us {
                node.handles.clock.suspend(by);
            } else {
                node.handles.clock.advance(by);
            }
        }
    }

    /// Connections to a node break until some time.
    pub fn break_with(&self, at: usize, until_us: u64) {
        for other in &self.all {
            other.links.break_with(at, until_us);
        }
    }

    /// A node is cut off, from the store or from everything, for how long.
    pub fn cut_off(&mut self, at: usize, fault: Fault, rng: &mut SplitMix64) -> u64 {
        let is_store_only = matches!(fault, Fault::StoreCut | Fault::LeaseLoss);
        let others: Vec<usize> =
            (0..self.all.len()).filter(|other| *other != at && !is_store_only).chain([STORE]).collect();
        let way = if fault == Fault::OneWay { rng.below(2) } else { 2 };
        for other in others {
            if way != 0 {
                self.cut.insert((at, other));
            }
            if way != 1 {
                self.cut.insert((other, at));
            }
        }
        let ttl_us = TTL.as_micros() as u64;
        match fault {
            Fault::StoreCut => rng.between(50_000, ttl_us / 2),
            Fault::LeaseLoss => rng.between(ttl_us * 5 / 4, ttl_us * 5 / 2),
            _ => rng.between(50_000, 2_500_000),
        }
    }

    /// A node is not cut off any more.
    pub fn join_again(&mut self, at: usize) {
        self.cut.retain(|(from, to)| *from != at && *to != at);
    }

    /// Nothing hinders a node any more, except what it has lost.
    pub fn heal_all(&mut self) {
        self.cut.clear();
        for node in &mut self.all {
            (node.frozen_until_us, node.slow_until_us) = (0, 0);
            node.handles.disk.heal();
        }
    }

    /// The status of a node in the newest document.
    pub fn status(&self, at: usize) -> Option<Status> {
        self.newest.nodes.get(&id_of(at)).map(|node| node.status)
    }

    /// Whether all nodes take part.
    pub fn are_active(&self) -> bool {
        self.newest.nodes.values().all(|node| node.status == Status::Active)
    }

    /// Whether no vBucket is moved, and none waits until it is chosen which node has it.
    pub fn is_settled(&self) -> bool {
        self.newest.rebalance.is_none() && !self.newest.is_choosing()
    }

    /// The node that the newest document has a vBucket active on.
    pub fn active(&self, vb: u16) -> Option<usize> {
        let id = self.newest.buckets.get(BUCKET)?.active(vb)?;
        place_of(&self.newest, id)
    }

    /// The chain of a vBucket by places of nodes, the active one first.
    pub fn chain(&self, vb: u16) -> Vec<usize> {
        let Some(bucket) = self.newest.buckets.get(BUCKET) else { return Vec::new() };
        let place = |id| place_of(&self.newest, id);
        present(bucket.chain(vb)).filter_map(place).collect()
    }

    /// Whether the chain of a vBucket has so many members that prepares can be committed.
    pub fn has_majority(&self, vb: u16) -> bool {
        let bucket = self.newest.buckets.get(BUCKET);
        bucket.is_some_and(|bucket| {
            let chain = bucket.chain(vb);
            present(chain).count() >= cluster::state::majority(chain)
        })
    }

    /// Whether all members of all chains have everything, on disk too.
    pub fn are_level(&self, now_us: u64) -> bool {
        self.vbuckets().all(|vb| {
            let chain = self.chain(vb);
            let reports: Vec<_> = chain.iter().map(|at| self.all[*at].report_of(vb)).collect();
            let Some(first) = reports.first().filter(|_| self.all[chain[0]].serves(vb, now_us)) else {
                return false;
            };
            reports.iter().all(|report| {
                let place = (report.high_seqno, report.persisted, report.uuid);
                place == (first.high_seqno, first.high_seqno, first.uuid)
            })
        })
    }

    /// Whether nothing is under way any more at any of them, and everybody has everything.
    pub fn are_well(&self, now_us: u64) -> bool {
        let is_quiet = |node: &Node| {
            node.is_awake(now_us)
                && node.waiting.is_empty()
                && links::are_streaming(node.front_end.replication())
        };
        self.is_settled()
            && self.newest.buckets.values().all(|bucket| bucket.steps.is_empty())
            && self.all.iter().all(is_quiet)
            && self.all.iter().all(|node| node.member.applied == self.newest.revision)
            && self.are_level(now_us)
    }

    /// How they are: why they are not well, for a reader of the output.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?} {:?}", self.newest.buckets.get(BUCKET), self.newest.rebalance);
        for node in &self.all {
            text += &format!("\nnode {}: up {} applied {}", node.at, node.is_up, node.member.applied);
            text += &format!(" damaged {:?}", node.damaged());
            for vb in self.vbuckets() {
                text += &format!(" {:?}", node.report_of(vb));
            }
            text += &format!(
                " waiting {} streaming {}",
                node.waiting.len(),
                links::are_streaming(node.front_end.replication())
            );
            text += &links::describe(node.front_end.replication());
        }
        text
    }

    /// Tombstones up to here may be gone somewhere.
    pub fn purged(&self, vb: VbId) -> u64 {
        let of = |bucket: Arc<Bucket>| bucket.with_vbucket(vb, |vb| vb.purge_seqno().0);
        self.buckets().into_iter().filter_map(|(_, bucket)| of(bucket)).max().unwrap_or(0)
    }
}
