//! Tenures: which process wrote which revisions of the state. A state descends from what a node has seen if the tenure of
//! what was seen is in the state's table and had not ended there before that revision.
//!
//! A coordination store that is restored from a backup goes back without a trace if its leader has seen nothing beyond the
//! backup. Revisions are then counted a second time, and one revision means two states. A revision together with the
//! tenure that wrote it means one state, as an entry of a failover table together with a seqno does for a vBucket.
//!
//! # Invariants
//!
//! - A process writes under tenures of its own alone, and no revision twice under one of them: [`Writer`] begins another
//!   one if the state that is to be replaced was written by another process, or is older than what it has written itself.
//! - Tenures are ascending by their first revisions, and at most [`MAX_TENURES`] are remembered: the last ones.

use base::planted::{self, Bug};
use serde::{Deserialize, Serialize};

use crate::state::State;

/// How many tenures a state remembers: the last ones.
pub const MAX_TENURES: usize = 64;

/// The revisions that one process wrote, one after the other: from the first one to that before the next tenure's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Tenure {
    /// Random, never 0, at most 53 bits.
    pub id: u64,
    /// The first revision that was written in it.
    pub first: u64,
}

impl From<(u64, u64)> for Tenure {
    fn from((id, first): (u64, u64)) -> Tenure {
        Tenure { id, first }
    }
}

impl From<Tenure> for (u64, u64) {
    fn from(tenure: Tenure) -> (u64, u64) {
        (tenure.id, tenure.first)
    }
}

/// Which state it is among all states of one branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The tenure that wrote it; 0 if a version wrote it that has no tenures.
    pub tenure: u64,
    /// Its revision.
    pub revision: u64,
}

/// What a state is to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is the other one, or was made from it.
    Descends,
    /// It was made without the other one, or is older.
    Diverged,
    /// The other one is older than all that the state's table remembers.
    Forgotten,
    /// A version without tenures wrote one of them.
    Unknown,
}

/// A state's place, with the places of the states that it was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// By their first revisions; empty if a version wrote the state that has no tenures.
    pub tenures: Vec<Tenure>,
    /// The state's revision.
    pub revision: u64,
}

impl Line {
    /// That of a state.
    pub fn of(state: &State) -> Line {
        Line { tenures: state.tenures.clone(), revision: state.revision }
    }

    /// The state's place.
    pub fn place(&self) -> Place {
        place(&self.tenures, self.revision)
    }

    /// What the state is to another one of the same branch.
    pub fn relation_to(&self, other: Place) -> Relation {
        relation(&self.tenures, self.revision, other)
    }
}

impl State {
    /// Which state it is.
    pub fn place(&self) -> Place {
        place(&self.tenures, self.revision)
    }

    /// What it is to another state of the same branch.
    pub fn relation_to(&self, other: Place) -> Relation {
        relation(&self.tenures, self.revision, other)
    }
}

fn place(tenures: &[Tenure], revision: u64) -> Place {
    Place { tenure: tenures.last().map_or(0, |tenure| tenure.id), revision }
}

fn relation(tenures: &[Tenure], revision: u64, other: Place) -> Relation {
    let is_compared = !planted::is(Bug::TenuresCompared) && !planted::is(Bug::BranchesCompared);
    let Some(oldest) = tenures.first().filter(|_| other.tenure != 0 && is_compared) else {
        return Relation::Unknown;
    };
    match tenures.iter().position(|tenure| tenure.id == other.tenure) {
        Some(at) => {
            let last = tenures.get(at + 1).map_or(revision, |next| next.first - 1);
            if other.revision <= last { Relation::Descends } else { Relation::Diverged }
        }
        None if other.revision < oldest.first => Relation::Forgotten,
        None => Relation::Diverged,
    }
}

/// What one process remembers of the states that it has written.
#[derive(Debug, Default)]
pub struct Writer {
    tenure: u64,
    /// The last revision that it has tried to write in its tenure, whether that was done or not.
    last: u64,
}

