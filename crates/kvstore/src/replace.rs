//! Putting another folder in the place of a bucket's.
//!
//! *Guarantee:* at each moment, a crash included, one of the two folders is whole: the old one until the new one is complete,
//! then both, until the caller lets go of the old one. A start between the two renames finds no folder, and serves
//! nothing.
//!
//! The new folder is built in `replacing/NAME/building` of the data directory, renamed to `new` when it is complete, and
//! takes the place of the bucket's folder, which becomes `replacing/NAME/old`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::encryption::is_keys_file;
use base::env::{Disk, Env, OpenMode};

use crate::couch::whole::copy;
use crate::failure::Failure;
use crate::files::StorageBackend;
use crate::moving::MIGRATION;

/// The folder in a data directory for folders that are being replaced.
pub const REPLACING: &str = "replacing";

const BUILDING: &str = "building";
const NEW: &str = "new";
const OLD: &str = "old";
/// The mark of a clean stop.
const CLEAN: &str = "clean";

/// How far a replacement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// There is none, or it has not changed the bucket's folder yet.
    NotYet,
    /// Both folders are whole, and neither is in its place.
    Between,
    /// The new folder is in its place, and the old one is kept beside it.
    Done,
}

/// The replacement of a bucket's folder.
pub struct Replacement<'a> {
    env: &'a Env,
    dir: &'a Path,
    work: PathBuf,
}

