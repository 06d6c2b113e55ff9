//! A folder with backups: `FOLDER/BUCKET/ID/`, where an ID is the moment at which a backup began.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a lock is held on a real file")]

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::encryption::{Sealer, WrappingKeys};
use base::env::{Disk, Env, OpenMode};
use base::small_file::SmallFile;

use super::keys::{BackupKeys, no_keys, open_manifest};
use super::lines::{LineSeal, is_sealed, lines_in};
use super::log::LOG;
use super::manifest::{BackupHead, BackupManifest, VbucketLine, VersionCounts};
use super::objects::{NotLocked, ObjectLock, ObjectStore};
use super::{BackupError, writer};
use crate::units::counted;

/// The list of vBuckets.
pub(super) const LINES: &str = "vbuckets";
const MANIFEST: &str = "manifest";
const LOCK: &str = "lock";
/// The largest manifest: 1,200 collections take less than 1 MiB.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// The largest list of vBuckets. A block takes about 60 bytes in it.
const MAX_LINES_BYTES: u64 = 1 << 30;

/// A folder with backups.
pub(crate) struct Repository<'e> {
    pub(super) env: &'e Env,
    pub(super) dir: PathBuf,
    /// Has the locks if files are objects.
    store: Option<Arc<ObjectStore>>,
    keys: BackupKeys,
}

/// A complete backup.
#[derive(Clone, Debug)]
pub(crate) struct Backup {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: BackupManifest,
    pub(crate) is_encrypted: bool,
}

/// The content of a manifest.
enum ManifestContent {
    Plain(Box<BackupManifest>),
    Sealed(Vec<u8>),
}

/// The format version of an encrypted manifest.
const SEALED_VERSION: u16 = 2;

/// A backup that was broken off.
pub(super) struct Unfinished {
    pub(super) folder: PathBuf,
    pub(super) head: BackupHead,
    pub(super) done: Vec<VbucketLine>,
    /// Bytes of its list that are whole.
    pub(super) lines_len: u64,
    pub(super) is_encrypted: bool,
}

/// What is told of a backup that is not complete: it was broken off, or is being made.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedBackup {
    pub(crate) id: String,
    /// The backup that it goes on from.
    pub(crate) base: Option<String>,
    pub(crate) begun_s: u64,
    pub(crate) vbuckets: u16,
    /// vBuckets that are complete.
    pub(crate) done: usize,
    /// What it has of these.
    pub(crate) total: VersionCounts,
    /// Whether a later command can go on with it, if the bucket has the same vBuckets: else it begins again.
    pub(crate) can_go_on: bool,
}

/// A backup and those that it goes on from, the newest first.
#[derive(Debug)]
pub(crate) struct Chain(pub(crate) Vec<Backup>);

/// Held while backups of a bucket are made or removed.
pub(crate) enum RepositoryLock {
    File { _file: File },
    Object(Box<ObjectLock>),
}