impl Writer {
    /// Notes in `next` that this process writes it in the place of a state of revision `before`, 0 if there is none.
    /// `random` names the tenure, if another one begins. To be called for each attempt.
    pub fn sign(&mut self, next: &mut State, before: u64, random: u64) {
        let is_own = next.tenures.last().is_some_and(|tenure| tenure.id == self.tenure);
        if !is_own || before < self.last {
            // JSON of other programs may lose what is above 53 bits.
            self.tenure = (random >> 11).max(1);
            next.tenures.push(Tenure { id: self.tenure, first: next.revision });
            let forgotten = next.tenures.len().saturating_sub(MAX_TENURES);
            next.tenures.drain(..forgotten);
        }
        self.last = next.revision;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(writer: &mut Writer, before: &State, random: u64) -> State {
        let mut next = before.next();
        writer.sign(&mut next, before.revision, random << 11);
        next
    }

    fn both(one: &State, other: &State) -> (Relation, Relation) {
        (one.relation_to(other.place()), other.relation_to(one.place()))
    }

    #[test]
    fn a_state_descends_from_what_it_was_made_from() {
        let (mut one, mut two) = (Writer::default(), Writer::default());
        let first = after(&mut one, &State::empty(), 1);
        let second = after(&mut one, &first, 2);
        assert_eq!(second.tenures, first.tenures, "one process, one tenure");
        let third = after(&mut two, &second, 3);
        let fourth = after(&mut one, &third, 4);
        assert_eq!(fourth.tenures.len(), 3, "another process has written meanwhile");
        let all = [first, second, third, fourth];
        for (at, state) in all.iter().enumerate() {
            for (older, other) in all.iter().enumerate() {
                let expected = if older <= at { Relation::Descends } else { Relation::Diverged };
                assert_eq!(state.relation_to(other.place()), expected, "{at} and {older}");
                assert_eq!(Line::of(state).relation_to(Line::of(other).place()), expected);
            }
        }
    }

    /// The store is restored from a backup beyond which the next writer has seen nothing.
    #[test]
    fn revisions_that_are_counted_twice_are_two_states() {
        let (mut one, mut two) = (Writer::default(), Writer::default());
        let backup = after(&mut one, &State::empty(), 1);
        let lost = after(&mut two, &backup, 2);
        let again = after(&mut one, &backup, 3);
        assert_eq!(lost.revision, again.revision);
        assert_eq!(both(&lost, &again), (Relation::Diverged, Relation::Diverged));
        // However far either of them goes.
        let far = (0..9).fold(again, |state, _| after(&mut one, &state, 4));
        assert_eq!(both(&lost, &far), (Relation::Diverged, Relation::Diverged));
        assert_eq!(both(&backup, &far), (Relation::Diverged, Relation::Descends));
    }

    #[test]
    fn a_process_writes_no_revision_twice_in_one_tenure() {
        let mut one = Writer::default();
        let backup = after(&mut one, &State::empty(), 1);
        // Whether this was done is not known to the process.
        let tried = after(&mut one, &backup, 2);
        let again = after(&mut one, &backup, 3);
        assert_eq!(both(&tried, &again), (Relation::Diverged, Relation::Diverged));
        // It was, and the process goes on from there.
        let next = after(&mut one, &tried, 4);
        assert_eq!(both(&tried, &next), (Relation::Diverged, Relation::Descends));
        assert_eq!(both(&again, &next), (Relation::Diverged, Relation::Diverged));
    }

    #[test]
    fn the_last_tenures_are_remembered() {
        let first = after(&mut Writer::default(), &State::empty(), 1);
        let many = (0..100).fold(first.clone(), |state, at| after(&mut Writer::default(), &state, 2 + at));
        assert_eq!(many.tenures.len(), MAX_TENURES);
        assert_eq!(many.relation_to(first.place()), Relation::Forgotten);
        assert!(many.check().is_ok());
        let mut without = many.clone();
        without.tenures.clear();
        assert_eq!(both(&many, &without), (Relation::Unknown, Relation::Unknown));
    }

    #[test]
    fn a_table_is_as_compact_as_its_numbers() {
        let state = after(&mut Writer::default(), &State::empty(), 7);
        let json = serde_json::to_string(&state.tenures).expect("JSON");
        assert_eq!(json, "[[7,2]]");
        assert_eq!(serde_json::from_str::<Vec<Tenure>>(&json).expect("JSON"), state.tenures);
    }
}
