//! The world: time, messages, the store, clients, and what must always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::VbState;
use base::env::sim::SplitMix64;
use base::env::{Env, SimHandles};
use cluster::command::{self, Command};
use cluster::membership::is_other;
use cluster::promise::Ask;
use cluster::store::{Commit, Snapshot, Store, Swapped, Version};
use cluster::{MemoryStore, NodeId, Standing, State, View, keys};
use serde_json::json;

use crate::aims::{Aims, Blow};
use crate::away::Away;
use crate::bugs::Bug;
use crate::damage::Damage;
use crate::data::{Copy, Write};
use crate::forced::Forced;
use crate::node::{BUCKET, BUCKET_UUID, SimNode};
use crate::restore::{Phase, Restore};
use crate::store::{self, Request, TTL, serve};
use crate::stuck::Stuck;

pub const VBUCKETS: u16 = 4;
/// When faults end.
pub const FAULTS_US: u64 = 6_000_000;
/// When everything must be well again.
const END_US: u64 = 13_000_000;
/// So much later if the store is restored.
const RESTORE_US: u64 = 5_000_000;
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
    pub restores: u64,
    pub damages: u64,
    pub damaged_served: u64,
    pub set_aside: u64,
    pub away: u64,
    pub pairs: u64,
    pub given_up: u64,
    pub stuck: u64,
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
            (&mut self.restores, other.restores),
            (&mut self.damages, other.damages),
            (&mut self.damaged_served, other.damaged_served),
            (&mut self.set_aside, other.set_aside),
            (&mut self.away, other.away),
            (&mut self.pairs, other.pairs),
            (&mut self.given_up, other.given_up),
            (&mut self.stuck, other.stuck),
        ] {
            *sum += n;
        }
    }
}

/// What the store answers.
pub enum Reply {
    /// What it holds.
    Look(Rc<Look>),
    /// Anything else.
    Said(store::Reply),
}

/// What the store holds at one moment.
pub struct Look {
    snapshot: Snapshot,
    view: Option<Rc<View>>,
}

pub enum Event {
    LeaseTick,
    AgentTick,
    PullTick,
    AtStore(Request, u64),
    Reply(Reply, u64),
    /// A node asks for a promise; when it did, by its clock.
    Ask(usize, Box<Ask>, u64),
    /// A node has promised something to a life, which asked then.
    Promise(usize, u64, u64),
    Apply(Rc<View>),
    Activate(u16, NodeId),
    Client,
    Fault,
    Blow(Blow),
    Heal(Blow),
    Restore(Phase),
    Damage,
    Administer,
    Away(bool),
    Forced,
    Stuck,
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
    looked: Option<Rc<Look>>,
    /// What is aimed at; nothing if faults strike by chance alone.
    pub aims: Option<Aims>,
    /// Who wrote last what nobody else got.
    pub estranged: Option<usize>,
    /// How long clients wait at most, in microseconds.
    pace_us: u64,
    pub committed: BTreeMap<u16, Vec<u64>>,
    pub newest: State,
    /// What happens to the store; nothing in most runs.
    pub restore: Option<Restore>,
    /// What is damaged; nothing in most runs.
    pub damage: Option<Damage>,
    /// Nobody reaches the store.
    pub is_store_away: bool,
    /// What happens to the store or to two nodes; nothing in most runs.
    pub away: Option<Away>,
    /// Whose last copies are given up; nothing in most runs.
    pub forced: Option<Forced>,
    /// Whose bucket cannot be made what the document says; none in most runs.
    pub stuck: Option<Stuck>,
    /// When everything must be well again.
    pub end_us: u64,
    last_leader: Option<String>,
    pub tally: Tally,
    pub violation: Option<String>,
    is_shown: bool,
}

