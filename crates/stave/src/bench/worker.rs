//! One thread of the load generator: its connections, and the loop that keeps their pipelines full.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use base::env::Clock;
use protocol::Status;

use super::connection::{Connection, Loss, Slot};
use super::poller::{Events, Poller, Ready};
use super::returns::BenchPlace;
use super::routes::Routes;
use super::schedule::Schedule;
use super::tally::Tally;
use super::traffic::{Kind, Operation, Purpose, Source, Traffic};
use crate::client::ClientError;

const BUFFER_BYTES: usize = 256 << 10;
/// How long a thread sleeps at most before it looks whether it shall stop.
const LOOK_UP: Duration = Duration::from_millis(50);
/// How long answers to what was asked before the end are waited for.
const DRAIN_NS: u64 = 2_000_000_000;
/// How long a load may go on being refused before it is given up.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Operations for other nodes than that of the connection which drew them, for each thread.
const MOST_PARKED: usize = 4_096;

const GOING: u8 = 0;
const MEASURING: u8 = 1;
const STOPPED: u8 = 2;

/// What the threads of a phase tell each other.
#[derive(Debug)]
pub struct Signals {
    stage: AtomicU8,
    answered: Vec<OwnLine>,
}

/// A counter that shares its cache line with no other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine(AtomicU64);

impl Signals {
    /// For so many workers. What is counted before [`Signals::measure`] is thrown away.
    pub fn new(workers: usize) -> Signals {
        Signals { stage: AtomicU8::new(GOING), answered: (0..workers).map(|_| OwnLine::default()).collect() }
    }

    /// The warm-up is over.
    pub fn measure(&self) {
        self.stage.store(MEASURING, Ordering::Relaxed);
    }

    /// Everything is over.
    pub fn stop(&self) {
        self.stage.store(STOPPED, Ordering::Relaxed);
    }

    /// Operations answered so far, by all workers.
    pub fn answered(&self) -> u64 {
        self.answered.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }
}

/// One thread's share of the connections.
pub struct Worker {
    poller: Poller,
    connections: Vec<Option<Connection>>,
    /// The node of each connection, and how many connections each node has.
    node_of: Vec<usize>,
    living: Vec<usize>,
    /// Its number among the threads of a phase.
    number: usize,
    routes: Arc<Routes>,
    /// Operations that were drawn for each node and wait for a connection to it, with the moment when they were meant.
    parked: Vec<VecDeque<(Operation, u64)>>,
    parked_len: usize,
    /// Where the next look for connections that can send begins.
    turn: usize,
    traffic: Traffic,
    clock: Arc<dyn Clock>,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
}

/// What changes while a phase goes on.
struct Phase<'a> {
    source: Source<'a>,
    schedule: Option<Schedule>,
    routes: Arc<Routes>,
    tally: Tally,
    answered: u64,
    outstanding: usize,
    /// When something was last stored.
    progress_ns: u64,
    /// A refusal that ends the load.
    fatal: Option<u16>,
    lost: Option<Loss>,
}

