//! The folder of a bucket's files: what they are called, and changes to it that are durable when they return.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::VbId;
use base::env::Disk;

use super::{UNFINISHED, file_name, parse_name};
use crate::failure::Failure;

/// A folder. It knows nothing of what is in the files.
pub(super) struct Folder {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Folder {
    pub(super) fn new(disk: &Arc<dyn Disk>, dir: &Path) -> Folder {
        Folder { disk: Arc::clone(disk), dir: dir.to_owned() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a revision of a vBucket's file is called.
    pub(super) fn path(&self, vb: VbId, revision: u64) -> PathBuf {
        self.dir.join(file_name(vb, revision))
    }

    /// What a file is called until it is complete.
    pub(super) fn unfinished_path(&self, vb: VbId, revision: u64) -> PathBuf {
        self.dir.join(file_name(vb, revision) + UNFINISHED)
    }

    /// Gives a file another name, which is durable after [`Folder::sync`].
    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        on("rename", from, self.disk.rename(from, to))
    }

    /// Removes a file; fine if there is none. Durable after [`Folder::sync`].
    pub(super) fn remove(&self, path: &Path) -> Result<(), Failure> {
        match self.disk.remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => on("remove", path, Err(e)),
            _ => Ok(()),
        }
    }

    pub(super) fn sync(&self) -> Result<(), Failure> {
        on("sync folder", &self.dir, self.disk.sync_dir(&self.dir))
    }

    /// Moves all files of a vBucket to another folder, durably.
    pub(super) fn move_files_of(&self, vb: VbId, to: &Path) -> Result<(), Failure> {
        let mut names = on("list", &self.dir, self.disk.read_dir(&self.dir))?;
        names.retain(|name| parse_name(name).is_some_and(|(of, _)| of == vb));
        if names.is_empty() {
            return Ok(());
        }
        on("create", to, self.disk.create_dir_all_synced(to))?;
        for name in names {
            let (from, path) = (self.dir.join(&name), to.join(&name));
            on("move", &from, self.disk.rename(&from, &path))?;
        }
        on("sync folder", to, self.disk.sync_dir(to))?;
        self.sync()
    }
}

/// An outcome of the disk, with what was done to which path.
pub(super) fn on<T>(operation: &'static str, path: &Path, outcome: io::Result<T>) -> Result<T, Failure> {
    outcome.map_err(|source| Failure::Disk { operation, path: path.to_owned(), source })
}
