//! Copies that are damaged: what is active there fails over, that vBucket alone, and what follows counts for nothing.

use base::planted::{self, Bug};

use crate::state::{Bucket, NodeId, State, Step, majority, present};
use crate::view::View;

/// The document in which nothing depends on copies that their nodes say are damaged; `None` if nothing does, or nothing
/// safe can be done about it: then all stays as it is until other copies are there, or an administrator acts.
pub(super) fn part_with(view: &View) -> Option<State> {
    let mut next: Option<State> = None;
    let mut changes_hands = false;
    for (name, bucket) in view.state.buckets.iter().filter(|(_, bucket)| bucket.flushing.is_none()) {
        let is_reported = |id: &&NodeId| {
            view.state.is_active(**id)
                && view.report(**id).is_some_and(|report| report.damaged.contains_key(name))
        };
        for id in view.state.nodes.keys().filter(is_reported) {
            for vb in bucket.vbuckets().filter(|vb| view.is_damaged(*id, name, *vb)) {
                let since = view.state.revision + 1;
                let Some(change) = Copy { view, name, bucket, vb, id: *id }.change(since) else { continue };
                let state = next.get_or_insert_with(|| view.state.next());
                let Some(bucket) = state.buckets.get_mut(name) else { continue };
                changes_hands |= matches!(change, Change::Choose(_));
                change.make(bucket, vb, *id, since);
            }
        }
    }
    if let Some(state) = next.as_mut().filter(|_| changes_hands) {
        state.epoch += 1;
    }
    next
}

/// A damaged copy.
struct Copy<'a> {
    view: &'a View,
    name: &'a str,
    bucket: &'a Bucket,
    vb: u16,
    id: NodeId,
}

/// What is done about it.
enum Change {
    /// Another copy becomes active.
    Choose(Step),
    /// It leaves the chain.
    Leave,
    /// It is built again before durable writes need it.
    Build,
}

impl Copy<'_> {
    fn change(&self, since: u64) -> Option<Change> {
        let (chain, step) = (self.bucket.chain(self.vb), self.bucket.steps.get(&self.vb));
        let target = self.bucket.target_of(self.vb);
        let active = self.bucket.active(self.vb)?;
        let is_taking = matches!(step, Some(Step::TakeOver { .. }));
        let taker = target.and_then(|target| target.first().copied().flatten()).filter(|_| is_taking);
        match step {
            Some(Step::Choose { .. }) => None,
            _ if active == self.id || taker == Some(self.id) => {
                // The other copies may have what it has, or may not: the choice waits until they surely have it.
                let needs = matches!(step, Some(Step::Settle { .. })).then_some(self.id);
                let choose = Step::Choose { since, taker, needs, forced: false };
                is_safe(self.view, self.name, self.bucket, self.vb).then_some(Change::Choose(choose))
            }
            // The members of the target have everything that the chain has.
            Some(Step::TakeOver { .. }) => None,
            _ if !is_usable(self.view, self.name, self.vb, active)
                || planted::is(Bug::DamagedStillCounts) =>
            {
                None
            }
            _ if chain.contains(&Some(self.id)) => Some(Change::Leave),
            Some(Step::Both { .. }) if target.is_some_and(|target| target.contains(&Some(self.id))) => {
                Some(Change::Build)
            }
            _ => None,
        }
    }
}

/// Whether a node is alive and can read its copy of a vBucket.
fn is_usable(view: &View, name: &str, vb: u16, id: NodeId) -> bool {
    let is_there = view.state.is_active(id) && view.alive(id).is_some();
    is_there && !view.is_unusable(id, name, vb)
}

/// Whether the copies of a vBucket that can be read surely have every durable write: fewer of the chain than a majority
/// are not to be relied on. While the chain settles, or where a choice needs one copy, the nodes that left the chain may
/// have had some, too, so that their places count.
pub(crate) fn is_safe(view: &View, name: &str, bucket: &Bucket, vb: u16) -> bool {
    let chain = bucket.chain(vb);
    let is_sure = |id: &NodeId| is_usable(view, name, vb, *id) && !bucket.has_forgotten(vb, *id);
    let sure = present(chain).filter(is_sure).count();
    let step = bucket.steps.get(&vb);
    let is_settling = matches!(step, Some(Step::Settle { .. } | Step::Choose { needs: Some(_), .. }));
    let places = if is_settling { chain.len() } else { present(chain).count() };
    sure > 0 && places - sure < majority(chain)
}

impl Change {
    fn make(self, bucket: &mut Bucket, vb: u16, id: NodeId, since: u64) {
        match self {
            Change::Choose(step) => drop(bucket.steps.insert(vb, step)),
            Change::Build => drop(bucket.steps.insert(vb, Step::Build)),
            Change::Leave => {
                bucket.leave_chain(vb, id, since);
                bucket.note_missing(vb, vec![id]);
            }
        }
    }
}
