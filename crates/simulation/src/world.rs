//! The world: its parts, and what happens when an event is due.
//!
//! Each part owns what it changes and holds none of the others: what it needs of them it borrows for a call. A check
//! returns what is violated; the world notes it.

use std::collections::BTreeMap;

use base::env::Env;
use base::env::sim::{DocumentNames, SplitMix64};
use base::limits;
use cluster::command::{self, Command};
use cluster::promise::Ask;
use cluster::store::{Commit, Store, Swapped, Version};
use cluster::{MemoryStore, State, Status, View, keys};
use serde_json::json;

use crate::available::Waits;
use crate::calm::Calm;
use crate::clients::Clients;
use crate::damage::Damage;
use crate::front_end::FrontEnd;
use crate::gone::Gone;
use crate::history::{Asked, History};
use crate::jobs::{Crossing, Fault, Job, Tally};
use crate::node::BUCKET;
use crate::nodes::{Nodes, STORE};
use crate::ops::Outcome;
use crate::promises::Promises;
use crate::rules::Rules;
use crate::store::{Reply, Request, TTL, serve};
use crate::streams::Streams;
use crate::tails::Tail;
use crate::timeline::{Due, Event, Timeline, delay_us};

/// The world.
pub struct World {
    /// What was decided before.
    pub rules: Rules,
    /// What decides from here on.
    pub rng: SplitMix64,
    /// When what happens.
    pub time: Timeline,
    /// The coordination store.
    pub store: MemoryStore,
    /// The nodes.
    pub nodes: Nodes,
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
    /// What there is beside the nodes, in runs without a cluster.
    pub streams: Option<Streams>,
    /// When it was last asked that a node be failed over, in microseconds.
    pub failover_asked_us: Option<u64>,
    /// Who goes when all is well.
    pub gone: Gone,
    /// What goes on.
    pub crossing: Crossing,
    /// What happened.
    pub tally: Tally,
    /// What was found to be wrong.
    pub violation: Option<String>,
    /// Everything is well again.
    pub is_done: bool,
}

impl World {
    /// A cluster whose nodes have all joined, with one bucket.
    pub fn new(rules: Rules) -> World {
        let (env, time) = Env::sim(rules.seed);
        let mut rng = SplitMix64::new(rules.seed);
        let mut nodes = Nodes::new(&rules, &mut rng);
        let streams = Streams::new(&rules, &mut nodes);
        let mut world = World {
            store: MemoryStore::new(env.clock.clone()),
            clients: Clients::new(&rules, DocumentNames::of(rules.seed, limits::MAX_COLLECTION_KEY_BYTES)),
            history: History::new(&rules),
            forgetful: None,
            promises: Promises::new(&rules),
            waits: Waits::default(),
            tail: Tail::None,
            damage: Damage::new(&rules),
            streams,
            failover_asked_us: None,
            gone: Gone::Nobody,
            crossing: Crossing::new(nodes.len()),
            rules,
            rng,
            time: Timeline::new(time),
            nodes,
            tally: Tally::default(),
            violation: None,
            is_done: false,
        };
        if world.streams.is_none() {
            world.found();
        }
        world.begin_all();
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
        for node in self.nodes.iter() {
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
    }

    /// Everything begins: the threads of nodes, clients, and what goes wrong.
    fn begin_all(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.begin(at));
        if self.streams.is_some() {
            return self.time.push(0, 0, 0, Event::Fault);
        }
        for client in 0..self.clients.len() {
            let delay = self.rng.between(100_000, 200_000);
            self.time.push(delay, 0, 0, Event::Client(client));
        }
        self.time.push(400_000, 0, 0, Event::Fault);
    }

    /// A node's threads begin.
    pub fn begin(&mut self, at: usize) {
        let boot = self.nodes[at].boot;
        if self.streams.is_some() {
            let delay = self.rng.below(5_000);
            return self.time.push(delay, at, boot, Event::Work);
        }
        for (event, within) in [(Event::Lease, 2_000), (Event::Look, 20_000), (Event::Work, 5_000)] {
            let delay = self.rng.below(within);
            self.time.push(delay, at, boot, event);
        }
    }

