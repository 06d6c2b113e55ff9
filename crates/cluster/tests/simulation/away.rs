//! The coordination store is away for long, or two nodes are cut off from the others and from the store.
//!
//! Runs of some seeds have this. What it does is drawn from numbers of its own.

use base::env::sim::SplitMix64;
use cluster::state::present;

use crate::node::BUCKET;
use crate::world::{Event, FAULTS_US, STORE, World};

/// When a calm cluster is whole: its leases are there, and all nodes have promised.
const CALM_FROM_US: u64 = 1_000_000;
/// How long a node may serve that has heard neither of the store nor of most nodes: a lease or a promise by the slowest
/// clock.
const ALONE_US: u64 = 1_250_000;

/// What happens to the store, or to two nodes, in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// It is away for some time, while other faults go on.
    Store { from_us: u64, until_us: u64 },
    /// It is away, and nothing else happens: no client may notice.
    Calm { from_us: u64, until_us: u64 },
    /// A node and one that could take over from it are cut off together, and nothing else happens: they are a minority.
    Pair { from_us: u64, until_us: u64 },
}

impl Away {
    pub fn of(seed: u64, nodes: usize) -> Option<Away> {
        let mut rng = SplitMix64::new(seed ^ 0xa_3a7);
        let from_us = rng.between(CALM_FROM_US, 3_000_000);
        let mut until_us = |least, most| from_us + rng.between(least, most);
        match seed % 16 {
            1 => Some(Away::Store { from_us, until_us: until_us(1_500_000, 3_000_000) }),
            3 => Some(Away::Calm { from_us, until_us: until_us(3_000_000, 8_000_000) }),
            7 if nodes == 5 => Some(Away::Pair { from_us, until_us: until_us(2_000_000, 3_000_000) }),
            _ => None,
        }
    }

    /// Away for so long from the moment in which all is well, and nothing else happens.
    pub fn calm(length_us: u64) -> Away {
        Away::Calm { from_us: CALM_FROM_US, until_us: CALM_FROM_US + length_us }
    }

    /// When it begins, and when it is over.
    pub fn times_us(self) -> (u64, u64) {
        match self {
            Away::Store { from_us, until_us }
            | Away::Calm { from_us, until_us }
            | Away::Pair { from_us, until_us } => (from_us, until_us),
        }
    }
}

impl World {
    /// Whether nothing else goes wrong in this run.
    pub fn is_calm(&self) -> bool {
        matches!(self.away, Some(Away::Calm { .. }))
    }

    /// It begins, or is over.
    pub fn go_away(&mut self, begins: bool) {
        self.show(|| format!("{:?}, begins: {begins}", self.away));
        match self.away {
            Some(Away::Store { .. } | Away::Calm { .. }) => {
                self.is_store_away = begins;
                self.tally.away += u64::from(begins);
            }
            Some(Away::Pair { .. }) if begins => self.cut_off_pair(),
            Some(Away::Pair { .. }) => self.cut.clear(),
            None => {}
        }
    }

    fn cut_off_pair(&mut self) {
        let Some(bucket) = self.newest.buckets.get(BUCKET) else { return };
        let pair: Vec<usize> = present(bucket.chain(0)).take(2).filter_map(|id| self.node_of(id)).collect();
        if pair.len() < 2 || self.troubled() > 0 {
            return;
        }
        self.tally.pairs += 1;
        for end in (0..self.nodes.len()).filter(|at| !pair.contains(at)).chain([STORE]) {
            self.cut.extend(pair.iter().flat_map(|at| [(*at, end), (end, *at)]));
        }
    }

    /// While nothing but the store is away each vBucket is served, at every moment, also when the store comes back.
    pub fn check_served(&mut self) {
        if !self.is_calm() || self.now_us() < CALM_FROM_US {
            return;
        }
        let is_served = |vb: &u16| self.nodes.iter().any(|node| node.serves(*vb, self.now_us()));
        if let Some(vb) = (0..crate::world::VBUCKETS).find(|vb| !is_served(vb)) {
            self.violate(format!("no node serves vBucket {vb} while nothing but the store is away"));
        }
    }

    /// A node that hears neither of the store nor of most nodes does not serve for long.
    pub fn check_alone(&mut self) {
        if self.is_calm() {
            return;
        }
        let now_us = self.now_us();
        let hears = |at: usize, end: usize| self.reaches(at, end) || self.reaches(end, at);
        let mut heard = Vec::new();
        for at in 0..self.nodes.len() {
            let others =
                (0..self.nodes.len()).filter(|other| *other != at && self.nodes[*other].is_awake(now_us));
            let ends: Vec<usize> = others.chain([STORE]).filter(|end| hears(at, *end)).collect();
            heard.push(ends);
        }
        for (node, ends) in self.nodes.iter_mut().zip(heard) {
            node.heard_us.extend(ends.into_iter().map(|end| (end, now_us)));
        }
        let serves = |at: &usize| (0..crate::world::VBUCKETS).any(|vb| self.nodes[*at].serves(vb, now_us));
        if let Some(at) = (0..self.nodes.len()).find(|at| self.is_alone(*at) && serves(at)) {
            self.violate(format!(
                "node {at} serves, and has long heard neither of the store nor of most nodes"
            ));
        }
    }

    /// Whether a node has long heard neither of the store nor of most of those that have a share, as far as it knows.
    fn is_alone(&self, at: usize) -> bool {
        let Some(view) = &self.nodes[at].view else { return false };
        let was_heard = |end: usize| {
            let heard_us = self.nodes[at].heard_us.get(&end).copied().unwrap_or(0);
            end == at || self.now_us() - heard_us <= ALONE_US
        };
        let ids = view.state.nodes.keys().filter(|id| view.state.is_active(**id));
        let sharing: Vec<usize> = ids.filter_map(|id| self.node_of(*id)).collect();
        let heard = sharing.iter().filter(|other| was_heard(**other)).count();
        !was_heard(STORE) && heard <= sharing.len() / 2
    }

    /// Begins what happens to the store in this run.
    pub fn plan_away(&mut self, away: Option<Away>) {
        self.away = away;
        if let Some((from_us, until_us)) = away.map(Away::times_us) {
            self.end_us = self.end_us.max(until_us + FAULTS_US);
            self.push(from_us, 0, 0, Event::Away(true));
            self.push(until_us, 0, 0, Event::Away(false));
        }
    }
}
