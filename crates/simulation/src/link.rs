//! A connection between two nodes: a real producer, a real consumer, and two pipes of bytes between them.

use std::sync::Arc;
use std::time::Duration;

use base::Seqno;
use base::env::sim::SplitMix64;
use dcp::{Agreement, Consumer, ConsumerConfig, Features, Producer, StreamRequestRefusal, Tick};
use engine::Bucket;
use protocol::dcp::{OpenFlags, StreamRequest};
use protocol::{Limits, Parsed, Request, RequestParts, Response, Status, opcode, parse, write_request};

use crate::links::Ends;
use crate::target::name_of;

/// Bytes that a pipe holds.
const PIPE_BYTES: usize = 60_000;
/// Between two signs of life of the source, in seconds.
const NOOP_INTERVAL_S: u32 = 1;
const FEATURES: Features = Features { collections: true, snappy: true, json: true };

/// A connection.
pub struct Connection {
    /// The end that applies changes.
    pub consumer: Consumer,
    /// Whether the consumer has no room for what came.
    pub is_full: bool,
    source: Arc<Bucket>,
    target: Arc<Bucket>,
    name: String,
    producer: Option<Producer>,
    agreed: Option<Agreement>,
    /// Sent and on their way, and arrived but not whole yet.
    to_producer: Vec<u8>,
    at_producer: Vec<u8>,
    to_consumer: Vec<u8>,
    at_consumer: Vec<u8>,
}

/// Takes so many bytes from the front.
fn flow(from: &mut Vec<u8>, to: &mut Vec<u8>, most: usize) {
    let bytes = most.min(from.len());
    to.extend(from.drain(..bytes));
}

