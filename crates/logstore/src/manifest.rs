//! The manifest of a shard: records of edits, appended, each synced before the next is written.
//!
//! A record that is incomplete at the end was never acknowledged. One that is damaged with others behind it is damage.

use std::path::Path;
use std::sync::Arc;

use base::env::{File, OpenMode};

use crate::codec::{u32_at, u64_at};
use crate::edit_codec;
use crate::failure::Failure;
use crate::file::Files;
use crate::identity::{FileId, ID_HEADER_BYTES};
use crate::meta::{Edit, ShardMeta};
use crate::segment::{check_header, header};

const MAGIC: &[u8; 8] = b"stavelmf";
/// From version 2 on a manifest notes the caller's number, from version 3 on it says whose it is and names files with
/// their random numbers, from version 4 on it may tell of a history of changes.
pub(crate) const VERSION: u8 = 4;
const WITHOUT_IDENTITY: u8 = 2;
/// Header of the file without identity: as of every file, then number of the shard, number of shards, CRC32C.
const SHORT_HEADER: usize = 28;
/// Header of a record: bytes stored, kind, sequence number, CRC32C of the content, CRC32C of this header.
const RECORD_HEADER: usize = 21;
const PLAIN: u8 = 0;
const SNAPPY: u8 = 1;
/// No record is longer.
const MOST_RECORD_BYTES: usize = 1 << 30;

pub(crate) fn manifest_name(shard: usize) -> String {
    format!("{shard}.manifest")
}

fn unfinished_name(shard: usize) -> String {
    format!("{shard}.manifest.new")
}

/// The shard of a manifest's name, and whether the file is one that was not finished.
pub(crate) fn parse_manifest_name(name: &str) -> Option<(usize, bool)> {
    let (stem, is_unfinished) = match name.strip_suffix(".new") {
        Some(stem) => (stem, true),
        None => (name, false),
    };
    let shard = stem.strip_suffix(".manifest")?.parse().ok()?;
    (manifest_name(shard) == stem).then_some((shard, is_unfinished))
}

/// A manifest that can be appended to.
pub(crate) struct Manifest {
    file: Arc<dyn File>,
    path: Arc<Path>,
    /// Where the last record ends.
    end: u64,
    sequence: u64,
    seed: u32,
    /// What it had when it was begun, for the decision to begin another.
    pub(crate) first_bytes: u64,
}

/// What a manifest told.
pub(crate) struct Told {
    pub(crate) meta: ShardMeta,
    /// The manifest, if it can be appended to: not one of an earlier version.
    pub(crate) manifest: Option<Manifest>,
    /// Whether commits have numbers that no other folder gives: not those of an earlier version.
    pub(crate) has_identity: bool,
    /// Why what was told is not all.
    pub(crate) damage: Option<Failure>,
}

impl Told {
    /// What is told if there is no manifest, or none that can be used.
    pub(crate) fn nothing(damage: Option<Failure>) -> Told {
        Told { meta: ShardMeta::new(), manifest: None, has_identity: true, damage }
    }
}

/// What the checksum of a record's header begins with: a record of another manifest is none of this one.
fn seed(nonce: u64) -> u32 {
    if nonce == 0 { 0 } else { crc32c::crc32c(&nonce.to_le_bytes()) }
}

fn record(seed: u32, sequence: u64, edits: &[Edit]) -> Vec<u8> {
    let content = edit_codec::encode(edits);
    let packed = snap::raw::Encoder::new().compress_vec(&content).ok();
    let packed = packed.filter(|packed| packed.len() < content.len());
    let (kind, stored) = packed.as_ref().map_or((PLAIN, &content), |packed| (SNAPPY, packed));
    sealed(seed, sequence, kind, stored)
}

fn sealed(seed: u32, sequence: u64, kind: u8, stored: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_HEADER + stored.len());
    out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(stored).to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(stored);
    out
}

/// A manifest whose only record has any content, with checksums that fit: for fuzzers.
pub(crate) fn of_content(id: &FileId, content: &[u8]) -> Vec<u8> {
    let mut bytes = id.header(&header(MAGIC, VERSION)).to_vec();
    bytes.extend_from_slice(&sealed(seed(id.nonce), 0, PLAIN, content));
    bytes
}

