//! The world: time, messages, the store, clients, and what must always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::VbState;
use base::env::sim::SplitMix64;
use base::env::{Env, SimHandles};
use cluster::command::{self, Command};
use cluster::store::{LeaseId, Store, Swap, Swapped, Version};
use cluster::{MemoryStore, NodeId, State, View, keys};
use serde_json::json;

use crate::bugs::Bug;
use crate::data::{Copy, Write};
use crate::node::{BUCKET, SimNode, TTL};

pub const VBUCKETS: u16 = 4;
/// When faults end.
pub const FAULTS_US: u64 = 6_000_000;
/// When everything must be well again.
const END_US: u64 = 13_000_000;
/// The store, among the ends of messages.
pub const STORE: usize = usize::MAX;

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub failovers: u64,
    pub automatic: u64,
    pub rebalances: u64,
    pub takeovers: u64,
    pub choices: u64,
    pub leaders: u64,
    pub committed: u64,
    pub crashes: u64,
    pub cuts: u64,
    pub freezes: u64,
    pub fenced: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        for (sum, n) in [
            (&mut self.failovers, other.failovers),
            (&mut self.automatic, other.automatic),
            (&mut self.rebalances, other.rebalances),
            (&mut self.takeovers, other.takeovers),
            (&mut self.choices, other.choices),
            (&mut self.leaders, other.leaders),
            (&mut self.committed, other.committed),
            (&mut self.crashes, other.crashes),
            (&mut self.cuts, other.cuts),
            (&mut self.freezes, other.freezes),
            (&mut self.fenced, other.fenced),
        ] {
            *sum += n;
        }
    }
}

/// What is asked of the store.
enum Request {
    Grant,
    Member,
    KeepAlive(LeaseId),
    Read,
    Lead,
    Resign,
    Write(Version, Box<State>),
    Report(Vec<u8>),
}

enum Reply {
    Granted(LeaseId),
    Alive(bool),
    View(Option<Rc<View>>, bool, Version),
}

enum Event {
    LeaseTick,
    AgentTick,
    PullTick,
    AtStore(Request, u64),
    Reply(Reply, u64),
    Apply(Rc<View>),
    Activate(u16, NodeId),
    Client,
    Fault,
}

pub struct World {
    pub bug: Option<Bug>,
    pub rng: SplitMix64,
    handles: SimHandles,
    store: MemoryStore,
    queue: BTreeMap<(u64, u64), (usize, u64, Event)>,
    next: u64,
    now_us: u64,
    pub nodes: Vec<SimNode>,
    /// One-way: from, to.
    pub cut: BTreeSet<(usize, usize)>,
    views: BTreeMap<Version, (Option<Rc<View>>, Option<String>)>,
    committed: BTreeMap<u16, Vec<u64>>,
    newest: (u64, u64),
    epochs: BTreeMap<u64, u64>,
    last_leader: Option<String>,
    pub tally: Tally,
    violation: Option<String>,
}

impl World {
    pub fn new(seed: u64, bug: Option<Bug>) -> World {
        let (env, handles) = Env::sim(seed);
        let mut rng = SplitMix64::new(seed);
        let count = rng.between(3, 5) as usize;
        let nodes = (0..count).map(|at| SimNode::new(at, rng.between(950, 1_050))).collect();
        let mut world = World {
            bug,
            rng,
            store: MemoryStore::new(env.clock.clone()),
            handles,
            queue: BTreeMap::new(),
            next: 0,
            now_us: 0,
            nodes,
            cut: BTreeSet::new(),
            views: BTreeMap::new(),
            committed: BTreeMap::new(),
            newest: (0, 0),
            epochs: BTreeMap::new(),
            last_leader: None,
            tally: Tally::default(),
            violation: None,
        };
        world.found();
        world
    }

