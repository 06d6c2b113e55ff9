//! Bounds what clients that have not logged in have recorded: a few records of each address one by one, the rest as one
//! record with a count.
//!
//! *Guarantee:* in [`SPAN`] all of them together cause at most [`MOST_RECORDS`] records, one more for each of [`MOST_KINDS`]
//! addresses and kinds of events, and one for each event of all others, however many requests they send.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::events::AuditEvent;
use super::record::{AuditRecord, Ends};
use crate::login_throttle::network;

/// The time in which records are counted; then the counts are recorded.
pub(crate) const SPAN: Duration = Duration::from_secs(10);
/// Records of one kind and one address that are written one by one in that time.
pub(crate) const MOST_EACH: u32 = 20;
/// The same of all addresses together.
pub(crate) const MOST_RECORDS: u32 = 200;
/// Addresses and kinds that are told apart.
pub(crate) const MOST_KINDS: usize = 100;

/// What is counted together: an event with its reason, of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StrangersKind {
    event: AuditEvent,
    reason: &'static str,
    address: Option<IpAddr>,
}

/// How many of a kind there were.
#[derive(Clone, Copy, Debug, Default)]
struct KindCount {
    recorded: u32,
    left_out: u64,
}

/// What is counted since a moment.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    begun: Duration,
    recorded: u32,
    kinds: BTreeMap<StrangersKind, KindCount>,
    /// What found no place among them.
    others: BTreeMap<AuditEvent, u64>,
    has_left_out: bool,
}

/// Whether an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrangerTold {
    /// One by one.
    Now,
    /// With a count, when the span is over.
    Later,
    /// The same, and it is the first one of the span.
    FirstLater,
}

impl Strangers {
    /// Counts an event of an address. What is due by now must have been [taken](Strangers::due) before.
    pub(super) fn count(
        &mut self,
        event: AuditEvent,
        reason: &'static str,
        address: Option<IpAddr>,
        now: Duration,
    ) -> StrangerTold {
        if self.kinds.is_empty() {
            self.begun = now;
        }
        let kind = StrangersKind { event, reason, address: address.map(network) };
        if self.kinds.len() >= MOST_KINDS && !self.kinds.contains_key(&kind) {
            *self.others.entry(event).or_default() += 1;
        } else {
            let counted = self.kinds.entry(kind).or_default();
            if counted.recorded < MOST_EACH && self.recorded < MOST_RECORDS {
                counted.recorded += 1;
                self.recorded += 1;
                return StrangerTold::Now;
            }
            counted.left_out += 1;
        }
        if std::mem::replace(&mut self.has_left_out, true) {
            StrangerTold::Later
        } else {
            StrangerTold::FirstLater
        }
    }

    /// Until what was left out is due: `None` if nothing was.
    pub(super) fn wait(&self, now: Duration) -> Option<Duration> {
        self.has_left_out.then(|| (self.begun + SPAN).saturating_sub(now))
    }

    /// The records with the counts, once a span is over, or at the `end` of the log.
    pub(super) fn due(&mut self, now: Duration, end: bool) -> Vec<AuditRecord> {
        if self.kinds.is_empty() || (now < self.begun + SPAN && !end) {
            return Vec::new();
        }
        let over = std::mem::take(self);
        let others = over.others.into_iter().map(|(event, left_out)| {
            (StrangersKind { event, reason: "of any address and reason", address: None }, left_out)
        });
        let kinds = over.kinds.into_iter().map(|(kind, counted)| (kind, counted.left_out));
        let left_out = kinds.chain(others).filter(|(_, left_out)| *left_out > 0);
        left_out.map(|(kind, left_out)| rest(kind, left_out)).collect()
    }
}

/// The record of what was left out of a kind.
fn rest(kind: StrangersKind, left_out: u64) -> AuditRecord {
    let remote = kind.address.map(|address| SocketAddr::new(address, 0));
    AuditRecord::new(kind.event)
        .between(Ends { local: None, remote })
        .with("reason", kind.reason)
        .with("left_out", left_out)
        .with("seconds", SPAN.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn address(n: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(n.into()))
    }

    /// The count of a record, and the address that it names.
    fn told(record: AuditRecord) -> (u64, String) {
        let line: serde_json::Value = serde_json::from_slice(&record.line(0)).expect("JSON");
        (line["left_out"].as_u64().expect("a count"), line["remote"]["ip"].as_str().expect("text").to_owned())
    }

    #[test]
    fn the_first_of_an_address_are_recorded_and_the_rest_counted() {
        let mut strangers = Strangers::default();
        let mut count = |n, now| {
            let told: Vec<StrangerTold> = (0..100)
                .map(|_| strangers.count(AuditEvent::LoginFailed, "AUTH_ERROR", address(n), now))
                .collect();
            (
                told.iter().filter(|told| **told == StrangerTold::Now).count() as u32,
                told.contains(&StrangerTold::FirstLater),
            )
        };
        assert_eq!(count(1, START), (MOST_EACH, true));
        assert_eq!(count(1, START + SPAN / 2), (0, false));
        assert_eq!(count(2, START + SPAN / 2), (MOST_EACH, false), "another one has its own");
        assert_eq!(strangers.wait(START), Some(SPAN));
        assert!(strangers.due(START + SPAN - Duration::from_nanos(1), false).is_empty());
        let mut due: Vec<_> = strangers.due(START + SPAN, false).into_iter().map(told).collect();
        due.sort();
        assert_eq!(due, [(80, "0.0.0.2".to_owned()), (180, "0.0.0.1".to_owned())]);
        assert_eq!((strangers.wait(START + SPAN), strangers.due(START + SPAN * 2, false).len()), (None, 0));
    }

    #[test]
    fn many_addresses_cause_no_more() {
        let mut strangers = Strangers::default();
        let events = [AuditEvent::LoginFailed, AuditEvent::InvalidPacket];
        let all = (0..100_000).filter(|n| {
            strangers.count(events[*n as usize % 2], "x", address(n / 40), START) == StrangerTold::Now
        });
        assert_eq!(all.count() as u32, MOST_RECORDS);
        assert!(strangers.kinds.len() <= MOST_KINDS);
        let due: Vec<_> = strangers.due(START, true).into_iter().map(told).collect();
        assert!(due.len() <= MOST_KINDS + events.len(), "{}", due.len());
        assert_eq!(due.iter().map(|(left_out, _)| left_out).sum::<u64>(), 100_000 - u64::from(MOST_RECORDS));
    }
}
