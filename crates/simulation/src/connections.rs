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
use base::env::{Clock, Env};
use cluster::Fence;
use protocol::extras::ConfigVersion;
use protocol::feature::{Feature, Features};
use protocol::response::{ParsedResponse, ResponseView};
use protocol::{HEADER_BYTES, RequestParts, Status, opcode, parse_response, write_request};

use crate::links::Runner;
use crate::node::BUCKET;
use crate::target::host_of;

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

/// What a node does for a connection at one time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It looks at what waits.
    Later,
    /// It handles what came.
    Bytes,
}

/// A client's connection to a node.
pub struct ClientConnection {
    connection: Connection,
    /// What came, and was not handled.
    pub unread: Vec<u8>,
    /// What has to happen before it can go on, as a worker of the server keeps it.
    next: Next,
}

impl ClientConnection {
    /// Has a request handled, and what waited and need not any more; nobody looks at the answers. Whether the connection
    /// is still there.
    pub fn ask(&mut self, frame: &[u8]) -> bool {
        self.unread.extend_from_slice(frame);
        let mut goes_on = true;
        while goes_on && !self.is_closed() {
            let mut out = Output::default();
            goes_on = false;
            for turn in [Turn::Later, Turn::Bytes] {
                goes_on |= self.turn(turn, &mut out);
            }
        }
        !self.is_closed()
    }

    /// Whether the node has closed it.
    pub fn is_closed(&self) -> bool {
        matches!(self.next, Next::Close(_))
    }

    /// What the node does in a turn; whether there may be more to do at once.
    pub fn turn(&mut self, turn: Turn, out: &mut Output) -> bool {
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

/// A connection that has logged in, agreed to `more` features and selected the bucket; `None` if there is no bucket.
pub fn connect(node: &Arc<::node::Node>, more: &[Feature]) -> Option<ClientConnection> {
    let mut features = vec![
        Feature::Xerror,
        Feature::MutationSeqno,
        Feature::SelectBucket,
        Feature::AltRequestSupport,
        Feature::SyncReplication,
        Feature::Collections,
    ];
    features.extend(more);
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

/// Looks at each of some answers.
///
/// # Panics
///
/// If the last one is not whole.
pub fn each(mut bytes: &[u8], mut look: impl FnMut(&ResponseView<'_>)) {
    while let ParsedResponse::Response { response, total_len } = parse_response(bytes, MOST_BYTES) {
        look(&response);
        bytes = &bytes[total_len..];
    }
    assert!(bytes.is_empty(), "a node sends whole answers");
}