    /// What may happen to nodes now.
    pub fn calm(&self) -> Calm<'_> {
        let now_us = self.time.now_us();
        Calm::of(&self.nodes, self.damage.as_ref(), &self.rules, self.forgetful, self.tail, now_us)
    }

    /// What was asked, with the documents that it was about.
    pub fn asked(&self) -> Asked<'_> {
        self.history.about(&self.clients.keys)
    }

    /// Notes what is violated, if something is.
    pub fn note_check(&mut self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.violation = Some(what);
        }
    }

    /// A node at work for its clients.
    pub fn front_end(&mut self, at: usize) -> FrontEnd<'_> {
        FrontEnd { world: self, at }
    }

    /// Until the end, or until something is wrong.
    pub fn run(&mut self) -> Result<(), String> {
        while let Some(due) = self.time.pop() {
            if self.is_done || due.at_us > self.rules.end_us {
                break;
            }
            let before_us = self.time.now_us();
            self.time.go_to(due.at_us);
            self.nodes.let_time_pass(before_us, due.at_us - before_us);
            self.handle(due);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.tally.simulated_us = self.time.now_us();
        self.check_end()
    }

    fn handle(&mut self, Due { at, boot, event, .. }: Due) {
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
        let now_us = self.time.now_us();
        if !node.is_awake(now_us) {
            // Whoever stands still finds everything when it goes on.
            let delay = node.frozen_until_us - now_us + self.rng.below(1_000);
            return self.time.push(delay, at, boot, event);
        }
        match event {
            Event::Lease => {
                let every_us = TTL.as_micros() as u64 / 5 * 1_000 / self.nodes[at].rate;
                let sent_ns = self.nodes[at].clock_ns();
                let request = self.nodes[at].member.held.renew(sent_ns);
                self.ask_since(at, request, sent_ns);
                self.ask_for_promises(at, sent_ns);
                self.time.push(every_us, at, boot, Event::Lease);
            }
            Event::Look => {
                self.ask(at, Request::Read);
                let delay = self.rng.between(10_000, 40_000);
                self.time.push(delay, at, boot, Event::Look);
            }
            Event::Work => {
                self.work(at);
                let (least, most) = if self.streams.is_some() { (1_000, 8_000) } else { (500, 6_000) };
                let delay = self.rng.between(least, most);
                self.time.push(delay, at, boot, Event::Work);
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
        if self.nodes.reaches(at, STORE) {
            let (delay, boot) = (delay_us(&mut self.rng), self.nodes[at].boot);
            self.time.push(delay, at, boot, Event::AtStore(request, sent_ns));
        }
    }

    /// A node asks others not to take over from it.
    fn ask_for_promises(&mut self, at: usize, sent_ns: u64) {
        let Some((ask, of)) = self.nodes[at].member.held.asks(&self.nodes[at].member.uuid) else { return };
        let asked = |uuid: &String| self.nodes.iter().position(|node| node.member.uuid == *uuid);
        for to in of.iter().filter_map(asked).collect::<Vec<_>>() {
            if self.nodes.reaches(at, to) {
                let (delay, boot) = (delay_us(&mut self.rng), self.nodes[to].boot);
                self.time.push(delay, to, boot, Event::Ask(at, Box::new(ask.clone()), sent_ns));
            }
        }
    }

    /// A node is asked not to take over from another one.
    fn promise(&mut self, at: usize, from: usize, ask: &Ask, sent_ns: u64) {
        let now_ns = self.nodes[at].clock_ns();
        if self.nodes[at].member.held.authority.grant(ask, now_ns).is_ok() && self.nodes.reaches(at, from) {
            let (delay, boot) = (delay_us(&mut self.rng), self.nodes[from].boot);
            self.time.push(delay, from, boot, Event::Promise(at, ask.incarnation, sent_ns));
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
        if let Some(reply) = reply.filter(|_| self.nodes.reaches(STORE, at)) {
            let delay = delay_us(&mut self.rng);
            self.time.push(delay, at, boot, Event::Reply(reply, sent_ns));
        }
    }

    /// A document is written in the place of the one of this version.
    fn write(&mut self, version: Version, state: &State) {
        let puts = state.changes(None).expect("leaders write sound documents");
        let commit = Commit { guard: Some((keys::STATE, version)), puts: &puts, lease: None };
        if !matches!(self.store.commit(commit), Ok(Swapped::Done(_))) {
            return;
        }
        let before = std::mem::replace(&mut self.nodes.newest, state.clone());
        if state.epoch < before.epoch || state.revision <= before.revision {
            let (is, was) = ((state.epoch, state.revision), (before.epoch, before.revision));
            self.violation = Some(format!("epoch and revision {is:?} after {was:?}"));
        }
        self.time.note(state.revision);
        self.time.show(|| {
            format!("document {}: {:?} {:?}", state.revision, state.buckets.get(BUCKET), state.rebalance)
        });
        self.tally.rebalances += u64::from(before.rebalance.is_some() && state.rebalance.is_none());
        self.tally.choices += u64::from(before.is_choosing() && !state.is_choosing());
        if state.auto_failover.count > before.auto_failover.count {
            (0..self.nodes.len()).for_each(|at| self.works(at, Job::AutoFailover));
        }
        self.history.note_losses(&self.nodes, self.time.now_us());
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
            self.failover_asked_us = Some(self.time.now_us());
        }
        self.nodes[at].member.held.sign(&mut state, view.state.revision);
        self.ask(at, Request::Write(view.version, Box::new(state)));
        true
    }
}
