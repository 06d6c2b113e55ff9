//! Time, messages, the store, and what happens in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::env::sim::{DocumentNames, SplitMix64};
use base::env::{Env, SimHandles};
use base::limits;
use cluster::command::{self, Command};
use cluster::promise::Ask;
use cluster::store::{Commit, Store, Swapped, Version};
use cluster::{MemoryStore, State, Status, View, keys};
use serde_json::json;

use crate::available::Waits;
use crate::clients::Clients;
use crate::connections::FrontEnd;
use crate::damage::Damage;
use crate::gone::Gone;
use crate::history::History;
use crate::jobs::{Crossing, Fault, Job, Tally};
use crate::node::{BUCKET, Node};
use crate::ops::Outcome;
use crate::promises::Promises;
use crate::rules::Rules;
use crate::store::{Reply, Request, TTL, serve};
use crate::tails::Tail;

/// The store, among the ends of messages.
pub const STORE: usize = usize::MAX;
/// No message takes longer, in microseconds.
pub const MOST_DELAY_US: u64 = 400_000;

/// Something that will happen.
pub enum Event {
    /// A node's lease is to be renewed.
    Lease,
    /// A node looks at the store.
    Look,
    /// A node's other threads do something.
    Work,
    /// The store is asked; when that was sent by the node's clock, in nanoseconds.
    AtStore(Request, u64),
    /// The store answers.
    Reply(Reply, u64),
    /// A node asks another one for a promise; when it did, by its clock.
    Ask(usize, Box<Ask>, u64),
    /// A node has promised something to a life, which asked then.
    Promise(usize, u64, u64),
    /// A client does something.
    Client(usize),
    /// A client's request arrives.
    Arrive(usize),
    /// An answer arrives at its client.
    Answer(usize, Outcome),
    /// A client has waited for long enough.
    TimeOut(usize),
    /// Something goes wrong, or somebody asks for something.
    Fault,
    /// A fault strikes a node that is at this job.
    Strike(Fault, Job),
    /// A fault is over.
    Heal(Fault),
}

/// The world.
pub struct World {
    /// What was decided before.
    pub rules: Rules,
    /// What decides from here on.
    pub rng: SplitMix64,
    time: SimHandles,
    /// The coordination store.
    pub store: MemoryStore,
    queue: BTreeMap<(u64, u64), (usize, u64, Event)>,
    next: u64,
    now_us: u64,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// One-way: from, to.
    pub cut: BTreeSet<(usize, usize)>,
    /// Who asks.
    pub clients: Clients,
    /// What was asked and answered.
    pub history: History,
    /// Who lost what it had in memory since everybody had everything.
    pub forgetful: Option<usize>,
    /// What clients were promised.
    pub promises: Promises,
    /// What vBuckets and clients wait for.
    pub waits: Waits,
    /// How far a seed that aims at a rollback has come.
    pub tail: Tail,
    /// What is damaged, in runs that have it.
    pub damage: Option<Damage>,
    /// When it was last asked that a node be failed over, in microseconds.
    pub failover_asked_us: Option<u64>,
    /// Who goes when all is well.
    pub gone: Gone,
    /// What goes on.
    pub crossing: Crossing,
    /// What happened.
    pub tally: Tally,
    /// The newest document, as it was written.
    pub newest: State,
    trace: u64,
    /// What was found to be wrong.
    pub violation: Option<String>,
    is_shown: bool,
    /// Everything is well again.
    pub is_done: bool,
}

