//! How the files of a group commit get onto the disk together.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is part of the door itself")]

use std::io;
use std::path::Path;

use super::disk::{GroupSync, SyncEach};

/// What syncs groups of files of a folder.
#[cfg(target_os = "linux")]
pub(super) fn of_folder(folder: &Path) -> io::Result<Box<dyn GroupSync>> {
    let folder = std::fs::File::open(folder)?;
    if syncfs::is_ext4(&folder) && syncfs::tells_of_errors() {
        Ok(Box::new(syncfs::SyncFileSystem { folder }))
    } else {
        Ok(Box::new(SyncEach))
    }
}

/// What syncs groups of files of a folder: elsewhere no call syncs a file system and tells what failed.
#[cfg(not(target_os = "linux"))]
pub(super) fn of_folder(_: &Path) -> io::Result<Box<dyn GroupSync>> {
    Ok(Box::new(SyncEach))
}

#[cfg(target_os = "linux")]
mod syncfs {
    use std::sync::Arc;
    use std::{fs, io};

    use super::super::disk::{File, GroupSync, SyncEach};
    use super::super::step_mark::{DiskCall, marked};

    /// From so many files on one `syncfs` costs less than an `fdatasync` for each: measured, see
    /// docs/adr/0012-group-commit.md.
    pub(super) const FROM_FILES: usize = 8;

    /// Syncs few files one by one, many through the file system that they are all on.
    ///
    /// `syncfs` also waits for what other processes have written to the same file system; few files do not.
    pub(super) struct SyncFileSystem {
        /// Held open: a descriptor is told of the write errors since it was opened, once each.
        pub(super) folder: fs::File,
    }

    impl GroupSync for SyncFileSystem {
        fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()> {
            if files.len() < FROM_FILES {
                return SyncEach.sync_files(files);
            }
            marked(DiskCall::Sync, || rustix::fs::syncfs(&self.folder))?;
            // Without a journal `syncfs` writes inodes after it has flushed the cache of the device: this flushes it again.
            files.last().map_or(Ok(()), |file| file.sync_data())
        }
    }

    /// Whether files are on ext2, 3 or 4 (statfs(2), "The f_type field"). Of other file systems it is not known here that
    /// write errors of a file reach `syncfs`: on overlayfs they do not, since the file belongs to another one.
    pub(super) fn is_ext4(file: &fs::File) -> bool {
        const EXT4_MAGIC: rustix::fs::FsWord = 0xef53;
        rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == EXT4_MAGIC)
    }

    /// Since Linux 5.8 `syncfs` fails if any write-back of the file system failed (syncfs(2), "VERSIONS").
    pub(super) fn tells_of_errors() -> bool {
        fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| is_from_5_8(&release))
    }

    pub(super) fn is_from_5_8(release: &str) -> bool {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 8),
            _ => false,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::syncfs::{FROM_FILES, is_from_5_8};
    use crate::env::disk::{Disk, OpenMode, RealDisk};

    #[test]
    fn kernels_before_5_8_are_told_apart() {
        for (release, is_new) in [
            ("5.8.0", true),
            ("5.7.19-300.fc32", false),
            ("6.1", true),
            ("4.19.0-27-amd64", false),
            ("x", false),
        ] {
            assert_eq!(is_from_5_8(release), is_new, "{release}");
        }
    }

    #[test]
    fn groups_of_any_size_are_synced() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = RealDisk.group_sync(dir.path()).expect("the folder is there");
        let mut files = Vec::new();
        for i in 0..2 * FROM_FILES {
            let file = RealDisk.open(&dir.path().join(i.to_string()), OpenMode::CreateNew).expect("a file");
            file.write_at(b"content", 0).expect("a write");
            files.push(file);
            group.sync_files(&files).expect("a sync");
        }
    }
}
