//! The small files that decide about data, and what is wrong with them, for commands that look while no node runs
//! (record 58 lists them all).

use std::io;
use std::path::{Path, PathBuf};

use base::SmallFile;
use base::encryption::KeyRing;
use base::env::{Disk, Env, OpenMode};

use crate::audit::settings as audit_settings;
use crate::changes::anchor::faults as position_faults;
use crate::changes::cursor::faults as cursor_faults;
use crate::cluster::{flushed, founding, identity, membership, noted, seen_users, vouched};
use crate::{alternate, bucket_list, data_dir, down, kept_users, missing, node_files, opened, written};

/// More than the longest of them takes.
const MOST_BYTES: u64 = 16 << 20;

/// A fault: the file, and what is wrong with it or its copy.
pub type Fault = (PathBuf, String);

/// Faults of the files in a data directory itself. Changes nothing.
pub fn node_faults(disk: &dyn Disk, folder: &Path) -> Vec<Fault> {
    let of = |file: SmallFile, parse: fn(&[u8], u16) -> Result<(), String>| {
        file.fault(disk, parse).map(|fault| (file.path(), fault))
    };
    let faults = [
        keys_fault(disk, folder),
        of(node_files::bucket_list(folder), bucket_list::check),
        of(node_files::revision(folder), |bytes, version| data_dir::parse_revision(bytes, version).map(drop)),
        of(node_files::identity(folder), |bytes, version| identity::parse(bytes, version).map(drop)),
        of(noted::file(folder), |bytes, version| noted::parse(bytes, version).map(drop)),
        membership::fault(disk, folder),
        of(founding::file(folder), |bytes, version| founding::parse(bytes, version).map(drop)),
        of(seen_users::file(folder), |bytes, version| seen_users::parse(bytes, version).map(drop)),
        of(kept_users::file(folder), kept_users::check),
        of(audit_settings::file(folder), audit_settings::check),
        of(alternate::file(folder), |bytes, version| alternate::parse(bytes, version).map(drop)),
        written::fault(disk, folder),
    ];
    let missing = [
        (node_files::bucket_list(folder), missing::list(disk, folder)),
        (node_files::revision(folder), missing::revision(disk, folder)),
        (node_files::identity(folder), missing::identity(disk, folder)),
    ];
    let once =
        [kept_users::file(folder), audit_settings::file(folder), alternate::file(folder)].map(|file| {
            let error = written::written(disk, folder, &file);
            (file, error)
        });
    let missing =
        missing.into_iter().chain(once).filter_map(|(file, error)| Some((file.path(), error?.to_string())));
    faults.into_iter().flatten().chain(missing).chain(opened::faults(disk, folder)).collect()
}

/// Faults of the files in a bucket's folder. Changes nothing.
pub fn bucket_faults(disk: &dyn Disk, folder: &Path) -> Vec<Fault> {
    let mut faults = engine::small_file_faults(disk, folder);
    // Not last: an error of the disk in what only a person mends must not end a repair well.
    faults.extend(keys_fault(disk, folder));
    let description = node_files::bucket(folder);
    faults.extend(description.fault(disk, down::parse).map(|fault| (description.path(), fault)));
    let flushes = flushed::file(folder);
    let understood = |bytes: &[u8], version| flushed::parse(bytes, version).map(drop);
    faults.extend(flushes.fault(disk, understood).map(|fault| (flushes.path(), fault)));
    faults.extend(vouched::fault(disk, folder));
    faults.extend(cursor_faults(disk, folder));
    faults.extend(position_faults(disk, folder));
    faults
}

fn keys_fault(disk: &dyn Disk, folder: &Path) -> Option<Fault> {
    KeyRing::fault(disk, folder).map(|fault| (KeyRing::file(folder).path(), fault))
}

/// What a repair does with a small file that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// The other of its two files is whole, and takes the place of the damaged one.
    Rewrite,
    /// It is moved to the folder for damaged files.
    PutAside,
    /// The next start makes it again.
    AtNextStart,
    /// What is found in the place of a bucket's folder is the bucket from now on.
    TakeAsFound,
    /// Nothing: a person has to decide.
    ByHand,
}

impl Cure {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cure::Rewrite => "rewrite",
            Cure::PutAside => "put_aside",
            Cure::AtNextStart => "at_next_start",
            Cure::TakeAsFound => "take_as_found",
            Cure::ByHand => "by_hand",
        }
    }
}

/// A damaged small file, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mending {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it or its copy.
    pub what: String,
    /// What a repair does.
    pub cure: Cure,
    /// What that costs, in words.
    pub then: &'static str,
}

/// Damaged files of a data directory itself. Changes nothing.
pub fn node_mendings(disk: &dyn Disk, folder: &Path) -> Vec<Mending> {
    node_faults(disk, folder).into_iter().map(|fault| mending(disk, fault)).collect()
}

/// Damaged files of a bucket's folder. Changes nothing.
pub fn bucket_mendings(disk: &dyn Disk, folder: &Path) -> Vec<Mending> {
    bucket_faults(disk, folder).into_iter().map(|fault| mending(disk, fault)).collect()
}

