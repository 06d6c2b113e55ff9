//! The collections of a vBucket as its file has them: local documents, kept by the events that are saved.
//!
//! `_local/collections/manifest`, `_local/collections/open` and `_local/scope/open` are FlatBuffers tables as the golden
//! files have them. `_local/collections/dropped` is in none of those; it is made in the same way, with the first seqno,
//! the last seqno and the id of each collection.

use base::{CollectionId, ScopeId, Seqno, Version};
use vbucket::SystemEvent;
use vbucket::collections::event::{CollectionFields, collection_fields, collection_of};
use vbucket::collections::flat::{Field, Table, encode, encode_list};
use vbucket::collections::manifest::DEFAULT_NAME;
use vbucket::{Collection, ManifestUid, Scope};

use crate::collections::SYSTEM;

const UID_ID: &str = "_local/collections/manifest";
const OPEN_ID: &str = "_local/collections/open";
const SCOPES_ID: &str = "_local/scope/open";
const DROPPED_ID: &str = "_local/collections/dropped";

/// A collection that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCollection {
    /// Seqno of the event that made it; 0 if it has always been there.
    pub start: Seqno,
    /// What it is.
    pub collection: Collection,
}

/// A scope that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredScope {
    /// Seqno of the event that made it; 0 if it has always been there.
    pub start: Seqno,
    /// What it is.
    pub scope: Scope,
}

/// A collection that was dropped, and of which the file may still hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredDrop {
    /// Which one.
    pub id: CollectionId,
    /// Seqno of the event that made it.
    pub start: Seqno,
    /// Seqno of the event that dropped it.
    pub end: Seqno,
}

/// The collections of a vBucket as of a commit.
///
/// *Invariant:* scopes and collections are in order of their ids, so that an event costs a binary search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    /// The manifest that the vBucket has taken over last.
    pub uid: ManifestUid,
    /// Its scopes, by id.
    pub scopes: Vec<StoredScope>,
    /// Its collections, by id.
    pub open: Vec<StoredCollection>,
    /// What was dropped and not erased by a compaction yet.
    pub dropped: Vec<StoredDrop>,
}

impl Default for StoredManifest {
    /// What a vBucket has before the first event.
    fn default() -> StoredManifest {
        let scope = Scope { id: ScopeId(0), name: DEFAULT_NAME.into() };
        let collection = Collection {
            id: CollectionId::DEFAULT,
            scope: ScopeId(0),
            name: DEFAULT_NAME.into(),
            max_ttl_s: None,
            history: None,
        };
        StoredManifest {
            uid: ManifestUid(0),
            scopes: vec![StoredScope { start: Seqno(0), scope }],
            open: vec![StoredCollection { start: Seqno(0), collection }],
            dropped: Vec::new(),
        }
    }
}

/// The system events among versions that are sorted by stored key, in the order in which they happened.
pub(crate) fn events_in(items: &[Version]) -> Vec<&Version> {
    let prefix = SYSTEM.0 as u8;
    let from = items.partition_point(|version| version.stored_key().first() < Some(&prefix));
    let to = items.partition_point(|version| version.stored_key().first() <= Some(&prefix));
    let mut events: Vec<&Version> = items[from..to].iter().collect();
    events.sort_unstable_by_key(|version| version.meta().by_seqno);
    events
}

