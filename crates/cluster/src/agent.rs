//! What a node makes of its vBuckets: from the document and from what it has, what each shall be.

use std::collections::BTreeMap;

use base::VbState;
use base::planted::{self, Bug};

use crate::report::{Applied, Report, VbReport};
use crate::state::{Bucket, Chain, NodeId, State, Status, Step};

/// What a vBucket shall be on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// It serves; durable writes need these chains.
    Active {
        /// One or two chains.
        topology: Vec<Chain>,
    },
    /// It follows another node.
    Replica {
        /// Which.
        source: NodeId,
    },
    /// It follows another node, and becomes active in its place.
    TakeOver {
        /// Which.
        source: NodeId,
    },
    /// It was handed over, or is about to be: it is left as it is.
    HandedOver,
    /// It stands still, neither serves nor follows, and can become active.
    Hold,
    /// It is kept, and serves nobody.
    Keep,
    /// It is not there.
    Gone,
}

/// A node's part: pure, level-triggered, called whenever the document or what the node has may have changed.
#[derive(Clone, Copy, Debug)]
pub struct Agent {
    id: NodeId,
    status: Status,
    incarnation: u64,
    is_admitted: bool,
}

impl Agent {
    /// The part of this life of the node with this identity; nothing if it is no node of the cluster.
    pub fn new(state: &State, uuid: &str, incarnation: u64) -> Option<Agent> {
        let (id, node) = state.node_of(uuid)?;
        let is_admitted = node.incarnation == incarnation;
        Some(Agent { id, status: node.status, incarnation, is_admitted })
    }

    /// What the cluster calls this node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Whether this life of the node may serve, as long as its lease is alive.
    pub fn may_serve(&self) -> bool {
        self.status == Status::Active && self.is_admitted
    }

    /// Whether the node makes buckets that it does not have. A new node keeps those that it has from an earlier membership.
    pub fn makes_buckets(&self) -> bool {
        self.status != Status::New
    }

    /// Whether the node comes with the next rebalance, and without the copies that it has kept.
    pub(crate) fn comes_without_copies(&self) -> bool {
        matches!(self.status, Status::New | Status::FullRecovery)
    }

    /// Whether a copy that the node kept until the rebalance in which it came goes now: no chain has it, and no choice asks
    /// for it.
    pub(crate) fn gives_up_kept(&self, bucket: &Bucket, vb: u16) -> bool {
        let is_asked = matches!(bucket.steps.get(&vb), Some(Step::Choose { .. }));
        self.status == Status::Active && !is_asked && !bucket.chain(vb).contains(&Some(self.id))
    }

    /// What a vBucket shall be, `is` being what it is; nothing if it is not there.
    pub fn want(&self, bucket: &Bucket, vb: u16, is: Option<VbState>) -> Want {
        match self.want_of_served(bucket, vb, is) {
            // Who follows gets nothing before all have let go of what they had.
            Want::Replica { .. } | Want::TakeOver { .. } if bucket.flushing.is_some() => Want::Hold,
            want => want,
        }
    }

    fn want_of_served(&self, bucket: &Bucket, vb: u16, is: Option<VbState>) -> Want {
        match self.status {
            // A life that may not serve lets nobody follow it either: it may have less than those who would.
            Status::Active if planted::is(Bug::StreamBeforeAdmission) => {}
            Status::Active if !self.is_admitted && is.is_some() => return Want::Hold,
            Status::Active if !self.is_admitted => return Want::HandedOver,
            Status::Active => {}
            // Until a rebalance gives each vBucket an owner, its copy may be the last one, whatever is asked of the node.
            _ if is.is_some() => return Want::Keep,
            _ => return Want::Gone,
        }
        let (me, chain) = (Some(self.id), bucket.chain(vb));
        let target = bucket.target_of(vb);
        let Some(active) = bucket.active(vb) else { return Want::Gone };
        let in_target = target.is_some_and(|target| target.contains(&me));
        let first_of_target = target.is_some_and(|target| target.first() == Some(&me));
        match bucket.steps.get(&vb) {
            Some(Step::Choose { .. }) if active != self.id && planted::is(Bug::HeldCopyFollows) => {
                Want::Replica { source: active }
            }
            Some(Step::Choose { taker, .. }) if chain.contains(&me) || *taker == me => Want::Hold,
            Some(Step::Choose { .. }) => Want::Gone,
            Some(Step::Both { .. } | Step::TakeOver { .. }) if active == self.id => match is {
                // As long as it was not handed over it serves; it never becomes active again by itself. Who takes over
                // may have read a newer document than this one.
                Some(VbState::Active) => Want::Active { topology: topology(chain, target) },
                _ if planted::is(Bug::HandedOverComesBack) => {
                    Want::Active { topology: topology(chain, target) }
                }
                _ => Want::HandedOver,
            },
            Some(Step::TakeOver { .. }) if first_of_target => match (is, target) {
                // Who follows the old chain still does so: writes must be safe there, too, until that is written.
                (Some(VbState::Active), Some(target)) => {
                    Want::Active { topology: topology(target, Some(&chain.to_vec())) }
                }
                _ => Want::TakeOver { source: active },
            },
            _ if active == self.id => Want::Active { topology: topology(chain, None) },
            _ if chain.contains(&me) => Want::Replica { source: active },
            Some(Step::Build | Step::Both { .. } | Step::TakeOver { .. }) if in_target => {
                Want::Replica { source: active }
            }
            None | Some(Step::Settle { .. })
                if bucket.missing.get(&vb).is_some_and(|missing| missing.contains(&self.id)) =>
            {
                match is {
                    // What it has is worth keeping, and is not counted on.
                    Some(_) => Want::Hold,
                    None => Want::Gone,
                }
            }
            _ if in_target && is.is_some() => Want::Hold,
            _ => Want::Gone,
        }
    }

