//! From records of a file to versions.

use std::ops::ControlFlow;

use base::leb128::encode_leb128;
use base::limits::MAX_STORED_KEY_BYTES;
use base::{
    Cas, Datatype, DocKey, DurabilityLevel, Heap, ItemKind, NewVersion, RevSeqno, Seqno, SyncWrite, VbId,
    Version, VersionMeta,
};
use couchstore::{DocInfo, Durability, Pieces, RevMeta, Snapshot, Want, is_snappy_block};

use super::file::read_state;
use crate::change::{Change, ChangesWanted, Reading, document_key};
use crate::collections::{PREPARES, SYSTEM};
use crate::failure::{Failure, Trouble};
use crate::state::VbStateDoc;
use crate::store::Values;

/// The documents of a vBucket at one commit.
pub(super) struct Records {
    vb: VbId,
    snapshot: Snapshot,
    heap: Heap,
}

/// Space for a body, used again for the next one.
#[derive(Default)]
pub(super) struct Scratch {
    stored: Vec<u8>,
    inflated: Vec<u8>,
    /// Only where many are looked at: for one body a piece is too much.
    pieces: Option<Pieces>,
}

/// While a tree is walked.
type Walked<T> = Result<T, Trouble<couchstore::Failure>>;

impl Records {
    pub(super) fn new(vb: VbId, snapshot: Snapshot, heap: Heap) -> Records {
        Records { vb, snapshot, heap }
    }

    fn failed(&self, source: couchstore::Failure) -> Failure {
        Failure::File { vb: self.vb, source }
    }

    /// Visits records until `visit` breaks, prepares and aborts only if they are asked for.
    fn walk(
        &self,
        prepares: bool,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
        walk: impl FnOnce(&mut dyn FnMut(DocInfo<'_>) -> Walked<ControlFlow<()>>) -> Walked<()>,
    ) -> Result<(), Failure> {
        let mut scratch = Scratch { pieces: Some(Pieces::default()), ..Scratch::default() };
        let walked = walk(&mut |info| {
            if !prepares && DocKey::parse(info.id).is_some_and(|key| key.collection == PREPARES) {
                return Ok(ControlFlow::Continue(()));
            }
            let version = self.version(&info, values, &mut scratch).map_err(Trouble::Ours)?;
            Ok(visit(version))
        });
        walked.map_err(|trouble| self.trouble(trouble))
    }

    fn trouble(&self, trouble: Trouble<couchstore::Failure>) -> Failure {
        trouble.into_failure(|source| self.failed(source))
    }

    fn makes_no_sense(&self, info: &DocInfo<'_>, what: &'static str) -> Failure {
        Failure::Record { vb: self.vb, path: self.snapshot.path().to_owned(), seqno: Seqno(info.seqno), what }
    }

    /// No reader gets a Snappy block that cannot be inflated: some readers send it on as it is.
    #[inline]
    fn check_value(&self, info: &DocInfo<'_>, datatype: Datatype, stored: &[u8]) -> Result<(), Failure> {
        if !datatype.is_snappy() || is_snappy_block(stored) {
            return Ok(());
        }
        Err(self.makes_no_sense(info, "the value is no Snappy block, as the datatype says"))
    }

    /// What a record says, without the value.
    #[inline]
    fn meta<'i>(&self, info: &DocInfo<'i>) -> Result<(DocKey<'i>, VersionMeta), Failure> {
        let unknown = |what| self.makes_no_sense(info, what);
        let key = DocKey::parse(info.id).ok_or_else(|| unknown("the key has no collection prefix"))?;
        if info.id.len() > MAX_STORED_KEY_BYTES {
            return Err(unknown("the key is too long"));
        }
        document_key(key).ok_or_else(|| unknown("a prepare is of no document"))?;
        let rev_meta = RevMeta::decode(info.rev_meta).ok_or_else(|| unknown("revision metadata"))?;
        let datatype = datatype(info, &rev_meta).ok_or_else(|| unknown("datatype"))?;
        let meta = VersionMeta {
            cas: Cas(rev_meta.cas),
            by_seqno: Seqno(info.seqno),
            rev_seqno: RevSeqno(info.rev_seqno),
            flags: rev_meta.flags,
            expiry: rev_meta.expiry,
            datatype,
            kind: kind(info, &rev_meta, key),
            sync_write: sync_write(&rev_meta).ok_or_else(|| unknown("the state of a sync write"))?,
        };
        Ok((key, meta))
    }

    /// A record as a version.
    pub(super) fn version(
        &self,
        info: &DocInfo<'_>,
        values: Values,
        scratch: &mut Scratch,
    ) -> Result<Version, Failure> {
        let (key, meta) = self.meta(info)?;
        if is_left(values, info, key) {
            return Ok(NewVersion::without_value(&self.heap, meta, key, info.body_bytes).publish());
        }
        let Scratch { stored, inflated, pieces } = scratch;
        let value = match (meta.datatype.is_snappy(), pieces) {
            (true, Some(pieces)) => self.snapshot.stored_body_in_pieces(info, stored, pieces),
            (false, Some(pieces)) => self.snapshot.body_in_pieces(info, stored, inflated, pieces),
            (true, None) => self.snapshot.stored_body(info, stored),
            (false, None) => self.snapshot.body(info, stored, inflated),
        };
        let value = value.map_err(|failure| self.failed(failure))?;
        self.check_value(info, meta.datatype, value)?;
        Ok(NewVersion::new(&self.heap, meta, key, &[value]).publish())
    }
}

impl crate::store::Snapshot for Records {
    fn state(&self) -> Result<VbStateDoc, Failure> {
        read_state(self.vb, &self.snapshot)
    }

