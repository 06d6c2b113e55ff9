//! The open file of one vBucket, with the counts of its collections at hand.

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, File};
use base::{ItemKind, Seqno, SyncWrite, VbId, Version, VersionMeta};
use couchstore::{
    Batch, Body, CONTENT_JSON, CONTENT_OPAQUE, Commit, CouchFile, DocUpdate, Durability, LocalUpdate,
    RecordSummary, RevMeta, Scratch, Snapshot, Tuning,
};

use crate::collections::{CollectionStats, Tally, Weight, former_of};
use crate::failure::Failure;
use crate::manifest::{StoredManifest, events_in};
use crate::state::{STATE_ID, VbStateDoc};
use crate::store::{Counts, SaveBatch, StoredVb, Usage, is_gone};

pub(super) struct VbFile {
    file: CouchFile,
    tally: Tally,
}

#[derive(Clone)]
/// What is known about a file that is closed: its last commit, which is durable, and the counts as of then.
pub(super) struct Known {
    commit: Commit,
    tally: Option<Tally>,
    usage: Usage,
}

impl Known {
    /// What it holds of each collection, if that is known.
    pub(super) fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    /// What the file takes.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }
}

/// What a file takes as of a commit.
pub(super) fn usage_of(snapshot: &Snapshot) -> Usage {
    let info = snapshot.info();
    Usage { file_bytes: info.file_bytes, used_bytes: info.used_bytes() }
}

pub(super) fn load_tally(snapshot: &Snapshot) -> Result<Tally, couchstore::Failure> {
    let mut tally = Tally::default();
    snapshot.scan_locals(|id, value| {
        let stats = CollectionStats::collection_of(id).zip(CollectionStats::decode(value));
        if let Some((collection, stats)) = stats {
            tally.load(collection, stats);
        }
    })?;
    tally.begin_default(&read_manifest(snapshot)?);
    Ok(tally)
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

    /// Opens a file at a header that is on record, and cuts off what stands behind it.
    pub(super) fn open_recorded(
        disk: &dyn Disk,
        vb: VbId,
        path: &Path,
        tuning: Tuning,
        header_offset: u64,
    ) -> Result<VbFile, Failure> {
        let mut file = CouchFile::open_cut(disk, path, header_offset).map_err(failed(vb))?;
        file.set_tuning(tuning);
        let tally = load_tally(&file.snapshot()).map_err(failed(vb))?;
        Ok(VbFile { file, tally })
    }

    /// Opens a file at the commit that is known from before, with what stands behind it or without, or at the last valid one, which is durable if the file
    /// was synced since the process started.
    pub(super) fn open(
        disk: &dyn Disk,
        vb: VbId,
        path: &Path,
        tuning: Tuning,
        known: Option<(Known, bool)>,
        is_synced: bool,
    ) -> Result<VbFile, Failure> {
        let (file, tally) = match known {
            Some((known, true)) => (CouchFile::open_behind(disk, path, &known.commit), known.tally),
            Some((known, false)) => (CouchFile::open_at(disk, path, &known.commit), known.tally),
            None if is_synced => (CouchFile::open_synced(disk, path), None),
            None => (CouchFile::open(disk, path), None),
        };
        let mut file = file.map_err(failed(vb))?;
        file.set_tuning(tuning);
        let tally = match tally {
            Some(tally) => tally,
            None => load_tally(&file.snapshot()).map_err(failed(vb))?,
        };
        Ok(VbFile { file, tally })
    }

    /// What is worth knowing when the file is opened again. After a failure the counts are not to be trusted.
    pub(super) fn into_known(self, after_failure: bool) -> Option<Known> {
        let tally = (!after_failure).then_some(self.tally);
        Some(Known { commit: self.file.last_commit()?, tally, usage: usage_of(&self.file.snapshot()) })
    }

    /// A file that was put together elsewhere and is committed, with its counts; it is to be opened by its last name.
    pub(super) fn known(file: &CouchFile, tally: Tally) -> Option<Known> {
        Some(Known { commit: file.last_commit()?, tally: Some(tally), usage: usage_of(&file.snapshot()) })
    }

    /// Prepares to go back to a commit; see [`CouchFile::rollback`].
    pub(super) fn rollback(&mut self, vb: VbId, to: Seqno) -> Result<Option<Seqno>, Failure> {
        let found = self.file.rollback(to.0).map_err(failed(vb))?;
        Ok(found.map(Seqno))
    }

    /// Writes the header that a rollback prepared, durably, and says where. It is in force after
    /// [`VbFile::finish_rollback`].
    pub(super) fn write_rollback(&mut self, vb: VbId, timestamp_ns: u64) -> Result<u64, Failure> {
        self.file.commit_header(timestamp_ns).map_err(failed(vb))
    }

    /// The header of a rollback is in force: the counts are those of then.
    pub(super) fn finish_rollback(&mut self, vb: VbId) -> Result<(), Failure> {
        self.file.finish_commit();
        self.tally = load_tally(&self.file.snapshot()).map_err(failed(vb))?;
        Ok(())
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.file.snapshot()
    }

    /// Saves a batch and writes all of it but the header. After a failure, now or in a later step of the commit, this
    /// file and its counts must not be used again.
    pub(super) fn write_data(
        &mut self,
        vb: VbId,
        batch: SaveBatch<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        self.file.lend_scratch(std::mem::take(scratch));
        let saved = self.write_batch(&batch);
        if saved.is_err() {
            self.file.poison();
        }
        *scratch = self.file.take_scratch();
        saved.map_err(failed(vb))
    }

    fn write_batch(&mut self, batch: &SaveBatch<'_>) -> Result<(), couchstore::Failure> {
        let events = events_in(batch.items);
        let mut manifest = None;
        if !events.is_empty() {
            let mut now = read_manifest(&self.file.snapshot())?;
            for event in &events {
                let former = former_of(event, &now);
                now.apply(event, |id, start| self.tally.is_written(id, start, batch.items));
                former.into_iter().for_each(|id| self.tally.drop_collection(id));
            }
            self.tally.begin_default(&now);
            manifest = Some(now);
        }
        let mut docs = Docs { items: batch.items, tally: &mut self.tally };
        if !batch.items.is_empty() {
            self.file.save(&mut docs)?;
        }
        if let Some(manifest) = &manifest {
            self.tally.end(&events, manifest);
        }
        let changes = self.tally.take_changes();
        let manifest = manifest.as_ref().map(StoredManifest::locals);
        let state = batch.state.to_json();
        let mut locals = vec![LocalUpdate { id: STATE_ID, value: Some(&state) }];
        locals.extend(
            changes.iter().map(|(id, value)| LocalUpdate { id: id.as_bytes(), value: value.as_deref() }),
        );
        locals.extend(
            manifest
                .iter()
                .flatten()
                .map(|(id, value)| LocalUpdate { id: id.as_bytes(), value: value.as_deref() }),
        );
        locals.sort_unstable_by_key(|local| local.id);
        self.file.save_locals(&locals)?;
        self.file.write_data()
    }

    /// The data is synced: writes the header.
    pub(super) fn write_header(&mut self, vb: VbId, timestamp_ns: u64) -> Result<(), Failure> {
        self.file.write_header(timestamp_ns).map_err(failed(vb))
    }

    /// The header is synced.
    pub(super) fn finish_commit(&mut self) {
        self.file.finish_commit();
    }

    /// Where the header of the last commit stands.
    pub(super) fn header_offset(&self) -> u64 {
        self.file.snapshot().info().header_offset
    }

    /// The file, to be synced.
    pub(super) fn to_sync(&self) -> Arc<dyn File> {
        self.file.file().clone()
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
        let info = snapshot.info();
        Ok(StoredVb {
            state: read_state(vb, &snapshot)?,
            high_seqno: Seqno(info.update_seqno),
            purge_seqno: Seqno(info.purge_seqno),
            counts: self.counts(),
            collections: self.tally.all().to_vec(),
            manifest: read_manifest(&snapshot).map_err(failed(vb))?,
        })
    }
}

