//! The machine's disk, which can be told that it is full.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::env::{Disk, File, OpenMode, RealDisk};

/// The disk. Clones are the same one.
#[derive(Clone, Default)]
pub struct FullDisk {
    /// Whether it is full now.
    pub is_full: Arc<AtomicBool>,
    /// The name of the files that have no room then; `None` for all of them.
    pub only: Option<&'static str>,
    /// Called before each sync of a file.
    pub on_sync: Option<Hook>,
}

/// What a test has done in the thread that syncs.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

struct FullFile {
    file: Arc<dyn File>,
    /// `None` if there is always room for the file.
    is_full: Option<Arc<AtomicBool>>,
    on_sync: Option<Hook>,
}

impl FullFile {
    fn room(&self) -> io::Result<()> {
        let is_full = self.is_full.as_ref().is_some_and(|is_full| is_full.load(Ordering::SeqCst));
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Disk for FullDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let has_limit = self.only.is_none_or(|only| path.file_name().is_some_and(|name| name == only));
        let is_full = has_limit.then(|| Arc::clone(&self.is_full));
        let (file, on_sync) = (RealDisk.open(path, mode)?, self.on_sync.clone());
        Ok(Arc::new(FullFile { file, is_full, on_sync }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        RealDisk.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }
}

impl File for FullFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.room()?;
        self.file.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.on_sync.iter().for_each(|hook| hook());
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }
}
