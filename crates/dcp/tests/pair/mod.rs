//! Two buckets in a simulated world, and between them a producer and a consumer: what a server does around both, in a
//! few lines, message by message.

use std::collections::VecDeque;
use std::sync::Arc;

use base::env::{Env, SimHandles};
use base::{DocKey, Seqno, VbId, VbState};
use dcp::{Consumer, ConsumerConfig, Disconnect};
use engine::Bucket;
use protocol::{HEADER_BYTES, Limits, Parsed, parse};

use crate::buckets;
use crate::served::{FEATURES, Served};

pub const VBUCKETS: u16 = 2;

/// One end of the pair.
pub struct Node {
    pub env: Env,
    handles: SimHandles,
    pub bucket: Arc<Bucket>,
}

impl Node {
    pub fn new(seed: u64) -> Node {
        let (env, handles, bucket) = buckets::simulated(seed, VBUCKETS, false);
        Node { env, handles, bucket }
    }

    pub fn set_roles(&self, role: VbState) {
        for vb in 0..VBUCKETS {
            self.bucket.roles().set_vbucket_state(VbId(vb), role, None).expect("there is one");
        }
    }

    pub fn set(&self, vb: VbId, key: &str, value: &str) -> Result<Seqno, engine::Refusal> {
        let request = buckets::set(DocKey::new(key.as_bytes()), value.as_bytes());
        self.bucket.documents().store(vb, &request, self.bucket.now()).map(|stored| stored.seqno)
    }

    pub fn get(&self, vb: VbId, key: &str) -> Option<Vec<u8>> {
        let (now, key) = (self.bucket.now(), DocKey::new(key.as_bytes()));
        let found = self
            .bucket
            .documents()
            .get(vb, key, now)
            .or_else(|_| self.bucket.documents().get_replica(vb, key, now))
            .ok()?;
        Some(found.version.value().to_vec())
    }

    pub fn role(&self, vb: VbId) -> Option<VbState> {
        self.bucket.state_of(vb)
    }

    pub fn high(&self, vb: VbId) -> Seqno {
        self.bucket.streams().stream_state(vb).expect("there is one").3
    }

    pub fn advance(&self, by: std::time::Duration) {
        self.handles.clock.advance(by);
    }
}

pub fn config() -> ConsumerConfig {
    ConsumerConfig {
        name: "pair".to_owned(),
        consumer_name: Some("to".to_owned()),
        buffer_bytes: 1 << 20,
        noop_interval_s: 1,
        features: FEATURES,
        takes_files: false,
        change_streams: false,
    }
}

/// A connection: the producer, the consumer, and the messages between them that have not arrived.
pub struct Wire {
    pub consumer: Consumer,
    served: Served,
    pub to_producer: VecDeque<Vec<u8>>,
    pub to_consumer: VecDeque<Vec<u8>>,
}

/// Cuts bytes into messages; all of them are whole.
fn messages(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let body = rest.get(8..12)?;
        let len = HEADER_BYTES + u32::from_be_bytes(body.try_into().expect("four bytes")) as usize;
        let (message, behind) = rest.split_at(len);
        rest = behind;
        Some(message.to_vec())
    })
}

impl Wire {
    pub fn connect(from: &Node, to: &Node) -> Wire {
        let mut consumer = Consumer::new(Arc::clone(&to.bucket), config());
        let mut out = Vec::new();
        consumer.open(&mut out);
        Wire {
            consumer,
            served: Served::new(&from.bucket, "pair".to_owned()),
            to_producer: messages(&out).collect(),
            to_consumer: VecDeque::new(),
        }
    }

    /// What the consumer is told to do, and what it says then.
    pub fn tell(&mut self, what: impl FnOnce(&mut Consumer, &mut Vec<u8>)) {
        let mut out = Vec::new();
        what(&mut self.consumer, &mut out);
        self.to_producer.extend(messages(&out));
    }

    /// Delivers one message to the consumer, which works on it; false if there was none.
    pub fn deliver_to_consumer(&mut self) -> Result<bool, Disconnect> {
        let Some(message) = self.to_consumer.pop_front() else { return Ok(false) };
        let mut out = Vec::new();
        let consumed = self.consumer.receive(&message, &mut out)?;
        assert_eq!(consumed, message.len());
        let settled = self.consumer.settle(&mut out)?;
        assert!(!settled.is_full && settled.rollbacks.is_empty(), "{settled:?}");
        self.to_producer.extend(messages(&out));
        Ok(true)
    }

    /// Delivers one message to the producer, and lets it send what it has; false if nothing happened.
    pub fn deliver_to_producer(&mut self) -> bool {
        let mut out: Vec<u8> = Vec::new();
        let message = self.to_producer.pop_front();
        if let Some(message) = &message {
            match parse(message, Limits::AUTHENTICATED) {
                Parsed::Request { request, .. } => {
                    self.served.on_request(&request, &mut (), &mut out).expect("a request that is known");
                }
                Parsed::Answer { answer, .. } => {
                    let producer = self.served.producer.as_mut().expect("it is open");
                    producer.answered(answer.opcode, answer.opaque, answer.status);
                }
                other => panic!("the consumer sent {other:?}"),
            }
        }
        if let Some(producer) = &mut self.served.producer {
            producer.step(&mut out, 1 << 20);
        }
        let any = message.is_some() || !out.is_empty();
        self.to_consumer.extend(messages(&out));
        any
    }

    /// Delivers messages until nothing is under way; how many.
    pub fn run(&mut self) -> Result<usize, Disconnect> {
        let mut count = 0;
        while self.deliver_to_consumer()? || self.deliver_to_producer() {
            count += 1;
        }
        Ok(count)
    }

    /// Delivers so many messages and no more; false if there were fewer.
    pub fn run_for(&mut self, most: usize) -> Result<bool, Disconnect> {
        for _ in 0..most {
            if !(self.deliver_to_consumer()? || self.deliver_to_producer()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