    /// Whether the damaged files of a vBucket may be set aside: nothing is decided about the vBucket now, nothing counts on
    /// this node's copy, and the active copy is alive on another node. Or an administrator has given up what the vBucket
    /// held.
    pub fn may_part_with(&self, bucket: &Bucket, vb: u16, is_live_elsewhere: bool) -> bool {
        if planted::is(Bug::LastCopySetAside) {
            return true;
        }
        if planted::is(Bug::DamagedNeverFilled) {
            return false;
        }
        let me = Some(self.id);
        let is_taker = bucket.target_of(vb).is_some_and(|target| target.first() == Some(&me));
        let is_decided = match bucket.steps.get(&vb) {
            Some(Step::Choose { .. }) => false,
            Some(Step::TakeOver { .. }) => !is_taker,
            _ => true,
        };
        let is_needed = !is_decided || bucket.flushing.is_some() || bucket.chain(vb).contains(&me);
        self.may_serve() && !is_needed && (is_live_elsewhere || bucket.active(vb).is_none())
    }

    /// Whether all of a bucket's damaged files may be set aside at once.
    pub fn may_part_with_all(&self, bucket: &Bucket, is_live: impl Fn(u16, NodeId) -> bool) -> bool {
        bucket.vbuckets().all(|vb| {
            let other = bucket.active(vb).filter(|id| *id != self.id);
            self.may_part_with(bucket, vb, other.is_some_and(|id| is_live(vb, id)))
        })
    }

    /// What all vBuckets of a bucket shall be.
    pub fn wants(&self, bucket: &Bucket, is: impl Fn(u16) -> Option<VbState>) -> BTreeMap<u16, Want> {
        bucket.vbuckets().map(|vb| (vb, self.want(bucket, vb, is(vb)))).collect()
    }

    /// Which vBuckets the leader wants to hear of. A node that was failed over may have the only copy of one that is chosen.
    pub fn to_report<'b>(&self, bucket: &'b Bucket) -> impl Iterator<Item = u16> + use<'b> {
        let (me, keeps) = (Some(self.id), self.reports_kept());
        bucket.steps.iter().filter_map(move |(vb, step)| {
            let in_target = bucket.target_of(*vb).is_some_and(|target| target.contains(&me));
            let is_asked = match step {
                Step::Choose { taker, .. } => *taker == me || keeps,
                _ => false,
            };
            (bucket.chain(*vb).contains(&me) || in_target || is_asked).then_some(*vb)
        })
    }

    /// What this life of the node reports, `applied` being how far it has become what the document says, and `of` what
    /// it has of a bucket's vBucket.
    pub fn report(&self, state: &State, applied: &Applied, of: impl Fn(&str, u16) -> VbReport) -> Report {
        let too_early = planted::is(Bug::ReportedTooEarly).then(|| Applied::from(state.revision));
        let applied = too_early.as_ref().unwrap_or(applied);
        let reached = if applied.behind.is_empty() { 0 } else { applied.revision };
        let mut report = Report {
            incarnation: self.incarnation,
            cluster: state.cluster.clone(),
            tenure: state.place().tenure,
            seen: state.revision,
            applied: applied.of_all(),
            reached,
            behind: applied.behind.clone(),
            let_go: if applied.behind.is_empty() { 0 } else { applied.let_go },
            ..Report::default()
        };
        for (name, bucket) in &state.buckets {
            let under_way: BTreeMap<_, _> = self.to_report(bucket).map(|vb| (vb, of(name, vb))).collect();
            if !under_way.is_empty() {
                report.vbuckets.insert(name.clone(), under_way);
            }
            if self.reports_kept() {
                let kept: Vec<u16> = bucket.vbuckets().filter(|vb| of(name, *vb).state.is_some()).collect();
                if !kept.is_empty() {
                    report.kept.insert(name.clone(), kept);
                }
            }
        }
        report
    }

    /// Whether the leader wants to hear which copies this node has kept.
    pub fn reports_kept(&self) -> bool {
        self.status != Status::Active
    }
}

/// One chain, or two if they differ. Missing members at the end count.
fn topology(first: &[Option<NodeId>], second: Option<&Chain>) -> Vec<Chain> {
    let mut topology = vec![first.to_vec()];
    if let Some(second) = second.filter(|second| second.as_slice() != first) {
        topology.push(second.clone());
    }
    topology
}