    /// A cluster whose nodes have all joined, with one bucket.
    fn found(&mut self) {
        let mut state: Option<State> = None;
        for at in 0..self.nodes.len() {
            let incarnation = self.new_incarnation(at);
            self.nodes[at].begin_life(incarnation);
            let (uuid, address) = (self.nodes[at].uuid.clone(), self.nodes[at].address());
            let view = state.take().map(|state| bare(&state));
            state = Some(match view {
                None => command::found(&uuid, &address, incarnation),
                Some(view) => {
                    let join = Command::Join { uuid, address, incarnation };
                    command::apply(&view, &join).expect("a node may join")
                }
            });
        }
        let mut state = state.expect("there are nodes");
        // The last one waits for a rebalance.
        let last = state.nodes.len();
        for (at, node) in state.nodes.values_mut().enumerate() {
            node.status =
                if at + 1 == last && last > 3 { cluster::Status::New } else { cluster::Status::Active };
        }
        state.auto_failover.timeout_ms = self.rng.between(200, 1_500);
        state.auto_failover.max_count = 2;
        let create = Command::CreateBucket {
            name: BUCKET.to_owned(),
            uuid: "0".repeat(32),
            settings: json!({}),
            replicas: self.rng.between(1, 2) as u8,
            vbuckets: VBUCKETS,
            manifest: json!({}),
        };
        let state = command::apply(&bare(&state), &create).expect("a bucket can be made");
        let json = state.to_json().expect("sound");
        let put = Swap { key: keys::STATE, expected: None, value: Some(&json), lease: None };
        self.store.swap(put).expect("it answers");
        for at in 0..self.nodes.len() {
            self.start(at);
        }
        self.push(1_000, 0, 0, Event::Client);
        self.push(300_000, 0, 0, Event::Fault);
    }

    pub fn new_incarnation(&mut self, at: usize) -> u64 {
        let new = self.rng.next_u64() >> 12;
        if self.bug == Some(Bug::SameLife) { at as u64 + 1 } else { new }
    }

    /// Its clocks begin to tick.
    pub fn start(&mut self, at: usize) {
        let boot = self.nodes[at].boot;
        for (event, within) in
            [(Event::LeaseTick, 5_000), (Event::AgentTick, 40_000), (Event::PullTick, 20_000)]
        {
            let delay = self.rng.below(within);
            self.push(delay, at, boot, event);
        }
    }

    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    fn push(&mut self, delay_us: u64, at: usize, boot: u64, event: Event) {
        self.next += 1;
        self.queue.insert((self.now_us + delay_us, self.next), (at, boot, event));
    }

