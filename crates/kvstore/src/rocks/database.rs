//! A RocksDB database as the store uses it: without a write-ahead log, flushed on demand, all families at once.
//!
//! *Guarantee:* what was written before a flush that succeeded is on the disk. After a crash the database is as it was
//! after one of the writes, whole, and not before the last flush.
//!
//! RocksDB does its own I/O, beside [`base::env::Disk`]. It reaches its files by a descriptor of its folder, so that the
//! folder can be renamed while the database is open.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::env::{Env, FolderAccess};
use base::{Account, Part, VbId};
use logstore::Entry;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, DB, DBCompressionType, DBPinnableSlice,
    DBRawIteratorWithThreadMode, ErrorKind, FlushOptions, LogLevel, Options, ReadOptions,
    SnapshotWithThreadMode, WriteBatch, WriteBufferManager, WriteOptions,
};
use self_cell::self_cell;

use super::layout::{OWNER, end_of, key_of, take_entry};
use super::open_folders::OpenFolder;
use crate::failure::{Failure, RocksFault};
use crate::rocks_config::{FOLDER, RocksConfig};

#[cfg(not(target_os = "linux"))]
compile_error!("the feature `rocksdb` needs Linux, where a folder can be named by its descriptor");

/// Bits of a Bloom filter for each key.
const FILTER_BITS: f64 = 10.0;
/// What is not in a table yet takes this share of the memory at most.
const WRITE_SHARE: usize = 4;
/// RocksDB's own messages, for whoever looks into the folder: files, and bytes of each.
const LOG_FILES: usize = 2;
const LOG_BYTES: usize = 1 << 20;
/// Keys that are looked up together: each keeps its block in memory meanwhile.
const AT_ONCE: usize = 256;
/// Fewer open tables make RocksDB fail.
const FEWEST_OPEN_FILES: usize = 32;

/// A column family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Keys,
    Seqnos,
    Undo,
    State,
}

impl Family {
    pub(super) const ALL: [Family; 4] = [Family::Keys, Family::Seqnos, Family::Undo, Family::State];

    fn name(self) -> &'static str {
        match self {
            Family::Keys => "keys",
            Family::Seqnos => "seqnos",
            Family::Undo => "undo",
            Family::State => "state",
        }
    }
}

/// An open database.
pub(super) struct Database {
    rocks: DB,
    /// The folder, for messages.
    folder: PathBuf,
    /// The folder as RocksDB names it.
    opened_as: String,
    is_read_only: bool,
    _taken: OpenFolder,
    _cache: CacheCharge,
}

/// What the cache may take, blocks and what is in no table yet: charged to the bucket for as long as the database is open.
struct CacheCharge {
    account: Account,
    bytes: usize,
}

impl CacheCharge {
    fn new(account: Account, bytes: usize) -> CacheCharge {
        account.charge(Part::Storage, bytes);
        CacheCharge { account, bytes }
    }
}

impl Drop for CacheCharge {
    fn drop(&mut self) {
        self.account.release(Part::Storage, self.bytes);
    }
}

/// A place in a family at one moment, to be moved forward.
pub(super) type Walk<'s> = DBRawIteratorWithThreadMode<'s, DB>;

fn options(config: &RocksConfig) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_atomic_flush(true);
    options.set_max_open_files(config.most_open_files.max(FEWEST_OPEN_FILES) as i32);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(1 << 20);
    options.set_keep_log_file_num(LOG_FILES);
    options.set_max_log_file_size(LOG_BYTES);
    options.set_log_level(LogLevel::Warn);
    options
}

/// Options of the families: they share the cache, and what is not in a table yet counts in it.
fn families(config: &RocksConfig, cache: &Cache) -> Vec<(&'static str, Options)> {
    let of = |family: Family| {
        let mut options = options(config);
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(cache);
        blocks.set_cache_index_and_filter_blocks(true);
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
        if family == Family::Keys {
            blocks.set_bloom_filter(FILTER_BITS, false);
        }
        options.set_block_based_table_factory(&blocks);
        options.set_compression_type(DBCompressionType::Lz4);
        (family.name(), options)
    };
    Family::ALL.into_iter().map(of).collect()
}

