//! A worker: one thread with its own runtime, and the connections it was given.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ::node::address_places::Place;
use ::node::close_reason::{CloseReason, CloseTold};
use ::node::counters::WorkerCounters;
use ::node::news::Hearing;
use ::node::output::Output;
use ::node::reaper::Reaper;
use ::node::turn_clock::{self, TurnClock};
use ::node::user_data::UserData;
use ::node::{Node, wake_queue};
use base::env::Task;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::tls::{Acceptance, Transport};
use crate::watchdog::WatchedThread;
use crate::{acceptor, socket};

/// Bytes that a worker reads at once; frames up to this size need no memory of their own.
pub const SCRATCH_BYTES: usize = 64 << 10;
/// How often a worker lets its connections go on before it finds that none of them can give way.
const ROOM_TURNS: u32 = 4;
/// How long connections may take to send their last answers when the node stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a worker's connections share; they use it one after the other.
pub struct WorkerState {
    /// The node.
    pub node: Arc<Node>,
    /// What the worker counts.
    pub counters: Arc<WorkerCounters>,
    /// Where bytes are read to.
    pub scratch: RefCell<Box<[u8]>>,
    /// Where answers are put together.
    pub output: RefCell<Output>,
    /// The deadlines.
    pub reaper: Reaper,
    /// The edition of the node's news that the worker has heard of.
    pub edition: Cell<u64>,
    /// Tells whether clients have to wait.
    pub hearing: Hearing,
    /// When turns of connections begin.
    pub(crate) turns: TurnClock,
    /// Told whenever a connection has ended.
    ended: Notify,
}

/// A client that was accepted.
pub struct Accepted {
    /// Its socket, not blocking.
    pub stream: std::net::TcpStream,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Its place among the connections of its address.
    pub place: Place,
    /// All places are taken: one that has not logged in must give way to it.
    pub is_crowded: bool,
    /// What its connection is encrypted with; nothing if it is not.
    pub(crate) tls: Option<Acceptance>,
}

/// The acceptor's side of a worker. Dropping it lets the worker close its connections and end.
pub struct Worker {
    sender: UnboundedSender<Accepted>,
    counters: Arc<WorkerCounters>,
    handed_over: Cell<u64>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(
        at: usize,
        node: Arc<Node>,
        counters: Arc<WorkerCounters>,
        watched: Arc<WatchedThread>,
    ) -> io::Result<(Worker, Task)> {
        let (sender, receiver) = unbounded_channel();
        let worker = Worker { sender, counters: Arc::clone(&counters), handed_over: Cell::new(0) };
        let (report, reported) = mpsc::channel();
        let env = node.env().clone();
        let job = move || {
            // The runtime belongs to its thread, so it is made there and its failure is told.
            let mut builder = Builder::new_current_thread();
            builder.enable_all().on_thread_park(turn_clock::note_wait);
            match builder.build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    drop(report);
                    runtime.block_on(run(receiver, node, counters, watched));
                }
                Err(error) => drop(report.send(error)),
            }
        };
        let thread = env.spawn.spawn(&format!("worker-{at}"), Box::new(job))?;
        match reported.recv() {
            Ok(error) => Err(error),
            Err(mpsc::RecvError) => Ok((worker, thread)),
        }
    }

    /// Connections at this moment.
    pub fn connections(&self) -> usize {
        self.counters.connections.load(Ordering::Relaxed)
    }

    /// Connections that have not logged in, those that the worker has not looked at yet as well.
    pub fn strangers(&self) -> u64 {
        let waiting = self.handed_over.get().saturating_sub(self.counters.accepted_total());
        self.counters.strangers() + waiting
    }

    /// Hands a client over.
    pub fn hand_over(&self, accepted: Accepted) {
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        self.handed_over.set(self.handed_over.get() + 1);
        if self.sender.send(accepted).is_err() {
            self.counters.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

async fn run(
    mut receiver: UnboundedReceiver<Accepted>,
    node: Arc<Node>,
    counters: Arc<WorkerCounters>,
    watched: Arc<WatchedThread>,
) {
    let mut hearing = node.announcer().hearing();
    let state = Rc::new(WorkerState {
        edition: Cell::new(hearing.edition()),
        hearing: hearing.clone(),
        turns: TurnClock::default(),
        reaper: Reaper::new(Arc::clone(&counters)),
        counters,
        node: Arc::clone(&node),
        scratch: RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice()),
        output: RefCell::new(Output::within(Arc::clone(node.connection_memory()))),
        ended: Notify::new(),
    });
    let ticking = tokio::task::spawn_local(tick(Rc::clone(&state)));
    let delivering = tokio::task::spawn_local(wake_queue::deliver());
    let freeing = tokio::task::spawn_local(hear_of_memory(Rc::clone(&state)));
    let listening = tokio::task::spawn_local(listen(hearing, Rc::clone(&state)));
    let answering = tokio::task::spawn_local(answer(watched, Rc::clone(&state)));
    while let Some(accepted) = receiver.recv().await {
        if accepted.is_crowded && !make_room(&state).await {
            continue;
        }
        tokio::task::spawn_local(serve(accepted, Rc::clone(&state)));
    }
    state.reaper.shut_down();
    let drained = async {
        while !state.reaper.is_empty() {
            state.ended.notified().await;
        }
    };
    if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!(
            event = "connections_not_ended",
            connections = state.reaper.len(),
            "connections did not end in time while the node stops, and are cut"
        );
    }
    ticking.abort();
    delivering.abort();
    listening.abort();
    freeing.abort();
    answering.abort();
}

