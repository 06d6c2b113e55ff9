//! Where files live: a small set of operations that every backend can be built on, and every fault injected into.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the door itself")]

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::platform;
use super::step_mark::{DiskCall, marked};
use crate::planted::{self, Bug};

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; no writing.
    Read,
    /// Must exist.
    ReadWrite,
    /// Made if missing.
    Create,
    /// Must not exist.
    CreateNew,
}

/// How much room a file system has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All of it.
    pub total_bytes: u64,
    /// What this process could still write.
    pub free_bytes: u64,
    /// What files take. The rest is free, or reserved for the system's administrator.
    pub used_bytes: u64,
}

/// A folder of the file system, and what may be done in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderAccess {
    /// Anything.
    Whole(PathBuf),
    /// Nothing may be changed: what is written through the disk is kept in memory.
    ReadOnly(PathBuf),
}

/// A file system.
///
/// Names (created, renamed, removed files) are durable only after [`Disk::sync_dir`] of their folder.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Makes a folder and its parents; fine if it is there.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes a folder and its parents, durably. Folders that were there are synced too: whoever made them may have
    /// been killed before it could.
    fn create_dir_all_synced(&self, path: &Path) -> io::Result<()> {
        self.create_dir_all(path)?;
        for folder in path.ancestors().skip(1) {
            // The last ancestor of a relative path is empty and stands for where the process is.
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            match self.sync_dir(folder) {
                Ok(()) => {}
                // What may not even be read is not ours, and was not made here.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
    /// The names in a folder, in no order.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Moves a file over another, atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder. [`io::ErrorKind::Unsupported`] where folders stay once they are made.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes a folder and all that is in it, not durably before [`Disk::sync_dir`] of the one around it. Fine if there
    /// is none. What stands in it when this fails is anybody's guess: it is to be tried again.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let names = match self.read_dir(path) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in names {
            let inside = path.join(name);
            match self.remove_file(&inside) {
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => self.remove_dir_all(&inside)?,
                done => done?,
            }
        }
        self.remove_dir(path)
    }
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// A way to make many files of `folder` durable at once. Ask for it before anything is written to them: it hears
    /// of write errors from now on.
    fn group_sync(&self, folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        let _ = folder;
        Ok(Box::new(SyncEach))
    }
    /// How much room there is where a folder is; `None` if the disk does not know.
    fn room(&self, folder: &Path) -> Option<Room> {
        let _ = folder;
        None
    }
    /// Where the file system has a folder, for a library that does its own I/O there; `None` of a disk that is more than the
    /// file system: one that encrypts, or that is simulated.
    fn on_file_system(&self, folder: &Path) -> Option<FolderAccess> {
        let _ = folder;
        None
    }
    /// The disk below one that encrypts: what it holds as it is stored. `None` of every other disk.
    fn beneath(&self) -> Option<Arc<dyn Disk>> {
        None
    }
    /// Whether files that are made from now on are encrypted, on a disk that encrypts and has a key; they are at first.
    fn set_encrypting(&self, is_on: bool) {
        let _ = is_on;
    }
    /// How often the key of new files has changed since the disk was opened: what [`File::is_current`] said earlier may not
    /// be so any more.
    fn key_changes(&self) -> u64 {
        0
    }
}

/// Makes many files of one folder durable at once.
pub trait GroupSync: Send + Sync {
    /// Makes everything written to `files` durable.
    /// After an error nothing is known about any of them, as after one of [`File::sync_data`].
    fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()>;
}

/// One file after the other: right on every disk.
pub struct SyncEach;

impl GroupSync for SyncEach {
    fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()> {
        files.iter().try_for_each(|file| file.sync_data())
    }
}