impl RepositoryLock {
    /// An error if another process may hold it by now.
    pub(super) fn check(&self) -> Result<(), BackupError> {
        match self {
            RepositoryLock::Object(lock) if lock.is_lost() => Err(BackupError::Missing(
                "the lock on the backups was lost, because the store could not be reached for long or another process \
                 took it; the same command goes on with what is complete"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

impl<'e> Repository<'e> {
    /// A folder, which need not be there yet.
    pub(crate) fn new(env: &'e Env, dir: &Path) -> Repository<'e> {
        Repository { env, dir: dir.to_owned(), store: None, keys: BackupKeys::default() }
    }

    /// The same with the key of encrypted backups, if one was given.
    pub(crate) fn with_keys(self, wrapping: Option<WrappingKeys>) -> Repository<'e> {
        Repository { keys: BackupKeys::new(wrapping), ..self }
    }

    /// What decrypts a bucket's backups; `None` if none of them is encrypted.
    pub(super) fn sealer(&self, bucket: &str) -> Result<Option<Sealer>, BackupError> {
        self.sealer_in(&self.folder(bucket))
    }

    /// The same by the folder of the bucket.
    fn sealer_in(&self, folder: &Path) -> Result<Option<Sealer>, BackupError> {
        self.keys.to_read(self.env, folder)
    }

    /// What encrypts the log of a bucket. Keys that are missing are made under the lock on the backups: two processes that
    /// made some at once would lose those of one of them.
    pub(super) fn sealer_to_log(&self, bucket: &str) -> Result<Option<Sealer>, BackupError> {
        let found = self.sealer(bucket)?;
        if found.is_some() || !self.keys.is_given() {
            return Ok(found);
        }
        let lock = self.lock(bucket)?;
        let made = self.sealer_to_write(bucket);
        lock.check()?;
        made
    }

    /// What encrypts that is written of a bucket, by who holds the lock on its backups; `None` if no key was given and
    /// nothing is encrypted there.
    pub(super) fn sealer_to_write(&self, bucket: &str) -> Result<Option<Sealer>, BackupError> {
        if self.keys.is_given() && self.sealer(bucket)?.is_none() {
            self.refuse_lost_keys(bucket)?;
        }
        self.keys.to_write(self.env, &self.folder(bucket))
    }

    /// The folder has no keys: fine if none of its backups is encrypted. Otherwise new keys would stand where the right ones
    /// belong, and backups from before and after could never be read together.
    fn refuse_lost_keys(&self, bucket: &str) -> Result<(), BackupError> {
        let complete = self.backups(bucket)?.into_iter().filter_map(Result::err);
        let mut all = complete.chain(self.unfinished(bucket).err());
        all.find(|error| matches!(error, BackupError::Key(_))).map_or(Ok(()), Err)
    }

    /// The same for the files of a backup.
    pub(super) fn sealer_of(&self, backup: &Backup) -> Result<Option<Sealer>, BackupError> {
        if backup.is_encrypted { self.sealer_in(parent_of(&backup.folder)) } else { Ok(None) }
    }

    /// The same where files are objects.
    pub(super) fn in_store(self, store: Arc<ObjectStore>) -> Repository<'e> {
        Repository { store: Some(store), ..self }
    }

    /// Whether files are objects.
    pub(super) fn is_store(&self) -> bool {
        self.store.is_some()
    }

    /// Makes one object of each segment of a log in pieces that has a lower number than `before`. Files are never in pieces.
    pub(super) fn join_segments(&self, bucket: &str, before: u32) -> Result<(), BackupError> {
        let Some(store) = &self.store else { return Ok(()) };
        let path = self.folder(bucket).join(LOG);
        store.join_segments(&path, before).map_err(|source| BackupError::Io {
            operation: "join the pieces of segments in",
            path,
            source,
        })
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.env.disk
    }

    pub(super) fn folder(&self, bucket: &str) -> PathBuf {
        self.dir.join(bucket)
    }

    /// Keeps other processes from making or removing backups of a bucket.
    pub(crate) fn lock(&self, bucket: &str) -> Result<RepositoryLock, BackupError> {
        self.lock_folder(self.folder(bucket), "backups")
    }

    /// Keeps other processes from writing the log of a bucket.
    pub(super) fn lock_log(&self, bucket: &str) -> Result<RepositoryLock, BackupError> {
        self.lock_folder(self.folder(bucket).join(LOG), "log")
    }

    fn lock_folder(&self, folder: PathBuf, what: &str) -> Result<RepositoryLock, BackupError> {
        let failed = |operation, source| BackupError::Io { operation, path: folder.clone(), source };
        let held = || {
            BackupError::Missing(format!(
                "another process works on the {what} in {}; wait until it has ended",
                folder.display()
            ))
        };
        if let Some(store) = &self.store {
            return match store.lock(&folder.join(LOCK)) {
                Ok(lock) => Ok(RepositoryLock::Object(Box::new(lock))),
                Err(NotLocked::Held) => Err(held()),
                Err(NotLocked::Failed(source)) => Err(failed("lock", source)),
            };
        }
        self.disk().create_dir_all_synced(&folder).map_err(|error| failed("make", error))?;
        let file = File::options().write(true).create(true).truncate(false).open(folder.join(LOCK));
        let file = file.map_err(|error| failed("lock", error))?;
        match file.try_lock() {
            Ok(()) => Ok(RepositoryLock::File { _file: file }),
            Err(TryLockError::WouldBlock) => Err(held()),
            Err(TryLockError::Error(error)) => Err(failed("lock", error)),
        }
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>, BackupError> {
        match self.disk().read_dir(folder) {
            Ok(mut names) => {
                names.sort();
                Ok(names)
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(Vec::new())
            }
            Err(source) => Err(BackupError::Io { operation: "read", path: folder.to_owned(), source }),
        }
    }

    /// Buckets that have backups here.
    pub(crate) fn buckets(&self) -> Result<Vec<String>, BackupError> {
        let has_backups = |bucket: &String| {
            let names = self.names(&self.dir.join(bucket)).unwrap_or_default();
            names.iter().any(|name| is_id(name))
        };
        let buckets: Vec<String> = self.names(&self.dir)?.into_iter().filter(has_backups).collect();
        if buckets.is_empty() {
            let what = format!("{} holds no backups: `stave backup --to DIR` makes one", self.dir.display());
            return Err(BackupError::Missing(what));
        }
        Ok(buckets)
    }

    /// The complete backups of a bucket, the oldest first, with those whose manifest is damaged.
    pub(crate) fn backups(&self, bucket: &str) -> Result<Vec<Result<Backup, BackupError>>, BackupError> {
        let folder = self.folder(bucket);
        let ids = self.names(&folder)?.into_iter().filter(|name| is_id(name));
        Ok(ids.filter_map(|id| self.backup(&folder.join(&id), &id).transpose()).collect())
    }

    /// A backup; `None` if it is not complete.
    fn backup(&self, folder: &Path, id: &str) -> Result<Option<Backup>, BackupError> {
        // It reads plain ones, too.
        let file = sealed_manifest(folder, id);
        let parse = |content: &[u8], version| match version {
            1 => {
                let manifest = serde_json::from_slice(content).map_err(|error| error.to_string())?;
                Ok(ManifestContent::Plain(manifest))
            }
            SEALED_VERSION => Ok(ManifestContent::Sealed(content.to_vec())),
            _ => Err("it has no header".to_owned()),
        };
        let found = file.look(self.disk(), parse)?;
        let Some(found) = found else { return Ok(None) };
        let (manifest, is_encrypted) = match found.content {
            ManifestContent::Plain(manifest) => (*manifest, false),
            ManifestContent::Sealed(piece) => {
                let sealer = self.sealer_in(parent_of(folder))?;
                (open_manifest(sealer.as_ref(), id, &piece, &file.path())?, true)
            }
        };
        Ok(Some(Backup { folder: folder.to_owned(), manifest, is_encrypted }))
    }

    /// There is no backup of a bucket: of which there is one.
    fn no_backup(&self, bucket: &str) -> BackupError {
        let mut others = match self.buckets() {
            Ok(others) => others,
            Err(error) => return error,
        };
        let hint = if others.iter().any(|name| name == bucket) {
            "; one that was broken off is there, and `stave backup` goes on with it".to_owned()
        } else {
            others.sort();
            format!("; --bucket names one of: {}", others.join(", "))
        };
        BackupError::Missing(format!("{} has no complete backup{hint}", self.folder(bucket).display()))
    }

    /// A backup of a bucket, the newest one if none is named, and all that it goes on from.
    pub(crate) fn chain(&self, bucket: &str, id: Option<&str>) -> Result<Chain, BackupError> {
        let folder = self.folder(bucket);
        let newest = || -> Result<String, BackupError> {
            let all = self.backups(bucket)?;
            let newest = all.into_iter().next_back();
            Ok(newest.ok_or_else(|| self.no_backup(bucket))??.manifest.id)
        };
        let mut next = Some(id.map_or_else(newest, |id| Ok(id.to_owned()))?);
        let mut chain = Vec::new();
        while let Some(id) = next {
            let backup = is_id(&id).then(|| self.backup(&folder.join(&id), &id)).transpose()?.flatten();
            let backup = backup.ok_or_else(|| {
                let what = if chain.is_empty() { "" } else { ", which a later one goes on from" };
                BackupError::Missing(format!("{} has no complete backup {id}{what}", folder.display()))
            })?;
            next = backup.manifest.base.clone();
            let later: Option<&Backup> = chain.last();
            if let Some(later) = later.filter(|later| later.is_encrypted != backup.is_encrypted) {
                let (is, later) = (words_of(backup.is_encrypted), &later.manifest.id);
                let what = format!("it is {is}, unlike backup {later}, which goes on from it");
                return Err(BackupError::damaged(&backup.folder.join(MANIFEST), what));
            }
            // An identifier is the moment at which a backup began, so that a chain ends.
            if next.as_ref().is_some_and(|next| *next >= id) {
                return Err(BackupError::damaged(
                    &backup.folder.join(MANIFEST),
                    "it goes on from a later backup",
                ));
            }
            chain.push(backup);
        }
        Ok(Chain(chain))
    }

    /// The newest backup of a bucket, if it was broken off.
    pub(super) fn unfinished(&self, bucket: &str) -> Result<Option<Unfinished>, BackupError> {
        let parent = self.folder(bucket);
        let Some(id) = self.names(&parent)?.into_iter().rfind(|name| is_id(name)) else { return Ok(None) };
        let folder = parent.join(&id);
        // One whose manifest is damaged was complete: it is left as it is.
        if !matches!(self.backup(&folder, &id), Ok(None)) {
            return Ok(None);
        }
        let bytes = match self.read(&folder.join(LINES), MAX_LINES_BYTES) {
            Ok(bytes) => bytes,
            Err(BackupError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let first = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (begun, rest) = bytes.split_at(first);
        let is_encrypted = is_sealed(begun);
        let sealer = if is_encrypted { self.sealer(bucket)? } else { None };
        if is_encrypted && sealer.is_none() {
            return Err(no_keys(&folder.join(LINES)));
        }
        let seal = LineSeal { sealer: sealer.as_ref(), id: &id };
        let (heads, _) = lines_in::<BackupHead>(begun, seal);
        let Some(head) = heads.into_iter().next().filter(|head| head.id == id) else {
            let head = BackupHead {
                id,
                number: 0,
                base: None,
                begun_s: 0,
                vbuckets: 0,
                snapshot: None,
                is_given: false,
            };
            return Ok(Some(Unfinished { folder, head, done: Vec::new(), lines_len: 0, is_encrypted }));
        };
        let (done, len) = lines_in::<VbucketLine>(rest, seal);
        Ok(Some(Unfinished { folder, head, done, lines_len: (first + len) as u64, is_encrypted }))
    }

    /// What is to be told of the newest backup of a bucket, if it is not complete.
    pub(crate) fn unfinished_backup(&self, bucket: &str) -> Result<Option<UnfinishedBackup>, BackupError> {
        let Some(Unfinished { head, done, lines_len, .. }) = self.unfinished(bucket)? else {
            return Ok(None);
        };
        let mut total = VersionCounts::default();
        done.iter().flat_map(|line| line.counts.values()).for_each(|counts| total.add(*counts));
        let BackupHead { id, base, begun_s, vbuckets, .. } = head;
        let (done, can_go_on) = (done.len(), lines_len > 0);
        Ok(Some(UnfinishedBackup { id, base, begun_s, vbuckets, done, total, can_go_on }))
    }

    /// Removes a backup. Its manifest goes first, so that what is left of it after a crash is not complete.
    pub(crate) fn remove(&self, folder: &Path) -> Result<(), BackupError> {
        let failed = |source| BackupError::Io { operation: "remove", path: folder.to_owned(), source };
        for name in [MANIFEST.to_owned(), format!("{MANIFEST}.copy")] {
            match self.disk().remove_file(&folder.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        self.disk().sync_dir(folder).map_err(failed)?;
        self.disk().remove_dir_all(folder).map_err(failed)?;
        let parent = folder.parent().unwrap_or(&self.dir);
        self.disk().sync_dir(parent).map_err(failed)
    }

    /// The list of vBuckets of a complete backup.
    pub(crate) fn lines(&self, backup: &Backup) -> Result<BTreeMap<u16, VbucketLine>, BackupError> {
        let path = backup.folder.join(LINES);
        let bytes = self.read(&path, MAX_LINES_BYTES)?;
        let (len, checksum) = backup.manifest.lines;
        if bytes.len() as u64 != len || crc32c::crc32c(&bytes) != checksum {
            return Err(BackupError::damaged(&path, "it is not the one that the manifest names"));
        }
        let sealer = self.sealer_of(backup)?;
        let seal = LineSeal { sealer: sealer.as_ref(), id: &backup.manifest.id };
        let first = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, taken) = lines_in::<VbucketLine>(&bytes[first..], seal);
        if first + taken != bytes.len() || lines.len() != usize::from(backup.manifest.vbuckets) {
            return Err(BackupError::damaged(&path, "it does not name each vBucket"));
        }
        Ok(lines.into_iter().map(|line| (line.vb, line)).collect())
    }

    /// What is to be told if a key was given and a backup, or so many segments of the log, are not encrypted: without the
    /// key they can be written as well.
    pub(crate) fn clear_warning(&self, chain: Option<&Chain>, plain_segments: usize) -> Option<String> {
        let backup = chain.map(Chain::newest).filter(|newest| !newest.is_encrypted);
        let backup = backup.map(|newest| format!("backup {}", newest.manifest.id));
        let segments = counted(plain_segments as u64, "segment of the log", "segments of the log");
        let segments = (plain_segments > 0).then_some(segments);
        let plain: Vec<String> = [backup, segments].into_iter().flatten().collect();
        (self.keys.is_given() && !plain.is_empty()).then(|| {
            format!(
                "a key was given, and not encrypted: {}; without the key such files can be written, too, so make sure that \
                 they are from before backups were encrypted",
                plain.join(" and ")
            )
        })
    }

    fn read(&self, path: &Path, most: u64) -> Result<Vec<u8>, BackupError> {
        let failed = |source| BackupError::Io { operation: "read", path: path.to_owned(), source };
        let file = self.disk().open(path, OpenMode::Read).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        if len > most {
            return Err(BackupError::damaged(path, format!("its {len} bytes are more than such a file has")));
        }
        let mut bytes = vec![0; len as usize];
        let read = file.read_at(&mut bytes, 0).map_err(failed)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// A new identifier: the time, and later than each that is there.
    pub(super) fn new_id(&self, bucket: &str) -> Result<String, BackupError> {
        let now = time::OffsetDateTime::from_unix_timestamp(self.env.clock.unix_s().into());
        let now = now.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
        let (year, month, day) = now.to_calendar_date();
        let (hour, minute, second) = now.to_hms();
        let base = format!("{year:04}{:02}{day:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month));
        let last =
            self.names(&self.folder(bucket))?.into_iter().rfind(|name| is_id(name)).unwrap_or_default();
        if base > last {
            return Ok(base);
        }
        let (stem, count) = last.split_once('.').unwrap_or((&last, "0"));
        let count = count.parse::<u32>().unwrap_or(0) + 1;
        Ok(format!("{stem}.{count:04}"))
    }
}

/// Where a backup's manifest is.
pub(super) fn manifest_file(folder: &Path, id: &str) -> SmallFile {
    SmallFile::new(folder, MANIFEST).owned_by(id).at_most(MAX_MANIFEST_BYTES)
}

/// The same if it is encrypted.
pub(super) fn sealed_manifest(folder: &Path, id: &str) -> SmallFile {
    manifest_file(folder, id).of_version(SEALED_VERSION)
}

fn words_of(is_encrypted: bool) -> &'static str {
    if is_encrypted { "encrypted" } else { "not encrypted" }
}

/// The folder of a bucket, of a backup's.
fn parent_of(folder: &Path) -> &Path {
    folder.parent().unwrap_or(folder)
}

/// Whether a name is that of a backup, like `20261127T003000Z` or `20261127T003000Z.0001`.
fn is_id(name: &str) -> bool {
    let (stem, count) = name.split_once('.').unwrap_or((name, "0"));
    let bytes = stem.as_bytes();
    let digits = |range: std::ops::Range<usize>| bytes[range].iter().all(u8::is_ascii_digit);
    bytes.len() == 16
        && (bytes[8], bytes[15]) == (b'T', b'Z')
        && digits(0..8)
        && digits(9..15)
        && !count.is_empty()
        && count.bytes().all(|digit| digit.is_ascii_digit())
}

impl Chain {
    /// The backup that is restored.
    pub(crate) fn newest(&self) -> &Backup {
        &self.0[0]
    }
}

/// A file of changes.
pub(super) fn changes_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("{}{number:05}", writer::CHANGES))
}
