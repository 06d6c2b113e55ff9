//! Where files live: a small set of operations that every backend can be built on, and every fault injected into.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the door itself")]

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

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
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// An open file. All methods may be called from several threads.
///
/// Written bytes are durable only after [`File::sync_data`] returned without an error.
/// After an error the handle must be dropped: nothing is known about what reached the disk.
pub trait File: Send + Sync {
    /// Reads until `buf` is full or the file ends; returns how much was read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
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
}

/// The machine's file system.
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
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
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }
}

struct RealFile(fs::File);

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}
