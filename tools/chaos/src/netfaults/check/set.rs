//! Sets: documents with an array of unique elements, each added once and never removed.

use std::collections::{BTreeMap, BTreeSet};

use super::order::{self, Part, Placed};
use super::{Verdict, final_cas};
use crate::netfaults::history::{Class, Event};

/// Looks at the operations on one set.
pub(super) fn check(events: &[&Event], verdict: &mut Verdict) {
    let adds: BTreeMap<u64, &Event> =
        events.iter().filter(|event| !event.op.is_read()).map(|event| (event.value, *event)).collect();
    let known = events.iter().filter(|event| event.class == Class::Ok);
    let mut placed: Vec<Placed<'_>> = known
        .map(|event| Placed {
            version: event.cas,
            part: if event.op.is_read() { Part::Saw } else { Part::Made },
            event,
            ends: event.answered,
        })
        .collect();
    order::check(&mut placed, verdict);
    contents(&adds, &placed, verdict);
    if let Some(last) = final_cas(events) {
        let at_end = placed.iter().find(|one| one.version == last && one.event.op.is_read());
        let there: BTreeSet<u64> = at_end.into_iter().flat_map(|one| &one.event.read).copied().collect();
        let acknowledged = adds.values().filter(|add| add.class == Class::Ok);
        verdict.lost += acknowledged.filter(|add| !there.contains(&add.value)).count() as u64;
    }
}

/// What was read holds everything that was acknowledged until its version, nothing that was refused or came later, and
/// whatever else was there before. Operations come by version.
fn contents(adds: &BTreeMap<u64, &Event>, placed: &[Placed<'_>], verdict: &mut Verdict) {
    // Everything that must be there from here on.
    let mut there: BTreeSet<u64> = BTreeSet::new();
    for one in placed {
        if one.part == Part::Made {
            there.insert(one.event.value);
            continue;
        }
        let read: BTreeSet<u64> = one.event.read.iter().copied().collect();
        if read.len() != one.event.read.len() {
            verdict.wrong(format!("version {:x} has an element twice", one.version));
        }
        if let Some(missing) = there.difference(&read).next() {
            verdict.wrong(format!("version {:x} lacks {missing}, which was there", one.version));
        }
        for element in read.difference(&there) {
            let why = match adds.get(element) {
                None => "which nobody added",
                Some(add) if add.class == Class::No => "which was refused",
                Some(add) if add.class == Class::Ok => "which was added later",
                Some(add) if add.invoked > one.event.answered => "which was asked for later",
                Some(_) => continue,
            };
            verdict.wrong(format!("version {:x} has {element}, {why}", one.version));
        }
        there.extend(read);
    }
}
