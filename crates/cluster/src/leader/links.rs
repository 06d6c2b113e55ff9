//! Links between nodes that do not come about, although the nodes are up: copies that follow over them miss what changes.
//!
//! *Guarantees:* what nodes say of such links is noted in the state, so that it is known when one of the nodes is gone. A
//! rebalance lets a node take over one vBucket for each node that is to follow it there, and no more before that one has
//! followed. It does not end well while a link is down that its copies need, and ends early if nothing goes on for long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::planted::{self, Bug};

use super::Leader;
use super::moves::Move;
use crate::state::{Bucket, Chain, NodeId, Purpose, State, Step, present};
use crate::view::View;

/// A bucket, a node that has taken vBuckets over, and one that has followed it since.
pub(super) type Followed = (String, NodeId, NodeId);

/// What a rebalance had come to when it went on last.
#[derive(Debug)]
pub(super) struct Progress {
    mark: Mark,
    since: Duration,
}

/// Another one whenever a rebalance has gone on.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    rebalance: u64,
    to_move: usize,
    /// vBuckets by step: built, in both chains, being taken over, settling or being chosen.
    steps: [usize; 4],
    /// Changes that copies have which are being built.
    built: u64,
}

impl Mark {
    fn of(view: &View, rebalance: u64) -> Mark {
        let mut mark = Mark { rebalance, to_move: view.state.to_move(), steps: [0; 4], built: 0 };
        for (name, bucket) in &view.state.buckets {
            for (vb, step) in &bucket.steps {
                let at = match step {
                    Step::Build => 0,
                    Step::Both { .. } => 1,
                    Step::TakeOver { .. } => 2,
                    Step::Choose { .. } | Step::Settle { .. } => 3,
                };
                mark.steps[at] += 1;
                if *step != Step::Build {
                    continue;
                }
                let target = bucket.target_of(*vb).map_or(&[][..], Vec::as_slice);
                for id in present(target).filter(|id| !bucket.chain(*vb).contains(&Some(*id))) {
                    let copy = view.report(id).and_then(|report| report.of(name, *vb));
                    mark.built += copy.map_or(0, |copy| copy.high_seqno);
                }
            }
        }
        mark
    }
}

impl Progress {
    pub(super) fn since(&self) -> Duration {
        self.since
    }

    pub(super) fn since_mut(&mut self) -> &mut Duration {
        &mut self.since
    }
}

impl Leader {
    /// Why the rebalance that runs has to end: it has not gone on for long, and needs a link that is down. A repair begins
    /// again by itself, so that it may as well wait.
    pub(super) fn stalled(&mut self, view: &View, now: Duration) -> Option<String> {
        let rebalance = view.state.rebalance.as_ref()?;
        if rebalance.cancelled || rebalance.purpose == Purpose::Repair {
            return None;
        }
        let mark = Mark::of(view, rebalance.id);
        let progress = match self.progress.take() {
            Some(progress) if progress.mark == mark => progress,
            _ => Progress { mark, since: now },
        };
        let is_long = now.saturating_sub(progress.since) >= self.config.stall_patience;
        self.progress = Some(progress);
        if is_long { in_the_way(view, &view.state) } else { None }
    }

    /// All of a chain have what its active node has.
    pub(super) fn note_followed(&mut self, bucket: &str, chain: &Chain) {
        let mut ids = present(chain);
        let Some(active) = ids.next() else { return };
        self.followed.1.extend(ids.map(|id| (bucket.to_owned(), active, id)));
    }

    /// Whether a vBucket may be taken over now: of those that are to follow the taker each has done so since it took over
    /// another one, or no other one is tried with it.
    pub(super) fn may_take_over(&self, a_move: &Move<'_>, next: &Bucket) -> bool {
        let Some((taker, followers)) = to_follow(a_move) else { return true };
        followers.into_iter().all(|id| {
            let is_down = a_move.view.link_down(a_move.name, id, taker).is_some();
            !is_down && (self.has_followed(a_move.name, taker, id) || !is_tried(a_move, next, taker, id))
        })
    }

    /// Whether a vBucket was taken over, and one that is to follow the taker has not done so since that took over any.
    pub(super) fn is_unproven(&self, a_move: &Move<'_>) -> bool {
        if !matches!(a_move.step, Step::TakeOver { .. }) || planted::is(Bug::TakeoverNotProven) {
            return false;
        }
        let Some((taker, followers)) = to_follow(a_move) else { return false };
        followers.into_iter().any(|id| !self.has_followed(a_move.name, taker, id))
    }