impl<'a> Replacement<'a> {
    /// Of the folder `dir`, which is in the folder `buckets` of a data directory.
    pub fn of(env: &'a Env, dir: &'a Path) -> Replacement<'a> {
        let data = dir.parent().and_then(Path::parent).unwrap_or(dir);
        let name = dir.file_name().unwrap_or(dir.as_os_str());
        Replacement { env, dir, work: data.join(REPLACING).join(name) }
    }

    fn disk(&self) -> &dyn Disk {
        &*self.env.disk
    }

    /// For copies byte for byte, encrypted or not.
    fn raw_disk(&self) -> Arc<dyn Disk> {
        self.env.beneath().disk
    }

    fn place(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// The old folder while it is kept.
    pub fn old(&self) -> PathBuf {
        self.place(OLD)
    }

    fn is_there(&self, folder: &Path) -> Result<bool, Failure> {
        match self.disk().read_dir(folder) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(failed("read", folder, source)),
        }
    }

    /// How far it is.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or if a folder is missing, or is there beside both others.
    pub fn stage(&self) -> Result<Replaced, Failure> {
        let [is_here, has_new, has_old] =
            [self.dir.to_owned(), self.place(NEW), self.old()].map(|folder| self.is_there(&folder));
        match (is_here?, has_new?, has_old?) {
            (_, _, false) => Ok(Replaced::NotYet),
            (false, true, true) => Ok(Replaced::Between),
            (true, false, true) => Ok(Replaced::Done),
            (true, true, true) => {
                let what = format!(
                    "it is there beside {} and {}: move it away if it is empty, else the other two",
                    self.old().display(),
                    self.place(NEW).display()
                );
                Err(Failure::OtherStore { dir: self.dir.to_owned(), what })
            }
            (false, false, true) => {
                let what = format!("it is missing, and {} is the one of before", self.old().display());
                Err(Failure::OtherStore { dir: self.dir.to_owned(), what })
            }
        }
    }

    /// Makes the folder that is to be filled, with the keys that the bucket's folder has: what is written to it is encrypted
    /// under these. What an earlier attempt has left is removed: the bucket may have been written to since.
    ///
    /// # Errors
    ///
    /// If the disk refuses, or an earlier replacement is not ended.
    pub fn begin(&self) -> Result<PathBuf, Failure> {
        if self.stage()? != Replaced::NotYet {
            let what = "an earlier replacement of it is not ended".to_owned();
            return Err(Failure::OtherStore { dir: self.dir.to_owned(), what });
        }
        self.forget_new()?;
        let building = self.place(BUILDING);
        let made = self.disk().create_dir_all_synced(&building);
        made.map_err(|source| failed("make folder", &building, source))?;
        self.copy_folder(self.dir, &building, &is_keys_file)?;
        Ok(building)
    }

    /// Removes what is not in use, if nothing was replaced.
    ///
    /// # Errors
    ///
    /// If the disk refuses.
    pub fn forget_new(&self) -> Result<(), Failure> {
        for name in [BUILDING, NEW] {
            let folder = self.place(name);
            let removed = self.disk().remove_dir_all(&folder);
            removed.map_err(|source| failed("remove", &folder, source))?;
        }
        match self.disk().sync_dir(&self.work) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(|source| failed("sync", &self.work, source)),
        }
    }

    /// Copies to the new folder what the bucket's folder has beside documents and journal: its identity, its collections, and
    /// what else is small. The mark of a clean stop only if the stop was clean.
    ///
    /// # Errors
    ///
    /// If the disk refuses.
    pub fn copy_small_files(&self, was_closed: bool) -> Result<(), Failure> {
        let is_small = |name: &str| {
            let is_documents = StorageBackend::of_file(name).is_some();
            let is_ours = ["catalog", "journal.", MIGRATION].iter().any(|first| name.starts_with(first));
            let is_there = is_keys_file(name);
            !is_documents && !is_ours && !is_there && !name.ends_with(".new") && (name != CLEAN || was_closed)
        };
        self.copy_folder(self.dir, &self.place(BUILDING), &is_small)
    }

    fn copy_folder(&self, from: &Path, to: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<(), Failure> {
        let names = self.disk().read_dir(from).map_err(|source| failed("list", from, source))?;
        for name in names.iter().filter(|name| is_wanted(name)) {
            let (source, target) = (from.join(name), to.join(name));
            if self.is_folder(&source) {
                let made = self.disk().create_dir_all(&target);
                made.map_err(|error| failed("make folder", &target, error))?;
                self.copy_folder(&source, &target, &|_| true)?;
                continue;
            }
            let raw = self.raw_disk();
            let file = raw.open(&source, OpenMode::Read);
            let len = file.and_then(|file| file.len()).map_err(|error| failed("open", &source, error))?;
            copy(&*raw, &source, &target, len)?;
        }
        self.disk().sync_dir(to).map_err(|source| failed("sync", to, source))
    }

    fn is_folder(&self, path: &Path) -> bool {
        self.disk().read_dir(path).is_ok()
    }

    /// The new folder is complete: it takes the place of the old one, which is kept.
    ///
    /// # Errors
    ///
    /// If the disk refuses: see [`Replacement::stage`] for how far it came.
    pub fn switch(&self) -> Result<(), Failure> {
        let (building, new) = (self.place(BUILDING), self.place(NEW));
        self.disk().sync_dir(&building).map_err(|source| failed("sync", &building, source))?;
        self.rename(&building, &new)?;
        self.rename(self.dir, &self.old())?;
        self.rename(&new, self.dir)
    }

    /// Ends a switch that was cut off.
    ///
    /// # Errors
    ///
    /// See [`Replacement::stage`].
    pub fn resume(&self) -> Result<Replaced, Failure> {
        let stage = self.stage()?;
        if stage == Replaced::Between {
            self.rename(&self.place(NEW), self.dir)?;
            return Ok(Replaced::Done);
        }
        Ok(stage)
    }

    /// Moves the old folder to `aside`, which is not there yet.
    ///
    /// # Errors
    ///
    /// If the disk refuses.
    pub fn keep_old(&self, aside: &Path) -> Result<(), Failure> {
        let around = aside.parent().unwrap_or(aside);
        let made = self.disk().create_dir_all_synced(around);
        made.map_err(|source| failed("make folder", around, source))?;
        self.rename(&self.old(), aside)?;
        self.tidy();
        Ok(())
    }

    /// Removes the old folder: nothing needs it any more.
    ///
    /// # Errors
    ///
    /// If the disk refuses.
    pub fn remove_old(&self) -> Result<(), Failure> {
        let old = self.old();
        self.disk().remove_dir_all(&old).map_err(|source| failed("remove", &old, source))?;
        self.disk().sync_dir(&self.work).map_err(|source| failed("sync", &self.work, source))?;
        self.tidy();
        Ok(())
    }

    /// Removes the folders around, if nothing is in them: what cannot be removed is in nobody's way.
    fn tidy(&self) {
        let around = self.work.parent().unwrap_or(&self.work);
        if self.disk().remove_dir(&self.work).is_ok() {
            self.disk().remove_dir(around).ok();
        }
    }

    /// Renames a folder, durably.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        self.disk().rename(from, to).map_err(|source| failed("rename", from, source))?;
        for path in [to, from] {
            let folder = path.parent().unwrap_or(path);
            self.disk().sync_dir(folder).map_err(|source| failed("sync", folder, source))?;
        }
        Ok(())
    }
}

/// The buckets of a data directory whose folders are being replaced, by the names of their folders.
///
/// # Errors
///
/// If the disk refuses.
pub fn unfinished(env: &Env, data: &Path) -> Result<Vec<PathBuf>, Failure> {
    let folder = data.join(REPLACING);
    let names = match env.disk.read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|source| failed("list", &folder, source))?,
    };
    let mut found = Vec::new();
    for name in names {
        let dir = data.join("buckets").join(name);
        if Replacement::of(env, &dir).stage()? != Replaced::NotYet {
            found.push(dir);
        }
    }
    found.sort();
    Ok(found)
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> Failure {
    Failure::Disk { operation, path: path.to_owned(), source }
}
