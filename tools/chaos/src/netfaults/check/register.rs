//! Registers: every value is written once, so that a value says which write it came from.

use std::collections::BTreeMap;

use super::order::{self, Part, Placed};
use super::{Verdict, final_cas};
use crate::netfaults::history::{CAS_MISMATCH, Class, Event, Op};

/// Looks at the operations on one register.
pub(super) fn check(events: &[&Event], verdict: &mut Verdict) {
    let mut writes: BTreeMap<u64, &Event> = BTreeMap::new();
    for event in events.iter().filter(|event| !event.op.is_read()) {
        if writes.insert(event.value, event).is_some() {
            verdict.wrong(format!("{} was written twice: the workload is wrong", event.value));
        }
    }
    let made = versions(events, &writes, verdict);
    let mut placed = Vec::with_capacity(events.len());
    for event in events.iter().filter(|event| event.class == Class::Ok && event.op.is_read()) {
        placed.push(Placed { version: event.cas, part: Part::Saw, event, ends: event.answered });
    }
    for (version, event) in &made {
        let ends = if event.class == Class::Ok { event.answered } else { u64::MAX };
        placed.push(Placed { version: *version, part: Part::Made, event, ends });
    }
    mismatches(events, &made, &mut placed, verdict);
    order::check(&mut placed, verdict);
    replaces(&made, verdict);
    if let Some(last) = final_cas(events) {
        let lost = made.range(last + 1..).filter(|(_, event)| event.class == Class::Ok).count();
        verdict.lost += lost as u64;
    }
}

/// Which write made which version: as acknowledged, or as read.
fn versions<'a>(
    events: &[&Event],
    writes: &BTreeMap<u64, &'a Event>,
    verdict: &mut Verdict,
) -> BTreeMap<u64, &'a Event> {
    let mut made: BTreeMap<u64, &'a Event> = BTreeMap::new();
    let mut cas_of: BTreeMap<u64, u64> = BTreeMap::new();
    let mut note = |write: &'a Event, cas: u64, verdict: &mut Verdict| {
        if let Some(before) = cas_of.insert(write.value, cas).filter(|before| *before != cas) {
            verdict.wrong(format!("{} was there as version {before:x} and as {cas:x}", write.value));
        }
        if let Some(other) = made.insert(cas, write).filter(|other| other.value != write.value) {
            verdict.wrong(format!("version {cas:x} is {} and {}", other.value, write.value));
        }
    };
    for write in writes.values().filter(|write| write.class == Class::Ok) {
        note(write, write.cas, verdict);
    }
    for read in events.iter().filter(|event| event.class == Class::Ok && event.op.is_read()) {
        let Some(value) = read.read.first() else { continue };
        match writes.get(value) {
            None => verdict.wrong(format!("{value} was read, which nobody wrote")),
            Some(write) => {
                if write.class == Class::No {
                    verdict.wrong(format!("{value} was read, whose write was refused: {}", write.error));
                }
                note(write, read.cas, verdict);
            }
        }
    }
    made
}

/// A replace comes right behind the version that it expects.
fn replaces(made: &BTreeMap<u64, &Event>, verdict: &mut Verdict) {
    let mut before = 0;
    for (version, event) in made {
        if event.op == Op::Replace && event.expected != before {
            verdict.wrong(format!(
                "version {version:x} replaced version {:x}, but stands behind {before:x}",
                event.expected
            ));
        }
        before = *version;
    }
}

/// A replace that met another CAS came after the end of the version that it expected.
fn mismatches<'a>(
    events: &[&'a Event],
    made: &BTreeMap<u64, &'a Event>,
    placed: &mut Vec<Placed<'a>>,
    verdict: &mut Verdict,
) {
    let seen: std::collections::BTreeSet<u64> = made.values().map(|event| event.value).collect();
    // The first that was asked of those writes that may have ended any version at any time.
    let unseen = events
        .iter()
        .filter(|event| !event.op.is_read() && event.class == Class::Maybe && !seen.contains(&event.value));
    let unseen = unseen.map(|event| event.invoked).min().unwrap_or(u64::MAX);
    // The same of all writes from a version on.
    let mut later = BTreeMap::new();
    let mut first = u64::MAX;
    for (version, event) in made.iter().rev() {
        first = first.min(event.invoked);
        later.insert(*version, first);
    }
    for event in events.iter().filter(|event| event.class == Class::No && event.error == CAS_MISMATCH) {
        placed.push(Placed { version: event.expected, part: Part::SawItGone, event, ends: event.answered });
        let next = later.range(event.expected + 1..).next().map_or(u64::MAX, |(_, first)| *first);
        if event.answered < next.min(unseen) {
            verdict.wrong(format!(
                "client {} was told that version {:x} is over, but nobody had written yet",
                event.process, event.expected
            ));
        }
    }
}
