//! Whether a history can have happened one operation after the other, key by key, and whether anything is lost.
//!
//! Every version of a document has a CAS that rises, so that the order of versions is known, and looking for an order of
//! all operations takes one pass (`order.rs`); what the values must be then depends on the kind of document.

mod counter;
mod order;
mod register;
mod set;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::history::{Class, Event, Op};

/// What is wrong with a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Each thing that cannot have happened.
    pub violations: Vec<String>,
    /// Writes that were acknowledged and are not there in the end.
    pub lost: u64,
}

impl Verdict {
    /// Nothing.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.lost == 0
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }
}

/// What is wrong with all keys.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    /// Keys by kind.
    pub keys: BTreeMap<&'static str, u64>,
    /// Keys with something wrong.
    pub bad: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// Writes that were acknowledged and are not there in the end.
    pub fn lost(&self) -> u64 {
        self.bad.values().map(|verdict| verdict.lost).sum()
    }
}

/// Looks at a whole history.
pub fn check(events: &[Event]) -> Verdicts {
    let mut by_key: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        by_key.entry(&event.key).or_default().push(event);
    }
    let mut verdicts = Verdicts::default();
    for (key, events) in by_key {
        let (kind, verdict) = check_key(key, &events);
        *verdicts.keys.entry(kind).or_default() += 1;
        if !verdict.is_good() {
            verdicts.bad.insert(key.to_owned(), verdict);
        }
    }
    verdicts
}

/// Looks at the operations on one key; its kind is the beginning of its name.
fn check_key(key: &str, events: &[&Event]) -> (&'static str, Verdict) {
    let mut verdict = Verdict::default();
    if !events.iter().any(|event| event.op == Op::Final && event.class == Class::Ok) {
        verdict.wrong("it was not read in the end".to_owned());
    }
    let kind = match key.split('-').next().unwrap_or_default() {
        "register" => {
            register::check(events, &mut verdict);
            "registers"
        }
        // One value is written once: a register, too.
        "document" => {
            register::check(events, &mut verdict);
            "documents"
        }
        "counter" => {
            counter::check(events, &mut verdict);
            "counters"
        }
        "set" => {
            set::check(events, &mut verdict);
            "sets"
        }
        _ => {
            verdict.wrong("nobody knows what kind of document this is".to_owned());
            "others"
        }
    };
    (kind, verdict)
}

/// The CAS that the document had in the end; 0 if it was not there.
fn final_cas(events: &[&Event]) -> Option<u64> {
    let finals = events.iter().filter(|event| event.op == Op::Final && event.class == Class::Ok);
    finals.map(|event| event.cas).max()
}