    /// How long a message takes; a few take very long.
    fn delay_us(&mut self) -> u64 {
        if self.rng.chance(1, 40) { self.rng.between(1_000, 600_000) } else { self.rng.between(100, 4_000) }
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    pub fn run(&mut self) -> Result<Tally, String> {
        while let Some(((at_us, _), (at, boot, event))) = self.queue.pop_first() {
            if at_us > END_US {
                break;
            }
            self.handles.clock.advance(Duration::from_micros(at_us - self.now_us));
            self.now_us = at_us;
            self.handle(at, boot, event);
            self.check_exclusive();
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.check_end()?;
        Ok(self.tally.clone())
    }

    fn handle(&mut self, at: usize, boot: u64, event: Event) {
        match event {
            Event::Client => return self.client(),
            Event::Fault => {
                let delay = self.fault();
                if self.now_us < FAULTS_US {
                    self.push(delay, 0, 0, Event::Fault);
                }
                return;
            }
            Event::AtStore(request, sent_ns) => return self.at_store(at, boot, request, sent_ns),
            _ => {}
        }
        let node = &self.nodes[at];
        if node.boot != boot || !node.up {
            return;
        }
        if !node.is_awake(self.now_us) {
            let wake = node.frozen_until_us - self.now_us;
            return self.push(wake, at, boot, event);
        }
        match event {
            Event::LeaseTick => {
                let lease = node.lease;
                self.ask(at, lease.map_or(Request::Grant, Request::KeepAlive));
                self.push(TTL.as_micros() as u64 / 5, at, boot, Event::LeaseTick);
            }
            Event::AgentTick => {
                // Reading when nothing has changed finds nothing.
                let version = self.store.version();
                if self.nodes[at].read_at != version || self.rng.chance(1, 8) {
                    self.ask(at, Request::Read);
                }
                let delay = self.rng.between(20_000, 50_000);
                self.push(delay, at, boot, Event::AgentTick);
            }
            Event::PullTick => {
                self.pull(at);
                let delay = self.rng.between(5_000, 30_000);
                self.push(delay, at, boot, Event::PullTick);
            }
            Event::Reply(reply, sent_ns) => self.on_reply(at, reply, sent_ns),
            Event::Apply(view) => self.apply(at, &view),
            Event::Activate(vb, from) => self.activate(at, vb, from),
            Event::AtStore(..) | Event::Client | Event::Fault => {}
        }
    }

    fn ask(&mut self, at: usize, request: Request) {
        if !self.reaches(at, STORE) {
            return;
        }
        let (delay, boot) = (self.delay_us(), self.nodes[at].boot);
        let sent_ns = self.nodes[at].local_ns(self.now_us);
        self.push(delay, at, boot, Event::AtStore(request, sent_ns));
    }

    fn at_store(&mut self, at: usize, boot: u64, request: Request, sent_ns: u64) {
        let key = keys::member(&self.nodes[at].uuid);
        let lease = self.nodes[at].lease;
        let put = |key: &str, expected, value: &[u8]| {
            self.store.swap(Swap { key, expected, value: Some(value), lease }).expect("it answers")
        };
        let reply = match request {
            Request::Grant => Reply::Granted(self.store.grant(TTL).expect("it answers")),
            Request::KeepAlive(lease) => Reply::Alive(self.store.keep_alive(lease).expect("it answers")),
            Request::Member => {
                put(&key, None, &self.nodes[at].member());
                return;
            }
            Request::Report(report) => {
                if self.nodes[at].boot == boot {
                    put(&keys::report(&self.nodes[at].uuid), None, &report);
                }
                return;
            }
            Request::Lead => {
                put(keys::LEADER, Some(Version::ABSENT), self.nodes[at].uuid.as_bytes());
                return;
            }
            Request::Resign => {
                let uuid = self.nodes[at].uuid.clone();
                if self.look().1 == Some(uuid) {
                    let remove = Swap { key: keys::LEADER, expected: None, value: None, lease: None };
                    self.store.swap(remove).expect("it answers");
                }
                return;
            }
            Request::Write(version, state) => return self.write(version, &state),
            Request::Read => {
                let (view, leader) = self.look();
                let version = self.store.version();
                Reply::View(view, leader.as_deref() == Some(&self.nodes[at].uuid), version)
            }
        };
        if self.reaches(STORE, at) {
            let delay = self.delay_us();
            self.push(delay, at, boot, Event::Reply(reply, sent_ns));
        }
    }

    fn look(&mut self) -> (Option<Rc<View>>, Option<String>) {
        let snapshot = self.store.read().expect("it answers");
        let leader = || {
            let entry = snapshot.entries.get(keys::LEADER)?;
            String::from_utf8(entry.value.clone()).ok()
        };
        self.views.entry(snapshot.version).or_insert_with(|| {
            let view = View::of(&snapshot).expect("what was written is sound").map(Rc::new);
            (view, leader())
        });
        self.views[&snapshot.version].clone()
    }

    fn write(&mut self, version: Version, state: &State) {
        let json = state.to_json().expect("leaders write sound documents");
        let expected = (self.bug != Some(Bug::BlindWrite)).then_some(version);
        let swap = Swap { key: keys::STATE, expected, value: Some(&json), lease: None };
        if !matches!(self.store.swap(swap), Ok(Swapped::Done(_))) {
            return;
        }
        let is = (state.epoch, state.revision);
        if is.0 < self.newest.0 || is.1 <= self.newest.1 {
            self.violation = Some(format!("epoch and revision {is:?} after {:?}", self.newest));
        }
        self.newest = is;
        self.epochs.insert(state.revision, state.epoch);
    }

    fn on_reply(&mut self, at: usize, reply: Reply, sent_ns: u64) {
        let now_us = self.now_us;
        match reply {
            Reply::Granted(lease) => {
                if self.nodes[at].lease.is_some() {
                    return;
                }
                self.nodes[at].lease = Some(lease);
                self.nodes[at].renewed_ns = Some(sent_ns);
                self.ask(at, Request::Member);
                self.ask(at, Request::Read);
            }
            Reply::Alive(true) => {
                let bug = self.bug;
                let node = &mut self.nodes[at];
                let counted = if bug == Some(Bug::FenceFromAnswer) { node.local_ns(now_us) } else { sent_ns };
                node.renewed_ns = node.renewed_ns.max(Some(counted));
                node.move_fence(now_us, bug);
                // The message that made it a member may have been lost.
                let is_member = node.view.as_ref().and_then(|view| view.members.get(&node.uuid));
                if is_member.is_none_or(|member| member.incarnation != node.incarnation) {
                    self.ask(at, Request::Member);
                }
            }
            Reply::Alive(false) => {
                let incarnation = self.new_incarnation(at);
                self.nodes[at].begin_life(incarnation);
            }
            Reply::View(Some(view), leads, version) => {
                self.nodes[at].read_at = version;
                self.on_view(at, view, leads);
            }
            Reply::View(None, ..) => {}
        }
    }

    fn on_view(&mut self, at: usize, view: Rc<View>, leads: bool) {
        let (now_us, bug) = (self.now_us, self.bug);
        if self.nodes[at].view.as_ref().is_some_and(|seen| seen.state.revision > view.state.revision) {
            return;
        }
        let uuid = self.nodes[at].uuid.clone();
        self.nodes[at].view = Some(Rc::clone(&view));
        self.nodes[at].move_fence(now_us, bug);
        if bug == Some(Bug::ReportFirst) {
            self.report(at, view.state.revision);
        }
        let (delay, boot) = (self.rng.between(100, 20_000), self.nodes[at].boot);
        self.push(delay, at, boot, Event::Apply(Rc::clone(&view)));
        if view.state.node_of(&uuid).is_none() {
            // Who does not belong to the cluster does not lead it.
            if leads {
                self.ask(at, Request::Resign);
            }
            return;
        }
        if !leads {
            self.ask(at, Request::Lead);
            return;
        }
        if self.last_leader.as_ref() != Some(&uuid) {
            self.last_leader = Some(uuid);
            self.tally.leaders += 1;
        }
        self.lead(at, &view);
    }

    fn lead(&mut self, at: usize, view: &View) {
        let mut seen = view.clone();
        if self.bug == Some(Bug::PromoteEarly) && self.rng.chance(1, 5) {
            let uuid = self.nodes[self.rng.below(self.nodes.len() as u64) as usize].uuid.clone();
            seen.members.remove(&uuid);
        }
        let now = Duration::from_nanos(self.nodes[at].local_ns(self.now_us));
        if let Some(next) = self.nodes[at].leader.step(&seen, now) {
            self.count(&view.state, &next);
            self.ask(at, Request::Write(view.version, Box::new(next)));
        }
    }

    fn count(&mut self, before: &State, after: &State) {
        self.tally.automatic += u64::from(after.auto_failover.count > before.auto_failover.count);
        self.tally.choices += u64::from(before.is_choosing() && !after.is_choosing());
        self.tally.rebalances += u64::from(before.rebalance.is_some() && after.rebalance.is_none());
    }

    fn apply(&mut self, at: usize, view: &View) {
        if self.nodes[at].applied > view.state.revision {
            return;
        }
        let (mut rng, bug) = (self.rng.fork(), self.bug);
        let activated = self.nodes[at].apply(view, || rng.next_u64(), bug);
        for vb in activated {
            self.check_has_committed(at, vb);
        }
        let applied = self.nodes[at].applied;
        self.report(at, applied);
    }

    fn report(&mut self, at: usize, applied: u64) {
        let Some(report) = self.nodes[at].report(applied, self.bug) else { return };
        if self.nodes[at].lease.is_some() && self.nodes[at].reported.as_ref() != Some(&report)
            || self.rng.chance(1, 10)
        {
            let json = serde_json::to_vec(&report).expect("a report is JSON");
            self.nodes[at].reported = Some(report);
            self.ask(at, Request::Report(json));
        }
    }

    /// An administrator asks something of a node.
    pub fn ask_for(&mut self, at: usize, command: &Command) {
        let Some(view) = self.nodes[at].view.clone() else { return };
        if let Ok(state) = command::apply(&view, command) {
            self.tally.failovers += u64::from(matches!(command, Command::FailOver { .. }));
            self.ask(at, Request::Write(view.version, Box::new(state)));
        }
    }

    fn node_of(&self, id: NodeId) -> Option<usize> {
        // Nodes were numbered in the order in which they joined.
        usize::try_from(id.0).ok().and_then(|id| id.checked_sub(1)).filter(|at| *at < self.nodes.len())
    }

    /// A node's copies follow those that they are to follow.
    fn pull(&mut self, at: usize) {
        let me = NodeId(at as u32 + 1);
        for vb in 0..VBUCKETS {
            let Some(copy) = self.nodes[at].copies.get(&vb) else { continue };
            let (source, takes_over) = (copy.source, copy.takes_over);
            let most = self.rng.between(1, 6) as usize;
            let step = self.rng.between(0, 6) as usize;
            let Some(from) = source.and_then(|id| self.node_of(id)) else {
                let copy = self.nodes[at].copies.get_mut(&vb).expect("it was there");
                copy.persisted = copy.log.len().min(copy.persisted + step);
                if copy.state == VbState::Active {
                    self.commit(at, vb);
                }
                continue;
            };
            if from == at
                || !self.nodes[from].is_awake(self.now_us)
                || !self.reaches(at, from)
                || !self.reaches(from, at)
            {
                continue;
            }
            let Some(of) = self.nodes[from].copies.get(&vb).filter(|of| of.state == VbState::Active).cloned()
            else {
                continue;
            };
            let copy = self.nodes[at].copies.get_mut(&vb).expect("it was there");
            copy.follow(&of, most);
            copy.persisted = copy.log.len().min(copy.persisted + step);
            let (persisted, has_all) = (copy.persisted, copy.log.len() == of.log.len());
            let of = self.nodes[from].copies.get_mut(&vb).expect("it was there");
            of.acknowledged(me, persisted);
            self.commit(from, vb);
            if takes_over && has_all {
                self.nodes[from].copies.get_mut(&vb).expect("it was there").stop(VbState::Dead);
                if !self.rng.chance(1, 20) {
                    let (delay, boot) = (self.delay_us(), self.nodes[at].boot);
                    self.push(delay, at, boot, Event::Activate(vb, NodeId(from as u32 + 1)));
                }
            }
        }
    }

    /// The last message of a takeover has come.
    fn activate(&mut self, at: usize, vb: u16, from: NodeId) {
        let uuid = self.rng.next_u64();
        let late = self.bug == Some(Bug::LateTakeover);
        let Some(copy) = self.nodes[at].copies.get_mut(&vb) else { return };
        if late || (copy.state == VbState::Pending && copy.takes_over && copy.source == Some(from)) {
            copy.activate(uuid);
            copy.topology.clear();
            self.tally.takeovers += 1;
            self.check_has_committed(at, vb);
        }
    }

    fn commit(&mut self, at: usize, vb: u16) {
        let me = NodeId(at as u32 + 1);
        let Some(copy) = self.nodes[at].copies.get_mut(&vb) else { return };
        let told = copy.commit(me);
        self.tally.committed += told.len() as u64;
        self.committed.entry(vb).or_default().extend(told);
    }

    fn client(&mut self) {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let vb = self.rng.below(u64::from(VBUCKETS)) as u16;
        let write = Write { id: self.rng.next_u64(), durable: self.rng.chance(1, 2) };
        if self.nodes[at].serves(vb, self.now_us) {
            if let Some(copy) = self.nodes[at].copies.get_mut(&vb).filter(|copy| copy.log.len() < 400) {
                copy.log.push(write);
            }
        } else if self.nodes[at].copies.get(&vb).is_some_and(|copy| copy.state == VbState::Active) {
            self.tally.fenced += 1;
        }
        let delay = self.rng.between(500, 12_000);
        self.push(delay, 0, 0, Event::Client);
    }

    /// No vBucket is ever served by two nodes.
    fn check_exclusive(&mut self) {
        for vb in 0..VBUCKETS {
            let serving: Vec<usize> =
                (0..self.nodes.len()).filter(|at| self.nodes[*at].serves(vb, self.now_us)).collect();
            if serving.len() > 1 {
                self.violation = Some(format!("vBucket {vb} is served by nodes {serving:?}"));
            }
        }
    }

    /// Whoever becomes active has everything that was told to be durable.
    fn check_has_committed(&mut self, at: usize, vb: u16) {
        let (Some(copy), Some(committed)) = (self.nodes[at].copies.get(&vb), self.committed.get(&vb)) else {
            return;
        };
        if let Some(lost) = missing(copy, committed) {
            self.violation =
                Some(format!("node {at} became active for vBucket {vb} without durable write {lost:x}"));
        }
    }

    /// When all faults are over, everything is served again, with all durable writes, and nothing is under way.
    fn check_end(&mut self) -> Result<(), String> {
        let (view, _) = self.look();
        let state = &view.ok_or("there is no document")?.state;
        if state.rebalance.is_some() || state.is_choosing() {
            return Err(format!("something is still under way: {state:?}"));
        }
        let bucket = state.buckets.get(BUCKET).ok_or("there is no bucket")?;
        for vb in bucket.vbuckets() {
            let active = bucket.active(vb).and_then(|id| self.node_of(id));
            let at = active.ok_or_else(|| format!("vBucket {vb} has no active node"))?;
            if !self.nodes[at].serves(vb, self.now_us) {
                return Err(format!("node {at} does not serve vBucket {vb}: {state:?}"));
            }
            let copy = &self.nodes[at].copies[&vb];
            if let Some(lost) = self.committed.get(&vb).and_then(|committed| missing(copy, committed)) {
                return Err(format!("durable write {lost:x} of vBucket {vb} is lost"));
            }
        }
        Ok(())
    }
}

fn missing(copy: &Copy, committed: &[u64]) -> Option<u64> {
    let has: BTreeSet<u64> = copy.log.iter().map(|write| write.id).collect();
    committed.iter().copied().find(|id| !has.contains(id))
}

/// A view of a document without anybody alive.
fn bare(state: &State) -> View {
    View { state: state.clone(), version: Version(0), members: BTreeMap::new(), reports: BTreeMap::new() }
}
