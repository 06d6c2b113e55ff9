//! Sub-document look-ups and mutations: what `subdoc` computes from one version, applied to the bucket.

use base::{Cas, Datatype, DocKey, ItemKind, Moment, VbId, VbState, VbUuid, Version, VersionMeta};
use subdoc::exec::{self, ClockMode, Document, LookupOutcome, Metadata, MutationOutcome};
use subdoc::request::{LookupRequest, MutationRequest, doc_flag};

use crate::documents::Documents;
use crate::mutated::Mutated;
use crate::read::Seen;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::value;
use crate::write::{Computed, MAX_TRIES, absolute_expiry};
use crate::writer::Writer;

/// Why a computed mutation was not applied.
enum Stop {
    /// The bucket refused.
    Refused(Refusal),
    /// The request has its answer already: nothing is to be stored.
    Answered(Box<MutationOutcome>),
}

impl Documents {
    /// Bytes of a document's value without compression, if it is in memory: what each path of an operation on it costs.
    /// 0 if there is none, or if none may be looked at.
    pub fn plain_bytes(&self, vb: VbId, key: DocKey<'_>, replica: bool, now: Moment) -> usize {
        let state = if replica { VbState::Replica } else { VbState::Active };
        let found = self.peek_in_state(vb, key, state, now).ok().flatten();
        found.and_then(|found| found.whole().ok()).map_or(0, |whole| value::plain_len(&whole))
    }

