//! A connection to another node that reads a bucket's changes for a reader here, without its socket: bytes in, bytes out;
//! messages wait until the reader takes them.
//!
//! It keeps the connection alive whether or not its reader takes anything: DCP flow control bounds the bytes that wait,
//! and noops are answered at once. What waits is charged to the memory of connections; while that is short, a connection
//! whose owner has not taken what came is not read. It decides nothing about streams; its owner requests them and judges what comes.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::VbId;
use base::env::Env;
use base::limits::MAX_FRAME_BODY_BYTES;
use parking_lot::Mutex;
use protocol::dcp::OpenFlags;
use protocol::feature::{Feature, Features};
use protocol::{
    Limits, Parsed, ParsedResponse, RequestParts, Response, ResponseView, Status, magic, opcode, parse,
    parse_response, write_request,
};

use crate::connection_memory::{Charge, ConnectionMemory};
use crate::news::Hearing;
use crate::notify::Notify;
use crate::replication::{LinkError, Login, Password};

/// Bytes of messages that may be on their way or wait here.
const BUFFER_BYTES: u32 = 256 << 10;
/// Answers that may wait beside them: each vBucket has at most one request under way.
const MOST_ANSWER_BYTES: usize = 1 << 20;
/// Seconds between two noops of the other node.
const NOOP_INTERVAL_S: u32 = 2;
/// A node that sends nothing for this long, noops included, is taken for dead.
pub const MOST_SILENT: Duration = Duration::from_secs(10);
/// A connection that is not read, because memory is short, looks again after this time at the latest.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long connecting and logging in may take together.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// What the connection asks for; values come plain.
const WANTED: Features = Features::of(&[
    Feature::TcpNoDelay,
    Feature::Xerror,
    Feature::SelectBucket,
    Feature::Json,
    Feature::Collections,
]);

/// What is read from which node, and as which user.
pub struct ReaderTarget {
    /// Clock, randomness and network.
    pub env: Env,
    /// What waits here is charged to it.
    pub memory: Arc<ConnectionMemory>,
    /// Tells whether this node stands still.
    pub hearing: Hearing,
    /// The other node's KV address.
    pub node: String,
    /// The user there.
    pub username: String,
    /// That user's password.
    pub password: Password,
    /// The bucket that is read.
    pub bucket: String,
    /// How many vBuckets it has.
    pub vbuckets: u16,
    /// The connection's name.
    pub name: String,
    /// Whether documents come with their values.
    pub with_values: bool,
    /// Whether every version in the history of changes comes.
    pub with_history: bool,
}

impl ReaderTarget {
    /// How to log in at the other node.
    pub fn login(&self) -> Login<'_> {
        Login {
            env: &self.env,
            username: self.username.as_str().into(),
            password: Cow::Borrowed(&self.password),
            bucket: &self.bucket,
            vbuckets: self.vbuckets,
            wanted: WANTED,
            asks_for: None,
        }
    }

    /// Opens the connection for changes, once it has logged in.
    pub fn open(&self, out: &mut Vec<u8>) -> Result<(), LinkError> {
        let values = if self.with_values { 0 } else { OpenFlags::NO_VALUE };
        let extras = OpenFlags(OpenFlags::PRODUCER | values).encode();
        let key = self.name.as_bytes();
        let mut send = |parts: RequestParts<'_>| {
            if write_request(out, &parts) { Ok(()) } else { Err(LinkError::TooLong) }
        };
        send(RequestParts { opcode: opcode::DCP_OPEN, key, extras: &extras, ..RequestParts::default() })?;
        let (interval, buffer) = (NOOP_INTERVAL_S.to_string(), BUFFER_BYTES.to_string());
        let always = [
            ("enable_noop", "true"),
            ("set_noop_interval", &interval),
            ("connection_buffer_size", &buffer),
            ("enable_expiry_opcode", "true"),
        ];
        let with_history = self.with_history.then_some(("change_streams", "true"));
        for (key, value) in always.into_iter().chain(with_history) {
            send(RequestParts {
                opcode: opcode::DCP_CONTROL,
                key: key.as_bytes(),
                value: value.as_bytes(),
                ..RequestParts::default()
            })?;
        }
        Ok(())
    }
}

