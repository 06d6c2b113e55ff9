//! Files that are written once and read often: opened when they are needed, a bounded number at a time, removed when
//! the last reader of one that is not in use any more lets it go.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::env::{Disk, Env, File, OpenMode, Random};
use parking_lot::Mutex;

use crate::block::{self, Packer, Span};
use crate::failure::Failure;
use crate::history::Keeping;
use crate::identity::FileId;
use crate::tuning::Tuning;
use crate::{run, segment};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKind {
    /// Values.
    Segment,
    /// A sorted run of the key index.
    Run,
}

impl FileKind {
    fn ending(self) -> &'static str {
        match self {
            FileKind::Segment => "seg",
            FileKind::Run => "run",
        }
    }
}

pub(crate) fn file_name(shard: usize, kind: FileKind, number: u64) -> String {
    format!("{shard}-{number}.{}", kind.ending())
}

/// Shard, kind and number of a file's name.
pub(crate) fn parse_name(name: &str) -> Option<(usize, FileKind, u64)> {
    let (stem, ending) = name.split_once('.')?;
    let kind = [FileKind::Segment, FileKind::Run].into_iter().find(|kind| kind.ending() == ending)?;
    let (shard, number) = stem.split_once('-')?;
    let parsed = (shard.parse().ok()?, kind, number.parse().ok()?);
    (file_name(parsed.0, kind, parsed.2) == name).then_some(parsed)
}

/// The folder, and which of its files are open.
pub(crate) struct Files {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) dir: PathBuf,
    most_open: usize,
    open: Mutex<OpenTable>,
    /// Numbers files for the cache.
    made: AtomicU64,
    /// Bytes that were written, by [`Purpose`].
    written: [AtomicU64; 5],
    /// The caller's number, which manifests note; 0 if there is none.
    pub(crate) beside: AtomicU64,
    owner: Mutex<u128>,
    pub(crate) keeping: Keeping,
    /// As it is now: what begins after a change goes by it.
    pub(crate) tuning: Mutex<Tuning>,
}

/// What was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Segments,
    Runs,
    Merges,
    Rewrites,
    Manifests,
}

/// Bytes that were written since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenBytes {
    /// Segments of commits.
    pub segments: u64,
    /// Runs of commits.
    pub runs: u64,
    /// Runs that others were merged into.
    pub merges: u64,
    /// Segments that others were rewritten into.
    pub rewrites: u64,
    /// Records of manifests.
    pub manifests: u64,
}

impl WrittenBytes {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.segments + self.runs + self.merges + self.rewrites + self.manifests
    }
}

#[derive(Default)]
struct OpenTable {
    /// By what the cache calls it: the file and when it was used last.
    files: BTreeMap<u64, (Arc<dyn File>, u64)>,
    clock: u64,
    hits: u64,
    misses: u64,
    evictions: u64,
}

/// How the table of open files does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFileStats {
    /// Files that are open.
    pub open: u64,
    /// Reads that found their file open.
    pub hits: u64,
    /// Reads that opened it.
    pub misses: u64,
    /// Files closed to make room.
    pub evictions: u64,
}

impl Files {
    pub(crate) fn new(env: &Env, dir: &Path, owner: u128, most_open: usize) -> Files {
        Files {
            disk: env.disk.clone(),
            random: env.random.clone(),
            dir: dir.to_owned(),
            most_open: most_open.max(1),
            open: Mutex::default(),
            made: AtomicU64::new(0),
            written: Default::default(),
            beside: AtomicU64::new(0),
            owner: Mutex::new(owner),
            keeping: Keeping { clock: env.clock.clone(), limits: Mutex::default() },
            tuning: Mutex::default(),
        }
    }

    /// The caller's number for the folder; 0 if there is none yet.
    pub(crate) fn owner(&self) -> u128 {
        *self.owner.lock()
    }

