//! The choice of RocksDB: it is in every binary.

/// The folder in a bucket's that the database has.
pub(crate) const FOLDER: &str = "rocksdb";

/// Whether this binary has RocksDB.
pub const HAS_ROCKSDB: bool = cfg!(feature = "rocksdb");

/// Bytes of blocks and memtables, unless something else is said.
const CACHE_BYTES: u64 = 64 << 20;
/// Tables that are open at once, unless something else is said.
const OPEN_FILES: usize = 256;

/// Choices about a RocksDB store.
#[derive(Clone, Copy, Debug)]
pub struct RocksConfig {
    /// Tables that are open at once for reading.
    pub most_open_files: usize,
    /// Bytes of memory for blocks of tables, their indexes and filters, and for what is not in a table yet.
    pub cache_bytes: u64,
    /// How much of a vBucket is looked at between two questions of a compaction whether to go on.
    pub step_keys: usize,
}

impl RocksConfig {
    /// The defaults, with so many tables open at once and so many bytes of memory.
    pub fn new(most_open_files: usize, cache_bytes: u64) -> RocksConfig {
        RocksConfig { most_open_files, cache_bytes, step_keys: 32 }
    }
}

impl Default for RocksConfig {
    fn default() -> RocksConfig {
        RocksConfig::new(OPEN_FILES, CACHE_BYTES)
    }
}

/// Whether a name in a bucket's folder is that of a RocksDB database.
pub fn is_rocks_folder(name: &str) -> bool {
    name == FOLDER
}