impl Worker {
    /// Takes over connections that have logged in: those to the nodes of `routes`, one after the other, again and again.
    pub fn new(
        connections: Vec<Connection>,
        routes: Arc<Routes>,
        traffic: Traffic,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Worker> {
        let mut poller = Poller::new()?;
        for (at, connection) in connections.iter().enumerate() {
            poller.add(at, connection.stream())?;
        }
        let nodes = routes.nodes().len();
        let node_of: Vec<usize> = (0..connections.len()).map(|at| at % nodes).collect();
        let mut living = vec![0; nodes];
        node_of.iter().for_each(|node| living[*node] += 1);
        Ok(Worker {
            node_of,
            living,
            number: 0,
            routes,
            parked: vec![VecDeque::new(); nodes],
            parked_len: 0,
            turn: 0,
            poller,
            connections: connections.into_iter().map(Some).collect(),
            traffic,
            clock,
            inbound: vec![0; BUFFER_BYTES],
            outbound: Vec::with_capacity(BUFFER_BYTES),
        })
    }

    /// How many connections it was given.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Runs a phase to its end: until `source` has no more and everything is answered, or until it is told to stop.
    /// At `rate` operations a second if one is given.
    pub fn run(
        &mut self,
        source: Source<'_>,
        rate: Option<f64>,
        signals: &Signals,
        number: usize,
    ) -> anyhow::Result<Tally> {
        self.number = number;
        let now_ns = self.clock.monotonic_ns();
        let tally = Tally::new();
        let mut phase = Phase {
            source,
            schedule: rate.map(|rate| Schedule::new(now_ns, rate)),
            routes: Arc::clone(&self.routes),
            tally,
            answered: 0,
            outstanding: 0,
            progress_ns: now_ns,
            fatal: None,
            lost: None,
        };
        let mut stage = signals.stage.load(Ordering::Relaxed);
        for at in 0..self.connections.len() {
            self.refill(at, now_ns, &mut phase);
        }
        let mut events = Events::new();
        while phase.outstanding > 0 || self.is_waiting(&phase) {
            let next = signals.stage.load(Ordering::Relaxed);
            if next == STOPPED {
                return Ok(self.drain(phase));
            }
            if next != stage {
                stage = next;
                phase.tally = Tally::new();
            }
            self.poller.wait(&mut events, self.until_next(&phase))?;
            while let Some(ready) = events.take_next() {
                self.on_ready(ready, &mut phase);
            }
            self.take_back()?;
            self.refill_others(&mut phase);
            signals.answered[number].0.store(phase.answered, Ordering::Relaxed);
            self.give_up_if_hopeless(&phase)?;
        }
        match phase.lost {
            Some(loss) if self.connections.iter().all(Option::is_none) => {
                bail!("all connections of a thread are lost; the last one because {loss}")
            }
            Some(loss) if phase.source.purpose == Purpose::Load => {
                bail!("populate: a connection was lost, and keys with it: {loss}")
            }
            _ => Ok(phase.tally),
        }
    }

    /// Whether something is to be sent although no answer is waited for.
    fn is_waiting(&self, phase: &Phase<'_>) -> bool {
        let is_scheduled = phase.schedule.is_some() && phase.source.has_more();
        (is_scheduled || self.parked_len > 0) && self.living.iter().any(|count| *count > 0)
    }

    /// How long nothing is to be sent.
    fn until_next(&self, phase: &Phase<'_>) -> Duration {
        let Some(schedule) = &phase.schedule else { return LOOK_UP };
        match schedule.next_ns().saturating_sub(self.clock.monotonic_ns()) {
            // It is due, and waits for a place: an answer makes one.
            0 => LOOK_UP,
            ns => Duration::from_nanos(ns).min(LOOK_UP),
        }
    }

    /// Gives work to connections that had none: what came due, and what others drew for their nodes.
    fn refill_others(&mut self, phase: &mut Phase<'_>) {
        if phase.schedule.is_none() && self.parked.len() < 2 {
            return;
        }
        let (count, now_ns) = (self.connections.len(), self.clock.monotonic_ns());
        self.turn = (self.turn + 1) % count.max(1);
        for at in 0..count {
            self.refill((self.turn + at) % count, now_ns, phase);
        }
    }

    /// The next operation for a connection, and the moment that its latency counts from; what it draws for other nodes
    /// is parked.
    #[inline]
    fn next(&mut self, at: usize, now_ns: u64, phase: &mut Phase<'_>) -> Option<(Operation, u64)> {
        let node = self.node_of[at];
        if let Some((operation, meant_ns)) = self.parked[node].pop_front() {
            self.parked_len -= 1;
            return Some((operation, if phase.schedule.is_some() { meant_ns } else { now_ns }));
        }
        while self.parked_len < MOST_PARKED {
            let meant_ns = match &mut phase.schedule {
                Some(schedule) => schedule.take(now_ns)?,
                None => now_ns,
            };
            let operation = self.traffic.next(&mut phase.source, at)?;
            if self.parked.len() == 1 {
                return Some((operation, meant_ns));
            }
            match self.routes.node(self.traffic.vbucket(operation)) {
                Some(other) if other != node && self.living[other] > 0 => {
                    self.parked[other].push_back((operation, meant_ns));
                    self.parked_len += 1;
                }
                // No other node can have it: this node says so.
                _ => return Some((operation, meant_ns)),
            }
        }
        None
    }

    #[inline]
    fn on_ready(&mut self, Ready { at, writable }: Ready, phase: &mut Phase<'_>) {
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        let mut now_ns = 0;
        let outcome = if writable { connection.send_rest() } else { Ok(()) };
        let outcome = outcome.and_then(|()| {
            let clock = &self.clock;
            let mut received = 0;
            loop {
                received += connection.receive(&mut self.inbound, |slot, status_code| {
                    // One look at the clock for all answers of a read.
                    if now_ns == 0 {
                        now_ns = clock.monotonic_ns();
                    }
                    phase.on_answer(slot, status_code, now_ns);
                })?;
                if !connection.has_more() {
                    return Ok(received);
                }
            }
        });
        match outcome {
            Err(loss) => self.lose(at, loss, phase),
            Ok(count) => {
                phase.tally.bytes_in += count as u64;
                if now_ns == 0 {
                    now_ns = self.clock.monotonic_ns();
                }
                self.refill(at, now_ns, phase);
            }
        }
    }

    /// Fills the pipeline in one write, if it is time to.
    #[inline]
    fn refill(&mut self, at: usize, now_ns: u64, phase: &mut Phase<'_>) {
        // Taken out of its place, so that drawing operations can look at the others.
        let Some(mut connection) = self.connections.get_mut(at).and_then(Option::take) else { return };
        let is_ready = match phase.schedule {
            Some(_) => connection.can_send(),
            None => connection.wants_requests(),
        };
        let mut sent = Ok(());
        if is_ready {
            self.outbound.clear();
            while connection.has_slot()
                && let Some((operation, meant_ns)) = self.next(at, now_ns, phase)
                && let Some(opaque) = connection.take_slot(operation, meant_ns)
            {
                phase.outstanding += 1;
                self.traffic.write(operation, phase.source.purpose, opaque, &mut self.outbound);
            }
            if !self.outbound.is_empty() {
                phase.tally.bytes_out += self.outbound.len() as u64;
                sent = connection.send(&self.outbound);
            }
        }
        self.connections[at] = Some(connection);
        match sent {
            Ok(()) => self.watch(at),
            Err(loss) => self.lose(at, loss, phase),
        }
    }

    /// Asks for a wake-up when the socket takes more, as long as something is left to send.
    #[inline]
    fn watch(&mut self, at: usize) {
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        let is_stuck = connection.wants_to_write();
        if is_stuck != connection.watched_for_room {
            connection.watched_for_room = is_stuck;
            self.poller.watch_room(at, connection.stream(), is_stuck);
        }
    }

    /// Takes over connections that are there again; they are given work with the others.
    fn take_back(&mut self) -> anyhow::Result<()> {
        for (at, connection) in self.routes.returns.take(self.number) {
            self.poller.add(at, connection.stream())?;
            self.connections[at] = Some(connection);
            self.living[self.node_of[at]] += 1;
        }
        Ok(())
    }

    fn lose(&mut self, at: usize, loss: Loss, phase: &mut Phase<'_>) {
        if let Some(connection) = self.connections.get_mut(at).and_then(Option::take) {
            self.poller.forget(at);
            phase.outstanding -= connection.outstanding();
            phase.tally.cut += connection.outstanding() as u64;
            phase.lost = Some(loss);
            self.routes.doubt();
            let node = self.node_of[at];
            // Without other nodes the end of all connections is the end of the run.
            if phase.source.purpose == Purpose::Mix && self.parked.len() > 1 {
                self.routes.returns.lose(BenchPlace { thread: self.number, at }, node);
            }
            self.living[node] -= 1;
            if self.living[node] == 0 {
                let parked = std::mem::take(&mut self.parked[node]);
                self.parked_len -= parked.len();
                phase.tally.cut += parked.len() as u64;
            }
        }
    }

    /// Waits a little for what is outstanding, so that the server is not left with answers nobody reads.
    fn drain(&mut self, mut phase: Phase<'_>) -> Tally {
        let now_ns = self.clock.monotonic_ns();
        let mut tally = phase.tally.clone();
        let parked = std::mem::take(&mut self.parked_len) as u64;
        self.parked.iter_mut().for_each(VecDeque::clear);
        tally.unsent = phase.schedule.take().map_or(0, |schedule| schedule.behind(now_ns) + parked);
        phase.source.stop();
        let deadline_ns = self.clock.monotonic_ns() + DRAIN_NS;
        let mut events = Events::new();
        while phase.outstanding > 0 && self.clock.monotonic_ns() < deadline_ns {
            if self.poller.wait(&mut events, LOOK_UP).is_err() {
                break;
            }
            while let Some(ready) = events.take_next() {
                self.on_ready(ready, &mut phase);
            }
        }
        tally
    }

    fn give_up_if_hopeless(&self, phase: &Phase<'_>) -> anyhow::Result<()> {
        if phase.source.purpose != Purpose::Load {
            return Ok(());
        }
        if let Some(status_code) = phase.fatal {
            let operation = "populate";
            let context = why_not_here(status_code).to_owned();
            bail!(ClientError::Refused { operation, status_code, context });
        }
        let waited_ns = self.clock.monotonic_ns().saturating_sub(phase.progress_ns);
        if waited_ns > PATIENCE_NS {
            let why = phase.tally.refused.keys().map(|code| crate::client::status_name(*code));
            let why = why.collect::<Vec<_>>().join(", ");
            bail!(
                "populate: nothing was stored for {} s (refusals: {}); does the bucket's quota hold the keys?",
                PATIENCE_NS / 1_000_000_000,
                if why.is_empty() { "none, no answers" } else { &why }
            );
        }
        Ok(())
    }
}

impl Phase<'_> {
    #[inline]
    fn on_answer(&mut self, slot: Slot, status_code: u16, now_ns: u64) {
        const SUCCESS: u16 = Status::Success as u16;
        const MISS: u16 = Status::KeyEnoent as u16;
        let kind = slot.operation.kind;
        self.outstanding -= 1;
        if status_code != SUCCESS {
            if !(status_code == MISS && kind == Kind::Get) {
                return self.on_refusal(slot, status_code);
            }
            self.tally.misses += 1;
        }
        self.answered += 1;
        self.progress_ns = now_ns;
        self.tally.answered(kind, now_ns.saturating_sub(slot.sent_ns));
    }

    #[cold]
    fn on_refusal(&mut self, slot: Slot, status_code: u16) {
        self.tally.refused(status_code);
        if status_code == NOT_MINE {
            self.routes.doubt();
        }
        if self.source.purpose == Purpose::Load {
            let is_temporary = |status: Status| status.attributes().contains(&"temp");
            let has_moved = status_code == NOT_MINE && self.routes.nodes().len() > 1;
            let passes = has_moved || Status::from_code(status_code).is_some_and(is_temporary);
            if passes {
                self.source.give_back(slot.operation.key);
            } else {
                self.fatal = Some(status_code);
            }
        }
    }
}

const NOT_MINE: u16 = Status::NotMyVbucket as u16;

/// What whoever measures a cluster may not know.
fn why_not_here(status_code: u16) -> &'static str {
    if status_code == Status::NotMyVbucket.code() {
        "the node at --addr serves a part of the vBuckets, and its cluster map names no other node"
    } else {
        ""
    }
}
