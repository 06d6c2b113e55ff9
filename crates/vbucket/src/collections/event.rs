//! System events: the changes of a vBucket's collections, as versions in the namespace [`CollectionId::SYSTEM`].
//!
//! The key is that of kv_engine's collections.md, "SystemEvent Key": type of the event, id, and a word for people.
//! The value is the FlatBuffers table of its `events.fbs`, which the golden files hold, too, and DCP sends as version 2.
//! An event that begins or changes something has the kind [`ItemKind::SystemEvent`], one that ends something is a
//! tombstone under the same key.

use base::leb128::{decode_leb128, encode_leb128};
use base::{
    CollectionId, Datatype, DocKey, Heap, ItemKind, NewVersion, ScopeId, Version, VersionContents,
    VersionMeta,
};

use super::flat::{Field, Table, encode};
use super::manifest::{Collection, ManifestUid, Scope};

/// One change of a vBucket's collections.
///
/// `manifest` is the manifest that is complete with this event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemEvent {
    /// A collection is made.
    CollectionBegin {
        /// See above.
        manifest: ManifestUid,
        /// What is made.
        collection: Collection,
    },
    /// A collection is dropped, and all its documents with it.
    CollectionEnd {
        /// See above.
        manifest: ManifestUid,
        /// Where it was.
        scope: ScopeId,
        /// What is dropped.
        id: CollectionId,
    },
    /// A collection's max TTL is another one, or whether it has a part in the history of changes.
    CollectionChanged {
        /// See above.
        manifest: ManifestUid,
        /// What it is now.
        collection: Collection,
    },
    /// A scope is made.
    ScopeBegin {
        /// See above.
        manifest: ManifestUid,
        /// What is made.
        scope: Scope,
    },
    /// A scope is dropped, after its collections.
    ScopeEnd {
        /// See above.
        manifest: ManifestUid,
        /// What is dropped.
        id: ScopeId,
    },
}

/// An event with its stored value.
#[derive(Clone, Debug)]
pub(crate) struct EncodedEvent {
    pub(crate) event: SystemEvent,
    value: Vec<u8>,
}

impl From<SystemEvent> for EncodedEvent {
    fn from(event: SystemEvent) -> EncodedEvent {
        EncodedEvent { value: event.to_value(), event }
    }
}

impl EncodedEvent {
    /// See [`SystemEvent::to_version`].
    pub(crate) fn to_version(&self, heap: &Heap) -> NewVersion {
        self.event.version_of(heap, &self.value)
    }
}

/// Which of the five an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// [`SystemEvent::CollectionBegin`]
    CollectionBegin,
    /// [`SystemEvent::CollectionEnd`]
    CollectionEnd,
    /// [`SystemEvent::CollectionChanged`]
    CollectionChanged,
    /// [`SystemEvent::ScopeBegin`]
    ScopeBegin,
    /// [`SystemEvent::ScopeEnd`]
    ScopeEnd,
}

/// What an event's key begins with. A change of a collection has a key of its own, so that it does not take the place
/// of the collection's beginning.
const COLLECTION: u32 = 0;
const SCOPE: u32 = 1;
const CHANGED: u32 = 2;

/// Bytes of the longest key: two LEB128 numbers and a word.
const MAX_KEY_BYTES: usize = 5 + 5 + 11;

impl SystemEvent {
    /// The manifest that is complete with it.
    pub fn manifest(&self) -> ManifestUid {
        match self {
            SystemEvent::CollectionBegin { manifest, .. }
            | SystemEvent::CollectionEnd { manifest, .. }
            | SystemEvent::CollectionChanged { manifest, .. }
            | SystemEvent::ScopeBegin { manifest, .. }
            | SystemEvent::ScopeEnd { manifest, .. } => *manifest,
        }
    }

    /// Another manifest is complete with it.
    pub(super) fn set_manifest(&mut self, uid: ManifestUid) {
        match self {
            SystemEvent::CollectionBegin { manifest, .. }
            | SystemEvent::CollectionEnd { manifest, .. }
            | SystemEvent::CollectionChanged { manifest, .. }
            | SystemEvent::ScopeBegin { manifest, .. }
            | SystemEvent::ScopeEnd { manifest, .. } => *manifest = uid,
        }
    }

