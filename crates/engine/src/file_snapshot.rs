//! Snapshots by file: the file of a vBucket as of one commit, read by others in fragments (docs/adr/0167).
//!
//! # Guarantees
//!
//! - A snapshot is made in constant memory: it is an open file, and the place at which its bytes end. What of the vBucket is
//!   in the journal alone is written into its file first; if files of others are being written, a client is not kept waiting
//!   for them, but told to try again.
//! - Its bytes do not change while others save, compact or delete.
//! - None is forgotten: it ends when nothing was read of it for [`FILE_SNAPSHOT_LEASE`], and with the role and the history of
//!   its vBucket. A crash leaves nothing behind, since nothing is written.
//! - A client that is done with a snapshot does not end it for another one that asked for it and is connected still.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::env::Env;
use base::{Seqno, VbId, VbUuid};
use kvstore::{Couch, CouchConfig, Failure, KvStore, Snapshot, VbucketFile};
use parking_lot::Mutex;

use crate::config::{BucketConfig, BucketKind};
use crate::failure_log::{Failed, FailureLog};
use crate::open_files::OpenScan;
use crate::refusal::Refusal;
use crate::shard_guard::Holder;
use crate::unreadable::Unreadables;
use crate::vbuckets::VBuckets;

/// A snapshot ends when nothing was read of it for so long.
pub const FILE_SNAPSHOT_LEASE: Duration = Duration::from_secs(600);

/// Why there is no snapshot, or nothing is read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSnapshotRefusal {
    /// As for any other operation.
    Refused(Refusal),
    /// vBuckets of this bucket share files.
    NoFiles,
    /// Nothing of the vBucket is on disk yet.
    NotPersisted,
    /// Files are being written: to be tried again.
    Busy,
    /// Its file has a version of the format that the client does not read.
    Version(u8),
    /// There are as many snapshots and scans as there may be.
    TooMany,
    /// There is no such snapshot, or it has ended.
    Unknown,
    /// The range is not within the file.
    OutOfRange,
    /// The disk failed.
    Failed,
}

impl From<Refusal> for FileSnapshotRefusal {
    fn from(refusal: Refusal) -> FileSnapshotRefusal {
        FileSnapshotRefusal::Refused(refusal)
    }
}

/// What is told of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSnapshotFigures {
    /// Which one: 16 random bytes, as a number.
    pub id: u128,
    /// Its vBucket.
    pub vb: VbId,
    /// The vBucket's history.
    pub uuid: VbUuid,
    /// The highest seqno that it has.
    pub seqno: Seqno,
    /// What its file is called.
    pub name: String,
    /// Bytes of its file.
    pub len: u64,
    /// The version of its format.
    pub version: u8,
    /// How long ago it was made.
    pub age: Duration,
    /// When it ends unless something is read of it.
    pub ends_after: Duration,
    /// Bytes that were read of it.
    pub read_bytes: u64,
}

/// A connection that may ask for snapshots: as long as one of its clones is there, it counts among the readers of those that
/// it asked for.
#[derive(Clone, Debug, Default)]
pub struct SnapshotReader(Arc<()>);

/// The connections that asked for a snapshot and have not released it. Those that are gone do not count.
#[derive(Default)]
struct SnapshotReaders(Mutex<Vec<Weak<()>>>);

impl SnapshotReaders {
    fn add(&self, reader: &SnapshotReader) {
        let mut readers = self.0.lock();
        readers.retain(|one| one.strong_count() > 0 && one.as_ptr() != Arc::as_ptr(&reader.0));
        readers.push(Arc::downgrade(&reader.0));
    }

    /// Takes a reader out. Whether the snapshot has others, for which it stays; one who is none of them ends it for all.
    fn remove(&self, reader: &SnapshotReader) -> bool {
        let mut readers = self.0.lock();
        let before = readers.len();
        readers.retain(|one| one.as_ptr() != Arc::as_ptr(&reader.0));
        let was_reader = readers.len() < before;
        was_reader && readers.iter().any(|one| one.strong_count() > 0)
    }
}

struct FileSnapshot {
    id: u128,
    vb: VbId,
    uuid: VbUuid,
    file: VbucketFile,
    /// On the monotonic clock.
    created: Duration,
    used_ns: AtomicU64,
    read_bytes: AtomicU64,
    readers: SnapshotReaders,
    _open: OpenScan,
}