/// Length, kind and CRC of the content of the record whose header this is, with its number.
fn parse_header(seed: u32, bytes: &[u8]) -> Option<(usize, u8, u64, u32)> {
    let header = bytes.get(..RECORD_HEADER)?;
    if crc32c::crc32c_append(seed, &header[..17]) != u32_at(header, 17) {
        return None;
    }
    let len = u32_at(header, 0) as usize;
    (len <= MOST_RECORD_BYTES).then(|| (len, header[4], u64_at(header, 5), u32_at(header, 13)))
}

fn parse_record(seed: u32, bytes: &[u8], sequence: u64) -> Option<(usize, Vec<Edit>)> {
    let (len, kind, found, crc) = parse_header(seed, bytes)?;
    let stored = bytes.get(RECORD_HEADER..RECORD_HEADER + len)?;
    if found != sequence || crc32c::crc32c(stored) != crc {
        return None;
    }
    let edits = match kind {
        PLAIN => edit_codec::decode(stored),
        SNAPPY => {
            let inflated = snap::raw::decompress_len(stored).ok().filter(|len| *len <= MOST_RECORD_BYTES)?;
            let content = snap::raw::Decoder::new().decompress_vec(stored).ok()?;
            (content.len() == inflated).then_some(content).and_then(|content| edit_codec::decode(&content))
        }
        _ => None,
    };
    Some((RECORD_HEADER + len, edits?))
}

fn read_all(files: &Files, path: &Arc<Path>, mode: OpenMode) -> Result<(Arc<dyn File>, Vec<u8>), Failure> {
    let failed = |operation| move |source| Failure::io(operation, path, 0, source);
    let file = files.disk.open(path, mode).map_err(failed("open"))?;
    let len = file.len().map_err(failed("look at"))?;
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, 0).map_err(failed("read"))?;
    bytes.truncate(read);
    Ok((file, bytes))
}

/// How many shards there are, as the manifest of one of them says.
pub(crate) fn read_shards(files: &Files, shard: usize) -> Result<usize, Failure> {
    let path = files.path(&manifest_name(shard));
    let (_, bytes) = read_all(files, &path, OpenMode::Read)?;
    Ok(FileHead::check(&bytes, (files.owner(), shard), &path)?.shards)
}

/// What the header of a manifest says.
struct FileHead {
    version: u8,
    shards: usize,
    nonce: u64,
}

impl FileHead {
    /// Refuses a manifest of another folder, as far as it says so, or of another shard.
    fn check(bytes: &[u8], (owner, shard): (u128, usize), path: &Arc<Path>) -> Result<FileHead, Failure> {
        let version = check_header(bytes, (MAGIC, VERSION), path)?;
        if version > WITHOUT_IDENTITY {
            let found = FileId::of(bytes, path)?;
            // Whose it is otherwise, the commits tell that are on record.
            FileId { owner, shard, ..found }.check(&found, path)?;
            return Ok(FileHead { version, shards: found.number as usize, nonce: found.nonce });
        }
        let is_sound = bytes.len() >= SHORT_HEADER
            && crc32c::crc32c(&bytes[..24]) == u32_at(bytes, 24)
            && u32_at(bytes, 16) as usize == shard;
        if is_sound {
            Ok(FileHead { version, shards: u32_at(bytes, 20) as usize, nonce: 0 })
        } else {
            Err(Failure::damaged(path, 0, "the header of the manifest"))
        }
    }

    fn len(&self) -> usize {
        if self.version > WITHOUT_IDENTITY { ID_HEADER_BYTES } else { SHORT_HEADER }
    }
}

impl Manifest {
    /// Reads the manifest of a shard. What it tells is durable when this returns.
    pub(crate) fn open(files: &Files, shard: usize) -> Result<Told, Failure> {
        let path = files.path(&manifest_name(shard));
        let (file, bytes) = read_all(files, &path, OpenMode::ReadWrite)?;
        file.sync_data().map_err(|source| Failure::io("sync", &path, 0, source))?;
        Manifest::understand((files.owner(), shard), path, file, &bytes)
    }

    /// Reads the manifest of a shard, and changes nothing; answers its length, too.
    pub(crate) fn look(files: &Files, shard: usize) -> Result<(Told, u64), Failure> {
        let path = files.path(&manifest_name(shard));
        let (file, bytes) = read_all(files, &path, OpenMode::Read)?;
        Ok((Manifest::understand((files.owner(), shard), path, file, &bytes)?, bytes.len() as u64))
    }

