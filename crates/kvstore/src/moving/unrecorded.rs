//! A folder of another store, and no record of a move: which of the two is at fault.
//!
//! *Guarantee:* such a folder is removed only if nothing of a vBucket is in it, as a move leaves it that was interrupted
//! before it was on record. What moved before the record was lost is not thrown away. Looking changes nothing on the disk.

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::env::{CopyOnWriteDisk, Disk, Env, RelocatedDisk};

use super::ending::is_of_store;
use super::record::{FILE, elsewhere};
use super::{OpenStore, disk_failed};
use crate::failure::Failure;
use crate::files::StorageBackend;

/// Bytes of what opening the folder writes that are kept in memory: as much as the largest journal has.
const MOST_WRITTEN_BYTES: u64 = 1 << 30;
/// vBuckets that a message names.
const NAMED: usize = 8;

/// Refuses a bucket's folder in which there is no record of a move, while the folder of the other store has vBuckets.
/// `backend` is the store that the bucket is listed with.
pub(super) fn check(env: &Env, dir: &Path, backend: StorageBackend, open: &OpenStore) -> Result<(), Failure> {
    if !may_have_vbuckets(&*env.disk, dir)? {
        return Ok(());
    }
    let from = elsewhere(dir);
    let relocated = RelocatedDisk::new(env.disk.clone(), dir, &from);
    let disk = Arc::new(CopyOnWriteDisk::new(Arc::new(relocated), MOST_WRITTEN_BYTES));
    let names = env.disk.read_dir(&from).map_err(disk_failed("list", &from))?;
    // Its journal alone does not say which store it was; with what is in the journal any of them opens.
    let other = match StorageBackend::of_names(&names) {
        found if found != backend => found,
        StorageBackend::Couchstore => StorageBackend::LogStructured,
        StorageBackend::LogStructured | StorageBackend::RocksDb => StorageBackend::Couchstore,
    };
    let found = open(Env { disk, ..env.clone() }, other).and_then(|store| store.states());
    let has = match found {
        Ok(states) if states.is_empty() => return Ok(()),
        Ok(states) => {
            let named: Vec<String> = states.iter().take(NAMED).map(|(vb, _)| vb.0.to_string()).collect();
            let more = if states.len() > NAMED { ", …" } else { "" };
            format!("has {} vBuckets ({}{more})", states.len(), named.join(", "))
        }
        Err(failure) => format!("has a store that cannot be read ({failure})"),
    };
    Err(refusal(dir, &has))
}

/// Whether the folder of the other store may have vBuckets, as far as names of files say it.
///
/// # Errors
///
/// If the folder cannot be listed.
pub(super) fn may_have_vbuckets(disk: &dyn Disk, dir: &Path) -> Result<bool, Failure> {
    let from = elsewhere(dir);
    match disk.read_dir(&from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        names => Ok(names.map_err(disk_failed("list", &from))?.iter().any(|name| is_of_store(name))),
    }
}

fn refusal(dir: &Path, has: &str) -> Failure {
    let what = format!(
        "{} {has}, and the record of the move to that store is missing ({FILE} and its copy): put the record back from a \
         backup of the folder, or move that folder away if nothing in it is needed",
        elsewhere(dir).display()
    );
    Failure::Catalog { dir: dir.to_owned(), what }
}