impl FileSnapshot {
    fn is_over(&self, now: Duration) -> bool {
        self.ends_after(now).is_zero()
    }

    /// Renews its lease.
    fn used(&self, now: Duration) {
        self.used_ns.fetch_max(now.as_nanos() as u64, Ordering::Relaxed);
    }

    fn ends_after(&self, now: Duration) -> Duration {
        let used = Duration::from_nanos(self.used_ns.load(Ordering::Relaxed));
        (used + FILE_SNAPSHOT_LEASE).saturating_sub(now)
    }
}

/// The snapshots of a bucket: one of a vBucket at the most.
#[derive(Default)]
pub(crate) struct FileSnapshotTable {
    by_vb: Mutex<HashMap<VbId, Arc<FileSnapshot>>>,
    incoming: Arc<Mutex<IncomingParts>>,
}

/// Files of other nodes.
#[derive(Default)]
struct IncomingParts {
    /// vBuckets whose file comes, or is read to fill them.
    taken: BTreeSet<VbId>,
    /// What was begun last for each since the bucket was opened: of other parts it is not known what of them is durable.
    begun: HashMap<VbId, String>,
}

/// The folder with files of other nodes, in that of the bucket.
const INCOMING: &str = "downloads";
/// What the name of a file ends with of which a part is there.
pub const INCOMING_PART: &str = ".part";

/// Removes parts of files that came before the bucket was opened: none of them is gone on with. Whole files stay.
pub(crate) fn remove_parts(env: &Env, dir: &Path) {
    let folder = dir.join(INCOMING);
    // A folder that is not there holds no parts.
    for vb in env.disk.read_dir(&folder).unwrap_or_default() {
        let of_vb = folder.join(vb);
        let names = env.disk.read_dir(&of_vb).unwrap_or_default();
        let (parts, others): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.ends_with(INCOMING_PART));
        let removed = match others.is_empty() {
            true => env.disk.remove_dir_all(&of_vb),
            false => parts.iter().try_for_each(|part| env.disk.remove_file(&of_vb.join(part))),
        };
        if let Err(error) = removed {
            // What it takes is room on the disk alone; the next start tries again.
            tracing::debug!(folder = %of_vb.display(), %error, "parts of a file that came cannot be removed");
        }
    }
}

/// The place for the file of a vBucket that comes from another node, exclusively until this is dropped.
pub struct IncomingFile {
    vb: VbId,
    folder: PathBuf,
    incoming: Arc<Mutex<IncomingParts>>,
}

impl IncomingFile {
    /// A folder for it alone. Something may be left in it of what was begun before.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the whole file is.
    pub fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.couch.1", self.vb))
    }

    /// Opens the whole file; `None` if it is not there. Reads the disk.
    pub(crate) fn open(&self, env: &Env) -> Result<Option<(Couch, VbId)>, Failure> {
        let path = self.path();
        // A folder that is not there holds no file.
        let names = env.disk.read_dir(&self.folder).unwrap_or_default();
        if !names.iter().any(|name| path.ends_with(name)) {
            return Ok(None);
        }
        Couch::open_file(env.clone(), &path, CouchConfig::default()).map(Some)
    }

    /// Removes what came, with its folder; fine if nothing did.
    pub fn remove(&self, env: &Env) -> std::io::Result<()> {
        match env.disk.remove_dir_all(&self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes that a part with this name is written. Whether one was before, since the bucket was opened, with nothing else
    /// behind it: then what is of it in the folder is what was written.
    pub fn goes_on(&self, part: &str) -> bool {
        let before = self.incoming.lock().begun.insert(self.vb, part.to_owned());
        before.is_some_and(|before| before == part)
    }

    /// What was written cannot be relied on: the disk failed.
    pub fn forget(&self) {
        self.incoming.lock().begun.remove(&self.vb);
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        self.incoming.lock().taken.remove(&self.vb);
    }
}

/// Snapshots by file: the parts of a bucket that they need.
#[derive(Clone, Copy)]
pub struct FileSnapshots<'a> {
    pub(crate) env: &'a Env,
    pub(crate) config: &'a BucketConfig,
    pub(crate) store: &'a dyn KvStore,
    pub(crate) vbuckets: &'a VBuckets,
    pub(crate) unreadable: &'a Unreadables,
    pub(crate) failure_log: &'a FailureLog,
    pub(crate) table: &'a FileSnapshotTable,
    /// Counts files that are kept open.
    pub(crate) open: &'a Arc<std::sync::atomic::AtomicUsize>,
}

