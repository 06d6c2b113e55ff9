//! What is wrong with the small files of a bucket's folder, for commands that look at it while no node runs.

use std::path::{Path, PathBuf};

use base::env::Disk;

use crate::clean_mark::{self, LastStop};
use crate::{identity, manifest_file, starts};

/// The identity that the folder of a bucket gives; `None` if it gives none that can be read. Changes nothing.
pub fn uuid_in(disk: &dyn Disk, dir: &Path) -> Option<String> {
    identity::file(dir).look(disk, identity::parse).ok().flatten().map(|found| found.content)
}

/// A fault of each small file that has one: the file, and what is wrong with it or its copy. Changes nothing.
pub fn small_file_faults(disk: &dyn Disk, dir: &Path) -> Vec<(PathBuf, String)> {
    let uuid_file = identity::file(dir);
    let uuid = uuid_in(disk, dir);
    let manifest = manifest_file::file(dir, uuid.as_deref());
    // A manifest that is damaged is told as that.
    let of_starts = match manifest.look(disk, manifest_file::parse) {
        Err(error) if error.is_damage() => starts::file(dir).fault(disk, |_| Some(())),
        found => starts::fault(disk, dir, found.ok().flatten().map(|found| found.content.0.uid())),
    };
    let of_mark = uuid.as_deref().and_then(|uuid| LastStop::fault(disk, dir, uuid));
    let faults = [
        (uuid_file.path(), uuid_file.fault(disk, identity::parse)),
        (manifest.path(), manifest.fault(disk, manifest_file::parse)),
        (clean_mark::path(dir), of_mark),
        (starts::file(dir).path(), of_starts),
    ];
    faults.into_iter().filter_map(|(path, fault)| Some((path, fault?))).collect()
}
