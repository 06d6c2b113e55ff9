//! Segments of a log as objects. Nothing can be appended to an object: a segment consists of pieces until it is whole.
//!
//! # Guarantees
//!
//! - A sync puts what was written since the last one as a piece, and returns when the store has it. No piece is replaced.
//! - A piece is named by its place in the segment, so that a missing one is noticed: the segment is refused by name.
//! - If the object of the whole segment exists, it alone counts. A piece that arrives later, from a process that lost its
//!   lock, is passed over.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::{Arc, Mutex};

use base::env::{File, OpenMode};

use super::disk::{READ_BYTES, ReadObject, SMALL_BYTES, key_of, lock, out_of_order};
use super::store::{ObjectHead, ObjectStore, PutIf};
use crate::backup::log::SEGMENT;

/// Whether a file is a segment of a log.
pub(super) fn is_segment(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SEGMENT))
}

/// The segment that an object belongs to, by the names behind their folder.
pub(super) fn segment_of(name: &str) -> &str {
    if name.starts_with(SEGMENT) { name.split('.').next().unwrap_or(name) } else { name }
}

fn piece_key(key: &str, begin: u64) -> String {
    format!("{key}.{begin:012}")
}

/// Where the pieces of a segment begin, in their order.
fn begins_of(store: &ObjectStore, key: &str) -> Result<Vec<u64>> {
    let names = store.list(&format!("{key}."))?;
    let mut begins: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
    begins.sort_unstable();
    Ok(begins)
}

/// Opens a segment as a file.
pub(super) fn open(store: &Arc<ObjectStore>, key: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
    let missing = || Error::new(ErrorKind::NotFound, format!("{} has no such segment", store.name()));
    match (mode, SegmentObject::find(store, key)?) {
        (OpenMode::Read | OpenMode::ReadWrite, None) => Err(missing()),
        (OpenMode::CreateNew, Some(_)) => Err(ErrorKind::AlreadyExists.into()),
        (OpenMode::Read, Some(SegmentObject::Whole(read))) => Ok(Arc::new(read)),
        (OpenMode::Read, Some(SegmentObject::Pieces(read))) => Ok(Arc::new(read)),
        (_, Some(found)) => Ok(Arc::new(RewrittenSegment::load(store, key, &found)?)),
        (_, None) => Ok(Arc::new(WrittenSegment {
            // A backup that is made meanwhile does not hold up what is appended.
            store: store.another(),
            key: key.to_owned(),
            appended: Mutex::default(),
        })),
    }
}

/// Removes a segment. One that is not whole becomes so first: it is there completely or not at all.
pub(super) fn remove(store: &Arc<ObjectStore>, key: &str) -> Result<()> {
    if let Some(found @ SegmentObject::Pieces(_)) = SegmentObject::find(store, key)? {
        RewrittenSegment::load(store, key, &found)?.sync_data()?;
    }
    remove_pieces(store, key)?;
    store.remove(key)
}

fn remove_pieces(store: &ObjectStore, key: &str) -> Result<()> {
    begins_of(store, key)?.iter().try_for_each(|begin| store.remove(&piece_key(key, *begin)))
}

/// Makes one object of each segment in a folder that consists of pieces and has a lower number than `before`.
pub(super) fn join_pieces(store: &Arc<ObjectStore>, folder: &Path, before: u32) -> Result<()> {
    let folder = key_of(folder)?;
    let names = store.list(&format!("{folder}/"))?;
    let in_pieces = names.iter().filter_map(|name| name.split_once('.')).map(|(segment, _)| segment);
    let is_wanted = |segment: &&str| {
        let number = segment.strip_prefix(SEGMENT).and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| number < before)
    };
    for segment in in_pieces.filter(is_wanted).collect::<BTreeSet<_>>() {
        let key = format!("{folder}/{segment}");
        let Some(found) = SegmentObject::find(store, &key)? else { continue };
        RewrittenSegment::load(store, &key, &found)?.sync_data()?;
    }
    Ok(())
}

