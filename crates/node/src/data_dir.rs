//! The folder in which a node keeps everything, owned by one process at a time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a lock is held on a real file")]

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base::SmallFileError;
use base::env::Env;

use crate::folder_keys::FolderKeys;
use crate::{missing, node_files};

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system said no.
    #[error("cannot {operation} {}: {source}; --data names another folder", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A small file in it.
    #[error(transparent)]
    SmallFile(#[from] SmallFileError),
    /// Somebody else has it.
    #[error("{} is in use by another process: stop it, or choose another folder with --data", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
}

const LOCK: &str = "lock";

/// A folder that this process owns for as long as this value lives.
pub struct DataDir {
    path: PathBuf,
    _lock: File,
    /// The keys of encrypted files in it.
    keys: FolderKeys,
}

impl DataDir {
    /// Makes the folder if it is not there, and takes it.
    pub fn take(path: &Path, env: &Env) -> Result<DataDir, DataDirError> {
        let failed = |source: io::Error| {
            let is_file = source.kind() == io::ErrorKind::AlreadyExists;
            let source = if is_file { io::Error::other("there is a file in its place") } else { source };
            DataDirError::Io { operation: "make the folder", path: path.to_owned(), source }
        };
        env.disk.create_dir_all(path).map_err(failed)?;
        let dir = DataDir::take_to_change(path)?;
        if let Err(error) = dir.close_to_others() {
            tracing::warn!(
                event = "data_readable_by_others", data = %path.display(), %error,
                "other users of this machine may read the data: chmod -R go= it"
            );
        }
        Ok(dir)
    }

    /// Takes a folder that is there, for those who change files in it without a node. One that has no file to lock, as a
    /// copy or an old backup may have none, gets it: otherwise a node could start meanwhile.
    pub fn take_to_change(path: &Path) -> Result<DataDir, DataDirError> {
        let lock_path = path.join(LOCK);
        let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
        let lock = lock.map_err(|source| DataDirError::Io { operation: "open", path: lock_path, source })?;
        DataDir::own(path, lock)
    }

    fn own(path: &Path, lock: File) -> Result<DataDir, DataDirError> {
        match lock.try_lock() {
            Ok(()) => Ok(DataDir { path: path.to_owned(), _lock: lock, keys: FolderKeys::default() }),
            Err(TryLockError::WouldBlock) => Err(DataDirError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => {
                Err(DataDirError::Io { operation: "lock", path: path.join(LOCK), source })
            }
        }
    }

    /// Takes the rights of other users away: earlier versions made files that everybody could read. The folder itself
    /// comes last, so that one which is closed has nothing open in it.
    fn close_to_others(&self) -> io::Result<()> {
        if !is_open_to_others(&fs::symlink_metadata(&self.path)?.permissions()) {
            return Ok(());
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                close(&entry.path())?;
            }
        }
        close_all_in(&self.buckets())?;
        close(&self.path)
    }

