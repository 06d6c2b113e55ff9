//! What each worker counts: written by that worker alone, read by anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use protocol::Status;

use crate::stats::timings::SAMPLED_TURNS;

/// While a connection has its worker for longer than this, others notice.
const SLOW_TURN_NS: u64 = 50_000_000;
/// Turns from this time on are noted by command.
const NOTED_TURN_NS: u64 = 1_000_000;
/// A turn without a request.
const NO_COMMAND: u64 = u64::MAX;

/// A counter with one writer: adding is a load and a store, without a locked instruction.
#[derive(Default)]
struct Owned(AtomicU64);

impl Owned {
    fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one worker.
#[repr(align(128))]
pub struct WorkerCounters {
    requests: [Owned; 256],
    /// Answers sent by status, all of which are below 256.
    answers: [Owned; 256],
    received_bytes: Owned,
    sent_bytes: Owned,
    accepted: Owned,
    cut: Owned,
    /// Turns of connections.
    turns: Owned,
    /// Which worker of its node it is.
    number: AtomicUsize,
    /// Sync writes whose clients wait at this moment.
    sync_writes_waiting: Owned,
    /// Connections at this moment; also changed by the acceptor, when it hands one over.
    pub connections: AtomicUsize,
    /// Connections that have not logged in.
    strangers: Owned,
    longest_turn_ns: Owned,
    /// The same by the last command of the turn.
    longest_turn_with_ns: [Owned; 256],
    /// The last command of this turn, or [`NO_COMMAND`].
    last_command: Owned,
    slow_turns: Owned,
}

/// What came of clients that wanted to connect, at all listeners of a node.
#[derive(Default)]
pub struct AcceptCounters {
    /// When the certificate that the node shows is not valid any more, in seconds of Unix time; 0 without one.
    pub certificate_end_s: AtomicU64,
    /// When the first of the CAs of `tls-ca` is not valid any more, in seconds of Unix time; 0 without one.
    pub ca_end_s: AtomicU64,
    /// The system had no descriptor, or another error that is not about the client.
    pub failures: AtomicU64,
    /// KV clients that were closed because all places were taken.
    pub kv_refused: AtomicU64,
    /// KV clients that were closed because their address had as many connections as an address may have.
    pub kv_refused_by_address: AtomicU64,
    /// KV connections that had not logged in, and were closed for another client.
    pub kv_crowded_out: AtomicU64,
    /// HTTP connections at this moment.
    pub(crate) http_connections: AtomicUsize,
    /// HTTP connections ever accepted.
    pub(crate) http_accepted: AtomicU64,
    /// HTTP clients that were refused because all places were taken.
    pub http_refused: AtomicU64,
    /// HTTP connections without a request that were closed for another client.
    pub(crate) http_crowded_out: AtomicU64,
    /// HTTP connections that were closed because their clients took too long.
    pub(crate) http_late: AtomicU64,
    /// Requests over HTTP.
    pub http_requests: AtomicU64,
}

impl Default for WorkerCounters {
    fn default() -> WorkerCounters {
        WorkerCounters {
            requests: std::array::from_fn(|_| Owned::default()),
            answers: std::array::from_fn(|_| Owned::default()),
            received_bytes: Owned::default(),
            sent_bytes: Owned::default(),
            accepted: Owned::default(),
            cut: Owned::default(),
            turns: Owned::default(),
            number: AtomicUsize::new(0),
            sync_writes_waiting: Owned::default(),
            connections: AtomicUsize::new(0),
            strangers: Owned::default(),
            longest_turn_ns: Owned::default(),
            longest_turn_with_ns: std::array::from_fn(|_| Owned::default()),
            last_command: Owned(AtomicU64::new(NO_COMMAND)),
            slow_turns: Owned::default(),
        }
    }
}

impl WorkerCounters {
    /// Whether the worker has one connection, and none is about to come.
    pub fn has_one_connection(&self) -> bool {
        self.connections.load(Ordering::Relaxed) == 1
    }

    /// It is the worker with this number.
    pub(crate) fn set_number(&self, number: usize) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Which worker of its node it is.
    pub(crate) fn number(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }

    /// Requests of a connection are about to be handled. Whether their times are measured.
    pub(crate) fn begin_turn(&self) -> bool {
        self.turns.add(1);
        self.turns.get() % SAMPLED_TURNS == 1
    }

    /// A connection has the worker from now on.
    pub fn turn_begins(&self) {
        self.last_command.set(NO_COMMAND);
    }

    /// The last command of the turn, if there was one.
    pub(crate) fn last_command(&self) -> Option<u8> {
        u8::try_from(self.last_command.get()).ok()
    }

    /// A connection had the worker for so long.
    pub fn turn_took(&self, ns: u64) {
        if ns > self.longest_turn_ns.get() {
            self.longest_turn_ns.set(ns);
        }
        if ns >= NOTED_TURN_NS
            && let Some(longest) = self.longest_turn_with_ns.get(self.last_command.get() as usize)
        {
            longest.set(ns.max(longest.get()));
        }
        if ns >= SLOW_TURN_NS {
            self.slow_turns.add(1);
        }
    }

    /// The longest that a connection had the worker, in nanoseconds.
    pub(crate) fn longest_turn_ns(&self) -> u64 {
        self.longest_turn_ns.get()
    }

    /// The longest turn that ended with a command, in nanoseconds; 0 if none took a millisecond.
    pub(crate) fn longest_turn_with_ns(&self, opcode: u8) -> u64 {
        self.longest_turn_with_ns[usize::from(opcode)].get()
    }

