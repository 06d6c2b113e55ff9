//! Who changes documents, and how safe a change must be before it is told of.

use std::ops::Deref;

use base::{Cas, Datatype, DocKey, Moment, NewVersion, SyncWrite, VbId, VersionMeta};
use subdoc::exec::MutationOutcome;
use subdoc::request::MutationRequest;

use crate::bucket::Bucket;
use crate::mutated::Mutated;
use crate::refusal::Refusal;
use crate::store::StoreRequest;
use crate::sync_waiters::Durable;
use crate::update::{CounterRequest, End};
use crate::whole::Whole;

/// The changes of a bucket's documents, at once or as sync writes; made by [`Bucket::durably`].
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    bucket: &'a Bucket,
    pub(crate) durable: Option<Durable>,
}

impl Deref for Writer<'_> {
    type Target = Bucket;

    fn deref(&self) -> &Bucket {
        self.bucket
    }
}

impl Writer<'_> {
    /// A new version of a document, or its prepare. Its part in a sync write is this writer's, whatever `meta` says.
    pub(crate) fn version(&self, meta: VersionMeta, key: DocKey<'_>, value: &[&[u8]]) -> NewVersion {
        let heap = &self.context.heap;
        let Some(durable) = self.durable else {
            return NewVersion::new(heap, VersionMeta { sync_write: SyncWrite::No, ..meta }, key, value);
        };
        if self.context.is_alone() {
            let sync_write = SyncWrite::Alone(durable.level);
            return NewVersion::new(heap, VersionMeta { sync_write, ..meta }, key, value);
        }
        NewVersion::prepare(heap, durable.level, meta, key, value)
    }

    /// As [`Writer::version`], with the value of `like`.
    pub(crate) fn version_like(&self, meta: VersionMeta, key: DocKey<'_>, like: &Whole) -> NewVersion {
        let heap = &self.context.heap;
        match self.durable {
            Some(durable) if !self.context.is_alone() => {
                NewVersion::prepare_like(heap, durable.level, meta, key, like)
            }
            durable => {
                let sync_write = durable.map_or(SyncWrite::No, |durable| SyncWrite::Alone(durable.level));
                NewVersion::like(heap, VersionMeta { sync_write, ..meta }, key, like)
            }
        }
    }
}

impl Bucket {
    /// Whoever makes changes that are told of once they are as safe as `durable` says; without it at once.
    ///
    /// A sync write is answered in two steps: the change is checked and prepared when the call returns, and
    /// [`Mutated::pending`] says when it is committed; nothing there means that it is already.
    /// All are at least as safe as the bucket's `durability_min_level` says.
    pub fn durably(&self, durable: Option<Durable>) -> Writer<'_> {
        Writer { bucket: self, durable: self.durability.raised(durable) }
    }

    /// Whoever makes changes that no client asks for: at once.
    pub(crate) fn at_once(&self) -> Writer<'_> {
        Writer { bucket: self, durable: None }
    }

    /// [`Writer::store`] as safe as the bucket asks.
    pub fn store(&self, vb: VbId, request: &StoreRequest<'_>, now: Moment) -> Result<Mutated, Refusal> {
        self.durably(None).store(vb, request, now)
    }

    /// [`Writer::join`] as safe as the bucket asks.
    #[expect(clippy::too_many_arguments, reason = "each is a field of the request, and there is one caller")]
    pub fn join(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        part: &[u8],
        sent: Datatype,
        end: End,
        cas: Cas,
        now: Moment,
    ) -> Result<Mutated, Refusal> {
        self.durably(None).join(vb, key, part, sent, end, cas, now)
    }

    /// [`Writer::count`] as safe as the bucket asks.
    pub fn count(
        &self,
        vb: VbId,
        request: &CounterRequest<'_>,
        now: Moment,
    ) -> Result<(Mutated, u64), Refusal> {
        self.durably(None).count(vb, request, now)
    }

    /// [`Writer::touch`] as safe as the bucket asks.
    pub fn touch(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        expiry: u32,
        now: Moment,
    ) -> Result<(Option<Mutated>, Whole), Refusal> {
        self.durably(None).touch(vb, key, expiry, now)
    }

    /// [`Writer::delete`] as safe as the bucket asks.
    pub fn delete(&self, vb: VbId, key: DocKey<'_>, cas: Cas, now: Moment) -> Result<Mutated, Refusal> {
        self.durably(None).delete(vb, key, cas, now)
    }

    /// [`Writer::subdoc_mutate`] as safe as the bucket asks.
    pub fn subdoc_mutate(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        request: &MutationRequest<'_>,
        preserve_expiry: bool,
        now: Moment,
    ) -> Result<(Option<Mutated>, MutationOutcome), Refusal> {
        self.durably(None).subdoc_mutate(vb, key, request, preserve_expiry, now)
    }
}