impl FileSnapshots<'_> {
    /// The snapshot of a vBucket for a reader: the present one, whose lease is renewed, or a new one of all that is stored
    /// now. Refused if its file has a later version of the format than `most_version`. Reads and writes the disk.
    pub fn prepare(
        &self,
        vb: VbId,
        most_version: Option<u64>,
        reader: &SnapshotReader,
    ) -> Result<FileSnapshotFigures, FileSnapshotRefusal> {
        let fits = |file: &VbucketFile| match file.version() {
            version if most_version.is_some_and(|most| u64::from(version) > most) => {
                Err(FileSnapshotRefusal::Version(version))
            }
            _ => Ok(()),
        };
        let uuid = self.history(vb)?;
        if !self.store.has_vbucket_files() {
            return Err(FileSnapshotRefusal::NoFiles);
        }
        self.end_stale();
        if let Some(found) = self.table.by_vb.lock().get(&vb) {
            fits(&found.file)?;
            found.used(self.env.clock.monotonic());
            found.readers.add(reader);
            return Ok(self.figures_of(found));
        }
        let open =
            OpenScan::take(self.open, self.config.most_range_scans).ok_or(FileSnapshotRefusal::TooMany)?;
        let file = self.store.vbucket_file(vb).map_err(|failure| match failure {
            Failure::FilingRuns { .. } => FileSnapshotRefusal::Busy,
            failure => self.failed(vb, &failure),
        })?;
        // A file of another history is not what was asked for.
        if self.history(vb)? != uuid {
            return Err(FileSnapshotRefusal::Refused(Refusal::NotMyVbucket));
        }
        let file = file.ok_or(FileSnapshotRefusal::NotPersisted)?;
        fits(&file)?;
        let (mut id, created) = ([0; 16], self.env.clock.monotonic());
        self.env.random.fill(&mut id);
        let made = Arc::new(FileSnapshot {
            id: u128::from_be_bytes(id),
            vb,
            uuid,
            file,
            created,
            used_ns: AtomicU64::new(created.as_nanos() as u64),
            read_bytes: AtomicU64::new(0),
            readers: SnapshotReaders::default(),
            _open: open,
        });
        // Another request may have made one meanwhile.
        let kept = {
            let mut by_vb = self.table.by_vb.lock();
            // What is not needed is closed without the lock.
            let kept = by_vb.entry(vb).or_insert_with(|| Arc::clone(&made));
            kept.readers.add(reader);
            Arc::clone(kept)
        };
        Ok(self.figures_of(&kept))
    }

    /// The place for a vBucket's file of another node.
    pub fn incoming(&self, vb: VbId) -> Result<IncomingFile, FileSnapshotRefusal> {
        if self.config.kind == BucketKind::Ephemeral {
            return Err(FileSnapshotRefusal::Refused(Refusal::NoDisk));
        }
        if !self.store.has_vbucket_files() {
            return Err(FileSnapshotRefusal::NoFiles);
        }
        if vb.0 >= self.config.vbuckets {
            return Err(FileSnapshotRefusal::Refused(Refusal::NotMyVbucket));
        }
        let incoming = Arc::clone(&self.table.incoming);
        if !incoming.lock().taken.insert(vb) {
            return Err(FileSnapshotRefusal::Busy);
        }
        let folder = self.config.dir.join(INCOMING).join(vb.to_string());
        Ok(IncomingFile { vb, folder, incoming })
    }

    /// What is in a file that came; `None` if none did. Reads the disk.
    pub fn read_incoming(&self, file: &IncomingFile) -> Result<Option<Box<dyn Snapshot>>, Failure> {
        file.open(self.env)?.map_or(Ok(None), |(couch, vb)| couch.snapshot(vb))
    }

    /// A reader is done with the snapshot of a vBucket, which ends unless others are not.
    pub fn release(&self, vb: VbId, reader: &SnapshotReader) -> Result<(), FileSnapshotRefusal> {
        self.release_where(|one| one.vb == vb, reader)
    }

    /// The same for the snapshot with this identifier.
    pub fn release_by_id(&self, id: u128, reader: &SnapshotReader) -> Result<(), FileSnapshotRefusal> {
        self.release_where(|one| one.id == id, reader)
    }

    fn release_where(
        &self,
        is_meant: impl Fn(&FileSnapshot) -> bool,
        reader: &SnapshotReader,
    ) -> Result<(), FileSnapshotRefusal> {
        let ended = {
            let mut by_vb = self.table.by_vb.lock();
            let found = by_vb.values().find(|one| is_meant(one)).map(Arc::clone);
            let found = found.ok_or(FileSnapshotRefusal::Unknown)?;
            if found.readers.remove(reader) { None } else { by_vb.remove(&found.vb) }
        };
        // Its file is closed without the lock.
        drop(ended);
        Ok(())
    }

    /// Fills `buf` with bytes of a snapshot's file. Reads the disk.
    pub fn read(&self, id: u128, buf: &mut [u8], offset: u64) -> Result<(), FileSnapshotRefusal> {
        let snapshot = self.find(id)?;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > snapshot.file.len()) {
            return Err(FileSnapshotRefusal::OutOfRange);
        }
        snapshot.file.read(buf, offset).map_err(|failure| self.failed(snapshot.vb, &failure))?;
        snapshot.used(self.env.clock.monotonic());
        snapshot.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// How long the file of a snapshot is.
    pub fn len(&self, id: u128) -> Result<u64, FileSnapshotRefusal> {
        Ok(self.find(id)?.file.len())
    }

    /// Tells of all snapshots, in the order of their vBuckets.
    pub fn figures(&self) -> Vec<FileSnapshotFigures> {
        let all: Vec<_> = self.table.by_vb.lock().values().map(Arc::clone).collect();
        let mut figures: Vec<_> = all.iter().map(|one| self.figures_of(one)).collect();
        figures.sort_by_key(|one| one.vb);
        figures
    }

    fn figures_of(&self, snapshot: &FileSnapshot) -> FileSnapshotFigures {
        let (now, file) = (self.env.clock.monotonic(), &snapshot.file);
        FileSnapshotFigures {
            id: snapshot.id,
            vb: snapshot.vb,
            uuid: snapshot.uuid,
            seqno: file.high_seqno(),
            name: file.name(),
            len: file.len(),
            version: file.version(),
            age: now.saturating_sub(snapshot.created),
            ends_after: snapshot.ends_after(now),
            read_bytes: snapshot.read_bytes.load(Ordering::Relaxed),
        }
    }

    fn find(&self, id: u128) -> Result<Arc<FileSnapshot>, FileSnapshotRefusal> {
        let found = self.table.by_vb.lock().values().find(|one| one.id == id).map(Arc::clone);
        let found = found.filter(|one| !one.is_over(self.env.clock.monotonic()));
        let found = found.ok_or(FileSnapshotRefusal::Unknown)?;
        if self.history(found.vb)? == found.uuid { Ok(found) } else { Err(FileSnapshotRefusal::Unknown) }
    }

    /// The history of a vBucket that is active.
    fn history(&self, vb: VbId) -> Result<VbUuid, FileSnapshotRefusal> {
        if self.config.kind == BucketKind::Ephemeral {
            return Err(FileSnapshotRefusal::Refused(Refusal::NoDisk));
        }
        Ok(self.vbuckets.active(vb, Holder::FrontEnd)?.vb.uuid())
    }

    /// Ends snapshots whose lease is over, and those whose vBucket is not active here any more in the same history.
    pub(crate) fn end_stale(&self) {
        let now = self.env.clock.monotonic();
        let all: Vec<_> = self.table.by_vb.lock().values().map(Arc::clone).collect();
        let is_stale = |one: &FileSnapshot| one.is_over(now) || self.history(one.vb) != Ok(one.uuid);
        for stale in all.iter().filter(|one| is_stale(one)) {
            // Only this one: another may have taken its place.
            let ended = {
                let mut by_vb = self.table.by_vb.lock();
                let is_same = by_vb.get(&stale.vb).is_some_and(|one| Arc::ptr_eq(one, stale));
                if is_same { by_vb.remove(&stale.vb) } else { None }
            };
            drop(ended);
        }
    }

    fn failed(&self, vb: VbId, failure: &Failure) -> FileSnapshotRefusal {
        self.failure_log.failed(&self.config.name, vb, Failed::FileSnapshot, failure);
        self.unreadable.note_served(&self.config.name, vb, failure);
        FileSnapshotRefusal::Failed
    }
}
