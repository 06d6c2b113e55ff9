//! A bucket's folder for tools that read it while no node uses it.

use std::path::Path;
use std::sync::Arc;

use base::env::{CopyOnWriteDisk, Env};

use crate::couch::CouchConfig;
use crate::failure::Failure;
use crate::files::{FilesConfig, StorageBackend};
use crate::journaled::{Journaled, JournaledConfig};
use crate::log::LogConfig;
use crate::moving::is_moving;
use crate::rocks_config::RocksConfig;

/// Bytes of what opening a folder writes that are kept in memory: as much as the largest journal has.
const MOST_WRITTEN_BYTES: u64 = 1 << 30;
/// Files that are open at once.
const MOST_OPEN_FILES: usize = 128;
/// Bytes of blocks of a log-structured store or of RocksDB that are kept in memory.
const CACHE_BYTES: u64 = 32 << 20;

/// Opens a bucket's folder as a node does, whichever store it is of and with what its journal holds, and changes nothing
/// on disk. What opening writes is kept in memory.
///
/// A vBucket that a node would refuse is refused here, too: [`crate::KvStore::states`] has the reason.
///
/// # Errors
///
/// If the folder cannot be read, or what describes all of it is damaged.
pub fn open_to_read(env: &Env, dir: &Path) -> Result<Journaled, Failure> {
    if is_moving(&*env.disk, dir)? {
        let what = "the bucket is being moved to another store, and its documents are in two: start the node, which ends \
                    the move, or cancel it there";
        return Err(Failure::OtherStore { dir: dir.to_owned(), what: what.to_owned() });
    }
    let listed = env.disk.read_dir(dir);
    let names = listed.map_err(|source| Failure::Disk { operation: "list", path: dir.to_owned(), source })?;
    let files = match StorageBackend::of_names(&names) {
        StorageBackend::LogStructured => FilesConfig::Log(LogConfig::new(MOST_OPEN_FILES, CACHE_BYTES)),
        StorageBackend::RocksDb => FilesConfig::Rocks(RocksConfig::new(MOST_OPEN_FILES, CACHE_BYTES)),
        StorageBackend::Couchstore => {
            FilesConfig::Couch(CouchConfig { max_open_files: MOST_OPEN_FILES, ..CouchConfig::default() })
        }
    };
    let disk = Arc::new(CopyOnWriteDisk::new(env.disk.clone(), MOST_WRITTEN_BYTES));
    let config = JournaledConfig { files, ..JournaledConfig::default() };
    Journaled::open(Env { disk, ..env.clone() }, dir, config)
}
