//! What the events of collections and scopes carry (`docs/dcp/documentation/commands/system_event.md`).
//!
//! Versions 0 and 1, the latter with a max TTL, are read and written here. Version 2 is the stored form of the event,
//! which is for those who store events to read.

use base::{CollectionId, ScopeId};

use super::What;
use crate::reader::Reader;

/// A collection begins.
pub const COLLECTION_BEGIN: u32 = 0;
/// A collection ends.
pub const COLLECTION_END: u32 = 1;
/// A scope begins.
pub const SCOPE_BEGIN: u32 = 3;
/// A scope ends.
pub const SCOPE_END: u32 = 4;
/// A collection is changed; only in version 2.
pub const COLLECTION_CHANGED: u32 = 5;
/// The version whose value is the stored form of the event.
pub const STORED_FORM: u8 = 2;

/// What happened, with the uid of the manifest that is complete with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireEvent<'a> {
    /// A collection begins.
    CollectionBegin {
        /// The manifest.
        manifest: u64,
        /// Where.
        scope: ScopeId,
        /// Which.
        collection: CollectionId,
        /// Its max TTL, seconds.
        max_ttl_s: Option<u32>,
        /// Its name.
        name: &'a [u8],
    },
    /// A collection ends.
    CollectionEnd {
        /// The manifest.
        manifest: u64,
        /// Where.
        scope: ScopeId,
        /// Which.
        collection: CollectionId,
    },
    /// A scope begins.
    ScopeBegin {
        /// The manifest.
        manifest: u64,
        /// Which.
        scope: ScopeId,
        /// Its name.
        name: &'a [u8],
    },
    /// A scope ends.
    ScopeEnd {
        /// The manifest.
        manifest: u64,
        /// Which.
        scope: ScopeId,
    },
}

/// The longest value: of a collection that begins with a max TTL.
const MAX_VALUE_BYTES: usize = 20;

/// The value of an event, ready to be sent.
pub struct EventValue {
    bytes: [u8; MAX_VALUE_BYTES],
    len: usize,
}

#[allow(clippy::indexing_slicing, reason = "the node's own numbers, which the largest event has room for")]
impl EventValue {
    fn put(mut self, bytes: &[u8]) -> EventValue {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<'a> WireEvent<'a> {
    /// Its number and the version of its value.
    pub fn number_and_version(&self) -> (u32, u8) {
        match self {
            WireEvent::CollectionBegin { max_ttl_s, .. } => (COLLECTION_BEGIN, u8::from(max_ttl_s.is_some())),
            WireEvent::CollectionEnd { .. } => (COLLECTION_END, 0),
            WireEvent::ScopeBegin { .. } => (SCOPE_BEGIN, 0),
            WireEvent::ScopeEnd { .. } => (SCOPE_END, 0),
        }
    }

    /// The key of its message: a name, or nothing.
    pub fn key(&self) -> &'a [u8] {
        match self {
            WireEvent::CollectionBegin { name, .. } | WireEvent::ScopeBegin { name, .. } => name,
            WireEvent::CollectionEnd { .. } | WireEvent::ScopeEnd { .. } => b"",
        }
    }

    /// The value of its message.
    pub fn value(&self) -> EventValue {
        let begun = |manifest: u64, scope: ScopeId| {
            let empty = EventValue { bytes: [0; MAX_VALUE_BYTES], len: 0 };
            empty.put(&manifest.to_be_bytes()).put(&scope.0.to_be_bytes())
        };
        match *self {
            WireEvent::CollectionBegin { manifest, scope, collection, max_ttl_s, .. } => {
                let value = begun(manifest, scope).put(&collection.0.to_be_bytes());
                match max_ttl_s {
                    Some(ttl) => value.put(&ttl.to_be_bytes()),
                    None => value,
                }
            }
            WireEvent::CollectionEnd { manifest, scope, collection } => {
                begun(manifest, scope).put(&collection.0.to_be_bytes())
            }
            WireEvent::ScopeBegin { manifest, scope, .. } | WireEvent::ScopeEnd { manifest, scope } => {
                begun(manifest, scope)
            }
        }
    }

    /// Reads an event of version 0 or 1 from its message; nothing if it is no such message, or its value has another
    /// length.
    pub fn read(what: &What, key: &'a [u8], value: &[u8]) -> Option<WireEvent<'a>> {
        let What::SystemEvent(_, number, version) = *what else { return None };
        let mut r = Reader(value);
        let (manifest, scope) = (r.u64()?, ScopeId(r.u32()?));
        let event = match (number, version) {
            (COLLECTION_BEGIN, 0 | 1) => WireEvent::CollectionBegin {
                manifest,
                scope,
                collection: CollectionId(r.u32()?),
                max_ttl_s: if version == 1 { Some(r.u32()?) } else { None },
                name: key,
            },
            (COLLECTION_END, 0) => {
                WireEvent::CollectionEnd { manifest, scope, collection: CollectionId(r.u32()?) }
            }
            (SCOPE_BEGIN, 0) => WireEvent::ScopeBegin { manifest, scope, name: key },
            (SCOPE_END, 0) => WireEvent::ScopeEnd { manifest, scope },
            _ => return None,
        };
        r.is_empty().then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use base::Seqno;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_round_trip(manifest: u64, scope: u32, id: u32, max_ttl_s: Option<u32>, name: Vec<u8>, which in 0..4) {
            let (scope, collection, name) = (ScopeId(scope), CollectionId(id), &name[..]);
            let event = match which {
                0 => WireEvent::CollectionBegin { manifest, scope, collection, max_ttl_s, name },
                1 => WireEvent::CollectionEnd { manifest, scope, collection },
                2 => WireEvent::ScopeBegin { manifest, scope, name },
                _ => WireEvent::ScopeEnd { manifest, scope },
            };
            let (number, version) = event.number_and_version();
            let (what, value) = (What::SystemEvent(Seqno(1), number, version), event.value());
            prop_assert_eq!(WireEvent::read(&what, event.key(), value.as_bytes()), Some(event));
            let longer = [value.as_bytes(), b"x"].concat();
            prop_assert_eq!(WireEvent::read(&what, event.key(), &longer), None);
        }
    }

    #[test]
    fn the_scope_stands_before_the_collection() {
        // A collection 8 in scope 1 with a max TTL of 60 seconds.
        let value = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 60];
        let what = What::SystemEvent(Seqno(4), COLLECTION_BEGIN, 1);
        let event = WireEvent::CollectionBegin {
            manifest: 2,
            scope: ScopeId(1),
            collection: CollectionId(8),
            max_ttl_s: Some(60),
            name: b"mycollection",
        };
        assert_eq!(WireEvent::read(&what, b"mycollection", &value), Some(event));
    }
}
