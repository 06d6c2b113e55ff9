//! One client's connection as a state machine: bytes in, answers out. Knows no socket and no runtime, so that a
//! simulated network can drive it as well.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use ::cluster::Pass;
use base::planted::{self, Bug};
use base::{Cas, DurabilityLevel, Moment};
use engine::{Bucket, FetchPin, InlineFlush, SyncOutcome};
use protocol::feature::Feature;
use protocol::{Limits, Parsed, Request, Status, parse};

use crate::ahead::Ahead;
use crate::audit::record::{AuditRecord, Ends};
use crate::audit::{kv, sessions};
use crate::close_reason::CloseReason;
use crate::command_rules::Thread;
use crate::context::{LaterReply, Outcome, Ready};
use crate::counters::WorkerCounters;
use crate::dispatch::{Desk, Handled, dispatch, may_reorder};
use crate::lone_writer::LoneWriter;
use crate::long_work::LONG_BYTES;
use crate::node::Node;
use crate::output::Output;
use crate::reply::{Envelope, Reply};
use crate::session::Session;
use crate::slow::spans::WaitStep;
use crate::slow::{self, SpentOn, Subject, Took, note};
use crate::stale_users::USERS_NOT_READ;
use crate::sync_write::{Prepared, SharedWaker};
use crate::{certificate_login, elsewhere, push};

/// Requests of a connection that may wait for something at the same time.
const MAX_LATER: usize = 64;
/// Bytes of such requests that are kept to be handled again; the request that exceeds them is the last one.
const MAX_PARKED_BYTES: usize = 1 << 20;
/// Answers to a client that has not logged in, in one turn, beside the last one: with that, an error map of 10 KiB at most,
/// and what the client has sent they stay below 16 KiB.
const STRANGERS_OUTPUT_BYTES: usize = 2 << 10;
/// Requests that a connection may make in one turn before others have theirs.
const TURN_REQUESTS: usize = 256;
/// Bytes of documents that a connection's requests may read or write in one turn, some milliseconds of work; the request
/// that exceeds them is the last one. A short request can ask for work on a document of almost this size.
const TURN_WORK_BYTES: usize = LONG_BYTES;

/// What has to happen before the connection can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Bytes must arrive: this many from where the next frame starts.
    Bytes(usize),
    /// Nothing: others should have a turn, then this one again with what it did not consume.
    Turn,
    /// An answer that comes later must be ready: see [`Connection::poll_later`].
    Later,
    /// It must be closed once everything is sent.
    Close(CloseReason),
}

/// What came of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes from the front that are done with; the rest must be given again.
    pub consumed: usize,
    /// What has to happen before the connection can go on.
    pub next: Next,
}

/// A request that waits, as it was when it began to.
struct Begun {
    envelope: Envelope,
    /// Which request of the connection it is.
    number: u64,
    /// When it left its turn, or began, if its time is measured.
    started_ns: u64,
    /// How long its turn took before; 0 if that was not long, or had other requests, too.
    in_turn_ns: u64,
    /// Whether its time belongs to those of its command.
    is_measured: bool,
    /// Nothing behind it may start before it is ready.
    blocks: bool,
    subject: Subject,
    /// What it has waited for before.
    steps: Vec<WaitStep>,
}

struct Later {
    begun: Begun,
    /// What let it through, if that must still be so when it is answered.
    pass: Option<Pass>,
    /// What is recorded once it is answered.
    audit: Option<Box<AuditRecord>>,
    waits: Waits,
}

/// What a request waits for.
enum Waits {
    /// That its change is as safe as was asked for.
    Prepared(Prepared),
    /// Its answer.
    Answer(Pin<Box<dyn Future<Output = LaterReply>>>),
    /// Something from the disk; then it is handled again.
    Again { frame: Arc<Vec<u8>>, looks: u8, ready: Pin<Box<dyn Future<Output = Ready>>> },
}

