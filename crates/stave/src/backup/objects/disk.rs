//! Objects as the files of a folder of backups.
//!
//! # Guarantees
//!
//! - A file is there as a whole or not at all, and after [`File::sync_data`] it is.
//! - What is read is of one object, even if another one takes its place meanwhile.
//! - Memory is bounded: a part of what is written to a file of changes, and what is read of small objects.
//!
//! Files of changes are sent in parts, and get nothing more once they are synced. Other files are small: they are kept in
//! memory and sent as a whole. Folders are prefixes of names, and need not be made. Segments of a log have rules of their own
//! (`segments.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::env::{Disk, File, OpenMode};

use super::segments;
use super::store::{ObjectHead, ObjectStore, PutIf};
use crate::backup::writer::CHANGES;

/// Tests are content with less.
const MIB: usize = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// Bytes of a part. There may be 10,000 of an object, and a file of changes has little more than 1 GiB.
const PART_BYTES: usize = 8 * MIB;
/// An object that is not longer is read as a whole, and kept.
pub(super) const SMALL_BYTES: u64 = 32 * MIB as u64;
/// Bytes of one read.
pub(super) const READ_BYTES: usize = 8 * MIB;
/// What a file is called until it takes the place of another one.
const UNFINISHED: &str = ".new";

/// A bucket of an object store.
pub(crate) struct ObjectDisk {
    store: Arc<ObjectStore>,
    /// Files that will take the place of others.
    unfinished: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
}

impl ObjectDisk {
    pub(super) fn new(store: Arc<ObjectStore>) -> ObjectDisk {
        ObjectDisk { store, unfinished: Arc::default() }
    }

    fn head(&self, path: &Path) -> Result<Option<ObjectHead>> {
        self.store.head(&key_of(path)?)
    }

    fn written(&self, path: &Path, sent: SentObject) -> Result<Arc<dyn File>> {
        let (store, unfinished) = (self.store.clone(), self.unfinished.clone());
        let path = path.to_owned();
        let is_unfinished = path.to_string_lossy().ends_with(UNFINISHED);
        Ok(Arc::new(WrittenObject {
            store,
            key: key_of(&path)?,
            path,
            unfinished,
            is_unfinished,
            sent: Mutex::new(sent),
        }))
    }
}

/// The name of an object, of a path like `s3://BUCKET/NAME`.
pub(super) fn key_of(path: &Path) -> Result<String> {
    let mut names = Vec::new();
    for part in path.components().skip(2) {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                let name = name.to_str();
                let name = name.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a name that is no text"));
                names.push(name?);
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("{} is no name of an object", path.display()),
                ));
            }
        }
    }
    Ok(names.join("/"))
}

fn is_of_changes(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(CHANGES))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk for ObjectDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        if segments::is_segment(path) {
            return segments::open(&self.store, &key_of(path)?, mode);
        }
        let is_of_changes = is_of_changes(path);
        let head = self.head(path)?;
        let missing = || Error::new(ErrorKind::NotFound, format!("{} has no such object", self.store.name()));
        match (mode, head) {
            (OpenMode::Read | OpenMode::ReadWrite, None) => Err(missing()),
            (OpenMode::CreateNew, Some(_)) => Err(ErrorKind::AlreadyExists.into()),
            (OpenMode::Read, Some(head)) => {
                Ok(Arc::new(ReadObject::new(self.store.clone(), key_of(path)?, head)))
            }
            // One that is there gets nothing more.
            (_, Some(head)) if is_of_changes => {
                Ok(Arc::new(ReadObject::new(self.store.clone(), key_of(path)?, head)))
            }
            (_, None) if is_of_changes => self.written(path, SentObject::Parts(Parts::default())),
            (_, Some(head)) => {
                let read = ReadObject::new(self.store.clone(), key_of(path)?, head.clone());
                let mut bytes = vec![0; usize::try_from(head.len).map_err(Error::other)?];
                read.read_at(&mut bytes, 0)?;
                self.written(path, SentObject::Whole(bytes))
            }
            (_, None) => self.written(path, SentObject::Whole(Vec::new())),
        }
    }

    fn create_dir_all(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn create_dir_all_synced(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<String>> {
        let key = key_of(path)?;
        let names = self.store.list(&if key.is_empty() { key } else { format!("{key}/") })?;
        let names: BTreeSet<&str> = names.iter().map(|name| segments::segment_of(name)).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let Some(bytes) = lock(&self.unfinished).remove(from) else { return Err(ErrorKind::NotFound.into()) };
        let put = self.store.put(&key_of(to)?, &bytes, PutIf::Always).map(drop);
        if put.is_err() {
            lock(&self.unfinished).insert(from.to_owned(), bytes);
        }
        put
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        if segments::is_segment(path) {
            return segments::remove(&self.store, &key_of(path)?);
        }
        self.store.remove(&key_of(path)?)
    }

    fn remove_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> Result<()> {
        // Nothing is deeper than a backup's own files.
        self.read_dir(path)?.iter().try_for_each(|name| self.remove_file(&path.join(name)))
    }

    fn sync_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }
}

/// An object that is read.
pub(super) struct ReadObject {
    store: Arc<ObjectStore>,
    key: String,
    head: ObjectHead,
    /// All of it, if it is small and was read.
    whole: Mutex<Option<Vec<u8>>>,
}

impl ReadObject {
    pub(super) fn new(store: Arc<ObjectStore>, key: String, head: ObjectHead) -> ReadObject {
        ReadObject { store, key, head, whole: Mutex::new(None) }
    }

