//! The coordination store is lost, and comes back with an older state; later the newest one is found and put back.
//!
//! Runs of some seeds have this beside their other faults. What it does is drawn from numbers of its own, so that all
//! other runs are as they were before.

use base::env::sim::SplitMix64;
use cluster::{Membership, State};

use crate::world::{Event, World};

const OUTAGE_US: u64 = 1_000_000;
/// How long a state is there that nodes refuse before an administrator adopts it: until all fences have ended.
const REFUSED_FOR_US: u64 = 1_900_000;
/// How long the older state is followed.
const OLDER_FOR_US: u64 = 600_000;

/// What happens to the store in a run.
pub struct Restore {
    /// Of each 16 seeds one restores a backup that was taken meanwhile, which no node that has seen more may follow, and
    /// one the state from before the bucket was made, which an administrator adopts: what the nodes have must stay.
    is_adopted: bool,
    backup: State,
    /// What was in the store before.
    newest: Option<State>,
    rng: SplitMix64,
}

/// A step of it.
#[derive(Clone, Copy, Debug)]
pub enum Phase {
    Backup,
    Lost,
    Older,
    Adopted,
    LostAgain,
    Newest,
    NewestAdopted,
    AdoptedAgain,
}

impl Restore {
    /// `first` is the state before the bucket was made.
    pub fn of(seed: u64, first: &State) -> Option<Restore> {
        let is_adopted = match seed % 16 {
            9 => false,
            12 => true,
            _ => return None,
        };
        Some(Restore { is_adopted, backup: first.clone(), newest: None, rng: SplitMix64::new(!seed) })
    }

    /// When it begins.
    pub fn begins_us(&mut self) -> u64 {
        self.rng.between(500_000, 1_700_000)
    }
}

impl World {
    pub fn restore(&mut self, phase: Phase) {
        let Some(mut restore) = self.restore.take() else { return };
        self.show(|| format!("the store: {phase:?}"));
        let next = match phase {
            Phase::Backup => {
                if !restore.is_adopted {
                    restore.backup = self.newest.clone();
                }
                Some((restore.rng.between(300_000, 1_000_000), Phase::Lost))
            }
            Phase::Lost => {
                self.is_store_away = true;
                Some((OUTAGE_US, Phase::Older))
            }
            Phase::Older => {
                self.tally.restores += 1;
                restore.newest = Some(self.put_state(restore.backup.clone()));
                self.is_store_away = false;
                let next = if restore.is_adopted { Phase::Adopted } else { Phase::LostAgain };
                Some((REFUSED_FOR_US, next))
            }
            Phase::Adopted => {
                let adopted = self.seen().adopt(&restore.backup);
                self.put_state(adopted);
                Some((OLDER_FOR_US, Phase::LostAgain))
            }
            Phase::LostAgain => {
                self.is_store_away = true;
                Some((OUTAGE_US, Phase::Newest))
            }
            Phase::Newest => {
                let newest = restore.newest.take().unwrap_or_else(|| self.newest.clone());
                self.put_state(newest);
                self.is_store_away = false;
                Some((REFUSED_FOR_US, Phase::NewestAdopted))
            }
            Phase::NewestAdopted => {
                let newest = self.seen().adopt(&self.newest);
                self.put_state(newest);
                Some((REFUSED_FOR_US, Phase::AdoptedAgain))
            }
            // What some node read before may have come late.
            Phase::AdoptedAgain if self.nodes.iter().any(|node| node.seen.check(&self.newest).is_err()) => {
                let newest = self.seen().adopt(&self.newest);
                self.put_state(newest);
                None
            }
            Phase::AdoptedAgain => None,
        };
        self.restore = Some(restore);
        if let Some((delay, phase)) = next {
            self.push(delay, 0, 0, Event::Restore(phase));
        }
    }

    /// The newest that any node has seen, and the store holds.
    fn seen(&self) -> Membership {
        let all = self.nodes.iter().map(|node| &node.seen);
        let held = Membership::of(&self.newest);
        let (mut epoch, mut revision) = (held.epoch, held.revision);
        for seen in all {
            (epoch, revision) = (epoch.max(seen.epoch), revision.max(seen.revision));
        }
        Membership { epoch, revision, ..held }
    }
}