    /// Runs a look-up on one version; `answer` gets the outcome and the version's CAS.
    pub fn subdoc_lookup<T>(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        request: &LookupRequest<'_>,
        now: Moment,
        answer: impl FnOnce(&LookupOutcome<'_>, Cas) -> T,
    ) -> Result<T, Refusal> {
        let replica = request.doc_flags & doc_flag::REPLICA_READ != 0;
        let state = if replica { VbState::Replica } else { VbState::Active };
        let found = self.peek_in_state(vb, key, state, now)?;
        let sent = Cas(request.cas);
        let is_locked = found.as_ref().is_some_and(|f| f.cas == Cas::LOCKED);
        if is_locked && names_no_version(request.cas) {
            return Err(Refusal::Locked);
        }
        let whole = found.as_ref().map(Seen::whole).transpose()?;
        if let Some(whole) = &whole {
            self.core.context.frequency.raise(whole);
        }
        let times = self.core.value_times();
        let plain = whole.as_ref().map(|whole| times.plain(whole)).transpose()?.unwrap_or_default();
        let uuid = self.count_lookup(vb, key, found.as_ref().is_some_and(|found| found.version.is_live(now)));
        let mut document = found.as_ref().map(|f| document(&f.version, &plain, uuid, now));
        let cas = found.as_ref().map_or(Cas(0), |f| f.cas);
        let (Some(document), true) = (&mut document, is_locked) else {
            return Ok(answer(&exec::lookup(document, request), cas));
        };
        // Like the original: a CAS opens the document, its own CAS is not shown, and what was sent comes back.
        document.metadata.cas = Cas::LOCKED.0;
        let request = LookupRequest { cas: 0, ..*request };
        Ok(answer(&exec::lookup(Some(*document), &request), sent))
    }

    /// Counts a look-up like any other read; the vBucket's UUID.
    fn count_lookup(&self, vb: VbId, key: DocKey<'_>, is_hit: bool) -> VbUuid {
        let Ok(mut shard) = self.core.vbuckets.find(vb, Holder::FrontEnd) else { return VbUuid::default() };
        let reads = if is_hit { &mut shard.ops.get_hits } else { &mut shard.ops.get_misses };
        *reads += 1;
        shard.vb.collections_mut().count_op(key.collection, |ops| ops.gets += 1);
        shard.vb.uuid()
    }
}

impl Writer<'_> {
    /// Runs a mutation. Nothing is stored if the outcome's status is an error.
    pub fn subdoc_mutate(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        request: &MutationRequest<'_>,
        preserve_expiry: bool,
        now: Moment,
    ) -> Result<(Option<Mutated>, MutationOutcome), Refusal> {
        let uuid = self.core.with_vbucket(vb, |vb| vb.uuid()).ok_or(Refusal::NotMyVbucket)?;
        let mut answered = None;
        for _ in 0..MAX_TRIES {
            let found = self.peek(vb, key, now)?;
            let live = found.as_ref().is_some_and(|f| f.version.is_live(now));
            // The CAS of a tombstone is compared by the computation; the vBucket compares that of a document.
            let cas = if live { Cas(request.cas) } else { Cas::ANY };
            let computed = compute(self, found.as_ref(), key, request, preserve_expiry, uuid, now);
            let computed = match computed {
                Ok(computed) => computed,
                Err(Stop::Refused(refusal)) => return Err(refusal),
                Err(Stop::Answered(outcome)) => {
                    answered = Some(*outcome);
                    break;
                }
            };
            match self.apply_computed(vb, key, cas, found.as_ref(), computed, now) {
                Ok((mutated, outcome)) => return Ok((Some(mutated), outcome)),
                Err(Refusal::Busy) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        answered.map(|outcome| (None, outcome)).ok_or(Refusal::Busy)
    }
}

/// Whether a CAS asks for no version of its own: none was sent, or the one that a locked document shows.
fn names_no_version(cas: u64) -> bool {
    matches!(Cas(cas), Cas::ANY | Cas::LOCKED)
}

fn compute(
    writer: &Writer<'_>,
    found: Option<&Seen>,
    key: DocKey<'_>,
    request: &MutationRequest<'_>,
    preserve_expiry: bool,
    uuid: VbUuid,
    now: Moment,
) -> Result<Computed<MutationOutcome>, Stop> {
    let stays_locked =
        found.is_some_and(|f| f.cas == Cas::LOCKED && f.version.meta().cas != Cas(request.cas));
    let adds = request.doc_flags & doc_flag::ADD != 0;
    if stays_locked && !adds && names_no_version(request.cas) {
        return Err(Stop::Refused(Refusal::Locked));
    }
    let whole = found.map(Seen::whole).transpose().map_err(Stop::Refused)?;
    let plain = whole.as_ref().map(|whole| writer.core.value_times().plain(whole)).transpose();
    let plain = plain.map_err(Stop::Refused)?.unwrap_or_default();
    let mut current = found.map(|f| document(&f.version, &plain, uuid, now));
    if let (Some(current), true) = (&mut current, stays_locked) {
        // The lock is found when the result would be stored: what cannot be done is told before.
        current.metadata.cas = request.cas;
    }
    let mut outcome = exec::mutate(current, request);
    let Some(new) = outcome.new.take() else { return Err(Stop::Answered(Box::new(outcome))) };
    if stays_locked {
        return Err(Stop::Refused(Refusal::Locked));
    }
    value::check_size(&new.value, Datatype(new.datatype)).map_err(Stop::Refused)?;
    let old = found.map(|f| f.version.meta()).unwrap_or_default();
    let expiry = match request.expiry {
        _ if new.deleted => now.unix_s(),
        // Without an expiry time the document keeps none, as with a whole-document store.
        sent => absolute_expiry(sent.unwrap_or(0), now),
    };
    let meta = VersionMeta {
        flags: request.user_flags.unwrap_or(old.flags),
        expiry,
        datatype: Datatype(new.datatype),
        kind: if new.deleted { ItemKind::Deletion } else { ItemKind::Mutation },
        ..VersionMeta::default()
    };
    let preserve_expiry = preserve_expiry && !new.deleted;
    Ok(Computed { new: writer.version(meta, key, &[&new.value]), preserve_expiry, late: new.late, outcome })
}

fn document<'a>(version: &Version, plain: &'a [u8], uuid: VbUuid, now: Moment) -> Document<'a> {
    let meta = version.meta();
    Document {
        value: plain,
        datatype: meta.datatype.0,
        deleted: version.is_deleted(),
        metadata: Metadata {
            cas: meta.cas.0,
            seqno: meta.by_seqno.0,
            rev_seqno: meta.rev_seqno.0,
            vbucket_uuid: uuid.0,
            flags: meta.flags,
            exptime_s: meta.expiry,
            // The CAS is the time of the change in nanoseconds, as far as the clocks agree.
            last_modified_s: meta.cas.0 / 1_000_000_000,
            hlc_now_s: u64::from(now.unix_s()),
            hlc_mode: ClockMode::Real,
        },
    }
}
