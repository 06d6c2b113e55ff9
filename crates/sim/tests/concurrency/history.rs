//! What clients did at the same time and were told, and whether one order of events explains it.
//!
//! A write is told its seqno, a read sees the seqno of the version it returns: that is the order, and it remains to be
//! checked that it agrees with real time and with what each operation does. Linear in the length of the history.

use std::collections::BTreeMap;

use base::{Cas, Moment, Seqno};

/// What a write did to the document that it found.
#[derive(Clone, Debug)]
pub enum Write {
    /// Set, whatever was there.
    Set(Vec<u8>),
    /// Stored where nothing was.
    Add(Vec<u8>),
    /// Stored where something was.
    Replace(Vec<u8>),
    /// Joined to the end.
    Append(Vec<u8>),
    /// Counted up; the number that was returned.
    Count { delta: u64, initial: u64, number: u64 },
    /// Another expiry time; the seqno of the version that was returned.
    Touch(Seqno),
    /// Made a tombstone.
    Delete,
}

/// What a client was told.
#[derive(Clone, Debug)]
pub enum Told {
    /// A change was made. `expected` is the CAS that it asked for.
    Wrote { seqno: Seqno, cas: Cas, expected: Cas, expiry: Option<u32>, write: Write },
    /// A document is there.
    Saw { seqno: Seqno, cas: Cas, value: Vec<u8> },
    /// No document is there.
    Absent,
    /// The document is locked from now on.
    Locked { seqno: Seqno, cas: Cas, until: Moment },
    /// The lock with this CAS is gone.
    Unlocked { cas: Cas },
    /// Somebody else has locked the document.
    RefusedAsLocked,
}

/// An operation on one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it was called, in steps of all clients.
    pub start: u64,
    /// When it returned.
    pub end: u64,
    /// The time that it was given.
    pub now: Moment,
    /// The time when it returned.
    pub late: Moment,
    /// What it was told.
    pub told: Told,
}

struct Version {
    seqno: Seqno,
    /// The CAS it was made with, and those that locks gave it.
    cas: Vec<Cas>,
    value: Option<Vec<u8>>,
    expiry: u32,
    start: u64,
    seen: u64,
}

impl Version {
    fn before_all() -> Version {
        Version { seqno: Seqno(0), cas: vec![Cas(0)], value: None, expiry: 0, start: 0, seen: 0 }
    }

    fn is_expired(&self, now: Moment) -> bool {
        self.expiry != 0 && self.expiry < now.unix_s()
    }

    /// Whether somebody may have found nothing here by then.
    fn may_be_absent(&self, late: Moment) -> bool {
        self.value.is_none() || self.is_expired(late)
    }
}

