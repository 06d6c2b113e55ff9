//! Copies of vBuckets as far as a cluster cares: a log of writes, a history, who has acknowledged how much.

use std::collections::BTreeMap;

use base::VbState;
use cluster::state::{Chain, majority, present};
use cluster::{NodeId, VbReport};

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub id: u64,
    pub durable: bool,
}

/// A copy of a vBucket.
#[derive(Clone, Debug)]
pub struct Copy {
    pub state: VbState,
    pub uuid: u64,
    pub log: Vec<Write>,
    /// How many writes a crash leaves.
    pub persisted: usize,
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
        self.acks.clear();
        self.committed = 0;
        self.source = None;
        self.takes_over = false;
    }

    pub fn stop(&mut self, state: VbState) {
        if self.state != state {
            self.state = state;
        }
        self.source = None;
        self.takes_over = false;
    }

    /// A crash leaves what is on disk.
    pub fn crash(&mut self) {
        self.log.truncate(self.persisted);
        self.acks.clear();
        self.committed = 0;
        self.source = None;
        self.takes_over = false;
    }

    pub fn report(&self) -> VbReport {
        let prepared = self.log[..self.persisted].iter().rposition(|write| write.durable);
        VbReport {
            state: Some(self.state),
            high_seqno: self.log.len() as u64,
            persisted: self.persisted as u64,
            high_prepared: prepared.map_or(0, |at| at as u64 + 1),
            uuid: self.uuid,
        }
    }

    /// Follows `of` by some writes, after going back to where the histories part.
    pub fn follow(&mut self, of: &Copy, most: usize) {
        let common = self.log.iter().zip(&of.log).take_while(|(a, b)| a == b).count();
        self.log.truncate(common);
        self.persisted = self.persisted.min(common);
        self.uuid = of.uuid;
        let end = of.log.len().min(common + most);
        self.log.extend_from_slice(&of.log[common..end]);
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