/// The collections of a vBucket as of one commit.
pub(super) fn read_manifest(snapshot: &Snapshot) -> Result<StoredManifest, couchstore::Failure> {
    let found = StoredManifest::read(|id| snapshot.local(id))?;
    found.ok_or_else(|| couchstore::Failure::Damaged {
        path: snapshot.path().into(),
        offset: snapshot.info().header_offset,
        what: "a local document about collections",
    })
}

/// The state document of a vBucket as of one commit.
pub(super) fn read_state(vb: VbId, snapshot: &Snapshot) -> Result<VbStateDoc, Failure> {
    let unusable = |what: String| Failure::State { vb, path: snapshot.path().to_owned(), what };
    let json = snapshot.local(STATE_ID).map_err(failed(vb))?;
    let json = json.ok_or_else(|| unusable("it is missing".to_owned()))?;
    VbStateDoc::from_json(&json).map_err(|e| unusable(e.to_string()))
}

/// A batch as couchstore sees it: documents are made from the versions when asked for, nothing is copied.
struct Docs<'a> {
    items: &'a [Version],
    tally: &'a mut Tally,
}

fn body(version: &Version) -> Body<'_> {
    let value = version.value();
    if value.is_empty() {
        return if version.is_deleted() { Body::None } else { Body::Plain(value) };
    }
    if version.meta().datatype.is_snappy() { Body::Compressed(value) } else { Body::Compress(value) }
}

fn durability(meta: &VersionMeta) -> Option<Durability> {
    Some(match meta.sync_write.stored(meta.by_seqno) {
        SyncWrite::No => return None,
        SyncWrite::Prepare(level) => {
            Durability::Pending { level: level as u8, is_delete: meta.kind.is_deleted() }
        }
        SyncWrite::Commit { prepared } => Durability::Commit { prepared_seqno: prepared.0 },
        SyncWrite::Alone(_) => unreachable!("it is stored as a commit"),
        SyncWrite::Abort { prepared } => Durability::Abort { prepared_seqno: prepared.0 },
    })
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
            // A prepared deletion is a record that is there, an abort one that is gone.
            deleted: is_gone(version),
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
            durability: durability(&meta),
        };
        let (bytes, len) = rev_meta.encode();
        out.extend_from_slice(&bytes[..len]);
    }

    fn prefetch(&self, i: usize) {
        self.items[i].prefetch();
    }

    fn saved(&mut self, i: usize, new: RecordSummary, old: Option<RecordSummary>) {
        let id = self.items[i].stored_key();
        let weigh = |record: RecordSummary| Weight {
            seqno: Seqno(record.seqno),
            deleted: record.deleted,
            disk_bytes: id.len() as u64 + record.rev_meta_bytes as u64 + u64::from(record.body_bytes),
        };
        self.tally.change(id, Seqno(new.seqno), weigh(new), old.map(weigh));
    }
}
