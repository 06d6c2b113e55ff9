//! A connection on which a client feeds vBuckets of this node: between its messages, what rolls back, and the state machine
//! that follows.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use base::VbId;
use dcp::{Consumer, ConsumerConfig, Features, Step};
use engine::{Bucket, Completion};
use kvstore::StorageBackend;
use protocol::dcp::StreamFlags;
use protocol::frame::ClientAnswer;
use protocol::{Request, Status};

use crate::close_reason::CloseReason;
use crate::output::Output;
use crate::replication::{LeftRollbacks, Rollbacks};

/// Bytes that may be on their way to this node, on one connection: as many as on a link.
const BUFFER_BYTES: u32 = 10 << 20;
/// Seconds between two signs of life of the producer: the fewest that every producer agrees to.
const NOOP_INTERVAL_S: u32 = 20;
const NO_THREAD: CloseReason = CloseReason::TooSlow("this node has no thread to roll back");

/// The connection.
pub struct Inbound {
    bucket: Arc<Bucket>,
    consumer: Consumer,
    rollbacks: Rollbacks,
    /// What is to be agreed on with the producer was not sent yet.
    is_new: bool,
    /// Something could not be applied for want of memory; ready when there may be room.
    room: Option<Completion<()>>,
    /// The state machine has had the message that is being handled.
    has_taken: bool,
    /// Why the connection has to end.
    closing: Option<CloseReason>,
}

impl Inbound {
    /// A connection of that name on which nothing is followed yet. `consumer_name` is that by which this node takes part in
    /// sync writes. What rolls back when the connection ends is `left`. `wake` is called, from any thread, when there is something to say.
    pub fn open(
        bucket: &Arc<Bucket>,
        name: String,
        consumer_name: Option<String>,
        features: Features,
        left: &Arc<LeftRollbacks>,
        wake: impl Fn() + Clone + Send + Sync + 'static,
    ) -> Inbound {
        let config = ConsumerConfig {
            name,
            consumer_name,
            buffer_bytes: BUFFER_BYTES,
            noop_interval_s: NOOP_INTERVAL_S,
            // What the producer may send was agreed on with the client, on another connection.
            features: Features { snappy: true, json: true, ..features },
            takes_files: false,
            change_streams: bucket.backend() == StorageBackend::LogStructured,
        };
        let mut consumer = Consumer::led(Arc::clone(bucket), config);
        consumer.on_prepared(wake.clone());
        let rollbacks = Rollbacks::new(bucket.env().clone(), Arc::clone(bucket)).waking(wake).leaving(left);
        let bucket = Arc::clone(bucket);
        Inbound { bucket, consumer, rollbacks, is_new: true, room: None, has_taken: false, closing: None }
    }

    /// vBuckets that are fed.
    pub fn streams(&self) -> usize {
        self.consumer.streams()
    }