/// The history of one key.
#[derive(Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// Adds what a client was told.
    pub fn add(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The seqnos of its writes.
    pub fn seqnos(&self) -> impl Iterator<Item = Seqno> {
        self.events.iter().filter_map(|event| match event.told {
            Told::Wrote { seqno, .. } => Some(seqno),
            _ => None,
        })
    }

    /// What no order of events explains.
    pub fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut versions = self.versions(&mut wrong);
        self.note_locks(&mut versions, &mut wrong);
        self.check_values(&mut versions, &mut wrong);
        self.check_times(&mut versions, &mut wrong);
        self.check_locks(&versions, &mut wrong);
        wrong
    }

    /// Every version that was written, in order of seqno, values still missing.
    fn versions(&self, wrong: &mut Vec<String>) -> Vec<(Version, Option<&Event>)> {
        let mut versions = vec![(Version::before_all(), None)];
        for event in &self.events {
            if let Told::Wrote { seqno, cas, .. } = &event.told {
                let (start, seen) = (event.start, event.end);
                let version = Version { seqno: *seqno, cas: vec![*cas], value: None, expiry: 0, start, seen };
                versions.push((version, Some(event)));
            }
        }
        versions.sort_by_key(|(version, _)| version.seqno);
        for pair in versions.windows(2) {
            if pair[0].0.seqno >= pair[1].0.seqno || pair[0].0.cas[0] >= pair[1].0.cas[0] {
                wrong.push(format!("after {:?} comes {:?}", pair[0].1, pair[1].1));
            }
        }
        versions
    }

    fn note_locks(&self, versions: &mut [(Version, Option<&Event>)], wrong: &mut Vec<String>) {
        for event in &self.events {
            if let Told::Locked { seqno, cas, .. } = event.told {
                match find(versions, seqno) {
                    Some(at) => versions[at].0.cas.push(cas),
                    None => wrong.push(format!("nobody wrote what was locked: {event:?}")),
                }
            }
        }
    }

    /// What each write did to the version before it.
    fn check_values(&self, versions: &mut [(Version, Option<&Event>)], wrong: &mut Vec<String>) {
        for at in 1..versions.len() {
            let (before, rest) = versions.split_at_mut(at);
            let (old, (new, event)) = (&before[at - 1].0, &mut rest[0]);
            let Some(event) = event else { continue };
            let Told::Wrote { expected, expiry, write, .. } = &event.told else { continue };
            let known = old.value.as_deref();
            let absent = old.may_be_absent(event.late);
            let mut begins = false;
            let (value, fits) = match write {
                Write::Set(value) => (Some(value.clone()), true),
                Write::Add(value) => (Some(value.clone()), absent),
                Write::Replace(value) => (Some(value.clone()), known.is_some()),
                Write::Append(part) => (known.map(|old| [old, part].concat()), known.is_some()),
                Write::Touch(seen) => (known.map(<[u8]>::to_vec), known.is_some() && *seen == old.seqno),
                Write::Delete => (None, known.is_some()),
                Write::Count { delta, initial, number } => {
                    let present =
                        known.and_then(|value| std::str::from_utf8(value).ok()?.parse::<u64>().ok());
                    let fits = present.is_some_and(|present| present.wrapping_add(*delta) == *number);
                    begins = !fits;
                    (Some(number.to_string().into_bytes()), fits || absent && number == initial)
                }
            };
            if !fits || *expected != Cas::ANY && !old.cas.contains(expected) {
                wrong.push(format!("{event:?} does not follow from {:?} {:?}", old.seqno, old.cas));
            }
            new.value = value;
            new.expiry = expiry.unwrap_or(if begins { 0 } else { old.expiry });
        }
    }

    /// Whether the order of seqnos agrees with real time, and each reader saw what was there.
    fn check_times(&self, versions: &mut [(Version, Option<&Event>)], wrong: &mut Vec<String>) {
        for event in &self.events {
            let (seqno, cas, value) = match &event.told {
                Told::Saw { seqno, cas, value } => (*seqno, *cas, Some(value)),
                Told::Locked { seqno, cas, .. } => (*seqno, *cas, None),
                _ => continue,
            };
            let Some(at) = find(versions, seqno) else {
                wrong.push(format!("nobody wrote what was seen: {event:?}"));
                continue;
            };
            let version = &mut versions[at].0;
            version.seen = version.seen.min(event.end);
            let same = value.is_none_or(|value| version.value.as_ref() == Some(value));
            if !same
                || !version.cas.contains(&cas)
                || version.value.is_none()
                || version.is_expired(event.now)
            {
                wrong.push(format!("{event:?} saw something else than {:?}", version.value));
            }
        }
        // The latest start up to each version, and the earliest sight from each version on.
        let starts: Vec<u64> = scan(versions.iter().map(|(v, _)| v.start), u64::max);
        let mut sights: Vec<u64> = scan(versions.iter().rev().map(|(v, _)| v.seen), u64::min);
        sights.reverse();
        sights.push(u64::MAX);
        for event in &self.events {
            let first = sights[1..].partition_point(|seen| *seen <= event.start);
            let last = starts.partition_point(|start| *start < event.end);
            let possible = &versions[first.min(last)..last];
            let explained = match &event.told {
                Told::Wrote { seqno, .. } | Told::Saw { seqno, .. } | Told::Locked { seqno, .. } => {
                    possible.iter().any(|(version, _)| version.seqno == *seqno)
                }
                Told::Absent => possible.iter().any(|(version, _)| version.may_be_absent(event.late)),
                Told::Unlocked { cas } => possible.iter().any(|(version, _)| version.cas.contains(cas)),
                Told::RefusedAsLocked => possible.iter().any(|(version, _)| version.cas.len() > 1),
            };
            if !explained {
                wrong.push(format!("{event:?} comes too early or too late"));
            }
        }
    }

    /// Nobody else changes or locks a document while it is locked.
    fn check_locks(&self, versions: &[(Version, Option<&Event>)], wrong: &mut Vec<String>) {
        let unlocked: BTreeMap<Cas, u64> = self
            .events
            .iter()
            .filter_map(|event| match event.told {
                Told::Unlocked { cas } => Some((cas, event.start)),
                _ => None,
            })
            .collect();
        for lock in &self.events {
            let Told::Locked { seqno, cas, until } = lock.told else { continue };
            let Some(at) = find(versions, seqno) else { continue };
            let next_write = versions.get(at + 1).and_then(|(_, event)| *event);
            let may_pass = |event: &Event| {
                let own = matches!(event.told, Told::Wrote { expected, .. } if expected == cas);
                let unlocked = unlocked.get(&cas).is_some_and(|start| *start < event.end);
                own || unlocked || event.late >= until || versions[at].0.is_expired(event.late)
            };
            let next_lock = self.events.iter().filter(|event| match event.told {
                Told::Locked { seqno: other, cas: higher, .. } => other == seqno && higher > cas,
                _ => false,
            });
            for event in next_write.into_iter().chain(next_lock).filter(|event| !may_pass(event)) {
                wrong.push(format!("{event:?} in spite of {lock:?}"));
            }
        }
    }
}

