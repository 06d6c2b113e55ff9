//! How much of a folder is encrypted with which key.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::cipher::KeyId;
use super::keys::is_keys_file;
use super::layout::FileHead;
use crate::env::{Disk, OpenMode};

/// Files, and what they hold on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCount {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl FileCount {
    /// Counts these, too.
    pub fn add(&mut self, other: FileCount) {
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

/// The files of a folder and those below it, by the key that they are encrypted with; `None`: those in clear. Those with the
/// keys are left out, and so are empty ones. `disk` has no encryption. Opens each file and reads its head.
///
/// # Errors
///
/// A file that is there cannot be read.
pub fn files_by_key(disk: &dyn Disk, folder: &Path) -> io::Result<BTreeMap<Option<KeyId>, FileCount>> {
    let mut found = BTreeMap::new();
    count(disk, folder, &mut found)?;
    Ok(found)
}

fn count(disk: &dyn Disk, folder: &Path, found: &mut BTreeMap<Option<KeyId>, FileCount>) -> io::Result<()> {
    let names = match disk.read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names.into_iter().filter(|name| !is_keys_file(name)) {
        let path = folder.join(name);
        let look = || {
            let file = disk.open(&path, OpenMode::Read)?;
            Ok::<_, io::Error>((FileHead::read(&*file)?.map(|head| head.key), file.len()?))
        };
        match look() {
            Ok((_, 0)) => {}
            Ok((key, bytes)) => found.entry(key).or_default().add(FileCount { files: 1, bytes }),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => count(disk, &path, found)?,
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