    /// From now on new files are of this folder, if it had no number before.
    pub(crate) fn has_owner(&self, owner: u128) {
        let mut known = self.owner.lock();
        *known = if *known == 0 { owner } else { *known };
    }

    /// A number for a new file.
    pub(crate) fn nonce(&self) -> u64 {
        self.random.next_u64().max(1)
    }

    pub(crate) fn count(&self, purpose: Purpose, bytes: u64) {
        self.written[purpose as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn written(&self) -> WrittenBytes {
        let [segments, runs, merges, rewrites, manifests] =
            [0, 1, 2, 3, 4].map(|at: usize| self.written[at].load(Ordering::Relaxed));
        WrittenBytes { segments, runs, merges, rewrites, manifests }
    }

    pub(crate) fn path(&self, name: &str) -> Arc<Path> {
        self.dir.join(name).into()
    }

    pub(crate) fn sync_dir(&self) -> Result<(), Failure> {
        let path: Arc<Path> = self.dir.as_path().into();
        self.disk.sync_dir(&self.dir).map_err(|source| Failure::io("sync", &path, 0, source))
    }

    pub(crate) fn stats(&self) -> OpenFileStats {
        let table = self.open.lock();
        let OpenTable { hits, misses, evictions, .. } = *table;
        OpenFileStats { open: table.files.len() as u64, hits, misses, evictions }
    }

    fn opened(&self, id: u64, path: &Arc<Path>) -> Result<Arc<dyn File>, Failure> {
        {
            let mut table = self.open.lock();
            let table = &mut *table;
            table.clock += 1;
            if let Some((file, used)) = table.files.get_mut(&id) {
                *used = table.clock;
                table.hits += 1;
                return Ok(file.clone());
            }
        }
        let opened = self.disk.open(path, OpenMode::Read);
        let file = opened.map_err(|source| Failure::io("open", path, 0, source))?;
        let mut table = self.open.lock();
        table.misses += 1;
        while table.files.len() >= self.most_open {
            let oldest = table.files.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            table.files.remove(&oldest);
            table.evictions += 1;
        }
        let used = table.clock;
        table.files.insert(id, (file.clone(), used));
        Ok(file)
    }

    fn close(&self, id: u64) {
        self.open.lock().files.remove(&id);
    }
}

/// A file that was written as a whole.
pub(crate) struct LogFile {
    files: Arc<Files>,
    path: Arc<Path>,
    shard: usize,
    number: u64,
    nonce: u64,
    /// What checksums of its parts begin with, as its header says.
    seed: AtomicU64,
    /// What the cache calls it: no other file has this number as long as the store is open.
    cache_id: u64,
    /// Bytes of it, as on record.
    len: u64,
    /// Whether it goes with its last reader.
    is_obsolete: AtomicBool,
    /// Whether a read of it failed: it is left out of merges and rewrites.
    is_bad: AtomicBool,
}

impl LogFile {
    /// The file that a manifest names, with this random number.
    pub(crate) fn new(
        files: &Arc<Files>,
        (shard, kind, number): (usize, FileKind, u64),
        nonce: u64,
        len: u64,
    ) -> LogFile {
        LogFile {
            files: files.clone(),
            path: files.path(&file_name(shard, kind, number)),
            shard,
            number,
            nonce,
            seed: AtomicU64::new(0),
            cache_id: files.made.fetch_add(1, Ordering::Relaxed),
            len,
            is_obsolete: AtomicBool::new(false),
            is_bad: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Its name in the folder.
    pub(crate) fn name(&self) -> Option<String> {
        Some(self.path.file_name()?.to_string_lossy().into_owned())
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Which file it must be.
    pub(crate) fn id(&self) -> FileId {
        FileId { owner: self.files.owner(), shard: self.shard, number: self.number, nonce: self.nonce }
    }

    /// What checksums of its parts begin with; known once it was looked at which file it is.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.load(Ordering::Relaxed)
    }

    pub(crate) fn has_seed(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
    }

    pub(crate) fn cache_id(&self) -> u64 {
        self.cache_id
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// From now on the file goes when its last reader lets it go.
    pub(crate) fn make_obsolete(&self) {
        self.is_obsolete.store(true, Ordering::Release);
    }

    pub(crate) fn is_bad(&self) -> bool {
        self.is_bad.load(Ordering::Relaxed)
    }

    pub(crate) fn make_bad(&self) {
        self.is_bad.store(true, Ordering::Relaxed);
    }

    /// Whether it is encrypted as a new one would be; one that cannot be opened is not told from one that is. A plain
    /// file that is opened to be read alone does not tell.
    pub(crate) fn is_current(&self) -> bool {
        let opened = self.files.disk.open(&self.path, OpenMode::ReadWrite);
        opened.map_or(true, |file| file.is_current())
    }

    /// Refuses it if it is another file than the one that the manifest names.
    pub(crate) fn identify(&self, kind: FileKind) -> Result<(), Failure> {
        segment::identify(self, if kind == FileKind::Run { run::MAGIC } else { segment::MAGIC })
    }

    pub(crate) fn read_exact(&self, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(Failure::damaged(&self.path, offset, "a part lies behind the end of the file"));
        }
        let file = self.files.opened(self.cache_id, &self.path)?;
        let mut bytes = vec![0; len];
        let read = file.read_at(&mut bytes, offset);
        let read = read.map_err(|source| {
            self.files.close(self.cache_id);
            Failure::io("read", &self.path, offset, source)
        })?;
        if read < len {
            return Err(Failure::damaged(&self.path, offset, "the file is too short"));
        }
        Ok(bytes)
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.files.close(self.cache_id);
        if self.is_obsolete.load(Ordering::Acquire) {
            // What cannot be removed now is removed by the next start.
            self.files.disk.remove_file(&self.path).ok();
        }
    }
}

/// A file that is being written, from front to end.
pub(crate) struct NewFile {
    file: Arc<dyn File>,
    path: Arc<Path>,
    pub(crate) name: String,
    pub(crate) id: FileId,
    /// Bytes written so far.
    written: u64,
    /// What is not written yet.
    pub(crate) pending: Vec<u8>,
    packer: Packer,
}

/// So much is gathered before it is written.
const WRITE_BYTES: usize = 1 << 20;

impl NewFile {
    pub(crate) fn create(
        files: &Files,
        (shard, kind, number): (usize, FileKind, u64),
    ) -> Result<NewFile, Failure> {
        let name = file_name(shard, kind, number);
        let id = FileId { owner: files.owner(), shard, number, nonce: files.nonce() };
        let path = files.path(&name);
        let opened = files.disk.open(&path, OpenMode::CreateNew);
        let file = opened.map_err(|source| Failure::io("create", &path, 0, source))?;
        Ok(NewFile { file, path, name, id, written: 0, pending: Vec::new(), packer: Packer::default() })
    }

    /// Bytes of the file with what is not written yet.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    pub(crate) fn block(&mut self, content: &[u8]) -> Result<Span, Failure> {
        let span = block::append(&mut self.packer, &mut self.pending, self.written, self.id.seed(), content);
        if self.pending.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(span)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if !self.pending.is_empty() {
            let wrote = self.file.write_at(&self.pending, self.written);
            wrote.map_err(|source| Failure::io("write", &self.path, self.written, source))?;
            self.written += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }

    /// The file, to be synced with others.
    pub(crate) fn to_sync(&self) -> Arc<dyn File> {
        self.file.clone()
    }

    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(|source| Failure::io("sync", &self.path, self.written, source))
    }

    /// It is not wanted: removed at once. What cannot be removed is removed by the next start.
    pub(crate) fn abandon(self, files: &Files) {
        files.disk.remove_file(&self.path).ok();
    }
}