impl Database {
    /// Opens the database in a bucket's folder, made if missing; only to read it if the disk changes nothing.
    ///
    /// # Errors
    ///
    /// If the disk is not simply the file system, or if RocksDB refuses.
    pub(super) fn open(env: &Env, dir: &Path, config: &RocksConfig) -> Result<Database, Failure> {
        let folder = dir.join(FOLDER);
        let failed = |operation, source| Failure::Disk { operation, path: folder.clone(), source };
        let Some(access) = env.disk.on_file_system(&folder) else {
            let what = "RocksDB does its own reading and writing, and this disk encrypts or is simulated: keep the bucket in \
                        couchstore or magma, or run the node without keys";
            return Err(Failure::OtherStore { dir: dir.to_owned(), what: what.to_owned() });
        };
        let (path, is_read_only) = match access {
            FolderAccess::Whole(path) => (path, false),
            FolderAccess::ReadOnly(path) => (path, true),
        };
        if !is_read_only {
            env.disk.create_dir_all_synced(&folder).map_err(|source| failed("make folder", source))?;
        }
        refuse_without_current(env, dir, &folder).map_err(|source| failed("list", source))??;
        let opened = File::open(&path).map_err(|source| failed("open", source))?;
        let opened_as = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let taken = OpenFolder::take(opened).map_err(|source| failed("open", source))?;
        let bytes = usize::try_from(config.cache_bytes).unwrap_or(usize::MAX).max(1 << 20);
        let cache = Cache::new_lru_cache(bytes);
        let mut options = options(config);
        let writes = WriteBufferManager::new_write_buffer_manager_with_cache(
            bytes / WRITE_SHARE,
            false,
            cache.clone(),
        );
        options.set_write_buffer_manager(&writes);
        let families = families(config, &cache);
        let rocks = match is_read_only {
            true => DB::open_cf_with_opts_for_read_only(&options, &opened_as, families, false),
            false => DB::open_cf_with_opts(&options, &opened_as, families),
        };
        let rocks = rocks.map_err(|error| refused(dir, &folder, &opened_as, &error))?;
        let charge = CacheCharge::new(env.heap.account().clone(), bytes);
        Ok(Database { rocks, folder, opened_as, is_read_only, _taken: taken, _cache: charge })
    }

    /// The folder, for messages.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn family(&self, family: Family) -> &ColumnFamily {
        self.rocks.cf_handle(family.name()).expect("it was opened with all of them")
    }

    /// What a failure of RocksDB means for a vBucket.
    pub(super) fn failed(&self, vb: VbId, operation: &'static str) -> impl Fn(rocksdb::Error) -> Failure {
        move |error| {
            // What is written is of no vBucket alone: a merge that met damage has stopped all writing.
            let fault = match (operation, fault_of(&error)) {
                ("write" | "flush", RocksFault::Damage) => RocksFault::Other,
                (_, fault) => fault,
            };
            let what = told(&error, &self.opened_as, &self.folder);
            Failure::Rocks { vb, operation, dir: self.folder.clone(), fault, what }
        }
    }

    /// What is stored makes no sense.
    pub(super) fn damaged(&self, vb: VbId, what: impl Into<String>) -> Failure {
        let (operation, fault) = ("read", RocksFault::Damage);
        Failure::Rocks { vb, operation, dir: self.folder.clone(), fault, what: what.into() }
    }

    pub(super) fn get(&self, vb: VbId, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        self.rocks.get_cf(self.family(family), key).map_err(self.failed(vb, "read"))
    }

    pub(super) fn get_pinned(
        &self,
        vb: VbId,
        family: Family,
        key: &[u8],
    ) -> Result<Option<DBPinnableSlice<'_>>, Failure> {
        self.rocks.get_pinned_cf(self.family(family), key).map_err(self.failed(vb, "read"))
    }

    /// The newest version of each of some keys, which are sorted.
    pub(super) fn entries<'k>(
        &self,
        vb: VbId,
        stored_keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Vec<Option<Entry>>, Failure> {
        let keys: Vec<Vec<u8>> = stored_keys.map(|key| key_of(vb, key)).collect();
        let entry = |found: Result<Option<DBPinnableSlice<'_>>, rocksdb::Error>| {
            let Some(bytes) = found.map_err(self.failed(vb, "read"))? else { return Ok(None) };
            take_entry(&bytes).map(Some).ok_or_else(|| self.damaged(vb, "an entry of a key makes no sense"))
        };
        let mut entries = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AT_ONCE) {
            let found = self.rocks.batched_multi_get_cf(self.family(Family::Keys), keys, true);
            for one in found {
                entries.push(entry(one)?);
            }
        }
        Ok(entries)
    }

    /// Applies a batch, all of it or nothing. Not durable before [`Database::flush`].
    pub(super) fn write(&self, batch: WriteBatch) -> Result<(), rocksdb::Error> {
        let mut options = WriteOptions::default();
        // The bucket's journal is the log.
        options.disable_wal(true);
        self.rocks.write_opt(batch, &options)
    }

    /// Makes everything that was written before durable.
    pub(super) fn flush(&self) -> Result<(), rocksdb::Error> {
        let families = Family::ALL.map(|family| self.family(family));
        let families: Vec<&&ColumnFamily> = families.iter().collect();
        self.rocks.flush_cfs_opt(&families, &FlushOptions::default())
    }

    /// A walk over what is there now, from a key on, to the end of the vBucket.
    pub(super) fn walk(&self, vb: VbId, family: Family, from: &[u8]) -> Walk<'_> {
        let mut walk = self.rocks.raw_iterator_cf_opt(self.family(family), within(end_of(vb)));
        walk.seek(from);
        walk
    }

    /// A walk over all vBuckets.
    pub(super) fn walk_all(&self, family: Family) -> Walk<'_> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let mut walk = self.rocks.raw_iterator_cf_opt(self.family(family), options);
        walk.seek_to_first();
        walk
    }

    /// Whose database it is, if it says so.
    pub(super) fn owner(&self) -> Result<Option<Vec<u8>>, rocksdb::Error> {
        self.rocks.get_cf(self.family(Family::State), OWNER)
    }

    /// Makes a copy of the database in a folder that is not there yet, of links to its files.
    pub(super) fn link_to(&self, folder: &Path) -> Result<(), rocksdb::Error> {
        Checkpoint::new(&self.rocks)?.create_checkpoint(folder)
    }

    /// Whether nothing may be changed.
    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Ends what RocksDB does in the background, so that what is left of the database only reads.
    pub(super) fn retire(&self) {
        self.rocks.cancel_all_background_work(true);
    }
}