impl World {
    /// A cluster whose nodes have all joined, with one bucket.
    pub fn new(rules: Rules) -> World {
        let (env, time) = Env::sim(rules.seed);
        let mut rng = SplitMix64::new(rules.seed);
        let mut nodes: Vec<Node> = (0..rules.nodes).map(|at| Node::new(at, &rules, &mut rng)).collect();
        nodes.iter_mut().for_each(|node| node.member.held.asks_for_promises = rules.seed % 16 != 8);
        let mut world = World {
            store: MemoryStore::new(env.clock.clone()),
            clients: Clients::new(&rules, DocumentNames::of(rules.seed, limits::MAX_COLLECTION_KEY_BYTES)),
            history: History::new(&rules),
            forgetful: None,
            promises: Promises::new(&rules),
            waits: Waits::default(),
            tail: Tail::None,
            damage: Damage::new(&rules),
            failover_asked_us: None,
            gone: Gone::Nobody,
            crossing: Crossing::new(nodes.len()),
            rules,
            rng,
            time,
            queue: BTreeMap::new(),
            next: 0,
            now_us: 0,
            nodes,
            cut: BTreeSet::new(),
            tally: Tally::default(),
            newest: State::empty(),
            trace: 0xcbf2_9ce4_8422_2325,
            violation: None,
            is_shown: std::env::var_os("SIMULATION_SHOW").is_some(),
            is_done: false,
        };
        world.found();
        world
    }

    fn found(&mut self) {
        let bare = |state: &State| View {
            state: state.clone(),
            version: Version(0),
            members: BTreeMap::new(),
            reports: BTreeMap::new(),
        };
        let mut state = State::empty();
        for node in &self.nodes {
            let (uuid, address) = (node.member.uuid.clone(), node.member.address());
            let incarnation = node.member.held.life().incarnation();
            let join = Command::Join { uuid, address, incarnation };
            state = command::apply(&bare(&state), &join).expect("a node may join");
        }
        // The last one waits for a rebalance.
        let (last, waits) = (self.nodes.len(), self.nodes.len() > 3 && self.rng.chance(1, 2));
        for (at, node) in state.nodes.values_mut().enumerate() {
            node.status = if at + 1 == last && waits { Status::New } else { Status::Active };
        }
        state.auto_failover.timeout_ms = self.rng.between(200, 1_500);
        state.auto_failover.max_count = 2;
        let kind = if self.rules.is_ephemeral { "ephemeral" } else { "couchstore" };
        let create = Command::CreateBucket {
            name: BUCKET.to_owned(),
            uuid: "0".repeat(32),
            settings: json!({ "type": kind }),
            replicas: self.rules.replicas,
            vbuckets: self.rules.vbuckets,
            manifest: json!({}),
        };
        let mut state = command::apply(&bare(&state), &create).expect("a bucket can be made");
        self.nodes[0].member.held.sign(&mut state, 0);
        self.write(Version::ABSENT, &state);
        for at in 0..self.nodes.len() {
            self.begin(at);
        }
        for client in 0..self.clients.len() {
            let delay = self.rng.between(100_000, 200_000);
            self.push(delay, 0, 0, Event::Client(client));
        }
        self.push(400_000, 0, 0, Event::Fault);
    }

    /// A node's threads begin.
    pub fn begin(&mut self, at: usize) {
        let boot = self.nodes[at].boot;
        for (event, within) in [(Event::Lease, 2_000), (Event::Look, 20_000), (Event::Work, 5_000)] {
            let delay = self.rng.below(within);
            self.push(delay, at, boot, event);
        }
    }

    /// The time, in microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// What two runs share if everything happened in the same way.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Makes a number part of the trace.
    pub fn note(&mut self, number: u64) {
        self.trace = (self.trace ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }

    /// Tells what happens, if somebody wants to know.
    pub fn show(&self, what: impl FnOnce() -> String) {
        if self.is_shown {
            println!("{:>10} {}", self.now_us, what());
        }
    }

    /// A node at work for its clients.
    pub fn front_end(&mut self, at: usize) -> FrontEnd<'_> {
        FrontEnd { world: self, at }
    }

    /// Has something happen later; what is meant for a start of a node that is over by then does not.
    pub fn push(&mut self, delay_us: u64, at: usize, boot: u64, event: Event) {
        self.next += 1;
        self.queue.insert((self.now_us + delay_us, self.next), (at, boot, event));
    }

    /// How long a message takes; a few take very long.
    pub fn delay_us(&mut self) -> u64 {
        if self.rng.chance(1, 40) {
            self.rng.between(1_000, MOST_DELAY_US)
        } else {
            self.rng.between(50, 2_000)
        }
    }