/// One client's connection.
pub struct Connection {
    session: Session,
    node: Arc<Node>,
    counters: Arc<WorkerCounters>,
    later: Vec<Later>,
    shared_waker: SharedWaker,
    /// The bytes that are being handled, if they may be kept without a copy.
    lent: Option<Arc<Vec<u8>>>,
    /// Bytes of requests that are kept to be handled again.
    parked_bytes: usize,
    closing: Option<CloseReason>,
    /// When its present turn began; `None` if the caller leaves that to the clock.
    pub turn_began: Option<Moment>,
    /// Requests that were handled.
    requests: u64,
    /// Those of them in turns before this one.
    requests_before: u64,
    /// The last of them: a turn that took long is told with it.
    last: Subject,
    /// How that one was answered; `None` while it waits.
    last_status: Option<Status>,
    /// The number of the last request that was told as slow.
    told: Cell<u64>,
    /// Bytes of documents that the requests of this turn have read or written.
    work_bytes: usize,
    lone_writer: LoneWriter,
}

/// Whether a request may be handled while others wait for their answers.
fn may_overtake(session: &Session, request: &Request<'_>) -> bool {
    let is_barrier = request.decode_frame_infos().is_ok_and(|infos| infos.barrier);
    may_reorder(session, request.opcode) && !is_barrier
}

/// A request took so long whose time belongs to those of its command.
fn record_time(connection: &Connection, opcode: u8, ns: u64) {
    let times = connection.session.times(&connection.node);
    times.of_worker(connection.counters.number()).record(opcode, ns);
}

/// Notes what a request has waited for that is to be handled again, and how long it was in a queue.
fn note_wait(connection: &Connection, begun: &mut Begun, ready: &Ready) {
    let Some(step) = ready.step() else { return };
    begun.steps.push(step);
    let times = connection.session.times(&connection.node);
    times.of_worker(connection.counters.number()).waited(begun.started_ns, &begun.steps);
}

/// A request that had to wait was answered so after so long.
fn took(
    connection: &Connection,
    begun: &Begun,
    ns: u64,
    (spent_on, status): (SpentOn, Option<Status>),
    steps: &[WaitStep],
) {
    let Begun { envelope, number, started_ns, in_turn_ns, subject, .. } = begun;
    let (opcode, in_turn_ns) = (envelope.opcode, *in_turn_ns);
    let (ns, began_ns) = (ns + in_turn_ns, started_ns - in_turn_ns);
    let took = Took { opcode, status, ns, spent_on, requests: 1, began_ns, in_turn_ns };
    let worker = connection.counters.number();
    if note::note_if_slow(&connection.node, &connection.session, worker, &took, subject, steps) {
        connection.told.set(*number);
    }
}

/// Whether the only request of a turn that began then is told without the turn: it was told already, or waits, and is told
/// with the turn as a part of its time once it is answered.
fn is_told_otherwise(connection: &mut Connection, turn_began_ns: u64) -> bool {
    let number = connection.requests;
    match connection.later.iter_mut().find(|later| later.begun.number == number) {
        Some(Later { begun, .. }) => begun.in_turn_ns = begun.started_ns.saturating_sub(turn_began_ns),
        None => return connection.told.get() == number,
    }
    true
}

fn limits(session: &Session) -> Limits {
    if session.is_authenticated() { Limits::AUTHENTICATED } else { Limits::UNAUTHENTICATED }
}

/// A prepare that is waited for is counted.
fn await_prepare(counters: &WorkerCounters, prepared: Prepared) -> Waits {
    counters.sync_write_begins();
    Waits::Prepared(prepared)
}

impl Drop for Connection {
    fn drop(&mut self) {
        let waiting = self.later.iter().filter(|later| matches!(later.waits, Waits::Prepared(_)));
        waiting.for_each(|_| self.counters.sync_write_ends());
        self.later.drain(..).for_each(|later| kv::ended(&self.node, later.audit, None));
        let reason = self.closing.unwrap_or(CloseReason::ByClient);
        if let Some(peer) = self.session.peer {
            let by_node = !matches!(reason, CloseReason::ByClient | CloseReason::Quit);
            self.node.events().clients.disconnected(peer, by_node, self.node.env().clock.monotonic());
        }
        sessions::session_ended(&self.node, &self.session, reason);
    }
}

impl Connection {
    /// A fresh connection to `node`.
    pub fn new(node: Arc<Node>, counters: Arc<WorkerCounters>) -> Connection {
        Connection {
            session: Session::default(),
            node,
            counters,
            later: Vec::new(),
            shared_waker: SharedWaker::default(),
            lent: None,
            parked_bytes: 0,
            closing: None,
            turn_began: None,
            requests: 0,
            requests_before: 0,
            last: Subject::default(),
            last_status: None,
            told: Cell::default(),
            work_bytes: 0,
            lone_writer: LoneWriter::default(),
        }
    }

