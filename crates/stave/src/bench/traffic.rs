//! Which requests are sent, and their bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use base::vbucket_map::vbucket_of;
use base::{CollectionId, VbId};
use protocol::extras::StoreExtras;
use protocol::frame_info::{Durability, FrameInfos};
use protocol::{RequestParts, opcode, write_request};

use super::distribution::KeyChoice;
use super::keys::{KeyBuffer, KeySpace};
use super::plan::Plan;
use super::resp;
use super::rng::Rng;
use super::values::ValuePool;
use super::wire::Protocol;

/// Operations that a worker claims at once, so that the shared counter is seldom touched.
const CLAIM: u64 = 64;

/// What is done with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is read.
    Get,
    /// It is written.
    Set,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What is done.
    pub kind: Kind,
    /// The key's number.
    pub key: u64,
}

/// What the operations of a phase are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Every key is written once; the number of an operation is its key. What was refused for a time is tried again.
    Load,
    /// Reads and writes are mixed as planned.
    Mix,
}

/// A worker's share of a phase: operations are numbered, and claimed from a counter that the workers share.
#[derive(Debug)]
pub struct Source<'a> {
    /// What they are for.
    pub purpose: Purpose,
    next: &'a AtomicU64,
    end: u64,
    claimed: std::ops::Range<u64>,
    again: Vec<u64>,
}

impl<'a> Source<'a> {
    /// Operations up to number `end`.
    pub fn new(purpose: Purpose, next: &'a AtomicU64, end: u64) -> Source<'a> {
        Source { purpose, next, end, claimed: 0..0, again: Vec::new() }
    }

    /// The next number; nothing when the phase is over.
    #[inline]
    fn next(&mut self) -> Option<u64> {
        if let Some(number) = self.claimed.next() {
            return Some(number);
        }
        if let Some(number) = self.again.pop() {
            return Some(number);
        }
        if self.next.load(Ordering::Relaxed) >= self.end {
            return None;
        }
        let start = self.next.fetch_add(CLAIM, Ordering::Relaxed).min(self.end);
        self.claimed = start..(start + CLAIM).min(self.end);
        self.claimed.next()
    }

    /// Gives a number back to be tried again.
    pub fn give_back(&mut self, number: u64) {
        self.again.push(number);
    }

    /// Whether there may be more.
    pub fn has_more(&self) -> bool {
        !self.claimed.is_empty() || !self.again.is_empty() || self.next.load(Ordering::Relaxed) < self.end
    }

    /// Claims nothing any more.
    pub fn stop(&mut self) {
        self.end = 0;
        self.claimed = 0..0;
        self.again.clear();
    }
}

/// Chooses operations and writes their requests. Each worker has its own.
#[derive(Debug)]
pub struct Traffic {
    protocol: Protocol,
    choice: KeyChoice,
    /// The number of the worker's first connection among those of all workers.
    first_connection: u64,
    keys: KeySpace,
    values: ValuePool,
    set_percent: u8,
    /// Framing extras of sets in a mix, encoded.
    durability: Vec<u8>,
    collections: bool,
    vbuckets: u16,
    rng: Rng,
    key: KeyBuffer,
    value: Vec<u8>,
}

impl Traffic {
    /// Of worker `number`, whose first connection is `first_connection`; `collections` if keys carry one, of `ids`.
    pub fn new(
        plan: &Plan,
        number: u64,
        first_connection: u64,
        collections: bool,
        ids: &[CollectionId],
        vbuckets: u16,
    ) -> Result<Traffic, String> {
        let mut durability = Vec::new();
        if let Some(level) = plan.durability {
            let durability_info = Some(Durability { level, timeout_ms: None });
            FrameInfos { durability: durability_info, ..FrameInfos::default() }.encode(&mut durability);
        }
        let keys = plan.key_space()?.over(ids);
        Ok(Traffic {
            protocol: plan.protocol,
            choice: KeyChoice::new(plan.distribution, plan.keys, plan.connections.into()),
            first_connection,
            key: keys.buffer(),
            keys,
            values: plan.value_pool()?,
            set_percent: plan.set_percent,
            durability,
            collections,
            vbuckets,
            rng: Rng::new(plan.seed, number),
            value: Vec::new(),
        })
    }

    /// The next operation of this worker's connection `at`; nothing when the phase is over.
    #[inline]
    pub fn next(&mut self, source: &mut Source<'_>, at: usize) -> Option<Operation> {
        let number = source.next()?;
        Some(match source.purpose {
            Purpose::Load => Operation { kind: Kind::Set, key: number },
            Purpose::Mix => {
                let is_set = self.rng.below(100) < u64::from(self.set_percent);
                let kind = if is_set { Kind::Set } else { Kind::Get };
                Operation { kind, key: self.choice.next(&mut self.rng, self.first_connection + at as u64) }
            }
        })
    }

    /// Where the key of an operation belongs.
    pub fn vbucket(&mut self, operation: Operation) -> VbId {
        self.keys.write(operation.key, &mut self.key);
        vbucket_of(self.key.plain(), self.vbuckets)
    }

    /// Appends the request for `operation`.
    #[inline]
    pub fn write(&mut self, operation: Operation, purpose: Purpose, opaque: u32, out: &mut Vec<u8>) {
        self.keys.write(operation.key, &mut self.key);
        if self.protocol == Protocol::Redis {
            return self.write_resp(operation.kind, out);
        }
        let key = if self.collections { self.key.prefixed() } else { self.key.plain() };
        let vbucket = vbucket_of(self.key.plain(), self.vbuckets);
        let extras = StoreExtras::default().encode();
        let mut parts = RequestParts { opcode: opcode::GET, vbucket, opaque, key, ..RequestParts::default() };
        if operation.kind == Kind::Set {
            parts.opcode = opcode::SET;
            parts.extras = &extras;
            parts.value = self.values.next(&mut self.rng, &mut self.value);
            if purpose == Purpose::Mix {
                parts.frame_infos = &self.durability;
            }
        }
        let fits = write_request(out, &parts);
        assert!(fits, "the sizes of keys and values were checked");
    }

    #[inline]
    fn write_resp(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::Get => resp::write_get(out, self.key.plain()),
            Kind::Set => {
                let value = self.values.next(&mut self.rng, &mut self.value);
                resp::write_set(out, self.key.plain(), value);
            }
        }
    }
}