impl World {
    pub fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut world = World::bare(seed, bug);
        let away = Away::of(seed, world.nodes.len());
        world.plan_away(away);
        world.found(seed);
        world
    }

    /// One in which the store is away for so long, and nothing else happens.
    pub fn calm(seed: u64, length_us: u64) -> World {
        let mut world = World::bare(seed, None);
        world.plan_away(Some(Away::calm(length_us)));
        world.found(seed);
        world.restore = None;
        world
    }

    fn bare(seed: u64, bug: Option<Bug>) -> World {
        let (env, handles) = Env::sim(seed);
        let mut rng = SplitMix64::new(seed);
        let count = rng.between(3, 5) as usize;
        let aims = rng.chance(1, 2).then(|| Aims::of(&mut rng));
        // Leases and promises allow for clocks that differ by a quarter in rate, that of the store included.
        let is_far = aims.is_some() && rng.chance(1, 2);
        let slowest = if is_far { rng.between(810, 960) } else { 950 };
        let fastest = if is_far { slowest * 124 / 100 } else { 1_050 };
        let mut node = |at| SimNode::new(at, rng.between(slowest, fastest), rng.next_u64());
        let mut nodes: Vec<SimNode> = (0..count).map(&mut node).collect();
        nodes.iter_mut().for_each(|node| node.held.asks_for_promises = seed % 16 != 11);
        let pace_us = if aims.is_some() { rng.between(2_000, 12_000) } else { 12_000 };
        World {
            bug,
            rng,
            store: MemoryStore::new(env.clock.clone()),
            handles,
            queue: BTreeMap::new(),
            next: 0,
            now_us: 0,
            nodes,
            cut: BTreeSet::new(),
            looked: None,
            aims,
            estranged: None,
            pace_us,
            committed: BTreeMap::new(),
            newest: State::empty(),
            restore: None,
            damage: Damage::of(seed),
            is_store_away: false,
            away: None,
            forced: Forced::of(seed),
            stuck: Stuck::of(seed),
            end_us: END_US,
            last_leader: None,
            tally: Tally::default(),
            violation: None,
            is_shown: std::env::var_os("SIMULATION_SHOW").is_some(),
        }
    }

    pub fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// A cluster whose nodes have all joined, with one bucket.
    fn found(&mut self, seed: u64) {
        let mut state: Option<State> = None;
        for at in 0..self.nodes.len() {
            let incarnation = self.nodes[at].held.life().incarnation();
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
        let replicas = self.rng.between(1, 3) as u8;
        let create = Command::CreateBucket {
            name: BUCKET.to_owned(),
            uuid: BUCKET_UUID.to_owned(),
            settings: json!({}),
            replicas: if self.forced.is_some() { 0 } else { replicas },
            vbuckets: VBUCKETS,
            manifest: json!({}),
        };
        self.nodes[0].held.sign(&mut state, 0);
        self.restore = Restore::of(seed, &state);
        let before = state.revision;
        let mut state = command::apply(&bare(&state), &create).expect("a bucket can be made");
        self.nodes[0].held.sign(&mut state, before);
        self.put_state(state);
        for at in 0..self.nodes.len() {
            self.start(at);
        }
        self.push(1_000, 0, 0, Event::Client);
        if !self.is_calm() && !matches!(self.away, Some(Away::Pair { .. })) {
            self.push(300_000, 0, 0, Event::Fault);
        }
        if let Some(delay) = self.restore.as_mut().map(Restore::begins_us) {
            self.end_us += RESTORE_US;
            self.push(delay, 0, 0, Event::Restore(Phase::Backup));
        }
        if let Some(delay) = self.forced.as_mut().map(Forced::next_us) {
            self.push(delay, 0, 0, Event::Forced);
        }
        if let Some(delay) = self.stuck.as_mut().map(Stuck::next_us) {
            self.push(delay, 0, 0, Event::Stuck);
        }
        if let Some(delay) = self.damage.as_mut().map(Damage::next_us) {
            self.push(delay, 0, 0, Event::Damage);
            self.push(FAULTS_US, 0, 0, Event::Administer);
        }
    }

    /// Puts a state into the store, whatever is there; returns that.
    pub fn put_state(&mut self, state: State) -> State {
        let puts = state.changes(None).expect("sound");
        self.store.commit(Commit { guard: None, puts: &puts, lease: None }).expect("it answers");
        std::mem::replace(&mut self.newest, state)
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

    /// Tells what happens, if somebody wants to know.
    pub fn show(&self, what: impl FnOnce() -> String) {
        if self.is_shown {
            println!("{:>10} {}", self.now_us, what());
        }
    }

    pub fn push(&mut self, delay_us: u64, at: usize, boot: u64, event: Event) {
        self.next += 1;
        self.queue.insert((self.now_us + delay_us, self.next), (at, boot, event));
    }

    /// How long a message takes; a few take very long.
    fn delay_us(&mut self) -> u64 {
        if !self.is_calm() && self.rng.chance(1, 40) {
            self.rng.between(1_000, 600_000)
        } else {
            self.rng.between(100, 4_000)
        }
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        let is_away = self.is_store_away && (from == STORE || to == STORE);
        !is_away && !self.cut.contains(&(from, to))
    }

    pub fn run(&mut self) -> Result<Tally, String> {
        while let Some(((at_us, _), (at, boot, event))) = self.queue.pop_first() {
            if at_us > self.end_us {
                break;
            }
            self.handles.clock.advance(Duration::from_micros(at_us - self.now_us));
            self.now_us = at_us;
            self.handle(at, boot, event);
            self.check_exclusive();
            self.check_served();
            self.check_alone();
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
            Event::Blow(blow) => return self.blow(at, blow),
            Event::Heal(blow) => return self.heal_from(at, blow),
            Event::Restore(phase) => return self.restore(phase),
            Event::Damage => return self.damage(),
            Event::Administer => return self.administer(),
            Event::Away(begins) => return self.go_away(begins),
            Event::Forced => return self.force(),
            Event::Stuck => return self.stick(),
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
                let sent_ns = node.local_ns(self.now_us);
                let request = self.nodes[at].held.renew(sent_ns);
                self.ask_since(at, request, sent_ns);
                self.ask_for_promises(at, sent_ns);
                let every_us = TTL.as_micros() as u64 / 5 * 1_000 / self.nodes[at].rate;
                self.push(every_us, at, boot, Event::LeaseTick);
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
            Event::Ask(from, ask, sent_ns) => self.promise(at, from, &ask, sent_ns),
            Event::Promise(by, incarnation, sent_ns) => {
                let by = self.nodes[by].uuid.clone();
                self.nodes[at].held.promised(&by, incarnation, sent_ns);
            }
            Event::Apply(view) => self.apply(at, &view),
            Event::Activate(vb, from) => self.activate(at, vb, from),
            _ => {}
        }
    }

    fn ask(&mut self, at: usize, request: Request) {
        let sent_ns = self.nodes[at].local_ns(self.now_us);
        self.ask_since(at, request, sent_ns);
    }

    fn ask_since(&mut self, at: usize, request: Request, sent_ns: u64) {
        if self.reaches(at, STORE) {
            let (delay, boot) = (self.delay_us(), self.nodes[at].boot);
            self.push(delay, at, boot, Event::AtStore(request, sent_ns));
        }
    }

    /// A node asks others not to take over from it.
    fn ask_for_promises(&mut self, at: usize, sent_ns: u64) {
        let Some((ask, of)) = self.nodes[at].held.asks(&self.nodes[at].uuid) else { return };
        let asked = |uuid: &String| self.nodes.iter().position(|node| node.uuid == *uuid);
        for to in of.iter().filter_map(asked).collect::<Vec<_>>() {
            if self.reaches(at, to) {
                let (delay, boot) = (self.delay_us(), self.nodes[to].boot);
                self.push(delay, to, boot, Event::Ask(at, Box::new(ask.clone()), sent_ns));
            }
        }
    }

    /// A node is asked not to take over from another one.
    fn promise(&mut self, at: usize, from: usize, ask: &Ask, sent_ns: u64) {
        let now_ns = self.nodes[at].local_ns(self.now_us);
        if self.nodes[at].held.authority.grant(ask, now_ns).is_ok() && self.reaches(at, from) {
            let (delay, boot) = (self.delay_us(), self.nodes[from].boot);
            self.push(delay, from, boot, Event::Promise(at, ask.incarnation, sent_ns));
        }
    }

    fn at_store(&mut self, at: usize, boot: u64, request: Request, sent_ns: u64) {
        let reply = match request {
            Request::Write(version, state) => return self.write(version, &state),
            Request::Read => Some(Reply::Look(self.look())),
            request => {
                let reply = serve(&self.store, &self.nodes[at].uuid, request).expect("it answers");
                reply.map(Reply::Said)
            }
        };
        if let Some(reply) = reply.filter(|_| self.reaches(STORE, at)) {
            let delay = self.delay_us();
            self.push(delay, at, boot, Event::Reply(reply, sent_ns));
        }
    }

    fn look(&mut self) -> Rc<Look> {
        let version = self.store.version();
        if let Some(looked) = self.looked.as_ref().filter(|looked| looked.snapshot.version == version) {
            return Rc::clone(looked);
        }
        let snapshot = self.store.read().expect("it answers");
        let view = View::of(&snapshot).expect("what was written is sound").map(Rc::new);
        let looked = Rc::new(Look { snapshot, view });
        self.looked = Some(Rc::clone(&looked));
        looked
    }

    fn write(&mut self, version: Version, state: &State) {
        let puts = state.changes(None).expect("leaders write sound documents");
        let commit = Commit { guard: Some((keys::STATE, version)), puts: &puts, lease: None };
        if !matches!(self.store.commit(commit), Ok(Swapped::Done(_))) {
            return;
        }
        let before = std::mem::replace(&mut self.newest, state.clone());
        if state.epoch < before.epoch || state.revision <= before.revision {
            let (is, was) = ((state.epoch, state.revision), (before.epoch, before.revision));
            self.violation = Some(format!("epoch and revision {is:?} after {was:?}"));
        }
        self.show(|| format!("document {}: {:?}", state.revision, state.buckets.get(BUCKET)));
        self.count(&before, state);
        self.note_given_up(state);
        self.take_aim(&before, state);
    }

    fn on_reply(&mut self, at: usize, reply: Reply, sent_ns: u64) {
        let (now_us, random) = (self.now_us, self.rng.next_u64());
        let is_counted_from_answer = self.bug == Some(Bug::FenceFromAnswer);
        let node = &mut self.nodes[at];
        let now_ns = node.local_ns(now_us);
        let held = &mut node.held;
        match reply {
            Reply::Said(store::Reply::Granted(..) | store::Reply::IsMember(..))
                if !held.is_beginning(sent_ns) => {}
            Reply::Said(store::Reply::Granted(lease, version)) => {
                held.tries(now_ns, random);
                let json = node.member();
                self.ask_since(at, Request::Member(lease, version, json), sent_ns);
            }
            Reply::Said(store::Reply::IsMember(lease, true)) => held.begun(lease, sent_ns, now_ns, random),
            Reply::Said(store::Reply::Alive(lease, is_alive)) => {
                let counted_ns = if is_counted_from_answer { now_us * node.rate } else { sent_ns };
                held.renewed(lease, is_alive, counted_ns, now_ns, random);
            }
            Reply::Look(look) => self.on_look(at, &look),
            Reply::Said(_) => {}
        }
    }

    /// A node reads what the store holds now, at once.
    pub fn look_now(&mut self, at: usize) {
        let look = self.look();
        self.on_look(at, &look);
    }

    fn on_look(&mut self, at: usize, look: &Look) {
        let Some(view) = look.view.clone() else { return };
        let now_us = self.now_us;
        let node = &mut self.nodes[at];
        // Answers may overtake each other here; a server asks one thing after the other.
        if look.snapshot.version < node.read_at {
            return;
        }
        node.read_at = look.snapshot.version;
        let standing = Standing::of(&look.snapshot, &node.uuid);
        // Before anything is done that it says.
        if node.seen.check(&view.state).is_err() {
            node.held.note_stale(&node.uuid);
            node.view = None;
            if standing == Standing::Leads {
                self.ask(at, Request::Resign(look.snapshot.version_of(keys::LEADER)));
            }
            return;
        }
        if is_other(&node.seen.cluster, &view.state.cluster) {
            // How far it was along another branch says nothing about this one.
            (node.applied, node.let_go) = (0, 0);
        }
        node.seen = node.seen.after(&view.state).unwrap_or_else(|| node.seen.clone());
        node.view = Some(Rc::clone(&view));
        let now_ns = node.local_ns(now_us);
        node.held.note_state(&view, &node.uuid, now_ns);
        let (uuid, lease) = (node.uuid.clone(), node.held.life().lease());
        // Becoming is another thing than reading, and takes time.
        let most_us = if now_us < node.slow_until_us { 400_000 } else { 20_000 };
        let (delay, boot) = (self.rng.between(100, most_us), self.nodes[at].boot);
        self.push(delay, at, boot, Event::Apply(Rc::clone(&view)));
        if view.state.node_of(&uuid).is_none() {
            // Who does not belong to the cluster does not lead it.
            if standing == Standing::Leads {
                self.ask(at, Request::Resign(look.snapshot.version_of(keys::LEADER)));
            }
            return;
        }
        self.report(at);
        match (standing, lease) {
            (Standing::Vacant, Some(lease)) => self.ask(at, Request::Lead(lease)),
            (Standing::Leads, _) => {
                if self.last_leader.as_ref() != Some(&uuid) {
                    self.last_leader = Some(uuid);
                    self.tally.leaders += 1;
                }
                self.lead(at, &view);
            }
            _ => {}
        }
    }

    fn lead(&mut self, at: usize, view: &View) {
        let mut seen = view.clone();
        if self.bug == Some(Bug::PromoteEarly) && self.rng.chance(1, 5) {
            let uuid = self.nodes[self.rng.below(self.nodes.len() as u64) as usize].uuid.clone();
            seen.members.remove(&uuid);
        }
        let now = Duration::from_nanos(self.nodes[at].local_ns(self.now_us));
        self.nodes[at].watch.look(&seen, now);
        if let Some(mut next) = self.nodes[at].leader.step(&seen, now) {
            self.nodes[at].held.sign(&mut next, view.state.revision);
            if let Some(what) = self.nodes[at].watch.too_early(&seen.state, &next) {
                self.violate(what);
            }
            self.ask(at, Request::Write(view.version, Box::new(next)));
        }
    }

    fn count(&mut self, before: &State, after: &State) {
        self.tally.given_up += given_up(before, after);
        self.tally.automatic += u64::from(after.auto_failover.count > before.auto_failover.count);
        self.tally.choices += u64::from(before.is_choosing() && !after.is_choosing());
        self.tally.rebalances += u64::from(before.rebalance.is_some() && after.rebalance.is_none());
    }

    fn apply(&mut self, at: usize, view: &View) {
        let node = &self.nodes[at];
        let is_late = node.applied.max(node.let_go) > view.state.revision;
        if is_late || is_other(&node.seen.cluster, &view.state.cluster) {
            return;
        }
        if self.now_us < self.nodes[at].stuck_until_us {
            self.tally.stuck += u64::from(self.nodes[at].let_go < view.state.revision);
            self.nodes[at].fail_to_apply(view);
            return self.report(at);
        }
        let rng = self.rng.fork();
        let activated = self.nodes[at].apply(view, rng);
        self.check_set_aside(at);
        activated.into_iter().for_each(|vb| self.check_has_committed(at, vb));
        self.report(at);
    }

    fn report(&mut self, at: usize) {
        let now_ns = self.nodes[at].local_ns(self.now_us);
        let (report, lease) = (self.nodes[at].report(now_ns), self.nodes[at].held.life().lease());
        let (Some(report), Some(lease)) = (report, lease) else { return };
        // What the store has may also be an older one that came late.
        let node = &self.nodes[at];
        let is_there = |view: &Rc<View>| view.reports.get(&node.uuid) == Some(&report);
        if !node.view.as_ref().is_some_and(is_there) {
            self.ask(at, Request::Report(lease, serde_json::to_vec(&report).expect("a report is JSON")));
        }
    }

    /// An administrator asks something of a node.
    pub fn ask_for(&mut self, at: usize, command: &Command) {
        let Some(view) = self.nodes[at].view.clone() else { return };
        if let Ok(mut state) = command::apply(&view, command) {
            self.nodes[at].held.sign(&mut state, view.state.revision);
            self.tally.failovers += u64::from(matches!(command, Command::FailOver { .. }));
            self.ask(at, Request::Write(view.version, Box::new(state)));
        }
    }

    pub fn node_of(&self, id: NodeId) -> Option<usize> {
        // Nodes were numbered in the order in which they joined.
        usize::try_from(id.0).ok().and_then(|id| id.checked_sub(1)).filter(|at| *at < self.nodes.len())
    }

    /// A node's copies follow those that they are to follow.
    fn pull(&mut self, at: usize) {
        for vb in 0..VBUCKETS {
            // When faults are over nothing is to be waited for.
            let times = if self.now_us < FAULTS_US { 1 } else { 10 };
            let most = self.rng.between(1, 6 * times) as usize;
            let step = self.rng.between(0, 6 * times) as usize;
            let Some(copy) = self.nodes[at].copies.get_mut().get_mut(&vb) else { continue };
            let (source, takes_over) = (copy.source, copy.takes_over);
            let Some(from) = source.and_then(|id| self.node_of(id)) else {
                self.with_copy(at, vb, |copy| copy.flush(step));
                if self.nodes[at].role(vb) == Some(VbState::Active) {
                    self.commit(at, vb);
                }
                continue;
            };
            let is_reached = self.nodes[from].is_awake(self.now_us);
            if from == at || !is_reached || !self.reaches(at, from) || !self.reaches(from, at) {
                continue;
            }
            let of = self.nodes[from].copies.borrow().get(&vb).cloned();
            let Some(of) = of.filter(|of| of.state == VbState::Active) else { continue };
            let followed = self.with_copy(at, vb, |copy| {
                copy.follow(&of, most);
                copy.flush(step);
                (copy.persisted, copy.has_all(&of))
            });
            let Some((persisted, has_all)) = followed else { continue };
            self.with_copy(from, vb, |of| of.acknowledged(NodeId(at as u32 + 1), persisted));
            self.commit(from, vb);
            if takes_over && has_all {
                self.with_copy(from, vb, |of| of.stop(VbState::Dead));
                if !self.rng.chance(1, 20) {
                    let (delay, boot) = (self.delay_us(), self.nodes[at].boot);
                    self.push(delay, at, boot, Event::Activate(vb, NodeId(from as u32 + 1)));
                }
            }
        }
    }

    fn with_copy<T>(&mut self, at: usize, vb: u16, work: impl FnOnce(&mut Copy) -> T) -> Option<T> {
        self.nodes[at].copies.get_mut().get_mut(&vb).map(work)
    }

    /// The last message of a takeover has come.
    fn activate(&mut self, at: usize, vb: u16, from: NodeId) {
        let uuid = self.rng.next_u64();
        let late = self.bug == Some(Bug::LateTakeover);
        let is_awaited =
            |copy: &Copy| copy.state == VbState::Pending && copy.takes_over && copy.source == Some(from);
        let activated = self.with_copy(at, vb, |copy| {
            let is_meant = late || is_awaited(copy);
            if is_meant {
                copy.activate(uuid);
                copy.topology.clear();
            }
            is_meant
        });
        if activated == Some(true) {
            self.tally.takeovers += 1;
            // It is looked at when it is served: a message that comes late makes it active, and it serves nothing.
            self.nodes[at].unchecked.insert(vb);
        }
    }

    fn commit(&mut self, at: usize, vb: u16) {
        let told = self.with_copy(at, vb, |copy| copy.commit(NodeId(at as u32 + 1))).unwrap_or_default();
        if !self.nodes[at].serves(vb, self.now_us) {
            // Clients are not told: the fence is asked again when they are answered.
            return;
        }
        self.tally.committed += told.len() as u64;
        self.committed.entry(vb).or_default().extend(told);
    }

    fn client(&mut self) {
        let any = self.any_node();
        let vb = self.rng.below(u64::from(VBUCKETS)) as u16;
        let write = Write { id: self.rng.next_u64(), durable: self.rng.chance(1, 2) };
        // Most clients know who serves.
        let knows = self.aims.is_some() && self.rng.chance(3, 4);
        let serves = (0..self.nodes.len()).find(|at| knows && self.nodes[*at].serves(vb, self.now_us));
        let at = serves.unwrap_or(any);
        if self.nodes[at].serves(vb, self.now_us) {
            self.with_copy(at, vb, |copy| {
                if copy.log.len() < 400 {
                    copy.log.push(write);
                }
            });
        } else if self.nodes[at].role(vb) == Some(VbState::Active) {
            self.tally.fenced += 1;
        }
        let pace_us = if self.now_us < FAULTS_US { self.pace_us } else { 12_000 };
        let delay = self.rng.between(500, pace_us);
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
            for at in
                serving.into_iter().filter(|at| self.nodes[*at].unchecked.remove(&vb)).collect::<Vec<_>>()
            {
                self.check_has_committed(at, vb);
            }
        }
    }

    /// Whoever becomes active has everything that was told to be durable.
    fn check_has_committed(&mut self, at: usize, vb: u16) {
        let copies = self.nodes[at].copies.borrow();
        let (Some(copy), Some(committed)) = (copies.get(&vb), self.committed.get(&vb)) else { return };
        if let Some(lost) = missing(copy, committed) {
            self.violation =
                Some(format!("node {at} became active for vBucket {vb} without durable write {lost:x}"));
        }
    }

    /// When all faults are over, everything is served again, with all durable writes, and nothing is under way.
    fn check_end(&self) -> Result<(), String> {
        let state = &self.newest;
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
            let copies = self.nodes[at].copies.borrow();
            if let Some(lost) = self.committed.get(&vb).and_then(|committed| missing(&copies[&vb], committed))
            {
                return Err(format!("durable write {lost:x} of vBucket {vb} is lost"));
            }
        }
        self.check_refilled()
    }
}

fn missing(copy: &Copy, committed: &[u64]) -> Option<u64> {
    let has: BTreeSet<u64> = copy.log.iter().map(|write| write.id).collect();
    committed.iter().copied().find(|id| !has.contains(id))
}

/// How many vBuckets no node has any more.
fn given_up(before: &State, after: &State) -> u64 {
    let (Some(was), Some(is)) = (before.buckets.get(BUCKET), after.buckets.get(BUCKET)) else { return 0 };
    is.vbuckets().filter(|vb| was.active(*vb).is_some() && is.active(*vb).is_none()).count() as u64
}

/// A view of a document without anybody alive.
fn bare(state: &State) -> View {
    View { state: state.clone(), version: Version(0), members: BTreeMap::new(), reports: BTreeMap::new() }
}
