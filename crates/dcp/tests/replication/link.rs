//! A connection between two nodes: a producer, a consumer, and two pipes of bytes that hold little and can be cut at any
//! byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Seqno, VbId};
use dcp::{Consumer, ConsumerConfig, Disconnect, Mode, RollBack, Stage, Tick};
use engine::Bucket;
use protocol::dcp::{FailoverLog, Message};
use protocol::{Limits, Parsed, RequestParts, opcode, parse, write_request};

use crate::dice::{Dice, show};
use crate::mistakes::{Mistake, Tamper, Tampered};
use crate::served::{Asked, FEATURES, Served};

/// Bytes that a pipe holds.
const PIPE_BYTES: usize = 30_000;

/// What a step came to.
#[derive(Default)]
pub struct Stepped {
    pub asked: Vec<Asked>,
    pub messages: u64,
    pub is_full: bool,
}

pub struct Link {
    pub from: usize,
    pub to: usize,
    pub consumer: Consumer,
    source: Arc<Bucket>,
    target: Arc<Bucket>,
    served: Served,
    /// Sent and on their way, and arrived but not whole yet.
    to_producer: Vec<u8>,
    at_producer: Vec<u8>,
    to_consumer: Vec<u8>,
    at_consumer: Vec<u8>,
    pub wanted: BTreeMap<VbId, Mode>,
    pub rollbacks: Vec<RollBack>,
    is_full: bool,
    tamper: Tamper,
}

/// Takes so many bytes from the front.
fn flow(from: &mut Vec<u8>, to: &mut Vec<u8>, most: usize) {
    let bytes = most.min(from.len());
    to.extend(from.drain(..bytes));
}

impl Link {
    pub fn new(
        (from, source): (usize, &Arc<Bucket>),
        (to, target): (usize, &Arc<Bucket>),
        mistake: Mistake,
        dice: &mut Dice,
    ) -> Link {
        let config = ConsumerConfig {
            name: format!("{from}-{to}"),
            consumer_name: None,
            buffer_bytes: [1_000, 20_000, 1 << 20][dice.below(3) as usize],
            noop_interval_s: 10,
            features: FEATURES,
            takes_files: false,
            change_streams: false,
        };
        let mut consumer = Consumer::new(Arc::clone(target), config);
        let mut to_producer = Vec::new();
        consumer.open(&mut to_producer);
        Link {
            from,
            to,
            consumer,
            source: Arc::clone(source),
            target: Arc::clone(target),
            served: Served::new(source, format!("{from}-{to}")),
            to_producer,
            at_producer: Vec::new(),
            to_consumer: Vec::new(),
            at_consumer: Vec::new(),
            wanted: BTreeMap::new(),
            rollbacks: Vec::new(),
            is_full: false,
            tamper: Tamper::new(mistake),
        }
    }

    pub fn want(&mut self, vb: VbId, mode: Mode) {
        self.wanted.insert(vb, mode);
        self.rollbacks.retain(|rollback| rollback.vb != vb);
        self.consumer.want(vb, mode, &mut self.to_producer);
    }

    pub fn drop_vb(&mut self, vb: VbId) {
        if self.wanted.remove(&vb).is_some() {
            self.rollbacks.retain(|rollback| rollback.vb != vb);
            self.consumer.drop(vb, &mut self.to_producer);
        }
    }

    /// Does a rollback that was asked for; where the vBucket stands then.
    pub fn roll_back(&mut self, rollback: RollBack) -> Option<Seqno> {
        let RollBack { vb, to } = rollback;
        if self.tamper.mistake == Mistake::NoRollback {
            self.tamper.pretends.insert(vb);
            self.consumer.rolled_back(vb, Ok(to), &mut self.to_producer);
            return None;
        }
        let outcome = match self.target.roles().rollback(vb, to) {
            Ok(Ok(seqno)) => Ok(seqno),
            Ok(Err(_)) => Err("the disk"),
            Err(_) => Err("the role"),
        };
        self.consumer.rolled_back(vb, outcome, &mut self.to_producer);
        outcome.ok()
    }

