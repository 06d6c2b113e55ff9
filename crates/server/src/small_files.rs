//! The small files that decide about data, and what is wrong with them, for commands that look while no node runs
//! (record 58 lists them all).

use std::path::{Path, PathBuf};

use base::SmallFile;
use base::env::Disk;

use crate::cluster::{identity, membership, noted};
use crate::http::changes::cursor_faults;
use crate::{bucket_list, data_dir, down};
use ::node::changes::anchor::faults as position_faults;

/// A fault: the file, and what is wrong with it or its copy.
pub type Fault = (PathBuf, String);

/// Faults of the files in a data directory itself. Changes nothing.
pub fn node_faults(disk: &dyn Disk, folder: &Path) -> Vec<Fault> {
    let of = |file: SmallFile, parse: fn(&[u8], u16) -> Result<(), String>| {
        file.fault(disk, parse).map(|fault| (file.path(), fault))
    };
    let faults = [
        of(bucket_list::file(folder), bucket_list::check),
        of(data_dir::revision_file(folder), |bytes, version| {
            data_dir::parse_revision(bytes, version).map(drop)
        }),
        of(identity::file(folder), |bytes, version| identity::parse(bytes, version).map(drop)),
        of(noted::file(folder), |bytes, version| noted::parse(bytes, version).map(drop)),
        membership::fault(disk, folder),
    ];
    faults.into_iter().flatten().collect()
}

/// Faults of the files in a bucket's folder. Changes nothing.
pub fn bucket_faults(disk: &dyn Disk, folder: &Path) -> Vec<Fault> {
    let mut faults = engine::small_file_faults(disk, folder);
    let description = down::file(folder);
    faults.extend(description.fault(disk, down::parse).map(|fault| (description.path(), fault)));
    faults.extend(cursor_faults(disk, folder));
    faults.extend(position_faults(disk, folder));
    faults
}
