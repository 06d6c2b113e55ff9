//! Copies of vBuckets as far as a cluster cares: a log of writes, a history, who has acknowledged how much.

use std::collections::BTreeMap;

use base::VbState;
use cluster::state::{Chain, majority, present};
use cluster::{NodeId, VbReport};

/// How far behind a copy is that gets what it lacks as one snapshot from disk.
const FAR_BEHIND: usize = 6;

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub id: u64,
    pub durable: bool,
}

/// A snapshot of which only a part has come. What was replaced later is not in it, so that the part does not stand for
/// what there was up to its last change.
#[derive(Clone, Copy, Debug)]
struct Inside {
    /// Its last seqno.
    end: usize,
    /// What has come last.
    at: usize,
    /// What of that is on disk.
    persisted: usize,
}

/// A copy of a vBucket.
#[derive(Clone, Debug)]
pub struct Copy {
    pub state: VbState,
    pub uuid: u64,
    pub log: Vec<Write>,
    /// How many writes a crash leaves.
    pub persisted: usize,
    inside: Option<Inside>,
    pub topology: Vec<Chain>,
    /// How much others have persisted, as this active copy was told.
    acks: BTreeMap<NodeId, usize>,
    committed: usize,
    pub source: Option<NodeId>,
    pub takes_over: bool,
}

impl Copy {
    pub fn new() -> Copy {
        Copy {
            state: VbState::Replica,
            uuid: 0,
            log: Vec::new(),
            persisted: 0,
            inside: None,
            topology: Vec::new(),
            acks: BTreeMap::new(),
            committed: 0,
            source: None,
            takes_over: false,
        }
    }

    pub fn activate(&mut self, uuid: u64) {
        self.state = VbState::Active;
        self.uuid = uuid;
        self.inside = None;
        self.acks.clear();
        self.committed = 0;
        self.source = None;
        self.takes_over = false;
    }

    /// Follows nobody any more.
    pub fn stop(&mut self, state: VbState) {
        self.state = state;
        self.source = None;
        self.takes_over = false;
    }

    /// A crash leaves what is on disk.
    pub fn crash(&mut self) {
        self.log.truncate(self.persisted);
        self.inside = None;
        self.acks.clear();
        self.committed = 0;
        self.source = None;
        self.takes_over = false;
    }

    pub fn report(&self) -> VbReport {
        let prepared = self.log[..self.persisted].iter().rposition(|write| write.durable);
        let (high, persisted) = match self.inside {
            Some(inside) => (inside.at, inside.persisted),
            None => (self.log.len(), self.persisted),
        };
        let of = VbReport {
            state: Some(self.state),
            high_seqno: high as u64,
            persisted: persisted as u64,
            high_prepared: prepared.map_or(0, |at| at as u64 + 1),
            uuid: self.uuid,
        };
        of.whole_up_to(self.log.len() as u64)
    }

    /// Follows `of` by some writes, after going back to where the histories part.
    pub fn follow(&mut self, of: &Copy, most: usize) {
        let common = self.log.iter().zip(&of.log).take_while(|(a, b)| a == b).count();
        if common < self.log.len() {
            self.inside = None;
        }
        self.log.truncate(common);
        self.persisted = self.persisted.min(common);
        self.uuid = of.uuid;
        let there = of.log.len();
        let inside = match self.inside.filter(|inside| inside.end <= there) {
            Some(inside) => Some(Inside { at: inside.at + most, ..inside }),
            None if there - common > FAR_BEHIND => {
                Some(Inside { end: there, at: common + most, persisted: self.persisted })
            }
            None => None,
        };
        self.inside = inside.filter(|inside| inside.at < inside.end);
        if self.inside.is_none() {
            let end = inside.map_or(there.min(common + most), |inside| inside.end);
            self.log.extend_from_slice(&of.log[common..end]);
        }
    }

    /// Some of what came gets to disk.
    pub fn flush(&mut self, most: usize) {
        self.persisted = self.log.len().min(self.persisted + most);
        if let Some(inside) = self.inside.as_mut().filter(|_| self.persisted == self.log.len()) {
            inside.persisted = inside.at.min(inside.persisted + most);
        }
    }

    /// Whether it has whatever `of` has.
    pub fn has_all(&self, of: &Copy) -> bool {
        self.inside.is_none() && self.log.len() == of.log.len()
    }

    pub fn acknowledged(&mut self, by: NodeId, persisted: usize) {
        self.acks.insert(by, persisted);
    }

    /// Commits what a majority of each chain has; what a client hears of then.
    pub fn commit(&mut self, me: NodeId) -> Vec<u64> {
        let mut told = Vec::new();
        if self.topology.is_empty() {
            return told;
        }
        while let Some(write) = self.log.get(self.committed) {
            let has = |id: NodeId| {
                let persisted =
                    if id == me { self.persisted } else { self.acks.get(&id).copied().unwrap_or(0) };
                persisted > self.committed
            };
            let is_safe = self
                .topology
                .iter()
                .all(|chain| present(chain).filter(|id| has(*id)).count() >= majority(chain));
            if write.durable && !is_safe {
                break;
            }
            if write.durable {
                told.push(write.id);
            }
            self.committed += 1;
        }
        told
    }
}