/// What the connection and its owner share.
pub struct ReaderExchange {
    held: Mutex<Untaken>,
    /// The owner has something for the task.
    changed: Notify,
    /// Wakes the owner.
    ring: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Untaken {
    /// Whole messages and answers that the owner has not taken.
    came: Vec<u8>,
    /// Requests that are not sent yet.
    requests: Vec<u8>,
    /// Bytes of messages that the owner is done with and the other node has not been told of.
    worked: u32,
    /// Why nothing more comes.
    over: Option<String>,
    /// Bytes of the connection's own buffers.
    buffered: usize,
    /// What all of it takes, once there is a connection.
    charge: Option<Charge>,
    /// Whether the connection is not read because memory is short.
    is_paused: bool,
}

impl Untaken {
    /// Charges what waits now.
    fn count(&mut self) {
        let bytes = self.came.capacity() + self.requests.capacity() + self.buffered;
        if let Some(charge) = &mut self.charge {
            charge.set(bytes);
        }
    }
}

/// What its owner does.
impl ReaderExchange {
    /// Nothing came yet. `ring` is called when there is something to take.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> ReaderExchange {
        ReaderExchange { held: Mutex::default(), changed: Notify::default(), ring: Box::new(ring) }
    }

    /// Sends a request as soon as the connection is there.
    pub fn request(&self, parts: &RequestParts<'_>) {
        let fits = write_request(&mut self.held.lock().requests, parts);
        assert!(fits, "stream requests and filters are short");
        self.changed.notify_one();
    }

    /// Whether something came that was not taken.
    pub fn has_more(&self) -> bool {
        !self.held.lock().came.is_empty()
    }

    /// Says that this number of bytes of messages is done with.
    pub fn worked(&self, bytes: usize) {
        let mut held = self.held.lock();
        held.worked = held.worked.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if held.worked >= BUFFER_BYTES / 2 {
            self.changed.notify_one();
        }
    }

    /// Why nothing more comes; `None` while something may.
    pub fn why_over(&self) -> Option<String> {
        self.held.lock().over.clone()
    }
}

/// What its connection does.
impl ReaderExchange {
    /// The other node has let it in: what waits is charged from now on, on behalf of the one at this address.
    pub fn logged_in(&self, memory: &Arc<ConnectionMemory>, peer: SocketAddr) {
        self.held.lock().charge = Some(Charge::new(Arc::clone(memory), peer));
    }

    /// Ready when the owner has something for the other node.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Nothing more comes, for this reason.
    pub fn ended(&self, why: &LinkError) {
        self.held.lock().over = Some(why.to_string());
        (self.ring)();
    }

    /// Charges what waits, beside the connection's own buffers; whether more may be read. Who has nothing that its owner
    /// could take is read even if memory is short, or its owner would wait for ever.
    pub fn may_read(&self, buffered: usize) -> bool {
        let mut held = self.held.lock();
        held.buffered = buffered;
        held.count();
        let has_some = !held.came.is_empty();
        let Some(charge) = &mut held.charge else { return true };
        let is_paused = has_some && charge.memory().is_short();
        charge.set_waiting(is_paused);
        held.is_paused = is_paused;
        !is_paused
    }

    /// Takes whole messages and answers that came.
    pub fn take(&self) -> Vec<u8> {
        let mut held = self.held.lock();
        let came = std::mem::take(&mut held.came);
        if let Some(charge) = &held.charge {
            charge.moved(came.len());
        }
        held.count();
        if held.is_paused {
            self.changed.notify_one();
        }
        came
    }

    /// Answers noops and keeps everything else for the owner, as far as it came whole; how many bytes are done with.
    pub fn receive(&self, received: &[u8], out: &mut Vec<u8>) -> Result<usize, LinkError> {
        let mut consumed = 0;
        let mut kept = Vec::new();
        while let Some(&first) = received.get(consumed) {
            let rest = &received[consumed..];
            let (is_kept, len) = if matches!(first, magic::REQUEST | magic::ALT_REQUEST) {
                match parse(rest, Limits::AUTHENTICATED) {
                    Parsed::Request { request, total_len } if request.opcode == opcode::DCP_NOOP => {
                        let (opcode, opaque) = (request.opcode, request.opaque);
                        Response { opcode, opaque, ..Response::default() }.write(out);
                        (false, total_len)
                    }
                    Parsed::Request { total_len, .. } => (true, total_len),
                    Parsed::Bad(_) => return Err(LinkError::NotANode),
                    Parsed::Incomplete { .. } | Parsed::Answer { .. } => break,
                }
            } else {
                match parse_response(rest, MAX_FRAME_BODY_BYTES) {
                    ParsedResponse::Response { response, total_len } => (is_wanted(&response)?, total_len),
                    ParsedResponse::Bad(_) => return Err(LinkError::NotANode),
                    ParsedResponse::Incomplete { .. } => break,
                }
            };
            if is_kept {
                kept.extend_from_slice(&rest[..len]);
            }
            consumed += len;
        }
        if kept.is_empty() {
            return Ok(consumed);
        }
        let mut held = self.held.lock();
        held.came.append(&mut kept);
        held.count();
        // One message may be larger than the buffer, and is sent all the same.
        if held.came.len() > BUFFER_BYTES as usize + MAX_FRAME_BODY_BYTES + MOST_ANSWER_BYTES {
            return Err(LinkError::NotANode);
        }
        drop(held);
        (self.ring)();
        Ok(consumed)
    }

