//! The open file of one vBucket, with the counts of its collections at hand.

use std::path::Path;
use std::sync::Arc;

use base::env::{Disk, File};
use base::{ItemKind, Seqno, SyncWrite, VbId, Version, VersionMeta};
use couchstore::{
    Batch, Body, CONTENT_JSON, CONTENT_OPAQUE, Commit, CouchFile, DocUpdate, Durability, LocalUpdate,
    RecordSummary, RevMeta, Scratch, Snapshot, Tuning,
};

use super::identity::{IDENTITY_ID, Identity};
use crate::catalog::Listed;
use crate::collections::{CollectionStats, Tally, Weight, former_of};
use crate::compaction::FileAt;
use crate::copying::take_copied;
use crate::failure::Failure;
use crate::manifest::{StoredManifest, events_in};
use crate::state::{STATE_ID, VbStateDoc};
use crate::store::{Counts, SaveBatch, StoredVb, Usage, is_gone};

/// What is wrong with a file that has another header at the place on record.
pub(super) const OTHER_HEADER: &str = "its header is not the one that is on record";
/// What is wrong with a file that is newer than the journal in front of it.
pub(super) const OLDER_JOURNAL: &str =
    "it has changes that the journal does not tell of: the journal is of an older moment than the file";

pub(super) struct VbFile {
    file: CouchFile,
    tally: Tally,
    /// The local document that says whose file it is, to be written with the next batch; `None` if it is there.
    identity: Option<Vec<u8>>,
}

#[derive(Clone)]
/// What is known about a file that is closed: its last commit, which is durable, and the counts as of then.
pub(super) struct Known {
    commit: Commit,
    tally: Option<Tally>,
    usage: Usage,
    /// The changes of keys that the usage knows of ([`base::env::Disk::key_changes`]).
    key_changes: u64,
    /// Whether bytes may stand behind the commit that belong to none.
    has_tail: bool,
    /// As in the file's own.
    identity: Option<Vec<u8>>,
}

/// The header at which a file is to be opened, and no other.
#[derive(Clone, Copy)]
pub(super) struct Recorded {
    pub(super) header_offset: u64,
    /// Its CRC32C, if that is on record, too.
    pub(super) checksum: Option<u32>,
    /// Whether what stands behind it is void and is cut off; otherwise nothing may stand there.
    pub(super) is_tail_void: bool,
    /// What is void has no higher seqnos than this and the header, if that is known.
    pub(super) told: Option<Seqno>,
}

impl Recorded {
    /// As it is listed; `None` if it was not known where the last header is.
    pub(super) fn of(listed: &Listed) -> Option<Recorded> {
        let Listed { at, is_tail_void, .. } = *listed;
        let FileAt { header_offset, checksum, .. } = at.unmarked();
        let recorded = Recorded { header_offset, checksum, is_tail_void, told: None };
        Some(recorded).filter(|_| header_offset != FileAt::LAST)
    }

    /// The same of a revision.
    pub(super) fn at(&self, revision: u64) -> FileAt {
        FileAt { revision, header_offset: self.header_offset, checksum: self.checksum }
    }

    /// Whether a file that goes on behind the header has nothing there that is not in the journal.
    fn check_tail(&self, disk: &dyn Disk, vb: VbId, file: &Snapshot) -> Result<(), Failure> {
        let Some(told) = self.told.filter(|_| !file.is_whole_file()) else { return Ok(()) };
        if is_beyond(disk, file.path(), told.max(Seqno(file.info().update_seqno))) {
            let (path, what) = (file.path().to_owned(), OLDER_JOURNAL.to_owned());
            return Err(Failure::Mismatch { vb, path, what });
        }
        Ok(())
    }

    /// Whether a file is as it was when this was put on record.
    fn check(&self, vb: VbId, file: &Snapshot) -> Result<(), Failure> {
        let mismatch =
            |what: &str| Err(Failure::Mismatch { vb, path: file.path().to_owned(), what: what.to_owned() });
        if self.checksum.is_some_and(|checksum| checksum != file.header_checksum()) {
            return mismatch(OTHER_HEADER);
        }
        if !self.is_tail_void && !file.is_whole_file() {
            return mismatch("it goes on behind its last header: another program has written to it");
        }
        Ok(())
    }
}

