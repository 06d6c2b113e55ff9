//! Promises of other nodes, by which this one serves while the coordination store is away, and what it promises itself
//! (record 62).
//!
//! Each other node is asked on a thread of its own: one that does not answer does not delay the others.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::cluster::promise::{Ask, Unpromised};
use ::cluster::tenure::Tenure;
use base::env::Task;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::ending::Ending;
use super::life::Lease;
use super::names::Resolver;
use super::node_secret::NodeSecrets;
use super::progress::DocumentProgress;
use crate::config::UserSpec;
use crate::doors::PeerPost;
use crate::node::Node;
use crate::node_login::NodeSecret;
use crate::sasl::digest::{Digest, Mechanism};

/// Where a node is asked for a promise.
pub const PATH: &str = "/v1/promise";
/// How often the password is hashed for the key: as often as for SCRAM, which tells a listener as much.
const ITERATIONS: u32 = 4_096;
/// More than this is no answer of ours.
const MAX_ANSWER_BYTES: usize = 16 << 10;

/// A request, with the proof that it comes from a node of the cluster and is meant for one node.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    ask: Ask,
    /// The identity of the node that is asked.
    to: String,
    /// When it was asked, by the asking node's clock, in nanoseconds: no two requests of a life are the same.
    asked_ns: u64,
    /// The asking node stops: nothing is asked for, and no node has to wait for it any more.
    #[serde(default)]
    release: bool,
    proof: String,
    /// The tenures of what is asked with; a version without tenures passes over them.
    #[serde(default)]
    tenures: Vec<Tenure>,
    /// Proves the tenures of this request; empty if there are none.
    #[serde(default)]
    tenures_proof: String,
}

/// An answer to one request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    lasts_ms: u64,
    proof: String,
}

/// Why a request is not granted.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The proof is wrong, or the request is meant for another node.
    #[error("the request does not show that it comes from a node of this cluster and is meant for this node")]
    Stranger,
    /// It cannot be promised now.
    #[error(transparent)]
    Unpromised(#[from] Unpromised),
}

/// A key that all nodes of a cluster have: made of their secret, or of their user and password, as earlier versions do.
#[derive(Clone, Copy)]
pub(super) struct Key(Digest);

impl Key {
    pub(super) fn derive(user: &UserSpec) -> Key {
        let secret = format!("{}:{}:{}", user.name.len(), user.name, user.password);
        Key(Mechanism::Sha512.pbkdf2(secret.as_bytes(), b"stave promises between nodes", ITERATIONS))
    }

    fn of_secret(secret: &NodeSecret) -> Key {
        Key(secret.key("stave promises between nodes"))
    }