    /// The collection that it is about, unless it is about a scope.
    pub fn collection(&self) -> Option<CollectionId> {
        match self {
            SystemEvent::CollectionBegin { collection, .. }
            | SystemEvent::CollectionChanged { collection, .. } => Some(collection.id),
            SystemEvent::CollectionEnd { id, .. } => Some(*id),
            SystemEvent::ScopeBegin { .. } | SystemEvent::ScopeEnd { .. } => None,
        }
    }

    /// The scope that it is about, or that its collection is in.
    pub fn scope(&self) -> ScopeId {
        match self {
            SystemEvent::CollectionBegin { collection, .. }
            | SystemEvent::CollectionChanged { collection, .. } => collection.scope,
            SystemEvent::CollectionEnd { scope, .. } => *scope,
            SystemEvent::ScopeBegin { scope, .. } => scope.id,
            SystemEvent::ScopeEnd { id, .. } => *id,
        }
    }

    /// Whether something is dropped.
    pub fn is_end(&self) -> bool {
        matches!(self, SystemEvent::CollectionEnd { .. } | SystemEvent::ScopeEnd { .. })
    }

    /// Type and id in its key.
    fn subject(&self) -> (u32, u32) {
        match self {
            SystemEvent::CollectionBegin { collection, .. } => (COLLECTION, collection.id.0),
            SystemEvent::CollectionEnd { id, .. } => (COLLECTION, id.0),
            SystemEvent::CollectionChanged { collection, .. } => (CHANGED, collection.id.0),
            SystemEvent::ScopeBegin { scope, .. } => (SCOPE, scope.id.0),
            SystemEvent::ScopeEnd { id, .. } => (SCOPE, id.0),
        }
    }

    /// The key under [`CollectionId::SYSTEM`], without that prefix: the buffer and how much of it is used.
    pub fn key(&self) -> EventKey {
        let (kind, id) = self.subject();
        let word: &[u8] = if kind == SCOPE { b"_scope" } else { b"_collection" };
        let mut key = EventKey { bytes: [0; MAX_KEY_BYTES], len: 0 };
        for (number, len) in [encode_leb128(kind), encode_leb128(id)] {
            key.push(&number[..len]);
        }
        key.push(word);
        key
    }

    /// The stored value.
    pub fn to_value(&self) -> Vec<u8> {
        match self {
            SystemEvent::CollectionBegin { manifest, collection }
            | SystemEvent::CollectionChanged { manifest, collection } => {
                encode(collection_fields(manifest.0, collection).as_slice())
            }
            SystemEvent::CollectionEnd { manifest, scope, id } => {
                encode(&[Field::U64(manifest.0), Field::U32(scope.0), Field::U32(id.0)])
            }
            SystemEvent::ScopeBegin { manifest, scope } => {
                encode(&[Field::U64(manifest.0), Field::U32(scope.id.0), Field::Text(&scope.name)])
            }
            SystemEvent::ScopeEnd { manifest, id } => encode(&[Field::U64(manifest.0), Field::U32(id.0)]),
        }
    }

    /// A version of it, whose seqno, CAS and, if it ends something, time of deletion (`expiry`) are to be completed
    /// under the vBucket's lock.
    pub fn to_version(&self, heap: &Heap) -> NewVersion {
        self.version_of(heap, &self.to_value())
    }

    fn version_of(&self, heap: &Heap, value: &[u8]) -> NewVersion {
        let (kind, _) = self.subject();
        let meta = VersionMeta {
            // The type of the event, whose bytes the original stores the other way round than a client's flags.
            flags: kind.swap_bytes(),
            datatype: Datatype::RAW,
            kind: if self.is_end() { ItemKind::Deletion } else { ItemKind::SystemEvent },
            ..VersionMeta::default()
        };
        let key = self.key();
        let key = DocKey { collection: CollectionId::SYSTEM, key: key.as_bytes() };
        NewVersion::new(heap, meta, key, &[value])
    }

    /// Reads an event back from a version. Nothing if the version is none, is not resident, is compressed, or if its
    /// value is damaged.
    pub fn of(version: &VersionContents) -> Option<SystemEvent> {
        let key = version.key();
        (key.collection == CollectionId::SYSTEM)
            .then(|| SystemEvent::parse(key.key, version.is_deleted(), version.value()))
            .flatten()
    }