impl Known {
    /// What it holds of each collection, if that is known.
    pub(super) fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    pub(super) fn commit(&self) -> &Commit {
        &self.commit
    }

    pub(super) fn has_tail(&self) -> bool {
        self.has_tail
    }

    /// What the file takes. A file that was closed before the last of `key_changes` is not encrypted as a new one would be.
    pub(super) fn usage(&self, key_changes: u64) -> Usage {
        Usage { is_current: self.usage.is_current && self.key_changes == key_changes, ..self.usage }
    }
}

/// The commit that a snapshot is of, in a file with this revision.
pub(super) fn at_of(revision: u64, snapshot: &Snapshot) -> FileAt {
    let header_offset = snapshot.info().header_offset;
    FileAt { revision, header_offset, checksum: Some(snapshot.header_checksum()) }
}

/// What a file takes as of a commit.
pub(super) fn usage_of(snapshot: &Snapshot) -> Usage {
    let info = snapshot.info();
    Usage { file_bytes: info.file_bytes, used_bytes: info.used_bytes(), is_current: snapshot.is_current() }
}

/// The same with the changes of keys that it knows of, which are read first: one that comes meanwhile is not known.
fn usage_to_keep(snapshot: &Snapshot) -> (u64, Usage) {
    (snapshot.key_changes(), usage_of(snapshot))
}

pub(super) fn load_tally(snapshot: &Snapshot) -> Result<Tally, couchstore::Failure> {
    load_locals(snapshot).map(|(tally, _)| tally)
}

/// The counts of a file, and the local document that says whose it is, read together.
fn load_locals(snapshot: &Snapshot) -> Result<(Tally, Option<Vec<u8>>), couchstore::Failure> {
    let mut tally = Tally::default();
    let mut identity = None;
    snapshot.scan_locals(|id, value| {
        if id == IDENTITY_ID {
            identity = Some(value.to_vec());
        }
        let stats = CollectionStats::collection_of(id).zip(CollectionStats::decode(value));
        if let Some((collection, stats)) = stats {
            tally.load(collection, stats);
        }
    })?;
    tally.begin_default(&read_manifest(snapshot)?);
    Ok((tally, identity))
}

/// The counts of a file, once it is sure whose file it is, and the local document to say so if that is missing.
fn load(identity: Identity, snapshot: &Snapshot) -> Result<(Tally, Option<Vec<u8>>), Failure> {
    let (tally, found) = load_locals(snapshot).map_err(failed(identity.vb))?;
    identity.check(snapshot.path(), found.as_deref())?;
    let missing = if found.is_none() { identity.to_json() } else { None };
    Ok((tally, missing))
}

/// Whether the last header of a file has a higher seqno. One that cannot be read has none: what a crash left unfinished
/// is no commit.
pub(super) fn is_beyond(disk: &dyn Disk, path: &Path, told: Seqno) -> bool {
    CouchFile::open_read(disk, path).is_ok_and(|last| Seqno(last.info().update_seqno) > told)
}

/// Whether a file can be read at the header that is on record, or at its last one, and is whose it should be. Answers
/// where it ends then: with the header on record.
pub(super) fn is_sound(
    disk: &dyn Disk,
    path: &Path,
    identity: Identity,
    recorded: Option<Recorded>,
) -> Result<u64, Failure> {
    let vb = identity.vb;
    let file = match recorded {
        Some(recorded) => CouchFile::open_read_at(disk, path, recorded.header_offset),
        None => CouchFile::open_read(disk, path),
    };
    let file = file.map_err(failed(vb))?;
    load(identity, &file)?;
    if let Some(recorded) = recorded {
        Recorded { is_tail_void: true, ..recorded }.check(vb, &file)?;
    }
    Ok(file.info().file_bytes)
}

fn failed(vb: VbId) -> impl Fn(couchstore::Failure) -> Failure {
    move |source| Failure::File { vb, source }
}