    /// Takes the folder if a node ever ran on it, and changes nothing in it: for those who only look.
    pub fn take_existing(path: &Path) -> Result<Option<DataDir>, DataDirError> {
        match File::open(path.join(LOCK)) {
            Ok(lock) => DataDir::own(path, lock).map(Some),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DataDirError::Io { operation: "open", path: path.join(LOCK), source }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys of encrypted files in it, as far as they are open.
    pub(crate) fn keys(&self) -> &FolderKeys {
        &self.keys
    }

    /// Where a bucket lives in it.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.buckets().join(name)
    }

    /// Where all buckets live in it.
    pub fn buckets(&self) -> PathBuf {
        node_files::buckets_in(&self.path)
    }

    /// A number that is larger at each start: clients ignore a cluster map that is not newer than the one they have.
    pub fn next_revision(&self, env: &Env) -> Result<i64, DataDirError> {
        let file = node_files::revision(&self.path);
        let found = match file
            .open(&*env.disk, parse_revision, |fault| tracing::error!(event = "file_copy_damaged", "{fault}"))
        {
            Ok(None) => missing::revision(&*env.disk, &self.path).map_or(Ok(None), Err),
            found => found,
        };
        let last = match found {
            Ok(last) => last.unwrap_or(0),
            Err(error) if error.is_damage() => {
                // No node started this often.
                let revision = i64::from(env.clock.unix_s());
                tracing::error!(
                    event = "start_count_lost", %error, revision,
                    "the count of starts is lost, and goes on with a higher number"
                );
                revision
            }
            Err(error) => return Err(error.into()),
        };
        let next = last.saturating_add(1);
        let bytes = format!("{next:020}\n");
        match file.write(&*env.disk, bytes.as_bytes()) {
            // A full disk does not keep a node from starting: it has the same length each time.
            Err(error) if error.is_disk_full() => {
                tracing::warn!(
                    event = "start_count_single", %error,
                    "the disk is full: the number of this start is written over the one before, and a crash meanwhile may lose the count"
                );
                file.write_over(&*env.disk, bytes.as_bytes())?;
            }
            written => written?,
        }
        Ok(next)
    }
}

/// Understands that file's content.
pub fn parse_revision(bytes: &[u8], _version: u16) -> Result<i64, String> {
    let digits = std::str::from_utf8(bytes).ok().map(|text| text.strip_suffix('\n').unwrap_or(text));
    let number = digits.filter(|digits| digits.len() == 20).and_then(|digits| digits.parse().ok());
    number.filter(|number| *number >= 0).ok_or_else(|| "it holds no number of 20 digits".to_owned())
}

/// The rights of group and others.
const OF_OTHERS: u32 = 0o077;

fn is_open_to_others(permissions: &Permissions) -> bool {
    permissions.mode() & OF_OTHERS != 0
}

/// The rights of users who are neither the owner nor of the group.
const OF_THE_WORLD: u32 = 0o007;

/// Whether every user of the machine may read or write a file, which is followed if it is a link. False if there is none.
pub fn is_open_to_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & OF_THE_WORLD != 0)
}