    /// Says where the client is, and whether TLS is spoken with it.
    pub fn set_ends(&mut self, ends: Ends, is_encrypted: bool) {
        self.session.peer = ends.remote.map(|remote| remote.ip().to_canonical());
        if let Some(peer) = self.session.peer {
            self.node.events().clients.connected(peer, self.node.env().clock.monotonic());
        }
        self.session.ends = ends;
        self.session.is_encrypted = is_encrypted;
    }

    /// The client has shown a certificate that stands for this user, and has logged in by that if there is such a user.
    /// If not, or if this node does not let it in now, that is told when the client asks for something without logging in:
    /// nodes of a cluster show certificates of no user, and log in by password.
    pub fn certified(&mut self, name: &str) {
        if !certificate_login::log_in(&self.node, &mut self.session, name)
            && let Some(put_off) = &self.session.put_off
            // Nothing is known of it yet.
            && put_off.why != USERS_NOT_READ
        {
            sessions::login_put_off(&self.node, &self.session, name.as_bytes(), put_off.why);
        }
    }

    /// The client's session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The node it is connected to.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Bytes that it holds: requests that wait to be handled again, what a client made its session hold
    /// without a login, and what its streams hold beside the bucket's changes.
    pub fn held_bytes(&self) -> usize {
        // What a user's session has is little beside what a user may ask for.
        let session = if self.session.is_authenticated() { 0 } else { self.session.held_bytes() };
        self.parked_bytes + session + self.session.dcp.as_ref().map_or(0, |dcp| dcp.held_bytes())
    }

    /// Whether answers are still to come.
    pub fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Says that what is received now may be kept as it is instead of being copied, or must not be any more.
    pub fn lend(&mut self, bytes: Option<&Arc<Vec<u8>>>) {
        self.lent = bytes.cloned();
    }

    /// A frame that outlives this turn.
    fn keep(&self, frame: &[u8]) -> Arc<Vec<u8>> {
        match &self.lent {
            Some(lent) if std::ptr::eq(&lent[..], frame) => Arc::clone(lent),
            _ => Arc::new(frame.to_vec()),
        }
    }

    /// Handles the whole requests at the front of `bytes`.
    pub fn receive(&mut self, bytes: &[u8], out: &mut Output) -> Received {
        let was_idle = self.later.is_empty();
        let requests = self.requests;
        let received = self.receive_some(bytes, out);
        let requests = self.requests.wrapping_sub(requests);
        if requests > 0 {
            self.lone_writer.asked(was_idle && requests == 1 && self.waits_for_one_sync());
        }
        received
    }

    /// Whether all that it waits for is one sync write that must be on this node's disk.
    fn waits_for_one_sync(&self) -> bool {
        match &self.later[..] {
            [Later { waits: Waits::Prepared(prepared), .. }] => {
                prepared.level.is_some_and(|level| level != DurabilityLevel::Majority)
            }
            _ => false,
        }
    }

    /// The bucket to which its client is expected to make one sync write now, and to wait for that.
    pub fn lone_writers_bucket(&self) -> Option<Rc<Arc<Bucket>>> {
        if self.lone_writer.is_expected() && self.later.is_empty() {
            self.session.bucket.clone()
        } else {
            None
        }
    }

    /// Writes what its client waits for, if that is what was expected; otherwise the flusher does.
    pub fn finish(&mut self, inline_flush: InlineFlush<'_>) {
        if self.waits_for_one_sync() {
            self.lone_writer.stood_in(inline_flush.finish());
        }
    }

    fn receive_some(&mut self, bytes: &[u8], out: &mut Output) -> Received {
        let mut ahead = Ahead::new(bytes);
        let mut last = None;
        let next = self.receive_next(&mut ahead, &mut last, out);
        if let Some(request) = last {
            self.last.take(&request);
        }
        Received { consumed: ahead.passed(), next }
    }

