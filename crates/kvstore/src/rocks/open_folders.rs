//! Databases that this process has open: RocksDB's own lock does not hold within a process, since a folder is opened by
//! its descriptor here.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;

/// Device and inode of each.
static OPEN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// While it lives, nobody else in this process opens the folder.
#[derive(Debug)]
pub(super) struct OpenFolder {
    id: (u64, u64),
    /// Keeps the descriptor by which the database names its files.
    _folder: File,
}

impl OpenFolder {
    /// Takes a folder.
    ///
    /// # Errors
    ///
    /// If it is taken: something still reads the store that had it before.
    pub(super) fn take(folder: File) -> io::Result<OpenFolder> {
        let of = folder.metadata()?;
        let id = (of.dev(), of.ino());
        if !OPEN.lock().insert(id) {
            let what = "this process has it open already: something still reads what the bucket was before; try again";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        Ok(OpenFolder { id, _folder: folder })
    }
}

impl Drop for OpenFolder {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.id);
    }
}