fn mending(disk: &dyn Disk, (path, what): Fault) -> Mending {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let (cure, then) = match of_path(&path).is_half_damaged(disk) {
        true => (Cure::Rewrite, "nothing"),
        false => of_bucket(&folder, &name).unwrap_or_else(|| of_node(&name)),
    };
    Mending { cure, then, what, path: path.clone() }
}

/// What becomes of a file in the folder of a bucket, and of that folder.
fn of_bucket(folder: &str, name: &str) -> Option<(Cure, &'static str)> {
    Some(match (folder, name) {
        ("buckets", _) => (
            Cure::TakeAsFound,
            "all that is not in that folder: what is found there is the bucket from then on; if its volume can be \
             mounted, or its folder put back, do that instead",
        ),
        ("cursors" | "positions", _) => (Cure::PutAside, "the position: its reader begins again"),
        (_, "clean") => (Cure::PutAside, "the mark of a clean stop: histories begin anew, as after a crash"),
        (_, "uuid") => (Cure::PutAside, "the bucket's UUID: it gets another one, and histories begin anew"),
        (_, "manifest.json") => (
            Cure::PutAside,
            "the manifest: the next start puts it together again from what vBuckets have stored",
        ),
        (_, "bucket.json") => (Cure::PutAside, "nothing: the next start writes it again from buckets.json"),
        (_, "flushes") => (
            Cure::PutAside,
            "how often the cluster has emptied the bucket: what cluster-buckets.json says of it counts alone",
        ),
        (_, "membership") => (
            Cure::PutAside,
            "what the bucket's folder has seen of the cluster: cluster-membership and other buckets say it",
        ),
        (_, "starts") => (
            Cure::PutAside,
            "what vouches for the manifest and for a clean stop: the manifest is taken as it is found, and histories \
             begin anew, as after a crash",
        ),
        _ => return None,
    })
}

/// What becomes of a file of the data directory itself.
fn of_node(name: &str) -> (Cure, &'static str) {
    match name {
        "buckets.json" => (
            Cure::AtNextStart,
            "nothing: the next start puts it together again from each bucket's bucket.json",
        ),
        "cluster-revision" => {
            (Cure::AtNextStart, "nothing: the count of starts goes on with a higher number")
        }
        "users.json" => (
            Cure::ByHand,
            "the users that were made while the node ran: put the file back from a backup, or remove it and written-files, and make them again",
        ),
        "audit.json" => (
            Cure::PutAside,
            "the settings of the audit log: it is off from the next start on, until it is switched on",
        ),
        "alternate-address.json" => (
            Cure::PutAside,
            "the address for clients of another network: it is as the configuration has it from the next start on",
        ),
        "cluster-founding" => (
            Cure::PutAside,
            "that this node was about to found a cluster: if it did, it is not taken for its founder, and leaves it with \
             --leave-cluster",
        ),
        "cluster-users.json" => (
            Cure::PutAside,
            "which users of the cluster the node has seen: the next start does not recognise older ones",
        ),
        "written-files" => (
            Cure::PutAside,
            "which files were written before: of users.json, audit.json and alternate-address.json the next start would \
             not tell that both copies are missing",
        ),
        "encryption-keys" => (
            Cure::ByHand,
            "the keys of encrypted files, and so all that is in them: put the file back from a backup",
        ),
        "node-uuid" => (Cure::AtNextStart, "the node's UUID: a node alone gets another one"),
        _ => (
            Cure::ByHand,
            "what the node knew of its cluster: put the file back from a backup, or start it with --leave-cluster",
        ),
    }
}

fn of_path(path: &Path) -> SmallFile {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    SmallFile::new(path.parent().unwrap_or(path), &name).at_most(MOST_BYTES)
}

/// Does what is to be done with a damaged file, and keeps what was damaged in the folder `aside`. Answers whether the
/// file is as it should be then.
pub fn mend(env: &Env, mending: &Mending, aside: &Path) -> io::Result<bool> {
    let Mending { path, cure, .. } = mending;
    match (cure, path.parent().and_then(Path::parent), path.file_name()) {
        (Cure::AtNextStart | Cure::ByHand, ..) => return Ok(false),
        (Cure::TakeAsFound, Some(data), Some(name)) => {
            let forgotten = opened::forget(env, data, &name.to_string_lossy());
            return forgotten.map(|()| true).map_err(io::Error::other);
        }
        _ => {}
    }
    let (disk, folder) = (&*env.disk, path.parent().unwrap_or(path));
    disk.create_dir_all_synced(aside)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for name in [format!("{name}.copy"), name.into_owned()] {
        let from = folder.join(&name);
        let bytes = match disk.open(&from, OpenMode::Read) {
            Ok(file) => {
                let mut bytes = vec![0; file.len()?.min(MOST_BYTES) as usize];
                file.read_at(&mut bytes, 0)?;
                bytes
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let kept = disk.open(&aside.join(&name), OpenMode::Create)?;
        kept.set_len(0)?;
        kept.write_at(&bytes, 0)?;
        kept.sync_data()?;
        disk.sync_dir(aside)?;
        if *cure == Cure::PutAside {
            disk.remove_file(&from)?;
        }
    }
    if *cure == Cure::Rewrite {
        return of_path(path).mend(disk).map_err(io::Error::other);
    }
    // It is missing from now on, and that is known.
    written::forget(disk, folder, &of_path(path))?;
    disk.sync_dir(folder).map(|()| true)
}
