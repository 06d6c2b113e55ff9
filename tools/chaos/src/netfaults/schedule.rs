//! Which faults come when, from a seed.

use std::time::Duration;

use harness::rng::Rng;

use super::fault::Fault;

/// Faults that come together, all to one node, so that a majority of every chain stays alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The node.
    pub victim: u8,
    /// What comes, one after the other.
    pub faults: Vec<Fault>,
    /// The time between one fault and the next.
    pub apart: Duration,
    /// How long all of them last.
    pub lasts: Duration,
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        write!(f, "node {}: {} for {:.1} s", self.victim, names.join(" + "), self.lasts.as_secs_f64())
    }
}

/// An endless list of rounds.
pub struct Schedule {
    rng: Rng,
    nodes: u8,
    kinds: Vec<Fault>,
    /// Kinds that come before any comes again.
    deck: Vec<Fault>,
}

/// Most faults are over before a node is failed over by itself, which takes a lease and a second; many are not.
const SHORTEST_MS: u64 = 300;
const LONGEST_MS: u64 = 11_000;
/// In so many of 100 rounds a second fault comes to the first one.
const COMBINED: u64 = 40;

impl Schedule {
    /// The list of a seed, over these kinds.
    pub fn new(seed: u64, nodes: u8, kinds: &[Fault]) -> Schedule {
        Schedule { rng: Rng::new(seed), nodes, kinds: kinds.to_vec(), deck: Vec::new() }
    }

    fn draw(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck.clone_from(&self.kinds);
        }
        let at = self.rng.below(self.deck.len() as u64) as usize;
        self.deck.swap_remove(at)
    }
}

impl Iterator for Schedule {
    type Item = Round;

    fn next(&mut self) -> Option<Round> {
        let first = self.draw();
        let mut faults = vec![first];
        let fitting: Vec<Fault> =
            self.kinds.iter().copied().filter(|other| first.goes_with(*other)).collect();
        if self.rng.chance(COMBINED) && !fitting.is_empty() {
            let second = fitting[self.rng.below(fitting.len() as u64) as usize];
            let at = self.rng.below(2) as usize;
            faults.insert(at, second);
        }
        let victim = 1 + self.rng.below(u64::from(self.nodes)) as u8;
        let apart = Duration::from_millis(self.rng.below(800));
        let lasts = Duration::from_millis(SHORTEST_MS + self.rng.below(LONGEST_MS - SHORTEST_MS));
        Some(Round { victim, faults, apart, lasts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides() {
        let rounds = |seed| Schedule::new(seed, 3, &Fault::ALL).take(50).collect::<Vec<_>>();
        assert_eq!(rounds(1), rounds(1));
        assert_ne!(rounds(1), rounds(2));
    }

    #[test]
    fn every_kind_comes_before_any_comes_first_again() {
        let rounds: Vec<Round> = Schedule::new(7, 3, &Fault::ALL).take(Fault::ALL.len() * 2).collect();
        for round in &rounds {
            assert!((1..=3).contains(&round.victim) && (1..=2).contains(&round.faults.len()));
        }
        for fault in Fault::ALL {
            assert!(rounds.iter().filter(|round| round.faults.contains(&fault)).count() >= 2, "{fault:?}");
        }
    }
}