/// An open file. All methods may be called from several threads.
///
/// Written bytes are durable only after [`File::sync_data`] returned without an error.
/// After an error the handle must be dropped: nothing is known about what reached the disk.
pub trait File: Send + Sync {
    /// Reads until `buf` is full or the file ends; returns how much was read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// The same where only parts are wanted: whether some of a range of the file is, `is_wanted` says. What is not wanted
    /// may come as anything, at less cost where files are encrypted.
    fn read_parts_at(
        &self,
        buf: &mut [u8],
        offset: u64,
        _is_wanted: &dyn Fn(Range<u64>) -> bool,
    ) -> io::Result<usize> {
        self.read_at(buf, offset)
    }
    /// Writes all of `buf`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written durable, the length included.
    fn sync_data(&self) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds nothing.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Where to go on writing if all before `end` is durable and must stay so whatever becomes of the next write. What
    /// lies between reads as zeros. Further on than `end` where files are written in larger units, as encrypted ones are.
    fn append_from(&self, end: u64) -> u64 {
        end
    }
    /// Whether the file is encrypted as one would be that is made now: under the same key, or not at all.
    fn is_current(&self) -> bool {
        true
    }
    /// [`Disk::key_changes`] of its disk.
    fn key_changes(&self) -> u64 {
        0
    }
}

/// Who may use files and folders that are made: their owner alone, since they hold documents and secrets.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The machine's file system. What is made is for its owner alone.
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        let mode_bits = if planted::is(Bug::FilesForAll) { 0o644 } else { FILE_MODE };
        platform::set_file_mode(&mut options, mode_bits);
        match mode {
            OpenMode::Read => {}
            OpenMode::ReadWrite => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        Ok(Arc::new(RealFile(marked(DiskCall::Names, || options.open(path))?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        platform::set_folder_mode(&mut builder, FOLDER_MODE);
        builder.recursive(true);
        marked(DiskCall::Names, || builder.create(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        marked(DiskCall::Names, || {
            fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        marked(DiskCall::Names, || fs::rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        marked(DiskCall::Names, || fs::remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        marked(DiskCall::Names, || fs::remove_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        marked(DiskCall::Sync, || platform::sync_dir(path))
    }

    fn room(&self, folder: &Path) -> Option<Room> {
        platform::room(folder)
    }

    fn on_file_system(&self, folder: &Path) -> Option<FolderAccess> {
        Some(FolderAccess::Whole(folder.to_owned()))
    }

    fn group_sync(&self, folder: &Path) -> io::Result<Box<dyn GroupSync>> {
        super::group_sync::of_folder(folder)
    }
}

struct RealFile(fs::File);

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let read = || platform::read_at(&self.0, &mut buf[done..], offset + done as u64);
            match marked(DiskCall::Read, read) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        marked(DiskCall::Write, || platform::write_all_at(&self.0, buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        marked(DiskCall::Sync, || self.0.sync_data())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        marked(DiskCall::Write, || self.0.set_len(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_all_that_is_in_it() {
        let (sim, _) = crate::env::Env::sim(1);
        let real = tempfile::tempdir().expect("a folder");
        for (disk, root) in [(&RealDisk as &dyn Disk, real.path()), (&*sim.disk, Path::new("/data"))] {
            let inner = root.join("a/b");
            disk.create_dir_all(&inner).expect("a folder");
            for file in [inner.join("x"), root.join("a/y")] {
                disk.open(&file, OpenMode::CreateNew).expect("a file");
            }
            let full = disk.remove_dir(&inner).expect_err("there is a file in it");
            assert_eq!(full.kind(), io::ErrorKind::DirectoryNotEmpty);
            for _ in 0..2 {
                disk.remove_dir_all(&root.join("a")).expect("it goes");
                assert_eq!(disk.read_dir(root).expect("a list"), Vec::<String>::new());
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_made_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().expect("a folder");
        let (folder, file) = (root.path().join("a/b"), root.path().join("a/b/f"));
        RealDisk.create_dir_all(&folder).expect("a folder");
        RealDisk.open(&file, OpenMode::CreateNew).expect("a file");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&root.path().join("a")), mode(&folder), mode(&file)), (0o700, 0o700, 0o600));
    }
}