fn find(versions: &[(Version, Option<&Event>)], seqno: Seqno) -> Option<usize> {
    versions.binary_search_by_key(&seqno, |(version, _)| version.seqno).ok()
}

fn scan(values: impl Iterator<Item = u64>, join: impl Fn(u64, u64) -> u64) -> Vec<u64> {
    let mut last = None;
    values
        .map(|value| {
            let joined = last.map_or(value, |last| join(last, value));
            last = Some(joined);
            joined
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(start: u64, end: u64, told: Told) -> Event {
        Event { start, end, now: Moment(0), late: Moment(0), told }
    }

    fn wrote(start: u64, end: u64, seqno: u64, expected: u64, write: Write) -> Event {
        let (cas, expected) = (Cas(seqno * 10), Cas(expected));
        event(start, end, Told::Wrote { seqno: Seqno(seqno), cas, expected, expiry: Some(0), write })
    }

    fn set(start: u64, end: u64, seqno: u64) -> Event {
        wrote(start, end, seqno, 0, Write::Set(b"v".to_vec()))
    }

    fn saw(start: u64, end: u64, seqno: u64) -> Event {
        event(start, end, Told::Saw { seqno: Seqno(seqno), cas: Cas(seqno * 10), value: b"v".to_vec() })
    }

    fn locked(start: u64, end: u64, seqno: u64, cas: u64) -> Event {
        event(start, end, Told::Locked { seqno: Seqno(seqno), cas: Cas(cas), until: Moment(1) })
    }

    fn holds(events: &[Event]) -> bool {
        History { events: events.to_vec() }.violations().is_empty()
    }

    #[test]
    fn what_one_order_explains_holds() {
        assert!(holds(&[set(1, 2, 1), saw(3, 4, 1), set(5, 8, 2), saw(6, 7, 1), saw(6, 9, 2)]));
        assert!(holds(&[set(1, 9, 2), set(2, 8, 1), event(0, 3, Told::Absent)]));
        assert!(holds(&[set(1, 2, 1), locked(3, 4, 1, 15), wrote(5, 6, 2, 15, Write::Delete)]));
        let unlock = event(5, 6, Told::Unlocked { cas: Cas(15) });
        assert!(holds(&[set(1, 2, 1), locked(3, 4, 1, 15), unlock, set(7, 8, 2)]));
    }

    #[test]
    fn what_no_order_explains_is_found() {
        assert!(!holds(&[set(1, 2, 2), set(3, 4, 1)]), "the later write has the lower seqno");
        assert!(!holds(&[set(1, 2, 1), set(3, 4, 2), saw(5, 6, 1)]), "an old version");
        assert!(!holds(&[set(1, 2, 1), set(3, 9, 2), saw(4, 5, 2), saw(6, 7, 1)]), "it went back");
        assert!(!holds(&[saw(1, 2, 1), set(3, 4, 1)]), "before it was written");
        assert!(!holds(&[set(1, 2, 1), event(3, 4, Told::Absent)]), "a lost write");
        assert!(!holds(&[set(1, 2, 1), set(3, 4, 2), wrote(5, 6, 3, 10, Write::Delete)]), "the wrong CAS");
        assert!(!holds(&[set(1, 2, 1), locked(3, 4, 1, 15), set(5, 6, 2)]), "it was locked");
        assert!(!holds(&[set(1, 2, 1), locked(3, 4, 1, 15), locked(5, 6, 1, 16)]), "locked twice");
        let count = Write::Count { delta: 1, initial: 7, number: 7 };
        assert!(!holds(&[wrote(1, 2, 1, 0, count.clone()), wrote(3, 4, 2, 0, count)]), "a lost count");
        assert!(
            !holds(&[set(1, 2, 1), wrote(3, 4, 2, 0, Write::Add(b"w".to_vec()))]),
            "added to what was there"
        );
    }
}
