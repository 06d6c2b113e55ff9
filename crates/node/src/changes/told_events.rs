//! Events of collections and scopes that a reader was told of: each comes once, not once for each vBucket.

use std::collections::{BTreeSet, VecDeque};

/// Events that are remembered: the last ones.
const MOST_EVENTS: usize = 8192;
/// What one of them takes, with its places.
const EVENT_BYTES: usize = 140;
/// The value of an event begins with the number of the manifest.
const MANIFEST_BYTES: usize = 8;

/// The events.
#[derive(Default)]
pub(super) struct ToldEvents {
    known: BTreeSet<Vec<u8>>,
    order: VecDeque<Vec<u8>>,
}

impl ToldEvents {
    /// Whether an event is told for the first time; it is noted. The manifest is no part of what it is: of several changes
    /// that a vBucket learns of at once all but the last have the manifest that the vBucket had before.
    pub(super) fn note(&mut self, number: u32, value: &[u8]) -> bool {
        let subject = value.get(MANIFEST_BYTES..).unwrap_or_default();
        let event = [&number.to_be_bytes()[..], subject].concat();
        if !self.known.insert(event.clone()) {
            return false;
        }
        self.order.push_back(event);
        if self.order.len() > MOST_EVENTS
            && let Some(first) = self.order.pop_front()
        {
            self.known.remove(&first);
        }
        true
    }

    /// What they take.
    pub(super) fn bytes(&self) -> usize {
        self.order.len() * EVENT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use base::{CollectionId, ScopeId};
    use protocol::dcp::WireEvent;

    use super::*;

    fn note(told: &mut ToldEvents, event: WireEvent<'_>) -> bool {
        let (number, _) = event.number_and_version();
        told.note(number, event.value().as_bytes())
    }

    #[test]
    fn an_event_is_new_once_whichever_manifest_it_comes_with() {
        let mut told = ToldEvents::default();
        let made = |manifest, collection| WireEvent::CollectionBegin {
            manifest,
            scope: ScopeId(8),
            collection: CollectionId(collection),
            max_ttl_s: None,
            name: b"c",
        };
        assert!(note(&mut told, made(5, 9)) && !note(&mut told, made(5, 9)));
        assert!(!note(&mut told, made(4, 9)), "a vBucket that has learned of it together with others");
        assert!(note(&mut told, made(5, 10)), "another collection");
        let dropped =
            WireEvent::CollectionEnd { manifest: 6, scope: ScopeId(8), collection: CollectionId(9) };
        assert!(note(&mut told, dropped), "its end is not its beginning");
    }

    #[test]
    fn the_oldest_events_are_forgotten() {
        let mut told = ToldEvents::default();
        let made = |scope| WireEvent::ScopeBegin { manifest: 1, scope: ScopeId(scope), name: b"s" };
        let count = u32::try_from(MOST_EVENTS).expect("few");
        assert!((0..=count).all(|scope| note(&mut told, made(scope))));
        assert_eq!((told.known.len(), told.bytes()), (MOST_EVENTS, MOST_EVENTS * EVENT_BYTES));
        assert!(!note(&mut told, made(count)) && note(&mut told, made(0)));
    }
}
