//! What may happen to nodes now, so that durable writes survive it: they survive the trouble of a minority of each chain,
//! here of one node.

use cluster::Status;
use cluster::state::Step;

use crate::damage::Damage;
use crate::node::BUCKET;
use crate::nodes::Nodes;
use crate::rules::Rules;
use crate::tails::Tail;

/// The trouble that nodes are in.
pub struct Calm<'a> {
    nodes: &'a Nodes,
    damage: Option<&'a Damage>,
    rules: &'a Rules,
    forgetful: Option<usize>,
    tail: Tail,
    now_us: u64,
}

impl<'a> Calm<'a> {
    /// Of these nodes: `forgetful` is the one that lost what it had in memory since everybody had everything.
    pub fn of(
        nodes: &'a Nodes,
        damage: Option<&'a Damage>,
        rules: &'a Rules,
        forgetful: Option<usize>,
        tail: Tail,
        now_us: u64,
    ) -> Calm<'a> {
        Calm { nodes, damage, rules, forgetful, tail, now_us }
    }

    /// Whether a node is in trouble.
    pub fn is_troubled(&self, at: usize) -> bool {
        let is_cut = self.nodes.cut.iter().any(|(from, to)| *from == at || *to == at);
        let node = &self.nodes[at];
        let is_damaged = self.damage.is_some_and(|damage| damage.is_at(at));
        !node.is_awake(self.now_us) || is_cut || node.slow_until_us > self.now_us || is_damaged
    }

    /// The first node that is in trouble.
    pub fn troubled(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|at| self.is_troubled(*at))
    }

    /// Whether nothing is wrong with any node but this one.
    pub fn is_calm_but(&self, at: usize) -> bool {
        (0..self.nodes.len()).all(|other| other == at || !self.is_troubled(other))
    }

    /// Whether nothing is wrong with any node.
    pub fn is_calm(&self) -> bool {
        self.troubled().is_none()
    }

    /// Whether something is wrong with one node at most, and all of them run.
    pub fn is_calm_but_one(&self) -> bool {
        let troubled = (0..self.nodes.len()).filter(|at| self.is_troubled(*at)).count();
        let is_sound = self.damage.is_none_or(Damage::is_over);
        troubled <= 1 && is_sound && self.nodes.iter().all(|node| node.is_up)
    }

    fn is_level(&self) -> bool {
        self.nodes.are_level(self.now_us)
    }

    /// Whether a node may lose what it has in memory. If clients were told of what is in memory only, no other node may
    /// have done so since everybody had everything.
    pub fn may_forget(&self, at: usize) -> bool {
        let is_first = self.forgetful.is_none_or(|other| other == at);
        let may_forget =
            (is_first || self.is_level()) && !self.is_alone_with_something(at) && !self.is_one_leaving();
        self.is_calm_but(at) && (!self.rules.all_levels || may_forget)
    }

    /// Whether a node may be failed over: what another one has forgotten, or had in a copy that is damaged, may be nowhere
    /// without it.
    pub fn may_leave(&self, at: usize) -> bool {
        let is_sound = self.damage.is_none_or(|damage| damage.leaves_copies_but(at, self.nodes));
        is_sound && (!self.rules.all_levels || self.forgetful.is_none_or(|forgetful| forgetful == at))
    }

    /// Whether a node may be the only one that has something in memory that clients were told of: no other belongs to the
    /// chain, or not all of it have everything.
    fn is_alone_with_something(&self, at: usize) -> bool {
        let bucket = self.nodes.newest.buckets.get(BUCKET);
        self.nodes.vbuckets().any(|vb| {
            let chain = self.nodes.chain(vb);
            let step = bucket.and_then(|bucket| bucket.steps.get(&vb));
            let is_open = matches!(step, Some(Step::Choose { .. } | Step::Settle { .. }));
            let is_single = chain.len() == 1 && (self.rules.is_ephemeral || !self.is_level());
            chain.contains(&at) && (is_open || is_single)
        })
    }

    /// Whether it was asked that a node be failed over, and it is not: what is left of its chains then may be alone.
    fn is_one_leaving(&self) -> bool {
        let is_there = |at: usize| self.nodes.status(at) == Some(Status::Active);
        matches!(self.tail, Tail::Left(at) if is_there(at))
    }
}