    fn has_followed(&self, bucket: &str, taker: NodeId, follower: NodeId) -> bool {
        self.followed.1.contains(&(bucket.to_owned(), taker, follower))
    }
}

/// The taker of a vBucket and those that are to follow it, where vBuckets are spread. A node that is failed over gracefully
/// hands over and leaves: it need not follow.
fn to_follow(a_move: &Move<'_>) -> Option<(NodeId, Vec<NodeId>)> {
    a_move.view.state.rebalance.as_ref().filter(|rebalance| rebalance.purpose.is_rebalance())?;
    let mut target = present(a_move.bucket.target_of(a_move.vb)?);
    Some((target.next()?, target.collect()))
}

/// Whether a vBucket is being taken over by `taker`, or was, and `follower` has not followed yet.
fn is_tried(a_move: &Move<'_>, next: &Bucket, taker: NodeId, follower: NodeId) -> bool {
    let Move { view, name, .. } = *a_move;
    let is_of =
        |chain: &[Option<NodeId>]| chain.first() == Some(&Some(taker)) && chain.contains(&Some(follower));
    next.steps.iter().any(|(vb, step)| match step {
        Step::TakeOver { .. } => next.target_of(*vb).is_some_and(|target| is_of(target)),
        Step::Settle { since } if is_of(next.chain(*vb)) => {
            let history = |id: NodeId, since: u64| {
                let report = view.bucket_since(id, name, since)?;
                report.of(name, *vb).map(|copy| copy.uuid)
            };
            let own = history(taker, *since);
            own.is_none() || own != history(follower, 0)
        }
        _ => false,
    })
}

/// What keeps copies from following as a state wants it: the first link that is down, with the reason.
pub(super) fn in_the_way(view: &View, state: &State) -> Option<String> {
    for follower in state.nodes.keys().copied() {
        let Some(report) = view.report(follower) else { continue };
        for (name, sources) in &report.links_down {
            let Some(bucket) = state.buckets.get(name) else { continue };
            for source in sources.keys().copied() {
                let Some(why) = view.link_down(name, follower, source) else { continue };
                if bucket.vbuckets().any(|vb| needs_link(bucket, vb, follower, source)) {
                    return Some(format!(
                        "bucket {name}: {follower} has had no connection to {source}, whose copies it is to follow: {why}"
                    ));
                }
            }
        }
    }
    None
}

/// Whether a node follows another one for a vBucket, or is to do so.
fn needs_link(bucket: &Bucket, vb: u16, follower: NodeId, source: NodeId) -> bool {
    let (chain, target) = (bucket.chain(vb), bucket.target_of(vb).map(Vec::as_slice));
    let wanted = target.unwrap_or(chain);
    let is_source = |of: &[Option<NodeId>]| of.first() == Some(&Some(source));
    let settles = matches!(bucket.steps.get(&vb), Some(Step::Settle { .. })) && is_source(chain);
    ((is_source(chain) || is_source(wanted)) && wanted.contains(&Some(follower)))
        || (settles && chain.contains(&Some(follower)))
}

/// The document that says which links are down: as nodes report them, and as they did last if one of the two is gone.
pub(super) fn note(view: &View) -> Option<State> {
    let mut next: Option<State> = None;
    for (name, bucket) in &view.state.buckets {
        let noted = noted(view, name, bucket);
        if noted == bucket.links_down {
            continue;
        }
        let state = next.get_or_insert_with(|| view.state.next());
        if let Some(bucket) = state.buckets.get_mut(name) {
            bucket.links_down = noted;
        }
    }
    next
}

fn noted(view: &View, name: &str, bucket: &Bucket) -> BTreeMap<NodeId, BTreeSet<NodeId>> {
    let mut noted = BTreeMap::new();
    for follower in view.state.nodes.keys().copied().filter(|id| view.state.is_active(*id)) {
        let before = bucket.links_down.get(&follower).into_iter().flatten().copied();
        let mut sources: BTreeSet<NodeId> = before.filter(|id| view.state.nodes.contains_key(id)).collect();
        if let Some(report) = view.report(follower) {
            sources.retain(|id| view.alive(*id).is_none());
            let told = report.links_down.get(name).into_iter().flatten().map(|(id, _)| *id);
            sources.extend(told.filter(|id| view.alive(*id).is_some()));
        }
        if !sources.is_empty() {
            noted.insert(follower, sources);
        }
    }
    noted
}