impl VbFile {
    pub(super) fn create(
        disk: &dyn Disk,
        identity: Identity,
        path: &Path,
        tuning: Tuning,
    ) -> Result<VbFile, Failure> {
        let mut file = CouchFile::create(disk, path).map_err(failed(identity.vb))?;
        file.set_tuning(tuning);
        Ok(VbFile { file, tally: Tally::default(), identity: identity.to_json() })
    }

    /// Opens a file at a header that is on record.
    pub(super) fn open_recorded(
        disk: &dyn Disk,
        identity: Identity,
        path: &Path,
        tuning: Tuning,
        recorded: Recorded,
    ) -> Result<VbFile, Failure> {
        let mut loaded = None;
        let accept = |snapshot: &Snapshot| {
            loaded = Some(load(identity, snapshot).map_err(Refused::Mismatch)?);
            recorded.check(identity.vb, snapshot).map_err(Refused::Mismatch)?;
            recorded.check_tail(disk, identity.vb, snapshot).map_err(Refused::Mismatch)
        };
        let opened = CouchFile::open_cut(disk, path, recorded.header_offset, accept);
        let mut file = opened.map_err(|refused: Refused| refused.failure(identity.vb))?;
        file.set_tuning(tuning);
        let (tally, identity) = loaded.expect("a file that is opened was looked at");
        Ok(VbFile { file, tally, identity })
    }

    /// Opens a file at the commit that is known from before, with what stands behind it or without, or at the last
    /// valid one, which is durable if the file was synced since the process started.
    pub(super) fn open(
        disk: &dyn Disk,
        identity: Identity,
        path: &Path,
        tuning: Tuning,
        known: Option<(Known, bool)>,
        is_synced: bool,
    ) -> Result<VbFile, Failure> {
        let (file, tally) = match known {
            Some((known, keeps_tail)) => {
                let open = if keeps_tail { CouchFile::open_behind } else { CouchFile::open_at };
                // it was looked at when it was opened first
                (open(disk, path, &known.commit), known.tally.map(|tally| (tally, known.identity)))
            }
            None if is_synced => (CouchFile::open_synced(disk, path), None),
            None => (CouchFile::open(disk, path), None),
        };
        let mut file = file.map_err(failed(identity.vb))?;
        file.set_tuning(tuning);
        let (tally, identity) = match tally {
            Some(known) => known,
            None => load(identity, &file.snapshot())?,
        };
        Ok(VbFile { file, tally, identity })
    }

    /// Whether the header that a catalog lists is in the file, and the last one is not before it.
    pub(super) fn check_not_before(
        &self,
        disk: &dyn Disk,
        vb: VbId,
        path: &Path,
        listed: Listed,
    ) -> Result<(), Failure> {
        let mismatch = || Failure::Mismatch {
            vb,
            path: path.to_owned(),
            what: "it does not hold the header that the catalog lists".to_owned(),
        };
        if listed.at.header_offset == FileAt::LAST {
            return Ok(());
        }
        if self.file.snapshot().info().header_offset < listed.at.header_offset {
            return Err(mismatch());
        }
        let found = CouchFile::open_read_at(disk, path, listed.at.header_offset).map_err(|_| mismatch())?;
        let is_listed = listed.at.checksum.is_none_or(|checksum| checksum == found.header_checksum());
        if is_listed { Ok(()) } else { Err(mismatch()) }
    }

    /// What is worth knowing when the file is opened again. After a failure the counts are not to be trusted.
    pub(super) fn into_known(self, after_failure: bool) -> Option<Known> {
        let tally = (!after_failure).then_some(self.tally);
        let has_tail = after_failure || self.file.has_tail();
        let (key_changes, usage) = usage_to_keep(&self.file.snapshot());
        let (commit, identity) = (self.file.last_commit()?, self.identity);
        Some(Known { commit, tally, usage, key_changes, has_tail, identity })
    }

    /// A file that was put together elsewhere and is committed, with its counts, and what its next commit is to say of
    /// whose file it is; it is to be opened by its last name.
    pub(super) fn known(file: &CouchFile, tally: Tally, identity: Option<Vec<u8>>) -> Option<Known> {
        let (key_changes, usage) = usage_to_keep(&file.snapshot());
        let (commit, tally) = (file.last_commit()?, Some(tally));
        Some(Known { commit, tally, usage, key_changes, has_tail: false, identity })
    }