    /// A connection has not logged in from now on.
    pub(crate) fn stranger_comes(&self) {
        self.strangers.add(1);
    }

    /// A connection has logged in or ended.
    pub(crate) fn stranger_goes(&self) {
        self.strangers.add(1_u64.wrapping_neg());
    }

    /// Connections that have not logged in.
    pub fn strangers(&self) -> u64 {
        self.strangers.get()
    }

    /// A client waits for a sync write from now on.
    pub(crate) fn sync_write_begins(&self) {
        self.sync_writes_waiting.add(1);
    }

    /// A client waits no longer for a sync write.
    pub(crate) fn sync_write_ends(&self) {
        self.sync_writes_waiting.add(1_u64.wrapping_neg());
    }

    /// Whether a client waits for a sync write.
    pub(crate) fn has_sync_writes(&self) -> bool {
        self.sync_writes_waiting.get() > 0
    }

    pub(crate) fn count(&self, opcode: u8) {
        self.requests[usize::from(opcode)].add(1);
        self.last_command.set(opcode.into());
    }

    pub(crate) fn count_answer(&self, status: Status) {
        self.answers[usize::from(status.code() as u8)].add(1);
    }

    /// Bytes came.
    pub fn received(&self, bytes: usize) {
        self.received_bytes.add(bytes as u64);
    }

    /// Bytes went.
    pub fn sent(&self, bytes: usize) {
        self.sent_bytes.add(bytes as u64);
    }

    /// A client was accepted.
    pub fn accepted(&self) {
        self.accepted.add(1);
    }

    /// Connections ever accepted.
    pub fn accepted_total(&self) -> u64 {
        self.accepted.get()
    }

    /// A connection was cut because its client took too long.
    pub fn cut(&self) {
        self.cut.add(1);
    }
}

/// Counters of all workers together.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Requests by opcode.
    pub requests: [u64; 256],
    /// Answers sent by status.
    pub answers: [u64; 256],
    /// Bytes from clients.
    pub received_bytes: u64,
    /// Bytes to clients.
    pub sent_bytes: u64,
    /// Connections ever.
    pub accepted: u64,
    /// Connections that were closed because of what the client did or failed to do.
    pub cut: u64,
    /// Connections at this moment.
    pub connections: usize,
    /// Of these, who has not logged in.
    pub strangers: u64,
    /// The longest that a connection had a worker, in nanoseconds.
    pub longest_turn_ns: u64,
    /// Turns of connections that took 50 milliseconds or more.
    pub slow_turns: u64,
}

impl Totals {
    /// Logins that failed.
    pub fn auth_errors(&self) -> u64 {
        self.answers[usize::from(Status::AuthError.code() as u8)]
    }

    /// Adds up.
    pub fn of<'a>(workers: impl Iterator<Item = &'a WorkerCounters>) -> Totals {
        let mut sum = Totals {
            requests: [0; 256],
            answers: [0; 256],
            received_bytes: 0,
            sent_bytes: 0,
            accepted: 0,
            cut: 0,
            connections: 0,
            strangers: 0,
            longest_turn_ns: 0,
            slow_turns: 0,
        };
        for worker in workers {
            for (total, counter) in sum.requests.iter_mut().zip(&worker.requests) {
                *total += counter.get();
            }
            for (total, counter) in sum.answers.iter_mut().zip(&worker.answers) {
                *total += counter.get();
            }
            sum.received_bytes += worker.received_bytes.get();
            sum.sent_bytes += worker.sent_bytes.get();
            sum.accepted += worker.accepted.get();
            sum.cut += worker.cut.get();
            sum.strangers += worker.strangers();
            sum.longest_turn_ns = sum.longest_turn_ns.max(worker.longest_turn_ns());
            sum.slow_turns += worker.slow_turns.get();
            sum.connections += worker.connections.load(Ordering::Relaxed);
        }
        sum
    }
}

/// What the workers of a node count, and what came of the clients that wanted to connect.
pub struct Workers {
    all: Vec<Arc<WorkerCounters>>,
    accepting: Arc<AcceptCounters>,
}

impl Workers {
    /// Numbers the workers.
    pub(crate) fn new(all: Vec<Arc<WorkerCounters>>) -> Workers {
        all.iter().enumerate().for_each(|(number, worker)| worker.set_number(number));
        Workers { all, accepting: Arc::default() }
    }

    /// What each worker counts.
    pub fn all(&self) -> &[Arc<WorkerCounters>] {
        &self.all
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.all.len()
    }

    /// What came of clients that wanted to connect.
    pub fn accepting(&self) -> &Arc<AcceptCounters> {
        &self.accepting
    }

    /// Whether any client waits for a sync write.
    pub fn has_sync_writes(&self) -> bool {
        self.all.iter().any(|worker| worker.has_sync_writes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_turns_are_told_by_their_last_command() {
        let worker = WorkerCounters::default();
        let turn = |commands: &[u8], ms: u64| {
            worker.turn_begins();
            commands.iter().for_each(|opcode| worker.count(*opcode));
            worker.turn_took(ms * 1_000_000);
        };
        for (commands, ms) in [(&[1, 0][..], 7), (&[0], 5), (&[1], 2), (&[], 60), (&[u8::MAX], 1)] {
            turn(commands, ms);
        }
        worker.turn_begins();
        worker.count(3);
        worker.turn_took(NOTED_TURN_NS - 1);
        let told = [0, 1, 2, 3, u8::MAX].map(|opcode| worker.longest_turn_with_ns(opcode) / 1_000_000);
        assert_eq!((told, worker.longest_turn_ns() / 1_000_000), ([7, 2, 0, 0, 1], 60));
    }
}