    fn high_seqno(&self) -> Seqno {
        Seqno(self.snapshot.info().update_seqno)
    }

    fn purge_seqno(&self) -> Seqno {
        Seqno(self.snapshot.info().purge_seqno)
    }

    fn get(&self, key: DocKey<'_>) -> Result<Option<Version>, Failure> {
        let found = self
            .snapshot
            .get(&key.to_stored().0, |info| self.version(&info, Values::Read, &mut Scratch::default()))
            .map_err(|failure| self.failed(failure))?;
        found.transpose()
    }

    fn scan(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk(false, values, visit, |each| self.snapshot.changes_since(from.0, each))
    }

    fn scan_all(
        &self,
        from: Seqno,
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk(true, values, visit, |each| self.snapshot.changes_since(from.0, each))
    }

    fn changes(
        &self,
        wanted: &ChangesWanted,
        reading: &mut Reading,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Seqno>, Failure> {
        let Reading { file, inflated } = reading;
        // A key that makes no sense shows when its record is visited.
        let want = |info: &DocInfo<'_>| match DocKey::parse(info.id) {
            _ if wanted.prepares && wanted.values == Values::Read => Want::Body,
            Some(key) if key.collection == PREPARES && !wanted.prepares => Want::Nothing,
            Some(key) if is_left(wanted.values, info, key) => Want::Record,
            _ => Want::Body,
        };
        let next = self.snapshot.read_since(wanted.from.0, wanted.max_bytes, file, want, |info, stored| {
            let (key, meta) = self.meta(info).map_err(Trouble::Ours)?;
            let value = if is_left(wanted.values, info, key) {
                None
            } else if meta.datatype.is_snappy() {
                self.check_value(info, meta.datatype, stored).map_err(Trouble::Ours)?;
                Some(stored)
            } else {
                Some(self.snapshot.inflated(info, stored, inflated)?)
            };
            Ok(visit(&Change::stored(meta, info.id, key, value)))
        });
        next.map(|next| next.map(Seqno)).map_err(|trouble| self.trouble(trouble))
    }

    fn prepare_bytes(&self) -> Result<u64, Failure> {
        let (prefix, len) = encode_leb128(PREPARES.0);
        let mut sum = 0;
        let walked: Walked<()> = self.snapshot.scan_ids(&prefix[..len], |info: DocInfo<'_>| {
            if !info.id.starts_with(&prefix[..len]) {
                return Ok(ControlFlow::Break(()));
            }
            if !info.deleted {
                sum += (info.id.len() + info.rev_meta.len()) as u64 + u64::from(info.body_bytes);
            }
            Ok(ControlFlow::Continue(()))
        });
        walked.map(|()| sum).map_err(|trouble| self.trouble(trouble))
    }

    fn scan_keys(
        &self,
        from: &[u8],
        values: Values,
        visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.walk(false, values, visit, |each| self.snapshot.scan_ids(from, each))
    }
}

/// Whether the value of a record is not read. A system event is nothing without its value.
fn is_left(values: Values, info: &DocInfo<'_>, key: DocKey<'_>) -> bool {
    values == Values::Leave && info.body_bytes > 0 && key.collection != SYSTEM
}

/// Documents from before datatypes were stored say only whether they are JSON.
#[inline]
fn datatype(info: &DocInfo<'_>, rev_meta: &RevMeta) -> Option<Datatype> {
    match rev_meta.datatype {
        Some(bits) => Datatype::from_wire(bits),
        None if info.content_meta & 0x7f == couchstore::CONTENT_JSON => Some(Datatype::JSON),
        None => Some(Datatype::RAW),
    }
}

/// The drop of a collection is a deleted system event: its kind says deleted, its key says system event.
#[inline]
fn kind(info: &DocInfo<'_>, rev_meta: &RevMeta, key: DocKey<'_>) -> ItemKind {
    if matches!(rev_meta.durability, Some(Durability::Pending { is_delete: true, .. })) {
        return ItemKind::Deletion;
    }
    match (info.deleted, rev_meta.expired) {
        (true, true) => ItemKind::Expiration,
        (true, false) => ItemKind::Deletion,
        (false, _) if key.collection == SYSTEM => ItemKind::SystemEvent,
        (false, _) => ItemKind::Mutation,
    }
}

/// Nothing if the level is unknown.
#[inline]
pub(super) fn sync_write(rev_meta: &RevMeta) -> Option<SyncWrite> {
    Some(match rev_meta.durability {
        None => SyncWrite::No,
        Some(Durability::Pending { level, .. }) => SyncWrite::Prepare(DurabilityLevel::from_wire(level)?),
        Some(Durability::Commit { prepared_seqno }) => SyncWrite::Commit { prepared: Seqno(prepared_seqno) },
        Some(Durability::Abort { prepared_seqno }) => SyncWrite::Abort { prepared: Seqno(prepared_seqno) },
    })
}