    /// Whether messages get from one end to another.
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Until the end, or until something is wrong.
    pub fn run(&mut self) -> Result<(), String> {
        while let Some(((at_us, _), (at, boot, event))) = self.queue.pop_first() {
            if self.is_done || at_us > self.rules.end_us {
                break;
            }
            let by_us = at_us - self.now_us;
            self.time.clock.advance(Duration::from_micros(by_us));
            for node in &self.nodes {
                let by = Duration::from_nanos(by_us * node.rate);
                // Who stands still may be a machine that is suspended.
                if node.frozen_until_us > self.now_us {
                    node.handles.clock.suspend(by);
                } else {
                    node.handles.clock.advance(by);
                }
            }
            self.now_us = at_us;
            self.handle(at, boot, event);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.tally.simulated_us = self.now_us;
        self.check_end()
    }

    fn handle(&mut self, at: usize, boot: u64, event: Event) {
        match event {
            Event::Client(client) => return self.client(client),
            Event::Answer(op, outcome) => return self.answered(op, outcome),
            Event::TimeOut(op) => return self.timed_out(op),
            Event::Heal(fault) => return self.heal(at, fault),
            Event::Fault => return self.fault(),
            Event::Strike(fault, job) => return self.strike_once(at, boot, fault, job),
            Event::AtStore(request, sent_ns) => return self.at_store(at, boot, request, sent_ns),
            _ => {}
        }
        let node = &self.nodes[at];
        // A client's request is for whoever runs there.
        let is_meant = node.boot == boot || matches!(event, Event::Arrive(_));
        if !is_meant || !node.is_up {
            if let Event::Arrive(op) = event {
                // Nobody listens there.
                self.answered(op, Outcome::Refused(true));
            }
            return;
        }
        if !node.is_awake(self.now_us) {
            // Whoever stands still finds everything when it goes on.
            let delay = node.frozen_until_us - self.now_us + self.rng.below(1_000);
            return self.push(delay, at, boot, event);
        }
        match event {
            Event::Lease => {
                let every_us = TTL.as_micros() as u64 / 5 * 1_000 / self.nodes[at].rate;
                let sent_ns = self.nodes[at].clock_ns();
                let request = self.nodes[at].member.held.renew(sent_ns);
                self.ask_since(at, request, sent_ns);
                self.ask_for_promises(at, sent_ns);
                self.push(every_us, at, boot, Event::Lease);
            }
            Event::Look => {
                self.ask(at, Request::Read);
                let delay = self.rng.between(10_000, 40_000);
                self.push(delay, at, boot, Event::Look);
            }
            Event::Work => {
                self.work(at);
                let delay = self.rng.between(500, 6_000);
                self.push(delay, at, boot, Event::Work);
            }
            Event::Reply(reply, sent_ns) => {
                self.front_end(at).note_decided();
                self.on_reply(at, reply, sent_ns);
            }
            Event::Ask(from, ask, sent_ns) => self.promise(at, from, &ask, sent_ns),
            Event::Promise(by, incarnation, sent_ns) => {
                self.front_end(at).note_decided();
                let by = self.nodes[by].member.uuid.clone();
                self.nodes[at].member.held.promised(&by, incarnation, sent_ns);
            }
            Event::Arrive(op) => self.front_end(at).arrive(op),
            _ => {}
        }
        self.check_exclusive();
    }

    fn strike_once(&mut self, at: usize, boot: u64, fault: Fault, job: Job) {
        let is_meant = self.nodes[at].boot == boot && self.rules.aimed.contains(&(fault, job));
        if is_meant && self.strike_at_work(at, fault) {
            self.rules.aimed.retain(|aimed| *aimed != (fault, job));
        }
    }

    /// A node asks something of the store.
    pub fn ask(&mut self, at: usize, request: Request) {
        let sent_ns = self.nodes[at].clock_ns();
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
        let Some((ask, of)) = self.nodes[at].member.held.asks(&self.nodes[at].member.uuid) else { return };
        let asked = |uuid: &String| self.nodes.iter().position(|node| node.member.uuid == *uuid);
        for to in of.iter().filter_map(asked).collect::<Vec<_>>() {
            if self.reaches(at, to) {
                let (delay, boot) = (self.delay_us(), self.nodes[to].boot);
                self.push(delay, to, boot, Event::Ask(at, Box::new(ask.clone()), sent_ns));
            }
        }
    }

    /// A node is asked not to take over from another one.
    fn promise(&mut self, at: usize, from: usize, ask: &Ask, sent_ns: u64) {
        let now_ns = self.nodes[at].clock_ns();
        if self.nodes[at].member.held.authority.grant(ask, now_ns).is_ok() && self.reaches(at, from) {
            let (delay, boot) = (self.delay_us(), self.nodes[from].boot);
            self.push(delay, from, boot, Event::Promise(at, ask.incarnation, sent_ns));
        }
    }

    fn at_store(&mut self, at: usize, boot: u64, request: Request, sent_ns: u64) {
        let uuid = self.nodes[at].member.uuid.clone();
        let reply = match request {
            Request::Write(version, state) => {
                self.write(version, &state);
                return;
            }
            request => serve(&self.store, &uuid, request).expect("a store in memory answers"),
        };
        if let Some(reply) = reply.filter(|_| self.reaches(STORE, at)) {
            let delay = self.delay_us();
            self.push(delay, at, boot, Event::Reply(reply, sent_ns));
        }
    }

    /// A document is written in the place of the one of this version.
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
        self.note(state.revision);
        self.show(|| {
            format!("document {}: {:?} {:?}", state.revision, state.buckets.get(BUCKET), state.rebalance)
        });
        self.tally.rebalances += u64::from(before.rebalance.is_some() && state.rebalance.is_none());
        self.tally.choices += u64::from(before.is_choosing() && !state.is_choosing());
        if state.auto_failover.count > before.auto_failover.count {
            self.cluster_works(Job::AutoFailover);
        }
        self.note_losses();
    }

