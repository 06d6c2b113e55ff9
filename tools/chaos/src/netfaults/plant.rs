//! Lies planted into a history that is sound: the checker must find each, or its word is worth nothing.

use super::check::check;
use super::history::{Class, Event, Op};

/// A change of a history that makes it impossible; false if the history has nothing to change.
type Lie = fn(&mut [Event]) -> bool;

const LIES: [(&str, Lie); 6] = [
    ("a stale read of a register", stale_read),
    ("a register that forgets its last write", forgotten_write),
    ("a read of a value that was refused", refused_value),
    ("a counter that lacks an increment in the end", lost_increment),
    ("a set that lacks an element in the end", lost_element),
    ("a document that is gone in the end", lost_document),
];

/// How many of the lies were found, of how many that could be planted, and the names of those that were not.
pub fn found(history: &[Event]) -> (usize, usize, Vec<&'static str>) {
    let mut missed = Vec::new();
    let mut planted = 0;
    for (name, lie) in LIES {
        let mut edited = history.to_vec();
        if !lie(&mut edited) {
            continue;
        }
        planted += 1;
        if check(&edited).bad.is_empty() {
            missed.push(name);
        }
    }
    (planted - missed.len(), planted, missed)
}

fn is_good(event: &Event, op: Op, kind: &str) -> bool {
    event.class == Class::Ok && event.op == op && event.key.starts_with(kind)
}

/// The last read of a register gives what an early one gave.
fn stale_read(events: &mut [Event]) -> bool {
    let Some(last) = events.iter().rposition(|event| is_good(event, Op::Read, "register") && event.cas > 0)
    else {
        return false;
    };
    let key = events[last].key.clone();
    let early = events.iter().find(|event| event.key == key && event.cas > 0 && event.op == Op::Read);
    let Some((cas, read)) = early.map(|event| (event.cas, event.read.clone())) else { return false };
    let is_stale = cas < events[last].cas;
    (events[last].cas, events[last].read) = (cas, read);
    is_stale
}

/// The last read of a register gives what was there before its last write.
fn forgotten_write(events: &mut [Event]) -> bool {
    let Some(at) = events.iter().position(|event| is_good(event, Op::Final, "register") && event.cas > 0)
    else {
        return false;
    };
    let (key, newest) = (events[at].key.clone(), events[at].cas);
    let made = |event: &&Event| event.key == key && event.class == Class::Ok && !event.op.is_read();
    if !events.iter().filter(made).any(|event| event.cas == newest) {
        return false;
    }
    let before = events.iter().filter(made).filter(|event| event.cas < newest).max_by_key(|event| event.cas);
    let Some((cas, value)) = before.map(|event| (event.cas, event.value)) else { return false };
    (events[at].cas, events[at].read) = (cas, vec![value]);
    true
}

/// A write that came through is said to be refused.
fn refused_value(events: &mut [Event]) -> bool {
    let read = events.iter().find(|event| is_good(event, Op::Read, "register") && event.cas > 0);
    let Some((key, value)) = read.map(|event| (event.key.clone(), event.read[0])) else { return false };
    let write =
        events.iter_mut().find(|event| event.key == key && !event.op.is_read() && event.value == value);
    write.map(|event| event.class = Class::No).is_some()
}

fn lost_increment(events: &mut [Event]) -> bool {
    let counter = |event: &&mut Event| is_good(event, Op::Final, "counter") && event.read.first() > Some(&0);
    events.iter_mut().find(counter).map(|event| event.read[0] -= 1).is_some()
}

fn lost_element(events: &mut [Event]) -> bool {
    let Some(add) = events.iter().find(|event| is_good(event, Op::Add, "set")) else { return false };
    let (key, element) = (add.key.clone(), add.value);
    let end = events.iter_mut().find(|event| event.key == key && is_good(event, Op::Final, "set"));
    end.map(|event| event.read.retain(|other| *other != element)).is_some()
}

fn lost_document(events: &mut [Event]) -> bool {
    let Some(insert) = events.iter().find(|event| is_good(event, Op::Insert, "document")) else {
        return false;
    };
    let key = insert.key.clone();
    let end = events.iter_mut().find(|event| event.key == key && event.op == Op::Final);
    end.map(|event| {
        event.cas = 0;
        event.read.clear();
    })
    .is_some()
}
