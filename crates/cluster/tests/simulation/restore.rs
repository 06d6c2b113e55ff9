//! The coordination store is lost, and comes back with an older state; later the newest one is found and put back. In
//! some runs a node that has seen most is cut off from the store meanwhile.
//!
//! Runs of some seeds have this beside their other faults. What it does is drawn from numbers of its own, so that all
//! other runs are as they were before.

use base::env::sim::SplitMix64;
use cluster::{State, Writer};

use crate::world::{Event, STORE, World};

const OUTAGE_US: u64 = 1_000_000;
/// In this time no lease runs out: only the node that is cut off loses its own.
const SHORT_OUTAGE_US: u64 = 100_000;
/// How long a state is there that nodes refuse before an administrator adopts it: until all fences have ended.
const REFUSED_FOR_US: u64 = 1_900_000;
/// How long the older state is followed while a node is cut off.
const CUT_OFF_FOR_US: u64 = 2_500_000;
/// How long the older state is followed.
const OLDER_FOR_US: u64 = 600_000;

/// What happens to the store in a run.
pub struct Restore {
    /// Of each 16 seeds one restores a backup that was taken meanwhile, which no node that has seen more may follow, one
    /// the state from before the bucket was made, which an administrator adopts: what the nodes have must stay, and one a
    /// backup that an administrator adopts while a node that has seen more is cut off from the store.
    is_adopted: bool,
    /// Whether a node is cut off from the store while the backup is adopted.
    cuts_off: bool,
    /// Who is cut off: it alone has seen the last revisions before the store was lost.
    cut_off: Option<usize>,
    backup: State,
    /// What was in the store before.
    newest: Option<State>,
    /// Of an administrator's program.
    writer: Writer,
    rng: SplitMix64,
}

/// A step of it.
#[derive(Clone, Copy, Debug)]
pub enum Phase {
    Backup,
    Lost,
    Older,
    Adopted,
    Healed,
    LostAgain,
    Newest,
    NewestAdopted,
    AdoptedAgain,
}

impl Restore {
    /// `first` is the state before the bucket was made.
    pub fn of(seed: u64, first: &State) -> Option<Restore> {
        let (is_adopted, cuts_off) = match seed % 16 {
            9 => (false, false),
            10 => (true, true),
            12 => (true, false),
            _ => return None,
        };
        let (backup, rng) = (first.clone(), SplitMix64::new(!seed));
        Some(Restore {
            is_adopted,
            cuts_off,
            cut_off: None,
            backup,
            newest: None,
            writer: Writer::default(),
            rng,
        })
    }

    fn next(&mut self, state: &State) -> State {
        let (mut next, random) = (state.next(), self.rng.next_u64());
        self.writer.sign(&mut next, state.revision, random);
        next
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
                if restore.cuts_off {
                    // Nothing is given up but revisions: what nodes have is as the backup says.
                    restore.backup = self.newest.clone();
                    restore.cut_off = self.run_ahead(&mut restore);
                }
                self.is_store_away = true;
                Some((if restore.cuts_off { SHORT_OUTAGE_US } else { OUTAGE_US }, Phase::Older))
            }
            Phase::Older => {
                self.tally.restores += 1;
                restore.newest = Some(self.put_state(restore.backup.clone()));
                self.is_store_away = false;
                let next = if restore.is_adopted { Phase::Adopted } else { Phase::LostAgain };
                Some((REFUSED_FOR_US, next))
            }
            Phase::Adopted => {
                self.adopt(restore.cut_off, &mut restore);
                Some(match restore.cut_off {
                    Some(_) => (CUT_OFF_FOR_US, Phase::Healed),
                    None => (OLDER_FOR_US, Phase::LostAgain),
                })
            }
            Phase::Healed => {
                let is_its = |(from, to): &(usize, usize)| [*from, *to].contains(&STORE);
                let cut_off = restore.cut_off.take();
                self.cut
                    .retain(|cut| !is_its(cut) || !cut_off.is_some_and(|at| [cut.0, cut.1].contains(&at)));
                Some((REFUSED_FOR_US, Phase::AdoptedAgain))
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
                self.adopt(None, &mut restore);
                Some((REFUSED_FOR_US, Phase::AdoptedAgain))
            }
            // What some node read before may have come late.
            Phase::AdoptedAgain => {
                self.adopt(None, &mut restore);
                None
            }
        };
        self.restore = Some(restore);
        if let Some((delay, phase)) = next {
            self.push(delay, 0, 0, Event::Restore(phase));
        }
    }

    /// An administrator has each node that refuses what the store holds adopt it, except one that is cut off.
    fn adopt(&mut self, cut_off: Option<usize>, restore: &mut Restore) {
        let mut adopted = self.newest.clone();
        for at in (0..self.nodes.len()).filter(|at| cut_off != Some(*at)) {
            let seen = &self.nodes[at].seen;
            if seen.check(&adopted).is_err() {
                adopted = seen.adopt(&adopted, restore.rng.next_u64());
            }
        }
        if adopted.revision > self.newest.revision {
            restore.writer.sign(&mut adopted, self.newest.revision, restore.rng.next_u64());
            self.put_state(adopted);
        }
    }

    /// One node alone reads the last revisions before it is cut off from the store.
    fn run_ahead(&mut self, restore: &mut Restore) -> Option<usize> {
        let first = restore.rng.below(self.nodes.len() as u64) as usize;
        let all = (first..self.nodes.len()).chain(0..first);
        let awake: Vec<usize> = all.filter(|at| self.nodes[*at].is_awake(self.now_us())).collect();
        let at = *awake.first()?;
        let next = restore.next(&self.newest);
        self.put_state(next);
        awake.into_iter().for_each(|at| self.look_now(at));
        let many = restore.rng.between(4, 40);
        let ahead = (0..many).fold(self.newest.clone(), |state, _| restore.next(&state));
        self.put_state(ahead);
        self.look_now(at);
        self.cut.extend([(at, STORE), (STORE, at)]);
        Some(at)
    }
}
