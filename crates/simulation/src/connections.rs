//! Clients' connections to nodes: real ones, from the first byte of a frame to the last one of its answer, without
//! sockets and workers.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::node::close_reason::CloseReason;
use ::node::config::{ConnectionLimits, Role, UserSpec};
use ::node::connection::{Connection, Next};
use ::node::counters::WorkerCounters;
use ::node::doors::{Doors, LinkRunner, Timer};
use ::node::output::Output;
use ::node::sasl::hash::{self, Hashing};
use ::node::user::Users;
use base::VbId;
use base::env::{Clock, Env};
use cluster::Fence;
use engine::Bucket;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::{ParsedResponse, ResponseView};
use protocol::{HEADER_BYTES, RequestParts, Status, opcode, parse_response, write_request};

use crate::available::Service;
use crate::history::Asked;
use crate::links::Runner;
use crate::node::{BUCKET, Node};
use crate::ops::{Kind, Outcome};
use crate::requests::{self, Part, document, part_of};
use crate::target::host_of;
use crate::world::World;

/// Who clients are, and nodes that follow others.
pub const CLIENT: &str = "client";
/// That user's password.
pub const PASSWORD: &str = "password";
/// More than any answer.
const MOST_BYTES: usize = 1 << 20;

/// A request that a node has and did not answer.
pub struct Waiting {
    /// For which op.
    pub op: usize,
    /// What its change is, once that was made.
    pub made: Option<Made>,
}

/// A change that a node has made or prepared, and not answered.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its CAS.
    pub cas: u64,
    /// Its seqno, or that of its prepare.
    pub seqno: u64,
    /// The history of its vBucket then.
    pub uuid: u64,
    /// Once it was decided: which promise was not kept then, if one was not.
    pub decided: Option<Result<(), String>>,
}

/// What a vBucket has of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    /// CAS and seqno of what is prepared,
    prepared: Option<(u64, u64)>,
    /// and of the document or tombstone.
    document: Option<(u64, u64)>,
    uuid: u64,
}

/// What a node does for a connection at one time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It looks at what waits.
    Later,
    /// It handles what came.
    Bytes,
}

/// A client's connection to a node.
pub struct ClientConnection {
    connection: Connection,
    /// What came, and was not handled.
    unread: Vec<u8>,
    /// What has to happen before it can go on, as a worker of the server keeps it.
    next: Next,
}

impl ClientConnection {
    /// What the node does in a turn; whether there may be more to do at once.
    fn turn(&mut self, turn: Turn, out: &mut Output) -> bool {
        match turn {
            Turn::Later => {
                self.connection.hear(true, out);
                if let Some(reason @ (CloseReason::BucketGone | CloseReason::UserChanged)) =
                    self.connection.closing()
                {
                    self.next = Next::Close(reason);
                }
                let mut cx = Context::from_waker(Waker::noop());
                let any = self.connection.has_later() && self.connection.poll_later(&mut cx, out);
                if any {
                    self.next = self.connection.after_answers(self.next, !self.unread.is_empty());
                }
                any
            }
            Turn::Bytes if self.unread.is_empty() => false,
            Turn::Bytes => {
                let received = self.connection.receive(&self.unread, out);
                self.unread.drain(..received.consumed);
                self.next = received.next;
                received.consumed > 0 || received.next == Next::Turn
            }
        }
    }
}

/// Time limits by a node's clock: whoever waits is looked at often.
pub struct ByClock(pub Arc<dyn Clock>);

impl Timer for ByClock {
    fn after(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        let clock = Arc::clone(&self.0);
        let until_ns = clock.monotonic_ns() + duration.as_nanos() as u64;
        Box::pin(std::future::poll_fn(move |_| {
            if clock.monotonic_ns() >= until_ns { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}

/// A node without sockets: what answers clients and nodes that follow it, and follows others by `runner`. It may serve
/// documents as `fence` says.
pub fn front_end(at: usize, env: Env, fence: Arc<Fence>, runner: &Arc<Runner>) -> Arc<::node::Node> {
    static USERS: OnceLock<Users> = OnceLock::new();
    let role = Role::Admin;
    let spec = UserSpec { name: CLIENT.to_owned(), password: PASSWORD.to_owned(), role, buckets: None };
    // To derive the keys of a password takes as long as they hash.
    let hashing = Hashing { scram_iterations: 1, memory_kib: *hash::MEMORY_KIB.start(), passes: 1 };
    let users = USERS.get_or_init(|| Users::hashed(&[spec], hashing, &*env.random)).clone();
    let timer = Arc::new(ByClock(Arc::clone(&env.clock)));
    let doors = Doors { timer, links: Arc::clone(runner) as Arc<dyn LinkRunner>, ..Doors::closed() };
    let host = Some(host_of(at));
    let address = ::node::cluster_map::NodeAddress { host, kv_port: 1, http_port: 2, tls: None };
    let version = ConfigVersion { epoch: 1, revision: 1 };
    let workers = vec![Arc::new(WorkerCounters::default())];
    let limits = ConnectionLimits::default();
    let node = ::node::Node::new(env, users, Vec::new(), address, version, limits, workers);
    Arc::new(node.fenced_by(fence).with_doors(doors))
}

/// A connection that has logged in and selected the bucket; `None` if there is no bucket.
fn connect(node: &Arc<::node::Node>, client: usize) -> Option<ClientConnection> {
    let mut features = vec![
        Feature::Xerror,
        Feature::MutationSeqno,
        Feature::SelectBucket,
        Feature::AltRequestSupport,
        Feature::SyncReplication,
        Feature::Collections,
    ];
    // Some clients agree to answers in another order.
    features.extend((client % 2 == 1).then_some(Feature::UnorderedExecution));
    let value = Features::of(&features).encode();
    let hello =
        RequestParts { opcode: opcode::HELLO, key: b"simulation", value: &value, ..RequestParts::default() };
    let select =
        RequestParts { opcode: opcode::SELECT_BUCKET, key: BUCKET.as_bytes(), ..RequestParts::default() };
    let mut connection = Connection::new(Arc::clone(node), Arc::clone(&node.workers().all()[0]));
    connection.certified(CLIENT);
    let (mut bytes, mut out) = (Vec::new(), Output::default());
    assert!(write_request(&mut bytes, &hello) && write_request(&mut bytes, &select), "short requests");
    connection.receive(&bytes, &mut out);
    let mut statuses = Vec::new();
    each(&out.to_vec(), |answer| statuses.push(answer.status()));
    let next = Next::Bytes(HEADER_BYTES);
    (statuses == [Some(Status::Success); 2]).then_some(ClientConnection {
        connection,
        unread: Vec::new(),
        next,
    })
}

fn each(mut bytes: &[u8], mut look: impl FnMut(&ResponseView<'_>)) {
    while let ParsedResponse::Response { response, total_len } = parse_response(bytes, MOST_BYTES) {
        look(&response);
        bytes = &bytes[total_len..];
    }
    assert!(bytes.is_empty(), "a node sends whole answers");
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
            let Some(connection) = connect(&self.world.nodes[at].front_end, client) else {
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
        let is_closed = matches!(connection.next, Next::Close(_));
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
        let mut connection =
            connect(&self.world.nodes[at].front_end, 0).ok_or("a bucket that cannot be selected")?;
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