impl StoredManifest {
    /// Reads it from the local documents that `local` gives; nothing if one of them is damaged.
    pub fn read<E>(
        mut local: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<StoredManifest>, E> {
        let mut manifest = StoredManifest::default();
        let [uid, scopes, open, dropped] = [
            local(UID_ID.as_bytes())?,
            local(SCOPES_ID.as_bytes())?,
            local(OPEN_ID.as_bytes())?,
            local(DROPPED_ID.as_bytes())?,
        ];
        Ok((|| {
            if let Some(uid) = uid {
                manifest.uid = ManifestUid(Table::root(&uid)?.u64(0)?);
            }
            if let Some(scopes) = scopes {
                manifest.scopes = entries(&scopes, scope_of)?;
                manifest.scopes.sort_by_key(|there| there.scope.id);
            }
            if let Some(open) = open {
                manifest.open = entries(&open, open_of)?;
                manifest.open.sort_by_key(|there| there.collection.id);
            }
            if let Some(dropped) = dropped {
                manifest.dropped = entries(&dropped, drop_of)?;
            }
            Some(manifest)
        })())
    }

    /// The local documents; one without a value is to be removed.
    pub(crate) fn locals(&self) -> [(&'static str, Option<Vec<u8>>); 4] {
        let open = self.open.iter().map(|one| collection_fields(one.start.0, &one.collection));
        let open: Vec<CollectionFields<'_>> = open.collect();
        let scopes = self.scopes.iter().map(|StoredScope { start, scope }| {
            [Field::U64(start.0), Field::U32(scope.id.0), Field::Text(&scope.name)]
        });
        let scopes: Vec<[Field<'_>; 3]> = scopes.collect();
        let dropped = self
            .dropped
            .iter()
            .map(|StoredDrop { id, start, end }| [Field::U64(start.0), Field::U64(end.0), Field::U32(id.0)]);
        let dropped: Vec<[Field<'_>; 3]> = dropped.collect();
        let has_dropped = !dropped.is_empty();
        [
            (DROPPED_ID, has_dropped.then(|| encode_list(dropped.iter().map(|entry| &entry[..])))),
            (UID_ID, Some(encode(&[Field::U64(self.uid.0)]))),
            (OPEN_ID, Some(encode_list(open.iter().map(|entry| entry.as_slice())))),
            (SCOPES_ID, Some(encode_list(scopes.iter().map(|entry| &entry[..])))),
        ]
    }

    /// The local document about what is dropped.
    pub(crate) fn dropped_local(&self) -> (&'static str, Option<Vec<u8>>) {
        let [dropped, ..] = self.locals();
        dropped
    }

    /// Takes over what an event says that is saved; one that cannot be read changes nothing, nor does one that is known
    /// already. `is_written` tells whether anything was ever saved in a collection since it began: if not, nothing has to
    /// be erased.
    pub(crate) fn apply(&mut self, version: &Version, is_written: impl Fn(CollectionId, Seqno) -> bool) {
        let Some(event) = SystemEvent::of(version) else {
            tracing::error!(
                event = "system_event_unreadable", seqno = %version.meta().by_seqno,
                "a system event cannot be read, and is passed over"
            );
            return;
        };
        let seqno = version.meta().by_seqno;
        self.uid = self.uid.max(event.manifest());
        match event {
            SystemEvent::ScopeBegin { scope, .. } => match self.scope_at(scope.id) {
                Ok(at) if self.scopes[at].start >= seqno => {}
                Ok(at) => self.scopes[at] = StoredScope { start: seqno, scope },
                Err(at) => self.scopes.insert(at, StoredScope { start: seqno, scope }),
            },
            SystemEvent::ScopeEnd { id, .. } => {
                if let Ok(at) = self.scope_at(id)
                    && self.scopes[at].start < seqno
                {
                    self.scopes.remove(at);
                }
            }
            SystemEvent::CollectionBegin { collection, .. } => {
                // One that is older was dropped meanwhile, by an event under the same key.
                if self.is_open(collection.id) {
                    self.end(collection.id, Seqno(seqno.0.saturating_sub(1)), is_written);
                }
                if let Err(at) = self.open_at(collection.id) {
                    self.open.insert(at, StoredCollection { start: seqno, collection });
                }
            }
            SystemEvent::CollectionChanged { collection, .. } => {
                if let Ok(at) = self.open_at(collection.id) {
                    let there = &mut self.open[at].collection;
                    (there.max_ttl_s, there.history) = (collection.max_ttl_s, collection.history);
                }
            }
            SystemEvent::CollectionEnd { id, .. } => self.end(id, seqno, is_written),
        }
    }

    fn end(&mut self, id: CollectionId, end: Seqno, is_written: impl Fn(CollectionId, Seqno) -> bool) {
        let found = self.open_at(id).ok().filter(|&at| self.open[at].start <= end);
        let start = match found {
            Some(at) => self.open.remove(at).start,
            // It began in the same batch, by an event under the same key, which the batch does not have any more.
            None if !self.is_open(id) && !self.is_dropped(id, end) => Seqno(0),
            None => return,
        };
        if is_written(id, start) {
            self.dropped.push(StoredDrop { id, start, end });
        }
    }

    /// Whether it is known that what a collection held at a seqno is dropped.
    fn is_dropped(&self, id: CollectionId, seqno: Seqno) -> bool {
        self.dropped.iter().any(|dropped| dropped.id == id && seqno <= dropped.end)
    }

    /// Seqno of the event that made the default collection; 0 if it has always been there, or is not there.
    pub(crate) fn default_start(&self) -> Seqno {
        self.open_at(CollectionId::DEFAULT).map_or(Seqno(0), |at| self.open[at].start)
    }

    /// Whether a collection is there, since before a seqno.
    pub(crate) fn is_open_before(&self, id: CollectionId, seqno: Seqno) -> bool {
        self.open_at(id).is_ok_and(|at| self.open[at].start < seqno)
    }

    /// Seqno of the event that made a collection, if it is there.
    pub(crate) fn start_of(&self, id: CollectionId) -> Option<Seqno> {
        self.open_at(id).ok().map(|at| self.open[at].start)
    }

    /// Whether a collection is there.
    pub(crate) fn is_open(&self, id: CollectionId) -> bool {
        self.open_at(id).is_ok()
    }

    /// The place of a collection, or the one it would have.
    fn open_at(&self, id: CollectionId) -> Result<usize, usize> {
        self.open.binary_search_by_key(&id, |there| there.collection.id)
    }

    /// The place of a scope, or the one it would have.
    fn scope_at(&self, id: ScopeId) -> Result<usize, usize> {
        self.scopes.binary_search_by_key(&id, |there| there.scope.id)
    }
}

fn entries<T>(bytes: &[u8], entry: impl Fn(&Table<'_>) -> Option<T>) -> Option<Vec<T>> {
    Table::root(bytes)?.list(0)?.iter().map(entry).collect()
}

fn scope_of(table: &Table<'_>) -> Option<StoredScope> {
    let scope = Scope { id: ScopeId(table.u32(1)?), name: table.text(2)?.to_owned() };
    Some(StoredScope { start: Seqno(table.u64(0)?), scope })
}

fn open_of(table: &Table<'_>) -> Option<StoredCollection> {
    Some(StoredCollection { start: Seqno(table.u64(0)?), collection: collection_of(table)? })
}

fn drop_of(table: &Table<'_>) -> Option<StoredDrop> {
    Some(StoredDrop {
        id: CollectionId(table.u32(2)?),
        start: Seqno(table.u64(0)?),
        end: Seqno(table.u64(1)?),
    })
}