    fn on_reply(&mut self, at: usize, reply: Reply, sent_ns: u64) {
        let random = self.rng.next_u64();
        let node = &mut self.nodes[at];
        let now_ns = node.clock_ns();
        match reply {
            Reply::Granted(..) | Reply::IsMember(..) if !node.member.held.is_beginning(sent_ns) => {}
            Reply::Granted(lease, version) => {
                node.member.held.tries(now_ns, random);
                let json = node.member.member_json();
                self.ask_since(at, Request::Member(lease, version, json), sent_ns);
            }
            Reply::IsMember(lease, true) => node.member.held.begun(lease, sent_ns, now_ns, random),
            Reply::IsMember(_, false) => {}
            Reply::Alive(lease, is_alive) => {
                node.member.held.renewed(lease, is_alive, sent_ns, now_ns, random);
            }
            Reply::Everything(snapshot) => {
                if snapshot.version < node.member.read_at {
                    // Answers may overtake each other here; a server asks one thing after the other.
                    return;
                }
                node.member.read_at = snapshot.version;
                node.member.is_slow = self.rng.chance(1, 8);
                match self.nodes[at].look(&snapshot, &self.rules) {
                    Ok(requests) => requests.into_iter().for_each(|request| self.ask(at, request)),
                    Err(what) => self.violation = Some(what),
                }
            }
        }
    }

    /// An administrator asks something of a node.
    pub fn ask_for(&mut self, at: usize, command: &Command) -> bool {
        let Some(view) = self.nodes[at].member.view.clone() else { return false };
        let Ok(mut state) = command::apply(&view, command) else { return false };
        if matches!(command, Command::FailOver { .. } | Command::FailOverGracefully { .. }) {
            self.failover_asked_us = Some(self.now_us);
        }
        self.nodes[at].member.held.sign(&mut state, view.state.revision);
        self.ask(at, Request::Write(view.version, Box::new(state)));
        true
    }

    /// All buckets that there are.
    pub fn buckets(&self) -> Vec<(usize, Arc<engine::Bucket>)> {
        self.nodes.iter().filter_map(|node| Some((node.at, node.bucket.clone()?))).collect()
    }
}
