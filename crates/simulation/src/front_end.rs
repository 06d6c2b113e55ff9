//! Nodes at work for their clients: what a turn of a connection has made, whom it answers, and whether it may.

use ::node::output::Output;
use base::VbId;
use engine::Bucket;
use protocol::feature::Feature;
use protocol::response::ResponseView;

use crate::available::Service;
use crate::connections::{Made, Turn, Waiting, connect, each};
use crate::history::Asked;
use crate::node::Node;
use crate::ops::{Kind, Outcome};
use crate::requests::{self, Part, document, part_of};
use crate::world::World;

/// What a vBucket has of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    /// CAS and seqno of what is prepared,
    prepared: Option<(u64, u64)>,
    /// and of the document or tombstone.
    document: Option<(u64, u64)>,
    uuid: u64,
}

/// What a client agrees to beside what all do: answers in another order, for some.
fn agreed_by(client: usize) -> &'static [Feature] {
    if client % 2 == 1 { &[Feature::UnorderedExecution] } else { &[] }
}

/// A node at work for its clients.
pub struct FrontEnd<'a> {
    /// Where that is.
    pub world: &'a mut World,
    /// Which node.
    pub at: usize,
}

impl FrontEnd<'_> {
    /// A request arrives at a node.
    pub fn arrive(&mut self, op: usize) {
        let at = self.at;
        // Who waits here from now on waits for what is not decided.
        self.settle_waiting();
        let client = self.world.history.ops[op].client;
        if !self.world.nodes[at].connections.contains_key(&client) {
            let Some(connection) = connect(&self.world.nodes[at].front_end, agreed_by(client)) else {
                return self.world.answer(op, Outcome::Refused(true));
            };
            self.world.nodes[at].connections.insert(client, connection);
        }
        self.world.nodes[at].waiting.push(Waiting { op, made: None });
        self.send(client, op, Part::First);
        self.drive(client, &mut Vec::new());
    }

    fn send(&mut self, client: usize, number: usize, part: Part) {
        let at = self.at;
        let op = &self.world.history.ops[number];
        let key = &self.world.clients.keys[op.key];
        let frame = requests::frame(number, op, key, self.world.rules.padding(number, key.class), part);
        if let Some(connection) = self.world.nodes[at].connections.get_mut(&client) {
            connection.unread.extend(frame);
        }
    }

    /// Lets a node's connections look at what has been decided, fetched, or is gone.
    pub fn settle_waiting(&mut self) {
        let at = self.at;
        let mut committed = Vec::new();
        for client in self.world.nodes[at].connections.keys().copied().collect::<Vec<_>>() {
            self.drive(client, &mut committed);
        }
        let checked = self.world.nodes[at].check_commit_order(self.world.asked(), &committed);
        self.world.note_check(checked);
    }

    /// Lets a node work for a connection for as long as it can; `committed` collects what was committed.
    fn drive(&mut self, client: usize, committed: &mut Vec<(u16, u64)>) {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for turn in [Turn::Later, Turn::Bytes] {
                goes_on |= self.turn(client, turn, committed);
            }
        }
    }

    fn turn(&mut self, client: usize, turn: Turn, committed: &mut Vec<(u16, u64)>) -> bool {
        let at = self.at;
        let before = self.standings(client);
        let Some(connection) = self.world.nodes[at].connections.get_mut(&client) else { return false };
        let mut out = Output::default();
        let mut goes_on = connection.turn(turn, &mut out);
        let is_closed = connection.is_closed();
        self.note_made(&before);
        each(&out.to_vec(), |answer| goes_on |= self.answers(client, answer, committed));
        if is_closed {
            self.world.nodes[at].connections.remove(&client);
            for op in self.waiting_of(client) {
                self.world.nodes[at].waiting.retain(|waiting| waiting.op != op);
                self.world.answer(op, Outcome::Ambiguous);
            }
        }
        goes_on && !is_closed
    }

    fn waiting_of(&self, client: usize) -> Vec<usize> {
        let at = self.at;
        let is_its = |waiting: &&Waiting| self.world.history.ops[waiting.op].client == client;
        self.world.nodes[at].waiting.iter().filter(is_its).map(|waiting| waiting.op).collect()
    }

    /// By op of a client that changes something and has not been seen to: what its vBucket has of the document.
    fn standings(&self, client: usize) -> Vec<(usize, Standing)> {
        let at = self.at;
        let waiting = self.world.nodes[at].waiting.iter().filter(|waiting| waiting.made.is_none());
        let of = waiting.filter(|waiting| {
            let op = &self.world.history.ops[waiting.op];
            op.client == client && op.kind != Kind::Read
        });
        of.map(|waiting| {
            (waiting.op, self.world.nodes[at].standing(self.world.asked(), waiting.op).unwrap_or_default())
        })
        .collect()
    }

    /// Notes what a turn of a connection has made for its requests, whether or not anybody is told.
    fn note_made(&mut self, before: &[(usize, Standing)]) {
        let at = self.at;
        for (op, before) in before {
            let Some(after) = self.world.nodes[at].standing(self.world.asked(), *op) else { continue };
            let new = match (after.prepared, after.document) {
                (Some(prepared), _) if after.prepared != before.prepared => prepared,
                (_, Some(document)) if after.document != before.document => document,
                _ => continue,
            };
            let is_anothers = |waiting: &Waiting| waiting.made.as_ref().is_some_and(|made| made.cas == new.0);
            if self.world.nodes[at].waiting.iter().any(is_anothers) {
                continue;
            }
            let made = Made { cas: new.0, seqno: new.1, uuid: after.uuid, decided: None };
            self.world.time.show(|| format!("node {at} does {op}: {:x}", made.cas));
            self.world.history.ops[*op].cas = Some(made.cas);
            self.world.time.note(made.cas);
            if let Some(waiting) = self.world.nodes[at].waiting.iter_mut().find(|waiting| waiting.op == *op) {
                waiting.made = Some(made);
            }
        }
    }

    /// A node is about to hear of other chains: what was decided before was decided by those that it has.
    pub fn note_decided(&mut self) {
        let at = self.at;
        for place in 0..self.world.nodes[at].waiting.len() {
            let waiting = &self.world.nodes[at].waiting[place];
            let Some(made) = waiting.made.as_ref().filter(|made| made.decided.is_none()) else { continue };
            let asked = self.world.asked();
            if !self.world.nodes[at].is_undecided(asked, waiting.op, made.cas) {
                let decided =
                    self.world.promises.look_at(&self.world.nodes, asked, at, waiting.op, made.seqno);
                if let Some(made) = &mut self.world.nodes[at].waiting[place].made {
                    made.decided = Some(decided);
                }
            }
        }
    }

    /// A node answers; whether there is something to do for the connection.
    fn answers(&mut self, client: usize, answer: &ResponseView<'_>, committed: &mut Vec<(u16, u64)>) -> bool {
        let at = self.at;
        let (number, part) = part_of(answer.opaque);
        let Some(place) = self.world.nodes[at].waiting.iter().position(|waiting| waiting.op == number) else {
            return false;
        };
        let op = self.world.history.ops[number].clone();
        let outcome = requests::outcome(&op, answer);
        if (op.kind, part, &outcome) == (Kind::Append, Part::First, &Outcome::NotFound) {
            self.send(client, number, Part::Made);
            return true;
        }
        let Waiting { made, .. } = self.world.nodes[at].waiting.remove(place);
        if matches!(outcome, Outcome::Refused(_) | Outcome::NotFound) && op.level.is_some() && made.is_some()
        {
            self.world.violation =
                Some(format!("node {at} refuses {number}, whose change it has made: {made:?}"));
        }
        match &outcome {
            Outcome::Done(cas, _) if op.kind == Kind::Read => {
                let checked = self.world.nodes[at].check_undecided(self.world.asked(), number, *cas);
                self.world.note_check(checked);
            }
            Outcome::Done(cas, _) => {
                self.world.history.ops[number].cas = Some(*cas);
                if op.level.is_some() {
                    self.check_kept(number, made, requests::seqno(answer), committed);
                }
            }
            Outcome::Ambiguous => self.look_at_given_up(number, made),
            Outcome::Refused(true) if !self.world.nodes[at].may_serve() => self.world.tally.fenced += 1,
            Outcome::Refused(_) | Outcome::NotFound => {}
        }
        self.world.time.note(self.world.history.ops[number].cas.unwrap_or(number as u64));
        self.world.answer(number, outcome);
        false
    }

    /// A durable write is answered with success.
    fn check_kept(
        &mut self,
        number: usize,
        made: Option<Made>,
        told: Option<u64>,
        committed: &mut Vec<(u16, u64)>,
    ) {
        let at = self.at;
        let Some(seqno) = told.or(made.as_ref().map(|made| made.seqno)) else {
            self.world.violation = Some(format!("node {at} answers {number} without its seqno"));
            return;
        };
        let decided = made.as_ref().and_then(|made| made.decided.clone());
        let World { nodes, promises, .. } = &*self.world;
        let look = || promises.look_at(nodes, self.world.asked(), at, number, seqno);
        let kept = decided.unwrap_or_else(look);
        self.world.note_check(kept);
        if made.is_some() {
            committed.push((self.world.clients.keys[self.world.history.ops[number].key].vb, seqno));
        }
    }

    /// A node says that nobody knows what becomes of a durable write: it has aborted it, if it still serves the history
    /// that it was prepared in.
    fn look_at_given_up(&mut self, number: usize, made: Option<Made>) {
        let at = self.at;
        let vb = self.world.clients.keys[self.world.history.ops[number].key].vb;
        let now_us = self.world.time.now_us();
        let uuid = self.world.nodes[at].bucket.as_ref().and_then(|of| of.inspect(VbId(vb), |vb| vb.uuid().0));
        if made.is_some_and(|made| Some(made.uuid) == uuid) && self.world.nodes[at].serves(vb, now_us) {
            let World { nodes, rules, crossing, waits, .. } = &*self.world;
            let service = Service { nodes, rules, crossing, now_us };
            let asked_us = self.world.asked().op(number).asked_us;
            let checked = waits.check_given_up(&service, (at, number), (vb, asked_us));
            self.world.note_check(checked);
        }
    }

    /// What a document is at a node now, by a connection of its own. Others do nothing meanwhile.
    pub fn read_at(&mut self, number: usize) -> Result<Outcome, String> {
        let at = self.at;
        let op = self.world.history.ops[number].clone();
        let key = &self.world.clients.keys[op.key];
        let bucket = self.world.nodes[at].bucket.clone().ok_or("an active node without a bucket")?;
        let mut connection = connect(&self.world.nodes[at].front_end, agreed_by(0))
            .ok_or("a bucket that cannot be selected")?;
        connection.unread = requests::frame(number, &op, key, 0, Part::First);
        for _ in 0..100 {
            let mut out = Output::default();
            connection.turn(Turn::Later, &mut out);
            connection.turn(Turn::Bytes, &mut out);
            let mut outcome = None;
            each(&out.to_vec(), |answer| outcome = Some(requests::outcome(&op, answer)));
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            step_all(&bucket);
        }
        Err(format!("{} cannot be read", key.name.escape_ascii()))
    }
}

