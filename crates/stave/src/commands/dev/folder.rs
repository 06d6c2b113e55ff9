//! Where a development cluster keeps its documents: a folder that somebody named, or one in memory that goes with the
//! process, however that ends.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "locks are held on real files")]

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::env::Env;

/// The word for a folder in memory that goes with the process.
pub const IN_MEMORY: &str = "memory";
/// Where Linux keeps files in memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// What the names of such folders begin with, and while they are being made.
const PREFIX: &str = "stave-dev-";
const UNFINISHED: &str = "stave-dev.new-";
/// The file in it that its process has locked.
const LOCK: &str = "alive";

/// A folder; one in memory goes with this value.
pub struct Folder {
    path: PathBuf,
    /// Of one in memory.
    lock: Option<File>,
}

impl Folder {
    /// The folder that `--data` names. One in memory takes the place of those whose processes were killed.
    pub fn new(env: &Env, data: &str) -> std::io::Result<Folder> {
        if data != IN_MEMORY {
            return Ok(Folder { path: data.into(), lock: None });
        }
        let has_memory = Path::new(SHARED_MEMORY).is_dir();
        let root = if has_memory { SHARED_MEMORY.into() } else { std::env::temp_dir() };
        Folder::in_memory(&root, env.random.next_u64())
    }

    fn in_memory(root: &Path, number: u64) -> std::io::Result<Folder> {
        sweep(root);
        // It has its name when it is locked: whoever sweeps meanwhile finds none that is not.
        let (unfinished, path) =
            (root.join(format!("{UNFINISHED}{number:016x}")), root.join(format!("{PREFIX}{number:016x}")));
        // For this user alone: documents are in it.
        fs::DirBuilder::new().mode(0o700).create(&unfinished)?;
        let lock = File::create(unfinished.join(LOCK))?;
        lock.lock()?;
        fs::rename(&unfinished, &path)?;
        Ok(Folder { path, lock: Some(lock) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.lock.is_some()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            eprintln!("stave: cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Removes folders of this user whose processes have ended without doing so.
fn sweep(root: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_own = entry.metadata().is_ok_and(|metadata| metadata.uid() == user);
        if !is_own || !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if let Ok(lock) = File::options().write(true).open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_any_more_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().expect("a folder");
        let other = root.path().join("stave-dev-of-somebody-else");
        fs::create_dir(&other).expect("a folder");
        let first = Folder::in_memory(root.path(), 1).expect("a folder");
        let killed = Folder::in_memory(root.path(), 2).expect("a folder");
        let left = killed.path().to_owned();
        // What `kill -9` does.
        drop(std::mem::take(&mut { killed }.lock));
        assert!(left.is_dir());
        let second = Folder::in_memory(root.path(), 3).expect("a folder");
        assert!(!left.exists() && first.path().is_dir() && second.path().is_dir() && other.is_dir());
        let gone = second.path().to_owned();
        drop(second);
        assert!(!gone.exists());
    }
}