/// Lets every user of the machine read a file, of which its owner alone writes: for what is public, and has to be handed on.
pub fn let_all_read(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// Takes the rights of others from a file or folder, not through a link.
fn close(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() || !is_open_to_others(&found.permissions()) {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(found.permissions().mode() & !OF_OTHERS))
}

/// The same for a folder, if it is there, and all that is in it.
fn close_all_in(folder: &Path) -> io::Result<()> {
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else {
                close(&entry.path())?;
            }
        }
        close(&folder)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use base::env::sim::{Call, Effect, Fault, On};

    use super::*;

    #[test]
    pub(crate) fn files_that_a_node_makes_are_for_its_owner_alone() {
        let (folder, env) = (tempfile::tempdir().expect("a folder"), Env::real());
        let path = folder.path().join("made");
        env.disk.open(&path, base::env::OpenMode::CreateNew).expect("it is made");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_of_the_owner_and_the_group_is_not_open_to_all() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("key");
        fs::write(&path, "key").expect("a file");
        for (mode, is_open) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(is_open_to_all(&path), is_open, "{mode:o}");
        }
        assert!(!is_open_to_all(&folder.path().join("none")));
    }

    #[test]
    fn what_others_could_read_is_closed_to_them() {
        let root = tempfile::tempdir().expect("a folder for the test");
        let data = root.path().join("data");
        let (bucket, elsewhere) = (data.join("buckets/b"), root.path().join("elsewhere"));
        fs::create_dir_all(&bucket).expect("a folder");
        let files =
            [elsewhere.clone(), data.join("uuid"), bucket.join("0.couch.1"), bucket.join("journal.1")];
        for file in &files {
            fs::write(file, "x").expect("a file");
            fs::set_permissions(file, Permissions::from_mode(0o644)).expect("its mode");
        }
        std::os::unix::fs::symlink(&elsewhere, bucket.join("link")).expect("a link");
        for folder in [&data, &data.join("buckets"), &bucket] {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("its mode");
        }
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        drop(DataDir::take(&data, &Env::real()).expect("nobody else has it"));
        for folder in [&data, &data.join("buckets"), &bucket] {
            assert_eq!(mode(folder), 0o700, "{}", folder.display());
        }
        for file in files[1..].iter().chain([&data.join(LOCK)]) {
            assert_eq!(mode(file), 0o600, "{}", file.display());
        }
        assert_eq!(mode(&elsewhere), 0o644, "what is not in the folder stays as it is");
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_told() {
        let root = tempfile::tempdir().expect("a folder for the test");
        let path = root.path().join("data");
        fs::write(&path, "x").expect("a file");
        let refused = DataDir::take(&path, &Env::real()).err().map(|error| error.to_string());
        let refused = refused.expect("it is no folder");
        assert!(refused.contains("there is a file in its place; --data names another folder"), "{refused}");
    }

    #[test]
    fn who_only_looks_waits_for_the_owner_too() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let env = Env::real();
        assert!(matches!(DataDir::take_existing(folder.path()), Ok(None)));
        assert_eq!(env.disk.read_dir(folder.path()).expect("a list"), Vec::<String>::new());
        let owner = DataDir::take(folder.path(), &env).expect("nobody else has it");
        assert!(matches!(DataDir::take_existing(folder.path()), Err(DataDirError::InUse { .. })));
        drop(owner);
        let looking = DataDir::take_existing(folder.path()).expect("it was given back");
        assert!(looking.is_some());
        assert!(matches!(DataDir::take(folder.path(), &env), Err(DataDirError::InUse { .. })));
    }

    #[test]
    fn who_changes_files_owns_a_folder_without_a_lock_too() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let changing = DataDir::take_to_change(folder.path()).expect("nobody else has it");
        for taken in [DataDir::take(folder.path(), &Env::real()), DataDir::take_to_change(folder.path())] {
            assert!(matches!(taken, Err(DataDirError::InUse { .. })));
        }
        assert!(matches!(DataDir::take_existing(folder.path()), Err(DataDirError::InUse { .. })));
        drop(changing);
        drop(DataDir::take(folder.path(), &Env::real()).expect("it was given back"));
    }

    #[test]
    fn starts_are_counted_on_a_full_disk() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let dir = DataDir::take(folder.path(), &Env::real()).expect("nobody else has it");
        let (env, handles) = Env::sim(1);
        env.disk.create_dir_all_synced(folder.path()).expect("a folder");
        assert_eq!(dir.next_revision(&env).expect("there is room"), 1);
        for number in 2..4 {
            // A new file has no room.
            handles.disk.plan(Fault::once(On::Kind(Call::Write), 1, Effect::DISK_FULL));
            assert_eq!(dir.next_revision(&env).expect("it is written over"), number);
        }
        assert_eq!(node_files::revision(folder.path()).fault(&*env.disk, parse_revision), None);
        assert_eq!(dir.next_revision(&env).expect("there is room"), 4);
    }

    #[test]
    fn has_one_owner_and_counts_its_starts() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let env = Env::real();
        let dir = DataDir::take(folder.path(), &env).expect("nobody else has it");
        assert!(matches!(DataDir::take(folder.path(), &env), Err(DataDirError::InUse { .. })));
        assert_eq!(dir.next_revision(&env).expect("writable"), 1);
        drop(dir);
        let dir = DataDir::take(folder.path(), &env).expect("it was given back");
        assert_eq!(dir.next_revision(&env).expect("writable"), 2);
        // The node has an identity, and the count is missing: it does not begin again.
        node_files::identity(folder.path()).write(&*env.disk, b"").expect("writable");
        node_files::revision(folder.path()).remove(&*env.disk).expect("writable");
        assert!(dir.next_revision(&env).expect("writable") > 1_000_000_000);
    }
}