impl Node {
    /// What the node has of the document of an operation.
    fn standing(&self, asked: Asked<'_>, number: usize) -> Option<Standing> {
        let (op, key) = (asked.op(number), asked.key(number));
        standing(self.bucket.as_deref()?, VbId(key.vb), document(op, key))
    }

    /// Whether a change of the node is prepared there, and neither committed nor aborted.
    pub fn is_undecided(&self, asked: Asked<'_>, number: usize, cas: u64) -> bool {
        let prepared = self.standing(asked, number).and_then(|standing| standing.prepared);
        prepared.is_some_and(|(prepared, _)| prepared == cas)
    }
}

/// What threads would do, once each.
fn step_all(bucket: &Bucket) {
    bucket.loading().load_step();
    bucket.fetching().fetch_step();
    bucket.maintenance().keep_step();
}

fn standing(bucket: &Bucket, vb: VbId, document: base::DocKey<'_>) -> Option<Standing> {
    let place = |version: &base::Version| (version.meta().cas.0, version.meta().by_seqno.0);
    bucket.inspect(vb, |vb| Standing {
        prepared: vb.sync_writes().prepared(document).map(place),
        document: vb.find(bucket.hash(document), document).ok().flatten().map(|found| place(&found)),
        uuid: vb.uuid().0,
    })
}
