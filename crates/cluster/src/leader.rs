//! The leader: looks at what the store holds and says what the next document is, if there is one.
//!
//! Any node may lead, and two may believe that they do: documents are compared and swapped, and each step is right
//! whoever takes it. What a leader remembers are times and seqnos that were seen, which another one sees again.

mod admission;
mod choice;
pub(crate) mod damage;
mod links;
mod moves;
mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::planted::{self, Bug};

use crate::command;
use crate::keys;
use crate::state::{Bucket, FORMAT, Node, NodeId, State, Status};
use crate::store::Snapshot;
use crate::view::View;

pub use choice::{awaited, lacking, missed, settling};
pub use stores::{MemberMove, store_moves};

/// What a leader goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderConfig {
    /// vBuckets that a node fetches or hands over at a time.
    pub moves_per_node: usize,
    /// How long the choice of an active copy waits for nodes that are alive and say nothing, if it is safe without.
    pub choice_patience: Duration,
    /// A leader looks at least so often. If it did not, it could not reach the store: that time counts for no patience.
    pub longest_look: Duration,
    /// How long a rebalance that does not go on waits for links between nodes that are down.
    pub stall_patience: Duration,
}

impl Default for LeaderConfig {
    fn default() -> Self {
        LeaderConfig {
            moves_per_node: 256,
            choice_patience: Duration::from_secs(2),
            longest_look: Duration::from_secs(3),
            stall_patience: Duration::from_secs(30),
        }
    }
}

/// What a node is to the leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads.
    Leads,
    /// Nobody leads: it may write its name where nobody's is.
    Vacant,
    /// Another one leads.
    Follows,
}

impl Standing {
    /// As a snapshot of the store says.
    pub fn of(snapshot: &Snapshot, uuid: &str) -> Standing {
        match snapshot.entries.get(keys::LEADER) {
            None => Standing::Vacant,
            Some(entry) if entry.value == uuid.as_bytes() => Standing::Leads,
            Some(_) => Standing::Follows,
        }
    }
}

/// The leader's memory.
#[derive(Debug)]
pub struct Leader {
    config: LeaderConfig,
    /// When it looked last.
    looked: Option<Duration>,
    /// Since when nodes have been missing.
    absent: BTreeMap<NodeId, Duration>,
    /// When choices were seen first, by the revision that began them.
    choices: BTreeMap<u64, Duration>,
    /// When takeovers were seen first in which neither end was active.
    stranded: BTreeMap<(String, u16, u64), Duration>,
    /// Seqnos that new copies must reach, by bucket and vBucket, and in which step.
    goals: BTreeMap<(String, u16), moves::Goal>,
    /// What the rebalance that runs has come to.
    progress: Option<links::Progress>,
    /// Who has followed whom after that one had taken a vBucket over, by bucket: in the rebalance of this number. Another
    /// node may have led meanwhile, so that the end of one was not seen here.
    followed: (u64, BTreeSet<links::Followed>),
}

impl Leader {
    /// One that has seen nothing yet.
    pub fn new(config: LeaderConfig) -> Leader {
        Leader {
            config,
            looked: None,
            absent: BTreeMap::new(),
            choices: BTreeMap::new(),
            stranded: BTreeMap::new(),
            goals: BTreeMap::new(),
            progress: None,
            followed: (0, BTreeSet::new()),
        }
    }

    /// The next document, if there is one. `now` is any clock that does not go back.
    pub fn step(&mut self, view: &View, now: Duration) -> Option<State> {
        self.pass_over_outage(now);
        self.watch_absent(view, now);
        // What depends on a choice or an admission is looked at when that is written.
        let next = admission::admit(view)
            .or_else(|| self.choose(view, now))
            .or_else(|| end_flushes(view))
            .or_else(|| stores::end_store_moves(view))
            .or_else(|| damage::part_with(view))
            .or_else(|| links::note(view))
            .or_else(|| self.settle(view))
            .or_else(|| self.fail_over_automatically(view, now))
            .or_else(|| self.move_on(view, now))
            .or_else(|| command::repair(view))
            .or_else(|| split(view))?;
        debug_assert!(next.check().is_ok(), "{:?}", next.check());
        Some(next)
    }