/// A walk must not push out of the cache what single reads need.
fn within(end: Vec<u8>) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(end);
    options.fill_cache(false);
    options
}

fn fault_of(error: &rocksdb::Error) -> RocksFault {
    match error.kind() {
        ErrorKind::Corruption | ErrorKind::NotFound => RocksFault::Damage,
        ErrorKind::IOError if error.as_ref().contains("No such file or directory") => RocksFault::Damage,
        ErrorKind::IOError if error.as_ref().contains("No space left on device") => RocksFault::DiskFull,
        _ => RocksFault::Other,
    }
}

/// What RocksDB says, with the folder's own name.
fn told(error: &rocksdb::Error, opened_as: &str, folder: &Path) -> String {
    error.as_ref().replace(opened_as, &folder.display().to_string())
}

/// Why a database does not open.
/// RocksDB takes a folder without its file `CURRENT` for an empty one, and removes the tables that are there.
fn refuse_without_current(env: &Env, dir: &Path, folder: &Path) -> std::io::Result<Result<(), Failure>> {
    let names = match env.disk.read_dir(folder) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let is_used = |name: &String| name.ends_with(".sst") || name.starts_with("MANIFEST-");
    if names.iter().any(|name| name == "CURRENT") || !names.iter().any(is_used) {
        return Ok(Ok(()));
    }
    let what = format!("RocksDB's file CURRENT is missing in {}", folder.display());
    Ok(Err(Failure::Catalog { dir: dir.to_owned(), what }))
}

fn refused(dir: &Path, folder: &Path, opened_as: &str, error: &rocksdb::Error) -> Failure {
    let what = told(error, opened_as, folder);
    match (fault_of(error), error.kind()) {
        (RocksFault::Damage, _) => {
            Failure::Catalog { dir: dir.to_owned(), what: format!("RocksDB does not open: {what}") }
        }
        (_, ErrorKind::NotSupported | ErrorKind::InvalidArgument) => {
            Failure::OtherStore { dir: dir.to_owned(), what: format!("RocksDB does not open: {what}") }
        }
        _ => {
            let source = std::io::Error::other(what);
            Failure::Disk { operation: "open RocksDB in", path: folder.to_owned(), source }
        }
    }
}

self_cell!(
    /// A snapshot, and the database that it keeps.
    struct Held {
        owner: Arc<Database>,
        #[covariant]
        dependent: RocksMoment,
    }
);

type RocksMoment<'d> = SnapshotWithThreadMode<'d, DB>;

/// A moment of a database.
pub(super) struct Moment(Held);

impl Moment {
    pub(super) fn of(database: &Arc<Database>) -> Moment {
        Moment(Held::new(Arc::clone(database), |database| database.rocks.snapshot()))
    }

    pub(super) fn database(&self) -> &Database {
        self.0.borrow_owner()
    }

    fn snapshot(&self) -> &RocksMoment<'_> {
        self.0.borrow_dependent()
    }

    pub(super) fn get(&self, vb: VbId, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let found = self.snapshot().get_cf(self.database().family(family), key);
        found.map_err(self.database().failed(vb, "read"))
    }

    pub(super) fn get_pinned(
        &self,
        vb: VbId,
        family: Family,
        key: &[u8],
    ) -> Result<Option<DBPinnableSlice<'_>>, Failure> {
        let found = self.snapshot().get_pinned_cf(self.database().family(family), key);
        found.map_err(self.database().failed(vb, "read"))
    }

    /// A walk from a key on, to the end of the vBucket.
    pub(super) fn walk(&self, vb: VbId, family: Family, from: &[u8]) -> Walk<'_> {
        let mut walk =
            self.snapshot().raw_iterator_cf_opt(self.database().family(family), within(end_of(vb)));
        walk.seek(from);
        walk
    }
}