    /// Bytes that came and are not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.consumer.unacknowledged_bytes()
    }

    /// Whether nothing more is to be read from the connection, because what came waits for memory. Its task is woken when
    /// there may be some.
    pub fn waits_for_room(&self) -> bool {
        self.room.is_some()
    }

    /// See [`Consumer::add_stream`].
    pub fn add_stream(
        &mut self,
        vb: VbId,
        opaque: u32,
        flags: StreamFlags,
        out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let mut asked = Vec::new();
        self.consumer.add_stream(vb, opaque, flags, &mut asked)?;
        self.begin(out);
        out.extend_from_slice(&asked);
        Ok(())
    }

    /// See [`Consumer::remove_stream`].
    pub fn remove_stream(&mut self, vb: VbId, out: &mut Vec<u8>) -> Result<(), Status> {
        self.consumer.remove_stream(vb, out)
    }

    /// See [`Consumer::take`].
    pub fn take(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        self.has_taken = true;
        self.consumer.take(request, out)
    }

    /// A message of a stream was handled. Whatever refused it before it could be taken, the stream would have a gap without it.
    pub fn note_message(&mut self, request: &Request<'_>, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.has_taken) {
            self.consumer.refused(request, out);
        }
    }

    /// The producer has shown that it lives.
    pub fn heard(&mut self) {
        self.consumer.heard();
    }

    /// The producer answers what it was sent; the next step says what it comes to.
    pub fn answered(&mut self, answer: &ClientAnswer<'_>, out: &mut Vec<u8>) {
        let answered = self.consumer.answered(answer, out);
        self.note(answered);
    }

    /// Says what is to be agreed on, before anything else.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_new) {
            self.consumer.open(out);
        }
    }

    fn note<T>(&mut self, outcome: Result<T, dcp::Disconnect>) -> Option<T> {
        outcome.map_err(|disconnect| self.closing = self.closing.or(Some(CloseReason::Feed(disconnect)))).ok()
    }

    /// Applies what came.
    ///
    /// # Errors
    ///
    /// Why the connection has to end.
    pub fn step(&mut self, cx: &mut Context<'_>, out: &mut Output) -> Result<Step, CloseReason> {
        let out = out.bytes();
        self.begin(out);
        while let Some((vb, outcome)) = self.rollbacks.try_next().map_err(|_| NO_THREAD)? {
            self.consumer.rolled_back(vb, outcome, out);
        }
        let is_waiting = self.room.as_mut().is_some_and(|room| Pin::new(room).poll(cx).is_pending());
        let mut step = Step::Idle;
        if !is_waiting {
            self.room = None;
            let settled = self.consumer.settle(out);
            let settled = self.note(settled).unwrap_or_default();
            for rollback in settled.rollbacks {
                self.rollbacks.order(rollback).map_err(|_| NO_THREAD)?;
            }
            if settled.is_full {
                // `None`: there is room by now.
                self.room = self.bucket.replicas().replica_room();
            }
            // The next step waits for the room.
            if settled.has_more || settled.is_full {
                step = Step::More;
            }
        }
        self.closing.map_or(Ok(step), Err)
    }

    /// What is due at `now`; answers when to look again.
    ///
    /// # Errors
    ///
    /// The producer is silent.
    pub fn tick(&mut self, now: Duration, out: &mut Output) -> Result<Duration, &'static str> {
        if self.room.is_some() {
            // Nothing is read meanwhile: what shows that the producer lives waits in the socket, too.
            self.consumer.heard();
        }
        self.consumer.tick(now, out.bytes()).map_err(|_| "the producer is silent")
    }
}

#[cfg(test)]
mod tests {
    use base::VbState;
    use base::env::Env;
    use engine::{BucketConfig, completion};

    use super::*;

    #[test]
    fn who_waits_for_memory_takes_no_one_for_silent() {
        let (env, _handles) = Env::sim(1);
        let config = BucketConfig { vbuckets: 1, ..BucketConfig::new("default", "/data".into()) };
        let bucket = Bucket::open(config, env, Arc::new(kvstore::Memory::default()));
        let bucket = Arc::new(bucket.expect("an empty bucket opens"));
        bucket.roles().set_vbucket_state(VbId(0), VbState::Replica, None).expect("there is one");
        let features = Features { collections: true, snappy: true, json: true };
        let mut inbound = Inbound::open(&bucket, "fed".to_owned(), None, features, &Arc::default(), || {});
        inbound.add_stream(VbId(0), 1, StreamFlags(0), &mut Vec::new()).expect("it is a replica");
        let (_comes, room) = completion();
        inbound.room = Some(room);
        let mut out = Output::default();
        let now = bucket.env().clock.monotonic();
        let later = |periods: u32| now + Duration::from_secs(u64::from(NOOP_INTERVAL_S)) * 3 * periods;
        assert!(inbound.tick(later(1), &mut out).is_ok(), "nothing is read meanwhile");
        inbound.room = None;
        assert!(inbound.tick(later(1) + Duration::from_secs(1), &mut out).is_ok());
        assert!(inbound.tick(later(2), &mut out).is_err());
    }
}
