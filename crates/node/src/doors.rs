//! What a node needs of the outside beside `base::env`: time limits, other nodes that are asked something, and connections
//! that replicate. Whoever runs the node brings it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::env::{Env, Task};

use crate::changes::exchange::{ReaderExchange, ReaderTarget};
use crate::kept_users::security::SecuritySettings;
use crate::replication::download::Download;
use crate::replication::{LinkLimits, Links};
pub use crate::timer::Timer;

/// JSON for another node.
#[derive(Clone, Copy, Debug)]
pub struct PeerPost<'a> {
    /// The node, `HOST:PORT`.
    pub address: &'a str,
    /// Where that is.
    pub addr: SocketAddr,
    /// What is asked there.
    pub path: &'a str,
    /// The JSON.
    pub body: &'a str,
    /// A longer answer is refused.
    pub most_bytes: usize,
}

/// What another node answered.
#[derive(Debug)]
pub struct PeerAnswer {
    /// The status code, as of HTTP.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// The way to ask other nodes.
pub trait Peers: Send + Sync {
    /// Asks, and waits for the whole answer for at most this time. Blocks.
    fn post(&self, env: &Env, post: PeerPost<'_>, at_most: Duration) -> io::Result<PeerAnswer>;

    /// Whether it asks at the ports for TLS.
    fn is_encrypted(&self) -> bool {
        false
    }
}

/// Who runs the links of a node.
pub trait LinkRunner: Send + Sync {
    /// Begins to run every link that is there and every one that comes, until [`Links::is_stopping`]; the task ends when
    /// none works on a bucket any more.
    fn start(&self, env: &Env, links: Arc<Links>) -> io::Result<Task>;

    /// Begins to copy the file of a vBucket from another node. The task ends when that is done, or has failed.
    fn download(&self, env: &Env, download: Download) -> io::Result<Task> {
        drop((env, download));
        Err(io::Error::new(io::ErrorKind::NotConnected, "this node cannot connect to others"))
    }

    /// How much each link takes upon itself.
    fn limits(&self) -> LinkLimits {
        LinkLimits::default()
    }

    /// Whether connections that carry documents are made to the ports for TLS, those of readers of changes, too.
    fn is_encrypted(&self) -> bool {
        false
    }
}

/// Who connects to other nodes for readers of changes that follow a cluster. It comes with each reader: the runtime that
/// serves the reader runs its connections.
pub trait ReaderLinks: Send + Sync {
    /// How many more connections there may be.
    fn free_places(&self) -> usize;

    /// Begins to connect, and to drive what is exchanged; the connection is closed when what this returns is dropped.
    /// `None` if there are as many connections as there may be.
    fn connect(&self, reading: ReaderTarget, exchange: &Arc<ReaderExchange>) -> Option<Box<dyn Send>>;
}

/// Who accepts connections, and protects them as settings say.
pub trait Protection: Send + Sync {
    /// New connections are protected so from now on.
    fn follow(&self, settings: &SecuritySettings);
}

/// All that a node has for as long as it runs.
#[derive(Clone)]
pub struct Doors {
    /// Time limits of handlers that wait.
    pub timer: Arc<dyn Timer>,
    /// Asks other nodes.
    pub peers: Arc<dyn Peers>,
    /// Runs the links to other nodes.
    pub links: Arc<dyn LinkRunner>,
    /// Protects connections.
    pub protection: Arc<dyn Protection>,
}

impl Doors {
    /// For a node without an outside: no time limit ends, no other node can be asked or followed.
    pub fn closed() -> Doors {
        let (timer, peers, links) = (Arc::new(Closed), Arc::new(Closed), Arc::new(Closed));
        Doors { timer, peers, links, protection: Arc::new(Closed) }
    }
}

/// Leads nowhere.
struct Closed;

impl Timer for Closed {
    fn after(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::pending())
    }
}

impl Peers for Closed {
    fn post(&self, _: &Env, post: PeerPost<'_>, _: Duration) -> io::Result<PeerAnswer> {
        Err(io::Error::new(io::ErrorKind::NotConnected, format!("this node cannot ask {}", post.address)))
    }
}

impl Protection for Closed {
    fn follow(&self, _: &SecuritySettings) {}
}

impl LinkRunner for Closed {
    fn start(&self, _: &Env, _: Arc<Links>) -> io::Result<Task> {
        Err(io::Error::new(io::ErrorKind::NotConnected, "this node cannot follow others"))
    }
}
