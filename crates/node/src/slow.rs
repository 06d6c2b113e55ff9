//! Operations that took long: which ones, and what they waited for; logged seldom, and the last of them kept.
//!
//! No request looks at the clock for this. How long a connection has its worker is known anyway; only if that is long are
//! its requests looked at. A request that leaves its turn, because it waits for the disk, for replicas or for another
//! thread, is timed from then on (record 0109), and its time is told by parts: see [`spans`] (record 0147).

pub mod export;
pub mod limits;
pub(crate) mod note;
pub mod packet;
pub mod spans;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use base::CollectionId;
use base::rate_limit::RateLimit;
use parking_lot::Mutex;
use protocol::{Request, Status, opcode};

use self::export::TraceQueue;
use self::limits::SlowLimits;
use self::packet::Packet;
use self::spans::Span;
use crate::user_data::UserData;

/// Operations that are kept.
const KEPT: usize = 64;
/// Longer than any limit that an operator may want for what has its worker: shorter turns are not looked at.
pub(crate) const NOTED_TURN_NS: u64 = 1_000_000;
/// What an operation spent its time with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpentOn {
    /// Its worker handled it, and others of the same turn.
    Turn,
    /// The disk, or a thread for long work.
    Elsewhere,
    /// An answer that something else decides.
    Answer,
    /// The replicas and disks that make a change as safe as was asked for.
    SyncWrite,
}

impl SpentOn {
    /// As it stands in the log.
    pub fn name(self) -> &'static str {
        match self {
            SpentOn::Turn => "turn",
            SpentOn::Elsewhere => "elsewhere",
            SpentOn::Answer => "answer",
            SpentOn::SyncWrite => "sync_write",
        }
    }
}

/// What a request was about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    pub(crate) key: Vec<u8>,
    pub(crate) packet: Packet,
}

impl Subject {
    pub(crate) fn of(request: &Request<'_>) -> Subject {
        Subject { key: request.key.to_vec(), packet: Packet::of(request) }
    }

    /// Takes another request's place without memory of its own.
    pub(crate) fn take(&mut self, request: &Request<'_>) {
        self.key.clear();
        self.key.extend_from_slice(request.key);
        self.packet = Packet::of(request);
    }
}

/// An operation that took long.
#[derive(Clone, Debug)]
pub struct SlowOperation {
    /// When it ended, in nanoseconds since 1970.
    pub ended_unix_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// What with.
    pub spent_on: SpentOn,
    /// The command; of several requests of one turn, the last one's.
    pub opcode: u8,
    /// The requests that took so long together.
    pub requests: u64,
    /// How it was answered, if that is known.
    pub status: Option<Status>,
    /// The request; of several requests of one turn, the last one.
    pub packet: Packet,
    /// Its key; of a document without the collection.
    pub key: Box<[u8]>,
    /// The collection of the document that the key names, if it names one.
    pub collection: Option<CollectionId>,
    /// How the client calls the connection, as it said in HELLO.
    pub connection_id: Option<Box<str>>,
    /// The selected bucket.
    pub bucket: Option<String>,
    /// Where the client is.
    pub peer: Option<SocketAddr>,
    /// Its worker.
    pub worker: usize,
    /// Where the time went; of a turn its waits for locks.
    pub spans: Vec<Span>,
}

impl SlowOperation {
    /// Tells it from others, in the field's form: the connection's name for itself and the opaque.
    pub fn cid(&self) -> String {
        self.cid_of(self.connection_id.as_deref())
    }

    fn cid_of(&self, connection: Option<&str>) -> String {
        format!("{}/{:x}", connection.unwrap_or("-"), self.packet.opaque)
    }

    /// The key in the field's form: that of a document is `cid:0xCOLLECTION:KEY`.
    pub fn key_text(&self) -> String {
        let key = self.key.escape_ascii();
        match self.collection {
            Some(CollectionId(id)) => format!("cid:{id:#x}:{key}"),
            None => key.to_string(),
        }
    }
}

/// Operations of a node that took long.
#[derive(Debug, Default)]
pub struct SlowLog {
    kept: Mutex<VecDeque<SlowOperation>>,
    told: RateLimit,
    /// How long each command may take.
    pub limits: SlowLimits,
    /// What is to be told to a collector of traces.
    pub traces: TraceQueue,
}

/// A request, or a turn, that took so long.
pub(crate) struct Took {
    pub(crate) opcode: u8,
    pub(crate) status: Option<Status>,
    pub(crate) ns: u64,
    pub(crate) spent_on: SpentOn,
    pub(crate) requests: u64,
    /// When it began, in nanoseconds of the monotonic clock.
    pub(crate) began_ns: u64,
    /// How much of it passed before it left its turn.
    pub(crate) in_turn_ns: u64,
}

impl SlowLog {
    /// Keeps an operation that took longer than it may, and logs it if none was logged a moment ago.
    pub(crate) fn note(&self, operation: SlowOperation, now: Duration) {
        if let Some(left_out) = self.told.admit(now) {
            let SlowOperation { took_ns, spent_on, requests, worker, .. } = operation;
            let redacted = UserData(operation.key_text()).to_string();
            // An application may call its connection by the name of a user.
            let connection = operation.connection_id.as_deref().map(|id| UserData(id).to_string());
            tracing::warn!(
                event = "slow_operation",
                bucket = operation.bucket.as_deref().unwrap_or_default(),
                command = opcode::name(operation.opcode).unwrap_or("unknown"),
                duration_us = took_ns / 1000,
                duration = packet::duration_text(took_ns),
                status = operation.status.map_or("", Status::name),
                trace = spent_on.name(),
                spans = %spans::trace(&operation.spans),
                requests,
                cid = operation.cid_of(connection.as_deref()),
                connection_id = connection.unwrap_or_default(),
                opaque = operation.packet.opaque,
                vbucket = %operation.packet.vbucket,
                packet = %operation.packet.as_json(operation.opcode, Some(&redacted)),
                key = redacted,
                peer = %operation.peer.map_or(String::new(), |peer| UserData(peer).to_string()),
                worker,
                left_out,
                "slow operation"
            );
        }
        self.traces.add(&operation);
        let mut kept = self.kept.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(operation);
    }

    /// The last ones in one bucket, the oldest first.
    pub fn of_bucket(&self, bucket: &str) -> Vec<SlowOperation> {
        self.kept.lock().iter().filter(|one| one.bucket.as_deref() == Some(bucket)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(bucket: &str, opaque: u32) -> SlowOperation {
        SlowOperation {
            ended_unix_ns: 0,
            took_ns: 1,
            spent_on: SpentOn::Turn,
            opcode: 0,
            status: None,
            requests: 1,
            packet: Packet { opaque, ..Packet::default() },
            key: Box::default(),
            collection: None,
            connection_id: None,
            bucket: Some(bucket.to_owned()),
            peer: None,
            worker: 0,
            spans: Vec::new(),
        }
    }

    #[test]
    fn the_last_ones_are_kept() {
        let log = SlowLog::default();
        (0..100).for_each(|opaque| log.note(operation("a", opaque), Duration::ZERO));
        log.note(operation("b", 7), Duration::ZERO);
        let kept: Vec<u32> = log.of_bucket("a").iter().map(|one| one.packet.opaque).collect();
        assert_eq!(kept, (37..100).collect::<Vec<_>>());
        assert_eq!(log.of_bucket("b").len(), 1);
    }
}