/// A segment that exists.
enum SegmentObject {
    Whole(ReadObject),
    Pieces(ReadPieces),
}

impl SegmentObject {
    fn find(store: &Arc<ObjectStore>, key: &str) -> Result<Option<SegmentObject>> {
        let whole = || -> Result<Option<SegmentObject>> {
            let head = store.head(key)?;
            Ok(head.map(|head| SegmentObject::Whole(ReadObject::new(store.clone(), key.to_owned(), head))))
        };
        if let Some(whole) = whole()? {
            return Ok(Some(whole));
        }
        let begins = begins_of(store, key)?;
        // It may have become whole since it was looked for, and some of the pieces may be gone: those that are listed are
        // all of them only if it is not whole even now.
        if let Some(whole) = whole()? {
            return Ok(Some(whole));
        }
        let Some(last) = begins.last().copied() else { return Ok(None) };
        let Some(head) = store.head(&piece_key(key, last))? else { return whole() };
        let (store, key, len) = (store.clone(), key.to_owned(), last + head.len);
        Ok(Some(SegmentObject::Pieces(ReadPieces { store, key, begins, len, all: Mutex::new(None) })))
    }

    fn file(&self) -> &dyn File {
        match self {
            SegmentObject::Whole(read) => read,
            SegmentObject::Pieces(read) => read,
        }
    }
}

/// A segment that is read piece by piece.
struct ReadPieces {
    store: Arc<ObjectStore>,
    key: String,
    begins: Vec<u64>,
    len: u64,
    /// All of it, if it is small and was read.
    all: Mutex<Option<Vec<u8>>>,
}

impl ReadPieces {
    /// Reads a range; in the whole segment, if it became that meanwhile.
    fn fetch(&self, begin: u64, into: &mut [u8]) -> Result<()> {
        match self.fetch_pieces(begin, into) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
                let Some(head) = self.store.head(&self.key)? else { return Err(error) };
                let whole = ReadObject::new(self.store.clone(), self.key.clone(), head);
                let read = whole.read_at(into, begin)?;
                if read == into.len() { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
            }
            done => done,
        }
    }

    fn fetch_pieces(&self, begin: u64, into: &mut [u8]) -> Result<()> {
        let (mut at, end) = (begin, begin + into.len() as u64);
        let first = self.begins.partition_point(|piece| *piece <= at);
        let missing = |at: u64| {
            let what = format!("{} lacks a piece of {} behind byte {at}", self.store.name(), self.key);
            Error::new(ErrorKind::InvalidData, what)
        };
        let mut next = first.checked_sub(1).ok_or_else(|| missing(at))?;
        while at < end {
            let piece = self.begins[next];
            let piece_end = self.begins.get(next + 1).copied().unwrap_or(self.len);
            let until = end.min(piece_end).min(at + READ_BYTES as u64);
            let head = ObjectHead { len: piece_end - piece, etag: String::new() };
            let key = piece_key(&self.key, piece);
            let bytes = match self.store.read(&key, &head, at - piece..until - piece) {
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(missing(at)),
                read => read?,
            };
            into[(at - begin) as usize..(until - begin) as usize].copy_from_slice(&bytes);
            at = until;
            next += usize::from(at == piece_end);
        }
        Ok(())
    }
}

