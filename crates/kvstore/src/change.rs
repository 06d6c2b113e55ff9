//! A change as a reader of many is shown it: borrowed from where it was read to.

use base::{DocKey, INITIAL_FREQUENCY, Seqno, Version, VersionMeta};

use crate::store::Values;

/// A document, tombstone, prepare or system event, borrowed from a version or from what was read of a file.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Its metadata.
    pub meta: VersionMeta,
    /// Collection prefix and key; of a prepare or an abort the prefix of prepares before that.
    pub stored_key: &'a [u8],
    /// The stored key, split. Whoever made the change has looked at that of a prepare's document, too.
    key: DocKey<'a>,
    /// The stored value: a Snappy block if the datatype says so. Nothing if it was not asked for.
    pub value: Option<&'a [u8]>,
    /// How often it was read lately.
    pub frequency: u8,
}

impl<'a> Change<'a> {
    /// A change as it is in a file: `key` is the stored key, split.
    #[inline]
    pub(crate) fn stored(
        meta: VersionMeta,
        stored_key: &'a [u8],
        key: DocKey<'a>,
        value: Option<&'a [u8]>,
    ) -> Change<'a> {
        Change { meta, stored_key, key, value, frequency: INITIAL_FREQUENCY }
    }

    /// What a version says.
    pub fn of(version: &'a Version) -> Change<'a> {
        Change {
            meta: version.meta(),
            stored_key: version.stored_key(),
            key: version.key(),
            value: version.is_resident().then(|| version.value()),
            frequency: version.frequency().load(std::sync::atomic::Ordering::Relaxed),
        }
    }

    /// The key, split into collection and bytes.
    #[inline]
    pub fn key(&self) -> DocKey<'a> {
        self.key
    }

    /// The document's key, also of a prepare or an abort.
    #[inline]
    pub fn document_key(&self) -> DocKey<'a> {
        document_key(self.key).expect("whoever made the change checked its key")
    }

    /// Whether it is a tombstone.
    #[inline]
    pub fn is_deleted(&self) -> bool {
        self.meta.kind.is_deleted()
    }

    /// Bytes of key and value.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.stored_key.len() + self.value.map_or(0, <[u8]>::len)
    }
}

/// The key of the document that a stored key is about; nothing if it is that of a prepare of no document.
#[inline]
pub(crate) fn document_key(key: DocKey<'_>) -> Option<DocKey<'_>> {
    if key.collection == crate::collections::PREPARES { DocKey::parse(key.key) } else { Some(key) }
}

/// What a reader of changes wants of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangesWanted {
    /// Nothing below this.
    pub from: Seqno,
    /// Whether values are read.
    pub values: Values,
    /// Whether prepares and aborts are visited, too.
    pub prepares: bool,
    /// Whether versions in the history of changes are visited that newer ones replaced; see [`crate::Snapshot::history_start`].
    pub past: bool,
    /// About so many bytes of keys and values, one change at least.
    pub max_bytes: usize,
}

/// Buffers of one who reads changes, to be used again for other snapshots. A few MiB at most, or one larger value.
#[derive(Default)]
pub struct Reading {
    pub(crate) file: couchstore::Reading,
    /// A value that was stored compressed.
    pub(crate) inflated: Vec<u8>,
}

impl Reading {
    /// Bytes that its buffers take at the moment.
    pub fn allocated_bytes(&self) -> usize {
        self.file.allocated_bytes() + self.inflated.capacity()
    }
}
