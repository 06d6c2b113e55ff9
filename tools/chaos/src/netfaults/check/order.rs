//! Versions in the order of their CAS against the order in which operations were asked and answered.
//!
//! A history is linearizable if its operations can be put into one order that respects both. With a known order of
//! versions that fails only if some operation was answered before another one was asked that belongs to an earlier
//! version: the two orders contradict each other in a pair, or not at all, as one ranks all operations and the other one
//! is an order of intervals.

use super::Verdict;
use crate::netfaults::history::Event;

/// What an operation was to the version that it saw or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// It made it.
    Made,
    /// It saw it.
    Saw,
    /// It saw that this version was over.
    SawItGone,
}

/// An operation and its place among the versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    /// The version's CAS; 0 before the first one.
    pub(super) version: u64,
    pub(super) part: Part,
    pub(super) event: &'a Event,
    /// When it was over at the latest: never, if nobody knows how it ended.
    pub(super) ends: u64,
}

/// Sorts operations by version and reports pairs that contradict each other.
pub(super) fn check(placed: &mut [Placed<'_>], verdict: &mut Verdict) {
    placed.sort_by_key(|one| (one.version, one.part, one.event.invoked));
    // Who was asked last of all that belong to earlier places.
    let mut latest: Option<&Placed<'_>> = None;
    let mut at = 0;
    while at < placed.len() {
        let place = |one: &Placed<'_>| (one.version, one.part);
        let len = placed[at..].iter().take_while(|one| place(one) == place(&placed[at])).count();
        let group = &placed[at..at + len];
        for one in group {
            if let Some(earlier) = latest.filter(|earlier| one.ends < earlier.event.invoked) {
                verdict.wrong(contradiction(earlier, one));
            }
        }
        // Two writes cannot have made one version.
        if group.len() > 1 && group[0].part == Part::Made && group[0].version != 0 {
            verdict.wrong(format!("two writes made version {:x}", group[0].version));
        }
        // That a version was over says nothing about when the next ones were.
        let counts = |one: &&Placed<'_>| one.part != Part::SawItGone;
        let newest = group.iter().filter(counts).max_by_key(|one| one.event.invoked);
        if newest.map(|one| one.event.invoked) > latest.map(|one| one.event.invoked) {
            latest = newest;
        }
        at += len;
    }
}

fn contradiction(earlier: &Placed<'_>, one: &Placed<'_>) -> String {
    format!(
        "client {} ({}) was answered at {} ns with version {:x}, but client {} asked at {} ns and {} version {:x}",
        one.event.process,
        one.event.op.name(),
        one.event.answered,
        one.version,
        earlier.event.process,
        earlier.event.invoked,
        if earlier.part == Part::Made { "made" } else { "saw" },
        earlier.version,
    )
}
