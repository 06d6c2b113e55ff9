//! Connections that stream changes: what the server keeps of them, and how the rest of the node finds them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use dcp::{Agreement, Features, Producer, Progress, Side, Sink, Step, Tick};
use engine::{Bucket, Frames, Whole};
use parking_lot::Mutex;
use protocol::frame::ClientAnswer;
use protocol::{RequestParts, opcode, write_request};

use crate::close_reason::CloseReason;
use crate::dcp_inbound::Inbound;
use crate::output::Output;
use crate::replication::LeftRollbacks;
use crate::wake_queue;

/// Bytes of messages that are made before the socket gets them.
pub const STEP_BYTES: usize = 256 << 10;

impl Sink for Output {
    fn bytes(&mut self) -> &mut Vec<u8> {
        Output::bytes(self)
    }

    fn value(&mut self, version: &Whole, from: usize) {
        Output::value(self, version, from);
    }

    fn frames(&mut self, frames: &Arc<Frames>, part: Range<usize>) {
        Output::frames(self, frames, part);
    }
}

/// The user that a connection streams for. A name is taken over from the same owner alone: names of links between nodes, and of other
/// users' connections, are no secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// For a user with the rights of nodes.
    Node,
    /// For the user of this name.
    User(String),
}

impl Owner {
    fn held_bytes(&self) -> usize {
        match self {
            Owner::Node => 0,
            Owner::User(name) => name.len(),
        }
    }
}

/// What other threads know of a connection that streams.
pub struct Handle {
    bucket: String,
    name: Vec<u8>,
    owner: Owner,
    side: Side,
    waker: Mutex<Option<Waker>>,
    is_replaced: AtomicBool,
    streams: AtomicUsize,
    unacknowledged_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// When it was opened, on the monotonic clock.
    created: Duration,
    /// Of a producer.
    progress: OnceLock<Arc<Progress>>,
}

impl Handle {
    fn key(&self) -> (String, Vec<u8>, Owner) {
        (self.bucket.clone(), self.name.clone(), self.owner.clone())
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// Its bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Its name, as text.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// Which end of the streams we are.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Streams it has.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Bytes that were sent and not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.unacknowledged_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of messages that were sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// When it was opened, on the monotonic clock.
    pub fn created(&self) -> Duration {
        self.created
    }

    /// Whether it is to end: another one took its name.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// How far the streams of a producer are; `None` for a consumer.
    pub fn progress(&self) -> Option<&Arc<Progress>> {
        self.progress.get()
    }
}

/// The connections of a node that stream, by bucket, name and owner: of two that have these in common the first is closed.
#[derive(Default)]
pub struct Registry {
    by_name: Mutex<ByName>,
    /// What consumers had begun when they ended.
    left: Arc<LeftRollbacks>,
}

type ByName = HashMap<(String, Vec<u8>, Owner), Weak<Handle>>;

impl Registry {
    fn enter(&self, handle: &Arc<Handle>) {
        let key = handle.key();
        let before = self.by_name.lock().insert(key, Arc::downgrade(handle));
        if let Some(before) = before.and_then(|before| before.upgrade()) {
            before.is_replaced.store(true, Ordering::Relaxed);
            before.wake();
        }
    }

    fn leave(&self, handle: &Arc<Handle>) {
        let key = handle.key();
        let mut all = self.by_name.lock();
        if all.get(&key).is_some_and(|there| there.as_ptr() == Arc::as_ptr(handle)) {
            all.remove(&key);
        }
    }

    /// Waits for the rollbacks that connections had begun which have ended; false if one panicked. For who closes the buckets.
    pub fn join_rollbacks(&self) -> bool {
        self.left.join()
    }

    /// All that are connected.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        self.by_name.lock().values().filter_map(Weak::upgrade).collect()
    }
}

/// The part of a connection that streams changes.
pub struct DcpConnection {
    handle: Arc<Handle>,
    registry: Arc<Registry>,
    role: DcpRole,
    /// Whether keys have their collection in front, as was agreed on when it was opened, whatever a later HELLO says.
    pub(crate) has_collections: bool,
}

/// Which end of the streams it is.
enum DcpRole {
    Producer(Box<Producer>),
    Consumer(Box<Inbound>),
}

impl Drop for DcpConnection {
    fn drop(&mut self) {
        self.registry.leave(&self.handle);
    }
}

