//! Set, add and replace.

use base::{Cas, Datatype, DocKey, Moment, VbId, VersionMeta, limits};
use vbucket::{Basis, Change, Existence};

use crate::mutated::Mutated;
use crate::read::Seen;
use crate::refusal::Refusal;
use crate::value::{self, Prepared};
use crate::write::{Computed, absolute_expiry};
use crate::writer::Writer;

/// Whether the document must exist for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// It may or may not.
    Set,
    /// It must not.
    Add,
    /// It must.
    Replace,
}

/// A document to store.
pub struct StoreRequest<'a> {
    /// Its key.
    pub key: DocKey<'a>,
    /// Its body as sent.
    pub body: &'a [u8],
    /// Its datatype as sent: only the Snappy bit counts.
    pub datatype: Datatype,
    /// The client's flags.
    pub flags: u32,
    /// When it expires as sent: relative or absolute.
    pub expiry: u32,
    /// Whether it must exist.
    pub mode: StoreMode,
    /// The CAS it must have.
    pub cas: Cas,
    /// Keep the expiry of a document that is alive.
    pub preserve_expiry: bool,
}

impl<'a> StoreRequest<'a> {
    /// A document of this body, without flags and expiry, whatever there is under its key.
    pub fn set(key: DocKey<'a>, body: &'a [u8]) -> StoreRequest<'a> {
        StoreRequest {
            key,
            body,
            datatype: Datatype::RAW,
            flags: 0,
            expiry: 0,
            mode: StoreMode::Set,
            cas: Cas::ANY,
            preserve_expiry: false,
        }
    }
}

impl Writer<'_> {
    /// Stores a document. Xattrs that the document has stay with it.
    pub fn store(&self, vb: VbId, request: &StoreRequest<'_>, now: Moment) -> Result<Mutated, Refusal> {
        let keeps_compressed = self.core.keeps_compressed();
        let bytes =
            value::stored_len(request.body, request.datatype, keeps_compressed, limits::MAX_VALUE_BYTES)?;
        self.admit_coming(bytes, false)?;
        let prepared =
            value::prepare(request.body, request.datatype, keeps_compressed, &self.core.value_times)?;
        let meta = VersionMeta {
            flags: request.flags,
            expiry: absolute_expiry(request.expiry, now),
            datatype: prepared.datatype,
            ..VersionMeta::default()
        };
        let new = self.version(meta, request.key, &[&prepared.bytes]);
        self.admit_long(&new)?;
        let change = Change {
            new,
            existence: request.mode.existence(),
            cas: request.cas,
            basis: Basis::NoXattrs,
            preserve_expiry: request.preserve_expiry,
        };
        let hash = self.core.hash(request.key);
        match self.apply(vb, hash, change, now, |ops| ops.stores += 1, |_| {}) {
            Err(Refusal::Busy) => self.store_keeping_xattrs(vb, request, &prepared, meta, now),
            outcome => outcome,
        }
    }

    /// The rare case: the document has xattrs, which the new version takes over.
    fn store_keeping_xattrs(
        &self,
        vb: VbId,
        request: &StoreRequest<'_>,
        prepared: &Prepared<'_>,
        meta: VersionMeta,
        now: Moment,
    ) -> Result<Mutated, Refusal> {
        let body = if prepared.datatype.is_snappy() {
            self.core.value_times.inflate(&prepared.bytes, limits::MAX_VALUE_BYTES)?
        } else {
            prepared.bytes.to_vec()
        };
        let stored = self.modify(vb, request.key, request.cas, now, |found| {
            let live = found.filter(|f| f.version.is_live(now));
            match (request.mode, live) {
                (StoreMode::Add, Some(_)) => return Err(Refusal::Exists),
                (StoreMode::Replace, None) => return Err(Refusal::NotFound),
                _ => {}
            }
            // Of a document without xattrs nothing is kept, so its value is not needed.
            let kept = live.filter(|f| f.version.meta().datatype.is_xattr()).map(Seen::whole).transpose()?;
            let xattrs = kept.as_ref().map(value::section_of).transpose()?.unwrap_or_default();
            let plain_type = meta.datatype.without(Datatype::SNAPPY);
            let datatype = if xattrs.is_empty() { plain_type } else { plain_type.with(Datatype::XATTR) };
            let new = self.version(VersionMeta { datatype, ..meta }, request.key, &[&xattrs, &body]);
            value::check_size(new.value(), datatype)?;
            let preserve_expiry = request.preserve_expiry;
            Ok(Computed { preserve_expiry, ..Computed::new(new, ()) })
        })?;
        Ok(stored.0)
    }
}

impl StoreMode {
    fn existence(self) -> Existence {
        match self {
            StoreMode::Set => Existence::Any,
            StoreMode::Add => Existence::Absent,
            StoreMode::Replace => Existence::Live,
        }
    }
}
