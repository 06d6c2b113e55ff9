//! How long each leader has seen nodes missing: time in which the leader did not reach the store counts for no failover.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{NodeId, State, Status, View};

/// The longest time between two looks of a leader that reaches the store.
pub const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// What a node has seen as the leader, by its own clock.
#[derive(Debug, Default)]
pub struct Watch {
    looked: Duration,
    missing: BTreeMap<NodeId, Duration>,
}

impl Watch {
    /// The leader reads the state at `now`.
    pub fn look(&mut self, view: &View, now: Duration) {
        let gap = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        let seen = if gap > LONGEST_LOOK { Duration::ZERO } else { gap };
        let is_missing = |id: &NodeId| view.state.is_active(*id) && view.alive(*id).is_none();
        self.missing.retain(|id, _| is_missing(id));
        self.missing.values_mut().for_each(|missing| *missing += seen);
        for id in view.state.nodes.keys().filter(|id| is_missing(id)) {
            self.missing.entry(*id).or_default();
        }
    }

    /// What is wrong with an automatic failover: the leader has not seen the node missing for the whole timeout.
    pub fn too_early(&self, before: &State, next: &State) -> Option<String> {
        if next.auto_failover.count <= before.auto_failover.count {
            return None;
        }
        let timeout = Duration::from_millis(before.auto_failover.timeout_ms);
        let is_failed = |id: &&NodeId| before.is_active(**id) && next.nodes[*id].status == Status::FailedOver;
        let seen = |id: &NodeId| self.missing.get(id).copied().unwrap_or_default();
        let failed = before.nodes.keys().filter(is_failed).find(|id| seen(id) < timeout)?;
        let seen = seen(failed);
        Some(format!("{failed:?} is failed over automatically, seen missing for {seen:?} of {timeout:?}"))
    }
}