    fn understand(
        of: (u128, usize),
        path: Arc<Path>,
        file: Arc<dyn File>,
        bytes: &[u8],
    ) -> Result<Told, Failure> {
        let head = match FileHead::check(bytes, of, &path) {
            Ok(head) => head,
            Err(damage @ Failure::Unsupported { .. }) => return Err(damage),
            Err(damage) => return Ok(Told::nothing(Some(damage))),
        };
        let seed = seed(head.nonce);
        let mut told = Told { has_identity: head.nonce != 0, ..Told::nothing(None) };
        let (mut end, mut sequence) = (head.len() as u64, 0);
        let mut first_bytes = 0;
        loop {
            let at = if sequence == 0 { end } else { file.append_from(end) };
            let rest = bytes.get(at as usize..).unwrap_or_default();
            let Some((len, edits)) = parse_record(seed, rest, sequence) else { break };
            edits.iter().for_each(|edit| told.meta.apply(edit));
            end = at + len as u64;
            sequence += 1;
            first_bytes = if first_bytes == 0 { end } else { first_bytes };
        }
        let rest = &bytes[end as usize..];
        // A manifest is begun with a record before it gets its name.
        if sequence == 0 || has_later_record(seed, rest, sequence) {
            told.damage = Some(Failure::damaged(&path, end, "a record of the manifest"));
        } else if head.version == VERSION && rest.iter().all(|byte| *byte == 0) {
            told.manifest = Some(Manifest { file, path, end, sequence, seed, first_bytes });
        }
        Ok(told)
    }

    /// Puts a new manifest that says the same in the place of one that may be there.
    pub(crate) fn begin(
        files: &Files,
        (shard, shards): (usize, usize),
        meta: &ShardMeta,
    ) -> Result<Manifest, Failure> {
        let unfinished = files.path(&unfinished_name(shard));
        let path = files.path(&manifest_name(shard));
        let failed = |operation| {
            let path = unfinished.clone();
            move |source| Failure::io(operation, &path, 0, source)
        };
        match files.disk.remove_file(&unfinished) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove")(source));
            }
            _ => {}
        }
        let file = files.disk.open(&unfinished, OpenMode::CreateNew).map_err(failed("create"))?;
        let id = FileId { owner: files.owner(), shard, number: shards as u64, nonce: files.nonce() };
        let seed = seed(id.nonce);
        let mut bytes = id.header(&header(MAGIC, VERSION)).to_vec();
        bytes.extend_from_slice(&record(seed, 0, &meta.as_edits()));
        file.write_at(&bytes, 0).map_err(failed("write"))?;
        file.sync_data().map_err(failed("sync"))?;
        files.disk.rename(&unfinished, &path).map_err(failed("rename"))?;
        files.sync_dir()?;
        let end = bytes.len() as u64;
        Ok(Manifest { file, path, end, sequence: 1, seed, first_bytes: end })
    }

    /// Writes a record, which is durable once the file that is returned is synced. After a failure, of this or of the
    /// sync, the manifest must not be appended to any more.
    pub(crate) fn write(&mut self, edits: &[Edit]) -> Result<Arc<dyn File>, Failure> {
        let at = self.file.append_from(self.end);
        let record = record(self.seed, self.sequence, edits);
        let wrote = self.file.write_at(&record, at);
        wrote.map_err(|source| Failure::io("write", &self.path, at, source))?;
        self.end = at + record.len() as u64;
        self.sequence += 1;
        Ok(self.file.clone())
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Whether it is encrypted as a new one would be.
    pub(crate) fn is_current(&self) -> bool {
        self.file.is_current()
    }

    pub(crate) fn len(&self) -> u64 {
        self.end
    }
}

/// Whether `bytes` hold the header of a record with a higher number: then what is before it was durable.
fn has_later_record(seed: u32, bytes: &[u8], sequence: u64) -> bool {
    bytes
        .windows(RECORD_HEADER)
        .filter(|window| u64_at(window, 5) > sequence && window[4] <= SNAPPY)
        .any(|window| parse_header(seed, window).is_some_and(|(_, _, found, _)| found > sequence))
}