/// The connection is over: the producer does not answer, or was told what it cannot read.
#[derive(Debug)]
pub struct Over(pub &'static str);

impl Connection {
    /// Connects, and is let in.
    pub fn new(ends: &Ends<'_>, rng: &mut SplitMix64) -> Connection {
        let (from, to) = (ends.source.0, ends.target.0);
        let name = format!("replication:{from}->{to}");
        let config = ConsumerConfig {
            name: name.clone(),
            consumer_name: Some(name_of(to)),
            buffer_bytes: [20_000, 1 << 20][rng.below(2) as usize],
            noop_interval_s: NOOP_INTERVAL_S,
            features: FEATURES,
        };
        let mut consumer = Consumer::new(Arc::clone(ends.target.1), config);
        consumer.on_prepared(|| {});
        let mut to_producer = Vec::new();
        consumer.open(&mut to_producer);
        Connection {
            consumer,
            is_full: false,
            source: Arc::clone(ends.source.1),
            target: Arc::clone(ends.target.1),
            name,
            producer: None,
            agreed: None,
            to_producer,
            at_producer: Vec::new(),
            to_consumer: Vec::new(),
            at_consumer: Vec::new(),
        }
    }

    /// Whether this is the bucket that it sends changes of.
    pub fn is_of(&self, source: &Arc<Bucket>) -> bool {
        Arc::ptr_eq(&self.source, source)
    }

    /// The consumer's end: the consumer, what arrived, what it says.
    pub fn consumers_end(&mut self) -> (&mut Consumer, &mut Vec<u8>, &mut Vec<u8>) {
        (&mut self.consumer, &mut self.at_consumer, &mut self.to_producer)
    }

    /// The consumer's clock.
    pub fn now(&self) -> Duration {
        self.target.env().clock.monotonic()
    }

    /// Bytes arrive at the producer.
    pub fn carry_to_producer(&mut self, most: usize) {
        flow(&mut self.to_producer, &mut self.at_producer, most);
    }

    /// Bytes arrive at the consumer; none while it has no room.
    pub fn carry_to_consumer(&mut self, most: usize) {
        let most = if self.is_full { 0 } else { most };
        flow(&mut self.to_consumer, &mut self.at_consumer, most);
    }

    /// The producer's end works on what arrived, and sends.
    pub fn produce(&mut self, most: usize) -> Result<(), Over> {
        self.answer()?;
        let Some(producer) = &mut self.producer else { return Ok(()) };
        if self.to_consumer.len() >= PIPE_BYTES {
            return Ok(());
        }
        match producer.tick(self.source.env().clock.monotonic()) {
            Tick::Noop(opaque) => {
                let parts = RequestParts { opcode: opcode::DCP_NOOP, opaque, ..RequestParts::default() };
                // A request without a body always fits.
                let _ = write_request(&mut self.to_consumer, &parts);
            }
            Tick::Dead => return Err(Over("the consumer is silent")),
            Tick::Wait(_) | Tick::Never => {}
        }
        producer.step(&mut self.to_consumer, most);
        Ok(())
    }

    fn answer(&mut self) -> Result<(), Over> {
        let bytes = std::mem::take(&mut self.at_producer);
        let mut rest = &bytes[..];
        loop {
            match parse(rest, Limits::AUTHENTICATED) {
                Parsed::Request { request, total_len } => {
                    self.on_request(&request)?;
                    rest = &rest[total_len..];
                }
                Parsed::Answer { answer, total_len, .. } => {
                    if let Some(producer) = &mut self.producer {
                        producer.answered(answer.opcode, answer.opaque, answer.status);
                    }
                    rest = &rest[total_len..];
                }
                Parsed::Incomplete { .. } => break,
                Parsed::Bad(_) => return Err(Over("a bad frame")),
            }
        }
        self.at_producer = rest.to_vec();
        Ok(())
    }

    /// What a server's commands for DCP do.
    fn on_request(&mut self, request: &Request<'_>) -> Result<(), Over> {
        let (mut status, mut value) = (Status::Success, Vec::new());
        let mut end = Vec::new();
        match request.opcode {
            opcode::DCP_OPEN => {
                let flags = OpenFlags::decode(request.extras).ok_or(Over("open without flags"))?;
                let agreed = Agreement::open(flags, request.key, true);
                self.agreed = Some(agreed.map_err(|_| Over("flags that cannot be"))?);
            }
            opcode::DCP_CONTROL => match (&mut self.producer, &mut self.agreed) {
                (Some(producer), _) => status = producer.control(request.key, request.value),
                (None, Some(agreed)) => status = agreed.control(request.key, request.value),
                (None, None) => return Err(Over("control before open")),
            },
            opcode::DCP_BUFFER_ACK => {
                let bytes = request.extras.try_into().map_err(|_| Over("extras"))?;
                self.producer()?.acknowledge(u32::from_be_bytes(bytes));
                return Ok(());
            }
            opcode::DCP_SEQNO_ACKNOWLEDGED => {
                let seqno = request.extras.try_into().map_err(|_| Over("extras"))?;
                let prepared = Seqno(u64::from_be_bytes(seqno));
                let taken = self.producer()?.acknowledge_prepares(request.vbucket, prepared);
                return taken.map_err(|_| Over("an acknowledgement that cannot be"));
            }
            opcode::DCP_STREAM_REQ => {
                let asked = StreamRequest::decode(request.extras).ok_or(Over("extras"))?;
                let (vb, opaque) = (request.vbucket, request.opaque);
                match self.producer()?.request(vb, opaque, &asked, request.value) {
                    Ok(log) => value = log,
                    Err(StreamRequestRefusal::RollBack(to)) => {
                        (status, value) = (Status::Rollback, to.0.to_be_bytes().to_vec());
                    }
                    Err(
                        StreamRequestRefusal::Status(refused) | StreamRequestRefusal::Unknown(refused, _),
                    ) => {
                        status = refused;
                    }
                }
            }
            opcode::DCP_CLOSE_STREAM => {
                status = self.producer()?.close_stream(request.vbucket, None, &mut end);
            }
            _ => status = Status::NotSupported,
        }
        let (opcode, opaque) = (request.opcode, request.opaque);
        Response { opcode, opaque, status, value: &value, ..Response::default() }
            .write(&mut self.to_consumer);
        self.to_consumer.extend(end);
        Ok(())
    }

    /// The producer; made when it is needed first.
    fn producer(&mut self) -> Result<&mut Producer, Over> {
        let agreed = self.agreed.clone().ok_or(Over("nothing is open"))?;
        let (source, name) = (&self.source, &self.name);
        let make = || Producer::new(Arc::clone(source), name.clone(), agreed, FEATURES, || {});
        Ok(self.producer.get_or_insert_with(make))
    }
}