/// Answers the watchdog, between the turns of connections.
async fn answer(watched: Arc<WatchedThread>, state: Rc<WorkerState>) {
    watched.answer(state.node.env()).await;
}

/// Closes a connection for another one; false if all have logged in, and the other one is not served.
async fn make_room(state: &WorkerState) -> bool {
    let counters = state.node.workers().accepting();
    for _ in 0..ROOM_TURNS {
        if state.reaper.crowd_out() {
            counters.kv_crowded_out.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // Of a burst of clients, those before this one may not have begun: they can give way once they have.
        tokio::task::yield_now().await;
    }
    state.counters.accepted();
    state.counters.connections.fetch_sub(1, Ordering::Relaxed);
    acceptor::refuse(counters, state.node.limits().connections);
    false
}

/// Lets connections look whenever there is news: however much there is meanwhile, they look once.
async fn listen(mut hearing: Hearing, state: Rc<WorkerState>) {
    loop {
        hearing.changed().await;
        state.edition.set(hearing.edition());
        state.reaper.wake_all();
    }
}

/// Lets those look that wait for memory, whenever some was given back.
async fn hear_of_memory(state: Rc<WorkerState>) {
    loop {
        state.node.connection_memory().freed().await;
        state.reaper.wake_waiting();
    }
}

async fn tick(state: Rc<WorkerState>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        // Who has to wait is not late.
        if !state.hearing.is_frozen() {
            let now_s = state.node.env().clock.monotonic().as_secs();
            state.reaper.tick(now_s);
            let memory = state.node.connection_memory();
            memory.follow_quotas(state.node.served().quota_bytes());
            memory.tick(now_s);
        }
    }
}

/// A client's mistake is for its developer, and what is ordinary is for no reader of the log.
fn log_end(node: &Node, peer: SocketAddr, reason: CloseReason) {
    match node.events().closed.admit(reason, node.env().clock.monotonic()) {
        CloseTold::NoMistake => tracing::debug!(peer = %UserData(peer), %reason, "connection closed"),
        CloseTold::LeftOut => {}
        CloseTold::Now(left_out) => tracing::warn!(
            event = "connection_closed", peer = %UserData(peer), %reason, left_out,
            "a connection was closed for what its client did, or did not do"
        ),
    }
}

async fn serve(accepted: Accepted, state: Rc<WorkerState>) {
    let Accepted { stream, peer, place: _place, is_crowded: _, tls } = accepted;
    let counters = Arc::clone(&state.counters);
    counters.accepted();
    let transport = TcpStream::from_std(stream).and_then(|tcp| Transport::accepted(tcp, tls));
    match transport {
        Ok(stream) => {
            let reason = socket::serve(stream, peer, Rc::clone(&state)).await;
            if reason.is_fault() {
                counters.cut();
            }
            log_end(&state.node, peer, reason);
        }
        Err(error) => {
            let now = state.node.env().clock.monotonic();
            if let Some(left_out) = state.node.events().not_served.admit(now) {
                tracing::warn!(
                    event = "connection_not_served", peer = %UserData(peer), %error, left_out,
                    "a connection was accepted, cannot be served, and is closed"
                );
            }
        }
    }
    counters.connections.fetch_sub(1, Ordering::Relaxed);
    state.ended.notify_one();
}
