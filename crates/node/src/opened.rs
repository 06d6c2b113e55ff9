//! What a data directory knows of the buckets that were opened in it, so that another folder in the place of a bucket's,
//! or an empty one, is not taken for the bucket.
//!
//! *Guarantee:* a bucket with files that was opened once is served from its own files, or not at all. It is noted in the
//! list of buckets before anything is acknowledged, and forgotten with its deletion.

use std::io;
use std::path::{Path, PathBuf};

use base::SmallFileError;
use base::encryption::is_unknown_key;
use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};
use engine::Bucket;
use kvstore::catalog::{self, Found};
use kvstore::{Failure, KvStore};
use serde::{Deserialize, Serialize};

use crate::bucket_list::{self, BucketList};
use crate::node_files;

/// A bucket as it was opened last.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenedBucket {
    /// Its identity.
    pub uuid: String,
    /// The store that its catalog and its files name.
    pub store: String,
}

impl OpenedBucket {
    /// A bucket that is open; `None` if it keeps no files.
    ///
    /// # Errors
    ///
    /// If the catalog of a new folder cannot be written.
    pub(crate) fn of(bucket: &Bucket, store: &dyn KvStore) -> Result<Option<OpenedBucket>, Failure> {
        let store = store.store_id()?;
        Ok(store.map(|store| OpenedBucket { uuid: bucket.uuid().to_owned(), store: store.to_string() }))
    }

    /// Why a folder is not the bucket's; `None` if nothing is against it. A damaged file is for those who open it to judge.
    ///
    /// # Errors
    ///
    /// If the disk does not say what is there.
    pub(crate) fn refuses(&self, disk: &dyn Disk, folder: &Path) -> Result<Option<String>, Failure> {
        if planted::is(Bug::EmptyFolderBelieved) {
            return Ok(None);
        }
        let place = folder.display();
        Ok(match catalog::find(disk, folder)? {
            Found::None => Some(is_gone(folder)),
            Found::Catalog(found, _) if found.store.to_string() != self.store => Some(format!(
                "{place} has the files of another bucket: of store {}, not of store {}",
                found.store, self.store
            )),
            Found::Catalog(..) | Found::Damaged(_) => engine::uuid_in(disk, folder)
                .filter(|uuid| *uuid != self.uuid)
                .map(|uuid| format!("{place} says that it is bucket {uuid}, not {}", self.uuid)),
        })
    }
}

/// Why there is nothing of a bucket in its folder; `None` if there is a catalog, readable or not. Asked before anything
/// is made in the folder.
///
/// # Errors
///
/// If the disk does not say what is there.
pub(crate) fn missing(disk: &dyn Disk, folder: &Path) -> Result<Option<String>, Failure> {
    for path in catalog::paths(folder) {
        match disk.open(&path, OpenMode::Read) {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_unknown_key(&error) => return Ok(None),
            Err(source) => return Err(Failure::Disk { operation: "open", path, source }),
        }
    }
    Ok((!planted::is(Bug::EmptyFolderBelieved)).then(|| is_gone(folder)))
}

/// The buckets of a data directory that are not in their place. Changes nothing.
pub(crate) fn faults(disk: &dyn Disk, data: &Path) -> Vec<(PathBuf, String)> {
    let fault = |(name, opened): (String, OpenedBucket)| {
        let folder = node_files::buckets_in(data).join(name);
        let what = opened.refuses(disk, &folder).unwrap_or_else(|error| Some(error.to_string()));
        Some((folder, what?))
    };
    bucket_list::opened_in(disk, data).into_iter().filter_map(fault).collect()
}

/// Forgets what a bucket was opened as, durably: its catalog was made again. A list that is damaged knows nothing of it.
///
/// # Errors
///
/// If the list cannot be read or written.
pub fn forget(env: &Env, data: &Path, name: &str) -> Result<(), SmallFileError> {
    match BucketList::read(data, env) {
        Ok(mut list) => list.note_opened(name, None, env),
        Err(error) if error.is_damage() => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_gone(folder: &Path) -> String {
    format!("the bucket was here before, and {} is missing or has no catalog", folder.display())
}
