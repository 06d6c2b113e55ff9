//! Who changes documents, and how safe a change must be before it is told of.

use std::ops::Deref;

use base::{DocKey, NewVersion, SyncWrite, VersionMeta};

use crate::documents::Documents;
use crate::sync_waiters::Durable;
use crate::whole::Whole;

/// The changes of a bucket's documents, at once or as sync writes; made by [`Documents::durably`].
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    documents: &'a Documents,
    pub(crate) durable: Option<Durable>,
}

impl Deref for Writer<'_> {
    type Target = Documents;

    fn deref(&self) -> &Documents {
        self.documents
    }
}

impl Writer<'_> {
    /// A new version of a document, or its prepare. Its part in a sync write is this writer's, whatever `meta` says.
    pub(crate) fn version(&self, meta: VersionMeta, key: DocKey<'_>, value: &[&[u8]]) -> NewVersion {
        let heap = &self.core.context.heap;
        let Some(durable) = self.durable else {
            return NewVersion::new(heap, VersionMeta { sync_write: SyncWrite::No, ..meta }, key, value);
        };
        if self.core.context.is_alone() {
            let sync_write = SyncWrite::Alone(durable.level);
            return NewVersion::new(heap, VersionMeta { sync_write, ..meta }, key, value);
        }
        NewVersion::prepare(heap, durable.level, meta, key, value)
    }

    /// As [`Writer::version`], with the value of `like`.
    pub(crate) fn version_like(&self, meta: VersionMeta, key: DocKey<'_>, like: &Whole) -> NewVersion {
        let heap = &self.core.context.heap;
        match self.durable {
            Some(durable) if !self.core.context.is_alone() => {
                NewVersion::prepare_like(heap, durable.level, meta, key, like)
            }
            durable => {
                let sync_write = durable.map_or(SyncWrite::No, |durable| SyncWrite::Alone(durable.level));
                NewVersion::like(heap, VersionMeta { sync_write, ..meta }, key, like)
            }
        }
    }
}

impl Documents {
    /// Whoever makes changes that are told of once they are as safe as `durable` says; without it at once.
    ///
    /// A sync write is answered in two steps: the change is checked and prepared when the call returns, and
    /// [`Mutated::pending`](crate::Mutated::pending) says when it is committed; nothing there means that it is already.
    /// All are at least as safe as the bucket's `durability_min_level` says.
    pub fn durably(&self, durable: Option<Durable>) -> Writer<'_> {
        Writer { documents: self, durable: self.durability.raised(durable) }
    }

    /// Whoever makes changes that no client asks for: at once.
    pub(crate) fn at_once(&self) -> Writer<'_> {
        Writer { documents: self, durable: None }
    }
}