impl DcpConnection {
    /// Opens one under a name of its owner, as was agreed on.
    pub fn open(
        registry: &Arc<Registry>,
        bucket: &Arc<Bucket>,
        name: &[u8],
        owner: Owner,
        agreed: Agreement,
        features: Features,
    ) -> DcpConnection {
        let handle = Arc::new(Handle {
            bucket: bucket.name().to_owned(),
            name: name.to_vec(),
            owner,
            side: agreed.side,
            waker: Mutex::new(None),
            is_replaced: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            unacknowledged_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            created: bucket.env().clock.monotonic(),
            progress: OnceLock::new(),
        });
        registry.enter(&handle);
        let woken = Arc::clone(&handle);
        let wake = move || woken.wake();
        let role = match agreed.side {
            Side::Producer => {
                let producer = Producer::new(Arc::clone(bucket), handle.name(), agreed, features, wake);
                handle.progress.get_or_init(|| Arc::clone(producer.progress()));
                DcpRole::Producer(Box::new(producer))
            }
            Side::Consumer => {
                let name = agreed.consumer_name;
                let left = &registry.left;
                DcpRole::Consumer(Box::new(Inbound::open(bucket, handle.name(), name, features, left, wake)))
            }
        };
        DcpConnection { handle, registry: Arc::clone(registry), role, has_collections: features.collections }
    }

    /// The producing half; nothing if the connection consumes.
    pub fn producer(&mut self) -> Option<&mut Producer> {
        match &mut self.role {
            DcpRole::Producer(producer) => Some(producer),
            DcpRole::Consumer(_) => None,
        }
    }

    /// The consuming half; nothing if the connection produces.
    pub fn consumer(&mut self) -> Option<&mut Inbound> {
        match &mut self.role {
            DcpRole::Producer(_) => None,
            DcpRole::Consumer(consumer) => Some(consumer),
        }
    }

    /// Whether what came waits for memory, so that nothing more is to be read.
    pub fn waits_for_room(&self) -> bool {
        matches!(&self.role, DcpRole::Consumer(consumer) if consumer.waits_for_room())
    }

    /// Bytes that it holds beside the bucket's changes.
    pub fn held_bytes(&self) -> usize {
        let named = size_of::<DcpConnection>() + size_of::<Handle>() + 2 * self.handle.name.len();
        named
            + 2 * self.handle.owner.held_bytes()
            + match &self.role {
                DcpRole::Producer(producer) => producer.held_bytes(),
                DcpRole::Consumer(_) => size_of::<Inbound>(),
            }
    }

    /// Remembers whom to wake when there is something to send.
    pub fn register(&self, waker: &Waker) {
        let mut registered = self.handle.waker.lock();
        if registered.is_none() {
            *registered = Some(wake_queue::through(waker));
        }
    }

    /// Whether another connection took its name.
    pub fn is_replaced(&self) -> bool {
        self.handle.is_replaced()
    }

    /// Sends what there is, up to about `most` bytes, or applies what came.
    ///
    /// # Errors
    ///
    /// Why the connection has to end.
    pub fn step(&mut self, most: usize, waker: &Waker, out: &mut Output) -> Result<Step, CloseReason> {
        let before = out.len();
        let (step, streams, unacknowledged_bytes) = match &mut self.role {
            DcpRole::Producer(producer) => {
                let step = producer.step(out, most);
                (Ok(step), producer.streams(), producer.unacknowledged_bytes())
            }
            DcpRole::Consumer(consumer) => {
                let step = consumer.step(&mut Context::from_waker(waker), out);
                (step, consumer.streams(), consumer.unacknowledged_bytes())
            }
        };
        self.handle.streams.store(streams, Ordering::Relaxed);
        self.handle.unacknowledged_bytes.store(unacknowledged_bytes, Ordering::Relaxed);
        self.handle.sent_bytes.fetch_add((out.len() - before) as u64, Ordering::Relaxed);
        step
    }

    /// Takes the client's answer to a message; false if the connection has to end for it.
    pub fn answered(&mut self, answer: &ClientAnswer<'_>, out: &mut Output) -> bool {
        match &mut self.role {
            DcpRole::Producer(producer) => producer.answered(answer.opcode, answer.opaque, answer.status),
            DcpRole::Consumer(consumer) => {
                consumer.answered(answer, out.bytes());
                true
            }
        }
    }

    /// What is due at `now`: a noop is written, or the connection is found dead. Answers when to look again.
    pub fn tick(&mut self, now: Duration, out: &mut Output) -> Result<Option<Duration>, &'static str> {
        let producer = match &mut self.role {
            DcpRole::Producer(producer) => producer,
            DcpRole::Consumer(consumer) => return consumer.tick(now, out).map(Some),
        };
        loop {
            match producer.tick(now) {
                Tick::Never => return Ok(None),
                Tick::Wait(until) => return Ok(Some(until)),
                Tick::Dead => return Err("a noop was not answered"),
                Tick::Noop(opaque) => {
                    let parts = RequestParts { opcode: opcode::DCP_NOOP, opaque, ..RequestParts::default() };
                    write_request(out.bytes(), &parts);
                }
            }
        }
    }
}
