//! Changes of clients that ask for no durability level: as safe as the bucket is configured to make them.

use base::{Cas, Datatype, DocKey, Moment, VbId};
use subdoc::exec::MutationOutcome;
use subdoc::request::MutationRequest;

use crate::documents::Documents;
use crate::mutated::Mutated;
use crate::refusal::Refusal;
use crate::store::StoreRequest;
use crate::update::{CounterRequest, End};
use crate::whole::Whole;

impl Documents {
    /// [`Writer::store`](crate::Writer::store) as safe as the bucket asks.
    pub fn store(&self, vb: VbId, request: &StoreRequest<'_>, now: Moment) -> Result<Mutated, Refusal> {
        self.durably(None).store(vb, request, now)
    }

    /// [`Writer::join`](crate::Writer::join) as safe as the bucket asks.
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

    /// [`Writer::count`](crate::Writer::count) as safe as the bucket asks.
    pub fn count(
        &self,
        vb: VbId,
        request: &CounterRequest<'_>,
        now: Moment,
    ) -> Result<(Mutated, u64), Refusal> {
        self.durably(None).count(vb, request, now)
    }

    /// [`Writer::touch`](crate::Writer::touch) as safe as the bucket asks.
    pub fn touch(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        expiry: u32,
        now: Moment,
    ) -> Result<(Option<Mutated>, Whole), Refusal> {
        self.durably(None).touch(vb, key, expiry, now)
    }

    /// [`Writer::delete`](crate::Writer::delete) as safe as the bucket asks.
    pub fn delete(&self, vb: VbId, key: DocKey<'_>, cas: Cas, now: Moment) -> Result<Mutated, Refusal> {
        self.durably(None).delete(vb, key, cas, now)
    }

    /// [`Writer::subdoc_mutate`](crate::Writer::subdoc_mutate) as safe as the bucket asks.
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