    /// Whether every vBucket streams.
    pub fn is_streaming(&self) -> bool {
        self.consumer.progress().all(|progress| progress.stage == Stage::Streaming)
    }

    /// Moves some bytes each way and has both ends work on what arrived.
    pub fn step(&mut self, dice: &mut Dice, most: u64) -> Result<Stepped, Disconnect> {
        let mut stepped = Stepped::default();
        let now = self.target.env().clock.monotonic();
        let bytes = dice.below(most) as usize;
        flow(&mut self.to_producer, &mut self.at_producer, bytes);
        self.work_at_producer(&mut stepped)?;
        self.send(dice.below(most) as usize, now, &mut stepped)?;
        // Nothing is read while there is no room for what was.
        let bytes = if self.is_full { 0 } else { dice.below(most) as usize };
        flow(&mut self.to_consumer, &mut self.at_consumer, bytes);
        let consumed = self.consumer.receive(&self.at_consumer, &mut self.to_producer)?;
        self.at_consumer.drain(..consumed);
        // More may be read before what was read is applied.
        if !dice.one_in(3) {
            let settled = self.consumer.settle(&mut self.to_producer)?;
            stepped.is_full = settled.is_full;
            self.is_full = settled.is_full;
            self.rollbacks.extend(settled.rollbacks);
        }
        self.consumer.tick(now, &mut self.to_producer)?;
        Ok(stepped)
    }

    fn send(
        &mut self,
        most: usize,
        now: std::time::Duration,
        stepped: &mut Stepped,
    ) -> Result<(), Disconnect> {
        let Some(producer) = &mut self.served.producer else { return Ok(()) };
        if self.to_consumer.len() >= PIPE_BYTES {
            return Ok(());
        }
        let mut out = Vec::new();
        match producer.tick(now) {
            Tick::Noop(opaque) => {
                let parts = RequestParts { opcode: opcode::DCP_NOOP, opaque, ..RequestParts::default() };
                assert!(write_request(&mut out, &parts));
            }
            Tick::Dead => return Err(Disconnect::Silent),
            Tick::Wait(_) | Tick::Never => {}
        }
        producer.step(&mut out, most);
        let mut rest = &out[..];
        while let Parsed::Request { request, total_len } = parse(rest, Limits::AUTHENTICATED) {
            stepped.messages += 1;
            show(|| format!("{} to {}: {:?}", self.from, self.to, Message::read(&request)));
            self.tamper.message(&rest[..total_len], &request, &mut self.to_consumer);
            rest = &rest[total_len..];
        }
        assert!(rest.is_empty(), "a producer sends whole requests");
        Ok(())
    }

    fn work_at_producer(&mut self, stepped: &mut Stepped) -> Result<(), Disconnect> {
        let bytes = std::mem::take(&mut self.at_producer);
        let mut rest = &bytes[..];
        loop {
            match parse(rest, Limits::AUTHENTICATED) {
                Parsed::Request { request, total_len } => {
                    let (source, target) = (&*self.source, &self.target);
                    let mut between = Tampered { tamper: &mut self.tamper, source, target };
                    let asked = self.served.on_request(&request, &mut between, &mut self.to_consumer)?;
                    stepped.asked.extend(asked);
                    rest = &rest[total_len..];
                }
                Parsed::Answer { answer, total_len, .. } => {
                    let producer = self.served.producer.as_mut().expect("it is open");
                    producer.answered(answer.opcode, answer.opaque, answer.status);
                    rest = &rest[total_len..];
                }
                Parsed::Incomplete { .. } => break,
                Parsed::Bad(error) => return Err(Disconnect::Frame(error)),
            }
        }
        self.at_producer = rest.to_vec();
        Ok(())
    }
}

/// A failover log as bytes.
pub fn encode_log(entries: &[vbucket::FailoverEntry]) -> Vec<u8> {
    FailoverLog::encode(entries.iter().map(|entry| (entry.uuid, entry.seqno)))
}