    fn proof(&self, parts: &[&[u8]]) -> String {
        let proof = Mechanism::Sha256.hmac(self.0.bytes(), parts);
        proof.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Proves a request, whose `proof` is not looked at.
    fn of_request(&self, request: &Request) -> String {
        let Request { ask, to, asked_ns, release, .. } = request;
        // JSON keeps one text from running into the other.
        let text = serde_json::to_vec(&(ask, to, asked_ns, release)).unwrap_or_default();
        self.proof(&[b"promise?\n", &text])
    }

    /// Proves the tenures of a request, whose `tenures_proof` is not looked at.
    fn of_tenures(&self, request: &Request) -> String {
        if request.tenures.is_empty() {
            return String::new();
        }
        let text = serde_json::to_vec(&request.tenures).unwrap_or_default();
        self.proof(&[b"tenures?\n", request.proof.as_bytes(), b"\n", &text])
    }

    fn of_answer(&self, request: &Request, lasts_ms: u64) -> String {
        let lasts = lasts_ms.to_be_bytes();
        self.proof(&[b"promise!\n", request.proof.as_bytes(), &lasts])
    }
}

fn is_same(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

/// Asking the other nodes for their promises, and answering them.
pub(super) struct Promises {
    node: Arc<Node>,
    uuid: String,
    /// How long a promise lasts, as a lease does.
    lasts: Duration,
    /// What proves to other nodes that this one belongs to the cluster; `None` if it has no user.
    key: Option<Key>,
    names: Resolver,
    lease: Arc<Lease>,
    secrets: Arc<NodeSecrets>,
    progress: Arc<DocumentProgress>,
    ending: Arc<Ending>,
}

impl Promises {
    pub(super) fn new(
        node: &Arc<Node>,
        uuid: &str,
        lasts: Duration,
        lease: &Arc<Lease>,
        secrets: &Arc<NodeSecrets>,
        progress: &Arc<DocumentProgress>,
        ending: &Arc<Ending>,
    ) -> Promises {
        Promises {
            node: Arc::clone(node),
            uuid: uuid.to_owned(),
            lasts,
            key: node.host().and_then(|host| host.config().users.first().map(Key::derive)),
            names: Resolver::new(node.env().clone()),
            lease: Arc::clone(lease),
            secrets: Arc::clone(secrets),
            progress: Arc::clone(progress),
            ending: Arc::clone(ending),
        }
    }

    /// Whether enough others promise that the node serves without the store.
    pub(super) fn are_held(&self) -> bool {
        self.lease.authority().life().is_promised(self.lease.now_ns())
    }

    /// Waits until enough others promise that the node serves without the store; false if that takes longer.
    pub(super) fn wait_until_held(&self, at_most: Duration) -> bool {
        let clock = &self.node.env().clock;
        let end = clock.monotonic() + at_most;
        while !self.are_held() {
            if clock.monotonic() >= end || self.ending.pause(Duration::from_millis(20)) {
                return false;
            }
        }
        true
    }

    /// Answers another node.
    pub(super) fn promise(&self, request: &Request) -> Result<Answer, Denied> {
        let keys = self.secrets.accepted();
        let mut keys =
            keys.iter().map(Key::of_secret).chain(self.key.filter(|_| self.secrets.takes_earlier_proofs()));
        let proves = |key: &Key| {
            is_same(&key.of_request(request), &request.proof)
                && is_same(&key.of_tenures(request), &request.tenures_proof)
        };
        let key = keys.find(proves).filter(|_| request.to == self.uuid).ok_or(Denied::Stranger)?;
        let ask = Ask { tenures: request.tenures.clone(), ..request.ask.clone() };
        let mut authority = self.lease.authority();
        let lasts = if request.release {
            authority.release(&ask)
        } else {
            authority.grant(&ask, self.lease.now_ns())?
        };
        drop(authority);
        let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        Ok(Answer { lasts_ms, proof: key.of_answer(request, lasts_ms) })
    }

    /// Until the membership ends: has each node asked that could take over from this one, and each other member.
    pub(super) fn keep(self: &Arc<Promises>) {
        let every = self.lasts / 5;
        let mut askers: BTreeMap<String, Asker> = BTreeMap::new();
        while !self.ending.pause(every) {
            let asked: Vec<String> = self.lease.authority().asked().into_iter().map(str::to_owned).collect();
            askers.retain(|uuid, asker| {
                let stays = asked.contains(uuid) && !asker.is_over();
                if !stays {
                    asker.end();
                }
                stays
            });
            for uuid in asked {
                if !askers.contains_key(&uuid)
                    && let Some(asker) = Asker::begin(self, &uuid)
                {
                    askers.insert(uuid, asker);
                }
            }
        }
        let askers = askers.into_values().collect::<Vec<_>>();
        askers.iter().for_each(Asker::end);
        for asker in askers {
            if !asker.task.join() {
                tracing::error!(
                    event = "promise_thread_panicked",
                    "a thread that asks another node to wait has panicked"
                );
            }
        }
    }

    /// Asks one node again and again.
    fn ask_one(&self, uuid: &str, is_over: &AtomicBool) {
        let every = self.lasts / 5;
        while !is_over.load(Ordering::Acquire) {
            if let Err(error) = self.ask_once(uuid, false) {
                tracing::debug!(%error, node = uuid, "a node does not promise to wait");
            }
            if self.ending.pause(every) {
                break;
            }
        }
        // No node has to wait for one that has stopped.
        if self.ending.has_come()
            && let Err(error) = self.ask_once(uuid, true)
        {
            tracing::debug!(%error, node = uuid, "a node was not told that this one stops");
        }
    }

    /// Asks with what the other node knows of the cluster's secret; it may not have heard of the last one.
    fn ask_once(&self, uuid: &str, release: bool) -> io::Result<()> {
        let keys: Vec<Key> = self.secrets.all_for(uuid).iter().map(Key::of_secret).collect();
        let keys = if keys.is_empty() { self.key.into_iter().collect() } else { keys };
        let mut asked = Ok(());
        for key in keys {
            asked = self.ask_with(key, uuid, release);
            if asked.as_ref().map_or_else(|error| error.kind() != io::ErrorKind::PermissionDenied, |()| true)
            {
                break;
            }
        }
        asked
    }

    /// Asks one node once, and proves that with this key.
    fn ask_with(&self, key: Key, uuid: &str, release: bool) -> io::Result<()> {
        let Some(view) = self.progress.view() else { return Ok(()) };
        let Some((_, node)) = view.state.node_of(uuid) else { return Ok(()) };
        let incarnation = {
            let authority = self.lease.authority();
            if !authority.life().may_serve() && !release {
                return Ok(());
            }
            authority.life().incarnation()
        };
        let asked_ns = self.lease.now_ns();
        let Some(ask) = self.progress.ask(&self.uuid, incarnation) else { return Ok(()) };
        let tenures = ask.tenures.clone();
        let (proof, tenures_proof) = (String::new(), String::new());
        let to = uuid.to_owned();
        let mut request = Request { ask, to, asked_ns, release, proof, tenures, tenures_proof };
        request.proof = key.of_request(&request);
        request.tenures_proof = key.of_tenures(&request);
        let answer =
            self.exchange(&node.address.http_by(self.node.doors().peers.is_encrypted()), &request)?;
        if !is_same(&key.of_answer(&request, answer.lasts_ms), &answer.proof) {
            return Err(io::Error::other(
                "the answer does not show that it comes from a node of this cluster",
            ));
        }
        if !release {
            let lasts = Duration::from_millis(answer.lasts_ms);
            self.lease.authority().promised(uuid, incarnation, asked_ns, lasts);
        }
        Ok(())
    }

    fn exchange(&self, address: &str, request: &Request) -> io::Result<Answer> {
        let addr = self.names.addr(address)?;
        let body = serde_json::to_string(request)?;
        let post = PeerPost { address, addr, path: PATH, body: &body, most_bytes: MAX_ANSWER_BYTES };
        let answer = self.node.doors().peers.post(self.node.env(), post, self.lasts / 5);
        let answer = answer.inspect_err(|_| self.names.doubt(address))?;
        if answer.status != 200 {
            let reason = String::from_utf8_lossy(&answer.body);
            let kind = match answer.status {
                403 => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::Other,
            };
            return Err(io::Error::new(kind, format!("status {}: {reason}", answer.status)));
        }
        serde_json::from_slice(&answer.body)
            .map_err(|_| io::Error::other("the answer is not what nodes answer"))
    }
}

/// A thread that asks one node.
struct Asker {
    is_over: Arc<AtomicBool>,
    task: Task,
}

impl Asker {
    fn begin(promises: &Arc<Promises>, uuid: &str) -> Option<Asker> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (asking, of, over) = (Arc::clone(promises), uuid.to_owned(), Arc::clone(&is_over));
        let job = move || {
            asking.ask_one(&of, &over);
            over.store(true, Ordering::Release);
        };
        let begun = promises.node.env().spawn.spawn("promises", Box::new(job));
        let task = begun.inspect_err(|error| {
            let now = promises.node.env().clock.monotonic();
            if let Some(left_out) = promises.node.events().not_asked.admit(now) {
                tracing::warn!(
                    event = "promise_not_asked", %error, node = uuid, left_out,
                    "no thread could be started that asks another node not to take over: its promise is missing"
                );
            }
        });
        Some(Asker { is_over, task: task.ok()? })
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}