    /// When the leader wants to look again although nothing has changed.
    pub fn patience(&self, view: &View, now: Duration) -> Duration {
        let timeout = Duration::from_millis(view.state.auto_failover.timeout_ms);
        let failovers = self.absent.values().map(|since| *since + timeout);
        let seen = self.choices.values().chain(self.stranded.values());
        let choices = seen.map(|since| *since + self.config.choice_patience);
        let stall = self.progress.as_ref().map(|progress| progress.since() + self.config.stall_patience);
        let next = failovers
            .chain(choices)
            .chain(stall)
            .map(|at| at.saturating_sub(now))
            .filter(|left| !left.is_zero());
        next.min().unwrap_or(Duration::from_secs(60))
    }

    /// Nothing was seen while the store was away: nodes that were missing before may be well by now.
    fn pass_over_outage(&mut self, now: Duration) {
        let unseen = self.looked.map_or(Duration::ZERO, |looked| now.saturating_sub(looked));
        self.looked = Some(now);
        if unseen > self.config.longest_look && !planted::is(Bug::OutageCountsAsAbsence) {
            let absent = self.absent.values_mut();
            let since = absent.chain(self.choices.values_mut()).chain(self.stranded.values_mut());
            let since = since.chain(self.progress.as_mut().map(links::Progress::since_mut));
            since.for_each(|since| *since += unseen);
        }
    }

    fn watch_absent(&mut self, view: &View, now: Duration) {
        let absent = |id: &NodeId| view.state.is_active(*id) && view.alive(*id).is_none();
        self.absent.retain(|id, _| absent(id));
        for id in view.state.nodes.keys().filter(|id| absent(id)) {
            self.absent.entry(*id).or_insert(now);
        }
    }

    /// Fails a node over that has been missing for long enough: one at a time, if most nodes are there, and if no
    /// durable write and no vBucket is lost.
    fn fail_over_automatically(&self, view: &View, now: Duration) -> Option<State> {
        let rules = &view.state.auto_failover;
        if !rules.enabled || rules.count >= rules.max_count || view.state.is_choosing() {
            return None;
        }
        let active = view.state.nodes.values().filter(|node| node.status == Status::Active).count();
        if self.absent.len() * 2 >= active {
            return None;
        }
        let timeout = Duration::from_millis(rules.timeout_ms);
        let (id, _) = self.absent.iter().find(|(_, since)| now.saturating_sub(**since) >= timeout)?;
        if !command::losses(&view.state, view, *id).is_nothing() && !planted::is(Bug::LossesIgnored) {
            return None;
        }
        let mut state = command::fail_over(&view.state, *id, false);
        state.auto_failover.count += 1;
        Some(state)
    }
}

/// The state in several entries, as soon as every node is there and reads it so.
fn split(view: &View) -> Option<State> {
    let reads = |node: &Node| view.members.get(&node.uuid).is_some_and(|member| member.reads >= FORMAT);
    (view.state.is_single() && view.state.nodes.values().all(reads)).then(|| view.state.split())
}

/// The document in which buckets are served again that all nodes have emptied. One that does not say so keeps them
/// closed until it does, or is failed over: it empties them before anything else when it comes back.
fn end_flushes(view: &View) -> Option<State> {
    let is_done = |name: &str, since: u64| {
        let active = view.state.nodes.iter().filter(|(_, node)| node.status == Status::Active);
        active.into_iter().all(|(id, _)| view.bucket_since(*id, name, since).is_some())
    };
    let done =
        |(name, bucket): &(&String, &Bucket)| bucket.flushing.is_some_and(|since| is_done(name, since));
    if !view.state.buckets.iter().any(|bucket| done(&bucket)) {
        return None;
    }
    let mut state = view.state.next();
    for (name, bucket) in &mut state.buckets {
        if done(&(name, bucket)) {
            bucket.flushing = None;
        }
    }
    Some(state)
}