    fn fetch(&self, range: std::ops::Range<u64>, into: &mut [u8]) -> Result<()> {
        let mut at = range.start;
        for part in into.chunks_mut(READ_BYTES) {
            let end = at + part.len() as u64;
            part.copy_from_slice(&self.store.read(&self.key, &self.head, at..end)?);
            at = end;
        }
        Ok(())
    }
}

impl File for ReadObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let end = (offset + buf.len() as u64).min(self.head.len);
        let count = end.saturating_sub(offset) as usize;
        if count == 0 {
            return Ok(0);
        }
        if self.head.len > SMALL_BYTES {
            self.fetch(offset..end, &mut buf[..count])?;
            return Ok(count);
        }
        let mut whole = lock(&self.whole);
        if whole.is_none() {
            let mut bytes = vec![0; self.head.len as usize];
            self.fetch(0..self.head.len, &mut bytes)?;
            *whole = Some(bytes);
        }
        let bytes = whole.as_deref().unwrap_or_default();
        buf[..count].copy_from_slice(&bytes[offset as usize..end as usize]);
        Ok(count)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "an object that is there cannot be written to"))
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.head.len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        // What is behind is named by no line, and stays.
        if len <= self.head.len { Ok(()) } else { Err(ErrorKind::Unsupported.into()) }
    }
}

/// What was written to an object.
enum SentObject {
    /// All of it, sent anew at each sync.
    Whole(Vec<u8>),
    Parts(Parts),
}

/// An object that is sent in parts.
#[derive(Default)]
struct Parts {
    /// What is not sent yet.
    rest: Vec<u8>,
    upload: Option<String>,
    etags: Vec<String>,
    len: u64,
    is_complete: bool,
}

struct WrittenObject {
    store: Arc<ObjectStore>,
    path: PathBuf,
    key: String,
    unfinished: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
    is_unfinished: bool,
    sent: Mutex<SentObject>,
}

impl WrittenObject {
    /// Sends what there is as a part.
    fn part(&self, parts: &mut Parts) -> Result<()> {
        let upload = match parts.upload.take() {
            Some(upload) => upload,
            None => self.store.begin_parts(&self.key)?,
        };
        let upload = parts.upload.insert(upload);
        let number = u16::try_from(parts.etags.len() + 1).map_err(Error::other)?;
        let etag = self.store.put_part(&self.key, upload, number, &parts.rest)?;
        parts.etags.push(etag);
        parts.rest.clear();
        Ok(())
    }

    fn complete(&self, parts: &mut Parts) -> Result<()> {
        if parts.is_complete {
            return Ok(());
        }
        if parts.upload.is_none() {
            self.store.put(&self.key, &parts.rest, PutIf::Always)?;
            parts.rest = Vec::new();
        } else {
            if !parts.rest.is_empty() {
                self.part(parts)?;
            }
            let upload = parts.upload.clone().unwrap_or_default();
            let ended = self.store.end_parts(&self.key, &upload, &parts.etags);
            // The answer to an earlier try may have been lost: what is there counts.
            let is_there = self.store.head(&self.key)?.is_some_and(|head| head.len == parts.len);
            if !is_there {
                ended?;
                return Err(Error::other(format!("{} does not have all of {}", self.store.name(), self.key)));
            }
            parts.upload = None;
        }
        parts.is_complete = true;
        Ok(())
    }
}

pub(super) fn out_of_order() -> Error {
    Error::new(ErrorKind::Unsupported, "an object is written from its beginning to its end")
}

impl File for WrittenObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let SentObject::Whole(bytes) = &*lock(&self.sent) else { return Err(ErrorKind::Unsupported.into()) };
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let count = from.len().min(buf.len());
        buf[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        match &mut *lock(&self.sent) {
            SentObject::Whole(bytes) => {
                let at = offset as usize;
                if at > bytes.len() {
                    return Err(out_of_order());
                }
                let both = buf.len().min(bytes.len() - at);
                bytes[at..at + both].copy_from_slice(&buf[..both]);
                bytes.extend_from_slice(&buf[both..]);
            }
            SentObject::Parts(parts) => {
                if offset != parts.len || parts.is_complete {
                    return Err(out_of_order());
                }
                parts.rest.extend_from_slice(buf);
                parts.len += buf.len() as u64;
                if parts.rest.len() >= PART_BYTES {
                    self.part(parts)?;
                }
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        match &mut *lock(&self.sent) {
            SentObject::Whole(bytes) if self.is_unfinished => {
                lock(&self.unfinished).insert(self.path.clone(), bytes.clone());
                Ok(())
            }
            SentObject::Whole(bytes) => self.store.put(&self.key, bytes, PutIf::Always).map(drop),
            SentObject::Parts(parts) => self.complete(parts),
        }
    }

    fn len(&self) -> Result<u64> {
        Ok(match &*lock(&self.sent) {
            SentObject::Whole(bytes) => bytes.len() as u64,
            SentObject::Parts(parts) => parts.len,
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        match &mut *lock(&self.sent) {
            SentObject::Whole(bytes) => {
                bytes.resize(usize::try_from(len).map_err(Error::other)?, 0);
                Ok(())
            }
            SentObject::Parts(parts) if parts.len == len => Ok(()),
            SentObject::Parts(_) => Err(out_of_order()),
        }
    }
}

impl Drop for WrittenObject {
    fn drop(&mut self) {
        if let SentObject::Parts(parts) = &mut *lock(&self.sent)
            && let Some(upload) = parts.upload.take()
        {
            // What is left behind costs room only: a rule of the bucket's life cycle removes it.
            let _ = self.store.abort_parts(&self.key, &upload);
        }
    }
}