impl File for ReadPieces {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let end = (offset + buf.len() as u64).min(self.len);
        let count = end.saturating_sub(offset) as usize;
        if count == 0 {
            return Ok(0);
        }
        if self.len > SMALL_BYTES {
            self.fetch(offset, &mut buf[..count])?;
            return Ok(count);
        }
        let mut all = lock(&self.all);
        if all.is_none() {
            let mut bytes = vec![0; self.len as usize];
            self.fetch(0, &mut bytes)?;
            *all = Some(bytes);
        }
        let bytes = all.as_deref().unwrap_or_default();
        buf[..count].copy_from_slice(&bytes[offset as usize..end as usize]);
        Ok(count)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// What was written to a segment that began.
#[derive(Default)]
struct Appended {
    /// Bytes that the store has.
    put: u64,
    rest: Vec<u8>,
}

/// A segment that is appended to.
struct WrittenSegment {
    store: ObjectStore,
    key: String,
    appended: Mutex<Appended>,
}

impl WrittenSegment {
    fn put(&self, begin: u64, bytes: &[u8]) -> Result<()> {
        let key = piece_key(&self.key, begin);
        match self.store.put(&key, bytes, PutIf::Missing) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // The answer to an earlier try may have been lost.
                let is_ours = self.store.head(&key)?.is_some_and(|head| {
                    let len = bytes.len() as u64;
                    head.len == len && self.store.read(&key, &head, 0..len).is_ok_and(|read| read == bytes)
                });
                let what = format!("{key} exists already: another process writes this log");
                if is_ours { Ok(()) } else { Err(Error::new(ErrorKind::AlreadyExists, what)) }
            }
            done => done.map(drop),
        }
    }
}

impl File for WrittenSegment {
    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> Result<usize> {
        Err(ErrorKind::Unsupported.into())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let appended = &mut *lock(&self.appended);
        let at = offset.checked_sub(appended.put).map(|at| at as usize);
        let at = at.filter(|at| *at <= appended.rest.len()).ok_or_else(out_of_order)?;
        appended.rest.truncate(at);
        appended.rest.extend_from_slice(buf);
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        let appended = &mut *lock(&self.appended);
        if !appended.rest.is_empty() {
            self.put(appended.put, &appended.rest)?;
            appended.put += appended.rest.len() as u64;
            appended.rest.clear();
        }
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        let appended = lock(&self.appended);
        Ok(appended.put + appended.rest.len() as u64)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        if self.len()? == len { Ok(()) } else { Err(out_of_order()) }
    }
}

/// A segment that becomes one object, with what is cut off and written over.
struct RewrittenSegment {
    store: Arc<ObjectStore>,
    key: String,
    /// Its bytes, and whether the store has them as one object.
    content: Mutex<(Vec<u8>, bool)>,
}

impl RewrittenSegment {
    fn load(store: &Arc<ObjectStore>, key: &str, found: &SegmentObject) -> Result<RewrittenSegment> {
        let file = found.file();
        let mut bytes = vec![0; usize::try_from(file.len()?).map_err(Error::other)?];
        file.read_at(&mut bytes, 0)?;
        let is_whole = matches!(found, SegmentObject::Whole(_));
        Ok(RewrittenSegment {
            store: store.clone(),
            key: key.to_owned(),
            content: Mutex::new((bytes, is_whole)),
        })
    }
}

impl File for RewrittenSegment {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (bytes, _) = &*lock(&self.content);
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let count = from.len().min(buf.len());
        buf[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let (bytes, is_put) = &mut *lock(&self.content);
        let at = offset as usize;
        let old = bytes.get(at..).ok_or_else(out_of_order)?;
        if old.get(..buf.len()) != Some(buf) {
            *is_put = false;
            let both = buf.len().min(old.len());
            bytes[at..at + both].copy_from_slice(&buf[..both]);
            bytes.extend_from_slice(&buf[both..]);
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        let (bytes, is_put) = &mut *lock(&self.content);
        if !*is_put {
            self.store.put(&self.key, bytes, PutIf::Always)?;
            *is_put = true;
        }
        remove_pieces(&self.store, &self.key)
    }

    fn len(&self) -> Result<u64> {
        Ok(lock(&self.content).0.len() as u64)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let (bytes, is_put) = &mut *lock(&self.content);
        let len = usize::try_from(len).map_err(Error::other)?;
        *is_put &= len == bytes.len();
        bytes.resize(len, 0);
        Ok(())
    }
}