    /// Reads an event from its key (without the prefix of the namespace), whether it is a tombstone, and its value.
    pub fn parse(key: &[u8], is_deleted: bool, value: &[u8]) -> Option<SystemEvent> {
        let (subject, len) = decode_leb128(key)?;
        let (id, _) = decode_leb128(&key[len..])?;
        let kind = match (subject, is_deleted) {
            (COLLECTION, false) => EventKind::CollectionBegin,
            (COLLECTION, true) => EventKind::CollectionEnd,
            (CHANGED, false) => EventKind::CollectionChanged,
            (SCOPE, false) => EventKind::ScopeBegin,
            (SCOPE, true) => EventKind::ScopeEnd,
            _ => return None,
        };
        let event = SystemEvent::from_value(kind, value)?;
        // Key and value must speak of the same.
        (event.subject() == (subject, id)).then_some(event)
    }

    /// Reads an event of a known kind from its stored value.
    pub fn from_value(kind: EventKind, value: &[u8]) -> Option<SystemEvent> {
        let table = Table::root(value)?;
        let manifest = ManifestUid(table.u64(0)?);
        let scope = ScopeId(table.u32(1)?);
        let collection = || collection_of(&table);
        Some(match kind {
            EventKind::CollectionBegin => {
                SystemEvent::CollectionBegin { manifest, collection: collection()? }
            }
            EventKind::CollectionChanged => {
                SystemEvent::CollectionChanged { manifest, collection: collection()? }
            }
            EventKind::CollectionEnd => {
                SystemEvent::CollectionEnd { manifest, scope, id: CollectionId(table.u32(2)?) }
            }
            EventKind::ScopeBegin => {
                let scope = Scope { id: scope, name: table.text(2)?.to_owned() };
                SystemEvent::ScopeBegin { manifest, scope }
            }
            EventKind::ScopeEnd => SystemEvent::ScopeEnd { manifest, id: scope },
        })
    }
}

/// The fields of a collection's table. The first one is a number: the manifest of an event, the seqno of what is stored.
/// The last one is left out if it was never said whether the collection has a part in the history of changes.
pub fn collection_fields(number: u64, collection: &Collection) -> CollectionFields<'_> {
    let fields = [
        Field::U64(number),
        Field::U32(collection.scope.0),
        Field::U32(collection.id.0),
        Field::Bool(collection.max_ttl_s.is_some()),
        Field::U32(collection.max_ttl_s.unwrap_or(0)),
        Field::Text(&collection.name),
        Field::Bool(collection.history.unwrap_or(false)),
    ];
    CollectionFields { fields, is_history_said: collection.history.is_some() }
}

/// See [`collection_fields`].
pub struct CollectionFields<'a> {
    fields: [Field<'a>; 7],
    is_history_said: bool,
}

impl<'a> CollectionFields<'a> {
    /// Those that are written.
    pub fn as_slice(&self) -> &[Field<'a>] {
        let len = self.fields.len() - usize::from(!self.is_history_said);
        &self.fields[..len]
    }
}

/// Reads a collection from the table that [`collection_fields`] makes.
pub fn collection_of(table: &Table<'_>) -> Option<Collection> {
    Some(Collection {
        id: CollectionId(table.u32(2)?),
        scope: ScopeId(table.u32(1)?),
        name: table.text(5)?.to_owned(),
        max_ttl_s: if table.bool(3)? { Some(table.u32(4)?) } else { None },
        history: if table.has(6) { Some(table.bool(6)?) } else { None },
    })
}

/// Whether a version is the beginning or end of a collection. Each of them begins a checkpoint and a snapshot, so that
/// changes are merged only on one side of it.
pub fn begins_checkpoint(version: &Version) -> bool {
    let key = version.stored_key();
    // Both numbers have one byte.
    key[0] == CollectionId::SYSTEM.0 as u8 && key.get(1) == Some(&(COLLECTION as u8))
}

/// What the stored keys of a collection's events begin with, those of its beginning and end first.
pub fn stored_prefixes(collection: CollectionId) -> [Vec<u8>; 2] {
    [COLLECTION, CHANGED].map(|kind| {
        let numbers = [CollectionId::SYSTEM.0, kind, collection.0].map(encode_leb128);
        numbers.iter().flat_map(|(bytes, len)| &bytes[..*len]).copied().collect()
    })
}

/// The key of a system event.
pub struct EventKey {
    bytes: [u8; MAX_KEY_BYTES],
    len: usize,
}

impl EventKey {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