    /// A file that says whose it is in its last commit, with its counts.
    pub(super) fn of_own(file: CouchFile, tally: Tally) -> VbFile {
        VbFile { file, tally, identity: None }
    }

    /// Prepares to go back to a commit; see [`CouchFile::rollback`]. Commits of the file that it was on another node are no
    /// commits of this one.
    pub(super) fn rollback(&mut self, identity: Identity, to: Seqno) -> Result<Option<Seqno>, Failure> {
        let is_own = |commit: &Snapshot| {
            let found = commit.local(IDENTITY_ID)?;
            identity.check(commit.path(), found.as_deref()).map_err(|_| couchstore::Failure::Damaged {
                path: commit.path().into(),
                offset: commit.info().header_offset,
                what: "a commit of another file",
            })
        };
        let found = self.file.rollback_where(to.0, is_own).map_err(failed(identity.vb))?;
        Ok(found.map(Seqno))
    }

    /// Writes the header that a rollback prepared, durably, and says where. It is in force after
    /// [`VbFile::finish_rollback`].
    pub(super) fn write_rollback(&mut self, vb: VbId, timestamp_ns: u64) -> Result<Commit, Failure> {
        self.file.commit_header(timestamp_ns).map_err(failed(vb))
    }

    /// The header of a rollback is in force: the counts are those of then.
    pub(super) fn finish_rollback(&mut self, identity: Identity) -> Result<(), Failure> {
        self.file.finish_commit();
        (self.tally, self.identity) = load(identity, &self.file.snapshot())?;
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
        let copied = take_copied(batch.state, &mut self.tally);
        if let Some((_, purged)) = &copied {
            self.file.set_purge_seqno(purged.0.max(self.file.snapshot().info().purge_seqno));
        }
        let state = copied.as_ref().map_or(batch.state, |(state, _)| state).to_json();
        let changes = self.tally.take_changes();
        let manifest = manifest.as_ref().map(StoredManifest::locals);
        let mut locals = vec![LocalUpdate { id: STATE_ID, value: Some(&state) }];
        // after a failure the file is opened anew, and looked at again
        let identity = self.identity.take();
        locals.extend(identity.iter().map(|json| LocalUpdate { id: IDENTITY_ID, value: Some(json) }));
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

    /// Whether bytes may stand behind the last commit that belong to none.
    pub(super) fn has_tail(&self) -> bool {
        self.file.has_tail()
    }

    /// The last commit, if there is one.
    pub(super) fn last_commit(&self) -> Option<Commit> {
        self.file.last_commit()
    }

    /// The last commit, of a file with this revision.
    pub(super) fn at(&self, revision: u64) -> FileAt {
        at_of(revision, &self.file.snapshot())
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

/// Why a file that is on record was not opened.
enum Refused {
    File(couchstore::Failure),
    Mismatch(Failure),
}

impl From<couchstore::Failure> for Refused {
    fn from(failure: couchstore::Failure) -> Refused {
        Refused::File(failure)
    }
}

impl Refused {
    fn failure(self, vb: VbId) -> Failure {
        match self {
            Refused::File(source) => Failure::File { vb, source },
            Refused::Mismatch(failure) => failure,
        }
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

/// The revision metadata that a version has in a couchstore file.
pub fn rev_meta_of(version: &Version) -> RevMeta {
    let meta = version.meta();
    RevMeta {
        cas: meta.cas.0,
        expiry: meta.expiry,
        flags: meta.flags,
        datatype: Some(meta.datatype.0),
        expired: meta.kind == ItemKind::Expiration,
        durability: durability(&meta),
    }
}

/// What a couchstore file says of a version's body.
pub fn content_meta_of(version: &Version) -> u8 {
    if version.meta().datatype.is_json() { CONTENT_JSON } else { CONTENT_OPAQUE }
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
            content_meta: content_meta_of(version),
            body: body(version),
        }
    }

    fn rev_meta(&self, i: usize, out: &mut Vec<u8>) {
        let (bytes, len) = rev_meta_of(&self.items[i]).encode();
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
