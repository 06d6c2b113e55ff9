//! Counters: each increment adds one, and says what came of it.

use std::collections::BTreeMap;

use super::order::{self, Part, Placed};
use super::{Verdict, final_cas};
use crate::netfaults::history::{Class, Event};

/// Looks at the operations on one counter.
pub(super) fn check(events: &[&Event], verdict: &mut Verdict) {
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
    values(events, &placed, verdict);
    if let Some(last) = final_cas(events) {
        let at_end = placed.iter().find(|one| one.version == last && one.event.op.is_read());
        let value = at_end.and_then(|one| one.event.read.first().copied()).unwrap_or(0);
        let acknowledged = events.iter().filter(|event| is_increment(event, Class::Ok)).count() as u64;
        verdict.lost += acknowledged.saturating_sub(value);
    }
}

fn is_increment(event: &Event, class: Class) -> bool {
    !event.op.is_read() && event.class == class
}

/// Each version's value lies above the one before, and between what was acknowledged until then and that with everything
/// that may have been done.
fn values(events: &[&Event], placed: &[Placed<'_>], verdict: &mut Verdict) {
    let mut doubtful: Vec<u64> =
        events.iter().filter(|event| is_increment(event, Class::Maybe)).map(|event| event.invoked).collect();
    doubtful.sort_unstable();
    // Of each version its value, who made it if that is known, and when somebody knew of it first.
    let mut versions: BTreeMap<u64, (u64, bool, u64)> = BTreeMap::new();
    for one in placed {
        let value = one.event.read.first().copied().unwrap_or(0);
        let entry = versions.entry(one.version).or_insert((value, false, u64::MAX));
        if entry.0 != value {
            verdict.wrong(format!("version {:x} is {} and {value}", one.version, entry.0));
        }
        entry.1 |= one.part == Part::Made;
        entry.2 = entry.2.min(one.event.answered);
    }
    let mut acknowledged = 0;
    let mut before = None;
    for (version, (value, is_acknowledged, known_at)) in versions {
        acknowledged += u64::from(is_acknowledged);
        if before.is_some_and(|before| value <= before) {
            verdict.wrong(format!("version {version:x} is {value}, not more than the one before"));
        }
        let possible = acknowledged + doubtful.partition_point(|invoked| *invoked <= known_at) as u64;
        if value < acknowledged || value > possible {
            verdict.wrong(format!(
                "version {version:x} is {value}, with {acknowledged} increments acknowledged and at most {possible} done"
            ));
        }
        before = Some(value);
    }
}
