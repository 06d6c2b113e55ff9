//! Clients: each asks one thing after the other of the node that its map names, which may be an old one.

use base::DurabilityLevel;
use base::env::sim::{DocumentNames, SplitMix64};
use cluster::NodeId;

use crate::node::BUCKET;
use crate::nodes::Nodes;
use crate::ops::{Class, Key, Kind, Op, Outcome};
use crate::rules::Rules;
use crate::target::place_of;
use crate::timeline::{Event, delay_us};
use crate::world::World;

/// How long a client waits for an answer.
const PATIENCE_US: u64 = 2_000_000;
const CLIENTS: usize = 6;
/// For how long the same few documents are asked for more often than others.
const HOT_US: u64 = 400_000;

/// A client.
#[derive(Clone, Debug, Default)]
struct Client {
    /// By vBucket: the node that it asks.
    map: Vec<Option<usize>>,
    /// What it waits for.
    waits_for: Option<usize>,
    /// CAS values that it has seen lately, by key.
    seen: Vec<u64>,
}

/// All of them, and what they use.
pub struct Clients {
    clients: Vec<Client>,
    /// The documents.
    pub keys: Vec<Key>,
}

impl Clients {
    /// Clients that have no map yet.
    pub fn new(rules: &Rules, names: DocumentNames) -> Clients {
        let classes = [
            Class::Register,
            Class::Register,
            Class::Counter,
            Class::Set,
            Class::Plain,
            Class::Plain,
            Class::Expiring,
            Class::Collection,
        ];
        let key = |vb: u16, at: usize, class: Class| {
            let name = names.with_text(at as u64, &format!("{class:?}-{vb}-{at}"));
            Key { name, vb, class }
        };
        let keys: Vec<Key> = (0..rules.vbuckets)
            .flat_map(|vb| classes.iter().enumerate().map(move |(at, class)| key(vb, at, *class)))
            .collect();
        let client = Client { map: Vec::new(), waits_for: None, seen: vec![0; keys.len()] };
        Clients { clients: vec![client; CLIENTS], keys }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// A client waits for nothing any more, and may get another map; how soon it asks again.
    fn go_on(&mut self, nodes: &Nodes, rng: &mut SplitMix64, client: usize, wants_map: bool) -> u64 {
        self.clients[client].waits_for = None;
        if wants_map || rng.chance(1, 20) {
            // From any node, as old as it is there.
            let at = nodes.any(rng);
            if let Some(view) = nodes[at].member.view.as_ref().filter(|_| nodes[at].is_up) {
                let bucket = view.state.buckets.get(BUCKET);
                let place = |id: NodeId| place_of(&view.state, id);
                let map = bucket.map(|bucket| {
                    bucket.vbuckets().map(|vb| bucket.active(vb).and_then(place)).collect::<Vec<_>>()
                });
                self.clients[client].map = map.unwrap_or_default();
            }
        }
        if wants_map { rng.between(5_000, 60_000) } else { rng.between(500, 15_000) }
    }
}

impl World {
    /// A client's next request.
    pub fn client(&mut self, client: usize) {
        if self.time.now_us() >= self.rules.faults_us + 1_000_000 {
            return;
        }
        let mut rng = self.rng.fork();
        let keys = self.clients.keys.len() as u64;
        // Every other request is about one of a few documents, others each time, so that clients meet.
        let first = self.time.now_us() / HOT_US * 5;
        let key = if rng.chance(1, 2) { (first + rng.below(3)) % keys } else { rng.below(keys) } as usize;
        let Key { vb, class, .. } = self.clients.keys[key];
        let seen = self.clients.clients[client].seen[key];
        let is_durable = match class {
            Class::Register | Class::Counter | Class::Set => true,
            // Such a write stands between others that do not wait for it.
            Class::Plain => rng.chance(1, 4),
            Class::Expiring | Class::Collection => false,
        };
        let mut kind = match class {
            Class::Counter => Kind::Count,
            Class::Set => Kind::Append,
            Class::Register if seen != 0 && rng.chance(1, 4) => Kind::Replace(seen),
            _ if rng.chance(1, 6) => Kind::Delete,
            _ => Kind::Set,
        };
        if rng.chance(2, 5) {
            kind = Kind::Read;
        }
        let levels = if self.rules.is_ephemeral {
            &[DurabilityLevel::Majority][..]
        } else if self.rules.all_levels {
            &[
                DurabilityLevel::Majority,
                DurabilityLevel::MajorityAndPersistOnActive,
                DurabilityLevel::PersistToMajority,
            ][..]
        } else {
            &[DurabilityLevel::PersistToMajority][..]
        };
        let level = levels[rng.below(levels.len() as u64) as usize];
        let op = Op {
            client,
            key,
            kind,
            level: (kind != Kind::Read && is_durable).then_some(level),
            collection: if class == Class::Collection { self.history.collection } else { 0 },
            asked_us: self.time.now_us(),
            answered_us: None,
            outcome: None,
            cas: None,
        };
        let number = self.history.ask(op);
        let at = self.clients.clients[client].map.get(usize::from(vb)).copied().flatten();
        let at = at.unwrap_or_else(|| rng.below(self.nodes.len() as u64) as usize);
        self.clients.clients[client].waits_for = Some(number);
        let (delay, boot) = (delay_us(&mut self.rng), self.nodes[at].boot);
        self.time.push(delay, at, boot, Event::Arrive(number));
        self.time.push(PATIENCE_US, 0, 0, Event::TimeOut(number));
    }

    /// A node has answered.
    pub fn answer(&mut self, op: usize, outcome: Outcome) {
        let delay = delay_us(&mut self.rng);
        self.time.push(delay, 0, 0, Event::Answer(op, outcome));
    }

    /// An answer arrives at its client.
    pub fn answered(&mut self, op: usize, outcome: Outcome) {
        let Op { client, key, kind, level, .. } = self.history.ops[op];
        if self.clients.clients[client].waits_for != Some(op) {
            return;
        }
        self.time.show(|| format!("client {client} hears of {op}: {outcome:?}"));
        match &outcome {
            Outcome::Done(cas, _) => {
                self.clients.clients[client].seen[key] = *cas;
                self.tally.reads += u64::from(kind == Kind::Read);
                self.tally.changes += u64::from(kind != Kind::Read && level.is_none());
                self.tally.durable += u64::from(level.is_some());
                if level.is_some() {
                    self.promises.told(key, *cas, kind == Kind::Delete);
                }
            }
            Outcome::Ambiguous => self.tally.ambiguous += 1,
            Outcome::Refused(_) => self.tally.refused += 1,
            Outcome::NotFound => self.tally.reads += u64::from(kind == Kind::Read),
        }
        let is_elsewhere = outcome == Outcome::Refused(true);
        let now_us = self.time.now_us();
        let op = &mut self.history.ops[op];
        (op.outcome, op.answered_us) = (Some(outcome), Some(now_us));
        let delay = self.clients.go_on(&self.nodes, &mut self.rng, client, is_elsewhere);
        self.time.push(delay, 0, 0, Event::Client(client));
    }

    /// A client has waited for long enough.
    pub fn timed_out(&mut self, op: usize) {
        let client = self.history.ops[op].client;
        if self.clients.clients[client].waits_for == Some(op) {
            self.tally.ambiguous += 1;
            self.history.ops[op].outcome = Some(Outcome::Ambiguous);
            let delay = self.clients.go_on(&self.nodes, &mut self.rng, client, true);
            self.time.push(delay, 0, 0, Event::Client(client));
        }
    }
}
