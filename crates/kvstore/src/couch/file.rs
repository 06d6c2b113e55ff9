//! The open file of one vBucket, with the counts of its collections at hand.

use std::path::Path;

use base::env::Disk;
use base::{ItemKind, Seqno, VbId, Version};
use couchstore::{
    Batch, Body, CONTENT_JSON, CONTENT_OPAQUE, CouchFile, DocUpdate, LocalUpdate, RecordSummary, RevMeta,
    Snapshot, Tuning,
};

use crate::collections::{CollectionStats, Owner, Tally, Weight, owner};
use crate::failure::Failure;
use crate::state::{STATE_ID, VbStateDoc};
use crate::store::{Counts, SaveBatch, Saved, StoredVb};

pub(super) struct VbFile {
    file: CouchFile,
    tally: Tally,
}

fn failed(vb: VbId) -> impl Fn(couchstore::Failure) -> Failure {
    move |source| Failure::File { vb, source }
}

impl VbFile {
    pub(super) fn create(disk: &dyn Disk, vb: VbId, path: &Path, tuning: Tuning) -> Result<VbFile, Failure> {
        let mut file = CouchFile::create(disk, path).map_err(failed(vb))?;
        file.set_tuning(tuning);
        Ok(VbFile { file, tally: Tally::default() })
    }

    pub(super) fn open(disk: &dyn Disk, vb: VbId, path: &Path, tuning: Tuning) -> Result<VbFile, Failure> {
        let mut file = CouchFile::open(disk, path).map_err(failed(vb))?;
        file.set_tuning(tuning);
        let mut tally = Tally::default();
        file.snapshot()
            .scan_locals(|id, value| {
                let stats = CollectionStats::collection_of(id).zip(CollectionStats::decode(value));
                if let Some((collection, stats)) = stats {
                    tally.load(collection, stats);
                }
            })
            .map_err(failed(vb))?;
        Ok(VbFile { file, tally })
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.file.snapshot()
    }

    /// Saves and commits. After a failure this file and its counts must not be used again.
    pub(super) fn save(
        &mut self,
        vb: VbId,
        batch: SaveBatch<'_>,
        timestamp_ns: u64,
    ) -> Result<Saved, Failure> {
        let mut docs = Docs { items: batch.items, tally: &mut self.tally, saved: Saved::default() };
        if !batch.items.is_empty() {
            self.file.save(&mut docs).map_err(failed(vb))?;
        }
        let mut saved = docs.saved;
        let changes = self.tally.take_changes();
        let state = batch.state.to_json();
        let mut locals = vec![LocalUpdate { id: STATE_ID, value: Some(&state) }];
        locals.extend(
            changes.iter().map(|(id, value)| LocalUpdate { id: id.as_bytes(), value: value.as_deref() }),
        );
        locals.sort_unstable_by_key(|local| local.id);
        self.file.save_locals(&locals).map_err(failed(vb))?;
        self.file.commit(timestamp_ns).map_err(failed(vb))?;
        saved.counts = self.counts();
        Ok(saved)
    }

    pub(super) fn counts(&self) -> Counts {
        let info = self.file.snapshot().info();
        Counts {
            documents: self.tally.documents(),
            tombstones: info.deleted_count,
            file_bytes: info.file_bytes,
            used_bytes: info.used_bytes(),
        }
    }

    pub(super) fn stored(&self, vb: VbId) -> Result<StoredVb, Failure> {
        let snapshot = self.file.snapshot();
        let unusable = |what: String| Failure::State { vb, path: snapshot.path().to_owned(), what };
        let json = snapshot.local(STATE_ID).map_err(failed(vb))?;
        let json = json.ok_or_else(|| unusable("it is missing".to_owned()))?;
        let info = snapshot.info();
        Ok(StoredVb {
            state: VbStateDoc::from_json(&json).map_err(|e| unusable(e.to_string()))?,
            high_seqno: Seqno(info.update_seqno),
            purge_seqno: Seqno(info.purge_seqno),
            counts: self.counts(),
            collections: self.tally.all().to_vec(),
        })
    }
}

/// A batch as couchstore sees it: documents are made from the versions when asked for, nothing is copied.
struct Docs<'a> {
    items: &'a [Version],
    tally: &'a mut Tally,
    saved: Saved,
}

fn body(version: &Version) -> Body<'_> {
    let value = version.value();
    if value.is_empty() {
        return if version.is_deleted() { Body::None } else { Body::Plain(value) };
    }
    if version.meta().datatype.is_snappy() { Body::Compressed(value) } else { Body::Compress(value) }
}

impl Batch for Docs<'_> {
    fn len(&self) -> usize {
        self.items.len()
    }

    fn doc(&self, i: usize) -> DocUpdate<'_> {
        let version = &self.items[i];
        let meta = version.meta();
        DocUpdate {
            id: version.stored_key(),
            seqno: meta.by_seqno.0,
            rev_seqno: meta.rev_seqno.0,
            deleted: version.is_deleted(),
            content_meta: if meta.datatype.is_json() { CONTENT_JSON } else { CONTENT_OPAQUE },
            body: body(version),
        }
    }

    fn rev_meta(&self, i: usize, out: &mut Vec<u8>) {
        let meta = self.items[i].meta();
        let rev_meta = RevMeta {
            cas: meta.cas.0,
            expiry: meta.expiry,
            flags: meta.flags,
            datatype: Some(meta.datatype.0),
            expired: meta.kind == ItemKind::Expiration,
            durability: None,
        };
        let (bytes, len) = rev_meta.encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn saved(&mut self, i: usize, new: RecordSummary, old: Option<RecordSummary>) {
        let id = self.items[i].stored_key();
        let weigh = |record: RecordSummary| Weight {
            deleted: record.deleted,
            disk_bytes: id.len() as u64 + record.rev_meta_bytes as u64 + u64::from(record.body_bytes),
        };
        self.tally.change(id, Seqno(new.seqno), weigh(new), old.map(weigh));
        if matches!(owner(id), Owner::Document(_)) {
            let was = old.is_some_and(|old| !old.deleted);
            self.saved.inserted += u64::from(!was && !new.deleted);
            self.saved.updated += u64::from(was && !new.deleted);
            self.saved.deleted += u64::from(was && new.deleted);
        }
    }
}
