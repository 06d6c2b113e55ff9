//! Backend `rocksdb`: RocksDB for all vBuckets of a bucket, if it is built in (docs/adr/0222-rocksdb-behind-the-store-trait.md).
//!
//! What is here is in every binary: the doors to the store, and the refusal of a binary that lacks it. Everything else is
//! behind the feature `rocksdb`.

#[cfg(feature = "rocksdb")]
mod behind;
#[cfg(feature = "rocksdb")]
mod check;
#[cfg(feature = "rocksdb")]
mod commit;
#[cfg(feature = "rocksdb")]
mod compact;
#[cfg(feature = "rocksdb")]
mod database;
#[cfg(feature = "rocksdb")]
mod layout;
#[cfg(feature = "rocksdb")]
mod open_folders;
#[cfg(feature = "rocksdb")]
mod rollback;
#[cfg(feature = "rocksdb")]
mod snapshot;
#[cfg(feature = "rocksdb")]
mod store;
#[cfg(all(test, feature = "rocksdb"))]
mod tests;

use std::path::Path;
use std::sync::Arc;

use base::env::Env;

use crate::catalog::Catalog;
use crate::failure::Failure;
use crate::files::{Files, OnRecord};
use crate::log::LogReport;
use crate::rocks_config::RocksConfig;
use crate::store::KvStore;

/// Opens a bucket's folder, made if missing, to work behind a journal.
pub(crate) fn open_with(
    env: Env,
    dir: &Path,
    config: RocksConfig,
    catalog: Arc<Catalog>,
    record: Option<&OnRecord<'_>>,
) -> Result<Box<dyn Files>, Failure> {
    #[cfg(feature = "rocksdb")]
    return Ok(Box::new(store::Rocks::open_with(env, dir, config, catalog, record)?));
    #[cfg(not(feature = "rocksdb"))]
    {
        let _ = (env, config, catalog, record);
        Err(not_built_in(dir))
    }
}

/// Opens a bucket's folder, made if missing, to work without a journal.
///
/// # Errors
///
/// If the database cannot be used, or this binary has no RocksDB.
pub(crate) fn open_alone(env: Env, dir: &Path, config: RocksConfig) -> Result<Box<dyn KvStore>, Failure> {
    #[cfg(feature = "rocksdb")]
    return Ok(Box::new(store::Rocks::open(env, dir, config)?));
    #[cfg(not(feature = "rocksdb"))]
    {
        let _ = (env, config);
        Err(not_built_in(dir))
    }
}

/// Opens a bucket's folder whose documents are in RocksDB, while no node uses it and its journal is empty.
///
/// # Errors
///
/// If the database cannot be used, or this binary has no RocksDB.
pub fn open_rocks(env: Env, dir: &Path) -> Result<Box<dyn KvStore>, Failure> {
    open_alone(env, dir, RocksConfig::default())
}

/// Reads all of the database in a bucket's folder; `step` is told of items that were read. Changes nothing.
///
/// # Errors
///
/// If the database cannot be opened, or this binary has no RocksDB.
pub fn check_rocks(env: &Env, dir: &Path, step: &mut dyn FnMut(u64)) -> Result<LogReport, Failure> {
    #[cfg(feature = "rocksdb")]
    return check::check(env, dir, step);
    #[cfg(not(feature = "rocksdb"))]
    {
        let _ = (env, step);
        Err(not_built_in(dir))
    }
}

#[cfg(not(feature = "rocksdb"))]
fn not_built_in(dir: &Path) -> Failure {
    let what = "it is kept in RocksDB, and this binary was built without it: use one that was built with `cargo build \
                --release --features rocksdb`, or move the bucket to couchstore or magma with such a one"
        .to_owned();
    Failure::OtherStore { dir: dir.to_owned(), what }
}