    fn receive_next<'a>(
        &mut self,
        ahead: &mut Ahead<'a>,
        last: &mut Option<Request<'a>>,
        out: &mut Output,
    ) -> Next {
        let mut last_ns = None;
        self.work_bytes = 0;
        let now = self.turn_began.unwrap_or_else(|| Moment(self.node.env().clock.unix_ns()));
        let measured = self.counters.begin_turn();
        for _ in 0..TURN_REQUESTS {
            if let Some(reason) = self.closing {
                return Next::Close(reason);
            }
            if self.is_blocked() {
                return Next::Later;
            }
            let is_stranger = !self.session.is_authenticated() && !planted::is(Bug::StrangersAreAnsweredOn);
            let is_full = out.is_full() || (out.len() >= STRANGERS_OUTPUT_BYTES && is_stranger);
            if is_full || (self.work_bytes >= TURN_WORK_BYTES && !planted::is(Bug::TurnHasNoEnd)) {
                return Next::Turn;
            }
            let (parsed, rest) = ahead.next(limits(&self.session));
            match parsed {
                Parsed::Incomplete { need } => return Next::Bytes(need),
                Parsed::Answer { answer, total_len } => {
                    if self.session.dcp.as_mut().is_some_and(|dcp| !dcp.answered(&answer, out)) {
                        self.closing = Some(CloseReason::Violation("a message of a stream was refused"));
                    }
                    ahead.pass(total_len);
                }
                Parsed::Bad(error) => {
                    sessions::invalid_packet(&self.node, &self.session, &error.to_string());
                    self.closing = Some(CloseReason::Frame(error));
                }
                Parsed::Request { request, total_len } => {
                    if !self.later.is_empty() && !may_overtake(&self.session, &request) {
                        return Next::Later;
                    }
                    ahead.pass(total_len);
                    ahead.look(&self.session);
                    self.handle(&request, &rest[..total_len], now, measured, &mut last_ns, out);
                    *last = Some(request);
                }
            }
        }
        self.closing.map_or(Next::Turn, Next::Close)
    }

    fn is_blocked(&self) -> bool {
        self.later.len() >= MAX_LATER
            || self.parked_bytes >= MAX_PARKED_BYTES
            || self.later.last().is_some_and(|later| later.begun.blocks)
    }

    fn handle(
        &mut self,
        request: &Request<'_>,
        frame: &[u8],
        now: Moment,
        measured: bool,
        last_ns: &mut Option<u64>,
        out: &mut Output,
    ) {
        self.counters.count(request.opcode);
        self.requests += 1;
        let clock = &self.node.env().clock;
        let wants_duration = self.session.has(Feature::Tracing);
        // Within a turn a request starts when the one before it ended: one look at the clock each.
        let started_ns =
            if wants_duration || measured { last_ns.unwrap_or_else(|| clock.monotonic_ns()) } else { 0 };
        let mut elapsed_us = || {
            let now_ns = clock.monotonic_ns();
            *last_ns = Some(now_ns);
            now_ns.saturating_sub(started_ns) / 1000
        };
        let desk = Desk {
            session: &mut self.session,
            node: &self.node,
            out,
            counters: &self.counters,
            now,
            looks: 0,
            elapsed_us: &mut elapsed_us,
            finish: None,
            thread: Thread::Worker,
            work_bytes: &mut self.work_bytes,
        };
        let Handled { outcome, pass, answered } = dispatch(desk, request);
        self.last_status = answered;
        self.session.times(&self.node).of_worker(self.counters.number()).count(request.opcode);
        let waits = match outcome {
            Outcome::Done if measured => {
                let ended_ns = clock.monotonic_ns();
                *last_ns = Some(ended_ns);
                record_time(self, request.opcode, ended_ns.saturating_sub(started_ns));
                return;
            }
            Outcome::Done => return,
            Outcome::Close(reason) => {
                self.closing = Some(reason);
                return;
            }
            Outcome::Prepared(prepared) => await_prepare(&self.counters, prepared),
            Outcome::Later(answer) => Waits::Answer(answer),
            Outcome::Again(ready) => {
                self.parked_bytes += frame.len();
                Waits::Again { frame: self.keep(frame), looks: 1, ready }
            }
            Outcome::Elsewhere => self.leave(self.keep(frame), 0, None),
            Outcome::Then(_) => unreachable!("a worker goes on at once"),
        };
        // What it took to begin with this one is not the next one's time.
        *last_ns = None;
        self.wait_for(request, Some(started_ns).filter(|ns| *ns != 0), measured, pass, waits);
    }

    /// Keeps a request whose answer comes later. What it takes is mostly waiting, so that all are timed from here on.
    fn wait_for(
        &mut self,
        request: &Request<'_>,
        started_ns: Option<u64>,
        measured: bool,
        pass: Option<Pass>,
        waits: Waits,
    ) {
        let started_ns = started_ns.unwrap_or_else(|| self.node.env().clock.monotonic_ns());
        let subject = Subject::of(request);
        let envelope = self.envelope(request);
        let barrier = request.decode_frame_infos().is_ok_and(|infos| infos.barrier);
        let blocks = barrier || !may_reorder(&self.session, request.opcode);
        let audit = match waits {
            Waits::Prepared(_) | Waits::Answer(_) => kv::begun(&self.node, &self.session, request),
            Waits::Again { .. } => None,
        };
        let (is_measured, steps) = (measured, Vec::new());
        let (number, in_turn_ns) = (self.requests, 0);
        let begun = Begun { envelope, number, started_ns, in_turn_ns, is_measured, blocks, subject, steps };
        self.later.push(Later { begun, pass, audit, waits });
    }

    fn envelope(&self, request: &Request<'_>) -> Envelope {
        let row = crate::command::find(request.opcode);
        Envelope {
            opcode: request.opcode,
            opaque: request.opaque,
            has_cas: request.cas != Cas::ANY,
            silence: row.map_or(crate::command_rules::Silence::None, |row| row.silence),
            features: self.session.features,
        }
    }

    /// Has a request handled elsewhere that was handled so often before. What was lent for it stays until then.
    fn leave(&mut self, frame: Arc<Vec<u8>>, looks: u8, pin: Option<FetchPin>) -> Waits {
        self.parked_bytes += frame.len();
        let ready = elsewhere::begin(&self.session, &self.node, Arc::clone(&frame), looks, pin);
        Waits::Again { frame, looks: looks + 1, ready }
    }

    /// Looks at what may be different about the node: closes if the selected bucket is gone, and tells a client that
    /// wants to know, and may be told now, of a cluster map that it does not have.
    pub fn hear(&mut self, may_push: bool, out: &mut Output) {
        if let Err(reason) = self.session.follow_users(&self.node, out) {
            self.closing = self.closing.or(Some(reason));
            return;
        }
        if !self.session.is_bucket_served(&self.node) {
            self.closing = self.closing.or(Some(CloseReason::BucketGone));
            return;
        }
        if may_push && self.closing.is_none() {
            push::newest_map(&mut self.session, &self.node, out);
        }
    }

    /// Whether it streams changes.
    pub fn is_streaming(&self) -> bool {
        self.session.dcp.is_some()
    }

    /// Sends changes, if it streams them, up to about `most` bytes. Whether there is more at once.
    pub fn stream(&mut self, most: usize, cx: &task::Context<'_>, out: &mut Output) -> bool {
        let Some(connection) = &mut self.session.dcp else { return false };
        connection.register(cx.waker());
        if connection.is_replaced() {
            self.closing = self.closing.or(Some(CloseReason::Replaced));
        }
        if self.closing.is_some() {
            return false;
        }
        match connection.step(most, cx.waker(), out) {
            Ok(step) => step == dcp::Step::More,
            Err(reason) => {
                self.closing = Some(reason);
                false
            }
        }
    }

    /// Whether nothing more is to be read for now: what came waits for memory, and this is woken when there may be some.
    pub fn waits_for_room(&self) -> bool {
        self.session.dcp.as_ref().is_some_and(|dcp| dcp.waits_for_room())
    }

    /// Does what is due at `now` on the monotonic clock; answers when to look again.
    pub fn tick(&mut self, now: Duration, out: &mut Output) -> Option<Duration> {
        let connection = self.session.dcp.as_mut()?;
        match connection.tick(now, out) {
            Ok(next) => next,
            Err(what) => {
                self.closing = self.closing.or(Some(CloseReason::TooSlow(what)));
                None
            }
        }
    }

    /// Why it must be closed, if it must.
    pub fn closing(&self) -> Option<CloseReason> {
        self.closing
    }

    /// Looks whether answers that come later are ready, and sends those that are, in the order in which they are
    /// found ready. Returns whether there were any.
    pub fn poll_later(&mut self, cx: &mut task::Context<'_>, out: &mut Output) -> bool {
        let mut at = 0;
        let before = self.later.len();
        self.work_bytes = 0;
        while at < self.later.len() {
            if self.work_bytes >= TURN_WORK_BYTES {
                // The others are looked at in the next turn.
                cx.waker().wake_by_ref();
                break;
            }
            match &mut self.later[at].waits {
                Waits::Prepared(prepared) => match prepared.poll(self.shared_waker.for_task(cx.waker())) {
                    task::Poll::Pending => at += 1,
                    task::Poll::Ready(outcome) => {
                        let mut later = self.later.remove(at);
                        self.counters.sync_write_ends();
                        let audit = later.audit.take();
                        if let Waits::Prepared(prepared) = &later.waits {
                            let status = self.decided(&later, prepared, outcome, out);
                            kv::ended(&self.node, audit, status);
                        }
                    }
                },
                Waits::Answer(answer) => match answer.as_mut().poll(cx) {
                    task::Poll::Pending => at += 1,
                    task::Poll::Ready(answer) => {
                        // The last one may block those behind it, so the order must stay.
                        let mut later = self.later.remove(at);
                        let audit = later.audit.take();
                        self.answer(&later, &answer, out);
                        kv::ended(&self.node, audit, Some(answer.status));
                    }
                },
                Waits::Again { ready, .. } => match ready.as_mut().poll(cx) {
                    task::Poll::Pending => at += 1,
                    task::Poll::Ready(ready) => {
                        let later = self.later.remove(at);
                        // If it has to wait for more, it does so in its old place, and is polled there at once.
                        if let Some(later) = self.handle_again(later, ready, out) {
                            self.later.insert(at, later);
                        }
                    }
                },
            }
        }
        self.later.len() < before
    }

    /// What is to be done after answers that came later, if `next` was before: a connection that must be closed waits for
    /// no bytes of a client that waits for it. `has_rest`: bytes were received that are not handled.
    pub fn after_answers(&self, next: Next, has_rest: bool) -> Next {
        match (self.closing, next) {
            (Some(reason), _) if !planted::is(Bug::AnswersCloseNothing) => Next::Close(reason),
            (_, Next::Later) if has_rest => Next::Turn,
            (_, Next::Later) => Next::Bytes(protocol::HEADER_BYTES),
            (_, next) => next,
        }
    }

    /// Handles a request again for which something has come from the disk.
    fn handle_again(&mut self, later: Later, ready: Ready, out: &mut Output) -> Option<Later> {
        let mut begun = later.begun;
        let Waits::Again { frame, looks, .. } = later.waits else { return None };
        self.parked_bytes -= frame.len();
        note_wait(self, &mut begun, &ready);
        let clock = &self.node.env().clock;
        let mut elapsed_us = || clock.monotonic_ns().saturating_sub(begun.started_ns) / 1000;
        // Held until the request was handled: so long the value is there, room or not.
        let (pin, finish, thread) = match ready {
            Ready::Look(pin) | Ready::Fetched(pin, _) => (pin, None, Thread::Worker),
            Ready::Here => (None, None, Thread::WorkerOnly),
            Ready::Finish(finish, _) => (None, Some(finish), Thread::WorkerOnly),
            Ready::Failed(status) => {
                let mut reply = Reply::new(out, &self.counters, begun.envelope, &mut elapsed_us);
                reply.status(status);
                self.closing = self.closing.or(reply.must_close());
                let ns = clock.monotonic_ns().saturating_sub(begun.started_ns);
                took(self, &begun, ns, (SpentOn::Elsewhere, Some(status)), &begun.steps);
                return None;
            }
        };
        let Parsed::Request { request, .. } = parse(&frame, Limits::AUTHENTICATED) else {
            unreachable!("the frame was a whole request when it came");
        };
        let desk = Desk {
            session: &mut self.session,
            node: &self.node,
            out,
            counters: &self.counters,
            now: Moment(clock.unix_ns()),
            looks,
            elapsed_us: &mut elapsed_us,
            finish,
            thread,
            work_bytes: &mut self.work_bytes,
        };
        let Handled { outcome, pass, answered } = dispatch(desk, &request);
        let audit = match outcome {
            Outcome::Prepared(_) | Outcome::Later(_) => kv::begun(&self.node, &self.session, &request),
            _ => None,
        };
        let waits = match outcome {
            Outcome::Done if looks == 1 && planted::is(Bug::HandledTwice) => {
                self.parked_bytes += frame.len();
                Waits::Again { frame, looks: looks + 1, ready: Box::pin(async { Ready::Look(None) }) }
            }
            Outcome::Done => {
                let ns = clock.monotonic_ns().saturating_sub(begun.started_ns);
                if begun.is_measured {
                    record_time(self, begun.envelope.opcode, ns);
                }
                took(self, &begun, ns, (SpentOn::Elsewhere, answered), &begun.steps);
                return None;
            }
            Outcome::Close(reason) => {
                self.closing = self.closing.or(Some(reason));
                return None;
            }
            Outcome::Prepared(prepared) => await_prepare(&self.counters, prepared),
            Outcome::Later(answer) => Waits::Answer(answer),
            Outcome::Again(ready) => {
                self.parked_bytes += frame.len();
                Waits::Again { frame, looks: looks + 1, ready }
            }
            Outcome::Elsewhere => self.leave(frame, looks, pin),
            Outcome::Then(_) => unreachable!("a worker goes on at once"),
        };
        Some(Later { begun, pass, audit, waits })
    }

    /// Answers a sync write, and notes how long it took if it was committed. The status that it was answered with.
    fn decided(
        &mut self,
        later: &Later,
        prepared: &Prepared,
        outcome: SyncOutcome,
        out: &mut Output,
    ) -> Option<Status> {
        let ns = self.node.env().clock.monotonic_ns().saturating_sub(later.begun.started_ns);
        let level = prepared.level.unwrap_or(DurabilityLevel::Majority);
        let outcome = if self.may_answer(later) { outcome } else { SyncOutcome::GivenUp };
        let times = self.session.times(&self.node).of_worker(self.counters.number());
        times.sync_writes.count(level, outcome, ns);
        if later.begun.is_measured {
            times.record(later.begun.envelope.opcode, ns);
        }
        let mut elapsed_us = || ns / 1000;
        let mut reply = Reply::new(out, &self.counters, later.begun.envelope, &mut elapsed_us);
        prepared.send(outcome, &mut reply);
        let status = reply.answered();
        self.closing = self.closing.or(reply.must_close());
        let write = WaitStep::SyncWrite(prepared.outcome.times());
        match &later.begun.steps[..] {
            [] => took(self, &later.begun, ns, (SpentOn::SyncWrite, status), &[write]),
            before => {
                let steps = [before, &[write]].concat();
                took(self, &later.begun, ns, (SpentOn::SyncWrite, status), &steps);
            }
        }
        status
    }

    /// It had its worker for so long, with what it did there.
    pub fn turn_took(&mut self, ns: u64) {
        let requests = self.requests.wrapping_sub(self.requests_before);
        self.requests_before = self.requests;
        if ns < slow::NOTED_TURN_NS || requests == 0 {
            return;
        }
        let began_ns = self.node.env().clock.monotonic_ns().saturating_sub(ns);
        if requests == 1 && is_told_otherwise(self, began_ns) {
            return;
        }
        let Some(opcode) = self.counters.last_command() else { return };
        let (status, spent_on) = (self.last_status, SpentOn::Turn);
        let took = Took { opcode, status, ns, spent_on, requests, began_ns, in_turn_ns: 0 };
        note::note_if_slow(&self.node, &self.session, self.counters.number(), &took, &self.last, &[]);
    }

    /// Whether the node may still serve what it has of documents, as it did when a request came that is answered now.
    fn may_answer(&self, later: &Later) -> bool {
        let now_ns = || self.node.env().clock.monotonic_ns();
        later.pass.is_none_or(|pass| self.node.fence().still_lets(pass, now_ns()))
    }

    fn answer(&mut self, later: &Later, answer: &LaterReply, out: &mut Output) {
        if !self.may_answer(later) {
            self.closing = self.closing.or(Some(CloseReason::Fenced));
            return;
        }
        let clock = &self.node.env().clock;
        let started_ns = later.begun.started_ns;
        let mut elapsed_us = || clock.monotonic_ns().saturating_sub(started_ns) / 1000;
        let mut reply = Reply::new(out, &self.counters, later.begun.envelope, &mut elapsed_us);
        answer.send(&mut reply, &mut self.session, &self.node);
        self.closing = self.closing.or(reply.must_close());
        let ns = clock.monotonic_ns().saturating_sub(later.begun.started_ns);
        if later.begun.is_measured {
            record_time(self, later.begun.envelope.opcode, ns);
        }
        took(self, &later.begun, ns, (SpentOn::Answer, Some(answer.status)), &later.begun.steps);
    }
}