    /// Ready when the connection has to be closed, because it holds most of the memory and does not move.
    pub async fn given_up(&self) {
        std::future::poll_fn(|cx| {
            let held = self.held.lock();
            let is_given_up = held.charge.as_ref().is_some_and(|charge| charge.is_given_up(cx.waker()));
            if is_given_up { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Appends what the owner has for the other node.
    pub fn give(&self, out: &mut Vec<u8>) {
        let mut held = self.held.lock();
        out.append(&mut held.requests);
        if held.worked >= BUFFER_BYTES / 2 {
            let extras = std::mem::take(&mut held.worked).to_be_bytes();
            let parts =
                RequestParts { opcode: opcode::DCP_BUFFER_ACK, extras: &extras, ..RequestParts::default() };
            write_request(out, &parts);
        }
    }
}

/// Whether an answer is for the owner; those to what opens the connection are not, and have to be good.
fn is_wanted(response: &ResponseView<'_>) -> Result<bool, LinkError> {
    let what = match response.opcode {
        opcode::DCP_OPEN => "to be asked for changes (DCP open)",
        opcode::DCP_CONTROL => "a control of the connection",
        opcode::DCP_BUFFER_ACK => return Ok(false),
        _ => return Ok(response.magic != magic::SERVER_REQUEST),
    };
    match response.status() {
        Some(Status::Success) => Ok(false),
        _ => Err(LinkError::Refused { what, status_code: response.status_code }),
    }
}

/// A request about one vBucket, without extras.
pub fn about(opcode: u8, vbucket: VbId, opaque: u32) -> RequestParts<'static> {
    RequestParts { opcode, vbucket, opaque, ..RequestParts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(memory: &Arc<ConnectionMemory>) -> ReaderExchange {
        let charge = Charge::new(Arc::clone(memory), ([127, 0, 0, 1], 1).into());
        let held = Untaken { charge: Some(charge), ..Untaken::default() };
        ReaderExchange { held: Mutex::new(held), ..ReaderExchange::new(|| ()) }
    }

    fn mutation(value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let parts =
            RequestParts { key: b"k", extras: &[0; 31], value, ..about(opcode::DCP_MUTATION, VbId(0), 1) };
        assert!(write_request(&mut bytes, &parts));
        bytes
    }

    #[test]
    fn what_waits_is_charged_and_stops_the_reading_while_memory_is_short() {
        let memory = Arc::new(ConnectionMemory::new(Some(1 << 20)));
        let (exchange, mut out) = (exchange(&memory), Vec::new());
        let message = mutation(&vec![b'x'; 300 << 10]);
        let mut came = || {
            let taken = exchange.receive(&message, &mut out).expect("it is a message");
            assert_eq!(taken, message.len());
        };
        came();
        assert!(exchange.may_read(100 << 10), "there is room");
        assert!(memory.used_bytes() >= (400 << 10), "{}", memory.used_bytes());
        came();
        came();
        came();
        assert!(memory.is_short() && !exchange.may_read(100 << 10), "its owner has to take what came");
        assert_eq!(memory.paused(), 1);
        assert_eq!(exchange.take().len(), 4 * message.len());
        assert_eq!(memory.used_bytes(), 100 << 10, "the connection's own buffers");
        assert!(exchange.may_read(1 << 20), "whose owner waits is read, however short memory is");
        drop(exchange);
        assert_eq!(memory.used_bytes(), 0, "all of it is given back");
    }
}
