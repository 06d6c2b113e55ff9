//! Changes that build on the document's value: append, prepend, counters, touch.

use base::{Cas, CollectionId, Datatype, DocKey, ItemKind, Moment, NewVersion, VbId, VersionMeta, limits};

use crate::documents::Documents;
use crate::mutated::Mutated;
use crate::read::Seen;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::value;
use crate::whole::Whole;
use crate::write::{Computed, absolute_expiry};
use crate::writer::Writer;

/// Which end a value is joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Append.
    Back,
    /// Prepend.
    Front,
}

/// A counter operation.
pub struct CounterRequest<'a> {
    /// The document.
    pub key: DocKey<'a>,
    /// Up or down.
    pub increment: bool,
    /// By how much.
    pub delta: u64,
    /// What a missing document starts with; nothing: a missing document is refused.
    pub initial: Option<u64>,
    /// The expiry of a new or changed document, as sent.
    pub expiry: u32,
    /// Keep the expiry of a document that is alive.
    pub preserve_expiry: bool,
}

fn live(found: Option<&Seen>, now: Moment) -> Option<&Seen> {
    found.filter(|seen| seen.version.is_live(now))
}

impl Writer<'_> {
    /// Joins a value to a document's body; flags, expiry and xattrs stay.
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
        let inflated;
        let part = if sent.is_snappy() {
            inflated = self.core.value_times.inflate(part, limits::MAX_VALUE_BYTES)?;
            &inflated
        } else {
            part
        };
        let joined = self.modify(vb, key, cas, now, |found| {
            let old = live(found, now).ok_or(Refusal::NotFound)?.whole()?;
            let plain = self.core.value_times.plain(&old)?;
            let body = value::split(&plain, old.meta().datatype)?.1;
            let xattrs = value::section(&plain, body);
            if body.len() + part.len() > limits::MAX_VALUE_BYTES {
                return Err(Refusal::TooBig);
            }
            let (first, second) = if end == End::Back { (body, part) } else { (part, body) };
            let whole = [first, second].concat();
            let kept = old.meta().datatype.without(Datatype::JSON).without(Datatype::SNAPPY);
            let meta =
                VersionMeta { datatype: kept.with(self.core.value_times.detect(&whole)), ..old.meta() };
            let new = self.version(meta, key, &[xattrs, &whole]);
            value::check_size(new.value(), meta.datatype)?;
            Ok(Computed::new(new, ()))
        })?;
        Ok(joined.0)
    }

    /// Counts up or down; the new number is returned with the receipt. Up wraps around, down stops at 0.
    pub fn count(
        &self,
        vb: VbId,
        request: &CounterRequest<'_>,
        now: Moment,
    ) -> Result<(Mutated, u64), Refusal> {
        self.modify(vb, request.key, Cas::ANY, now, |found| {
            if let Some(found) = found
                && found.cas == Cas::LOCKED
            {
                return Err(Refusal::Locked);
            }
            let Some(old) = live(found, now) else {
                let number = request.initial.ok_or(Refusal::NotFound)?;
                let meta =
                    VersionMeta { expiry: absolute_expiry(request.expiry, now), ..VersionMeta::default() };
                return Ok(Computed::new(number_version(self, meta, request.key, &[], number), number));
            };
            let old = old.whole()?;
            let plain = self.core.value_times.plain(&old)?;
            let body = value::split(&plain, old.meta().datatype)?.1;
            let xattrs = value::section(&plain, body);
            let present = parse_number(body).ok_or(Refusal::NotANumber)?;
            let number = if request.increment {
                present.wrapping_add(request.delta)
            } else {
                present.saturating_sub(request.delta)
            };
            let expiry = old.meta().expiry;
            let meta = VersionMeta { expiry, ..old.meta() };
            let new = number_version(self, meta, request.key, xattrs, number);
            Ok(Computed { preserve_expiry: request.preserve_expiry, ..Computed::new(new, number) })
        })
    }

    /// Gives a document another expiry time; returns the receipt (nothing if it had that time already) and the
    /// version that was read.
    pub fn touch(
        &self,
        vb: VbId,
        key: DocKey<'_>,
        expiry: u32,
        now: Moment,
    ) -> Result<(Option<Mutated>, Whole), Refusal> {
        let wanted = VersionMeta { expiry: absolute_expiry(expiry, now), ..VersionMeta::default() };
        let expiry = self.capped_expiry(&wanted, self.collection_ttl_s(vb, key.collection), now);
        let found = self.get_unprepared(vb, key, now)?;
        if found.cas == Cas::LOCKED {
            return Err(Refusal::Locked);
        }
        if found.version.meta().expiry == expiry {
            return Ok((None, found.version));
        }
        let touched = self.modify(vb, key, Cas::ANY, now, |found| {
            let old = live(found, now).ok_or(Refusal::NotFound)?.whole()?;
            let meta = VersionMeta { expiry, ..old.meta() };
            Ok(Computed::new(self.version_like(meta, key, &old), old))
        })?;
        Ok((Some(touched.0), touched.1))
    }

    /// Deletes a document: a tombstone with its system xattrs stays.
    pub fn delete(&self, vb: VbId, key: DocKey<'_>, cas: Cas, now: Moment) -> Result<Mutated, Refusal> {
        let deleted = self.modify(vb, key, cas, now, |found| {
            let old = live(found, now).ok_or(Refusal::NotFound)?;
            let mut tombstone = self.tombstone_of(&old.version, ItemKind::Deletion, now)?;
            if tombstone.meta().datatype.is_xattr() {
                // The flags were those of the body; the attributes that stay have none.
                tombstone.meta_mut().flags = 0;
            }
            Ok(Computed::new(tombstone, ()))
        })?;
        Ok(deleted.0)
    }
}

fn number_version(
    writer: &Writer<'_>,
    meta: VersionMeta,
    key: DocKey<'_>,
    xattrs: &[u8],
    number: u64,
) -> NewVersion {
    let datatype = if xattrs.is_empty() { Datatype::JSON } else { Datatype::JSON.with(Datatype::XATTR) };
    writer.version(VersionMeta { datatype, ..meta }, key, &[xattrs, number.to_string().as_bytes()])
}

/// A decimal number as the counters of this protocol read it: white space around and a plus sign are allowed.
fn parse_number(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?.trim();
    text.parse().ok()
}

impl Documents {
    /// The longest that documents of a collection may live, if it says so.
    pub(crate) fn collection_ttl_s(&self, vb: VbId, id: CollectionId) -> Option<u32> {
        self.core.vbuckets.find(vb, Holder::FrontEnd).ok()?.vb.collections().get(id)?.max_ttl_s
    }
}
