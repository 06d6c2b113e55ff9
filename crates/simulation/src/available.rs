//! Whether what can be served is: while nothing is wrong, and nothing is under way, each vBucket is served, what is
//! prepared is decided soon, who asks is answered soon, and no durable write is given up.
//!
//! A vBucket that changes hands, or waits until it is chosen who has it, is served soon, too, and a rebalance goes on.

use std::collections::BTreeMap;

use base::VbId;
use cluster::state::{Purpose, Rebalance, Step};

use crate::jobs::{Crossing, Fault};
use crate::node::BUCKET;
use crate::nodes::Nodes;
use crate::rules::Rules;

/// How long a vBucket may take until it is served, or until its first prepare is decided, and a node until it answers,
/// while nothing hinders it.
const SOON_US: u64 = 3_000_000;
/// After so much time without a hindrance everybody has found each other again.
const SETTLED_US: u64 = 500_000;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WaitsFor {
    /// A vBucket: somebody who serves it.
    Service(u16),
    /// A vBucket: what becomes of its first prepare.
    Decision(u16, u64),
    /// A node and a request: an answer.
    Answer(usize, usize),
    /// The document: what comes after this revision, as vBuckets are being moved.
    Move(u64),
}

/// What is waited for, and since when, in microseconds, while nothing hinders it.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    since: BTreeMap<WaitsFor, u64>,
    /// By vBucket: since when nothing has hindered prepares from being decided.
    unhindered_since: Vec<Option<u64>>,
}

impl Waits {
    /// Something goes wrong somewhere: whatever is waited for may take longer.
    pub fn hinder(&mut self) {
        *self = Waits::default();
    }

    /// Whether nothing has hindered prepares of a vBucket since some time before a moment.
    fn was_free_at(&self, vb: u16, at_us: u64) -> bool {
        let since = self.unhindered_since.get(usize::from(vb)).copied().flatten();
        since.is_some_and(|since| since + SETTLED_US <= at_us)
    }

    /// Looks at all vBuckets: what has been waited for too long is violated.
    pub fn check(&mut self, service: &Service<'_>) -> Result<(), String> {
        let now_us = service.now_us;
        let Waits { since: before, mut unhindered_since } = std::mem::take(self);
        unhindered_since.resize(usize::from(service.rules.vbuckets), None);
        for (vb, since) in (0..).zip(&mut unhindered_since) {
            *since = since.or(Some(now_us)).filter(|_| service.can_decide(vb));
        }
        let waited_for = if service.is_quiet() { service.what_is_waited_for() } else { Vec::new() };
        let since: BTreeMap<WaitsFor, u64> =
            waited_for.into_iter().map(|what| (what, before.get(&what).copied().unwrap_or(now_us))).collect();
        let late = since.iter().find(|(_, since)| now_us - **since > SOON_US).map(|(what, _)| *what);
        *self = Waits { since, unhindered_since };
        let what = match late {
            None => return Ok(()),
            Some(WaitsFor::Service(vb)) => format!("nobody serves vBucket {vb}"),
            Some(WaitsFor::Decision(vb, prepared)) => {
                format!("nobody decides prepare {prepared} of vBucket {vb}")
            }
            Some(WaitsFor::Answer(at, op)) => format!("node {at} does not answer {op}"),
            Some(WaitsFor::Move(revision)) => {
                format!("nobody goes on with what document {revision} moves")
            }
        };
        Err(format!("{what}, and nothing hinders it: {}", service.nodes.describe()))
    }

    /// A durable write of a vBucket is aborted because its time is over. That must not be if nothing hindered it.
    pub fn check_given_up(
        &self,
        service: &Service<'_>,
        (at, number): (usize, usize),
        (vb, asked_us): (u16, u64),
    ) -> Result<(), String> {
        if self.was_free_at(vb, asked_us) && service.can_decide(vb) {
            let what = format!("node {at} gives up {number}, a durable write of vBucket {vb}");
            return Err(format!("{what}, and nothing hinders it: {}", service.nodes.describe()));
        }
        Ok(())
    }
}

/// What nodes do for clients now, and what may hinder them.
pub struct Service<'a> {
    /// The nodes.
    pub nodes: &'a Nodes,
    /// What was decided before.
    pub rules: &'a Rules,
    /// What goes on.
    pub crossing: &'a Crossing,
    /// The time, in microseconds.
    pub now_us: u64,
}

impl Service<'_> {
    /// Whether nothing is wrong with any node.
    fn is_quiet(&self) -> bool {
        let now_us = self.now_us;
        // Whoever stood still when faults ended finds what it has to do when that would have been over.
        let is_mended = now_us >= self.rules.faults_us && !self.crossing.has(Fault::Freeze, now_us);
        let is_over = is_mended || self.crossing.is_quiet(now_us);
        is_over && self.nodes.iter().all(|node| node.is_awake(now_us))
    }

    /// Whether nothing is wrong, nobody chooses or moves a vBucket, and there are enough who could have what is prepared.
    fn can_decide(&self, vb: u16) -> bool {
        let step = self.nodes.newest.buckets.get(BUCKET).and_then(|bucket| bucket.steps.get(&vb));
        self.is_quiet() && matches!(step, None | Some(Step::Settle { .. })) && self.nodes.has_majority(vb)
    }

    /// What vBuckets and clients wait for.
    fn what_is_waited_for(&self) -> Vec<WaitsFor> {
        let now_us = self.now_us;
        let mut all = Vec::new();
        for vb in self.nodes.vbuckets().filter(|vb| !self.nodes.chain(*vb).is_empty()) {
            let Some(node) = self.nodes.iter().find(|node| node.serves(vb, now_us)) else {
                all.push(WaitsFor::Service(vb));
                continue;
            };
            let first = |vb: &vbucket::VBucket| vb.sync_writes().first_in_flight().map(|prepared| prepared.0);
            let bucket = node.bucket.as_ref().filter(|_| self.can_decide(vb));
            let first = bucket.and_then(|bucket| bucket.with_vbucket(VbId(vb), first).flatten());
            all.extend(first.map(|prepared| WaitsFor::Decision(vb, prepared)));
        }
        for node in self.nodes.iter() {
            all.extend(node.waiting.iter().map(|waiting| WaitsFor::Answer(node.at, waiting.op)));
        }
        // A graceful failover may wait for a node that is missing.
        let moves = |rebalance: &Rebalance| !matches!(rebalance.purpose, Purpose::GracefulFailover { .. });
        let is_moved = self.nodes.newest.rebalance.as_ref().is_some_and(moves);
        all.extend(is_moved.then_some(WaitsFor::Move(self.nodes.newest.revision)));
        all
    }
}
